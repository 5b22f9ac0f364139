//! `clamp`: limits numbers to a range.

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, downcast_integer};
use arrow::datatypes::{DataType, Field, Float32Type, Float64Type};
use datafusion::common::{Result, internal_err};

use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};
use crate::reuse;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "clamp",
    version: 1,
    category: "number",
    summary: "Limits numbers to a range",
    parameters: &[
        Parameter::input("x", TypeClass::Numeric, "The numbers"),
        Parameter::constant("min", ConstantKind::Number, "The minimum of the result"),
        Parameter::constant("max", ConstantKind::Number, "The maximum of the result"),
    ],
    returns: "the type of x; Float32 for Float16, Float64 for decimals",
    docs: "Smaller values become min, greater ones become max. For an integer column, min and max must be integers \
           that fit the type. A min above max is refused. NaN stays NaN. Null in, null out.",
    source: "NumPy's `clip`, without its type promotion",
    examples: &[
        Example { sql: "clamp(7.5, min => 0, max => 5)", result: "5.0" },
        Example { sql: "clamp(-3, min => 0, max => 5)", result: "0" },
    ],
    ..Descriptor::BASE
};

/// The operator `clamp`.
#[derive(Debug)]
pub(crate) struct Clamp;

impl Operator for Clamp {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let field = arguments.field("x")?;
        let (min, max) = (arguments.number("min")?, arguments.number("max")?);
        if min > max {
            return arguments.refuse("min", format_args!("must not be above \"max\", got {min} and {max}"));
        }
        if field.data_type().is_integer() {
            integer_bounds(arguments, field.data_type())?;
        }
        Ok(Field::new("clamp", field.data_type().clone(), field.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let array = arguments.take_array("x")?;
        let (min, max) = (arguments.number("min")?, arguments.number("max")?);
        match array.data_type() {
            DataType::Float32 => Ok(reuse::map::<Float32Type>(array, |x| x.clamp(min as f32, max as f32))),
            DataType::Float64 => Ok(reuse::map::<Float64Type>(array, |x| x.clamp(min, max))),
            data_type => {
                let (min, max) = integer_bounds(arguments, data_type)?;
                macro_rules! clamped {
                    ($t:ty) => {
                        clamp_integers::<$t>(array, min, max)
                    };
                }
                downcast_integer! {
                    data_type => (clamped),
                    other => internal_err!("clamp got {other}, which its type class refuses")
                }
            }
        }
    }
}

/// Returns the bounds if both are integers that fit this type.
fn integer_bounds(arguments: &Arguments, data_type: &DataType) -> Result<(i64, i64)> {
    let (low, high) = match data_type {
        DataType::Int8 => (i8::MIN.into(), i8::MAX.into()),
        DataType::Int16 => (i16::MIN.into(), i16::MAX.into()),
        DataType::Int32 => (i32::MIN.into(), i32::MAX.into()),
        DataType::UInt8 => (0, u8::MAX.into()),
        DataType::UInt16 => (0, u16::MAX.into()),
        DataType::UInt32 => (0, u32::MAX.into()),
        DataType::UInt64 => (0, i64::MAX),
        _ => (i64::MIN, i64::MAX),
    };
    let bound = |name: &str| {
        let number = arguments.number(name)?;
        // A float such as 5.0 is accepted if it is an integer small enough to be exact.
        let exact = number.fract() == 0.0 && number.abs() <= (1u64 << 53) as f64;
        let integer = arguments.integer(name).ok().or(exact.then_some(number as i64));
        match integer.filter(|n| (low..=high).contains(n)) {
            Some(integer) => Ok(integer),
            None => arguments.refuse(
                name,
                format_args!("must be an integer from {low} to {high} for a column of {data_type}, got {number}"),
            ),
        }
    };
    Ok((bound("min")?, bound("max")?))
}

fn clamp_integers<T: ArrowPrimitiveType>(array: ArrayRef, min: i64, max: i64) -> Result<ArrayRef>
where
    T::Native: Ord + TryFrom<i64>,
{
    let (Ok(min), Ok(max)) = (T::Native::try_from(min), T::Native::try_from(max)) else {
        return internal_err!("the bounds {min} and {max} do not fit {}", T::DATA_TYPE);
    };
    Ok(reuse::map::<T>(array, |x| x.clamp(min, max)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Float32Array, Float64Array, Int64Array, UInt8Array};

    use super::*;
    use crate::testing::{Column, column, sql};

    fn check(call: &str, column: Column, expect: impl Array + 'static) {
        let (_, got) = sql(call, vec![column]).unwrap();
        let expect: ArrayRef = Arc::new(expect);
        assert_eq!(&got, &expect, "{call}");
    }

    #[test]
    fn the_type_is_kept() {
        let bytes = UInt8Array::from(vec![Some(0), Some(9), Some(255), None]);
        check("clamp(x, 5, 10)", column("x", bytes), UInt8Array::from(vec![Some(5), Some(9), Some(10), None]));
        let big = i64::MAX - 1;
        check(
            &format!("clamp(x, 0, {big})"),
            column("x", Int64Array::from(vec![i64::MIN, i64::MAX])),
            Int64Array::from(vec![0, big]),
        );
        let floats = Float32Array::from(vec![-1.0, 0.25, 7.5]);
        check("clamp(x, 0, 0.5)", column("x", floats), Float32Array::from(vec![0.0, 0.25, 0.5]));
        let floats = Float64Array::from(vec![Some(f64::INFINITY), Some(f64::NAN), None]);
        check("clamp(x, 0, 5)", column("x", floats), Float64Array::from(vec![Some(5.0), Some(f64::NAN), None]));
        check("clamp(x, 1.0, 2.0)", column("x", Int64Array::from(vec![7])), Int64Array::from(vec![2]));
    }

    #[test]
    fn bounds_that_make_no_sense_are_refused() {
        let check = |call: &str, expect: &str| {
            let column = column("x", UInt8Array::from(vec![1]));
            assert_eq!(sql(call, vec![column]).err().as_deref(), Some(expect));
        };
        check("clamp(x, 3, 2)", "clamp: \"min\" must not be above \"max\", got 3 and 2");
        check("clamp(x, -1, 2)", "clamp: \"min\" must be an integer from 0 to 255 for a column of UInt8, got -1");
        check("clamp(x, 0, 2.5)", "clamp: \"max\" must be an integer from 0 to 255 for a column of UInt8, got 2.5");
        check("clamp('a', 0, 1)", "clamp: \"x\" must be a number, got Utf8");
    }
}
