//! Joins: a layer that looks up rows, with the keys of both sides.

use std::sync::Arc;

use datafusion::common::plan_datafusion_err;
use datafusion::error::Result;
use datafusion::logical_expr::{self as plan, Expr, ExprSchemable, Filter, LogicalPlan, Projection};
use forebay_operators::float_key;

use super::layers::Layers;
use crate::compile::change::Change;
use crate::compile::checks;
use crate::compile::hidden_columns::hidden_columns;
use crate::compile::join::Condition;
use crate::compile::lookup::{Join, Right};

/// The prefix of the columns that hold join keys; a number follows.
const JOIN_KEY: &str = "__forebay_key";

/// Joins `input` with the right side. The right side is woven separately, since its rows are not samples. The layer's
/// input is the left side with its keys.
pub(super) fn weave(
    layers: &mut Layers,
    join: &plan::Join,
    condition: Condition,
    input: LogicalPlan,
    (mut right_layers, right): (Layers, LogicalPlan),
) -> Result<LogicalPlan> {
    let Condition { kind, keys, right: of_right, residual } = condition;
    let columns = join.left.schema().columns();
    let left = columns.len();
    let mut exprs: Vec<Expr> = columns.into_iter().map(Expr::Column).collect();
    let mut plan = right;
    if let Some(condition) = of_right {
        plan = LogicalPlan::Filter(Filter::try_new(right_layers.expr(condition, &plan)?, Arc::new(plan))?);
    }
    let mut right_keys = Vec::with_capacity(keys.len());
    for (index, (left, right)) in keys.into_iter().enumerate() {
        let name = format!("{JOIN_KEY}_{index}");
        exprs.push(of_bytes(layers.expr(left, &input)?, &input)?.alias(&name));
        right_keys.push(of_bytes(right_layers.expr(right, &plan)?, &plan)?.alias(&name));
    }
    exprs.extend(hidden_columns(&input)?);
    let input = LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(input))?);
    let right = Right {
        table: checks::driving_table(&join.right).map_err(|error| plan_datafusion_err!("{}", error.message()))?,
        limit: checks::limit(&join.right).map_err(|error| plan_datafusion_err!("{}", error.message()))?,
        plan,
        columns: join.right.schema().columns().into_iter().map(Expr::Column).collect(),
        keys: right_keys,
    };
    let change = Change::Join(Box::new(Join { kind, left, keys: right.keys.len(), right }));
    let joined = layers.cut(input, change, &join.schema)?;
    match residual {
        None => Ok(joined),
        Some(condition) => {
            let condition = layers.expr(condition, &joined)?;
            Ok(LogicalPlan::Filter(Filter::try_new(condition, Arc::new(joined))?))
        }
    }
}

/// A key whose bytes are equal if its values are: they are compared.
fn of_bytes(key: Expr, input: &LogicalPlan) -> Result<Expr> {
    Ok(if key.get_type(input.schema())?.is_floating() { float_key(key) } else { key })
}
