//! A value that is not known yet, for planning.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::internal_err;
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

/// A value of this type that a stage will give. It takes a column, so that no rule computes it.
pub(super) fn unknown(data_type: DataType, column: Expr) -> Expr {
    ScalarUDF::from(Unknown { signature: Signature::any(1, Volatility::Immutable), data_type }).call(vec![column])
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Unknown {
    signature: Signature,
    data_type: DataType,
}

impl ScalarUDFImpl for Unknown {
    fn name(&self) -> &'static str {
        "value_of_stage"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.data_type.clone())
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("a stage has not run")
    }
}
