//! Strips: images whose pixels are known in one region only.

use crate::image_column::{CHANNELS, Image, Rectangle, Size};

/// The columns of a region of an image, in all of its rows. Pixels above and below the region may be stale.
///
/// All rows have a place although few are known, because a resizer computes whole columns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strip<'a> {
    /// The columns as an image. Its height is that of the whole image.
    pub(crate) columns: Image<'a>,
    /// The position of the first column in the whole image.
    pub(crate) left: usize,
}

impl<'a> Strip<'a> {
    /// Makes a strip of all columns.
    pub(crate) fn whole(image: Image<'a>) -> Self {
        Self { columns: image, left: 0 }
    }

    /// Makes a strip of memory in which [`region_in`] had the region.
    pub(crate) fn of_region(memory: &'a [u8], size: Size, region: Rectangle) -> Self {
        let columns = Size { width: region.width, ..size };
        let pixels = &memory[..columns.values()];
        Self { columns: Image { height: columns.height, width: columns.width, pixels }, left: region.left }
    }

    /// Copies pixels to `out`, row by row.
    pub(crate) fn copy(&self, region: Rectangle, out: &mut [u8]) {
        let len = region.width * CHANNELS;
        for row in 0..region.height {
            out[row * len..][..len].copy_from_slice(self.row(region, row));
        }
    }

    /// Returns a row of a region.
    pub(crate) fn row(&self, region: Rectangle, row: usize) -> &'a [u8] {
        let start = ((region.top + row) * self.columns.width + region.left - self.left) * CHANNELS;
        &self.columns.pixels[start..start + region.width * CHANNELS]
    }
}

/// Returns the memory of a region's pixels in the memory of a strip for an image of this size.
pub(crate) fn region_in(memory: &mut Vec<u8>, size: Size, region: Rectangle) -> &mut [u8] {
    let strip = sized(memory, Size { width: region.width, ..size }.values());
    let start = region.top * region.width * CHANNELS;
    &mut strip[start..start + region.size().values()]
}

/// Returns the first `len` bytes of `memory`, which grows if it is too short.
pub(crate) fn sized(memory: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if memory.len() < len {
        memory.resize(len, 0);
    }
    &mut memory[..len]
}
