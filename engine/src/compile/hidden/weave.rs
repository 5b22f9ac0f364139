//! Weaves the hidden columns into a plan, node by node.

use std::sync::Arc;

use datafusion::common::plan_err;
use datafusion::datasource::provider_as_source;
use datafusion::error::Result;
use datafusion::logical_expr::{Filter, LogicalPlan, LogicalPlanBuilder, Projection, SubqueryAlias};
use forebay_protocol::CallOrder;
use forebay_sql::RowsNode;

use super::layers::{Layers, Woven};
use super::table::FeedTable;
use super::{join, masks, table_call};
use crate::compile::change::Change;
use crate::compile::hidden_columns::{HIDDEN, hidden_columns};
use crate::compile::join::Condition;

/// Weaves the hidden columns into `plan`, whose output then includes them. Calls run in this order.
pub(crate) fn weave(plan: &LogicalPlan, order: CallOrder) -> Result<Woven> {
    let mut layers = Layers::new(order);
    let top = weave_node(&mut layers, &masks::with_checks(plan)?)?;
    layers.woven(top)
}

fn weave_node(layers: &mut Layers, plan: &LogicalPlan) -> Result<LogicalPlan> {
    match plan {
        LogicalPlan::TableScan(scan) => {
            let widened = FeedTable::widened(scan.table_name.table(), &scan.source.schema());
            LogicalPlanBuilder::scan(scan.table_name.clone(), provider_as_source(Arc::new(widened)), None)?.build()
        }
        LogicalPlan::Projection(projection) => {
            let input = weave_node(layers, &projection.input)?;
            if let Some(taken) = projection.schema.field_names().iter().find(|name| {
                let name = name.rsplit('.').next().unwrap_or(name);
                HIDDEN.contains(&name)
            }) {
                return plan_err!("column \"{taken}\" has a name that is reserved by Forebay");
            }
            let mut exprs =
                projection.expr.iter().map(|expr| layers.expr(expr.clone(), &input)).collect::<Result<Vec<_>>>()?;
            exprs.extend(hidden_columns(&input)?);
            Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(input))?))
        }
        LogicalPlan::Filter(filter) => {
            let input = weave_node(layers, &filter.input)?;
            let predicate = layers.expr(filter.predicate.clone(), &input)?;
            Ok(LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(input))?))
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let input = weave_node(layers, &alias.input)?;
            Ok(LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(input), alias.alias.clone())?))
        }
        // The feed's row ranges apply the limit: see `limit`.
        LogicalPlan::Limit(limit) => weave_node(layers, &limit.input),
        LogicalPlan::Unnest(unnest) => {
            let input = weave_node(layers, &unnest.input)?;
            layers.cut(input, Change::unnest(unnest)?, &unnest.schema)
        }
        LogicalPlan::Join(node) => {
            let condition = Condition::of(node)?;
            let left = weave_node(layers, &node.left)?;
            // A table is joined by what its own calls give, which all feeds of a pipeline share.
            let mut right_layers = Layers::new(CallOrder::Exact);
            let right = weave_node(&mut right_layers, &node.right)?;
            join::weave(layers, node, condition, left, (right_layers, right))
        }
        LogicalPlan::Extension(extension) if extension.node.as_any().is::<RowsNode>() => {
            let node = extension.node.as_any().downcast_ref::<RowsNode>().expect("looked at above");
            let input = weave_node(layers, node.input())?;
            table_call::weave(layers, node, input)
        }
        other => plan_err!("{} cannot run in a feed stage", other.display()),
    }
}
