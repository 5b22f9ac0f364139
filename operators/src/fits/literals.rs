//! Constants of aggregates.

use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal;
use datafusion::scalar::ScalarValue;

use crate::constants;

/// The constant argument at this position.
fn literal(exprs: &[Arc<dyn PhysicalExpr>], at: usize) -> Result<&ScalarValue> {
    match exprs.get(at).and_then(|expr| expr.downcast_ref::<Literal>()) {
        Some(literal) => Ok(literal.value()),
        None => internal_err!("argument {at} of a fit is no constant"),
    }
}

/// An integer above zero.
pub(super) fn positive(exprs: &[Arc<dyn PhysicalExpr>], at: usize) -> Result<u64> {
    let value = constants::integer(literal(exprs, at)?).and_then(|value| u64::try_from(value).ok());
    match value.filter(|value| *value > 0) {
        Some(value) => Ok(value),
        None => internal_err!("argument {at} of a fit is no positive integer"),
    }
}

/// A text.
pub(super) fn text(exprs: &[Arc<dyn PhysicalExpr>], at: usize) -> Result<&str> {
    match constants::text(literal(exprs, at)?) {
        Some(text) => Ok(text),
        None => internal_err!("argument {at} of a fit is no text"),
    }
}
