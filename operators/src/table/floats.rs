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
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
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
        if arguments.are_known() {
            (self.prepare)(arguments)?;
        }
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

/// What all operators of this file declare alike.
const FLOAT_MAP: Descriptor = Descriptor {
    category: "number",
    returns: "Float32 for Float16 and Float32, otherwise Float64; lists of it for lists",
    ..Descriptor::BASE
};

pub(crate) static BOXCOX: FloatMap = FloatMap {
    descriptor: &Descriptor {
        name: "boxcox",
        summary: "Applies the Box-Cox transform, which makes skewed positive numbers more normal",
        parameters: &[X, Parameter::constant("lambda", ConstantKind::Number, "The exponent; 0 is the logarithm")],
        docs: "Computes ln(x) for lambda 0, otherwise (x^lambda - 1) / lambda; exact for small lambda, too. A \
             number below 0 gives NaN. 0 gives -1 / lambda, or -infinity for a lambda of 0 or less. NaN stays \
             NaN. Null in, null out, in lists as well.",
        source: "SciPy's `special.boxcox`, TorchArrow's `boxcox`",
        examples: &[
            Example { sql: "boxcox(4.0, lambda => 0.5)", result: "2.0" },
            Example { sql: "boxcox(1, lambda => 0)", result: "0.0" },
        ],
        ..FLOAT_MAP
    },
    prepare: boxcox,
};

pub(crate) static LOG_SHIFT: FloatMap = FloatMap {
    descriptor: &Descriptor {
        name: "log_shift",
        summary: "Computes the natural logarithm of x + shift",
        parameters: &[X, Parameter::constant("shift", ConstantKind::Number, "The number to add first").or("3")],
        docs: "The result is -infinity if x + shift is 0, and NaN if it is below 0. The default is the usual \
             transform for Criteo's integers, whose minimum is -2. For numbers near 0, `log1p` is exact. NaN \
             stays NaN. Null in, null out, in lists as well.",
        source: "TorchRec's preprocessing of Criteo, `log(x + 3)`",
        examples: &[
            Example { sql: "log_shift(-2)", result: "0.0" },
            Example { sql: "log_shift(97)", result: "4.605170185988092" },
        ],
        ..FLOAT_MAP
    },
    prepare: log_shift,
};

pub(crate) static LOGIT: FloatMap = FloatMap {
    descriptor: &Descriptor {
        name: "logit",
        summary: "Computes the logarithm of the odds: ln(x / (1 - x))",
        parameters: &[
            X,
            Parameter::constant(
                "eps",
                ConstantKind::Number,
                "The bounds eps and 1 - eps to which x is clamped first; 0 for no clamping",
            )
            .or("0"),
        ],
        docs: "0 gives -infinity, 1 gives infinity, and numbers outside 0 to 1 give NaN, unless eps clamps them. \
             eps must be from 0 to 0.5. NaN stays NaN. Null in, null out, in lists as well.",
        source: "PyTorch's `logit`, TorchArrow's `logit`",
        examples: &[
            Example { sql: "logit(0.5)", result: "0.0" },
            Example { sql: "logit(1.0, eps => 0.25)", result: "1.0986122886681096" },
        ],
        ..FLOAT_MAP
    },
    prepare: logit,
};

pub(crate) static MIN_MAX: FloatMap = FloatMap {
    descriptor: &Descriptor {
        name: "min_max",
        summary: "Scales numbers linearly so that a range, given or fitted, becomes 0 to 1",
        parameters: &[
            X,
            Parameter::constant("min", ConstantKind::Number, "The number that becomes 0").fitted(),
            Parameter::constant("max", ConstantKind::Number, "The number that becomes 1").fitted(),
        ],
        docs: "Computes (x - min) / (max - min). Numbers outside the range give results outside 0 to 1; use \
             `clamp` to limit them. max must be above min. Without both, they are fitted: the least and the greatest \
             finite number of the rows. Equal numbers then become 0. `fit_on => 'split = ''train'''` says to \
             which rows of FROM; by default, to those that WHERE keeps. NaN stays NaN. Null in, null out, in lists as well.",
        source: "scikit-learn's `MinMaxScaler`",
        examples: &[
            Example { sql: "min_max(15, min => 10, max => 20)", result: "0.5" },
            Example { sql: "min_max(price)", result: "0.0 for the least price, 1.0 for the greatest" },
        ],
        ..FLOAT_MAP
    },
    prepare: min_max,
};

pub(crate) static STANDARDIZE: FloatMap = FloatMap {
    descriptor: &Descriptor {
        name: "standardize",
        summary: "Scales numbers to mean 0 and standard deviation 1, with statistics given or fitted",
        parameters: &[
            X,
            Parameter::constant("mean", ConstantKind::Number, "The mean of the numbers").fitted(),
            Parameter::constant("std", ConstantKind::Number, "The standard deviation of the numbers").fitted(),
        ],
        docs: "Computes (x - mean) / std. std must be above 0. Without both, they are fitted: the mean and the \
             deviation of the finite numbers of the rows, exact and rounded once. Equal numbers then become 0. `fit_on => \
             'split = ''train'''` says to which rows of FROM; by default, to those that WHERE keeps. NaN stays NaN. Null in, null out, in lists as well.",
        source: "scikit-learn's `StandardScaler`",
        examples: &[
            Example { sql: "standardize(15, mean => 10, std => 2)", result: "2.5" },
            Example { sql: "standardize(price)", result: "0.0 for the mean price" },
        ],
        ..FLOAT_MAP
    },
    prepare: standardize,
};

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
