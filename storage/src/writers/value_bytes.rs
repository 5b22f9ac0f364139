//! The bytes of values, for cutting rows into parts of about equal size.
//!
//! They are a function of the values alone, so that the cuts do not depend on the layout of batches.

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait, RecordBatch, downcast_dictionary_array};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{ArrowNativeType, DataType};

/// The bytes of a batch's rows.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ValueBytes {
    /// All rows have as many.
    Each(u64),
    /// Each row has its own.
    Rows(Vec<u64>),
}

impl ValueBytes {
    /// The bytes of all columns.
    pub(super) fn of(batch: &RecordBatch) -> Self {
        batch.columns().iter().map(of_column).fold(Self::Each(0), Self::plus)
    }

    /// The bytes of one row.
    pub(super) fn row(&self, row: usize) -> u64 {
        match self {
            Self::Each(bytes) => *bytes,
            Self::Rows(rows) => rows[row],
        }
    }

    fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Self::Each(one), Self::Each(two)) => Self::Each(one + two),
            (Self::Rows(mut rows), Self::Each(each)) | (Self::Each(each), Self::Rows(mut rows)) => {
                rows.iter_mut().for_each(|bytes| *bytes += each);
                Self::Rows(rows)
            }
            (Self::Rows(mut rows), Self::Rows(others)) => {
                rows.iter_mut().zip(others).for_each(|(bytes, more)| *bytes += more);
                Self::Rows(rows)
            }
        }
    }

    /// Counts nulls as nothing, since what is stored for them is arbitrary.
    fn without_nulls(self, nulls: Option<&NullBuffer>) -> Self {
        let Some(nulls) = nulls.filter(|nulls| nulls.null_count() > 0) else { return self };
        let of_row = |row| if nulls.is_null(row) { 0 } else { self.row(row) };
        Self::Rows((0..nulls.len()).map(of_row).collect())
    }
}

fn of_column(column: &ArrayRef) -> ValueBytes {
    let rows = |bytes: &dyn Fn(usize) -> u64| ValueBytes::Rows((0..column.len()).map(bytes).collect());
    let bytes = match column.data_type() {
        DataType::Null => return ValueBytes::Each(0),
        DataType::Boolean => return ValueBytes::Each(1),
        DataType::FixedSizeBinary(width) => return ValueBytes::Each(*width as u64),
        DataType::Utf8 => lengths(column.as_string::<i32>().offsets()),
        DataType::LargeUtf8 => lengths(column.as_string::<i64>().offsets()),
        DataType::Binary => lengths(column.as_binary::<i32>().offsets()),
        DataType::LargeBinary => lengths(column.as_binary::<i64>().offsets()),
        DataType::Utf8View => rows(&|row| u64::from(column.as_string_view().views()[row] as u32)),
        DataType::BinaryView => rows(&|row| u64::from(column.as_binary_view().views()[row] as u32)),
        DataType::List(_) => of_lists(column.as_list::<i32>().offsets(), column.as_list::<i32>().values()),
        DataType::LargeList(_) => of_lists(column.as_list::<i64>().offsets(), column.as_list::<i64>().values()),
        DataType::ListView(_) => {
            let (lists, items) = (column.as_list_view::<i32>(), of_column(column.as_list_view::<i32>().values()));
            rows(&|row| sum(&items, lists.value_offset(row) as usize, lists.value_size(row) as usize))
        }
        DataType::LargeListView(_) => {
            let (lists, items) = (column.as_list_view::<i64>(), of_column(column.as_list_view::<i64>().values()));
            rows(&|row| sum(&items, lists.value_offset(row) as usize, lists.value_size(row) as usize))
        }
        DataType::Map(_, _) => {
            let map = column.as_map();
            let entries: ArrayRef = std::sync::Arc::new(map.entries().clone());
            of_lists(map.offsets(), &entries)
        }
        DataType::FixedSizeList(_, size) => {
            let size = *size as usize;
            match of_column(column.as_fixed_size_list().values()) {
                ValueBytes::Each(bytes) => ValueBytes::Each(bytes * size as u64),
                ValueBytes::Rows(items) => rows(&|row| items[row * size..(row + 1) * size].iter().sum()),
            }
        }
        DataType::Struct(_) => {
            column.as_struct().columns().iter().map(of_column).fold(ValueBytes::Each(0), ValueBytes::plus)
        }
        DataType::Dictionary(_, _) => downcast_dictionary_array! {
            column => {
                let values = of_column(column.values());
                let keys = column.keys();
                rows(&|row| if keys.is_null(row) { 0 } else { values.row(keys.value(row).as_usize()) })
            }
            _ => unreachable!("the type says that it is a dictionary"),
        },
        other => return ValueBytes::Each(other.primitive_width().unwrap_or(8) as u64),
    };
    bytes.without_nulls(column.nulls())
}

/// The bytes of consecutive items.
fn sum(items: &ValueBytes, from: usize, len: usize) -> u64 {
    match items {
        ValueBytes::Each(bytes) => bytes * len as u64,
        ValueBytes::Rows(each) => each[from..from + len].iter().sum(),
    }
}

fn lengths<O: OffsetSizeTrait>(offsets: &OffsetBuffer<O>) -> ValueBytes {
    ValueBytes::Rows(offsets.windows(2).map(|ends| (ends[1] - ends[0]).as_usize() as u64).collect())
}

fn of_lists<O: OffsetSizeTrait>(offsets: &OffsetBuffer<O>, items: &ArrayRef) -> ValueBytes {
    let (first, last) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
    let items = of_column(&items.slice(first, last - first));
    let of_list = |ends: &[O]| sum(&items, ends[0].as_usize() - first, (ends[1] - ends[0]).as_usize());
    ValueBytes::Rows(offsets.windows(2).map(of_list).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{DictionaryArray, Int32Array, ListArray, StringArray, StringViewArray, StructArray};
    use arrow::datatypes::{Field, Int32Type};

    use super::*;

    #[test]
    fn bytes_are_those_of_the_values_in_every_layout() {
        let texts = [Some("abc"), None, Some("")];
        let check = |column: ArrayRef, expect: [u64; 3]| {
            let bytes = of_column(&column);
            assert_eq!([0, 1, 2].map(|row| bytes.row(row)), expect, "{}", column.data_type());
        };
        check(Arc::new(StringArray::from(texts.to_vec())), [3, 0, 0]);
        check(Arc::new(StringViewArray::from(texts.to_vec())), [3, 0, 0]);
        check(Arc::new(texts.into_iter().collect::<DictionaryArray<Int32Type>>()), [3, 0, 0]);
        check(Arc::new(Int32Array::from(vec![Some(1), None, None])), [4, 4, 4]);
        let lists = [Some(vec![Some(1), None]), None, Some(vec![])];
        check(Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists)), [8, 0, 0]);
        let sliced = StringArray::from(vec![Some("skipped"), Some("abc"), None, Some("")]).slice(1, 3);
        check(Arc::new(sliced.clone()), [3, 0, 0]);
        let field = Arc::new(Field::new("a", DataType::Utf8, true));
        check(Arc::new(StructArray::from(vec![(field, Arc::new(sliced) as ArrayRef)])), [3, 0, 0]);
    }
}
