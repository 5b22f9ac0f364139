//! Has the sizes of masks checked: a mask that is cropped by the key of its image's crop must be as large as the image.
//!
//! [`CroppedPair`] finds the calls and makes the check. The check belongs where the mask is decoded, which may be in a
//! subquery below the crops.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan, Projection};
use forebay_operators::CroppedPair;

/// Returns `plan` with the sizes of masks checked.
pub(super) fn with_checks(plan: &LogicalPlan) -> Result<LogicalPlan> {
    below(plan, Vec::new())
}

/// Checks the masks in `plan`. `pairs` are columns of its output, by their indices.
fn below(plan: &LogicalPlan, pairs: Vec<CroppedPair<usize>>) -> Result<LogicalPlan> {
    let LogicalPlan::Projection(projection) = plan else {
        // These nodes have the columns of their input, in its order.
        let keeps_columns =
            matches!(plan, LogicalPlan::SubqueryAlias(_) | LogicalPlan::Filter(_) | LogicalPlan::Limit(_));
        let mut pairs = if keeps_columns { pairs } else { Vec::new() };
        let children = |input| Ok(Transformed::yes(below(&input, std::mem::take(&mut pairs))?));
        return plan.clone().map_children(children).data();
    };
    let of_output =
        pairs.iter().map(|pair| pair.with_inputs(pair.inputs.map(|index| projection.expr[index].clone().unalias())));
    let mut exprs = projection.expr.clone();
    let mut of_input = Vec::new();
    for pair in of_output.chain(CroppedPair::all(&projection.expr)?) {
        if let [Expr::Column(one), Expr::Column(other)] = &pair.inputs {
            let schema = projection.input.schema();
            of_input.push(pair.with_inputs([schema.index_of_column(one)?, schema.index_of_column(other)?]));
        } else if let Some((mask, checked)) = pair.checked_mask() {
            exprs = exprs.into_iter().map(|expr| replaced(expr, mask, &checked)).collect::<Result<_>>()?;
        }
    }
    let input = below(&projection.input, of_input)?;
    Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(input))?))
}

/// Replaces `mask` in an output expression, which keeps its name.
fn replaced(expr: Expr, mask: &Expr, checked: &Expr) -> Result<Expr> {
    let name = NamePreserver::new_for_projection().save(&expr);
    let replaced = expr.transform_down(|expr| match &expr == mask {
        true => Ok(Transformed::new(checked.clone(), true, TreeNodeRecursion::Jump)),
        false => Ok(Transformed::no(expr)),
    });
    Ok(name.restore(replaced.data()?))
}
