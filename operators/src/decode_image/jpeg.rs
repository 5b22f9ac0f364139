//! JPEG, by zune-jpeg.

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::{Header, Size, orientation};
use crate::tensor::SIDE_MAX;

pub(super) fn header(file: &[u8]) -> Result<Header, String> {
    let mut decoder = open(file);
    decoder.decode_headers().map_err(damaged)?;
    let orientation = decoder.exif().map_or(orientation::UPRIGHT, |exif| orientation::in_exif(exif));
    Ok(Header { stored: dimensions(&decoder)?, orientation })
}

pub(super) fn decode(file: &[u8], size: Size, out: &mut [u8]) -> Result<(), String> {
    let mut decoder = open(file);
    decoder.decode_headers().map_err(damaged)?;
    if dimensions(&decoder)? != size || decoder.output_buffer_size() != Some(out.len()) {
        return Err("damaged JPEG: its size changes while it is read".to_owned());
    }
    decoder.decode_into(out).map_err(damaged)?;
    if !has_end(file) {
        return Err("damaged JPEG: the file is cut short".to_owned());
    }
    Ok(())
}

/// Whether an end-of-image marker follows the start of the first scan.
///
/// Even in strict mode zune-jpeg notices missing bytes only when it starts the next row of blocks, so up to some fifty
/// bytes can be cut off the end in silence, and the picture ends in noise. In the data of a scan `FF D9` can be nothing
/// else; before it, a thumbnail may have an end of its own. (An end marker that was put behind half of a picture is
/// not noticed: the decoder does not tell, as libjpeg only warns.)
fn has_end(file: &[u8]) -> bool {
    let scan = &file[first_scan(file).unwrap_or(0)..];
    // From the back: the marker is nearly always the file's last two bytes.
    scan.windows(2).rev().any(|pair| pair == [0xFF, 0xD9])
}

/// Where the first scan's header begins.
fn first_scan(file: &[u8]) -> Option<usize> {
    let mut at = 2;
    loop {
        at += file.get(at..)?.iter().position(|byte| *byte == 0xFF)?;
        at += file[at..].iter().position(|byte| *byte != 0xFF)?;
        match file[at] {
            0xDA => return Some(at),
            // Stuffing, and markers without a segment.
            0x00 | 0x01 | 0xD0..=0xD9 => at += 1,
            _ => at += 1 + usize::from(u16::from_be_bytes([*file.get(at + 1)?, *file.get(at + 2)?])),
        }
    }
}

/// Strict, because a lenient decoder fills what is missing with grey and calls it a success.
fn open(file: &[u8]) -> JpegDecoder<ZCursor<&[u8]>> {
    JpegDecoder::new_with_options(ZCursor::new(file), options())
}

fn options() -> DecoderOptions {
    DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(SIDE_MAX)
        .set_max_height(SIDE_MAX)
        .jpeg_set_out_colorspace(ColorSpace::RGB)
}

fn dimensions(decoder: &JpegDecoder<ZCursor<&[u8]>>) -> Result<Size, String> {
    match decoder.dimensions() {
        Some((width, height)) => Ok(Size { height, width }),
        None => Err("damaged JPEG: no frame header".to_owned()),
    }
}

fn damaged(error: zune_jpeg::errors::DecodeErrors) -> String {
    format!("damaged JPEG: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::file;

    /// A feed must not depend on the machine: the vector code has to agree with the plain one, bit for bit.
    #[test]
    fn every_processor_decodes_the_same_pixels() {
        for name in ["photo", "colour", "colour444", "progressive", "restart", "grey", "cmyk"] {
            let file = file(&format!("{name}.jpg"));
            let pixels = |vector: bool| {
                let options = options().set_use_unsafe(vector);
                JpegDecoder::new_with_options(ZCursor::new(file.as_slice()), options).decode().unwrap()
            };
            assert!(pixels(true) == pixels(false), "{name}");
        }
    }

    #[test]
    fn the_first_scan_is_found_behind_segments_that_look_like_one() {
        let file = [0xFF, 0xD8, 0xFF, 0xFF, 0xE1, 0, 6, 0xFF, 0xDA, 0xFF, 0xD9, 0xFF, 0xDA, 0, 2, 7];
        assert_eq!(first_scan(&file), Some(12));
        assert!(!has_end(&file));
        assert!(has_end(&[file.as_slice(), &[0xFF, 0xD9]].concat()));
        for len in 0..12 {
            assert_eq!(first_scan(&file[..len]), None);
        }
    }
}
