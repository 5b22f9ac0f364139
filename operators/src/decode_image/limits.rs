//! The largest image that a call decodes.

use datafusion::common::Result;

use crate::descriptor::{ConstantKind, Parameter};
use crate::image_column::{CHANNELS, Size};
use crate::operator::Arguments;

pub(super) const MAX_SIDE: Parameter = Parameter::constant(
    "max_side",
    ConstantKind::PositiveInteger,
    "The greatest height and width of an image, at most 65535; a larger image is an error",
)
.or("16384");

pub(super) const MAX_PIXELS: Parameter = Parameter::constant(
    "max_pixels",
    ConstantKind::PositiveInteger,
    "The greatest number of pixels in an image, at most 715827882; a larger image is an error",
)
.or("67108864");

/// Limits on the size of an image, because a file of a few kilobytes may claim any size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    side: usize,
    pixels: usize,
}

impl Limits {
    /// The highest limits that a call may set: the sides of a JPEG file, and the values that a column can hold.
    pub(super) const MOST: Self = Self { side: 65_535, pixels: i32::MAX as usize / CHANNELS };

    /// Reads the limits of a call.
    pub(super) fn of(arguments: &Arguments) -> Result<Self> {
        Ok(Self { side: arguments.positive("max_side")?, pixels: arguments.positive("max_pixels")? })
    }

    /// Reads the limits of a call, and refuses those that are too high.
    pub(super) fn checked(arguments: &Arguments) -> Result<Self> {
        let limits = Self::of(arguments)?;
        let (side, pixels) = (Self::MOST.side, Self::MOST.pixels);
        if limits.side > side {
            return arguments.refuse("max_side", format_args!("must be at most {side}, got {}", limits.side));
        }
        if limits.pixels > pixels {
            return arguments.refuse("max_pixels", format_args!("must be at most {pixels}, got {}", limits.pixels));
        }
        Ok(limits)
    }

    /// Refuses an image that is over a limit. The error names the size, and the option that permits it.
    pub(super) fn check(self, size: Size) -> std::result::Result<(), String> {
        let Size { height, width } = size;
        let over = |limit: usize, what: &str, option: &str, needed: usize, most: usize| {
            let hint = if needed <= most { format!("; set {option} => {needed}") } else { String::new() };
            Err(format!("an image of {height} x {width} is over the limit of {limit} {what}{hint}"))
        };
        let pixels = height.saturating_mul(width);
        match height.max(width) {
            side if side > self.side => over(self.side, "per side", "max_side", side, Self::MOST.side),
            _ if pixels > self.pixels => over(self.pixels, "pixels", "max_pixels", pixels, Self::MOST.pixels),
            _ => Ok(()),
        }
    }
}
