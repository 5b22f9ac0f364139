//! Casts of times with a time zone to times without: both have the same date and the same time of day.
//!
//! Arrow's cast gives the time of day in UTC, although its cast to a date gives the date in the time zone, so that the
//! date of the one would not be the other. Postgres and DuckDB give the local time, as this rule does.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::functions::datetime::to_local_time;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Cast, Expr, ExprSchemable, LogicalPlan, TryCast};
use datafusion::optimizer::AnalyzerRule;

/// The rule that gives casts the local time, for every session that runs pipelines. Pass it to
/// `SessionStateBuilder::with_analyzer_rule`.
pub fn analyzer_rule() -> Arc<dyn AnalyzerRule + Send + Sync> {
    Arc::new(LocalTime)
}

#[derive(Debug)]
struct LocalTime;

impl AnalyzerRule for LocalTime {
    fn name(&self) -> &str {
        "local_time"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|plan| {
            let schema = match plan.inputs().as_slice() {
                [] => plan.schema().as_ref().clone(),
                inputs => merge_schema(inputs),
            };
            let names = NamePreserver::new(&plan);
            plan.map_expressions(|expr| {
                let name = names.save(&expr);
                let rewritten = expr.transform_up(|expr| match &expr {
                    Expr::Cast(Cast { expr: of, field }) | Expr::TryCast(TryCast { expr: of, field })
                        if matches!(field.data_type(), DataType::Timestamp(_, None))
                            && matches!(of.get_type(&schema)?, DataType::Timestamp(_, Some(_))) =>
                    {
                        let (of, field) = (to_local_time().call(vec![of.as_ref().clone()]), Arc::clone(field));
                        let of = Box::new(of);
                        Ok(Transformed::yes(match expr {
                            Expr::Cast(_) => Expr::Cast(Cast { expr: of, field }),
                            _ => Expr::TryCast(TryCast { expr: of, field }),
                        }))
                    }
                    _ => Ok(Transformed::no(expr)),
                })?;
                Ok(rewritten.update_data(|expr| name.restore(expr)))
            })
        })
        .data()
    }
}
