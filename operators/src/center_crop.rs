//! `center_crop`: the middle of each image.

use arrow::array::ArrayRef;
use arrow::datatypes::Field;
use datafusion::common::Result;

use crate::descriptor::{Commutes, ConstantKind, Descriptor, Determinism, Example, Nulls, Parameter, Rows, TypeClass};
use crate::operator::{Arguments, Operator};
use crate::resize::{fixed_images, fixed_return_field};
use crate::tensor::{CHANNELS, Image, Images};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "center_crop",
    version: 1,
    category: "image",
    summary: "Cuts the middle out of images, padding small ones with black",
    parameters: &[
        Parameter::input("image", TypeClass::Image, "The images"),
        Parameter::constant("height", ConstantKind::PositiveInteger, "Rows of pixels in the result"),
        Parameter::constant("width", ConstantKind::PositiveInteger, "Pixels per row in the result"),
    ],
    returns: "a uint8 tensor of fixed shape height x width x 3",
    determinism: Determinism::Deterministic,
    rows: Rows::OneToOne,
    nulls: Nulls::Kept,
    size_ratio: 0.5,
    commutes: Commutes::NONE,
    docs: "Where the margin is odd, the offset is half of it rounded to the even neighbour. An image that is smaller in \
           one direction is first padded with zeros there, the odd row or column at the bottom or right. Null in, null out.",
    source: "torchvision's definition of `center_crop`",
    examples: &[Example {
        sql: "center_crop(resize(image, height => 256, width => 256), height => 224, width => 224)",
        result: "a tensor of 224 x 224 x 3",
    }],
};

/// The operator `center_crop`.
#[derive(Debug)]
pub(crate) struct CenterCrop;

impl Operator for CenterCrop {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        fixed_return_field(arguments)
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let (height, width) = (arguments.positive("height")?, arguments.positive("width")?);
        let images = Images::try_new(arguments.field("image")?, arguments.array("image")?)?;
        fixed_images(DESCRIPTOR.name, &images, height, width, |_, image, out| {
            crop(image, out, height, width);
            Ok(())
        })
    }
}

fn crop(image: Image, out: &mut [u8], height: usize, width: usize) {
    let rows = Span::new(image.height, height);
    let columns = Span::new(image.width, width);
    for row in 0..rows.len {
        let source = ((rows.source + row) * image.width + columns.source) * CHANNELS;
        let target = ((rows.target + row) * width + columns.target) * CHANNELS;
        let len = columns.len * CHANNELS;
        out[target..target + len].copy_from_slice(&image.pixels[source..source + len]);
    }
}

/// What is copied along one side: `len` pixels from `source` to `target`.
#[derive(Debug, PartialEq, Eq)]
struct Span {
    source: usize,
    target: usize,
    len: usize,
}

impl Span {
    fn new(have: usize, want: usize) -> Self {
        match have.checked_sub(want) {
            Some(margin) => Self { source: (margin as f64 / 2.0).round_ties_even() as usize, target: 0, len: want },
            None => Self { source: 0, target: (want - have) / 2, len: have },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_round_to_even_and_padding_rounds_down() {
        let check = |have, want, source, target, len| {
            assert_eq!(Span::new(have, want), Span { source, target, len }, "{want} of {have}");
        };
        check(10, 4, 3, 0, 4);
        check(5, 2, 2, 0, 2); // a margin of 3: 1.5 becomes 2
        check(6, 5, 0, 0, 5); // a margin of 1: 0.5 becomes 0
        check(4, 4, 0, 0, 4);
        check(3, 6, 0, 1, 3); // padding of 3: 1 before, 2 after
        check(1, 2, 0, 0, 1);
    }

    #[test]
    fn a_small_image_is_padded_with_black() {
        let image = Image { height: 1, width: 3, pixels: &[1, 1, 1, 2, 2, 2, 3, 3, 3] };
        let mut out = [0; 3 * 2 * 3];
        crop(image, &mut out, 3, 2);
        assert_eq!(out, [0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 0, 0, 0, 0, 0]);
    }
}
