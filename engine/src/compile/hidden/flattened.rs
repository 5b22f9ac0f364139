//! A plan without the projections at its top.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan};

/// The plan below the projections at the top of `plan`, and the columns of `plan` as expressions over it.
pub(super) fn flattened(plan: LogicalPlan) -> Result<(LogicalPlan, Vec<Expr>)> {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => flattened(Arc::unwrap_or_clone(alias.input)),
        LogicalPlan::Projection(projection) => {
            let schema = Arc::clone(projection.input.schema());
            let (mut base, mut below) = flattened(projection.input.as_ref().clone())?;
            // Keep results that are used more than once below. Otherwise they would multiply from projection to
            // projection.
            let mut used = vec![0; below.len()];
            for expr in &projection.expr {
                expr.apply(|expr| {
                    if let Expr::Column(column) = expr {
                        used[schema.index_of_column(column)?] += 1;
                    }
                    Ok(TreeNodeRecursion::Continue)
                })?;
            }
            if below.iter().zip(used).any(|(expr, used)| used > 1 && !matches!(expr, Expr::Column(_))) {
                base = projection.input.as_ref().clone();
                below = schema.columns().into_iter().map(Expr::Column).collect();
            }
            let over_base = |expr: Expr| {
                expr.unalias().transform_down(|expr| match &expr {
                    Expr::Column(column) => {
                        let expr = below[schema.index_of_column(column)?].clone();
                        Ok(Transformed::new(expr, true, TreeNodeRecursion::Jump))
                    }
                    _ => Ok(Transformed::no(expr)),
                })
            };
            let exprs: Vec<Expr> =
                projection.expr.into_iter().map(|expr| over_base(expr).data()).collect::<Result<_>>()?;
            Ok((base, exprs))
        }
        other => {
            let columns = other.schema().columns().into_iter().map(Expr::Column).collect();
            Ok((other, columns))
        }
    }
}
