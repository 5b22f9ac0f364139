//! PNG, by the `png` crate.

use std::io::Cursor;

use png::{BitDepth, ColorType, Decoder, Transformations};

use super::image_header::ImageHeader;
use super::orientation;
use super::samples::{Samples, WIDE_COLOURS, id};
use crate::image_column::{CHANNELS, Size};

/// Reads the size, at a fixed position in the first chunk, and the orientation, in an optional chunk before the pixels.
pub(super) fn header(file: &[u8]) -> Result<ImageHeader, String> {
    let Some((b"IHDR", sides)) = file.get(12..24).and_then(|header| header.split_first_chunk::<4>()) else {
        return Err("damaged PNG: no header".to_owned());
    };
    let side = |at: usize| u32::from_be_bytes([sides[at], sides[at + 1], sides[at + 2], sides[at + 3]]) as usize;
    let orientation = exif(file).map_or(orientation::UPRIGHT, orientation::in_exif);
    Ok(ImageHeader { stored: Size { width: side(0), height: side(4) }, orientation })
}

/// Returns the content of the `eXIf` chunk.
fn exif(file: &[u8]) -> Option<&[u8]> {
    let mut rest = file.get(8..)?;
    loop {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (name, after) = after.split_first_chunk::<4>()?;
        let length = u32::from_be_bytes(*length) as usize;
        match name {
            b"eXIf" => return after.get(..length),
            b"IDAT" => return None,
            // Skip the content and its checksum.
            _ => rest = after.get(length.checked_add(4)?..)?,
        }
    }
}

pub(super) fn decode(
    file: &[u8],
    size: Size,
    samples: Samples,
    out: &mut [u8],
    scratch: &mut Vec<u8>,
) -> Result<(), String> {
    let mut decoder = Decoder::new(Cursor::new(file));
    decoder.set_transformations(match samples {
        Samples::Colours => Transformations::EXPAND | Transformations::STRIP_16,
        Samples::Ids => Transformations::IDENTITY,
    });
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.ignore_checksums(false);
    let mut reader = decoder.read_info().map_err(damaged)?;
    let (width, height) = reader.info().size();
    if (height as usize, width as usize) != (size.height, size.width) {
        return Err("damaged PNG: its size changes while it is read".to_owned());
    }
    match reader.output_color_type() {
        (ColorType::Rgb, BitDepth::Eight) => {
            reader.next_frame(out).map_err(damaged)?;
        }
        (ColorType::Rgb | ColorType::Rgba, BitDepth::Sixteen) => return Err(WIDE_COLOURS.to_owned()),
        (color, depth) => {
            let len = reader.output_buffer_size().ok_or("damaged PNG: its size overflows")?;
            scratch.resize(len, 0);
            reader.next_frame(scratch).map_err(damaged)?;
            match (samples, color) {
                (Samples::Ids, ColorType::Grayscale | ColorType::GrayscaleAlpha | ColorType::Indexed) => {
                    to_ids(color, depth, scratch, width as usize, out);
                }
                _ => to_rgb(color, scratch, out),
            }
        }
    }
    // The pixels are complete, but a file that ends here is cut short.
    reader.finish().map_err(damaged)
}

fn to_rgb(color: ColorType, from: &[u8], out: &mut [u8]) {
    let step = color.samples();
    let grey = matches!(color, ColorType::Grayscale | ColorType::GrayscaleAlpha);
    for (pixel, out) in from.chunks_exact(step).zip(out.as_chunks_mut::<CHANNELS>().0) {
        *out = if grey { [pixel[0]; CHANNELS] } else { [pixel[0], pixel[1], pixel[2]] };
    }
}

/// Writes the numbers of lines of one number for each pixel, perhaps with an opacity. Each line begins with a byte.
fn to_ids(color: ColorType, depth: BitDepth, from: &[u8], width: usize, out: &mut [u8]) {
    let bits = depth as usize;
    let (step, line) = (color.samples() * bits, (width * color.samples() * bits).div_ceil(8));
    for (from, out) in from.chunks_exact(line).zip(out.chunks_exact_mut(width * CHANNELS)) {
        for (at, out) in out.as_chunks_mut::<CHANNELS>().0.iter_mut().enumerate() {
            let first = at * step / 8;
            let number = match bits {
                16 => u16::from_be_bytes([from[first], from[first + 1]]),
                8 => u16::from(from[first]),
                // The first pixel of a byte is in its upper bits.
                _ => u16::from(from[first] >> (8 - bits - at * step % 8)) & ((1 << bits) - 1),
            };
            *out = id(number);
        }
    }
}

fn damaged(error: png::DecodingError) -> String {
    format!("damaged PNG: {error}")
}
