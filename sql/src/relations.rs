//! Calls of table operators in FROM, and samples of tables.
//!
//! [`calls`] has already converted named arguments and defaults to positional arguments, and has replaced a table's
//! name with a subquery. The result is a [`RowsNode`] of DataFusion's plan.

use std::sync::Arc;

use datafusion::common::{internal_err, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::logical_expr::{Extension, LogicalPlan, LogicalPlanBuilder};
use datafusion::scalar::ScalarValue;
use datafusion::sql::sqlparser::ast::{
    Expr as SqlExpr, FunctionArg, FunctionArgExpr, TableFactor, TableFunctionArgs, TableSampleKind,
};
use forebay_operators::RowOperator;

use crate::calls;
use crate::rows_node::RowsNode;
use crate::sample::{self, sample_percent, sample_seed};

/// The planner of table operators, for every session that plans pipelines.
pub fn relation_planner() -> Arc<dyn RelationPlanner> {
    Arc::new(TableOperators)
}

#[derive(Debug)]
struct TableOperators;

impl RelationPlanner for TableOperators {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        match relation {
            TableFactor::Table { name, args: Some(args), alias, sample, .. }
                if calls::table_operator(&name).is_some() =>
            {
                if sample.is_some() {
                    return plan_err!(
                        "TABLESAMPLE selects rows of a table by number, and {name} derives rows: sample its input"
                    );
                }
                let Some(operator) = calls::table_operator(&name) else { return internal_err!("looked at above") };
                let plan = plan_call(operator, args, context)?;
                Ok(RelationPlanning::Planned(Box::new(PlannedRelation { plan, alias })))
            }
            TableFactor::Table { sample: Some(kind), name, alias, args, with_hints, version, .. } => {
                let (TableSampleKind::BeforeTableAlias(sample) | TableSampleKind::AfterTableAlias(sample)) = kind;
                let (Some(percent), Some(seed)) = (sample_percent(&sample), sample_seed(&sample)) else {
                    return internal_err!("a TABLESAMPLE was not checked");
                };
                // Other clauses of a table are refused earlier.
                let table = TableFactor::Table {
                    name,
                    alias,
                    args,
                    with_hints,
                    version,
                    sample: None,
                    with_ordinality: false,
                    partitions: Vec::new(),
                    json_path: None,
                    index_hints: Vec::new(),
                };
                let table = context.plan(table)?;
                let plan = LogicalPlanBuilder::from(table).filter(sample::condition(percent, seed))?.build()?;
                Ok(RelationPlanning::Planned(Box::new(PlannedRelation { plan, alias: None })))
            }
            other => Ok(RelationPlanning::Original(Box::new(other))),
        }
    }
}

fn plan_call(
    operator: &'static dyn RowOperator,
    args: TableFunctionArgs,
    context: &mut dyn RelationPlannerContext,
) -> Result<LogicalPlan> {
    let name = operator.descriptor().name;
    let mut args = args.args.into_iter().map(|argument| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Ok(expr),
        _ => internal_err!("the arguments of {name} were not put into position"),
    });
    let Some(rows) = args.next().transpose()? else { return plan_err!("{name}: \"rows\" is missing") };
    let constants: Vec<ScalarValue> =
        args.map(|expr| Ok(calls::literal(&expr?).unwrap_or(ScalarValue::Null))).collect::<Result<_>>()?;
    let rows = match rows {
        SqlExpr::Subquery(subquery) => TableFactor::Derived { lateral: false, subquery, alias: None, sample: None },
        other => return internal_err!("{name} is called with `{other}`, which was not made a subquery"),
    };
    let node = RowsNode::try_new(operator, constants, context.plan(rows)?)?;
    Ok(LogicalPlan::Extension(Extension { node: Arc::new(node) }))
}
