//! The bytes of rows.

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait, RecordBatch};
use arrow::datatypes::DataType;

/// The bytes of a column's own rows, of which its buffers may hold more: other rows, or spare capacity.
///
/// Views count with the whole buffers that they point into.
pub fn column_bytes(column: &ArrayRef) -> u64 {
    let nulls = || column.nulls().map_or(0, |nulls| nulls.len().div_ceil(8) as u64);
    match column.data_type() {
        DataType::List(_) => nulls() + list_bytes(column.as_list::<i32>().offsets(), column.as_list::<i32>().values()),
        DataType::LargeList(_) => {
            nulls() + list_bytes(column.as_list::<i64>().offsets(), column.as_list::<i64>().values())
        }
        DataType::FixedSizeList(_, width) => {
            let list = column.as_fixed_size_list();
            let first = list.value_offset(0) as usize;
            nulls() + column_bytes(&list.values().slice(first, list.len() * *width as usize))
        }
        DataType::Struct(_) => nulls() + column.as_struct().columns().iter().map(column_bytes).sum::<u64>(),
        _ => column.to_data().get_slice_memory_size().unwrap_or_else(|_| column.get_array_memory_size()) as u64,
    }
}

fn list_bytes<O: OffsetSizeTrait>(offsets: &[O], values: &ArrayRef) -> u64 {
    let (first, last) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
    size_of_val(offsets) as u64 + column_bytes(&values.slice(first, last - first))
}

/// The bytes of a batch's own rows: see [`column_bytes`].
pub fn batch_bytes(batch: &RecordBatch) -> u64 {
    batch.columns().iter().map(column_bytes).sum()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{FixedSizeListArray, Int32Array, ListArray, StringArray, StructArray};
    use arrow::datatypes::{Field, Int32Type};

    use super::*;

    /// A slice counts as much as the same rows in arrays of their own.
    #[test]
    fn column_bytes_counts_the_slice_alone() {
        let check = |column: ArrayRef, rows: usize, bytes: u64| {
            let slice = column.slice(1, rows);
            assert_eq!(column_bytes(&slice), bytes, "{}", column.data_type());
        };
        check(Arc::new(Int32Array::from_iter_values(0..100)), 3, 12);
        // Three offsets, and the texts.
        check(Arc::new(StringArray::from(vec!["long before", "ab", "cde", "long after"])), 2, 12 + 5);
        let lists = (0..100).map(|row| Some(vec![Some(row); 10]));
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
        check(Arc::clone(&lists), 2, 12 + 80);
        let fixed = (0..100).map(|row| Some(vec![Some(row); 4]));
        check(Arc::new(FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(fixed, 4)), 3, 48);
        let field = Arc::new(Field::new("lists", lists.data_type().clone(), true));
        check(Arc::new(StructArray::from(vec![(field, lists)])), 2, 12 + 80);
    }
}
