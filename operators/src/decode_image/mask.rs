//! `decode_mask`: files of masks to ids.

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field};
use datafusion::common::Result;

use super::limits::{self, Limits};
use super::samples::Samples;
use super::{BYTES, decode_each, is_nullable};
use crate::descriptor::{Descriptor, Example, Parameter, TypeClass};
use crate::image_column;
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "decode_mask",
    category: "image",
    summary: "Decodes PNG and TIFF files of masks to the numbers that they store, such as classes or ids of instances",
    parameters: &[Parameter::input("bytes", TypeClass::Mask, BYTES), limits::MAX_SIDE, limits::MAX_PIXELS],
    returns: "a uint8 tensor of variable shape height x width x 3: the low, middle and high byte of each number",
    docs: "A mask is an image, so the operators that move pixels take it: crops, flips, `pad`, and with \
           `interpolation => 'nearest'` also `resize` and `random_rotate`. In training, the number of each pixel is \
           `m[..., 0].long() + 256 * m[..., 1].long() + 65536 * m[..., 2].long()`.\n\nA greyscale sample is the \
           number, of 8 or 16 bits. A PNG file with a palette gives the palette's indices, not its colours. Samples \
           of 1, 2 and 4 bits are not scaled. Of colours, red is the low byte, green the middle one and blue the high \
           one, as in COCO's panoptic masks. Transparency is dropped. EXIF orientation is applied as in \
           `decode_image`.\n\nOther formats are errors, because their compression or their decoder may change numbers. \
           So are 16-bit colours, and TIFF files with a palette or with other than 8 or 16 bits. Sizes are limited as \
           in `decode_image`. Null in, null out.",
    source: "the formats' specifications; COCO's panoptic format",
    examples: &[
        Example { sql: "decode_mask(bytes)", result: "a tensor of 375 x 500 x 3" },
        Example {
            sql: "random_hflip(decode_mask(mask), key => 'view')",
            result: "the ids, flipped if the image with this key is flipped",
        },
    ],
    ..Descriptor::BASE
};

/// The operator `decode_mask`.
#[derive(Debug)]
pub(crate) struct DecodeMask;

impl Operator for DecodeMask {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let nullable = is_nullable(arguments.field("bytes")?);
        Limits::checked(arguments)?;
        Ok(image_column::variable_field("image", DataType::UInt8, nullable))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        decode_each(DESCRIPTOR.name, arguments, Samples::Ids)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use arrow::array::{BinaryArray, StringArray};
    use image::codecs::tiff::TiffEncoder;
    use image::{ExtendedColorType, ImageEncoder};
    use png::{BitDepth, ColorType};

    use crate::testing::{column, file, image, sql};

    type Decoded = Result<(usize, usize, Vec<u8>), String>;

    fn decode(file: &[u8]) -> Decoded {
        let decoded = sql("decode_mask(bytes)", vec![column("bytes", BinaryArray::from_iter_values([file]))])?;
        Ok(image(&decoded, 0).unwrap())
    }

    /// Returns the numbers of a mask, as the documentation puts them together.
    fn ids(file: &[u8]) -> Vec<u32> {
        let pixels = decode(file).unwrap().2;
        pixels
            .as_chunks::<3>()
            .0
            .iter()
            .map(|&[low, middle, high]| u32::from_le_bytes([low, middle, high, 0]))
            .collect()
    }

    fn png(size: [u32; 2], color: ColorType, depth: BitDepth, lines: &[u8]) -> Vec<u8> {
        let mut file = vec![];
        let mut encoder = png::Encoder::new(&mut file, size[1], size[0]);
        encoder.set_color(color);
        encoder.set_depth(depth);
        if color == ColorType::Indexed {
            encoder.set_palette(voc_palette());
            encoder.set_trns(vec![0]);
        }
        encoder.write_header().unwrap().write_image_data(lines).unwrap();
        file
    }

    fn tiff(size: [u32; 2], color: ExtendedColorType, samples: &[u8]) -> Vec<u8> {
        let mut file = vec![];
        TiffEncoder::new(Cursor::new(&mut file)).write_image(samples, size[1], size[0], color).unwrap();
        file
    }

    /// Pascal VOC's palette: the bits of an index, from the lowest, are the upper bits of red, green and blue in turn.
    fn voc_palette() -> Vec<u8> {
        let colour = |index: usize, channel: usize| {
            (0..3).fold(0, |sum, bit| sum | ((index >> (3 * bit + channel)) & 1) << (7 - bit)) as u8
        };
        (0..256).flat_map(|index| [0, 1, 2].map(|channel| colour(index, channel))).collect()
    }

    #[test]
    fn a_palette_gives_indices() {
        let indices = [0, 15, 255, 20, 1, 128];
        let file = png([2, 3], ColorType::Indexed, BitDepth::Eight, &indices);
        assert_eq!(ids(&file), indices.map(u32::from));
        let bytes = column("bytes", BinaryArray::from_iter_values([&file]));
        let colours = image(&sql("decode_image(bytes)", vec![bytes]).unwrap(), 0).unwrap().2;
        // Index 15 is VOC's person, and 255 its border.
        assert_eq!(colours[3..9], [192, 128, 128, 224, 224, 192]);
    }

    #[test]
    fn packed_samples_are_numbers_as_stored() {
        for color in [ColorType::Grayscale, ColorType::Indexed] {
            let check = |depth, width, lines: &[u8], expect: &[u32]| {
                assert_eq!(ids(&png([2, width], color, depth, lines)), expect, "{color:?} {depth:?}");
            };
            check(BitDepth::One, 3, &[0b1010_0000, 0b0110_0000], &[1, 0, 1, 0, 1, 1]);
            check(BitDepth::One, 9, &[0xFF, 0x80, 0, 0x80], &[1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            check(BitDepth::Two, 5, &[0b00_01_10_11, 0b10_000000, 0, 0b11_000000], &[0, 1, 2, 3, 2, 0, 0, 0, 0, 3]);
            check(BitDepth::Four, 3, &[0x1F, 0x20, 0x03, 0x40], &[1, 15, 2, 0, 3, 4]);
        }
    }

    #[test]
    fn numbers_above_255_keep_their_middle_byte() {
        let numbers: [u16; 6] = [0, 255, 256, 300, 40_000, 65_535];
        let lines: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
        let grey = png([2, 3], ColorType::Grayscale, BitDepth::Sixteen, &lines);
        assert_eq!(decode(&grey).unwrap().2[9..12], [44, 1, 0]);
        assert_eq!(ids(&grey), numbers.map(u32::from));
        let lines: Vec<u8> = numbers.iter().flat_map(|number| [number.to_be_bytes(), [9, 9]].concat()).collect();
        assert_eq!(ids(&png([2, 3], ColorType::GrayscaleAlpha, BitDepth::Sixteen, &lines)), numbers.map(u32::from));
    }

    #[test]
    fn colours_are_ids_of_24_bits() {
        // COCO's id of a segment: R + 256 G + 65536 B.
        assert_eq!(ids(&png([1, 2], ColorType::Rgb, BitDepth::Eight, &[1, 2, 3, 255, 0, 0])), [197_121, 255]);
        assert_eq!(ids(&png([1, 1], ColorType::Rgba, BitDepth::Eight, &[1, 2, 3, 7])), [197_121]);
        let expect = "decode_mask: a mask with 16-bit colours is not supported; ids have at most 24 bits";
        assert_eq!(decode(&png([1, 1], ColorType::Rgb, BitDepth::Sixteen, &[0; 6])).unwrap_err(), expect);
    }

    #[test]
    fn tiff_files_keep_their_numbers() {
        let grey = decode(&file("grey.tiff")).unwrap();
        let shown =
            sql("decode_image(bytes)", vec![column("bytes", BinaryArray::from_iter_values([file("grey.tiff")]))]);
        let (height, width, shown) = image(&shown.unwrap(), 0).unwrap();
        assert_eq!((grey.0, grey.1), (height, width));
        assert!(
            grey.2.as_chunks::<3>().0.iter().zip(shown.as_chunks::<3>().0).all(|(id, [grey, ..])| *id == [*grey, 0, 0])
        );
        let numbers: [u16; 4] = [0, 255, 256, 65_535];
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let wide = tiff([2, 2], ExtendedColorType::L16, &bytes);
        assert_eq!(ids(&wide), numbers.map(u32::from));
    }

    #[test]
    fn files_that_may_change_numbers_are_refused() {
        for (name, format) in
            [("colour.jpg", "JPEG"), ("lossless.webp", "WebP"), ("palette.gif", "GIF"), ("palette.bmp", "BMP")]
        {
            let expect = format!("decode_mask: a mask is a PNG or TIFF file, and this is a {format} file");
            assert_eq!(decode(&file(name)).unwrap_err(), expect);
        }
        let expect = "decode_mask: a mask with 16-bit colours is not supported; ids have at most 24 bits";
        let colours = tiff([1, 1], ExtendedColorType::Rgb16, &[0; 6]);
        assert_eq!(decode(&colours).unwrap_err(), expect);
        let expect = "decode_mask: not an image of a known format (starts with \"text\")";
        assert_eq!(decode(b"text").unwrap_err(), expect);
        let text = column("bytes", StringArray::from(vec!["x"]));
        let expect = "decode_mask: \"bytes\" must be binary, got Utf8";
        assert_eq!(sql("decode_mask(bytes)", vec![text]).unwrap_err(), expect);
        let expect = "decode_mask: an image of 9 x 13 is over the limit of 12 per side; set max_side => 13";
        let bytes = || vec![column("bytes", BinaryArray::from_iter_values([file("palette.png")]))];
        assert_eq!(sql("decode_mask(bytes, 12)", bytes()).unwrap_err(), expect);
    }

    #[test]
    fn every_truncation_is_an_error() {
        let file = png([2, 3], ColorType::Indexed, BitDepth::Two, &[0b00_01_10_00, 0b11_00_00_00]);
        assert!(decode(&file).is_ok());
        assert!((1..file.len()).all(|len| decode(&file[..len]).is_err()));
    }

    #[test]
    fn masks_stand_upright_like_images() {
        let tilted = file("tilted5.png");
        let shown =
            sql("decode_image(bytes)", vec![column("bytes", BinaryArray::from_iter_values([&tilted]))]).unwrap();
        assert_eq!(decode(&tilted).unwrap(), image(&shown, 0).unwrap());
    }
}
