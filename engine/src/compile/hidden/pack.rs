//! `pack`: a layer that makes tokens and bounds, and the columns that are computed from them.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::FieldRef;
use datafusion::common::{Column, DFSchema, TableReference};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan, Projection, UserDefinedLogicalNodeCore as _};
use forebay_operators::pack::Pack;
use forebay_operators::pack::columns::Column as PackColumn;
use forebay_operators::pack::list_field;
use forebay_sql::{BOUNDS, RowsNode};

use super::columns::hidden_columns;
use super::layers::Layers;
use crate::compile::changes::Change;

/// The column of tokens between the layer that packs and the columns that are computed from it.
const TOKENS: &str = "packed";

/// Packs `column` of `input`.
///
/// The layer takes only documents and makes only tokens and their bounds. The columns of `node` are computed from these
/// above the layer, row by row.
pub(super) fn weave(
    layers: &mut Layers,
    node: &RowsNode,
    pack: &Pack,
    column: usize,
    input: LogicalPlan,
) -> Result<LogicalPlan> {
    let column = Expr::Column(input.schema().columns()[column].clone());
    let document = PackColumn::Document.function(pack).call(vec![column]).alias(TOKENS);
    let mut exprs = vec![document];
    exprs.extend(hidden_columns(&input)?);
    let documents = LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(input))?);
    let made = [TOKENS, BOUNDS].map(|name| (None, list_field(name)));
    let made = DFSchema::new_with_metadata(made.into(), HashMap::new())?;
    let packed = layers.cut(documents, Change::Pack(*pack), &made)?;
    let [tokens, bounds] = [TOKENS, BOUNDS].map(|name| Expr::Column(Column::from_name(name)));
    let named = |expr: Expr, (qualifier, field): (Option<&TableReference>, &FieldRef)| {
        expr.alias_qualified(qualifier.cloned(), field.name())
    };
    let mut exprs = Vec::new();
    for column in node.schema().iter() {
        let of = PackColumn::OUTPUTS.into_iter().find(|of| of.name() == column.1.name());
        let call = |args: &[&Expr]| of.map(|of| of.function(pack).call(args.iter().copied().cloned().collect()));
        let expr = match of {
            Some(PackColumn::InputIds) => call(&[&tokens]),
            Some(PackColumn::Labels) => call(&[&tokens, &bounds]),
            Some(_) => call(&[&bounds]),
            None => None,
        };
        exprs.push(named(expr.unwrap_or_else(|| bounds.clone()), column));
    }
    exprs.extend(hidden_columns(&packed)?);
    Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(packed))?))
}
