//! Random augmentations: `color_jitter`, `gaussian_blur`, `random_erasing`, `random_rotate`.
//!
//! All are one struct, as are the operators of [`super::policy`]: a descriptor, and a function from constants to a
//! recipe. A recipe makes its draws for each image and changes the image in place.

use std::cell::Cell;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field};
use datafusion::common::Result;

use super::adjustments::{Adjustment, FACTOR_MAX};
use super::affine::Affine;
use super::blur::Blur;
use super::policy::Policy;
use crate::descriptor::{ConstantKind, Descriptor, Determinism, Example, Parameter, SizeRatio, TypeClass};
use crate::image_chain::{self, PixelChange, change_each};
use crate::image_column::{self, CHANNELS, Size};
use crate::keyed::Draws;
use crate::operator::{Arguments, Operator};

/// An operator that makes random changes to images in place.
#[derive(Debug)]
pub(crate) struct Augment {
    pub(super) descriptor: &'static Descriptor,
    pub(super) prepare: fn(&Arguments) -> Result<Recipe>,
}

/// The parameters of an augmentation, before draws.
#[derive(Debug)]
pub(super) enum Recipe {
    ColorJitter { around_one: [f64; 3], hue: f64 },
    GaussianBlur { size: usize, sigma: (f64, f64) },
    RandomErasing { p: f64, scale: (f64, f64), log_ratio: (f64, f64), value: [u8; CHANNELS] },
    RandomRotate { degrees: f64, bilinear: bool, fill: [u8; CHANNELS] },
    Policy(Policy),
}

/// Memory that is reused from image to image.
#[derive(Debug, Default)]
struct AugmentScratch {
    pixels: Vec<u8>,
    blur: Blur,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<AugmentScratch>>> = const { Cell::new(None) };
}

impl Operator for Augment {
    fn descriptor(&self) -> &'static Descriptor {
        self.descriptor
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        (self.prepare)(arguments)?;
        let field = arguments.field("image")?;
        image_column::field("image", DataType::UInt8, image_column::shape(field)?, field.is_nullable())
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let change = (self.prepare)(arguments)?.change();
        change_each(arguments, &change)
    }

    fn image_step(&self, arguments: &Arguments) -> Result<Option<image_chain::Step>> {
        Ok(Some(image_chain::Step::Change((self.prepare)(arguments)?.change())))
    }
}

impl Recipe {
    fn change(self) -> PixelChange {
        // All changes of the jitter except contrast are pixelwise.
        let is_of_pixels = matches!(self, Self::ColorJitter { around_one: [_, 0.0, _], .. });
        let paint = move |draws: &mut Draws, pixels: &mut [u8], size: Size| {
            let mut scratch = SCRATCH.take().unwrap_or_default();
            self.apply(pixels, size.width, draws, &mut scratch);
            if scratch.pixels.capacity() <= image_chain::KEPT_BYTES_MAX {
                SCRATCH.set(Some(scratch));
            }
        };
        match is_of_pixels {
            true => PixelChange::of_pixels(paint),
            false => PixelChange::of_images(paint),
        }
    }

    fn apply(&self, pixels: &mut [u8], width: usize, draws: &mut Draws, scratch: &mut AugmentScratch) {
        let height = pixels.len() / (width * CHANNELS);
        match self {
            Self::ColorJitter { around_one, hue } => {
                let mut order = [0, 1, 2, 3];
                for last in (1..order.len()).rev() {
                    order.swap(last, draws.below(last as u64 + 1) as usize);
                }
                let [brightness, contrast, saturation] =
                    around_one.map(|range| draws.uniform_in((1.0 - range).max(0.0), 1.0 + range));
                let steps = [
                    (around_one[0], Adjustment::Brightness(brightness)),
                    (around_one[1], Adjustment::Contrast(contrast)),
                    (around_one[2], Adjustment::Saturation(saturation)),
                    (*hue, Adjustment::Hue(draws.uniform_in(-hue, *hue))),
                ];
                for (range, step) in order.map(|at: usize| steps[at]) {
                    if range > 0.0 {
                        step.apply(pixels, width, &mut scratch.pixels);
                    }
                }
            }
            Self::GaussianBlur { size, sigma } => {
                scratch.blur.apply(pixels, width, *size, draws.uniform_in(sigma.0, sigma.1));
            }
            Self::RandomErasing { p, scale, log_ratio, value } => {
                if draws.uniform() >= *p {
                    return;
                }
                for _ in 0..ERASING_ATTEMPTS {
                    let area = (height * width) as f64 * draws.uniform_in(scale.0, scale.1);
                    let ratio = libm::exp(draws.uniform_in(log_ratio.0, log_ratio.1));
                    let part_height = (area * ratio).sqrt().round_ties_even() as usize;
                    let part_width = (area / ratio).sqrt().round_ties_even() as usize;
                    if part_height >= height || part_width >= width {
                        continue;
                    }
                    let top = draws.below((height - part_height + 1) as u64) as usize;
                    let left = draws.below((width - part_width + 1) as u64) as usize;
                    for line in pixels.chunks_exact_mut(width * CHANNELS).skip(top).take(part_height) {
                        line.as_chunks_mut().0[left..left + part_width].fill(*value);
                    }
                    return;
                }
            }
            Self::RandomRotate { degrees, bilinear, fill } => {
                let angle = draws.uniform_in(-degrees, *degrees);
                Affine::rotated(angle, height, width, *fill, *bilinear).apply(pixels, width, &mut scratch.pixels);
            }
            Self::Policy(policy) => policy.apply(pixels, height, width, draws, &mut scratch.pixels),
        }
    }
}

/// Maximum number of draws for a part that fits.
const ERASING_ATTEMPTS: usize = 10;

/// Maximum side of a blur's kernel.
const KERNEL_MAX: usize = 255;

/// The descriptor fields that these operators share.
pub(super) const AUGMENTATION: Descriptor = Descriptor {
    version: 1,
    category: "image",
    returns: "a uint8 tensor of the same shape, fixed or variable",
    size_ratio: SizeRatio::exactly(1.0),
    determinism: Determinism::KeyedRandom,
    ..Descriptor::BASE
};

pub(super) const IMAGE: Parameter = Parameter::input("image", TypeClass::Image, "The images");

static COLOR_JITTER_DESCRIPTOR: Descriptor = Descriptor {
    name: "color_jitter",
    summary: "Changes brightness, contrast, saturation and hue of each image at random",
    parameters: &[
        IMAGE,
        Parameter::constant(
            "brightness",
            ConstantKind::Number,
            "The brightness factor is from 1 - brightness, but at least 0, to 1 + brightness",
        )
        .or("0"),
        Parameter::constant(
            "contrast",
            ConstantKind::Number,
            "The same range, as a factor of the difference from the mean grey",
        )
        .or("0"),
        Parameter::constant(
            "saturation",
            ConstantKind::Number,
            "The same range, as a factor of the difference from each pixel's grey",
        )
        .or("0"),
        Parameter::constant(
            "hue",
            ConstantKind::Number,
            "The maximum rotation of the hue, as a fraction of the circle, from 0 to 0.5",
        )
        .or("0"),
        Parameter::KEY,
    ],
    docs: "The operator makes the four changes in an order drawn for each image, and rounds to uint8 after each, like \
           torchvision. Draws: below 4, below 3 and below 2 shuffle brightness, contrast, saturation and hue from the \
           last to the first; then the four factors in this order, each uniform. A change whose argument is 0 is \
           skipped. Each change is within one level of torchvision's. The first three arguments must be from 0 to 100. \
           Null in, null out.",
    source: "torchvision's `v2.ColorJitter`",
    examples: &[Example {
        sql: "color_jitter(image, brightness => 0.4, contrast => 0.4, saturation => 0.4, hue => 0.1)",
        result: "the same image in a different light",
    }],
    ..AUGMENTATION
};

static GAUSSIAN_BLUR_DESCRIPTOR: Descriptor = Descriptor {
    name: "gaussian_blur",
    summary: "Blurs each image with a Gaussian of random width",
    parameters: &[
        IMAGE,
        Parameter::constant("kernel_size", ConstantKind::Integer, "The kernel's side in pixels, an odd number")
            .or("23"),
        Parameter::constant("sigma_min", ConstantKind::Number, "The minimum standard deviation in pixels").or("0.1"),
        Parameter::constant("sigma_max", ConstantKind::Number, "The maximum standard deviation in pixels").or("2.0"),
        Parameter::KEY,
    ],
    docs: "One draw: sigma, uniform from sigma_min to sigma_max. The image is mirrored at its edges. This also works \
           for an image that is smaller than the kernel, where torchvision fails. Computed in float32 and rounded; \
           within one level of torchvision. kernel_size is at most 255; 23 is SimCLR's size for images of 224. Null \
           in, null out.",
    source: "torchvision's `v2.GaussianBlur`",
    examples: &[Example { sql: "gaussian_blur(image, kernel_size => 23)", result: "a smooth image" }],
    ..AUGMENTATION
};

static RANDOM_ERASING_DESCRIPTOR: Descriptor = Descriptor {
    name: "random_erasing",
    summary: "Fills a random part of some images with one colour",
    parameters: &[
        IMAGE,
        Parameter::constant("p", ConstantKind::Number, "The probability of erasing, from 0 to 1").or("0.5"),
        Parameter::constant("scale_min", ConstantKind::Number, "The minimum share of the image's area").or("0.02"),
        Parameter::constant("scale_max", ConstantKind::Number, "The maximum share of the image's area").or("0.33"),
        Parameter::constant("ratio_min", ConstantKind::Number, "The minimum height / width of the part").or("0.3"),
        Parameter::constant("ratio_max", ConstantKind::Number, "The maximum height / width of the part").or("3.3"),
        Parameter::constant("value", ConstantKind::NumberList, "The colour, from 0 to 255 per channel").or("[0, 0, 0]"),
        Parameter::KEY,
    ],
    docs: "The first draw decides: the image is erased if it is below p. Then the operator draws the area uniformly, \
           the ratio log-uniformly, the top and the left. It draws up to ten times until the part fits. A part that is \
           as high or as wide as the image does not fit. If none fits, the image stays unchanged. The operator works \
           on uint8, before `normalize`; to erase with a dataset's mean, pass the mean as the value. Null in, null \
           out.",
    source: "torchvision's `v2.RandomErasing` with a value",
    examples: &[Example {
        sql: "random_erasing(image, p => 0.25)",
        result: "a quarter of the images have a black part",
    }],
    ..AUGMENTATION
};

static RANDOM_ROTATE_DESCRIPTOR: Descriptor = Descriptor {
    name: "random_rotate",
    summary: "Rotates each image about its centre by a random angle",
    parameters: &[
        IMAGE,
        Parameter::constant("degrees", ConstantKind::Number, "The angle is from -degrees to degrees"),
        Parameter::constant("interpolation", ConstantKind::Text, "`'nearest'` or `'bilinear'`").or("'nearest'"),
        Parameter::constant(
            "fill",
            ConstantKind::NumberList,
            "The colour outside the image, from 0 to 255 per channel",
        )
        .or("[0, 0, 0]"),
        Parameter::KEY,
    ],
    docs: "One draw: the angle, uniform, counterclockwise. The image keeps its size. Bilinear interpolation mixes the \
           edges with the fill. Nearest gives torchvision's pixels, except where two pixels are equally near. Bilinear \
           is within one level of torchvision inside the image. degrees is from 0 to 360. Null in, null out.",
    source: "torchvision's `v2.RandomRotation`",
    examples: &[Example { sql: "random_rotate(image, degrees => 15)", result: "a tilted image" }],
    ..AUGMENTATION
};

pub(crate) static COLOR_JITTER: Augment = Augment { descriptor: &COLOR_JITTER_DESCRIPTOR, prepare: color_jitter };
pub(crate) static GAUSSIAN_BLUR: Augment = Augment { descriptor: &GAUSSIAN_BLUR_DESCRIPTOR, prepare: gaussian_blur };
pub(crate) static RANDOM_ERASING: Augment = Augment { descriptor: &RANDOM_ERASING_DESCRIPTOR, prepare: random_erasing };
pub(crate) static RANDOM_ROTATE: Augment = Augment { descriptor: &RANDOM_ROTATE_DESCRIPTOR, prepare: random_rotate };

fn color_jitter(arguments: &Arguments) -> Result<Recipe> {
    let up_to = |name, most| within(arguments, name, 0.0, most);
    Ok(Recipe::ColorJitter {
        around_one: [
            up_to("brightness", FACTOR_MAX)?,
            up_to("contrast", FACTOR_MAX)?,
            up_to("saturation", FACTOR_MAX)?,
        ]
        .map(|range| range.min(FACTOR_MAX - 1.0)),
        hue: up_to("hue", 0.5)?,
    })
}

fn gaussian_blur(arguments: &Arguments) -> Result<Recipe> {
    let size = whole(arguments, "kernel_size", 1, KERNEL_MAX)?;
    if size % 2 == 0 {
        return arguments.refuse("kernel_size", format_args!("must be odd, got {size}"));
    }
    Ok(Recipe::GaussianBlur { size, sigma: range(arguments, "sigma_min", "sigma_max")? })
}

fn random_erasing(arguments: &Arguments) -> Result<Recipe> {
    let ratio = range(arguments, "ratio_min", "ratio_max")?;
    within(arguments, "scale_max", 0.0, 1.0)?;
    Ok(Recipe::RandomErasing {
        p: within(arguments, "p", 0.0, 1.0)?,
        scale: range(arguments, "scale_min", "scale_max")?,
        log_ratio: (libm::log(ratio.0), libm::log(ratio.1)),
        value: colour(arguments, "value")?,
    })
}

fn random_rotate(arguments: &Arguments) -> Result<Recipe> {
    let bilinear = match arguments.text("interpolation")?.as_str() {
        "nearest" => false,
        "bilinear" => true,
        other => {
            let problem = format!("must be 'nearest' or 'bilinear', got \"{other}\"");
            return arguments.refuse("interpolation", problem);
        }
    };
    let degrees = within(arguments, "degrees", 0.0, 360.0)?;
    Ok(Recipe::RandomRotate { degrees, bilinear, fill: colour(arguments, "fill")? })
}

/// Reads a number from `least` to `most`, inclusive.
fn within(arguments: &Arguments, name: &str, least: f64, most: f64) -> Result<f64> {
    match arguments.number(name)? {
        number if (least..=most).contains(&number) => Ok(number),
        number => arguments.refuse(name, format_args!("must be from {least} to {most}, got {number}")),
    }
}

/// Reads an integer from `least` to `most`, inclusive.
pub(super) fn whole(arguments: &Arguments, name: &str, least: usize, most: usize) -> Result<usize> {
    let integer = arguments.integer(name)?;
    match usize::try_from(integer) {
        Ok(fits) if (least..=most).contains(&fits) => Ok(fits),
        _ => arguments.refuse(name, format_args!("must be from {least} to {most}, got {integer}")),
    }
}

/// Reads two ordered numbers above 0.
fn range(arguments: &Arguments, least: &str, most: &str) -> Result<(f64, f64)> {
    let numbers = (arguments.number(least)?, arguments.number(most)?);
    if numbers.0 <= 0.0 {
        return arguments.refuse(least, format_args!("must be above 0, got {}", numbers.0));
    }
    if numbers.1 < numbers.0 {
        return arguments.refuse(most, format_args!("must be at least \"{least}\" ({}), got {}", numbers.0, numbers.1));
    }
    Ok(numbers)
}

/// Reads three integers from 0 to 255.
pub(super) fn colour(arguments: &Arguments, name: &str) -> Result<[u8; CHANNELS]> {
    let numbers = arguments.numbers(name)?;
    let Ok(channels) = <[f64; CHANNELS]>::try_from(numbers.as_slice()) else {
        return arguments.refuse(name, format_args!("must have {CHANNELS} numbers, got {}", numbers.len()));
    };
    match channels.iter().find(|x| !(0.0..=255.0).contains(*x) || x.fract() != 0.0) {
        Some(bad) => arguments.refuse(name, format_args!("must be whole numbers from 0 to 255, got {bad}")),
        None => Ok(channels.map(|x| x as u8)),
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{noise, sql};

    #[test]
    fn arguments_out_of_range_are_refused_by_name() {
        let check = |call: &str, expect: &str| assert_eq!(sql(call, vec![noise()]).unwrap_err(), expect);
        check("color_jitter(image, -1)", "color_jitter: \"brightness\" must be from 0 to 100, got -1");
        check("color_jitter(image, 0, 0, 0, 0.6)", "color_jitter: \"hue\" must be from 0 to 0.5, got 0.6");
        check("gaussian_blur(image, 4)", "gaussian_blur: \"kernel_size\" must be odd, got 4");
        check("gaussian_blur(image, 3, 0)", "gaussian_blur: \"sigma_min\" must be above 0, got 0");
        check(
            "gaussian_blur(image, 3, 2, 1)",
            "gaussian_blur: \"sigma_max\" must be at least \"sigma_min\" (2), got 1",
        );
        check("random_erasing(image, 2)", "random_erasing: \"p\" must be from 0 to 1, got 2");
        check("random_erasing(image, 1, 0.1, 7)", "random_erasing: \"scale_max\" must be from 0 to 1, got 7");
        check("random_rotate(image, -5)", "random_rotate: \"degrees\" must be from 0 to 360, got -5");
        check(
            "random_rotate(image, 5, 'cubic')",
            "random_rotate: \"interpolation\" must be 'nearest' or 'bilinear', got \"cubic\"",
        );
    }

    #[test]
    fn a_colour_has_three_whole_numbers() {
        let check = |call: &str, expect: &str| {
            assert_eq!(crate::testing::call(call, vec![noise()]).unwrap_err(), expect);
        };
        check("random_rotate(image, 5, 'nearest', [1, 2])", "random_rotate: \"fill\" must have 3 numbers, got 2");
        check(
            "random_rotate(image, 5, 'nearest', [1, 2, 256])",
            "random_rotate: \"fill\" must be whole numbers from 0 to 255, got 256",
        );
    }
}
