//! The bytes of rows.

use std::sync::Arc;

use arrow::array::{AnyDictionaryArray, Array, ArrayRef, AsArray, BooleanArray, OffsetSizeTrait, RecordBatch};
use arrow::compute::filter;
use arrow::datatypes::DataType;

/// The bytes of a column's own rows, whose buffers may also hold other rows, or spare capacity.
///
/// Equal rows have equal sizes, however they were cut out of other arrays: windows depend on this number. So only
/// columns with nulls have a validity bitmap, and a dictionary has only the values in use. Views are an exception: they
/// count with the whole buffers that they point into.
pub fn column_bytes(column: &ArrayRef) -> u64 {
    let validity = if column.null_count() > 0 { column.len().div_ceil(8) as u64 } else { 0 };
    validity + value_bytes(column)
}

fn value_bytes(column: &ArrayRef) -> u64 {
    match column.data_type() {
        DataType::List(_) => list_bytes(column.as_list::<i32>().offsets(), column.as_list::<i32>().values()),
        DataType::LargeList(_) => list_bytes(column.as_list::<i64>().offsets(), column.as_list::<i64>().values()),
        DataType::Map(..) => {
            let map = column.as_map();
            let entries: Vec<ArrayRef> = map.entries().columns().to_vec();
            entries.iter().map(|entries| list_bytes(map.offsets(), entries)).sum()
        }
        DataType::FixedSizeList(_, width) => {
            let list = column.as_fixed_size_list();
            let first = list.value_offset(0) as usize;
            column_bytes(&list.values().slice(first, list.len() * *width as usize))
        }
        DataType::Struct(_) => column.as_struct().columns().iter().map(column_bytes).sum(),
        DataType::Dictionary(..) => {
            let dictionary = column.as_any_dictionary();
            let used = used_values(dictionary);
            let values = match used.true_count() == used.len() {
                true => Arc::clone(dictionary.values()),
                false => filter(dictionary.values(), &used).expect("a filter of the values' length"),
            };
            buffer_bytes(dictionary.keys()) + column_bytes(&values)
        }
        _ => buffer_bytes(column),
    }
}

fn used_values(dictionary: &dyn AnyDictionaryArray) -> BooleanArray {
    let mut used = vec![false; dictionary.values().len()];
    if !used.is_empty() {
        let keys = dictionary.normalized_keys().into_iter().enumerate();
        keys.filter(|(row, _)| dictionary.keys().is_valid(*row)).for_each(|(_, key)| used[key] = true);
    }
    used.into()
}

/// The bytes of a column without children, apart from its validity.
fn buffer_bytes(column: &dyn Array) -> u64 {
    let data = column.to_data();
    let validity = if data.nulls().is_some() { column.len().div_ceil(8) } else { 0 };
    data.get_slice_memory_size().map_or_else(|_| column.get_array_memory_size(), |bytes| bytes.saturating_sub(validity))
        as u64
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
    use arrow::array::{
        DictionaryArray, FixedSizeListArray, Int32Array, Int32Builder, ListArray, MapBuilder, StringArray,
        StringBuilder, StructArray,
    };
    use arrow::datatypes::{Field, Int8Type, Int32Type};

    use super::*;

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
        let mut maps = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
        for row in 0..100 {
            maps.keys().append_value("key");
            maps.values().append_value(row);
            maps.append(true).unwrap();
        }
        // Offsets of the map for its keys and for its values, offsets of keys, keys, values.
        check(Arc::new(maps.finish()), 2, 12 + 12 + 12 + 6 + 8);
    }

    /// Rows count the same beside nulls, or values of a dictionary, that are not theirs.
    #[test]
    fn column_bytes_does_not_depend_on_the_rest_of_an_array() {
        let check = |rows: ArrayRef, more: ArrayRef| {
            let slice = more.slice(0, rows.len());
            assert_eq!(&slice, &rows);
            assert_eq!(column_bytes(&slice), column_bytes(&rows), "{}", rows.data_type());
        };
        check(Arc::new(Int32Array::from(vec![1, 2])), Arc::new(Int32Array::from(vec![Some(1), Some(2), None])));
        let dictionary =
            |rows: Vec<&str>| Arc::new(rows.into_iter().collect::<DictionaryArray<Int8Type>>()) as ArrayRef;
        check(dictionary(vec!["a", "b", "a"]), dictionary(vec!["a", "b", "a", "long after"]));
        let lists = |rows: Vec<Option<Vec<Option<i32>>>>| {
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(rows)) as ArrayRef
        };
        check(lists(vec![Some(vec![Some(1)])]), lists(vec![Some(vec![Some(1)]), None, Some(vec![None])]));
    }
}
