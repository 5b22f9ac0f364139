//! WebP, GIF, BMP and TIFF, by the `image` crate.

use std::io::Cursor;

use image::codecs::{bmp::BmpDecoder, gif::GifDecoder, tiff::TiffDecoder, webp::WebPDecoder};
use image::{ColorType, ExtendedColorType, ImageDecoder, ImageResult};

use super::image_format::ImageFormat;
use super::image_header::ImageHeader;
use super::samples::{Samples, WIDE_COLOURS, id};
use crate::image_column::{CHANNELS, Size};

pub(super) fn header(file: &[u8], format: ImageFormat) -> Result<ImageHeader, String> {
    is_whole(file, format)?;
    let mut decoder = open(file, format)?;
    let (width, height) = decoder.dimensions();
    let orientation = decoder.orientation().map_err(|e| damaged(format, &e))?;
    Ok(ImageHeader {
        stored: Size { height: height as usize, width: width as usize },
        orientation: orientation.to_exif(),
    })
}

pub(super) fn decode(
    file: &[u8],
    format: ImageFormat,
    size: Size,
    samples: Samples,
    out: &mut [u8],
    scratch: &mut Vec<u8>,
) -> Result<(), String> {
    let decoder = open(file, format)?;
    let (width, height) = decoder.dimensions();
    if (height as usize, width as usize) != (size.height, size.width) {
        return Err(format!("damaged {format}: its size changes while it is read"));
    }
    let color = decoder.color_type();
    if color == ColorType::Rgb8 {
        return decoder.read_image_boxed(out).map_err(|e| damaged(format, &e));
    }
    let is_of_ids = samples == Samples::Ids;
    match decoder.original_color_type() {
        // Its decoder scales one bit to a whole byte.
        ExtendedColorType::L1 if is_of_ids => {
            return Err(format!("{format} with 1 bit per pixel is no mask; use 8 bits"));
        }
        ExtendedColorType::Rgb16 | ExtendedColorType::Rgba16 if is_of_ids => return Err(WIDE_COLOURS.to_owned()),
        _ => {}
    }
    let (step, is_grey, sample) = match color {
        ColorType::L8 => (1, true, 1),
        ColorType::La8 => (2, true, 1),
        ColorType::Rgba8 => (4, false, 1),
        ColorType::L16 => (2, true, 2),
        ColorType::La16 => (4, true, 2),
        ColorType::Rgb16 => (6, false, 2),
        ColorType::Rgba16 => (8, false, 2),
        other => return Err(format!("{format} with {other:?} pixels is not supported; use 8 or 16 bits per channel")),
    };
    scratch.clear();
    scratch.resize(size.height * size.width * step, 0);
    decoder.read_image_boxed(scratch).map_err(|e| damaged(format, &e))?;
    // Two-byte samples are in the machine's byte order. The result keeps the upper byte.
    let upper = if cfg!(target_endian = "little") { sample - 1 } else { 0 };
    for (pixel, out) in scratch.chunks_exact(step).zip(out.as_chunks_mut::<CHANNELS>().0) {
        *out = match (is_grey, is_of_ids) {
            (true, true) if sample == 2 => id(u16::from_ne_bytes([pixel[0], pixel[1]])),
            (true, true) => id(u16::from(pixel[0])),
            (true, false) => [pixel[upper]; CHANNELS],
            (false, _) => [pixel[upper], pixel[sample + upper], pixel[2 * sample + upper]],
        };
    }
    Ok(())
}

/// Checks that a WebP file is as long as it claims. Its decoder accepts files without the bytes that it does not need.
fn is_whole(file: &[u8], format: ImageFormat) -> Result<(), String> {
    let length = file.get(4..8).and_then(|length| length.try_into().ok()).map(u32::from_le_bytes);
    match length {
        Some(length) if format == ImageFormat::WebP && (length as usize).saturating_add(8) > file.len() => {
            Err(format!("damaged {format}: the file is cut short"))
        }
        _ => Ok(()),
    }
}

fn open(file: &[u8], format: ImageFormat) -> Result<Box<dyn ImageDecoder + '_>, String> {
    fn boxed<'a>(decoder: ImageResult<impl ImageDecoder + 'a>) -> ImageResult<Box<dyn ImageDecoder + 'a>> {
        decoder.map(|decoder| Box::new(decoder) as Box<dyn ImageDecoder>)
    }
    let bytes = Cursor::new(file);
    let decoder = match format {
        ImageFormat::WebP => boxed(WebPDecoder::new(bytes)),
        ImageFormat::Gif => boxed(GifDecoder::new(bytes)),
        ImageFormat::Bmp => boxed(BmpDecoder::new(bytes)),
        ImageFormat::Tiff => boxed(TiffDecoder::new(bytes)),
        ImageFormat::Jpeg | ImageFormat::Png => return Err(format!("{format} has a decoder of its own")),
    };
    decoder.map_err(|e| damaged(format, &e))
}

fn damaged(format: ImageFormat, error: &image::ImageError) -> String {
    format!("damaged {format}: {error}")
}
