//! What aggregates that replace those of DataFusion have in common.

use std::sync::Arc;

use arrow::array::{Array, ArrowPrimitiveType, BooleanArray, PrimitiveArray};
use arrow::buffer::NullBuffer;
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::{AggregateUDF, Expr, WindowFunctionDefinition};

/// Replaces aggregates in `expr`, with and without OVER. `replacement` gives the function for one that is called with
/// these arguments, or `None` to leave it.
///
/// # Errors
/// Those of `replacement`.
pub fn replace_aggregates(
    expr: Expr,
    replacement: impl Fn(&AggregateUDF, &[Expr]) -> Result<Option<AggregateUDF>>,
) -> Result<Transformed<Expr>> {
    expr.transform_up(|mut expr| {
        let replacement = match &expr {
            Expr::AggregateFunction(call) => replacement(&call.func, &call.params.args)?,
            Expr::WindowFunction(call) => match &call.fun {
                WindowFunctionDefinition::AggregateUDF(called) => replacement(called, &call.params.args)?,
                WindowFunctionDefinition::WindowUDF(_) => None,
            },
            _ => None,
        };
        let Some(function) = replacement.map(Arc::new) else { return Ok(Transformed::no(expr)) };
        match &mut expr {
            Expr::AggregateFunction(call) => call.func = function,
            Expr::WindowFunction(call) => call.fun = WindowFunctionDefinition::AggregateUDF(function),
            _ => {}
        }
        Ok(Transformed::yes(expr))
    })
}

/// The rows that have a value and pass the filter, or `None` for all.
pub fn aggregated_rows(values: &dyn Array, filter: Option<&BooleanArray>) -> Option<NullBuffer> {
    let passed = filter.map(|filter| match filter.nulls() {
        Some(nulls) => NullBuffer::new(filter.values() & nulls.inner()),
        None => NullBuffer::new(filter.values().clone()),
    });
    NullBuffer::union(values.nulls(), passed.as_ref())
}

/// Calls a function with each value that is not null.
pub fn for_each_value<T: ArrowPrimitiveType>(values: &PrimitiveArray<T>, mut call: impl FnMut(T::Native)) {
    match values.nulls() {
        None => values.values().iter().for_each(|value| call(*value)),
        Some(nulls) => nulls.valid_indices().for_each(|row| call(values.value(row))),
    }
}
