//! `cyclic`: maps hours, weekdays and angles to points on a circle.

use std::f64::consts::TAU;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, Float32Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Float64Type};
use datafusion::common::Result;

use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "cyclic",
    version: 1,
    category: "number",
    summary: "Maps a periodic number to its sine and cosine",
    parameters: &[
        Parameter::input("x", TypeClass::Numeric, "The numbers, such as `date_part('hour', t)`"),
        Parameter::constant("period", ConstantKind::Number, "The length of the period, such as 24"),
    ],
    returns: "FixedSizeList(Float32) of 2: sine, then cosine",
    docs: "Removes whole periods, then computes sin and cos of 2 pi x / period in float64, in software. period must be \
           above 0. NaN and infinities give NaN. Null in, null out.",
    source: "the usual encoding of cyclic features, as in scikit-learn's example on time-related features",
    examples: &[Example { sql: "cyclic(6, period => 24)", result: "[1.0, 0.0]" }],
    ..Descriptor::BASE
};

/// The operator `cyclic`.
#[derive(Debug)]
pub(crate) struct Cyclic;

impl Operator for Cyclic {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let period = arguments.number("period")?;
        if period <= 0.0 {
            return arguments.refuse("period", format_args!("must be above 0, got {period}"));
        }
        let list = DataType::new_fixed_size_list(DataType::Float32, 2, true);
        Ok(Field::new("cyclic", list, arguments.field("x")?.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let period = arguments.number("period")?;
        let numbers = cast(arguments.array("x")?, &DataType::Float64)?;
        let numbers = numbers.as_primitive::<Float64Type>();
        let mut points = Vec::with_capacity(numbers.len() * 2);
        for x in numbers.values() {
            // % is exact, so 6 of 24 stays a quarter of the circle after any number of days.
            let turn = (x % period) / period;
            points.extend([sine(turn) as f32, sine(turn + 0.25) as f32]);
        }
        let item = Arc::new(Field::new_list_field(DataType::Float32, true));
        let points = Arc::new(Float32Array::from(points));
        Ok(Arc::new(FixedSizeListArray::try_new(item, 2, points, numbers.nulls().cloned())?))
    }
}

/// Returns the sine of a fraction of a full turn. Quarter turns give exactly -1, 0 and 1.
fn sine(turn: f64) -> f64 {
    match turn * 4.0 {
        quarters if quarters.fract() == 0.0 => [0.0, 1.0, 0.0, -1.0][quarters.rem_euclid(4.0) as usize],
        _ => libm::sin(turn * TAU),
    }
}
