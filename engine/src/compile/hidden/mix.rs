//! `mix`: a layer that pairs each row with a partner, and the calls that mix the two.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan, Projection, UserDefinedLogicalNodeCore as _, lit};
use forebay_operators::mix::{Mix, Part};
use forebay_sql::RowsNode;

use super::columns::{HIDDEN, RANDOM_KEY, hidden_column, hidden_columns};
use super::layers::Layers;
use crate::compile::changes::Change;
use crate::compile::pair::Pair;

/// The names of a partner's columns, with a number, and of its random key.
const PARTNER: &str = "__forebay_partner";
const PARTNER_KEY: &str = "__forebay_partner_key";

/// Mixes `image` and `label` of each row of `input` with those of its partner.
///
/// The subquery's columns are computed above the layer, once from the row's columns and once from its partner's.
pub(super) fn weave(
    layers: &mut Layers,
    node: &RowsNode,
    mix: &Mix,
    (image, label): (usize, usize),
    input: LogicalPlan,
) -> Result<LogicalPlan> {
    let (base, selected) = flattened(input)?;
    let columns = base.schema().fields().len() - HIDDEN.len();
    let own = base.schema().iter().take(columns).map(|(qualifier, field)| (qualifier.cloned(), Arc::clone(field)));
    // Mixed rows may be mixed again, each time with others.
    let layer = layers.len();
    let (partner_name, partner_key) = (|at: usize| format!("{PARTNER}_{layer}_{at}"), format!("{PARTNER_KEY}_{layer}"));
    let partner = base.schema().fields().iter().take(columns).enumerate();
    let partner = partner.map(|(at, field)| (None, Arc::new(field.as_ref().clone().with_name(partner_name(at)))));
    let key = (None, Arc::new(Field::new(&partner_key, DataType::UInt64, false)));
    let made = DFSchema::new_with_metadata(own.chain(partner).chain([key]).collect(), HashMap::new())?;
    let below = Arc::clone(base.schema());
    let paired = layers.cut(base, Change::Pair(mix.descriptor().name, Pair::new(columns, layer)), &made)?;
    let over_pair = |expr: &Expr, of_partner: bool| {
        expr.clone().transform_up(|expr| {
            let Expr::Column(column) = &expr else { return Ok(Transformed::no(expr)) };
            let at = below.index_of_column(column)?;
            let column = match below.field(at).name().as_str() {
                RANDOM_KEY if of_partner => Column::from_name(&partner_key),
                name if at >= columns => hidden_column(&paired, name)?,
                _ if of_partner => Column::from_name(partner_name(at)),
                _ => return Ok(Transformed::no(expr)),
            };
            Ok(Transformed::yes(Expr::Column(column)))
        })
    };
    let key = Expr::Column(hidden_column(&paired, RANDOM_KEY)?);
    let site = lit(layers.site(mix.descriptor().name));
    let mut exprs = Vec::with_capacity(selected.len());
    for (at, ((qualifier, field), own)) in node.schema().iter().zip(&selected).enumerate() {
        let part = if at == image { Some(Part::Image) } else { (at == label).then_some(Part::Label) };
        let mut expr = over_pair(own, false)?.data;
        if let Some(part) = part {
            let partner = over_pair(own, true)?.data;
            expr = mix.function(part).call(vec![expr, partner, key.clone(), site.clone()]);
        }
        exprs.push(expr.alias_qualified(qualifier.cloned(), field.name()));
    }
    exprs.extend(hidden_columns(&paired)?);
    Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(paired))?))
}

/// The plan below the projections at the top of `plan`, and the columns of `plan` as expressions over it.
fn flattened(plan: LogicalPlan) -> Result<(LogicalPlan, Vec<Expr>)> {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => flattened(Arc::unwrap_or_clone(alias.input)),
        LogicalPlan::Projection(projection) => {
            let schema = Arc::clone(projection.input.schema());
            let (mut base, mut below) = flattened(projection.input.as_ref().clone())?;
            // What is computed once below and used twice stays below: else it would multiply from projection to
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
