//! `log1p`: ln(1 + x).

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Field, Float32Type, Float64Type};
use datafusion::common::{Result, internal_err};

use crate::descriptor::{Commutes, Descriptor, Determinism, Example, Nulls, Parameter, ParameterKind, Rows, TypeClass};
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "log1p",
    version: 1,
    category: "number",
    summary: "The natural logarithm of 1 + x, exact for small x",
    parameters: &[Parameter::input("x", TypeClass::Numeric, "The numbers")],
    returns: "Float32 for Float16 and Float32, otherwise Float64",
    determinism: Determinism::Deterministic,
    rows: Rows::OneToOne,
    nulls: Nulls::Kept,
    size_ratio: 1.0,
    commutes: Commutes::NONE,
    docs: "-1 gives -infinity, anything below gives NaN, as in NumPy: no value is an error. Null in, null out. Computed \
           in software, so every machine returns the same bits.",
    source: "FreeBSD's msun `log1p`, through the `libm` crate; NumPy's `log1p` for special values",
    examples: &[
        Example { sql: "log1p(0.0)", result: "0.0" },
        Example { sql: "log1p(99)", result: "4.605170185988092" },
    ],
};

/// The operator `log1p`.
#[derive(Debug)]
pub(crate) struct Log1p;

impl Operator for Log1p {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn coerce(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let ParameterKind::Input(class) = DESCRIPTOR.parameters[0].kind else {
            return internal_err!("log1p takes an input");
        };
        let coerced = types.iter().map(|data_type| match class.coerce(data_type) {
            integer if integer.is_integer() => DataType::Float64,
            other => other,
        });
        Ok(coerced.collect())
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let field = arguments.field("x")?;
        let data_type = match field.data_type() {
            DataType::Float32 => DataType::Float32,
            _ => DataType::Float64,
        };
        Ok(Field::new("log1p", data_type, field.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let array = arguments.array("x")?;
        match array.data_type() {
            DataType::Float32 => {
                Ok(Arc::new(array.as_primitive::<Float32Type>().unary::<_, Float32Type>(libm::log1pf)))
            }
            DataType::Float64 => Ok(Arc::new(array.as_primitive::<Float64Type>().unary::<_, Float64Type>(libm::log1p))),
            other => internal_err!("log1p got {other}, which coercion removes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, Float32Array, Float64Array, Int32Array};

    use super::*;
    use crate::testing::{column, sql};

    #[test]
    fn values_are_numpys() {
        let x = Float64Array::from(vec![Some(0.0), Some(1e-10), Some(1.0), Some(99.0), Some(-1.0), None]);
        let (_, got) = sql("log1p(x)", vec![column("x", x)]).unwrap();
        let expect = vec![
            Some(0.0),
            Some(9.999999999500001e-11),
            Some(std::f64::consts::LN_2),
            Some(4.605170185988092),
            Some(f64::NEG_INFINITY),
            None,
        ];
        assert_eq!(got.as_primitive::<Float64Type>(), &Float64Array::from(expect));
        let (_, got) = sql("log1p(x)", vec![column("x", Float64Array::from(vec![-1.5, f64::NAN]))]).unwrap();
        assert!(got.as_primitive::<Float64Type>().values().iter().all(|x| x.is_nan()));
    }

    #[test]
    fn float32_stays_and_integers_become_float64() {
        let (_, got) = sql("log1p(x)", vec![column("x", Float32Array::from(vec![1e-5, 99.0]))]).unwrap();
        assert_eq!(got.as_primitive::<Float32Type>().values().as_ref(), [9.99995e-6, 4.6051702]);
        let (_, got) = sql("log1p(x)", vec![column("x", Int32Array::from(vec![99]))]).unwrap();
        assert_eq!(got.as_primitive::<Float64Type>().values().as_ref(), [4.605170185988092]);
        let (_, got) = sql("log1p(NULL)", vec![column("x", Int32Array::from(vec![99]))]).unwrap();
        assert_eq!(got.null_count(), 1);
    }
}
