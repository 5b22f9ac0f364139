//! The number of a branch of UNION.
//!
//! A literal would not do. DataFusion leaves what is constant in each partition out of orders by which it merges
//! partitions, and those of two branches have two numbers. A volatile function is never taken for a constant.

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

#[derive(Debug, PartialEq, Eq, Hash)]
struct Branch {
    number: u64,
    signature: Signature,
}

/// The number as an expression, which may be null as far as DataFusion knows.
pub(super) fn branch(number: usize) -> Expr {
    let signature = Signature::nullary(Volatility::Volatile);
    ScalarUDF::new_from_impl(Branch { number: number as u64, signature }).call(Vec::new())
}

impl ScalarUDFImpl for Branch {
    fn name(&self) -> &str {
        "forebay_branch"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::UInt64)
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(ColumnarValue::Scalar(ScalarValue::UInt64(Some(self.number))))
    }
}
