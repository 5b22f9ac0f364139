//! The eight orientations of EXIF.

use crate::image_column::{CHANNELS, Rectangle, Size};

/// The orientation that needs no change. Unreadable EXIF data count as upright.
pub(super) const UPRIGHT: u8 = 1;

/// Reads the orientation from a block of EXIF, which begins like a TIFF file. Damaged data count as upright.
pub(super) fn in_exif(exif: &[u8]) -> u8 {
    image::metadata::Orientation::from_exif_chunk(exif).map_or(UPRIGHT, image::metadata::Orientation::to_exif)
}

/// Returns the size after the orientation is applied.
pub(super) fn shown(stored: Size, orientation: u8) -> Size {
    match orientation {
        5..=8 => Size { height: stored.width, width: stored.height },
        _ => stored,
    }
}

/// Returns the position among the stored pixels of a part of the oriented image.
pub(super) fn stored(part: Rectangle, stored: Size, orientation: u8) -> Rectangle {
    let Rectangle { top, left, height, width } = part;
    let shown = shown(stored, orientation);
    let (bottom, right) = (shown.height - top - height, shown.width - left - width);
    match orientation {
        2 => Rectangle { left: right, ..part },
        3 => Rectangle { top: bottom, left: right, ..part },
        4 => Rectangle { top: bottom, ..part },
        5 => Rectangle { top: left, left: top, height: width, width: height },
        6 => Rectangle { top: right, left: top, height: width, width: height },
        7 => Rectangle { top: right, left: bottom, height: width, width: height },
        8 => Rectangle { top: left, left: bottom, height: width, width: height },
        _ => part,
    }
}

/// Applies the orientation to stored pixels, or to a part of them.
pub(super) fn turn(pixels: &[u8], stored: Size, orientation: u8, out: &mut [u8]) {
    let Size { height, width } = stored;
    let pixels = pixels.as_chunks::<CHANNELS>().0;
    let out = out.as_chunks_mut::<CHANNELS>().0;
    let shown = shown(stored, orientation);
    for (y, line) in out.chunks_exact_mut(shown.width).enumerate() {
        for (x, pixel) in line.iter_mut().enumerate() {
            let (row, column) = match orientation {
                2 => (y, width - 1 - x),
                3 => (height - 1 - y, width - 1 - x),
                4 => (height - 1 - y, x),
                5 => (x, y),
                6 => (height - 1 - x, y),
                7 => (height - 1 - x, width - 1 - y),
                8 => (x, width - 1 - y),
                _ => (y, x),
            };
            *pixel = pixels[row * width + column];
        }
    }
}
