//! The values that the samples of an image file become.

use super::image_format::{ImageFormat, format};
use crate::image_column::CHANNELS;

/// The values that the samples of a file become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Samples {
    /// The colours that a viewer shows.
    Colours,
    /// The numbers that the file stores, in the form of [`id`].
    Ids,
}

/// The error of a mask whose pixels have more bits than an id.
pub(super) const WIDE_COLOURS: &str = "a mask with 16-bit colours is not supported; ids have at most 24 bits";

/// Writes an id as three channels: its low, its middle and its high byte.
pub(super) fn id(number: u16) -> [u8; CHANNELS] {
    let [low, middle] = number.to_le_bytes();
    [low, middle, 0]
}

impl Samples {
    /// Refuses files whose stored numbers the decoder cannot return.
    pub(super) fn check(self, file: &[u8]) -> Result<(), String> {
        match (self, format(file)?) {
            (Self::Colours, _) | (Self::Ids, ImageFormat::Png | ImageFormat::Tiff) => Ok(()),
            (Self::Ids, other) => Err(format!("a mask is a PNG or TIFF file, and this is a {other} file")),
        }
    }
}
