//! By how much a picture is reduced on its way from coefficients to samples.

/// The size at which a picture is decoded. A reduced one is not made whole first: each block of 8 x 8 coefficients becomes
/// 4 x 4, 2 x 2 or one sample. Pixels are those of libjpeg-turbo with `scale_denom` 2, 4 or 8, which is what Pillow's `draft`
/// uses, bit for bit.
///
/// A resize of the reduced picture gives nearly what one of the whole gives, the nearer the more it has left to do.
/// Differences of samples over the 240 sample photographs (240 to 360 pixels a side, 4:2:0), mean and largest, with a
/// triangle filter as wide as the step (Pillow's `BILINEAR`); from the whole to the same size, and rounded once:
///
/// | resized to | `Half` | `Quarter` | `Eighth` |
/// |---|---|---|---|
/// | all of the reduced size (no filter) | 1.74, 78 | 1.84, 62 | 2.27, 54 |
/// | three quarters of it | 0.68, 23 | 0.97, 24 | 1.34, 27 |
/// | half of it | 0.46, 12 | 0.72, 14 | 1.00, 18 |
///
/// The sides that count are `width / denominator` and `height / denominator`, which may be fractions: where they are, the
/// last column and row show less of the picture, and a resize that takes them for whole ones shifts what it makes.
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
