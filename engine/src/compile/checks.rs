//! The nodes that a feed stage accepts: row-local and window-local nodes over one table, lookups in other tables, and
//! pure functions.
//!
//! The `sql` crate refuses most other plans earlier, with the place in the text. This module also checks plans that
//! were not created from SQL.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result as PlanResult};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, ExprSchemable, FetchType, LogicalPlan, SkipType, Union, Volatility};
use forebay_arrays::{TensorType, type_name};
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

/// A query that cannot run.
pub(crate) struct Unrunnable {
    /// The word in the text that is the reason, such as the name of a function.
    pub(crate) word: Option<String>,
    pub(crate) error: Error,
}

impl From<DataFusionError> for Unrunnable {
    fn from(error: DataFusionError) -> Self {
        Self { word: None, error: error.into() }
    }
}

/// Refuses a UNION of tensors of different types. DataFusion would describe the rows of all parts as those of the last.
pub(crate) fn check_unions(plan: &LogicalPlan) -> Result<(), Unrunnable> {
    if !plan.exists(|node| Ok(matches!(node, LogicalPlan::Union(_))))? {
        return Ok(());
    }
    // Until types are resolved, a UNION has those of its first part, which may be a null, and UNION BY NAME describes
    // the columns of a part as those of the whole. So the types are found again, from the tables upwards.
    let mut refusal = None;
    let typed = plan.clone().transform_up_with_subqueries(|node| match node {
        LogicalPlan::Union(union) => {
            let (schema, mixed) = columns_of_union(&union)?;
            refusal = refusal.take().or(mixed);
            Ok(Transformed::yes(LogicalPlan::Union(Union { schema: Arc::new(schema), ..union })))
        }
        other => Ok(Transformed::yes(other.recompute_schema()?)),
    });
    match (typed, refusal) {
        (_, Some(error)) => Err(Unrunnable { word: Some("UNION".to_owned()), error }),
        (typed, None) => Ok(typed.map(|_| ())?),
    }
}

/// The columns of a UNION, each as that of the first part that is more than a null, and the reason why it cannot run.
fn columns_of_union(union: &Union) -> PlanResult<(DFSchema, Option<Error>)> {
    let mut refusal = None;
    let mut columns = Vec::new();
    for (at, (table, described)) in union.schema.iter().enumerate() {
        let mut parts = union.inputs.iter().map(|input| input.schema().field(at));
        let first = parts.find(|field| *field.data_type() != DataType::Null);
        let first = first.map_or_else(|| Arc::clone(described), Arc::clone);
        let differs = |other: &&FieldRef| *other.data_type() != DataType::Null && tensor(other) != tensor(&first);
        if let (None, Some(other)) = (&refusal, parts.find(differs)) {
            let (name, shown, other) = (described.name(), type_name(&first), type_name(other));
            let error = Error::invalid(match shown == other {
                true => format!("UNION has different tensors in its column \"{name}\", which are all shown as {shown}"),
                false => format!("UNION has {shown} and {other} in its column \"{name}\""),
            });
            let hint = "make the tensors alike in each part, with resize, reshape or cast_tensor";
            refusal = Some(error.with_hint(hint));
        }
        columns.push((table.cloned(), Arc::new(first.as_ref().clone().with_name(described.name()))));
    }
    Ok((DFSchema::new_with_metadata(columns, union.schema.metadata().clone())?, refusal))
}

/// The tensor type of a field, without the names of its dimensions.
fn tensor(field: &Field) -> Option<TensorType> {
    let mut tensor = TensorType::of(field)?;
    match &mut tensor {
        TensorType::Fixed(tensor) => tensor.names = None,
        TensorType::Variable(tensor) => tensor.names = None,
    }
    Some(tensor)
}

/// Refuses a plan with a subquery that refers to the outer query, if DataFusion cannot rewrite it as a join.
pub(crate) fn check_subqueries(plan: &LogicalPlan, state: &SessionState) -> Result<(), Unrunnable> {
    // The optimizer rewrites all others. Its errors are reported when the query runs.
    if !has_correlated(plan)? || !state.optimize(plan).is_ok_and(|plan| has_correlated(&plan).unwrap_or(false)) {
        return Ok(());
    }
    let error = Error::invalid("a subquery that refers to the outer query cannot be rewritten as a join").with_hint(
        "compare the columns of both queries with `=` in its WHERE, and leave out LIMIT and UNION; or join and group: \
         `SELECT a.id, count(b.x) FROM a LEFT JOIN b ON b.time < a.time GROUP BY a.id`",
    );
    Err(Unrunnable { word: None, error })
}

/// Whether an expression has a subquery that refers to columns of the outer query.
fn has_correlated(plan: &LogicalPlan) -> PlanResult<bool> {
    let is_correlated = |expr: &Expr| {
        Ok(match expr {
            Expr::ScalarSubquery(of) => !of.outer_ref_columns.is_empty(),
            Expr::InSubquery(of) => !of.subquery.outer_ref_columns.is_empty(),
            Expr::Exists(of) => !of.subquery.outer_ref_columns.is_empty(),
            Expr::SetComparison(of) => !of.subquery.outer_ref_columns.is_empty(),
            _ => false,
        })
    };
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        for expr in node.expressions() {
            found = found || expr.exists(is_correlated)?;
        }
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
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
