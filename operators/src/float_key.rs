//! Floats as keys.
//!
//! DataFusion compares floats by their bits in sorts, windows and DISTINCT, in long lists of IN, and elsewhere. There,
//! 0 and -0 are two values. So are NaNs of both signs: 0.0 / 0 is negative on x86 processors. [`float_key`] makes one
//! value of each pair.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{DataType, FieldRef, Float16Type, Float32Type, Float64Type};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use half::f16;

/// The key of an expression of floats: -0 is 0, and NaN is positive and has no payload. Other numbers are themselves.
pub fn float_key(expr: Expr) -> Expr {
    match expr {
        Expr::Literal(value, metadata) => Expr::Literal(scalar_key(value), metadata),
        expr if is_float_key(&expr) => expr,
        expr => ScalarUDF::from(FloatKey { signature: Signature::any(1, Volatility::Immutable) }).call(vec![expr]),
    }
}

/// Whether an expression is a [`float_key`].
fn is_float_key(expr: &Expr) -> bool {
    match expr {
        Expr::Alias(alias) => is_float_key(&alias.expr),
        Expr::ScalarFunction(call) => call.func.inner().downcast_ref::<FloatKey>().is_some(),
        _ => false,
    }
}

fn scalar_key(value: ScalarValue) -> ScalarValue {
    match value {
        ScalarValue::Float16(Some(x)) => ScalarValue::Float16(Some(key16(x))),
        ScalarValue::Float32(Some(x)) => ScalarValue::Float32(Some(key32(x))),
        ScalarValue::Float64(Some(x)) => ScalarValue::Float64(Some(key64(x))),
        other => other,
    }
}

// Adding 0 makes 0 of -0, and changes no other number.

fn key16(x: f16) -> f16 {
    if x.is_nan() { f16::NAN } else { x + f16::ZERO }
}

fn key32(x: f32) -> f32 {
    if x.is_nan() { f32::from_bits(0x7fc0_0000) } else { x + 0.0 }
}

fn key64(x: f64) -> f64 {
    if x.is_nan() { f64::from_bits(0x7ff8_0000_0000_0000) } else { x + 0.0 }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct FloatKey {
    signature: Signature,
}

impl ScalarUDFImpl for FloatKey {
    fn name(&self) -> &'static str {
        "float_key"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        internal_err!("it returns the field of its argument")
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        let field = arguments.arg_fields[0].as_ref().clone();
        Ok(Arc::new(field.with_name(self.name())))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let array: &ArrayRef = match &arguments.args[0] {
            ColumnarValue::Scalar(scalar) => return Ok(ColumnarValue::Scalar(scalar_key(scalar.clone()))),
            ColumnarValue::Array(array) => array,
        };
        Ok(ColumnarValue::Array(match array.data_type() {
            DataType::Float16 => Arc::new(array.as_primitive::<Float16Type>().unary::<_, Float16Type>(key16)),
            DataType::Float32 => Arc::new(array.as_primitive::<Float32Type>().unary::<_, Float32Type>(key32)),
            DataType::Float64 => Arc::new(array.as_primitive::<Float64Type>().unary::<_, Float64Type>(key64)),
            other => return internal_err!("{other} is no type of floats"),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_one_value_and_nans_are_another() {
        let key = |x: f64| key64(x).to_bits();
        assert_eq!(key(-0.0), 0.0_f64.to_bits());
        let nans = [f64::NAN, -f64::NAN, f64::from_bits(0xfff8_0000_0000_0001), f64::from_bits(0x7ff0_0000_0000_0001)];
        assert!(nans.iter().all(|&nan| key(nan) == 0x7ff8_0000_0000_0000));
        for x in [1.5, -1.5, f64::MIN_POSITIVE, -5e-324, f64::MAX, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(key(x), x.to_bits());
        }
        assert_eq!((key32(-0.0).to_bits(), key16(-f16::ZERO).to_bits()), (0, 0));
        assert_eq!((key32(-f32::NAN).to_bits(), key16(-f16::NAN).to_bits()), (0x7fc0_0000, f16::NAN.to_bits()));
    }
}
