//! JPEG, decoded by `forebay_jpeg`.

use forebay_jpeg::{Region, Scale, Scratch};

use super::image_header::ImageHeader;
use super::orientation;
use crate::image_column::{Rectangle, Size};

pub(super) fn header(file: &[u8]) -> Result<ImageHeader, String> {
    let header = forebay_jpeg::Header::read(file).map_err(|error| error.to_string())?;
    let exif = header.exif.and_then(|range| file.get(range));
    let orientation = exif.map_or(orientation::UPRIGHT, orientation::in_exif);
    Ok(ImageHeader { stored: Size { height: header.height, width: header.width }, orientation })
}

/// Writes the pixels of a part of the stored image at a scale.
pub(super) fn decode(
    file: &[u8],
    part: Rectangle,
    scale: Scale,
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), String> {
    let Rectangle { top, left, height, width } = part;
    let region = Region { top, left, height, width };
    forebay_jpeg::decode_scaled(file, region, scale, out, scratch).map_err(|error| error.to_string())
}
