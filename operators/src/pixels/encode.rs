//! `encode_jpeg`, `encode_png`: images to files.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, exec_err};
use jpeg_encoder::{ChromaSubsamplingMethod, ColorType, Encoder, SamplingFactor};
use png::Compression;

use super::augment::{IMAGE, whole};
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter};
use crate::image_column::{Image, Images};
use crate::operator::{Arguments, Operator};
use crate::text::offset;

/// An operator that encodes images as files.
#[derive(Debug)]
pub(crate) struct Encode {
    descriptor: &'static Descriptor,
    prepare: fn(&Arguments) -> Result<FileEncoding>,
}

/// The file format and its settings.
#[derive(Clone, Copy)]
enum FileEncoding {
    Jpeg { quality: u8, sampling: SamplingFactor },
    Png(Compression),
}

impl Operator for Encode {
    fn descriptor(&self) -> &'static Descriptor {
        self.descriptor
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        (self.prepare)(arguments)?;
        Ok(Field::new("bytes", DataType::Binary, arguments.field("image")?.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let format = (self.prepare)(arguments)?;
        let name = self.descriptor.name;
        let images = Images::try_new(arguments.field("image")?, arguments.array("image")?)?;
        let (mut files, mut offsets) = (Vec::new(), Vec::with_capacity(images.len() + 1));
        offsets.push(0);
        for row in 0..images.len() {
            if let Some(image) = images.get(row)?
                && let Err(problem) = format.write(image, &mut files)
            {
                return exec_err!("{name}: an image of {} x {}: {problem}", image.height, image.width);
            }
            offsets.push(offset(name, files.len())?);
        }
        let offsets = OffsetBuffer::new(offsets.into());
        Ok(Arc::new(BinaryArray::try_new(offsets, files.into(), images.nulls().cloned())?))
    }
}

impl FileEncoding {
    /// Appends one file to `files`.
    fn write(self, image: Image, files: &mut Vec<u8>) -> std::result::Result<(), String> {
        match self {
            Self::Jpeg { quality, sampling } => {
                let (Ok(height), Ok(width)) = (u16::try_from(image.height), u16::try_from(image.width)) else {
                    return Err("a JPEG has at most 65535 pixels per side".to_owned());
                };
                let mut encoder = Encoder::new(files, quality);
                encoder.set_sampling_factor(sampling);
                encoder.set_chroma_subsampling_method(ChromaSubsamplingMethod::Average);
                encoder.encode(image.pixels, width, height, ColorType::Rgb).map_err(|e| e.to_string())
            }
            Self::Png(compression) => {
                let mut encoder = png::Encoder::new(files, image.width as u32, image.height as u32);
                encoder.set_color(png::ColorType::Rgb);
                encoder.set_compression(compression);
                let mut writer = encoder.write_header().map_err(|e| e.to_string())?;
                writer.write_image_data(image.pixels).map_err(|e| e.to_string())
            }
        }
    }
}

const FILE: Descriptor = Descriptor { version: 1, category: "image", returns: "Binary", ..Descriptor::BASE };

static JPEG_DESCRIPTOR: Descriptor = Descriptor {
    name: "encode_jpeg",
    summary: "Writes each image as a JPEG file",
    parameters: &[
        IMAGE,
        Parameter::constant("quality", ConstantKind::Integer, "The quality from 1 to 100, on libjpeg's scale").or("75"),
        Parameter::constant("subsampling", ConstantKind::Text, "`'4:2:0'`, `'4:2:2'` or `'4:4:4'`").or("'4:2:0'"),
    ],
    docs: "Baseline JPEG with the standard quantisation and Huffman tables. The bytes differ from libjpeg's, but the \
           image is within a few levels of libjpeg's at the same quality. Null in, null out.",
    source: "ITU-T T.81, implemented by the crate `jpeg-encoder`",
    examples: &[Example { sql: "encode_jpeg(image, quality => 90)", result: "the bytes of a file" }],
    ..FILE
};

static PNG_DESCRIPTOR: Descriptor = Descriptor {
    name: "encode_png",
    summary: "Writes each image as a PNG file",
    parameters: &[
        IMAGE,
        Parameter::constant("compression", ConstantKind::Text, "`'fast'`, `'balanced'` or `'high'`").or("'fast'"),
    ],
    docs: "RGB with 8 bits per channel, lossless: `decode_image` returns the same pixels. Null in, null out.",
    source: "the PNG specification, implemented by the crate `png`",
    examples: &[Example { sql: "encode_png(image)", result: "the bytes of a file" }],
    ..FILE
};

pub(crate) static ENCODE_JPEG: Encode = Encode { descriptor: &JPEG_DESCRIPTOR, prepare: jpeg };
pub(crate) static ENCODE_PNG: Encode = Encode { descriptor: &PNG_DESCRIPTOR, prepare: png };

fn jpeg(arguments: &Arguments) -> Result<FileEncoding> {
    let sampling = match arguments.text("subsampling")?.as_str() {
        "4:2:0" => SamplingFactor::R_4_2_0,
        "4:2:2" => SamplingFactor::R_4_2_2,
        "4:4:4" => SamplingFactor::R_4_4_4,
        other => {
            let problem = format!("must be '4:2:0', '4:2:2' or '4:4:4', got \"{other}\"");
            return arguments.refuse("subsampling", problem);
        }
    };
    Ok(FileEncoding::Jpeg { quality: whole(arguments, "quality", 1, 100)? as u8, sampling })
}

fn png(arguments: &Arguments) -> Result<FileEncoding> {
    match arguments.text("compression")?.as_str() {
        "fast" => Ok(FileEncoding::Png(Compression::Fast)),
        "balanced" => Ok(FileEncoding::Png(Compression::Balanced)),
        "high" => Ok(FileEncoding::Png(Compression::High)),
        other => arguments.refuse("compression", format_args!("must be 'fast', 'balanced' or 'high', got \"{other}\"")),
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{assert_near, decoded, image, noise, sql};

    #[test]
    fn a_png_loses_nothing() {
        for source in [noise(), decoded(&["colour.jpg", "grey16.png"])] {
            for compression in ["fast", "balanced", "high"] {
                let call = format!("decode_image(encode_png(image, '{compression}'))");
                let got = sql(&call, vec![source.clone()]).unwrap();
                for row in 0..source.1.len() {
                    assert_eq!(image(&got, row), image(&source, row));
                }
            }
        }
    }

    #[test]
    fn a_jpeg_is_near_libjpegs_of_the_same_quality() {
        for (quality, subsampling) in [(50, "420"), (75, "420"), (90, "422"), (95, "444"), (100, "444")] {
            let colons = subsampling.split("").filter(|c| !c.is_empty()).collect::<Vec<_>>().join(":");
            let call = format!("decode_image(encode_jpeg(image, {quality}, '{colons}'))");
            let got = sql(&call, vec![decoded(&["colour.jpg.png"])]).unwrap();
            assert_near(&got, &format!("../golden/images/colour_jpeg_{quality}_{subsampling}.png"), 4);
        }
    }

    #[test]
    fn wrong_arguments_are_refused() {
        let check = |call: &str, expect: &str| assert_eq!(sql(call, vec![noise()]).unwrap_err(), expect);
        check("encode_jpeg(image, 0)", "encode_jpeg: \"quality\" must be from 1 to 100, got 0");
        check(
            "encode_jpeg(image, 75, '4:1:1')",
            "encode_jpeg: \"subsampling\" must be '4:2:0', '4:2:2' or '4:4:4', got \"4:1:1\"",
        );
        check(
            "encode_png(image, 'best')",
            "encode_png: \"compression\" must be 'fast', 'balanced' or 'high', got \"best\"",
        );
    }
}
