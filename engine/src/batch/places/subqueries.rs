//! Subqueries in expressions.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison};
use datafusion::logical_expr::{Distinct, Expr, LogicalPlan, Subquery};

use super::Places;
use super::calls::{Class, class};

impl Places {
    pub(super) fn exprs(&mut self, exprs: Vec<Expr>) -> Result<Vec<Expr>> {
        exprs.into_iter().map(|expr| self.expr(expr)).collect()
    }

    /// An expression whose subqueries have determined rows.
    pub(super) fn expr(&mut self, expr: Expr) -> Result<Expr> {
        expr.transform_up(|expr| {
            Ok(Transformed::yes(match expr {
                Expr::ScalarSubquery(subquery) => Expr::ScalarSubquery(self.subquery(subquery)?),
                Expr::Exists(Exists { subquery, negated }) => {
                    Expr::Exists(Exists::new(self.subquery(subquery)?, negated))
                }
                Expr::InSubquery(InSubquery { expr, subquery, negated }) => {
                    Expr::InSubquery(InSubquery::new(expr, self.subquery(subquery)?, negated))
                }
                Expr::SetComparison(SetComparison { expr, subquery, op, quantifier }) => {
                    Expr::SetComparison(SetComparison::new(expr, self.subquery(subquery)?, op, quantifier))
                }
                other => return Ok(Transformed::no(other)),
            }))
        })
        .data()
    }

    /// The order of a subquery's rows has no meaning. It changes only if which rows it has depends on an order within:
    /// DataFusion can rewrite few subqueries as joins.
    fn subquery(&mut self, subquery: Subquery) -> Result<Subquery> {
        if !uses_order(&subquery.subquery)? {
            return Ok(subquery);
        }
        let schema = Arc::clone(subquery.subquery.schema());
        let plan = self.place(subquery.subquery.as_ref().clone())?.only(&schema)?;
        Ok(subquery.with_plan(Arc::new(plan)))
    }
}

/// Whether the rows of a plan depend on the order of rows within it.
fn uses_order(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        found |= match node {
            LogicalPlan::Limit(limit) => limit.input.all_out_ref_exprs().is_empty(),
            LogicalPlan::Sort(sort) => sort.fetch.is_some(),
            LogicalPlan::Distinct(Distinct::On(_)) | LogicalPlan::Window(_) => true,
            LogicalPlan::Aggregate(aggregate) => aggregate.aggr_expr.iter().any(is_not_free),
            _ => false,
        };
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// Whether an expression calls an aggregate whose result may depend on the order of rows.
fn is_not_free(expr: &Expr) -> bool {
    let is_it = |expr: &Expr| matches!(expr, Expr::AggregateFunction(call) if class(call.func.name()) != Class::Free);
    expr.exists(|expr| Ok(is_it(expr))).unwrap_or(true)
}
