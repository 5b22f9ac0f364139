//! Operators that change pixels in place: `auto_contrast`, `equalize`, `posterize`, `solarize`, `random_grayscale`,
//! `random_vflip`.
//!
//! All are one struct: a descriptor, and a function from constants to a change. No pixel is copied when the operator is
//! the only owner of the column.

use std::array;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field};
use datafusion::common::Result;

use crate::descriptor::{ConstantKind, Descriptor, Determinism, Example, Parameter, Pixels, SizeRatio, TypeClass};
use crate::image_chain::{PixelChange, Step, change_each};
use crate::image_column::{self, CHANNELS, Rectangle, Size};
use crate::operator::{Arguments, Operator};

/// An operator that changes pixels in place.
#[derive(Debug)]
pub(crate) struct InPlace {
    descriptor: &'static Descriptor,
    prepare: fn(&Arguments) -> Result<InPlaceChange>,
}

/// A change of an image, and its probability.
#[derive(Debug, Clone)]
enum InPlaceChange {
    AutoContrast,
    Equalize,
    Grayscale(f64),
    Map(Box<[u8; 256]>),
    Vflip(f64),
}

impl Operator for InPlace {
    fn descriptor(&self) -> &'static Descriptor {
        self.descriptor
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        (self.prepare)(arguments)?;
        let field = arguments.field("image")?;
        image_column::field("image", DataType::UInt8, image_column::shape(field)?, field.is_nullable())
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let change = (self.prepare)(arguments)?.step();
        change_each(arguments, &change)
    }

    fn image_step(&self, arguments: &Arguments) -> Result<Option<Step>> {
        Ok(Some(Step::Change((self.prepare)(arguments)?.step())))
    }
}

impl InPlaceChange {
    fn step(self) -> PixelChange {
        match self {
            Self::AutoContrast => PixelChange::of_images(|_, pixels, _| map_channels(pixels, stretched)),
            Self::Equalize => PixelChange::of_images(|_, pixels, _| map_channels(pixels, equalized)),
            Self::Grayscale(p) => PixelChange::of_pixels(move |draws, pixels, _| {
                if draws.uniform() < p {
                    pixels.as_chunks_mut::<CHANNELS>().0.iter_mut().for_each(|pixel| *pixel = [luma(*pixel); CHANNELS]);
                }
            }),
            Self::Map(map) => {
                PixelChange::of_pixels(move |_, pixels, _| pixels.iter_mut().for_each(|x| *x = map[usize::from(*x)]))
            }
            Self::Vflip(p) => PixelChange::mirrored(p, mirror_down, |size, region| Rectangle {
                top: size.height - region.top - region.height,
                ..region
            }),
        }
    }
}

/// Swaps the rows of an image.
fn mirror_down(pixels: &mut [u8], size: Size) {
    let line = size.width * CHANNELS;
    let (top, bottom) = pixels.split_at_mut(size.height / 2 * line);
    for (above, below) in top.chunks_exact_mut(line).zip(bottom.rchunks_exact_mut(line)) {
        above.swap_with_slice(below);
    }
}

/// The brightness of a pixel, in float32 and truncated like PyTorch's.
fn luma([r, g, b]: [u8; CHANNELS]) -> u8 {
    (f32::from(r) * 0.2989 + f32::from(g) * 0.587 + f32::from(b) * 0.114) as u8
}

/// Maps each channel by a table computed from its histogram.
pub(super) fn map_channels(pixels: &mut [u8], table: fn(&[usize; 256]) -> [u8; 256]) {
    let mut counts = [[0; 256]; CHANNELS];
    let pixels = pixels.as_chunks_mut::<CHANNELS>().0;
    for pixel in pixels.iter() {
        (0..CHANNELS).for_each(|channel| counts[channel][usize::from(pixel[channel])] += 1);
    }
    let tables: [[u8; 256]; CHANNELS] = array::from_fn(|channel| table(&counts[channel]));
    for pixel in pixels {
        *pixel = array::from_fn(|channel| tables[channel][usize::from(pixel[channel])]);
    }
}

/// Returns the table that maps the darkest value to 0 and the brightest to 255. A channel of one value stays unchanged.
pub(super) fn stretched(counts: &[usize; 256]) -> [u8; 256] {
    let least = counts.iter().position(|count| *count > 0).unwrap_or(0);
    let most = counts.iter().rposition(|count| *count > 0).unwrap_or(0);
    if least == most {
        return array::from_fn(|x| x as u8);
    }
    let range = (most - least) as f32 * (1.0 / 255.0);
    array::from_fn(|x| ((x as f32 - least as f32) / range) as u8)
}

/// Returns the table that flattens a histogram as far as whole values allow. Pillow and PyTorch share this method.
pub(super) fn equalized(counts: &[usize; 256]) -> [u8; 256] {
    let last = counts.iter().rfind(|count| **count > 0).copied().unwrap_or(0);
    let step = (counts.iter().sum::<usize>() - last) / 255;
    if step == 0 {
        return array::from_fn(|x| x as u8);
    }
    let mut below = 0;
    counts.map(|count| {
        let value = (below + step / 2) / step;
        below += count;
        value.min(255) as u8
    })
}

const IMAGE: Parameter = Parameter::input("image", TypeClass::Image, "The images");

const P: Parameter = Parameter::constant("p", ConstantKind::Number, "The probability of the change, from 0 to 1");

/// What all operators of this file declare alike.
const IN_PLACE: Descriptor = Descriptor {
    category: "image",
    parameters: &[IMAGE],
    returns: "a uint8 tensor of the same shape, fixed or variable",
    size_ratio: SizeRatio::exactly(1.0),
    ..Descriptor::BASE
};

pub(crate) static AUTO_CONTRAST: InPlace = InPlace {
    descriptor: &Descriptor {
        name: "auto_contrast",
        summary: "Stretches each channel so that its darkest value becomes 0 and its brightest 255",
        docs: "Computed in float32 and truncated, so the brightest value may become 254. A channel of one value \
             stays unchanged. Null in, null out.",
        source: "torchvision's `autocontrast`",
        examples: &[Example { sql: "auto_contrast(image)", result: "an image of full contrast" }],
        ..IN_PLACE
    },
    prepare: auto_contrast,
};

pub(crate) static EQUALIZE: InPlace = InPlace {
    descriptor: &Descriptor {
        name: "equalize",
        summary: "Spreads the values of each channel so that all values are about equally frequent",
        docs: "Maps values by an integer table computed from the channel's histogram. A channel with few pixels or \
             one value stays unchanged. Null in, null out.",
        source: "torchvision's and Pillow's `equalize`",
        examples: &[Example { sql: "equalize(image)", result: "an image with a flat histogram" }],
        ..IN_PLACE
    },
    prepare: equalize,
};

pub(crate) static POSTERIZE: InPlace = InPlace {
    descriptor: &Descriptor {
        name: "posterize",
        summary: "Keeps only the upper bits of each value",
        parameters: &[
            IMAGE,
            Parameter::constant("bits", ConstantKind::Integer, "The number of upper bits to keep, from 0 to 8").or("4"),
        ],
        pixels: Pixels::Pointwise,
        docs: "The other bits become 0. Null in, null out.",
        source: "torchvision's `posterize`",
        examples: &[Example { sql: "posterize(image, bits => 2)", result: "values of 0, 64, 128 and 192" }],
        ..IN_PLACE
    },
    prepare: posterize,
};

pub(crate) static RANDOM_GRAYSCALE: InPlace = InPlace {
    descriptor: &Descriptor {
        name: "random_grayscale",
        summary: "Turns each image grey with a given probability",
        parameters: &[IMAGE, P.or("0.1"), Parameter::KEY],
        determinism: Determinism::KeyedRandom,
        pixels: Pixels::Pointwise,
        docs: "Each image has one draw, and changes if the draw is below p: never for 0, always for 1. All \
             channels become 0.2989 red + 0.587 green + 0.114 blue, in float32, truncated. Null in, null out.",
        source: "torchvision's `RandomGrayscale`",
        examples: &[Example { sql: "random_grayscale(image, p => 0.1)", result: "a tenth of the images are grey" }],
        ..IN_PLACE
    },
    prepare: random_grayscale,
};

pub(crate) static RANDOM_VFLIP: InPlace = InPlace {
    descriptor: &Descriptor {
        name: "random_vflip",
        summary: "Mirrors each image top to bottom with a given probability",
        parameters: &[IMAGE, P.or("0.5"), Parameter::KEY],
        determinism: Determinism::KeyedRandom,
        pixels: Pixels::Moved,
        docs: "Each image has one draw, and is mirrored if the draw is below p: never for 0, always for 1. Null \
             in, null out.",
        source: "torchvision's `RandomVerticalFlip`",
        examples: &[Example { sql: "random_vflip(image, p => 0.5)", result: "half of the images are mirrored" }],
        ..IN_PLACE
    },
    prepare: random_vflip,
};

pub(crate) static SOLARIZE: InPlace = InPlace {
    descriptor: &Descriptor {
        name: "solarize",
        summary: "Inverts values that reach a threshold",
        parameters: &[
            IMAGE,
            Parameter::constant("threshold", ConstantKind::Number, "The lowest value to invert, up to 255").or("128"),
        ],
        pixels: Pixels::Pointwise,
        docs: "A value x of at least threshold becomes 255 - x. Null in, null out.",
        source: "torchvision's `solarize`",
        examples: &[Example { sql: "solarize(image, threshold => 128)", result: "200 becomes 55, 100 stays" }],
        ..IN_PLACE
    },
    prepare: solarize,
};

fn auto_contrast(_: &Arguments) -> Result<InPlaceChange> {
    Ok(InPlaceChange::AutoContrast)
}

fn equalize(_: &Arguments) -> Result<InPlaceChange> {
    Ok(InPlaceChange::Equalize)
}

fn posterize(arguments: &Arguments) -> Result<InPlaceChange> {
    match arguments.integer("bits")? {
        bits @ 0..=8 => Ok(InPlaceChange::Map(Box::new(array::from_fn(|x| x as u8 & (0xFF00 >> bits) as u8)))),
        bits => arguments.refuse("bits", format_args!("must be from 0 to 8, got {bits}")),
    }
}

fn solarize(arguments: &Arguments) -> Result<InPlaceChange> {
    match arguments.number("threshold")? {
        threshold if threshold <= 255.0 => Ok(InPlaceChange::Map(Box::new(array::from_fn(|x| {
            if x as f64 >= threshold { 255 - x as u8 } else { x as u8 }
        })))),
        threshold => arguments.refuse("threshold", format_args!("must be up to 255, got {threshold}")),
    }
}

fn probability(arguments: &Arguments) -> Result<f64> {
    match arguments.number("p")? {
        p if (0.0..=1.0).contains(&p) => Ok(p),
        p => arguments.refuse("p", format_args!("must be from 0 to 1, got {p}")),
    }
}

fn random_grayscale(arguments: &Arguments) -> Result<InPlaceChange> {
    probability(arguments).map(InPlaceChange::Grayscale)
}

fn random_vflip(arguments: &Arguments) -> Result<InPlaceChange> {
    probability(arguments).map(InPlaceChange::Vflip)
}

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::lit;
    use datafusion::prelude::col;

    use crate::testing::{Column, assert_near, decoded, image, keyed, keys, noise, select, sql};

    /// The file with torchvision's result: see golden/images.py.
    fn golden(name: &str) -> String {
        format!("../golden/images/{name}.png")
    }

    fn sources() -> [(&'static str, Column); 2] {
        [("noise", noise()), ("colour", decoded(&["colour.jpg.png"]))]
    }

    #[test]
    fn changes_are_torchvisions() {
        for (name, source) in sources() {
            for call in ["auto_contrast", "equalize", "posterize_2", "posterize_0", "solarize_100", "solarize_255"] {
                let text = match call.split_once('_').filter(|(_, number)| number.parse::<u8>().is_ok()) {
                    Some((operator, number)) => format!("{operator}(image, {number})"),
                    None => format!("{call}(image)"),
                };
                assert_near(&sql(&text, vec![source.clone()]).unwrap(), &golden(&format!("{name}_{call}")), 0);
            }
            for call in ["grayscale", "vflip"] {
                let run = |p: f64| {
                    let call = keyed(&format!("random_{call}"), vec![col("image"), lit(p)]);
                    select(call, vec![source.clone(), keys(1)]).unwrap()
                };
                assert_eq!(image(&run(0.0), 0), image(&source, 0));
                // PyTorch uses a fused multiply-add, so a truncated value may be one lower or higher.
                let tolerance = u8::from(call == "grayscale");
                assert_near(&run(1.0), &golden(&format!("{name}_{call}")), tolerance);
            }
        }
    }

    #[test]
    fn a_slice_of_images_of_many_sizes_is_changed_alone() {
        let (field, array) = decoded(&["colour.jpg", "grey16.png", "palette.png"]);
        let whole = sql("solarize(image)", vec![(field.clone(), array.clone())]).unwrap();
        let slice = sql("solarize(image)", vec![(field, array.slice(1, 2))]).unwrap();
        assert_eq!(image(&slice, 0), image(&whole, 1));
        assert_eq!(image(&slice, 1), image(&whole, 2));
    }

    #[test]
    fn constants_out_of_range_are_refused() {
        let check = |call: &str, expect: &str| assert_eq!(sql(call, vec![noise()]).unwrap_err(), expect);
        check("posterize(image, 9)", "posterize: \"bits\" must be from 0 to 8, got 9");
        check("solarize(image, 256)", "solarize: \"threshold\" must be up to 255, got 256");
        check("random_vflip(image, 2)", "random_vflip: \"p\" must be from 0 to 1, got 2");
    }
}
