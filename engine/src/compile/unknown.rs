//! A value that is not known yet, for planning.

use std::any::Any;
use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::internal_err;
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

/// A value of this field that a stage will give. It takes a column, so that no rule computes it.
pub(super) fn unknown(field: FieldRef, column: Expr) -> Expr {
    ScalarUDF::from(Unknown { signature: Signature::any(1, Volatility::Immutable), field }).call(vec![column])
}

/// A field of a value that is not known yet, as a value of its own; `None` for other expressions.
///
/// Two fields of one value would be two calls over the same expression. The optimizer computes that once, and pulls the
/// calls down to its column, where it makes columns of one name.
pub(super) fn field_of_unknown(value: &Expr, name: &str) -> Option<Expr> {
    let Expr::ScalarFunction(ScalarFunction { func, args }) = value else { return None };
    let Unknown { field, .. } = (func.inner().as_ref() as &dyn Any).downcast_ref()?;
    match (field.data_type(), &args[..]) {
        (DataType::Struct(fields), [column]) => {
            let (_, field) = fields.find(name)?;
            Some(unknown(Arc::new(field.as_ref().clone().with_nullable(true)), column.clone()))
        }
        _ => None,
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Unknown {
    signature: Signature,
    field: FieldRef,
}

impl ScalarUDFImpl for Unknown {
    fn name(&self) -> &'static str {
        "value_of_stage"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.field.data_type().clone())
    }

    fn return_field_from_args(&self, _: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        Ok(FieldRef::clone(&self.field))
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("a stage has not run")
    }
}
