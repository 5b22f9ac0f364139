//! `random_hflip`: mirrors images left to right at random.

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field};
use datafusion::common::Result;

use crate::descriptor::{ConstantKind, Descriptor, Determinism, Example, Parameter, Pixels, SizeRatio, TypeClass};
use crate::image_chain::{PixelChange, Step, change_each};
use crate::image_column::{self, CHANNELS, Rectangle, Size};
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "random_hflip",
    version: 1,
    category: "image",
    summary: "Mirrors each image left to right with a given probability",
    parameters: &[
        Parameter::input("image", TypeClass::Image, "The images"),
        Parameter::constant("p", ConstantKind::Number, "The probability of mirroring, from 0 to 1").or("0.5"),
        Parameter::KEY,
    ],
    returns: "a uint8 tensor of the same shape, fixed or variable",
    determinism: Determinism::KeyedRandom,
    pixels: Pixels::Moved,
    size_ratio: SizeRatio::exactly(1.0),
    docs: "Each image has one draw, and is mirrored if the draw is below p: never for 0, always for 1. Null in, null \
           out.",
    source: "torchvision's `RandomHorizontalFlip`",
    examples: &[Example { sql: "random_hflip(image, p => 0.5)", result: "half of the images are mirrored" }],
    ..Descriptor::BASE
};

/// The operator `random_hflip`.
#[derive(Debug)]
pub(crate) struct RandomHflip;

impl Operator for RandomHflip {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let p = arguments.number("p")?;
        if !(0.0..=1.0).contains(&p) {
            return arguments.refuse("p", format_args!("must be from 0 to 1, got {p}"));
        }
        let field = arguments.field("image")?;
        image_column::field("image", DataType::UInt8, image_column::shape(field)?, field.is_nullable())
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let change = change(arguments)?;
        change_each(arguments, &change)
    }

    fn image_step(&self, arguments: &Arguments) -> Result<Option<Step>> {
        Ok(Some(Step::Change(change(arguments)?)))
    }
}

fn change(arguments: &Arguments) -> Result<PixelChange> {
    let p = arguments.number("p")?;
    let mirror = |pixels: &mut [u8], size: Size| {
        for line in pixels.chunks_exact_mut(size.width * CHANNELS) {
            line.as_chunks_mut::<CHANNELS>().0.reverse();
        }
    };
    let mirrored =
        |size: Size, region: Rectangle| Rectangle { left: size.width - region.left - region.width, ..region };
    Ok(PixelChange::mirrored(p, mirror, mirrored))
}

#[cfg(test)]
mod tests {
    use arrow::array::Array;
    use datafusion::logical_expr::lit;
    use datafusion::prelude::col;

    use super::*;
    use crate::image_column::Images;
    use crate::testing::{decoded, fixed, image, keyed, keys, noise, select, sql};

    fn mirrored((height, width, pixels): (usize, usize, Vec<u8>)) -> (usize, usize, Vec<u8>) {
        let lines = pixels.chunks(width * 3).map(|line| line.rchunks(3).flatten().copied().collect::<Vec<_>>());
        (height, width, lines.flatten().collect())
    }

    #[test]
    fn one_mirrors_all_and_zero_none() {
        for images in [noise(), decoded(&["colour.jpg", "grey16.png"])] {
            let flip = |p: f64| {
                let rows = images.1.len() as u64;
                select(keyed("random_hflip", vec![col("image"), lit(p)]), vec![images.clone(), keys(rows)]).unwrap()
            };
            for row in 0..images.1.len() {
                assert_eq!(image(&flip(0.0), row), image(&images, row));
                assert_eq!(image(&flip(1.0), row), image(&images, row).map(mirrored));
            }
        }
    }

    #[test]
    fn memory_that_nobody_else_holds_is_reused() {
        let (field, array) = noise();
        let before = image(&(field.clone(), array.clone()), 0).unwrap();
        let shared = image_column::change_pixels(array.clone(), |pixels| pixels.fill(7)).unwrap();
        assert_eq!(image(&(field.clone(), array.clone()), 0).unwrap(), before, "others see no change");
        let address = |array: &ArrayRef| image_address(&field, array);
        let old = address(&shared);
        let own = image_column::change_pixels(shared, |pixels| pixels.fill(8)).unwrap();
        assert_eq!(address(&own), old);
    }

    fn image_address(field: &Field, array: &ArrayRef) -> usize {
        Images::try_new(field, array).unwrap().get(0).unwrap().unwrap().pixels.as_ptr() as usize
    }

    #[test]
    fn a_slice_copies_only_its_own_pixels() {
        let (field, array) = decoded(&["colour.jpg", "grey16.png", "palette.png"]);
        let slice = array.slice(1, 1);
        let mut seen = 0;
        let changed = image_column::change_pixels(slice, |pixels| seen = pixels.len()).unwrap();
        assert_eq!(seen, 9 * 13 * 3);
        assert_eq!(image(&(field.clone(), changed), 0), image(&(field, array), 1));
    }

    #[test]
    fn about_half_is_mirrored_by_default_and_the_same_half_every_time() {
        let pixels: Vec<u8> = (0..1000).flat_map(|_| [0, 0, 0, 1, 1, 1]).collect();
        let run = || {
            let call = keyed("random_hflip", vec![col("image"), lit(0.5)]);
            select(call, vec![fixed(1, 2, pixels.clone()), keys(1000)]).unwrap()
        };
        let flips = |images: &crate::testing::Column| {
            (0..1000).filter(|row| image(images, *row).unwrap().2[0] == 1).collect::<Vec<_>>()
        };
        let first = flips(&run());
        assert_eq!(first[..6], FIRST_FLIPS);
        assert_eq!(first.len(), FLIPS);
        assert_eq!(first, flips(&run()));
    }

    // From the Python implementation that also gave the values in `keyed`.
    const FIRST_FLIPS: [usize; 6] = [0, 1, 5, 6, 9, 10];
    const FLIPS: usize = 514;

    #[test]
    fn it_does_not_run_without_keys() {
        let expect = "random_hflip draws from a feed's key, so it only runs inside a pipeline";
        assert_eq!(sql("random_hflip(image)", vec![noise()]).err().as_deref(), Some(expect));
    }

    #[test]
    fn a_probability_is_from_zero_to_one() {
        let expect = "random_hflip: \"p\" must be from 0 to 1, got 1.5";
        assert_eq!(sql("random_hflip(image, 1.5)", vec![noise()]).err().as_deref(), Some(expect));
    }
}
