//! Arithmetic that fails where DataFusion's would wrap around.
//!
//! The rule that replaces the operators runs before the optimizer's other rules, which compute constants. It is not a
//! part of the plan that [`plan()`](crate::plan()) returns: the names of columns and the identity of a query are those
//! of the operators that the user wrote. Constants are computed here a first time, because the optimizer keeps those
//! that fail, and then each row would be a bad row.

use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::Schema;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::execution_props::ExecutionProps;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::OptimizerConfig;
use datafusion::optimizer::optimizer::{ApplyOrder, Optimizer, OptimizerRule};
use datafusion::physical_expr::create_physical_expr;
use forebay_operators::{checked_arithmetic, checked_sum};

use crate::float_keys::FloatKeys;

/// The rules of the optimizer, for every session that runs pipelines: DataFusion's, after those that check arithmetic
/// and make keys of floats. Pass them to `SessionStateBuilder::with_optimizer_rules`.
pub fn optimizer_rules() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    let mut rules = Optimizer::new().rules;
    rules.splice(0..0, [Arc::new(CheckedArithmetic) as Arc<dyn OptimizerRule + Send + Sync>, Arc::new(FloatKeys)]);
    rules
}

/// The columns that the expressions of a node read.
pub(crate) fn read_schema(plan: &LogicalPlan) -> DFSchema {
    match plan.inputs().as_slice() {
        [] => plan.schema().as_ref().clone(),
        inputs => merge_schema(inputs),
    }
}

#[derive(Debug)]
struct CheckedArithmetic;

impl OptimizerRule for CheckedArithmetic {
    fn name(&self) -> &str {
        "checked_arithmetic"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let schema = read_schema(&plan);
        let names = NamePreserver::new(&plan);
        let checked = |expr: Expr| {
            let name = names.save(&expr);
            let checked = checked_arithmetic(expr, &schema)?.transform_data(|expr| checked_sum(expr, &schema))?;
            Ok(checked.update_data(|expr| name.restore(expr)))
        };
        plan.map_expressions(|expr| match expr {
            // Its parts have names, and it must stay what it is.
            Expr::GroupingSet(_) => expr.map_children(checked),
            expr => checked(expr),
        })
    }
}

/// Computes the constants of `plan`, whose types are resolved, to find those that cannot be computed: sums, casts and
/// the like of literals. Constants that a condition may skip are left to their rows.
pub(crate) fn check_constants(plan: &LogicalPlan) -> Result<()> {
    let (nothing, context) = (DFSchema::empty(), PhysicalPlanningContext::default());
    let row = RecordBatchOptions::new().with_row_count(Some(1));
    let row = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &row)?;
    plan.apply_with_subqueries(|node| {
        for expr in node.expressions() {
            expr.apply(|expr| match expr {
                Expr::Case(_) => Ok(TreeNodeRecursion::Jump),
                Expr::ScalarFunction(call) if call.func.short_circuits() => Ok(TreeNodeRecursion::Jump),
                Expr::BinaryExpr(_) | Expr::Negative(_) | Expr::Cast(_) if is_constant(expr)? => {
                    let expr = checked_arithmetic(expr.clone(), &nothing)?.data;
                    create_physical_expr(&expr, &nothing, &ExecutionProps::new(), &context)?.evaluate(&row)?;
                    Ok(TreeNodeRecursion::Jump)
                }
                _ => Ok(TreeNodeRecursion::Continue),
            })?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// Whether an expression consists of literals, operators and casts.
fn is_constant(expr: &Expr) -> Result<bool> {
    let is_other =
        |expr: &Expr| Ok(!matches!(expr, Expr::Literal(..) | Expr::BinaryExpr(_) | Expr::Negative(_) | Expr::Cast(_)));
    Ok(!expr.exists(is_other)?)
}
