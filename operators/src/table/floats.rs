//! Functions from numbers to floats: `boxcox`, `logit`, `standardize`, `min_max`, `log_shift`.
//!
//! Each is one operator, and all are one struct: a descriptor, and what makes a function of the constants. All
//! functions compute in float64, with transcendental functions in software, so every machine returns the same bits.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float32Array, Float64Array};
use arrow::compute::{cast, unary};
use arrow::datatypes::{DataType, Field, Float32Type, Float64Type};
use datafusion::common::Result;

use super::{on_values, value_type, with_value_type};
use crate::descriptor::{Commutes, ConstantKind, Descriptor, Determinism, Example, Nulls, Parameter, Rows, TypeClass};
use crate::operator::{Arguments, Operator};

/// An operator that maps numbers to floats.
#[derive(Debug)]
pub(crate) struct FloatMap {
    descriptor: &'static Descriptor,
    prepare: fn(&Arguments) -> Result<FloatFunction>,
}

/// A function with its constants. It is an enum and not a boxed closure, so the compiler can optimize the loop over
/// values.
#[derive(Debug, Clone, Copy)]
enum FloatFunction {
    Boxcox(f64),
    LogShift(f64),
    Logit(f64),
    /// `(x - a) / b`.
    Scaled(f64, f64),
}

impl Operator for FloatMap {
    fn descriptor(&self) -> &'static Descriptor {
        self.descriptor
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        (self.prepare)(arguments)?;
        let field = arguments.field("x")?;
        let value = match value_type(field.data_type()) {
            DataType::Float32 => DataType::Float32,
            _ => DataType::Float64,
        };
        Ok(with_value_type(self.descriptor.name, field, value))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let map = (self.prepare)(arguments)?;
        on_values(arguments.array("x")?, |values| match map {
            FloatFunction::Boxcox(0.0) => apply(values, libm::log),
            FloatFunction::Boxcox(lambda) => apply(values, |x| libm::expm1(lambda * libm::log(x)) / lambda),
            FloatFunction::LogShift(shift) => apply(values, |x| libm::log(x + shift)),
            FloatFunction::Logit(eps) => apply(values, |x| {
                let x = if eps > 0.0 { x.clamp(eps, 1.0 - eps) } else { x };
                libm::log(x / (1.0 - x))
            }),
            FloatFunction::Scaled(a, b) => apply(values, |x| (x - a) / b),
        })
    }
}

fn apply(values: &ArrayRef, function: impl Fn(f64) -> f64) -> Result<ArrayRef> {
    if let Some(values) = values.as_primitive_opt::<Float32Type>() {
        let mapped: Float32Array = unary(values, |x| function(f64::from(x)) as f32);
        return Ok(Arc::new(mapped));
    }
    let values = cast(values, &DataType::Float64)?;
    let mapped: Float64Array = unary(values.as_primitive::<Float64Type>(), function);
    Ok(Arc::new(mapped))
}

const X: Parameter = Parameter::input("x", TypeClass::NumericOrList, "The numbers, or lists of numbers");

macro_rules! float_maps {
    ($($constant:ident $name:literal ($($parameter:expr),+), $prepare:path, $summary:literal, $docs:literal, $source:literal,
       $($example:literal = $result:literal),+;)+) => {
        $(pub(crate) static $constant: FloatMap = FloatMap {
            descriptor: {
                static DESCRIPTOR: Descriptor = Descriptor {
                    name: $name,
                    version: 1,
                    category: "number",
                    summary: $summary,
                    parameters: &[X, $($parameter),+],
                    returns: "Float32 for Float16 and Float32, otherwise Float64; lists of it for lists",
                    determinism: Determinism::Deterministic,
                    rows: Rows::OneToOne,
                    nulls: Nulls::Kept,
                    size_ratio: 1.0,
                    commutes: Commutes::NONE,
                    docs: concat!($docs, " NaN stays NaN. Null in, null out, in lists as well."),
                    source: $source,
                    examples: &[$(Example { sql: $example, result: $result }),+],
                };
                &DESCRIPTOR
            },
            prepare: $prepare,
        };)+
    };
}

float_maps! {
    BOXCOX "boxcox" (Parameter::constant("lambda", ConstantKind::Number, "The exponent; 0 is the logarithm")), boxcox,
        "Applies the Box-Cox transform, which makes skewed positive numbers more normal",
        "Computes ln(x) for lambda 0, otherwise (x^lambda - 1) / lambda; exact for small lambda, too. A number below 0 \
         gives NaN. 0 gives -1 / lambda, or -infinity for a lambda of 0 or less.",
        "SciPy's `special.boxcox`, TorchArrow's `boxcox`",
        "boxcox(4.0, lambda => 0.5)" = "2.0", "boxcox(1, lambda => 0)" = "0.0";
    LOG_SHIFT "log_shift" (Parameter::constant("shift", ConstantKind::Number, "The number to add first").or("3")), log_shift,
        "Computes the natural logarithm of x + shift",
        "The result is -infinity if x + shift is 0, and NaN if it is below 0. The default is the usual transform for \
         Criteo's integers, whose minimum is -2. For numbers near 0, `log1p` is exact.",
        "TorchRec's preprocessing of Criteo, `log(x + 3)`",
        "log_shift(-2)" = "0.0", "log_shift(97)" = "4.605170185988092";
    LOGIT "logit" (
            Parameter::constant("eps", ConstantKind::Number, "The bounds eps and 1 - eps to which x is clamped first; 0 for no clamping")
            .or("0")
        ),
        logit, "Computes the logarithm of the odds: ln(x / (1 - x))",
        "0 gives -infinity, 1 gives infinity, and numbers outside 0 to 1 give NaN, unless eps clamps them. eps must be \
         from 0 to 0.5.",
        "PyTorch's `logit`, TorchArrow's `logit`",
        "logit(0.5)" = "0.0", "logit(1.0, eps => 0.25)" = "1.0986122886681096";
    MIN_MAX "min_max" (
            Parameter::constant("min", ConstantKind::Number, "The number that becomes 0"),
            Parameter::constant("max", ConstantKind::Number, "The number that becomes 1")
        ), min_max, "Scales numbers linearly so that a given range becomes 0 to 1",
        "Computes (x - min) / (max - min). Numbers outside the range give results outside 0 to 1; use `clamp` to limit \
         them. max must be above min. The statistics are constants: fit them over the dataset beforehand.",
        "scikit-learn's `MinMaxScaler` with given statistics",
        "min_max(15, min => 10, max => 20)" = "0.5";
    STANDARDIZE "standardize" (
            Parameter::constant("mean", ConstantKind::Number, "The mean of the numbers"),
            Parameter::constant("std", ConstantKind::Number, "The standard deviation of the numbers")
        ), standardize, "Scales numbers to mean 0 and standard deviation 1, with given statistics",
        "Computes (x - mean) / std. std must be above 0. The statistics are constants: fit them over the dataset \
         beforehand.",
        "scikit-learn's `StandardScaler` with given statistics",
        "standardize(15, mean => 10, std => 2)" = "2.5";
}

fn boxcox(arguments: &Arguments) -> Result<FloatFunction> {
    Ok(FloatFunction::Boxcox(arguments.number("lambda")?))
}

fn log_shift(arguments: &Arguments) -> Result<FloatFunction> {
    Ok(FloatFunction::LogShift(arguments.number("shift")?))
}

fn logit(arguments: &Arguments) -> Result<FloatFunction> {
    match arguments.number("eps")? {
        eps if (0.0..=0.5).contains(&eps) => Ok(FloatFunction::Logit(eps)),
        eps => arguments.refuse("eps", format_args!("must be from 0 to 0.5, got {eps}")),
    }
}

fn min_max(arguments: &Arguments) -> Result<FloatFunction> {
    let (min, max) = (arguments.number("min")?, arguments.number("max")?);
    match max > min {
        true => Ok(FloatFunction::Scaled(min, max - min)),
        false => arguments.refuse("max", format_args!("must be above \"min\", got {max} and {min}")),
    }
}

fn standardize(arguments: &Arguments) -> Result<FloatFunction> {
    match arguments.number("std")? {
        std if std > 0.0 => Ok(FloatFunction::Scaled(arguments.number("mean")?, std)),
        std => arguments.refuse("std", format_args!("must be above 0, got {std}")),
    }
}
