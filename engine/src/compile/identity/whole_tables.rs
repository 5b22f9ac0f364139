//! The form of nodes that need all rows of their inputs, and of nodes that have no table.

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result;
use datafusion::logical_expr::{
    Aggregate, Distinct, DistinctOn, EmptyRelation, Expr, LogicalPlan, Sort, Subquery, Union, Unnest, Values, Window,
};

use super::aggregates::sorts;
use super::expressions::{column, expression, expressions};
use super::form::{Form, without_form};
use super::nodes::unnest_options;
use super::values::fields;

/// Writes a node over whole tables, without its inputs.
pub(super) fn whole_tables(form: &mut Form, plan: &LogicalPlan) -> Result<()> {
    match plan {
        LogicalPlan::Distinct(Distinct::All(_)) => {
            form.tag("distinct");
            Ok(())
        }
        LogicalPlan::Distinct(Distinct::On(DistinctOn { on_expr, select_expr, sort_expr, input: _, schema: _ })) => {
            form.tag("distinct on");
            expressions(form, on_expr)?;
            expressions(form, select_expr)?;
            form.optional(sort_expr.as_deref(), sorts)
        }
        LogicalPlan::Sort(Sort { expr, fetch, input: _ }) => {
            form.tag("sort");
            sorts(form, expr)?;
            form.optional(*fetch, |form, rows| {
                form.number(rows as u64);
                Ok(())
            })
        }
        LogicalPlan::Window(Window { window_expr, input: _, schema: _ }) => {
            form.tag("window");
            expressions(form, window_expr)
        }
        // `UNION` is distinct rows of `UNION ALL`. `INTERSECT` and `EXCEPT` are joins.
        LogicalPlan::Union(Union { inputs, schema: _ }) => {
            form.tag("union");
            form.number(inputs.len() as u64);
            Ok(())
        }
        LogicalPlan::Values(Values { schema, values }) => {
            form.tag("values");
            fields(form, schema.fields())?;
            form.list(values, |form, row| expressions(form, row))
        }
        LogicalPlan::EmptyRelation(EmptyRelation { produce_one_row, schema }) => {
            form.tag("empty");
            form.flag(*produce_one_row);
            fields(form, schema.fields())
        }
        // LATERAL. The other subqueries are in expressions.
        LogicalPlan::Subquery(Subquery { outer_ref_columns, subquery: _, spans: _ }) => {
            form.tag("subquery");
            expressions(form, outer_ref_columns)
        }
        other => without_form(format_args!("the node {}", other.display())),
    }
}

/// Writes an aggregate. Its input follows, unless it is written too.
pub(super) fn grouped(form: &mut Form, aggregate: &Aggregate) -> Result<TreeNodeRecursion> {
    // DataFusion forbids to match all fields. The schema, which is left out, follows from these.
    let Aggregate { input, group_expr, aggr_expr, .. } = aggregate;
    if let LogicalPlan::Unnest(unnest) = input.as_ref() {
        form.tag("aggregate of unnested lists");
        unordered(form, group_expr)?;
        expressions(form, aggr_expr)?;
        unnested_below(form, unnest)?;
        return Ok(TreeNodeRecursion::Jump);
    }
    form.tag("aggregate");
    expressions(form, group_expr)?;
    expressions(form, aggr_expr)?;
    Ok(TreeNodeRecursion::Continue)
}

/// Writes the lists that become rows right below an aggregate: `GROUP BY unnest(list)`.
///
/// DataFusion takes the columns of such an input from a hash set, so that they are in another order each time that the
/// same query is planned. The aggregate reads them by name. So they are written without their order, and their
/// positions not at all.
fn unnested_below(form: &mut Form, unnest: &Unnest) -> Result<()> {
    // What is ignored here follows from the rest.
    let Unnest {
        input,
        exec_columns,
        options,
        list_type_columns: _,
        struct_type_columns: _,
        dependency_indices: _,
        schema: _,
    } = unnest;
    form.tag("unnest by name");
    form.list(exec_columns, column)?;
    unnest_options(form, options)?;
    let LogicalPlan::Projection(columns) = input.as_ref() else { return form.plan(input) };
    form.tag("columns");
    unordered(form, &columns.expr)?;
    match columns.input.as_ref() {
        LogicalPlan::Unnest(unnest) => unnested_below(form, unnest),
        other => form.plan(other),
    }
}

/// Writes expressions whose order has no meaning.
fn unordered(form: &mut Form, exprs: &[Expr]) -> Result<()> {
    let hash = |expr: &Expr| -> Result<String> {
        let mut form = form.part();
        expression(&mut form, expr)?;
        Ok(form.finish())
    };
    let mut hashes = exprs.iter().map(hash).collect::<Result<Vec<String>>>()?;
    hashes.sort_unstable();
    form.list(&hashes, |form, hash| {
        form.text(hash);
        Ok(())
    })
}
