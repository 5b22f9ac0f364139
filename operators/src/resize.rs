//! `resize`: scales images to one size.

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field};
use datafusion::common::Result;

use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, ReducedDecode, TypeClass};
use crate::image_chain::{Frame, Step, frame_each};
use crate::image_column::{self, Rectangle};
use crate::operator::{Arguments, Operator};
use crate::resample::{ANTIALIAS, INTERPOLATION, Interpolation};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "resize",
    version: 1,
    category: "image",
    summary: "Scales images to one height and width",
    parameters: &[
        Parameter::input("image", TypeClass::Image, "The images"),
        Parameter::constant("height", ConstantKind::PositiveInteger, "Rows of pixels in the result").like("224"),
        Parameter::constant("width", ConstantKind::PositiveInteger, "Pixels per row in the result").like("224"),
        INTERPOLATION,
        ANTIALIAS,
    ],
    returns: "a uint8 tensor of fixed shape height x width x 3",
    docs: "With antialias, the support of bilinear, bicubic and lanczos grows with the scale when shrinking, so fine \
           patterns are averaged instead of sampled. Without it, the support is 2, 4 or 6 pixels wide. Area is the \
           mean of the area that a pixel covers; nearest is the pixel below its centre. The aspect ratio is not kept. \
           An image that already has the size is copied unchanged. Null in, null out.",
    source: "Pillow's `Image.resize` with `BILINEAR`, `BICUBIC`, `LANCZOS` and `NEAREST`; without antialias and for \
             `area`, TensorFlow's `tf.image.resize`. The result is within one level of these, for lanczos within two, \
             where nothing overshoots 0 or 255",
    examples: &[Example {
        sql: "resize(decode_image(bytes), height => 224, width => 224)",
        result: "a tensor of 224 x 224 x 3",
    }],
    reduced_decode: ReducedDecode::Shrinks,
    ..Descriptor::BASE
};

/// The operator `resize`.
#[derive(Debug)]
pub(crate) struct Resize;

impl Operator for Resize {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        Interpolation::of(arguments)?;
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
    Frame::scaled(arguments, |_, size| Rectangle::whole(size))
}

/// Returns the result field of an operator that makes images of `height` x `width`.
pub(crate) fn fixed_return_field(arguments: &Arguments) -> Result<Field> {
    let (height, width) = (arguments.positive("height")?, arguments.positive("width")?);
    for (name, side) in [("height", height), ("width", width)] {
        if let Err(problem) = image_column::check_size(side, 1) {
            return arguments.refuse(name, format_args!("is too large: {problem}"));
        }
    }
    if let Err(problem) = image_column::check_size(height, width) {
        return arguments.refuse("height", format_args!("is too large: {problem}"));
    }
    let nullable = arguments.field("image")?.is_nullable();
    image_column::fixed_field("image", DataType::UInt8, height, width, nullable)
}

#[cfg(test)]
mod tests {
    use fast_image_resize::{FilterType, ResizeAlg};

    use super::*;
    use crate::image_column::{Image, Size};
    use crate::resample::{Resampler, Resampling};
    use crate::strip::Strip;
    use crate::testing::{assert_near, column, decoded, fixed, image, noise, sql};

    #[test]
    fn sizes_are_scaled_as_pillow_scales_them() {
        for size in [(5, 7), (18, 20), (9, 40), (64, 30)] {
            let (height, width) = size;
            let call = format!("resize(image, {height}, {width})");
            // Pillow rounds after the horizontal pass, the resizer after the vertical one.
            assert_near(&sql(&call, vec![noise()]).unwrap(), &format!("noise_{height}x{width}.png"), 1);
            let colour = decoded(&["colour.jpg.png"]);
            assert_near(&sql(&call, vec![colour]).unwrap(), &format!("colour_{height}x{width}.png"), 1);
        }
    }

    #[test]
    fn a_part_is_scaled_as_if_it_had_been_cropped() {
        let (height, width, pixels) = image(&decoded(&["colour.jpg.png"]), 0).unwrap();
        let source = Image { height, width, pixels: &pixels };
        let mut out = vec![0; 24 * 16 * 3];
        let part = Rectangle { top: 4, left: 11, height: 20, width: 30 };
        let bilinear = Interpolation::Kernel(ResizeAlg::Convolution(FilterType::Bilinear));
        let size = Size { height: 24, width: 16 };
        let resampling = Resampling { interpolation: bilinear, part, within: None, size };
        Resampler::default().run(&resampling, Strip::whole(source), Rectangle::whole(size), &mut out).unwrap();
        assert_near(&fixed(24, 16, out), "colour_crop_24x16.png", 1);
    }

    #[test]
    fn interpolations_are_those_of_the_references() {
        for (height, width) in [(5, 7), (18, 20), (9, 40)] {
            for (interpolation, antialias) in [
                ("nearest", true),
                ("bicubic", true),
                ("lanczos", true),
                ("area", true),
                ("bilinear", false),
                ("bicubic", false),
            ] {
                let expected = format!("resize/{interpolation}_{antialias}_{height}x{width}.png");
                let call = format!("resize(image, {height}, {width}, '{interpolation}', {antialias})");
                // Overshoot is clamped between the two passes, and their order is not Pillow's. Noise would show this.
                let image = match interpolation {
                    "bicubic" | "lanczos" => decoded(&["resize/soft.png"]),
                    _ => noise(),
                };
                let tolerance = if interpolation == "lanczos" { 2 } else { 1 };
                assert_near(&sql(&call, vec![image]).unwrap(), &expected, tolerance);
            }
        }
        for interpolation in ["bicubic", "lanczos"] {
            for (height, width) in [(18, 20), (64, 90)] {
                let expected = format!("resize/colour_{interpolation}_{height}x{width}.png");
                let call = format!("resize(image, {height}, {width}, '{interpolation}')");
                assert_near(&sql(&call, vec![decoded(&["colour.jpg.png"])]).unwrap(), &expected, 2);
            }
        }
    }

    #[test]
    fn the_same_size_is_a_copy() {
        assert_eq!(image(&sql("resize(image, 9, 13)", vec![noise()]).unwrap(), 0), image(&noise(), 0));
    }

    #[test]
    fn wrong_arguments_are_refused() {
        let check = |call: &str, expect: &str| assert_eq!(sql(call, vec![noise()]).err().as_deref(), Some(expect));
        check("resize(image, -3, 5)", "resize: \"height\" must be a positive integer, got -3");
        check("resize(image, 5, 2.5)", "resize: \"width\" must be a positive integer, got 2.5");
        check("resize(image, 5)", "resize: \"width\" is missing");
        check(
            "resize(image, 5, 5, 'area', true, 5)",
            "resize: takes 5 arguments (image, height, width, interpolation, antialias), got 6",
        );
        check(
            "resize(image, 5, 5, 'cubic')",
            "resize: \"interpolation\" must be 'nearest', 'bilinear', 'bicubic', 'area' or 'lanczos', got 'cubic'",
        );
        check(
            "resize(image, length(arrow_typeof(image)), 5)",
            "resize: \"height\" must be a positive integer written as a constant, got a value per row",
        );
        check(
            "resize(image, 5, 20000)",
            "resize: \"width\" is too large: an image of 20000 x 1 is over the limit of 16384 per side and 268435456 pixels",
        );
        check(
            "resize(normalize(image), 5, 5)",
            "resize: \"image\" must be an image (uint8 tensor of height x width x 3), got a Float32 tensor of 9 x 13 x 3",
        );
        let text = column("image", arrow::array::StringArray::from(vec!["x"]));
        let expect = "resize: \"image\" must be an image (uint8 tensor of height x width x 3), got Utf8";
        assert_eq!(sql("resize(image, 5, 5)", vec![text]).err().as_deref(), Some(expect));
    }

    #[test]
    fn a_batch_that_is_too_large_wants_smaller_batches() {
        let images = fixed(1, 1, vec![0; 3 * 30]);
        let expect = "Resources exhausted: resize: 30 images of 10000 x 10000 in one batch exceed 2147483647 values; \
                      use smaller batches";
        assert_eq!(sql("resize(image, 10000, 10000)", vec![images]).err().as_deref(), Some(expect));
    }
}
