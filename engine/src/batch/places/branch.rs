//! The constants of a branch of UNION: its number, and nulls for what only other branches have.
//!
//! Literals would not do. DataFusion leaves what is constant in each partition out of orders by which it merges
//! partitions, and two branches have two numbers. A volatile function is never taken for a constant.

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

#[derive(Debug, PartialEq, Eq, Hash)]
struct OfBranch {
    value: ScalarValue,
    signature: Signature,
}

/// The number of a branch as an expression, which may be null as far as DataFusion knows.
pub(super) fn number(of: usize) -> Expr {
    of_branch(ScalarValue::UInt64(Some(of as u64)))
}

/// A null of this type as an expression.
pub(super) fn null(data_type: &DataType) -> Result<Expr> {
    Ok(of_branch(ScalarValue::try_new_null(data_type)?))
}

fn of_branch(value: ScalarValue) -> Expr {
    let signature = Signature::nullary(Volatility::Volatile);
    ScalarUDF::new_from_impl(OfBranch { value, signature }).call(Vec::new())
}

impl ScalarUDFImpl for OfBranch {
    fn name(&self) -> &str {
        "forebay_branch"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.value.data_type())
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(ColumnarValue::Scalar(self.value.clone()))
    }
}
