//! The columns that a branch of UNION adds: its number, places of its own, and nulls for those of other branches.
//!
//! DataFusion leaves out of orders what it knows to be constant in a partition, or to be equal to another column. It
//! merges branches by their orders, and knows such things of one branch that are not so in another. Of a volatile
//! function it knows nothing.

use arrow::datatypes::DataType;
use datafusion::common::{ScalarValue, internal_err};
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

/// The number of a branch as an expression, which may be null as far as DataFusion knows.
pub(super) fn number(of: usize) -> Expr {
    constant(ScalarValue::UInt64(Some(of as u64)), 0)
}

/// A null of this type for the column with this number, as an expression.
pub(super) fn null(data_type: &DataType, column: usize) -> Result<Expr> {
    Ok(constant(ScalarValue::try_new_null(data_type)?, column))
}

/// The values of a column, as an expression that DataFusion does not know to be that column.
pub(super) fn column(of: Expr) -> Expr {
    ScalarUDF::new_from_impl(OfBranch { value: None, column: 0, signature: Signature::any(1, Volatility::Volatile) })
        .call(vec![of])
}

fn constant(value: ScalarValue, column: usize) -> Expr {
    let signature = Signature::nullary(Volatility::Volatile);
    ScalarUDF::new_from_impl(OfBranch { value: Some(value), column, signature }).call(Vec::new())
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct OfBranch {
    /// `None` for the argument.
    value: Option<ScalarValue>,
    /// DataFusion takes columns of the same expression as equal, and leaves all but one of them out of orders.
    column: usize,
    signature: Signature,
}

impl ScalarUDFImpl for OfBranch {
    fn name(&self) -> &str {
        "forebay_branch"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        match (&self.value, arguments) {
            (Some(value), _) => Ok(value.data_type()),
            (None, [column]) => Ok(column.clone()),
            (None, _) => internal_err!("a column of a branch is one argument"),
        }
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match (&self.value, &arguments.args[..]) {
            (Some(value), _) => Ok(ColumnarValue::Scalar(value.clone())),
            (None, [column]) => Ok(column.clone()),
            (None, _) => internal_err!("a column of a branch is one argument"),
        }
    }
}
