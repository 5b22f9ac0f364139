//! From a logical plan to a [`Stage`]: checked, woven, cut in two, optimised and planned once.
//!
//! A feed stage runs as two physical plans over the same leaf. *Select* is what lies below the topmost filter and gives
//! the ids of the rows that pass; it is cheap and tells a window's row count, hence every offset. *Transform* is the whole
//! query without its filters, a one-to-one function of rows; it is expensive and runs only for the rows that a reader
//! is about to be handed.

mod checks;
mod hidden;
mod stage;
mod window_exec;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, cast};

pub(crate) use hidden::{FeedTable, RANDOM_KEY, SAMPLE_ID};
pub(crate) use stage::{BadRow, SourceRows, Stage, Transformed as TransformedRows};

use crate::error::{Error, Result};
use stage::LeafPlan;

/// The name of the one table that `plan` reads; refuses a plan that no feed stage can run.
pub(crate) fn driving_table(plan: &LogicalPlan) -> Result<String> {
    checks::driving_table(plan)
}

/// Plans the feed stage of `plan`, whose driving table has the columns of `source`.
pub(crate) async fn compile(plan: &LogicalPlan, source: &SchemaRef, state: &SessionState) -> Result<Stage> {
    checks::driving_table(plan)?;
    let woven = hidden::weave(plan)?;
    let select = match topmost_filter(&woven) {
        Some(filter) => {
            let id = Expr::Column(hidden::hidden_column(&filter, SAMPLE_ID)?);
            let ids = LogicalPlanBuilder::from(filter).project([id])?.build()?;
            Some(LeafPlan::new(state.create_physical_plan(&ids).await?, source)?)
        }
        None => None,
    };
    let transform = output(without_filters(woven)?, plan)?;
    let transform = LeafPlan::new(state.create_physical_plan(&transform).await?, source)?;
    Ok(Stage::new(select, transform, state.task_ctx()))
}

/// Every operator that `plan` calls, with its version: what the plan's text does not say about its results.
pub(crate) fn operator_versions(plan: &LogicalPlan) -> Result<BTreeMap<String, u32>> {
    let mut versions = BTreeMap::new();
    plan.apply(|node| {
        for expr in node.expressions() {
            expr.apply(|expr| {
                if let Expr::ScalarFunction(call) = expr
                    && let Some(operator) = forebay_operators::find(call.name())
                {
                    versions.insert(call.name().to_owned(), operator.descriptor().version);
                }
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(versions)
}

fn topmost_filter(plan: &LogicalPlan) -> Option<LogicalPlan> {
    match plan {
        LogicalPlan::Filter(_) => Some(plan.clone()),
        _ => plan.inputs().into_iter().find_map(topmost_filter),
    }
}

fn without_filters(plan: LogicalPlan) -> Result<LogicalPlan> {
    Ok(plan
        .transform_up(|node| {
            Ok(match node {
                LogicalPlan::Filter(filter) => Transformed::yes(Arc::unwrap_or_clone(filter.input)),
                other => Transformed::no(other),
            })
        })
        .data()?)
}

/// The columns the user asked for, in types that every Arrow reader has: dictionaries and views become plain arrays.
fn output(woven: LogicalPlan, asked: &LogicalPlan) -> Result<LogicalPlan> {
    let columns = asked.schema().iter().map(|(qualifier, field)| {
        let column = Expr::Column((qualifier, field).into());
        let plain = match field.data_type() {
            DataType::Dictionary(_, values) => cast(column, values.as_ref().clone()),
            DataType::Utf8View => cast(column, DataType::Utf8),
            DataType::BinaryView => cast(column, DataType::Binary),
            _ => column,
        };
        plain.alias(field.name())
    });
    let output = LogicalPlanBuilder::from(woven).project(columns)?.build()?;
    match output.schema().fields().iter().find(|field| holds_dictionary(field.data_type())) {
        Some(field) => {
            Err(Error::invalid(format!("column \"{}\" holds dictionaries inside a nested type", field.name()))
                .with_hint("cast it to a plain type in the SELECT"))
        }
        None => Ok(output),
    }
}

fn holds_dictionary(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(..) => true,
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            holds_dictionary(item.data_type())
        }
        DataType::Struct(fields) => fields.iter().any(|field| holds_dictionary(field.data_type())),
        DataType::Map(entries, _) => holds_dictionary(entries.data_type()),
        _ => false,
    }
}
