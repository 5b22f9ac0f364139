//! Splits a query into its filters and the query without them.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::execution::SessionState;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, Filter, LogicalPlan, LogicalPlanBuilder};

use super::hidden_columns::{SAMPLE_ID, hidden_column};
use super::leaf_plan::LeafPlan;
use crate::error::Result;

/// The topmost filter of `plan` and everything below it.
pub(super) fn topmost_filter(plan: &LogicalPlan) -> Option<LogicalPlan> {
    match plan {
        LogicalPlan::Filter(_) => Some(plan.clone()),
        _ => plan.inputs().into_iter().find_map(topmost_filter),
    }
}

/// `plan` without its filters.
pub(super) fn unfiltered(plan: LogicalPlan) -> datafusion::error::Result<LogicalPlan> {
    plan.transform_up(|node| {
        Ok(match node {
            LogicalPlan::Filter(filter) => Transformed::yes(Arc::unwrap_or_clone(filter.input)),
            other => Transformed::no(other),
        })
    })
    .data()
}

/// The ids of the rows that `plan` outputs.
pub(super) fn ids(plan: LogicalPlan) -> Result<LogicalPlan> {
    let id = Expr::Column(hidden_column(&plan, SAMPLE_ID)?);
    Ok(LogicalPlanBuilder::from(plan).project([id])?.build()?)
}

/// Plans each filter condition at any level of `plan` separately.
pub(super) async fn conjuncts(plan: &LogicalPlan, source: &SchemaRef, state: &SessionState) -> Result<Vec<LeafPlan>> {
    let mut conjuncts = Vec::new();
    for conjunct in conjuncts_of(plan)? {
        conjuncts.push(LeafPlan::new(state.create_physical_plan(&ids(conjunct)?).await?, source)?);
    }
    Ok(conjuncts)
}

/// Each filter condition at any level of `plan`, as a separate filter.
fn conjuncts_of(plan: &LogicalPlan) -> Result<Vec<LogicalPlan>> {
    let mut conjuncts = Vec::new();
    plan.apply(|node| {
        if let LogicalPlan::Filter(filter) = node {
            let input = Arc::new(unfiltered(filter.input.as_ref().clone())?);
            for condition in split_conjunction(&filter.predicate) {
                conjuncts.push(LogicalPlan::Filter(Filter::try_new(condition.clone(), Arc::clone(&input))?));
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(conjuncts)
}
