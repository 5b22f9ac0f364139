//! Plans array literals as literals.
//!
//! DataFusion plans `[0.485, 0.456]` as a call of `make_array`, which only the optimizer turns into a literal. An
//! operator reads its constant parameters earlier, when its output type is computed. So an array whose elements are all
//! literals is planned as a literal immediately.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::DFSchema;
use datafusion::error::Result;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult};
use datafusion::scalar::ScalarValue;

/// The planner of array literals, for every session that plans pipelines.
///
/// It must come before DataFusion's own planners, which accept every array. Pass it to
/// `SessionStateBuilder::with_expr_planners` before `with_default_features`, or insert it at the front of the builder's
/// planners.
pub fn expr_planner() -> Arc<dyn ExprPlanner> {
    Arc::new(LiteralArrays)
}

#[derive(Debug)]
struct LiteralArrays;

impl ExprPlanner for LiteralArrays {
    fn plan_array_literal(&self, exprs: Vec<Expr>, _schema: &DFSchema) -> Result<PlannerResult<Vec<Expr>>> {
        let elements: Option<Vec<ScalarValue>> = exprs.iter().map(literal).collect();
        Ok(match elements.and_then(list) {
            Some(list) => PlannerResult::Planned(Expr::Literal(list, None)),
            None => PlannerResult::Original(exprs),
        })
    }
}

/// The value of a literal, with its sign.
fn literal(expr: &Expr) -> Option<ScalarValue> {
    match expr {
        Expr::Literal(value, None) => Some(value.clone()),
        Expr::Negative(inner) => match inner.as_ref() {
            Expr::Literal(value, None) => value.arithmetic_negate().ok(),
            _ => None,
        },
        _ => None,
    }
}

/// Builds a list whose elements share a type: integers if all numbers are integers, floats otherwise. Leaves other
/// mixtures to DataFusion, which knows the coercion rules.
pub(crate) fn list(elements: Vec<ScalarValue>) -> Option<ScalarValue> {
    let first = elements.iter().find(|value| !value.is_null())?.data_type();
    let type_of_all = if elements.iter().all(|value| value.is_null() || value.data_type() == first) {
        first
    } else if elements.iter().all(|value| value.is_null() || value.data_type().is_numeric()) {
        DataType::Float64
    } else {
        return None;
    };
    let elements: Option<Vec<ScalarValue>> = elements.iter().map(|value| value.cast_to(&type_of_all).ok()).collect();
    Some(ScalarValue::List(ScalarValue::new_list_nullable(&elements?, &type_of_all)))
}
