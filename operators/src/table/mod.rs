//! Operators on the numbers and categories of tables, and their shared functions. Each operator is a function of
//! values, applied to a column or to a column of lists.

pub(crate) mod cross;
pub(crate) mod cyclic;
pub(crate) mod entries;
pub(crate) mod fill_null;
pub(crate) mod first_x;
pub(crate) mod floats;
#[cfg(test)]
mod golden;
pub(crate) mod hex_to_int;
pub(crate) mod index_of;
pub(crate) mod integers;
pub(crate) mod multi_hot;
pub(crate) mod ngram;
pub(crate) mod one_hot;
pub(crate) mod vocab_apply;
pub(crate) mod vocabulary;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, GenericListArray, OffsetSizeTrait};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field};
use datafusion::common::Result;

/// Returns the type of a column's values, or of the values in its lists.
pub(crate) fn value_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) => item.data_type(),
        other => other,
    }
}

/// Returns the field with another type of values. Lists stay lists.
pub(crate) fn with_value_type(name: &str, field: &Field, value: DataType) -> Field {
    let item = || Arc::new(Field::new_list_field(value.clone(), true));
    let data_type = match field.data_type() {
        DataType::List(_) => DataType::List(item()),
        DataType::LargeList(_) => DataType::LargeList(item()),
        _ => value.clone(),
    };
    Field::new(name, data_type, field.is_nullable())
}

/// Applies a function to the values of a column, or of its lists. Null values stay null.
pub(crate) fn on_values(array: &ArrayRef, function: impl FnOnce(&ArrayRef) -> Result<ArrayRef>) -> Result<ArrayRef> {
    match array.data_type() {
        DataType::List(_) => on_items(array.as_list::<i32>(), function),
        DataType::LargeList(_) => on_items(array.as_list::<i64>(), function),
        _ => function(array),
    }
}

fn on_items<O: OffsetSizeTrait>(
    list: &GenericListArray<O>,
    function: impl FnOnce(&ArrayRef) -> Result<ArrayRef>,
) -> Result<ArrayRef> {
    // A slice shares the values of the whole column. Compute only the slice's own.
    let offsets = list.value_offsets();
    let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
    let values = function(&list.values().slice(first.as_usize(), (last - first).as_usize()))?;
    let offsets = OffsetBuffer::new(offsets.iter().map(|offset| *offset - first).collect());
    let item = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    Ok(Arc::new(GenericListArray::try_new(item, offsets, values, list.nulls().cloned())?))
}
