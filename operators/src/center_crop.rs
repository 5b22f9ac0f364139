//! `center_crop`: the centre of each image, which may be scaled first.

use arrow::array::ArrayRef;
use arrow::datatypes::Field;
use datafusion::common::Result;

use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::image_chain::{Frame, Span, Step, frame_each};
use crate::image_column::{SIDE_MAX, Size};
use crate::operator::{Arguments, Operator};
use crate::resample::{ANTIALIAS, INTERPOLATION};
use crate::resize::fixed_return_field;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "center_crop",
    version: 1,
    category: "image",
    summary: "Crops images to their centre, which may be scaled first, and pads small ones with black",
    parameters: &[
        Parameter::input("image", TypeClass::Image, "The images"),
        Parameter::constant("height", ConstantKind::PositiveInteger, "Rows of pixels in the result").like("224"),
        Parameter::constant("width", ConstantKind::PositiveInteger, "Pixels per row in the result").like("224"),
        RESIZE,
        INTERPOLATION,
        ANTIALIAS,
    ],
    returns: "a uint8 tensor of fixed shape height x width x 3",
    docs: "For an odd margin, the offset is half of it, rounded to the even neighbour. An image that is too small in \
           one direction is first padded with zeros in that direction; an odd row or column goes to the bottom or \
           right. With `resize`, the image is first scaled so that its shorter side has this length, which is at least \
           the height and the width of the crop. Its aspect ratio stays. Interpolation and antialias are as in \
           `resize`, without 'area'; only the pixels that the crop needs are computed. Null in, null out.",
    source: "torchvision's `CenterCrop`, and `Resize` of one number before it, within one level",
    examples: &[Example {
        sql: "center_crop(decode_image(bytes), height => 224, width => 224, resize => 256)",
        result: "a tensor of 224 x 224 x 3, as ImageNet models are validated with",
    }],
    ..Descriptor::BASE
};

/// The length to which the shorter side is scaled.
pub(crate) const RESIZE: Parameter = Parameter::constant(
    "resize",
    ConstantKind::Integer,
    "The length to which the shorter side is scaled first; 0 does not scale",
)
.or("0");

/// The operator `center_crop`.
#[derive(Debug)]
pub(crate) struct CenterCrop;

impl Operator for CenterCrop {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        frame(arguments)?;
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
    match shorter_side(arguments)? {
        None => Frame::copied(arguments, |_, have, want| spans(have, want)),
        Some(shorter) => Frame::of_area(arguments, move |have, want| area(have, want, shorter)),
    }
}

/// Returns the length to which the shorter side of an image is scaled first, if the call names one.
pub(crate) fn shorter_side(arguments: &Arguments) -> Result<Option<usize>> {
    let least = arguments.positive("height")?.max(arguments.positive("width")?);
    let resize = arguments.integer(RESIZE.name)?;
    match usize::try_from(resize) {
        Ok(0) => Ok(None),
        Ok(shorter) if (least..=SIDE_MAX).contains(&shorter) => Ok(Some(shorter)),
        _ => arguments.refuse(
            RESIZE.name,
            format_args!("must be 0, or at least {least} as the crop is and at most {SIDE_MAX}, got {resize}"),
        ),
    }
}

/// Returns the area of an image that becomes the crop if its shorter side is scaled to `shorter`: left, top, width and
/// height in fractions of its pixels.
pub(crate) fn area(have: Size, want: Size, shorter: usize) -> [f64; 4] {
    let least = have.height.min(have.width);
    // torchvision truncates the longer side too.
    let along = |have: usize, want: usize| {
        let scaled = have * shorter / least;
        let pixel = have as f64 / scaled as f64;
        [pixel * middle(scaled, want).source as f64, pixel * want as f64]
    };
    let ([left, width], [top, height]) = (along(have.width, want.width), along(have.height, want.height));
    [left, top, width, height]
}

/// Returns the rows and the columns of the centre.
pub(crate) fn spans(have: Size, want: Size) -> [Span; 2] {
    [middle(have.height, want.height), middle(have.width, want.width)]
}

/// Returns the centred span of `want` pixels among `have`, or all of them if there are fewer.
fn middle(have: usize, want: usize) -> Span {
    match have.checked_sub(want) {
        Some(margin) => Span { source: (margin as f64 / 2.0).round_ties_even() as usize, target: 0, len: want },
        None => Span { source: 0, target: (want - have) / 2, len: have },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_near, decoded, fixed, image, noise, sql};

    #[test]
    fn offsets_round_to_even_and_padding_rounds_down() {
        let check = |have, want, source, target, len| {
            assert_eq!(middle(have, want), Span { source, target, len }, "{want} of {have}");
        };
        check(10, 4, 3, 0, 4);
        check(5, 2, 2, 0, 2); // a margin of 3: 1.5 becomes 2
        check(6, 5, 0, 0, 5); // a margin of 1: 0.5 becomes 0
        check(4, 4, 0, 0, 4);
        check(3, 6, 0, 1, 3); // padding of 3: 1 before, 2 after
        check(1, 2, 0, 0, 1);
    }

    #[test]
    fn the_shorter_side_is_scaled_as_torchvision_scales_it() {
        let check = |call: &str, golden: &str, levels| {
            let made = sql(call, vec![decoded(&["colour.jpg.png"])]).unwrap();
            assert_near(&made, golden, levels);
        };
        check("center_crop(image, 16, 12, 20)", "colour_center_16x12_of_20.png", 1);
        check("center_crop(image, 24, 40, 45, 'bicubic')", "colour_center_24x40_of_45.png", 1);
        check("center_crop(image, 70, 60, 80, 'lanczos')", "colour_center_70x60_of_80.png", 2);
    }

    #[test]
    fn what_cannot_be_cropped_is_refused() {
        let check = |call: &str, expect: &str| assert_eq!(sql(call, vec![noise()]).unwrap_err(), expect);
        let about = "center_crop: \"resize\" must be 0, or at least 8 as the crop is and at most 16384";
        check("center_crop(image, 4, 8, 7)", &format!("{about}, got 7"));
        check("center_crop(image, 4, 8, -1)", &format!("{about}, got -1"));
        check(
            "center_crop(image, 4, 8, 9, 'area')",
            "center_crop: \"interpolation\" must not be 'area', which scales whole images",
        );
    }

    #[test]
    fn a_small_image_is_padded_with_black() {
        let images = fixed(1, 3, vec![1, 1, 1, 2, 2, 2, 3, 3, 3]);
        let (_, _, out) = image(&sql("center_crop(image, 3, 2)", vec![images]).unwrap(), 0).unwrap();
        assert_eq!(out, [0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 0, 0, 0, 0, 0]);
    }
}
