//! The leaves of columns, and which have values that repeat, by the first rows of a file.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, GenericByteArray, RecordBatch};
use arrow::datatypes::{ByteArrayType, DataType};

use super::cells::number_bytes;

/// Values to look at. Of each leaf the first ones count.
const VALUES: usize = 4096;
/// Values repeat if at most one of so many is new.
const PER_DISTINCT: usize = 2;
/// Integers repeat if at most one of so many is new. Differences of others take 0.4 of the time that a dictionary
/// takes, to write and to read, and a quarter more space.
const PER_DISTINCT_INTEGER: usize = 16;

/// A column without nested values, or the innermost values of one with such.
#[derive(Debug)]
pub(super) struct Leaf {
    /// Whether a dictionary of its values is worthwhile.
    pub(super) repeats: bool,
    /// Whether its values are items of lists or tensors.
    pub(super) in_list: bool,
    /// The bytes of each value, if all have as many.
    pub(super) width: Option<usize>,
}

/// The leaves of the columns, in the order of Parquet.
pub(super) fn leaves(rows: &RecordBatch) -> Vec<Leaf> {
    let mut leaves = Vec::new();
    rows.columns().iter().for_each(|column| add_leaves(column, false, &mut leaves));
    leaves
}

fn add_leaves(column: &ArrayRef, in_list: bool, leaves: &mut Vec<Leaf>) {
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
        data_type => {
            leaves.push(Leaf { repeats: repeat(column, in_list), in_list, width: data_type.primitive_width() })
        }
    }
}

fn repeat(leaf: &ArrayRef, in_list: bool) -> bool {
    match leaf.data_type() {
        DataType::Utf8 => repeat_bytes(leaf.as_string::<i32>()),
        DataType::LargeUtf8 => repeat_bytes(leaf.as_string::<i64>()),
        // Photographs are all different, and items of tensors are many: hashing each costs more than it saves.
        data_type if data_type.is_primitive() && !in_list => {
            let (bytes, width) = number_bytes(leaf).unwrap_or((&[], 1));
            let values = bytes.chunks_exact(width).enumerate().filter(|(row, _)| leaf.is_valid(*row));
            let per_distinct = if data_type.is_floating() { PER_DISTINCT } else { PER_DISTINCT_INTEGER };
            few(values.map(|(_, value)| value), per_distinct)
        }
        _ => false,
    }
}

fn repeat_bytes<T: ByteArrayType>(leaf: &GenericByteArray<T>) -> bool
where
    T::Native: AsRef<[u8]>,
{
    few(leaf.iter().flatten().map(AsRef::as_ref), PER_DISTINCT)
}

fn few<'a>(values: impl Iterator<Item = &'a [u8]>, per_distinct: usize) -> bool {
    let (mut seen, mut distinct) = (0, HashSet::new());
    for value in values.take(VALUES) {
        seen += 1;
        distinct.insert(value);
    }
    distinct.len() * per_distinct <= seen
}
