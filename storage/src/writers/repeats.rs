//! Which columns have values that repeat, by the first rows of a file.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, GenericByteArray, RecordBatch};
use arrow::datatypes::{ByteArrayType, DataType};

use super::cells::number_bytes;

/// Values to look at. Of each leaf the first ones count.
const VALUES: usize = 4096;
/// Values repeat if at most one of so many is new.
const PER_DISTINCT: usize = 2;

/// For each leaf of the columns, in the order of Parquet: whether a dictionary of its values is worthwhile.
pub(super) fn repeating_leaves(rows: &RecordBatch) -> Vec<bool> {
    let mut leaves = Vec::new();
    rows.columns().iter().for_each(|column| add_leaves(column, false, &mut leaves));
    leaves
}

fn add_leaves(column: &ArrayRef, in_list: bool, leaves: &mut Vec<bool>) {
    let slice = |items: &ArrayRef, from: usize, to: usize| items.slice(from, to - from);
    match column.data_type() {
        DataType::Struct(_) => column.as_struct().columns().iter().for_each(|field| add_leaves(field, in_list, leaves)),
        DataType::List(_) => {
            let (list, ends) = (column.as_list::<i32>(), column.as_list::<i32>().value_offsets());
            add_leaves(&slice(list.values(), ends[0] as usize, ends[list.len()] as usize), true, leaves);
        }
        DataType::LargeList(_) => {
            let (list, ends) = (column.as_list::<i64>(), column.as_list::<i64>().value_offsets());
            add_leaves(&slice(list.values(), ends[0] as usize, ends[list.len()] as usize), true, leaves);
        }
        DataType::FixedSizeList(_, _) => add_leaves(column.as_fixed_size_list().values(), true, leaves),
        DataType::Map(_, _) => {
            let entries: ArrayRef = Arc::new(column.as_map().entries().clone());
            add_leaves(&entries, true, leaves);
        }
        _ => leaves.push(repeat(column, in_list)),
    }
}

fn repeat(leaf: &ArrayRef, in_list: bool) -> bool {
    match leaf.data_type() {
        DataType::Utf8 => repeat_bytes(leaf.as_string::<i32>()),
        DataType::LargeUtf8 => repeat_bytes(leaf.as_string::<i64>()),
        // Photographs are all different, and items of tensors are many: hashing each costs more than it saves.
        data_type if data_type.is_primitive() && !in_list => {
            let (bytes, width) = number_bytes(leaf).unwrap_or((&[], 1));
            few(bytes.chunks_exact(width).enumerate().filter(|(row, _)| leaf.is_valid(*row)).map(|(_, value)| value))
        }
        _ => false,
    }
}

fn repeat_bytes<T: ByteArrayType>(leaf: &GenericByteArray<T>) -> bool
where
    T::Native: AsRef<[u8]>,
{
    few(leaf.iter().flatten().map(AsRef::as_ref))
}

fn few<'a>(values: impl Iterator<Item = &'a [u8]>) -> bool {
    let (mut seen, mut distinct) = (0, HashSet::new());
    for value in values.take(VALUES) {
        seen += 1;
        distinct.insert(value);
    }
    distinct.len() * PER_DISTINCT <= seen
}
