//! The properties in the header of an image file.

use crate::image_column::Size;

use super::orientation;

/// The properties in a file's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImageHeader {
    /// The size of the stored pixels.
    pub(super) stored: Size,
    /// The EXIF orientation, from 1 to 8.
    pub(super) orientation: u8,
}

impl ImageHeader {
    pub(crate) fn shown(self) -> Size {
        orientation::shown(self.stored, self.orientation)
    }
}
