//! The output columns of a query, in types that every Arrow reader supports.

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::TableReference;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, cast};
use forebay_arrays::without_views;

use crate::error::{Error, Result};

/// The columns the user selected, in types that every Arrow reader supports: dictionaries and views become plain
/// arrays.
pub(super) fn output(woven: LogicalPlan, asked: &LogicalPlan, only: Option<&[usize]>) -> Result<LogicalPlan> {
    let mut columns: Vec<Expr> = asked.schema().iter().map(|(qualifier, field)| plain(qualifier, field)).collect();
    if let Some(only) = only {
        columns = only.iter().map(|&at| columns[at].clone()).collect();
    }
    let output = LogicalPlanBuilder::from(woven).project(columns)?.build()?;
    match output.schema().fields().iter().find(|field| has_dictionaries(field.data_type())) {
        Some(field) => {
            Err(Error::invalid(format!("column \"{}\" holds dictionaries inside a nested type", field.name()))
                .with_hint("cast it to a plain type in the SELECT"))
        }
        None => Ok(output),
    }
}

/// A column that the user selected, in a type that every Arrow reader supports.
pub(super) fn plain(qualifier: Option<&TableReference>, field: &FieldRef) -> Expr {
    let column = Expr::Column((qualifier, field).into());
    let values = match field.data_type() {
        DataType::Dictionary(_, values) => values,
        other => other,
    };
    let plain = without_views(values, false);
    let column = if plain == *field.data_type() { column } else { cast(column, plain) };
    column.alias(field.name())
}

/// Whether a type contains a type that some Arrow readers do not support.
fn has_dictionaries(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(..) => true,
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            has_dictionaries(item.data_type())
        }
        DataType::Struct(fields) => fields.iter().any(|field| has_dictionaries(field.data_type())),
        DataType::Map(entries, _) => has_dictionaries(entries.data_type()),
        _ => false,
    }
}
