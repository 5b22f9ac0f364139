//! By how much a picture is reduced on its way from coefficients to samples.

/// The size at which a picture is decoded. A reduced one is not made whole first: each block of 8 x 8 coefficients becomes
/// 4 x 4, 2 x 2 or one sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scale {
    /// As it is stored.
    #[default]
    Whole,
    /// Half the width and height.
    Half,
    /// A quarter of the width and height.
    Quarter,
    /// An eighth of the width and height: the mean of each block.
    Eighth,
}

impl Scale {
    /// All scales, from the largest picture to the smallest.
    pub const ALL: [Self; 4] = [Self::Whole, Self::Half, Self::Quarter, Self::Eighth];

    /// By what sides are divided, rounding up.
    pub fn denominator(self) -> usize {
        match self {
            Self::Whole => 1,
            Self::Half => 2,
            Self::Quarter => 4,
            Self::Eighth => 8,
        }
    }

    /// The side of what becomes of a block of a component with the full number of samples.
    pub(crate) fn unit(self) -> usize {
        8 / self.denominator()
    }
}
