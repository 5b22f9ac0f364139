//! `random_crop`: crops of one size, at random positions.

use arrow::array::ArrayRef;
use arrow::datatypes::Field;
use datafusion::common::Result;

use crate::descriptor::{ConstantKind, Descriptor, Determinism, Example, Parameter, TypeClass};
use crate::image_chain::{Frame, Span, Step, frame_each};
use crate::image_column::Size;
use crate::keyed::Draws;
use crate::operator::{Arguments, Operator};
use crate::resize::fixed_return_field;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "random_crop",
    version: 1,
    category: "image",
    summary: "Crops each image to a given size at a random position",
    parameters: &[
        Parameter::input("image", TypeClass::Image, "The images"),
        Parameter::constant("height", ConstantKind::PositiveInteger, "Rows of pixels in the result").like("224"),
        Parameter::constant("width", ConstantKind::PositiveInteger, "Pixels per row in the result").like("224"),
        Parameter::constant("padding", ConstantKind::Integer, "The width of a black border that is added first")
            .or("0"),
        Parameter::KEY,
    ],
    returns: "a uint8 tensor of fixed shape height x width x 3",
    determinism: Determinism::KeyedRandom,
    docs: "Two draws: the top, then the left, with all positions equally likely. An image that is too small is padded \
           with black on both sides by the missing pixels. `padding => 4` with the image's own size is the usual \
           augmentation for CIFAR. Null in, null out.",
    source: "torchvision's `RandomCrop` with `pad_if_needed`",
    examples: &[Example {
        sql: "random_crop(image, height => 32, width => 32, padding => 4)",
        result: "a tensor of 32 x 32 x 3",
    }],
    ..Descriptor::BASE
};

/// Maximum padding in pixels, equal to the maximum side of an image.
const PADDING_MAX: i64 = crate::image_column::SIDE_MAX as i64;

/// The operator `random_crop`.
#[derive(Debug)]
pub(crate) struct RandomCrop;

impl Operator for RandomCrop {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        padding(arguments)?;
        fixed_return_field(arguments)
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        frame_each(DESCRIPTOR.name, arguments, &frame(arguments)?)
    }

    fn image_step(&self, arguments: &Arguments) -> Result<Option<Step>> {
        Ok(Some(Step::Frame(frame(arguments)?)))
    }
}

fn frame(arguments: &Arguments) -> Result<Frame> {
    let padding = padding(arguments)?;
    Frame::copied(arguments, move |draws, have, want| spans(draws, have, want, padding))
}

/// Reads the width of the border.
pub(crate) fn padding(arguments: &Arguments) -> Result<usize> {
    match arguments.integer("padding")? {
        padding @ 0..=PADDING_MAX => Ok(padding as usize),
        other => arguments.refuse("padding", format_args!("must be from 0 to {PADDING_MAX}, got {other}")),
    }
}

/// Draws the rows and the columns of a crop.
pub(crate) fn spans(draws: &mut Draws, have: Size, want: Size, padding: usize) -> [Span; 2] {
    let mut side = |have: usize, want: usize| {
        let around = padding + want.saturating_sub(have + 2 * padding);
        let first = draws.below((have + 2 * around - want + 1) as u64) as usize;
        part(have, want, first, around)
    };
    [side(have.height, want.height), side(have.width, want.width)]
}

/// Returns the source pixels of a crop. The image has `have` pixels and `around` padding pixels on both sides; the crop
/// has `want` pixels and starts at `first`.
fn part(have: usize, want: usize, first: usize, around: usize) -> Span {
    let source = first.saturating_sub(around).min(have);
    let target = around.saturating_sub(first).min(want);
    let end = (first + want).saturating_sub(around).min(have);
    Span { source, target, len: end.saturating_sub(source) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use datafusion::logical_expr::lit;
    use datafusion::prelude::col;

    use super::*;
    use crate::testing::{Column, decoded, fixed, image, keyed, keys, noise, select};

    fn cropped(
        images: Column,
        rows: u64,
        height: i64,
        width: i64,
        padding: i64,
    ) -> std::result::Result<Column, String> {
        let arguments = vec![col("image"), lit(height), lit(width), lit(padding)];
        select(keyed("random_crop", arguments), vec![images, keys(rows)])
    }

    #[test]
    fn spans_lie_where_padding_and_image_meet() {
        let check = |have, want, first, around, source, target, len| {
            assert_eq!(part(have, want, first, around), Span { source, target, len });
        };
        check(10, 4, 3, 0, 3, 0, 4);
        check(4, 4, 0, 2, 0, 2, 2);
        check(4, 4, 4, 2, 2, 0, 2);
        check(2, 6, 1, 4, 0, 3, 2);
        // The crop is entirely in the padding.
        check(2, 3, 0, 5, 0, 3, 0);
        check(2, 3, 9, 5, 2, 0, 0);
    }

    #[test]
    fn every_place_is_drawn_and_holds_the_images_own_pixels() {
        // Each of the 3 x 4 pixels holds its own position.
        let pixels: Vec<u8> = (0..12).flat_map(|i| [i, i, i]).collect();
        let images = fixed(3, 4, pixels.repeat(200));
        let got = cropped(images, 200, 2, 2, 0).unwrap();
        let mut places = BTreeSet::new();
        for row in 0..200 {
            let (height, width, pixels) = image(&got, row).unwrap();
            let first = pixels[0];
            assert_eq!((height, width), (2, 2));
            assert_eq!([pixels[3], pixels[6], pixels[9]], [first + 1, first + 4, first + 5]);
            places.insert(first);
        }
        assert_eq!(places.into_iter().collect::<Vec<_>>(), [0, 1, 2, 4, 5, 6]);
    }

    #[test]
    fn the_same_size_is_a_copy_and_padding_moves_it() {
        assert_eq!(image(&cropped(noise(), 1, 9, 13, 0).unwrap(), 0), image(&noise(), 0));
        let padded = image(&cropped(noise(), 1, 17, 21, 4).unwrap(), 0).unwrap();
        let (_, _, source) = image(&noise(), 0).unwrap();
        let inner: Vec<_> = (4..13).flat_map(|y| padded.2[(y * 21 + 4) * 3..(y * 21 + 17) * 3].to_vec()).collect();
        assert_eq!(inner, source);
    }

    #[test]
    fn small_images_are_padded() {
        let (_, _, small) = image(&decoded(&["palette.png"]), 0).unwrap();
        let (height, width, padded) = image(&cropped(decoded(&["palette.png"]), 1, 12, 20, 0).unwrap(), 0).unwrap();
        assert_eq!((height, width), (12, 20));
        // The image is complete, wherever it was placed.
        let line = &small[..13 * 3];
        assert!(padded.windows(line.len()).any(|window| window == line));
        assert_eq!(padded.iter().map(|x| u64::from(*x)).sum::<u64>(), small.iter().map(|x| u64::from(*x)).sum::<u64>());
        let wrong = cropped(noise(), 1, 1, 1, -1).unwrap_err();
        assert_eq!(wrong, "random_crop: \"padding\" must be from 0 to 16384, got -1");
    }
}
