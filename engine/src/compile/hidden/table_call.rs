//! Table operators: a layer that derives rows, with the expressions computed below and above it.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, DFSchema, TableReference};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan, Projection, UserDefinedLogicalNodeCore as _, lit};
use forebay_operators::{ColumnValue, ReadColumn};
use forebay_sql::RowsNode;

use super::flattened::flattened;
use super::layers::Layers;
use crate::compile::change::Change;
use crate::compile::hidden_columns::{HIDDEN, RANDOM_KEY, hidden_column, hidden_columns};
use crate::compile::table_call::TableCall;

/// Prefix of the columns that a call reads or computes; the layer and a number follow.
const READ: &str = "__forebay_read";
const MADE: &str = "__forebay_made";
/// Prefix of a partner's columns (the layer and a number follow) and of its random key (the layer follows).
const PARTNER: &str = "__forebay_partner";
const PARTNER_KEY: &str = "__forebay_partner_key";

/// Derives the rows of the call `node` from the rows of `input`.
///
/// The columns that the call reads are computed below the layer. Its results are computed above it, for the requested
/// rows only. If rows have partners, the subquery's columns are also computed above the layer: once from the row's
/// columns and once from its partner's.
pub(super) fn weave(layers: &mut Layers, node: &RowsNode, input: LogicalPlan) -> Result<LogicalPlan> {
    let plan = node.plan();
    let (base, selected) = if plan.has_partners() {
        flattened(input)?
    } else {
        let columns = input.schema().columns().into_iter().map(Expr::Column).collect();
        (input, columns)
    };
    // The hidden columns come last.
    let columns = base.schema().fields().len() - HIDDEN.len();
    let carried = if plan.keeps_columns() { columns } else { 0 };
    // A query may call an operator on the rows of another call.
    let layer = layers.len();
    let made_name = |at: usize| format!("{MADE}_{layer}_{at}");
    let partner_name = |at: usize| format!("{PARTNER}_{layer}_{at}");
    let partner_key = format!("{PARTNER_KEY}_{layer}");
    let base_schema = Arc::clone(base.schema());
    let own = base_schema.iter().take(carried).map(|(qualifier, field)| (qualifier.cloned(), Arc::clone(field)));
    let mut fields: Vec<(Option<TableReference>, FieldRef)> = own.collect();
    if plan.has_partners() {
        let renamed = |(at, field): (usize, &FieldRef)| field.as_ref().clone().with_name(partner_name(at));
        let partners = base_schema.fields().iter().take(carried).enumerate().map(renamed);
        let key = Field::new(&partner_key, DataType::UInt64, false);
        fields.extend(partners.chain([key]).map(|field| (None, Arc::new(field))));
    }
    let made = plan.made.iter().enumerate();
    fields.extend(made.map(|(at, field)| (None, Arc::new(field.as_ref().clone().with_name(made_name(at))))));
    let below = match &plan.reads[..] {
        [] => base,
        reads => {
            let read = |(at, read): (usize, &ReadColumn)| {
                let column = selected[read.column].clone();
                let read = read.function.as_ref().map_or(column.clone(), |function| function.call(vec![column]));
                read.alias(format!("{READ}_{layer}_{at}"))
            };
            let mut exprs: Vec<Expr> = reads.iter().enumerate().map(read).collect();
            exprs.extend(base_schema.columns().into_iter().take(carried).map(Expr::Column));
            exprs.extend(hidden_columns(&base)?);
            LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(base))?)
        }
    };
    let change = Change::Call(TableCall::new(node.operator(), plan, carried, layer));
    let rows = layers.cut(below, change, &DFSchema::new_with_metadata(fields, HashMap::new())?)?;
    let over_rows = |expr: &Expr, of_partner: bool| {
        let over_rows = expr.clone().transform_up(|expr| {
            let Expr::Column(column) = &expr else { return Ok(Transformed::no(expr)) };
            let at = base_schema.index_of_column(column)?;
            let column = match base_schema.field(at).name().as_str() {
                RANDOM_KEY if of_partner => Column::from_name(&partner_key),
                name if at >= columns => hidden_column(&rows, name)?,
                _ if of_partner => Column::from_name(partner_name(at)),
                _ => return Ok(Transformed::no(expr)),
            };
            Ok(Transformed::yes(Expr::Column(column)))
        });
        over_rows.data()
    };
    let values = ResultColumns {
        parent: &|column| over_rows(&selected[column], false),
        partner: &|column| over_rows(&selected[column], true),
        made: &|column| Expr::Column(Column::from_name(made_name(column))),
        random_key: Expr::Column(hidden_column(&rows, RANDOM_KEY)?),
        site: if plan.has_site() { layers.site(node.name()) } else { 0 },
    };
    let mut exprs = Vec::with_capacity(plan.results.len() + HIDDEN.len());
    for ((qualifier, field), result) in node.schema().iter().zip(&plan.results) {
        exprs.push(values.expr(&result.value)?.alias_qualified(qualifier.cloned(), field.name()));
    }
    exprs.extend(hidden_columns(&rows)?);
    Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(rows))?))
}

/// The values of a table operator's results, for each derived row.
struct ResultColumns<'a> {
    parent: &'a dyn Fn(usize) -> Result<Expr>,
    partner: &'a dyn Fn(usize) -> Result<Expr>,
    made: &'a dyn Fn(usize) -> Expr,
    random_key: Expr,
    site: u64,
}

impl ResultColumns<'_> {
    fn expr(&self, value: &ColumnValue) -> Result<Expr> {
        Ok(match value {
            ColumnValue::Parent(column) => (self.parent)(*column)?,
            ColumnValue::Partner(column) => (self.partner)(*column)?,
            ColumnValue::Made(column) => (self.made)(*column),
            ColumnValue::RandomKey => self.random_key.clone(),
            ColumnValue::Site => lit(self.site),
            ColumnValue::Call(function, values) => {
                function.call(values.iter().map(|value| self.expr(value)).collect::<Result<_>>()?)
            }
        })
    }
}
