//! The form of a plan's nodes, and the hash of a whole plan.

use std::any::Any;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinConstraint, JoinType, NullEquality, NullHandling, UnnestOptions};
use datafusion::datasource::source_as_provider;
use datafusion::error::Result;
use datafusion::functions_table::generate_series::GenerateSeriesTable;
use datafusion::logical_expr::{Join, LogicalPlan, TableScan, Unnest};
use forebay_sql::RowsNode;

use super::expressions::{column, expression, expressions, relation_form};
use super::form::{Form, without_form};
use super::values::value;
use super::whole_tables::{grouped, whole_tables};

/// Raise this when the form changes, and when a new DataFusion may plan or compute the same form differently.
pub(crate) const VERSION: &str = "forebay query 1, datafusion 55";

/// A hash that is equal for equal queries only.
pub(crate) fn fingerprint(plan: &LogicalPlan) -> Result<String> {
    let mut form = Form::new(VERSION, node);
    node(&mut form, plan)?;
    Ok(form.finish())
}

/// Writes a node and its inputs.
pub(super) fn node(form: &mut Form, plan: &LogicalPlan) -> Result<()> {
    // DataFusion's walk takes more stack where it needs more: a UNION nests as deeply as it has queries.
    plan.apply(|node| without_inputs(form, node))?;
    Ok(())
}

/// Writes a node. Its inputs follow, unless they are written too.
fn without_inputs(form: &mut Form, plan: &LogicalPlan) -> Result<TreeNodeRecursion> {
    match plan {
        LogicalPlan::TableScan(scan) => table(form, scan)?,
        LogicalPlan::Projection(projection) => {
            form.tag("projection");
            expressions(form, &projection.expr)?;
        }
        LogicalPlan::Filter(filter) => {
            form.tag("filter");
            expression(form, &filter.predicate)?;
        }
        LogicalPlan::SubqueryAlias(alias) => {
            form.tag("alias");
            relation_form(form, &alias.alias)?;
        }
        LogicalPlan::Limit(limit) => {
            form.tag("limit");
            form.optional(limit.skip.as_deref(), expression)?;
            form.optional(limit.fetch.as_deref(), expression)?;
        }
        LogicalPlan::Unnest(unnest) => unnested(form, unnest)?,
        LogicalPlan::Join(join) => joined(form, join)?,
        LogicalPlan::Extension(extension) => match extension.node.as_any().downcast_ref::<RowsNode>() {
            Some(call) => rows(form, call)?,
            None => return without_form(format_args!("the node {}", extension.node.name())),
        },
        LogicalPlan::Aggregate(aggregate) => return grouped(form, aggregate),
        other => whole_tables(form, other)?,
    }
    Ok(TreeNodeRecursion::Continue)
}

fn table(form: &mut Form, scan: &TableScan) -> Result<()> {
    if is_computed(scan) {
        return without_form(format_args!("the table function {}", scan.table_name));
    }
    form.tag("table");
    relation_form(form, &scan.table_name)?;
    form.optional(scan.projection.as_ref(), |form, columns| {
        form.list(columns, |form, &at| {
            form.number(at as u64);
            Ok(())
        })
    })?;
    expressions(form, &scan.filters)?;
    form.optional(scan.fetch, |form, rows| {
        form.number(rows as u64);
        Ok(())
    })
}

/// Whether a table is a call, such as `range(1, 10)`. Its name is the function's, and its arguments are only in the
/// source of the scan, so all calls of a function would be equal.
fn is_computed(scan: &TableScan) -> bool {
    source_as_provider(&scan.source).is_ok_and(|table| (table.as_ref() as &dyn Any).is::<GenerateSeriesTable>())
}

fn unnested(form: &mut Form, unnest: &Unnest) -> Result<()> {
    form.tag("unnest");
    form.list(&unnest.exec_columns, column)?;
    form.list(&unnest.list_type_columns, |form, (at, list)| {
        form.number(*at as u64);
        form.number(list.depth as u64);
        column(form, &list.output_column)
    })?;
    form.list(&unnest.struct_type_columns, |form, &at| {
        form.number(at as u64);
        Ok(())
    })?;
    unnest_options(form, &unnest.options)
}

/// Writes what becomes of nulls and of lists of lists.
pub(super) fn unnest_options(form: &mut Form, options: &UnnestOptions) -> Result<()> {
    let UnnestOptions { null_handling, recursions } = options;
    form.tag(match null_handling {
        NullHandling::Drop => "drop nulls",
        NullHandling::Preserve => "preserve nulls",
        NullHandling::PreserveAndExpandEmpty => "preserve nulls and empty lists",
    });
    form.list(recursions, |form, recursion| {
        form.number(recursion.depth as u64);
        column(form, &recursion.input_column)?;
        column(form, &recursion.output_column)
    })
}

fn joined(form: &mut Form, join: &Join) -> Result<()> {
    form.tag("join");
    form.tag(match join.join_type {
        JoinType::Inner => "inner",
        JoinType::Left => "left",
        JoinType::Right => "right",
        JoinType::Full => "full",
        JoinType::LeftSemi => "left semi",
        JoinType::RightSemi => "right semi",
        JoinType::LeftAnti => "left anti",
        JoinType::RightAnti => "right anti",
        JoinType::LeftMark => "left mark",
        JoinType::RightMark => "right mark",
    });
    form.tag(match join.join_constraint {
        JoinConstraint::On => "on",
        JoinConstraint::Using => "using",
    });
    form.tag(match join.null_equality {
        NullEquality::NullEqualsNothing => "null equals nothing",
        NullEquality::NullEqualsNull => "null equals null",
    });
    form.flag(join.null_aware);
    form.list(&join.on, |form, (left, right)| {
        expression(form, left)?;
        expression(form, right)
    })?;
    form.optional(join.filter.as_ref(), expression)
}

/// Writes a call of a table operator: its version, the columns named in its arguments, and its other constants.
fn rows(form: &mut Form, call: &RowsNode) -> Result<()> {
    let (descriptor, columns) = (call.operator().descriptor(), &call.plan().columns);
    form.tag("table operator");
    form.text(descriptor.name);
    form.number(u64::from(descriptor.version));
    form.list(columns, |form, (parameter, column)| {
        form.text(parameter);
        form.text(call.input().schema().field(*column).name());
        Ok(())
    })?;
    let is_constant = |name: &str| !columns.iter().any(|(parameter, _)| *parameter == name);
    let constants = descriptor.parameters[1..].iter().zip(call.constants());
    let constants: Vec<_> = constants.filter(|(parameter, _)| is_constant(parameter.name)).collect();
    form.list(constants, |form, (parameter, constant)| {
        form.text(parameter.name);
        value(form, constant)
    })
}
