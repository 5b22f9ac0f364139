//! `decode_image`: image files to pixels.
//!
//! The operator makes two passes over a batch. It reads the headers to learn the size of every image. Then it decodes
//! each file directly into its place in one buffer. No image has a buffer of its own.

mod files;
mod image_format;
mod image_header;
mod jpeg;
mod limits;
pub(crate) mod mask;
mod orientation;
mod other;
mod png;
pub(crate) mod properties;
mod samples;

use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, UInt8Type};
use datafusion::common::{Result, exec_datafusion_err};
use forebay_arrays::pool;
use forebay_jpeg::Scale;

use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, ReducedDecode, TypeClass, media_bytes};
use crate::image_chain::Step;
use crate::image_column::{self, ImageLayout, Rectangle, Size};
use crate::operator::{Arguments, Operator};
use crate::strip::sized;

pub(crate) use files::Files;
use image_format::{ImageFormat, format};
pub(crate) use image_header::ImageHeader;
pub(crate) use limits::Limits;
pub(crate) use samples::Samples;

pub(crate) const NAME: &str = "decode_image";

/// The description of the column of files.
const BYTES: &str = "The files' contents, or `struct{bytes, path}`";

static DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    version: 4,
    category: "image",
    summary: "Decodes JPEG, PNG, WebP, GIF, BMP and TIFF files to RGB pixels",
    parameters: &[
        Parameter::input("bytes", TypeClass::Binary, BYTES),
        Parameter::constant(
            "fast",
            ConstantKind::Boolean,
            "Whether a large JPEG file may be decoded at a reduced size if the query shrinks the image",
        )
        .or("false"),
        limits::MAX_SIDE,
        limits::MAX_PIXELS,
    ],
    returns: "a uint8 tensor of variable shape height x width x 3",
    docs: "The first bytes determine the format. Greyscale, palette, CMYK and YCCK images become RGB. 16-bit samples \
           keep their upper 8 bits. Transparency is dropped without blending, and colour profiles are ignored. An \
           animation gives its first image. EXIF orientation is applied for JPEG, PNG, WebP and TIFF, so images are \
           upright as in a viewer. TIFF and BMP files with CMYK or more than 16 bits are refused.\n\nA truncated or \
           damaged file is an error; for JPEG and PNG, a missing end marker is enough. Only the first image of a GIF \
           is read. Other formats are errors, too.\n\nA file of a few kilobytes may hold an image of a gigabyte. So \
           an image with more than `max_pixels` pixels, 3 bytes each, or with a side of more than `max_side` is an \
           error that names its size, and none of its pixels are decoded. The limits hold for the size in the file, \
           also where the query shrinks the image. A progressive JPEG file with over 100 scans is an error. The \
           images of one batch may hold 2^31 - 1 bytes; beyond that the query fails with resources exhausted and asks for smaller batches.\n\nWith fast, a JPEG \
           file is decoded at 1/2, 1/4 or 1/8 of its size under three conditions: the call is a direct argument of \
           `resize` or `random_resized_crop` with antialias, the used part of the reduced image is still twice as high \
           and wide as the result, and the file is stored upright. Otherwise fast changes nothing. Over the sample \
           photographs, the result then differs from the exact one by at most 2 levels on average for each image, and \
           by at most 24 for each value.\n\nNull in, null out. A struct with \
           null bytes gives null; its path is not opened.",
    source: "the formats' specifications, implemented by forebay-jpeg, png and image; tested against Pillow",
    examples: &[
        Example { sql: "decode_image(bytes)", result: "a tensor of 375 x 500 x 3" },
        Example {
            sql: "decode_image(arrow_cast('hello world', 'Binary'))",
            result: "error: decode_image: not an image of a known format (starts with \"hello wor\")",
        },
    ],
    reduced_decode: ReducedDecode::Decodes("fast"),
    ..Descriptor::BASE
};

/// The operator `decode_image`.
#[derive(Debug)]
pub(crate) struct DecodeImage;

impl Operator for DecodeImage {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let nullable = is_nullable(arguments.field("bytes")?);
        Limits::checked(arguments)?;
        Ok(image_column::variable_field("image", DataType::UInt8, nullable))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        decode_each(NAME, arguments, Samples::Colours)
    }

    fn image_step(&self, arguments: &Arguments) -> Result<Option<Step>> {
        Ok(Some(Step::Decode { fast: arguments.flag("fast")?, limits: Limits::of(arguments)? }))
    }
}

/// Decodes the files of a call's column, each into its place in one buffer.
fn decode_each(name: &str, arguments: &Arguments, samples: Samples) -> Result<ArrayRef> {
    let files = Files::try_new(arguments.array("bytes")?)?;
    let named = |problem| exec_datafusion_err!("{name}: {problem}");
    let limits = Limits::of(arguments)?;
    let header = |file| samples.check(file).and_then(|()| limited_header(file, limits)).map_err(named);
    let headers = (0..files.len()).map(|row| files.get(row).map(header).transpose());
    let headers = headers.collect::<Result<Vec<_>>>()?;
    let layout = ImageLayout::variable(name, headers.iter().map(|header| Ok(header.map(ImageHeader::shown))))?;
    layout.reserve(name, 1)?;
    let mut pixels = pool::outputs().take_filled(layout.values());
    let mut scratch = DecodeScratch::default();
    for (row, header) in headers.into_iter().enumerate() {
        let (Some(file), Some(header)) = (files.get(row), header) else { continue };
        let out = &mut pixels.values()[layout.range(row)];
        whole(file, header, samples, out, &mut scratch).map_err(named)?;
    }
    layout.array::<UInt8Type>(pixels.freeze().into(), files.nulls().cloned())
}

/// Returns whether a column of files may hold nulls, or structs with null bytes.
fn is_nullable(field: &Field) -> bool {
    let null_bytes = match (field.data_type(), media_bytes(field.data_type())) {
        (DataType::Struct(fields), Some(position)) => fields[position].is_nullable(),
        _ => false,
    };
    field.is_nullable() || null_bytes
}

/// Memory that is reused from image to image.
#[derive(Debug, Default)]
pub(crate) struct DecodeScratch {
    decoders: Decoders,
    stored: Vec<u8>,
}

/// Memory that decoders keep from file to file.
#[derive(Debug, Default)]
struct Decoders {
    jpeg: forebay_jpeg::Scratch,
    samples: Vec<u8>,
}

impl DecodeScratch {
    pub(crate) fn bytes(&self) -> usize {
        self.decoders.jpeg.bytes() + self.decoders.samples.capacity() + self.stored.capacity()
    }
}

/// Reads the header of a file that is to be decoded, and checks the size against the call's limits.
pub(crate) fn limited_header(file: &[u8], limits: Limits) -> std::result::Result<ImageHeader, String> {
    let header = header(file)?;
    limits.check(header.stored)?;
    Ok(header)
}

/// Reads a file's header. The size is within [`Limits::MOST`].
fn header(file: &[u8]) -> std::result::Result<ImageHeader, String> {
    let format = format(file)?;
    let header = guarded(|| match format {
        ImageFormat::Jpeg => jpeg::header(file),
        ImageFormat::Png => png::header(file),
        other => other::header(file, other),
    })?;
    let size = header.stored;
    if size.height == 0 || size.width == 0 {
        return Err(format!("an image of {} x {} has no pixels", size.height, size.width));
    }
    Limits::MOST.check(size)?;
    Ok(header)
}

/// Decodes a whole image, with its orientation applied.
pub(crate) fn whole(
    file: &[u8],
    header: ImageHeader,
    samples: Samples,
    out: &mut [u8],
    scratch: &mut DecodeScratch,
) -> std::result::Result<(), String> {
    if header.orientation == orientation::UPRIGHT {
        return decode(file, header.stored, samples, out, &mut scratch.decoders);
    }
    let stored = sized(&mut scratch.stored, out.len());
    decode(file, header.stored, samples, stored, &mut scratch.decoders)?;
    orientation::turn(stored, header.stored, header.orientation, out);
    Ok(())
}

/// A part of a file that is to be decoded, at least a region of it.
///
/// Damage anywhere in the file is an error, whatever the region. Only upright JPEG files are decoded at a smaller
/// scale.
pub(crate) struct PartDecode {
    /// Whether regions are decoded alone.
    is_jpeg: bool,
    scale: Scale,
    /// The row and the column of the file's picture, at this scale, at which the image begins.
    origin: (usize, usize),
    /// The size of the image that contains the part.
    pub(crate) size: Size,
    /// The position of the part in the image.
    pub(crate) part: Rectangle,
    /// The position in `part` if it is not whole pixels: left, top, width and height.
    pub(crate) within: Option<[f64; 4]>,
}

impl PartDecode {
    /// Finds the image in which a part will be.
    pub(crate) fn new(
        file: &[u8],
        header: ImageHeader,
        part: Rectangle,
        scale: Scale,
    ) -> std::result::Result<Self, String> {
        let is_jpeg = format(file)? == ImageFormat::Jpeg;
        if is_jpeg && header.orientation == orientation::UPRIGHT && scale != Scale::Whole {
            let by = scale.denominator();
            let (top, left) = (part.top / by, part.left / by);
            let (bottom, right) = ((part.top + part.height).div_ceil(by), (part.left + part.width).div_ceil(by));
            let of = |length: usize| length as f64 / by as f64;
            let within = [of(part.left) - left as f64, of(part.top) - top as f64, of(part.width), of(part.height)];
            let size = Size { height: bottom - top, width: right - left };
            let part = Rectangle::whole(size);
            return Ok(Self { is_jpeg, scale, origin: (top, left), size, part, within: Some(within) });
        }
        let (origin, size, part) = match is_jpeg && !part.is_empty() {
            true => ((part.top, part.left), part.size(), Rectangle::whole(part.size())),
            false => ((0, 0), header.shown(), part),
        };
        Ok(Self { is_jpeg, scale: Scale::Whole, origin, size, part, within: None })
    }

    /// Returns the region of the image that is decoded for the sake of another one.
    pub(crate) fn region(&self, needed: Rectangle) -> Rectangle {
        // A frame beside the image needs none of its pixels, but a damaged file must still be an error.
        if self.is_jpeg && !needed.is_empty() { needed } else { Rectangle::whole(self.size) }
    }

    /// Decodes such a region, with the file's orientation applied.
    pub(crate) fn run(
        &self,
        file: &[u8],
        header: ImageHeader,
        region: Rectangle,
        out: &mut [u8],
        scratch: &mut DecodeScratch,
    ) -> std::result::Result<(), String> {
        let shown = Rectangle { top: self.origin.0 + region.top, left: self.origin.1 + region.left, ..region };
        let part = orientation::stored(shown, header.stored, header.orientation);
        let DecodeScratch { decoders, stored } = scratch;
        let mut load = |out: &mut [u8]| match self.is_jpeg {
            true => guarded(|| jpeg::decode(file, part, self.scale, out, &mut decoders.jpeg)),
            false => decode(file, header.stored, Samples::Colours, out, decoders),
        };
        if header.orientation == orientation::UPRIGHT {
            return load(out);
        }
        let stored = sized(stored, out.len());
        load(stored)?;
        orientation::turn(stored, part.size(), header.orientation, out);
        Ok(())
    }
}

/// Decodes the stored pixels.
fn decode(
    file: &[u8],
    size: Size,
    samples: Samples,
    out: &mut [u8],
    decoders: &mut Decoders,
) -> std::result::Result<(), String> {
    let format = format(file)?;
    guarded(|| match format {
        ImageFormat::Jpeg => jpeg::decode(file, Rectangle::whole(size), Scale::Whole, out, &mut decoders.jpeg),
        ImageFormat::Png => png::decode(file, size, samples, out, &mut decoders.samples),
        other => other::decode(file, other, size, samples, out, &mut decoders.samples),
    })
}

/// Runs a decoder on untrusted bytes. Decoders return errors. If one panics nevertheless, the panic fails the row and
/// not the worker.
fn guarded<T>(run: impl FnOnce() -> std::result::Result<T, String>) -> std::result::Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err("the decoder panicked; the file is damaged".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Array, AsArray, BinaryArray, StringArray, StructArray};
    use arrow::buffer::NullBuffer;

    use super::*;
    use crate::testing::{assert_near, column, decoded, file, image, sql};

    fn one(file: &[u8]) -> std::result::Result<(usize, usize, Vec<u8>), String> {
        let decoded = sql("decode_image(bytes)", vec![column("bytes", BinaryArray::from_iter_values([file]))])?;
        Ok(image(&decoded, 0).unwrap())
    }

    #[test]
    fn jpegs_are_decoded_as_pillow_decodes_them() {
        for name in ["colour", "colour444", "progressive", "restart", "grey", "cmyk"] {
            assert_near(&decoded(&[&format!("{name}.jpg")]), &format!("{name}.jpg.png"), 0);
        }
    }

    #[test]
    fn pngs_are_decoded_exactly() {
        for name in ["palette", "greyalpha", "rgba", "grey16", "bilevel"] {
            assert_near(&decoded(&[&format!("{name}.png")]), &format!("{name}.png.png"), 0);
        }
    }

    #[test]
    fn other_formats_are_decoded_as_pillow_decodes_them() {
        for (name, tolerance) in [
            ("lossless.webp", 0),
            // libwebp and the image-webp crate upsample chroma in different ways.
            ("lossy.webp", 12),
            ("alpha.webp", 0),
            ("palette.gif", 0),
            ("animated.gif", 0),
            ("colour.bmp", 0),
            ("palette.bmp", 0),
            ("grey.bmp", 0),
            ("colour.tiff", 0),
            ("lzw.tiff", 0),
            ("deflate.tiff", 0),
            ("grey.tiff", 0),
            ("alpha.tiff", 0),
        ] {
            assert_near(&decoded(&[name]), &format!("{name}.png"), tolerance);
        }
    }

    #[test]
    fn images_stand_upright_however_the_camera_was_held() {
        for orientation in 1..=8 {
            let name = format!("tilted{orientation}.jpg");
            assert_near(&decoded(&[&name]), &format!("{name}.png"), 0);
        }
        for name in ["tilted.webp", "tilted.tiff", "tilted5.png"] {
            assert_near(&decoded(&[name]), &format!("{name}.png"), 0);
        }
    }

    #[test]
    fn headers_tell_size_and_format_without_decoding() {
        let names = ["tilted6.jpg", "lossless.webp", "animated.gif", "colour.bmp", "tilted.tiff", "tilted5.png"];
        let files =
            || column("bytes", BinaryArray::from_iter(names.map(|name| Some(file(name))).into_iter().chain([None])));
        let shown = |call: &str| {
            let (_, got) = sql(call, vec![files()]).unwrap();
            let got = arrow::compute::cast(&got, &DataType::Utf8).unwrap();
            got.as_string::<i32>().iter().map(|text| text.unwrap_or("null").to_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shown("image_height(bytes)"), "17 11 11 11 17 17 null");
        assert_eq!(shown("image_width(bytes)"), "11 17 17 17 11 11 null");
        assert_eq!(shown("image_format(bytes)"), "jpeg webp gif bmp tiff png null");
        let wrong =
            |call: &str| sql(call, vec![column("bytes", BinaryArray::from_iter_values([b"text"]))]).unwrap_err();
        let expect = "image_height: not an image of a known format (starts with \"text\")";
        assert_eq!(wrong("image_height(bytes)"), expect);
        assert_eq!(wrong("image_format(bytes)"), expect.replace("height", "format"));
    }

    #[test]
    fn a_thousand_damaged_files_of_each_format_cost_a_row_and_no_more() {
        let mut draws = crate::keyed::Draws::new(23, 0);
        for name in [
            "colour.jpg",
            "progressive.jpg",
            "tilted6.jpg",
            "noise_5x7.png",
            "palette.png",
            "lossless.webp",
            "lossy.webp",
            "tilted.webp",
            "palette.gif",
            "animated.gif",
            "colour.bmp",
            "palette.bmp",
            "lzw.tiff",
            "deflate.tiff",
            "tilted.tiff",
        ] {
            let whole = file(name);
            let mut scratch = DecodeScratch::default();
            for _ in 0..1000 {
                let mut bytes = whole.clone();
                if draws.below(4) == 0 {
                    bytes.truncate(draws.below(whole.len() as u64) as usize);
                }
                for _ in 0..draws.below(5) {
                    // Change the header more often than the rest. It contains the sizes and offsets.
                    let range = if draws.below(3) > 0 { bytes.len().min(120) } else { bytes.len() };
                    if range > 0 {
                        bytes[draws.below(range as u64) as usize] = draws.below(256) as u8;
                    }
                }
                let Ok(header) = header(&bytes) else { continue };
                let size = header.stored;
                // The limits hold for the sizes that a header claims. The test need not fill gigabytes to check them.
                if size.height * size.width <= 1 << 22 {
                    let _ = super::whole(&bytes, header, Samples::Colours, &mut vec![0; size.values()], &mut scratch);
                }
            }
        }
    }

    #[test]
    fn every_truncation_is_an_error() {
        for name in [
            "colour.jpg",
            "colour444.jpg",
            "progressive.jpg",
            "restart.jpg",
            "grey.jpg",
            "cmyk.jpg",
            "rgba.png",
            "palette.png",
            "noise_5x7.png",
            "grey16.png",
            "lossless.webp",
            "lossy.webp",
            "colour.bmp",
            "colour.tiff",
            "lzw.tiff",
        ] {
            let file = file(name);
            // Call the kernel without a planner, which would take most of the time.
            let one = |file: &[u8]| {
                let header = header(file)?;
                let out = &mut vec![0; header.stored.values()];
                super::whole(file, header, Samples::Colours, out, &mut DecodeScratch::default())
            };
            assert!(one(&file).is_ok(), "{name}");
            let mut thumbnail = file.clone();
            if name.ends_with("jpg") {
                // An end-of-image marker inside the header, such as a thumbnail's, does not end this image.
                thumbnail.splice(2..2, [0xFF, 0xE1, 0, 4, 0xFF, 0xD9]);
                assert!(one(&thumbnail).is_ok(), "{name}");
            }
            for file in [file, thumbnail] {
                for len in 1..file.len() {
                    assert!(one(&file[..len]).is_err(), "{len} of {} bytes of {name}", file.len());
                }
            }
        }
    }

    #[test]
    fn bytes_after_the_end_do_not_matter() {
        let file = file("colour.jpg");
        let longer = [file.as_slice(), b"\0\0motion photo"].concat();
        assert_eq!(one(&longer), one(&file));
    }

    #[test]
    fn a_tail_of_zeros_is_an_error() {
        let mut file = file("colour.jpg");
        let half = file.len() / 2;
        file[half..].fill(0);
        assert!(one(&file).is_err());
    }

    #[test]
    fn a_photograph_is_decoded_and_its_truncations_are_errors() {
        let photo = file("photo.jpg");
        let (height, width, _) = one(&photo).unwrap();
        assert_eq!((height, width), (300, 300));
        for len in (1..photo.len()).step_by(97).chain(photo.len() - 100..photo.len()) {
            assert!(
                header(&photo[..len])
                    .and_then(|header| {
                        whole(
                            &photo[..len],
                            header,
                            Samples::Colours,
                            &mut vec![0; header.stored.values()],
                            &mut DecodeScratch::default(),
                        )
                    })
                    .is_err(),
                "{len} bytes"
            );
        }
    }

    #[test]
    fn other_bytes_are_named() {
        let check = |file: &[u8], expect: &str| assert_eq!(one(file).err().as_deref(), Some(expect));
        check(b"hello world", "decode_image: not an image of a known format (starts with \"hello wor\")");
        check(b"BMW 3er  ", "decode_image: not an image of a known format (starts with \"BMW 3er  \")");
        check(b"\x00\xfe", "decode_image: not an image of a known format (starts with \"\\x00\\xfe\")");
        check(b"", "decode_image: not an image of a known format (no bytes)");
        check(b"\x89PNG\r\n\x1a\n", "decode_image: damaged PNG: no header");
        let text = column("bytes", StringArray::from(vec!["x"]));
        let got = sql("decode_image(bytes)", vec![text]).err();
        assert_eq!(got.as_deref(), Some("decode_image: \"bytes\" must be binary, got Utf8"));
    }

    #[test]
    fn sizes_are_limited_before_memory_is_taken() {
        let mut png = file("rgba.png");
        png[16..24].copy_from_slice(&[0, 0, 0x40, 1, 0, 0, 0, 1]);
        let expect = "decode_image: an image of 1 x 16385 is over the limit of 16384 per side; set max_side => 16385";
        assert_eq!(one(&png).err().as_deref(), Some(expect));
        png[16..24].copy_from_slice(&[0, 0, 0x40, 0, 0, 0, 0x40, 0]);
        let expect = "decode_image: an image of 16384 x 16384 is over the limit of 67108864 pixels; \
                      set max_pixels => 268435456";
        assert_eq!(one(&png).err().as_deref(), Some(expect));
        png[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
        let expect = "decode_image: an image of 65536 x 65536 is over the limit of 65535 per side";
        assert_eq!(one(&png).err().as_deref(), Some(expect));
        png[16..24].fill(0);
        assert_eq!(one(&png).err().as_deref(), Some("decode_image: an image of 0 x 0 has no pixels"));
        let full = Size { height: 16_384, width: 16_384 };
        let batch =
            |images: usize| ImageLayout::variable(NAME, std::iter::repeat_n(full, images).map(|size| Ok(Some(size))));
        assert!(batch(2).is_ok());
        let expect =
            "Resources exhausted: decode_image: the images of one batch exceed 2147483647 values; use smaller batches";
        assert_eq!(batch(3).unwrap_err().strip_backtrace(), expect);
    }

    #[test]
    fn encoded_media_is_a_struct_of_bytes_and_path() {
        let bytes = BinaryArray::from_iter([Some(file("colour.jpg")), None, Some(file("grey.jpg"))]);
        let fields = vec![Field::new("path", DataType::Utf8, true), Field::new("bytes", DataType::Binary, true)];
        let paths = StringArray::from(vec!["a.jpg"; 3]);
        let nulls = NullBuffer::from(vec![true, true, false]);
        let media = StructArray::new(fields.into(), vec![Arc::new(paths), Arc::new(bytes)], Some(nulls));
        let got = sql("decode_image(media)", vec![column("media", media)]).unwrap();
        assert_eq!(image(&got, 0), image(&decoded(&["colour.jpg"]), 0));
        assert_eq!((image(&got, 1), image(&got, 2)), (None, None));
    }

    #[test]
    fn a_null_is_decoded_to_a_null() {
        let (field, got) = sql("decode_image(NULL)", vec![noise_free()]).unwrap();
        assert!(got.is_null(0) && field.is_nullable());
    }

    fn noise_free() -> crate::testing::Column {
        column("x", StringArray::from(vec!["x"]))
    }
}
