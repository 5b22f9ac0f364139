//! Refuses calls that would mix the numbers of masks, and has the sizes of masks checked: a mask that is cropped like
//! its image must be as large.
//!
//! [`KeyedCrop`] finds the calls and makes the check. The check belongs where the mask is decoded, which may be in a
//! subquery below the crops, and needs the image's file there. Mask and image must be decoded from columns, because a
//! check must not repeat a draw.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan, Projection};
use forebay_operators::{Decoding, KeyedCrop, image_of, smoothing};

/// A column of a node's output.
type Source = (*const LogicalPlan, usize);

/// The input of a crop that is decoded from a column of files.
struct Decoded<'a> {
    crop: KeyedCrop<'a>,
    decoding: Decoding,
    /// The node that decodes it, its call there, and the column of files.
    node: &'a LogicalPlan,
    call: &'a Expr,
    bytes: &'a Column,
    /// Where the files come from.
    source: Source,
}

/// Returns `plan` with the sizes of masks checked.
///
/// # Errors
/// An error for a call that would mix the numbers of a mask.
pub(super) fn with_checks(plan: &LogicalPlan) -> Result<LogicalPlan> {
    let mut nodes = Vec::new();
    collect(plan, &mut nodes);
    let mut found = Vec::new();
    for node in &nodes {
        let LogicalPlan::Projection(projection) = node else { continue };
        for expr in &projection.expr {
            check_smoothing(node, expr)?;
            for crop in KeyedCrop::all(expr)? {
                found.extend(decoded(node, crop)?);
            }
        }
    }
    let checks = checks(&found)?;
    if checks.is_empty() {
        return Ok(plan.clone());
    }
    let mut addresses = nodes.into_iter().map(std::ptr::from_ref);
    // Nodes come in the order of `collect`.
    let check = |node: LogicalPlan| {
        let replaced = addresses.next().and_then(|address| checks.get(&address));
        let (LogicalPlan::Projection(projection), Some(masks)) = (&node, replaced) else {
            return Ok(Transformed::no(node));
        };
        let exprs = projection.expr.iter().map(|expr| with_masks(expr.clone(), masks)).collect::<Result<_>>()?;
        let input = Arc::clone(&projection.input);
        Ok(Transformed::yes(LogicalPlan::Projection(Projection::try_new(exprs, input)?)))
    };
    plan.clone().transform_down(check).data()
}

fn check_smoothing(node: &LogicalPlan, expr: &Expr) -> Result<()> {
    expr.apply(|expr| {
        if let Expr::ScalarFunction(call) = expr
            && let Some(interpolation) = smoothing(call)
            && is_mask(node, expr)?
        {
            return plan_err!(
                "{} would mix the numbers of a mask with interpolation => '{interpolation}': give it interpolation => \
                 'nearest', or read a picture with decode_image",
                call.name()
            );
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// Whether an image in `node` is a mask, or a mask that other calls have moved.
fn is_mask(node: &LogicalPlan, image: &Expr) -> Result<bool> {
    let mut at = Some((node, image));
    while let Some((node, image)) = at {
        let LogicalPlan::Projection(projection) = node else { break };
        at = match (image, Decoding::of(image)) {
            (_, Some((decoding, _))) => return Ok(decoding == Decoding::Mask),
            (Expr::Alias(alias), _) => Some((node, &alias.expr)),
            (Expr::Column(column), _) => {
                computed(&projection.input, projection.input.schema().index_of_column(column)?)
            }
            (Expr::ScalarFunction(call), _) => image_of(call).map(|image| (node, image)),
            _ => None,
        };
    }
    Ok(false)
}

/// A node, then those below it.
fn collect<'a>(plan: &'a LogicalPlan, nodes: &mut Vec<&'a LogicalPlan>) {
    nodes.push(plan);
    plan.inputs().into_iter().for_each(|input| collect(input, nodes));
}

/// The masks to replace in the nodes that decode them, each with its check.
fn checks<'a>(found: &[Decoded<'a>]) -> Result<HashMap<*const LogicalPlan, HashMap<&'a Expr, Expr>>> {
    let mut checks: HashMap<_, HashMap<_, _>> = HashMap::new();
    for mask in found.iter().filter(|it| it.decoding == Decoding::Mask) {
        let mut images = found.iter().filter(|it| it.decoding == Decoding::Image && it.crop.is_like(&mask.crop));
        let Some(image) = images.next() else { continue };
        // With several images, the mask may be of any.
        if images.any(|other| other.source != image.source) {
            continue;
        }
        let [input] = mask.node.inputs()[..] else { continue };
        let columns = input.schema().columns();
        let of_image = columns.into_iter().enumerate().find(|(index, _)| source(input, *index) == image.source);
        if let Some((_, file)) = of_image {
            let bytes = Expr::Column(mask.bytes.clone());
            let checked = mask.crop.checked(mask.call, &bytes, &Expr::Column(file))?;
            let of_node: &mut HashMap<_, _> = checks.entry(std::ptr::from_ref(mask.node)).or_default();
            // Equal sizes have one ratio too.
            if !mask.crop.same_ratio || !of_node.contains_key(mask.call) {
                of_node.insert(mask.call, checked);
            }
        }
    }
    Ok(checks)
}

/// Where the input of a crop in `node` is decoded.
fn decoded<'a>(node: &'a LogicalPlan, crop: KeyedCrop<'a>) -> Result<Option<Decoded<'a>>> {
    let mut at = Some((node, crop.input));
    while let Some((node, expr)) = at {
        let LogicalPlan::Projection(projection) = node else { break };
        let index_of = |column: &Column| projection.input.schema().index_of_column(column);
        at = match (expr, Decoding::of(expr)) {
            (Expr::Alias(alias), _) => Some((node, &alias.expr)),
            (Expr::Column(column), _) => computed(&projection.input, index_of(column)?),
            (call, Some((decoding, Expr::Column(bytes)))) => {
                let source = source(&projection.input, index_of(bytes)?);
                return Ok(Some(Decoded { crop, decoding, node, call, bytes, source }));
            }
            _ => None,
        };
    }
    Ok(None)
}

/// The projection that computes a column of a node's output, and its expression there.
fn computed(node: &LogicalPlan, index: usize) -> Option<(&LogicalPlan, &Expr)> {
    match node {
        LogicalPlan::Projection(projection) => Some((node, &projection.expr[index])),
        _ => computed(same_columns(node)?, index),
    }
}

/// Where the values of a column of a node's output come from.
fn source(node: &LogicalPlan, index: usize) -> Source {
    if let LogicalPlan::Projection(projection) = node
        && let Expr::Column(column) = projection.expr[index].clone().unalias()
        && let Ok(below) = projection.input.schema().index_of_column(&column)
    {
        return source(&projection.input, below);
    }
    same_columns(node).map_or((std::ptr::from_ref(node), index), |input| source(input, index))
}

/// The input of a node that has its columns, in its order.
fn same_columns(node: &LogicalPlan) -> Option<&LogicalPlan> {
    match node {
        LogicalPlan::SubqueryAlias(alias) => Some(&alias.input),
        LogicalPlan::Filter(filter) => Some(&filter.input),
        LogicalPlan::Limit(limit) => Some(&limit.input),
        _ => None,
    }
}

fn with_masks(expr: Expr, masks: &HashMap<&Expr, Expr>) -> Result<Expr> {
    let name = NamePreserver::new_for_projection().save(&expr);
    let replaced = expr.transform_down(|expr| match masks.get(&expr) {
        Some(checked) => Ok(Transformed::new(checked.clone(), true, TreeNodeRecursion::Jump)),
        None => Ok(Transformed::no(expr)),
    });
    Ok(name.restore(replaced.data()?))
}
