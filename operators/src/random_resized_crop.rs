//! `random_resized_crop`: a random part of each image, scaled to one size.

use arrow::array::ArrayRef;
use arrow::datatypes::Field;
use datafusion::common::Result;

use crate::descriptor::{ConstantKind, Descriptor, Determinism, Example, Parameter, ReducedDecode, TypeClass};
use crate::image_chain::{Frame, Step, frame_each};
use crate::image_column::Rectangle;
use crate::keyed::Draws;
use crate::operator::{Arguments, Operator};
use crate::resample::{ANTIALIAS, INTERPOLATION, Interpolation};
use crate::resize::fixed_return_field;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "random_resized_crop",
    version: 1,
    category: "image",
    summary: "Crops a random part of each image and scales it to one height and width",
    parameters: &[
        Parameter::input("image", TypeClass::Image, "The images"),
        Parameter::constant("height", ConstantKind::PositiveInteger, "Rows of pixels in the result").like("224"),
        Parameter::constant("width", ConstantKind::PositiveInteger, "Pixels per row in the result").like("224"),
        Parameter::constant("scale_min", ConstantKind::Number, "The minimum share of the image's area to keep")
            .or("0.08"),
        Parameter::constant("scale_max", ConstantKind::Number, "The maximum share of the image's area to keep")
            .or("1.0"),
        Parameter::constant("ratio_min", ConstantKind::Number, "The minimum width / height of the part").or("0.75"),
        Parameter::constant("ratio_max", ConstantKind::Number, "The maximum width / height of the part")
            .or("1.3333333333333333"),
        INTERPOLATION,
        ANTIALIAS,
        Parameter::KEY,
    ],
    returns: "a uint8 tensor of fixed shape height x width x 3",
    determinism: Determinism::KeyedRandom,
    docs: "The operator draws the area uniformly from scale_min to scale_max of the image's area, the ratio \
           log-uniformly from ratio_min to ratio_max, then the position. It draws up to ten times until the part fits. \
           If none fits, it takes the largest central part whose ratio is in the range. The part has whole pixels and \
           is scaled like by `resize`, without using pixels outside it. With a key, whether a part fits is decided \
           before it is rounded to pixels. Images of one aspect ratio then lose the same part, to within two pixels, \
           whatever their sizes. Null in, null out.",
    source: "torchvision's `RandomResizedCrop`, with the draws of the row's random key",
    examples: &[Example {
        sql: "random_resized_crop(image, height => 224, width => 224, scale_min => 0.2)",
        result: "a tensor of 224 x 224 x 3",
    }],
    reduced_decode: ReducedDecode::Shrinks,
    ..Descriptor::BASE
};

/// The operator `random_resized_crop`.
#[derive(Debug)]
pub(crate) struct RandomResizedCrop;

impl Operator for RandomResizedCrop {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        Ranges::read(arguments)?;
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
    let ranges = Ranges::read(arguments)?;
    Frame::scaled(arguments, move |draws, size| ranges.draw(draws, size.height, size.width))
}

/// The ranges from which a part's area and ratio are drawn.
#[derive(Debug)]
pub(crate) struct Ranges {
    scale: (f64, f64),
    ratio: (f64, f64),
    log_ratio: (f64, f64),
    /// Whether images of other sizes may share the draws.
    is_shared: bool,
}

impl Ranges {
    pub(crate) fn read(arguments: &Arguments) -> Result<Self> {
        let range = |min: &str, max: &str| -> Result<(f64, f64)> {
            let (low, high) = (arguments.number(min)?, arguments.number(max)?);
            if low <= 0.0 {
                return arguments.refuse(min, format_args!("must be above 0, got {low}"));
            }
            if low > high {
                return arguments.refuse(min, format_args!("must not be above \"{max}\", got {low} and {high}"));
            }
            Ok((low, high))
        };
        let scale = range("scale_min", "scale_max")?;
        if scale.1 > 1.0 {
            return arguments.refuse("scale_max", format_args!("must not be above 1, got {}", scale.1));
        }
        let ranges = Self::new(scale, range("ratio_min", "ratio_max")?);
        Ok(Self { is_shared: !arguments.text("key")?.is_empty(), ..ranges })
    }

    /// Uses the logarithm and the exponential of the `libm` crate. The standard library calls the platform's, whose
    /// last bit differs between systems. A different bit here moves a crop by a pixel.
    fn new(scale: (f64, f64), ratio: (f64, f64)) -> Self {
        Self { scale, ratio, log_ratio: (libm::log(ratio.0), libm::log(ratio.1)), is_shared: false }
    }

    pub(crate) fn draw(&self, draws: &mut Draws, height: usize, width: usize) -> Rectangle {
        let area = (height * width) as f64;
        // The quotient of two sizes of one aspect ratio has the same bits.
        let aspect = width as f64 / height as f64;
        for _ in 0..10 {
            let scale = draws.uniform_in(self.scale.0, self.scale.1);
            let ratio = libm::exp(draws.uniform_in(self.log_ratio.0, self.log_ratio.1));
            let (w, h, fits) = if self.is_shared {
                let of_width = (scale * ratio / aspect).sqrt();
                let of_height = (scale / ratio * aspect).sqrt();
                let side = |part: f64, whole: usize| ((part * whole as f64).round_ties_even() as usize).clamp(1, whole);
                (side(of_width, width), side(of_height, height), of_width <= 1.0 && of_height <= 1.0)
            } else {
                let w = (area * scale * ratio).sqrt().round_ties_even() as usize;
                let h = (area * scale / ratio).sqrt().round_ties_even() as usize;
                (w, h, (1..=width).contains(&w) && (1..=height).contains(&h))
            };
            if fits {
                let top = draws.below((height - h + 1) as u64) as usize;
                let left = draws.below((width - w + 1) as u64) as usize;
                return Rectangle { top, left, height: h, width: w };
            }
        }
        self.central(height, width)
    }

    /// Returns the largest central part whose ratio is in the range.
    fn central(&self, height: usize, width: usize) -> Rectangle {
        let ratio = width as f64 / height as f64;
        let side = |length: f64, limit: usize| (length.round_ties_even() as usize).clamp(1, limit);
        let (h, w) = if ratio < self.ratio.0 {
            (side(width as f64 / self.ratio.0, height), width)
        } else if ratio > self.ratio.1 {
            (height, side(height as f64 * self.ratio.1, width))
        } else {
            (height, width)
        };
        Rectangle { top: (height - h) / 2, left: (width - w) / 2, height: h, width: w }
    }
}

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::lit;
    use datafusion::prelude::col;

    use super::*;
    use crate::keyed::random_key;
    use crate::testing::{decoded, image, keyed, keys, noise, select, sql};

    fn draw(ranges: &Ranges, sample_id: u64, height: usize, width: usize) -> [usize; 4] {
        let part = ranges.draw(&mut Draws::new(random_key(1, 0, sample_id), 5), height, width);
        [part.top, part.left, part.height, part.width]
    }

    // The expected parts come from torchvision's definition, written in Python over the draws of `keyed`.

    #[test]
    fn parts_are_known() {
        let ranges = Ranges::new((0.08, 1.0), (0.75, 1.3333333333333333));
        let parts: Vec<_> = (0..6).map(|sample_id| draw(&ranges, sample_id, 375, 500)).collect();
        assert_eq!(
            parts,
            [
                [93, 130, 263, 332],
                [66, 83, 270, 326],
                [8, 104, 344, 357],
                [31, 78, 314, 390],
                [22, 48, 286, 249],
                [66, 92, 299, 331]
            ]
        );
    }

    #[test]
    fn a_part_that_never_fits_becomes_the_central_one() {
        let ranges = Ranges::new((0.9, 1.0), (0.75, 1.3333333333333333));
        assert_eq!(draw(&ranges, 0, 400, 20), [186, 0, 27, 20]);
        assert_eq!(draw(&ranges, 0, 20, 401), [0, 187, 20, 27]);
        assert_eq!(ranges.central(20, 20), Rectangle { top: 0, left: 0, height: 20, width: 20 });
        assert_eq!(Ranges::new((0.9, 1.0), (4.0, 5.0)).central(3, 1).height, 1, "never nothing");
    }

    #[test]
    fn parts_of_another_size_are_the_same_to_within_two_pixels() {
        let ranges = Ranges { is_shared: true, ..Ranges::new((0.08, 1.0), (0.75, 1.3333333333333333)) };
        for sample_id in 0..2000 {
            let (height, width) = (60 + sample_id as usize % 31, 40 + sample_id as usize % 47);
            let small = draw(&ranges, sample_id, height, width);
            let large = draw(&ranges, sample_id, 4 * height, 4 * width);
            for (small, large) in small.into_iter().zip(large) {
                assert!((4 * small).abs_diff(large) <= 8, "{sample_id}: {small} and {large}");
            }
            let [top, left, h, w] = large;
            assert!(top + h <= 4 * height && left + w <= 4 * width, "{sample_id}");
        }
    }

    #[test]
    fn parts_stay_inside_of_any_image() {
        let ranges = Ranges::new((0.01, 1.0), (0.1, 10.0));
        for sample_id in 0..2000 {
            let (height, width) = (1 + sample_id as usize % 7, 1 + sample_id as usize % 11);
            let [top, left, h, w] = draw(&ranges, sample_id, height, width);
            assert!(h > 0 && w > 0 && top + h <= height && left + w <= width, "{sample_id}");
        }
    }

    #[test]
    fn the_part_is_scaled() {
        let mut arguments = vec![col("image"), lit(37), lit(53)];
        arguments.extend([1.0, 1.0, 1.4, 1.45].map(lit));
        arguments.extend([lit("bilinear"), lit(true)]);
        let call = keyed("random_resized_crop", arguments);
        let images = decoded(&["colour.jpg.png"]);
        let got = select(call, vec![images.clone(), keys(1)]).unwrap();
        // This area and ratio allow only the whole image.
        assert_eq!(image(&got, 0), image(&images, 0));
    }

    #[test]
    fn ranges_that_make_no_sense_are_refused() {
        let check = |arguments: &str, expect: &str| {
            let call = format!("random_resized_crop(image, 4, 4, {arguments})");
            assert_eq!(sql(&call, vec![noise()]).err().as_deref(), Some(expect));
        };
        check("0.0", "random_resized_crop: \"scale_min\" must be above 0, got 0");
        check("0.5, 0.4", "random_resized_crop: \"scale_min\" must not be above \"scale_max\", got 0.5 and 0.4");
        check("0.5, 1.5", "random_resized_crop: \"scale_max\" must not be above 1, got 1.5");
        check(
            "0.5, 1, 2",
            "random_resized_crop: \"ratio_min\" must not be above \"ratio_max\", got 2 and 1.3333333333333333",
        );
    }
}
