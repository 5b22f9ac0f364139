//! Computes what a stage only passes on above it.
//!
//! `SELECT decode_image(bytes) … ORDER BY label` needs all labels and no pixel. So the stage keeps the files, which are
//! a tenth of the pixels, and the feed decodes them. What becomes a list or a tensor, and what draws from the feed's
//! seed, moves from below a node that chooses or orders rows to above it.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema};
use datafusion::error::Result;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, ExprSchemable, Filter, LogicalPlan, Projection, lit};

use super::cut::call_of_feed;

/// `plan` with a projection at its top that computes what the nodes below only pass on; `plan` itself if there is
/// nothing to move.
pub(super) fn lifted(plan: LogicalPlan) -> Result<LogicalPlan> {
    let Split { base, columns } = split(plan.clone())?;
    if columns.iter().all(|expr| !is_payload(expr, &base)) {
        return Ok(plan);
    }
    let named = columns
        .into_iter()
        .zip(plan.schema().iter())
        .map(|(expr, (qualifier, field))| expr.alias_qualified(qualifier.cloned(), field.name()));
    Ok(LogicalPlan::Projection(Projection::try_new(named.collect(), Arc::new(base))?))
}

/// A plan as expressions over another.
struct Split {
    base: LogicalPlan,
    /// The columns of the plan, as expressions over `base`.
    columns: Vec<Expr>,
}

impl Split {
    fn whole(plan: LogicalPlan) -> Self {
        let columns = plan.schema().columns().into_iter().map(Expr::Column).collect();
        Self { base: plan, columns }
    }
}

fn split(plan: LogicalPlan) -> Result<Split> {
    match plan {
        LogicalPlan::Projection(projection) => {
            let schema = Arc::clone(projection.input.schema());
            let mut below = split(projection.input.as_ref().clone())?;
            // What is used more than once is computed once: a draw would be two, and others would multiply.
            let mut used = vec![0; below.columns.len()];
            for column in projection.expr.iter().flat_map(columns_of) {
                used[schema.index_of_column(&column)?] += 1;
            }
            let is_repeated = |at: usize| used[at] > 1 && !matches!(below.columns[at], Expr::Column(_));
            let mut repeated = (0..used.len()).filter(|&at| is_repeated(at)).peekable();
            if repeated.peek().is_some() {
                if repeated.any(|at| is_payload(&below.columns[at], &below.base)) {
                    return Ok(Split::whole(LogicalPlan::Projection(projection)));
                }
                below = without_payload(below, &schema)?;
            }
            let columns = projection
                .expr
                .into_iter()
                .map(|expr| over(expr.unalias(), &|column| Ok(below.columns[schema.index_of_column(column)?].clone())));
            Ok(Split { columns: columns.collect::<Result<_>>()?, base: below.base })
        }
        LogicalPlan::SubqueryAlias(alias) => split(Arc::unwrap_or_clone(alias.input)),
        LogicalPlan::Filter(_) | LogicalPlan::Sort(_) | LogicalPlan::Limit(_) | LogicalPlan::Window(_) => {
            let input = plan.inputs()[0].clone();
            let schema = Arc::clone(input.schema());
            let below = split(input)?;
            if below.columns.iter().all(|expr| !is_payload(expr, &below.base)) {
                return Ok(Split::whole(plan));
            }
            let Split { base: lower, mut columns } = without_payload(below, &schema)?;
            let of_input = |column: &Column| Ok(columns[schema.index_of_column(column)?].clone());
            let names = NamePreserver::new(&plan);
            let exprs = plan.expressions().into_iter().map(|expr| {
                let name = names.save(&expr);
                Ok(name.restore(over(expr, &of_input)?))
            });
            let node = plan.with_new_exprs(exprs.collect::<Result<_>>()?, vec![lower])?;
            // A window function's result follows the columns of the input.
            let added = node.schema().columns().into_iter().skip(node.inputs()[0].schema().fields().len());
            columns.extend(added.map(Expr::Column));
            Ok(Split { base: node, columns })
        }
        other => Ok(Split::whole(other)),
    }
}

/// Whether a filter reads what only a feed can compute, from however far below.
pub(super) fn reads_draws(filter: &Filter) -> Result<bool> {
    let schema = filter.input.schema();
    let below = split(filter.input.as_ref().clone())?;
    let predicate =
        over(filter.predicate.clone(), &|column| Ok(below.columns[schema.index_of_column(column)?].clone()))?;
    Ok(call_of_feed(&predicate).is_some())
}

/// The columns of an expression, each as often as it occurs.
fn columns_of(expr: &Expr) -> Vec<Column> {
    let mut columns = Vec::new();
    let _ = expr.apply(|expr| {
        if let Expr::Column(column) = expr {
            columns.push(column.clone());
        }
        Ok(TreeNodeRecursion::Continue)
    });
    columns
}

/// The same columns over a projection that computes all but the payload, and keeps what that is computed from. `schema`
/// names the columns.
fn without_payload(Split { base, columns }: Split, schema: &DFSchema) -> Result<Split> {
    let is_kept_as_it_is = |expr: &Expr| matches!(expr, Expr::Column(_)) || is_payload(expr, &base);
    let read = columns.iter().filter(|expr| is_kept_as_it_is(expr)).flat_map(|expr| expr.column_refs());
    let read: HashSet<&Column> = read.collect();
    // In the order of the base.
    let kept = base.schema().columns().into_iter().filter(|column| read.contains(column));
    let mut exprs: Vec<Expr> = kept.map(Expr::Column).collect();
    let mut taken: HashSet<String> = read.iter().map(|column| column.name.clone()).collect();
    let mut outer = Vec::with_capacity(columns.len());
    for (index, expr) in columns.iter().enumerate() {
        if is_kept_as_it_is(expr) {
            outer.push(expr.clone());
            continue;
        }
        let mut name = schema.field(index).name().clone();
        while !taken.insert(name.clone()) {
            name.push_str("_2");
        }
        exprs.push(expr.clone().alias(&name));
        outer.push(Expr::Column(Column::new_unqualified(name)));
    }
    if exprs.is_empty() {
        exprs.push(lit(true).alias("row"));
    }
    let base = LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(base))?);
    Ok(Split { base, columns: outer })
}

/// `expr` with other expressions for its columns.
fn over(expr: Expr, of_column: &dyn Fn(&Column) -> Result<Expr>) -> Result<Expr> {
    expr.transform_down(|expr| match &expr {
        Expr::Column(column) => Ok(Transformed::new(of_column(column)?, true, TreeNodeRecursion::Jump)),
        _ => Ok(Transformed::no(expr)),
    })
    .data()
}

/// Whether `expr` is better computed above a node that passes it on.
fn is_payload(expr: &Expr, base: &LogicalPlan) -> bool {
    let is_large = |data_type| {
        matches!(
            data_type,
            DataType::List(_)
                | DataType::LargeList(_)
                | DataType::ListView(_)
                | DataType::LargeListView(_)
                | DataType::FixedSizeList(..)
                | DataType::Struct(_)
        )
    };
    !matches!(expr, Expr::Column(_))
        && (call_of_feed(expr).is_some() || expr.get_type(base.schema()).is_ok_and(is_large))
}
