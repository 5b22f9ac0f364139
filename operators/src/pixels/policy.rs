//! `rand_augment` and `trivial_augment`: operations drawn from one list.

use datafusion::common::Result;

use super::adjustments::Adjustment;
use super::affine::Affine;
use super::augment::{AUGMENTATION, Augment, IMAGE, Recipe, whole};
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter};
use crate::keyed::Draws;
use crate::operator::Arguments;

/// The distribution of operations.
#[derive(Debug)]
pub(super) enum Policy {
    /// `operations` operations of one strength.
    Rand { operations: usize, magnitude: usize, bins: usize },
    /// One operation of random strength.
    Trivial { bins: usize },
}

/// The operations in the order of torchvision's tables. A draw below their number selects one.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
}

const OPERATIONS: [Operation; 14] = [
    Operation::Identity,
    Operation::ShearX,
    Operation::ShearY,
    Operation::TranslateX,
    Operation::TranslateY,
    Operation::Rotate,
    Operation::Brightness,
    Operation::Color,
    Operation::Contrast,
    Operation::Sharpness,
    Operation::Posterize,
    Operation::Solarize,
    Operation::AutoContrast,
    Operation::Equalize,
];

impl Policy {
    pub(super) fn apply(
        &self,
        pixels: &mut [u8],
        height: usize,
        width: usize,
        draws: &mut Draws,
        scratch: &mut Vec<u8>,
    ) {
        let count = match self {
            Self::Rand { operations, .. } => *operations,
            Self::Trivial { .. } => 1,
        };
        for _ in 0..count {
            self.step(height, width, draws).apply(pixels, width, scratch);
        }
    }

    /// Draws the operation, then its strength unless that is given, then its sign if it has one.
    fn step(&self, height: usize, width: usize, draws: &mut Draws) -> Adjustment {
        let operation = OPERATIONS[draws.below(OPERATIONS.len() as u64) as usize];
        let (bin, bins, greatest) = match *self {
            Self::Rand { magnitude, bins, .. } => (magnitude, bins, Greatest::rand(height, width)),
            Self::Trivial { bins } => (draws.below(bins as u64) as usize, bins, Greatest::TRIVIAL),
        };
        let part = bin as f64 / (bins - 1) as f64;
        let mut signed = |greatest: f64| if draws.below(2) == 1 { -greatest * part } else { greatest * part };
        match operation {
            Operation::Identity => Adjustment::Identity,
            Operation::ShearX => Adjustment::Affine(Affine::sheared_x(signed(greatest.shear))),
            Operation::ShearY => Adjustment::Affine(Affine::sheared_y(signed(greatest.shear))),
            Operation::TranslateX => Adjustment::Affine(Affine::translated(signed(greatest.right) as i64, 0)),
            Operation::TranslateY => Adjustment::Affine(Affine::translated(0, signed(greatest.down) as i64)),
            Operation::Rotate => {
                Adjustment::Affine(Affine::rotated(signed(greatest.degrees), height, width, [0; 3], false))
            }
            Operation::Brightness => Adjustment::Brightness(1.0 + signed(greatest.factor)),
            Operation::Color => Adjustment::Saturation(1.0 + signed(greatest.factor)),
            Operation::Contrast => Adjustment::Contrast(1.0 + signed(greatest.factor)),
            Operation::Sharpness => Adjustment::Sharpness(1.0 + signed(greatest.factor)),
            Operation::Posterize => Adjustment::Posterize(8 - (greatest.bits * part).round_ties_even() as u8),
            Operation::Solarize => Adjustment::Solarize(255.0 * falling(bin, bins)),
            Operation::AutoContrast => Adjustment::AutoContrast,
            Operation::Equalize => Adjustment::Equalize,
        }
    }
}

/// Returns 1 at the first bin and 0 at the last, rounded like PyTorch's `linspace`. The rounding matters: a threshold
/// slightly below a whole number inverts one value more than a threshold slightly above it.
fn falling(bin: usize, bins: usize) -> f64 {
    let step = f64::from(-1.0 / (bins - 1) as f32);
    let exact = if bin < bins / 2 { 1.0 + step * bin as f64 } else { -step * (bins - 1 - bin) as f64 };
    f64::from(exact as f32)
}

/// The strength of each operation at the last bin.
struct Greatest {
    shear: f64,
    right: f64,
    down: f64,
    degrees: f64,
    factor: f64,
    bits: f64,
}

impl Greatest {
    const TRIVIAL: Self = Self { shear: 0.99, right: 32.0, down: 32.0, degrees: 135.0, factor: 0.99, bits: 6.0 };

    fn rand(height: usize, width: usize) -> Self {
        let part = |side: usize| 150.0 / 331.0 * side as f64;
        Self { shear: 0.3, right: part(width), down: part(height), degrees: 30.0, factor: 0.9, bits: 4.0 }
    }
}

/// Maximum number of operations on an image.
const OPERATIONS_MAX: usize = 16;

/// Maximum number of strengths of an operation.
const BINS_MAX: usize = 1000;

static RAND_AUGMENT_DESCRIPTOR: Descriptor = Descriptor {
    name: "rand_augment",
    summary: "Applies a few random operations of one strength to each image",
    parameters: &[
        IMAGE,
        Parameter::constant("num_ops", ConstantKind::Integer, "The number of operations on an image").or("2"),
        Parameter::constant("magnitude", ConstantKind::Integer, "The strength of the operations, a bin").or("9"),
        Parameter::constant("num_magnitude_bins", ConstantKind::Integer, "The number of bins").or("31"),
        Parameter::KEY,
    ],
    docs: "The operations are equally likely: identity, shear_x, shear_y, translate_x, translate_y, rotate, \
           brightness, color, contrast, sharpness, posterize, solarize, auto_contrast, equalize, with torchvision's \
           strengths. Each operation draws its number in this order. The operations from shear_x to sharpness then \
           draw a sign below 2; 1 is negative. Pixels outside the image are black. Positions are rounded to the \
           nearest pixel. num_ops is at most 16. Each operation is within one level of torchvision's. Null in, null \
           out.",
    source: "torchvision's `v2.RandAugment`, after Cubuk et al., RandAugment (2019)",
    examples: &[Example { sql: "rand_augment(image, num_ops => 2, magnitude => 9)", result: "a distorted image" }],
    ..AUGMENTATION
};

static TRIVIAL_AUGMENT_DESCRIPTOR: Descriptor = Descriptor {
    name: "trivial_augment",
    summary: "Applies one random operation of random strength to each image",
    parameters: &[
        IMAGE,
        Parameter::constant("num_magnitude_bins", ConstantKind::Integer, "The number of strengths").or("31"),
        Parameter::KEY,
    ],
    docs: "The operations are those of `rand_augment`, with the wide ranges of TrivialAugmentWide. Draws: the \
           operation, the bin, the sign. Each operation is within one level of torchvision's. Null in, null out.",
    source: "torchvision's `v2.TrivialAugmentWide`, after Müller and Hutter, TrivialAugment (2021)",
    examples: &[Example { sql: "trivial_augment(image)", result: "a distorted image" }],
    ..AUGMENTATION
};

pub(crate) static RAND_AUGMENT: Augment = Augment { descriptor: &RAND_AUGMENT_DESCRIPTOR, prepare: rand_augment };
pub(crate) static TRIVIAL_AUGMENT: Augment =
    Augment { descriptor: &TRIVIAL_AUGMENT_DESCRIPTOR, prepare: trivial_augment };

fn rand_augment(arguments: &Arguments) -> Result<Recipe> {
    let operations = whole(arguments, "num_ops", 1, OPERATIONS_MAX)?;
    let bins = bins(arguments)?;
    let magnitude = whole(arguments, "magnitude", 0, bins - 1)?;
    Ok(Recipe::Policy(Policy::Rand { operations, magnitude, bins }))
}

fn trivial_augment(arguments: &Arguments) -> Result<Recipe> {
    Ok(Recipe::Policy(Policy::Trivial { bins: bins(arguments)? }))
}

fn bins(arguments: &Arguments) -> Result<usize> {
    whole(arguments, "num_magnitude_bins", 2, BINS_MAX)
}

#[cfg(test)]
mod tests {
    use crate::testing::{noise, sql};

    #[test]
    fn arguments_out_of_range_are_refused_by_name() {
        let check = |call: &str, expect: &str| assert_eq!(sql(call, vec![noise()]).unwrap_err(), expect);
        check("rand_augment(image, 17)", "rand_augment: \"num_ops\" must be from 1 to 16, got 17");
        check("rand_augment(image, 2, 31)", "rand_augment: \"magnitude\" must be from 0 to 30, got 31");
        check("rand_augment(image, 2, -1)", "rand_augment: \"magnitude\" must be from 0 to 30, got -1");
        check("trivial_augment(image, 1)", "trivial_augment: \"num_magnitude_bins\" must be from 2 to 1000, got 1");
    }
}
