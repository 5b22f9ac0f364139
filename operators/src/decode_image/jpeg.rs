//! JPEG, by our own decoder.

use forebay_jpeg::{Region, Scratch};

use super::{Header, Size, orientation};

pub(super) fn header(file: &[u8]) -> Result<Header, String> {
    let header = forebay_jpeg::Header::read(file).map_err(|error| error.to_string())?;
    let exif = header.exif.and_then(|range| file.get(range));
    let orientation = exif.map_or(orientation::UPRIGHT, orientation::in_exif);
    Ok(Header { stored: Size { height: header.height, width: header.width }, orientation })
}

pub(super) fn decode(file: &[u8], size: Size, out: &mut [u8], scratch: &mut Scratch) -> Result<(), String> {
    let whole = Region { top: 0, left: 0, height: size.height, width: size.width };
    forebay_jpeg::decode(file, whole, out, scratch).map_err(|error| error.to_string())
}
