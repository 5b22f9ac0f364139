//! The nodes that a feed stage accepts: row-local and window-local nodes over one table, lookups in other tables, and
//! pure functions.
//!
//! The `sql` crate refuses most other plans earlier, with the place in the text. This module also checks plans that
//! were not created from SQL.

use std::sync::Arc;

use datafusion::common::DFSchema;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, ExprSchemable, FetchType, LogicalPlan, SkipType, Volatility};
use forebay_arrays::TensorType;
use forebay_sql::RowsNode;

use super::{join, unnest};
use crate::error::{Error, Result};

/// Returns the driving table's name. Refuses a plan that cannot run window by window, with the reason.
pub(crate) fn driving_table(plan: &LogicalPlan) -> Result<String> {
    let mut node = plan;
    loop {
        let refusal = match node {
            LogicalPlan::TableScan(scan) => return Ok(scan.table_name.table().to_owned()),
            LogicalPlan::Limit(_) => limit_of(node).err(),
            LogicalPlan::Unnest(unnest) => unnest::refusal(unnest),
            LogicalPlan::Extension(extension) if extension.node.as_any().is::<RowsNode>() => None,
            LogicalPlan::Join(join) => impure_of(node).or_else(|| join::refusal(join)).or_else(|| {
                // `refusal` checks the shape of the right side; this checks the functions it calls.
                driving_table(&join.right).err()
            }),
            LogicalPlan::Projection(_) | LogicalPlan::Filter(_) | LogicalPlan::SubqueryAlias(_) => impure_of(node),
            other => Some(refuse_node(other)),
        };
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        node = below(node).ok_or_else(|| {
            Error::invalid("a pipeline needs a table: a feed runs over the rows of one")
                .with_hint("add FROM, naming a table made by CREATE EXTERNAL TABLE")
        })?;
    }
}

/// The input of `node`. For a join, the left side, whose rows become samples.
fn below(node: &LogicalPlan) -> Option<&LogicalPlan> {
    node.inputs().into_iter().next()
}

/// Why the expressions of `node` cannot be computed row by row.
fn impure_of(node: &LogicalPlan) -> Option<Error> {
    let input = below(node).map(|input| Arc::clone(input.schema()));
    let forgets = |expr: &Expr| input.as_ref().and_then(|schema| forgets_tensor(expr, schema));
    node.expressions().iter().find_map(|expr| impure(expr).or_else(|| forgets(expr)))
}

/// The number of leading rows of the driving table that `plan` reads, or `None` if it reads all.
pub(crate) fn limit(plan: &LogicalPlan) -> Result<Option<u64>> {
    let mut least: Option<u64> = None;
    let mut node = Some(plan);
    while let Some(here) = node {
        if matches!(here, LogicalPlan::Limit(_)) {
            let limit = limit_of(here)?;
            least = Some(least.map_or(limit, |least| least.min(limit)));
        }
        node = below(here);
    }
    Ok(least)
}

/// Whether `node` is a LIMIT whose rows are the leading rows of a table.
pub(super) fn is_limit_of_table(node: &LogicalPlan) -> bool {
    limit_of(node).is_ok()
}

/// The row count of a LIMIT directly over a table and its columns.
fn limit_of(node: &LogicalPlan) -> Result<u64> {
    let refuse = || {
        Error::invalid("LIMIT counts rows over the whole dataset, and a feed computes one window at a time").with_hint(
            "take the first rows of a table: `FROM (SELECT * FROM table LIMIT 1000)`, and the rest around it",
        )
    };
    let LogicalPlan::Limit(limit) = node else { return Err(refuse()) };
    let rows = match (limit.get_skip_type()?, limit.get_fetch_type()?) {
        (SkipType::Literal(0), FetchType::Literal(Some(rows))) if rows > 0 => rows as u64,
        _ => return Err(refuse()),
    };
    let mut below = limit.input.as_ref();
    loop {
        below = match below {
            LogicalPlan::TableScan(_) => return Ok(rows),
            LogicalPlan::Projection(projection) => projection.input.as_ref(),
            LogicalPlan::SubqueryAlias(alias) => alias.input.as_ref(),
            LogicalPlan::Limit(limit) => limit.input.as_ref(),
            _ => return Err(refuse()),
        }
    }
}

fn refuse_node(node: &LogicalPlan) -> Error {
    let (what, why) = match node {
        LogicalPlan::Aggregate(_) => ("an aggregate", "needs every row of the dataset"),
        LogicalPlan::Distinct(_) => ("DISTINCT", "needs every row of the dataset"),
        LogicalPlan::Sort(_) => ("ORDER BY", "needs every row of the dataset; order comes from the feed's seed"),
        LogicalPlan::Union(_) => ("UNION", "needs a second table"),
        LogicalPlan::Window(_) => ("a window function", "reads other rows of the dataset"),
        LogicalPlan::EmptyRelation(_) | LogicalPlan::Values(_) => ("a query without a table", "has no rows to feed"),
        _ => ("this query", "is not row-local"),
    };
    Error::invalid(format!("{what} cannot run in a feed stage: it {why}, and a feed computes one window at a time"))
}

/// The first function in `expr` whose result does not depend on its row alone.
fn impure(expr: &Expr) -> Option<Error> {
    let mut refusal = None;
    let walked = expr.apply(|expr| {
        refusal = match expr {
            Expr::ScalarFunction(call) if call.func.signature().volatility != Volatility::Immutable => {
                Some(Error::invalid(format!(
                    "{}() returns a different value on every run, and a feed must be a pure function of its files and \
                     seed",
                    call.name()
                )))
            }
            Expr::ScalarSubquery(_) | Expr::InSubquery(_) | Expr::Exists(_) | Expr::SetComparison(_) => {
                Some(Error::invalid(
                    "a subquery in an expression cannot run in a feed stage: it reads a second table for each row",
                ))
            }
            _ => None,
        };
        Ok(if refusal.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    walked.err().map(Error::from).or(refusal)
}

/// DataFusion's CASE, COALESCE and similar functions return a tensor's values, but drop the metadata that marks a
/// tensor.
fn forgets_tensor(expr: &Expr, input: &DFSchema) -> Option<Error> {
    let field = |expr: &Expr| expr.to_field(input).ok().map(|(_, field)| field);
    let mut refusal = None;
    let walked = expr.apply(|expr| {
        let Some(made) = field(expr).filter(|made| !TensorType::is_named_by(made)) else {
            return Ok(TreeNodeRecursion::Continue);
        };
        expr.apply_children(|child| {
            if field(child).is_some_and(|held| TensorType::is_named_by(&held) && held.data_type() == made.data_type()) {
                let error = Error::invalid(format!("the shape of a tensor is lost in {expr}"));
                refusal = Some(error.with_hint(
                    "choose between inputs before the operator that makes the tensor, or filter rows with WHERE",
                ));
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(if refusal.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    walked.err().map(Error::from).or(refusal)
}
