//! `decode_image`: JPEG and PNG files to pixels.
//!
//! Two passes over a batch: the headers tell every image's size, then each file is decoded straight into its place in
//! one buffer. No image has memory of its own.

mod jpeg;
mod png;

use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, LargeBinaryArray};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, UInt8Type};
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, internal_err};

use crate::descriptor::{Commutes, Descriptor, Determinism, Example, Parameter, Rows, TypeClass, media_bytes};
use crate::operator::{Arguments, Operator};
use crate::tensor::{self, CHANNELS};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "decode_image",
    version: 1,
    category: "image",
    summary: "Decodes JPEG and PNG files to RGB pixels",
    parameters: &[Parameter::input("bytes", TypeClass::Binary, "The files' contents, or `struct{bytes, path}`")],
    returns: "a uint8 tensor of variable shape height x width x 3",
    determinism: Determinism::Deterministic,
    rows: Rows::OneToOne,
    size_ratio: 12.0,
    commutes: Commutes::NONE,
    docs: "The format is told from the first bytes. Greyscale, palette, CMYK and YCCK become RGB, 16 bits become the upper \
           8, transparency is dropped without blending, colour profiles are ignored, and of an animation the first picture \
           is taken. Pixels are returned as they are stored: EXIF orientation is not applied yet.\n\nA file that is cut short, \
           even by its end marker alone, or damaged is an error, as are other formats, sides over 16384 and more than 2^28 pixels. \
           The images of one batch may hold 2^31 - 1 bytes; beyond that the query fails with resources exhausted and wants \
           smaller batches. Null in, null out; in a struct with null bytes the path is not opened, and the image is null.",
    source: "the JPEG (ITU-T T.81) and PNG (W3C) specifications, through zune-jpeg and png",
    examples: &[
        Example { sql: "decode_image(bytes)", result: "a tensor of 375 x 500 x 3" },
        Example {
            sql: "decode_image('hello world')",
            result: "error: decode_image: not a JPEG or PNG image (starts with \"hello wor\")",
        },
    ],
};

/// The operator `decode_image`.
#[derive(Debug)]
pub(crate) struct DecodeImage;

impl Operator for DecodeImage {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let field = arguments.field("bytes")?;
        let null_bytes = match (field.data_type(), media_bytes(field.data_type())) {
            (DataType::Struct(fields), Some(position)) => fields[position].is_nullable(),
            _ => false,
        };
        Ok(tensor::variable_field("image", DataType::UInt8, field.is_nullable() || null_bytes))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let files = Files::try_new(arguments.array("bytes")?)?;
        let named = |problem| exec_datafusion_err!("{}: {problem}", DESCRIPTOR.name);

        let mut shapes = Vec::with_capacity(files.len() * 3);
        let mut offsets = Vec::with_capacity(files.len() + 1);
        let mut total = 0;
        offsets.push(0);
        for row in 0..files.len() {
            let size = match files.get(row) {
                Some(file) => size(file).map_err(named)?,
                None => Size { height: 0, width: 0 },
            };
            total = add(total, size)?;
            offsets.push(total);
            shapes.extend([size.height as i32, size.width as i32, CHANNELS as i32]);
        }

        let mut pixels = vec![0; total as usize];
        let mut scratch = Vec::new();
        for row in 0..files.len() {
            let Some(file) = files.get(row) else { continue };
            let out = &mut pixels[offsets[row] as usize..offsets[row + 1] as usize];
            let size = Size { height: shapes[3 * row] as usize, width: shapes[3 * row + 1] as usize };
            decode(file, size, out, &mut scratch).map_err(named)?;
        }
        let offsets = OffsetBuffer::new(offsets.into());
        tensor::variable_array::<UInt8Type>(pixels.into(), offsets, shapes.into(), files.nulls)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size {
    height: usize,
    width: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Jpeg,
    Png,
}

/// The end of an image that begins at `total` in a batch.
fn add(total: i32, size: Size) -> Result<i32> {
    let bytes = i32::try_from(size.height * size.width * CHANNELS).ok();
    bytes.and_then(|bytes| total.checked_add(bytes)).ok_or_else(|| {
        DataFusionError::ResourcesExhausted(format!(
            "{}: the images of one batch exceed {} bytes; use smaller batches",
            DESCRIPTOR.name,
            i32::MAX
        ))
    })
}

/// The size that a file's header tells, within limits.
fn size(file: &[u8]) -> std::result::Result<Size, String> {
    let format = format(file)?;
    let size = guarded(|| match format {
        Format::Jpeg => jpeg::size(file),
        Format::Png => png::size(file),
    })?;
    if size.height == 0 || size.width == 0 {
        return Err(format!("an image of {} x {} has no pixels", size.height, size.width));
    }
    tensor::check_size(size.height, size.width)?;
    Ok(size)
}

fn decode(file: &[u8], size: Size, out: &mut [u8], scratch: &mut Vec<u8>) -> std::result::Result<(), String> {
    let format = format(file)?;
    guarded(|| match format {
        Format::Jpeg => jpeg::decode(file, size, out),
        Format::Png => png::decode(file, size, out, scratch),
    })
}

/// Runs a decoder on bytes that may be hostile. The decoders are written to return errors; a panic in one of them must
/// cost a row, not the worker.
fn guarded<T>(run: impl FnOnce() -> std::result::Result<T, String>) -> std::result::Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err("the decoder panicked; the file is damaged".to_owned()))
}

fn format(file: &[u8]) -> std::result::Result<Format, String> {
    match file {
        [0xFF, 0xD8, ..] => Ok(Format::Jpeg),
        [0x89, b'P', b'N', b'G', 0x0D, 0x0A, 0x1A, 0x0A, ..] => Ok(Format::Png),
        [] => Err("not a JPEG or PNG image (no bytes)".to_owned()),
        _ => {
            let start = file[..file.len().min(9)].escape_ascii();
            Err(format!("not a JPEG or PNG image (starts with \"{start}\")"))
        }
    }
}

/// The files of a batch, however they are stored.
struct Files<'a> {
    bytes: Bytes<'a>,
    nulls: Option<NullBuffer>,
}

enum Bytes<'a> {
    Small(&'a BinaryArray),
    Large(&'a LargeBinaryArray),
    View(&'a BinaryViewArray),
}

impl<'a> Files<'a> {
    fn try_new(array: &'a dyn Array) -> Result<Self> {
        let (bytes, outer) = match (array.as_struct_opt(), media_bytes(array.data_type())) {
            (Some(media), Some(position)) => (media.column(position).as_ref(), media.nulls()),
            _ => (array, None),
        };
        let nulls = NullBuffer::union(bytes.nulls(), outer);
        let bytes = match bytes.data_type() {
            DataType::Binary => Bytes::Small(bytes.as_binary()),
            DataType::LargeBinary => Bytes::Large(bytes.as_binary()),
            DataType::BinaryView => Bytes::View(bytes.as_binary_view()),
            other => return internal_err!("decode_image got {other}, which its type class refuses"),
        };
        Ok(Self { bytes, nulls })
    }

    fn len(&self) -> usize {
        match self.bytes {
            Bytes::Small(array) => array.len(),
            Bytes::Large(array) => array.len(),
            Bytes::View(array) => array.len(),
        }
    }

    fn get(&self, row: usize) -> Option<&'a [u8]> {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            return None;
        }
        Some(match self.bytes {
            Bytes::Small(array) => array.value(row),
            Bytes::Large(array) => array.value(row),
            Bytes::View(array) => array.value(row),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{StringArray, StructArray};

    use super::*;
    use crate::testing::{assert_near, column, decoded, file, image, sql};

    fn one(file: &[u8]) -> std::result::Result<(usize, usize, Vec<u8>), String> {
        let decoded = sql("decode_image(bytes)", vec![column("bytes", BinaryArray::from_iter_values([file]))])?;
        Ok(image(&decoded, 0).unwrap())
    }

    #[test]
    fn jpegs_are_decoded_as_pillow_decodes_them() {
        // libjpeg-turbo and zune-jpeg round differently in the inverse transform and when they scale up chroma.
        for (name, tolerance) in
            [("colour", 4), ("colour444", 2), ("progressive", 4), ("restart", 4), ("grey", 1), ("cmyk", 3)]
        {
            assert_near(&decoded(&[&format!("{name}.jpg")]), &format!("{name}.jpg.png"), tolerance);
        }
    }

    #[test]
    fn pngs_are_decoded_exactly() {
        for name in ["palette", "greyalpha", "rgba", "grey16", "bilevel"] {
            assert_near(&decoded(&[&format!("{name}.png")]), &format!("{name}.png.png"), 0);
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
        ] {
            let file = file(name);
            // Without a planner around it, which would take most of the time.
            let one = |file: &[u8]| {
                let size = size(file)?;
                let mut out = vec![0; size.height * size.width * CHANNELS];
                decode(file, size, &mut out, &mut vec![])
            };
            assert!(one(&file).is_ok(), "{name}");
            let mut thumbnail = file.clone();
            if name.ends_with("jpg") {
                // An end of image inside of the header, as of a thumbnail, is not the end of this image.
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
                size(&photo[..len])
                    .and_then(|size| {
                        decode(&photo[..len], size, &mut vec![0; size.height * size.width * CHANNELS], &mut vec![])
                    })
                    .is_err(),
                "{len} bytes"
            );
        }
    }

    #[test]
    fn other_bytes_are_named() {
        let check = |file: &[u8], expect: &str| assert_eq!(one(file).err().as_deref(), Some(expect));
        check(b"hello world", "decode_image: not a JPEG or PNG image (starts with \"hello wor\")");
        check(b"GIF89a", "decode_image: not a JPEG or PNG image (starts with \"GIF89a\")");
        check(b"\x00\xfe", "decode_image: not a JPEG or PNG image (starts with \"\\x00\\xfe\")");
        check(b"", "decode_image: not a JPEG or PNG image (no bytes)");
        check(b"\x89PNG\r\n\x1a\n", "decode_image: damaged PNG: no header");
        let text = column("bytes", StringArray::from(vec!["x"]));
        let got = sql("decode_image(bytes)", vec![text]).err();
        assert_eq!(got.as_deref(), Some("decode_image: \"bytes\" must be binary, got Utf8"));
    }

    #[test]
    fn sizes_are_limited_before_memory_is_taken() {
        let mut png = file("rgba.png");
        png[16..24].copy_from_slice(&[0, 0, 0x40, 1, 0, 0, 0, 1]);
        let expect = "decode_image: an image of 1 x 16385 is over the limit of 16384 per side and 268435456 pixels";
        assert_eq!(one(&png).err().as_deref(), Some(expect));
        png[16..24].fill(0);
        assert_eq!(one(&png).err().as_deref(), Some("decode_image: an image of 0 x 0 has no pixels"));
        let full = Size { height: 16_384, width: 16_384 };
        let two = add(0, full).and_then(|total| add(total, full)).unwrap();
        let expect =
            "Resources exhausted: decode_image: the images of one batch exceed 2147483647 bytes; use smaller batches";
        assert_eq!(add(two, full).unwrap_err().strip_backtrace(), expect);
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
