//! The scale of an image: how far decoding reduces it.

/// The size at which an image is decoded. A reduced image is decoded directly, without its full size: each block of 8 x
/// 8 coefficients becomes 4 x 4, 2 x 2 or one sample. The pixels match libjpeg-turbo with `scale_denom` 2, 4 or 8 bit
/// for bit. Pillow's `draft` uses the same.
///
/// Resizing the reduced image gives nearly the same result as resizing the whole image. The more the resize has left to
/// reduce, the smaller the difference. The table compares samples of the two results, as mean and largest difference
/// over the 240 sample photographs (240 to 360 pixels a side, 4:2:0). The filter is a triangle as wide as the step
/// (Pillow's `BILINEAR`), the target size is the same, and rounding happens once:
///
/// | resized to | `Half` | `Quarter` | `Eighth` |
/// |---|---|---|---|
/// | all of the reduced size (no filter) | 1.74, 78 | 1.84, 62 | 2.27, 54 |
/// | three quarters of it | 0.68, 23 | 0.97, 24 | 1.34, 27 |
/// | half of it | 0.46, 12 | 0.72, 14 | 1.00, 18 |
///
/// The exact sides are `width / denominator` and `height / denominator`, which may be fractions. Then the last column
/// and row cover less of the image, and a resize that counts them as whole shifts its result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scale {
    /// The stored size.
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
    /// All scales, from the largest image to the smallest.
    pub const ALL: [Self; 4] = [Self::Whole, Self::Half, Self::Quarter, Self::Eighth];

    /// The divisor of both sides. The result is rounded up.
    pub fn denominator(self) -> usize {
        match self {
            Self::Whole => 1,
            Self::Half => 2,
            Self::Quarter => 4,
            Self::Eighth => 8,
        }
    }

    /// The side of a decoded block of a component with the full number of samples.
    pub(crate) fn unit(self) -> usize {
        8 / self.denominator()
    }
}
