//! The pieces in which rows in memory are hashed and read.
//!
//! Where one piece ends depends on the rows alone, and not on the chunks in which a frame has them: the pieces are part
//! of the table's identity. A piece is one array in each column, so it must also end before 32-bit offsets do.

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;

/// Where a piece ends at the latest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PieceLimits {
    /// The number of rows.
    pub(crate) rows: usize,
    /// Bytes of texts and binary values, and items of lists, over all columns. A row with more is a piece by itself.
    pub(crate) weight: u64,
}

impl PieceLimits {
    pub(crate) const DEFAULT: Self = Self { rows: 1 << 16, weight: 1 << 30 };
}

/// Splits rows into pieces.
pub(crate) fn in_pieces(
    schema: &SchemaRef,
    batches: &[RecordBatch],
    limits: PieceLimits,
) -> Result<Vec<RecordBatch>, ArrowError> {
    let mut pieces = Vec::new();
    let mut piece: Vec<RecordBatch> = Vec::new();
    let mut room = limits;
    for batch in batches {
        let mut at = 0;
        while at < batch.num_rows() {
            let next = batch.slice(at, room.rows.min(batch.num_rows() - at));
            let within = rows_within(&next, room.weight);
            // A row that exceeds the limit is alone, whatever follows it in its chunk.
            let is_beyond = within == 0 && piece.is_empty();
            let rows = if is_beyond { 1 } else { within };
            let is_full = is_beyond || rows < next.num_rows() || rows == room.rows;
            if rows > 0 {
                let next = next.slice(0, rows);
                let weight = room.weight.saturating_sub(weight(&next));
                room = PieceLimits { rows: room.rows - rows, weight };
                piece.push(next);
                at += rows;
            }
            if is_full {
                pieces.push(concat_batches(schema, &std::mem::take(&mut piece))?);
                room = limits;
            }
        }
    }
    if !piece.is_empty() {
        pieces.push(concat_batches(schema, &piece)?);
    }
    Ok(pieces)
}

/// The largest number of first rows whose weight is within the limit.
fn rows_within(batch: &RecordBatch, limit: u64) -> usize {
    if weight(batch) <= limit {
        return batch.num_rows();
    }
    let (mut within, mut beyond) = (0, batch.num_rows());
    while beyond - within > 1 {
        let middle = within.midpoint(beyond);
        match weight(&batch.slice(0, middle)) <= limit {
            true => within = middle,
            false => beyond = middle,
        }
    }
    within
}

/// What rows add to the values that offsets address. Two parts of an array weigh together what the array does.
fn weight(batch: &RecordBatch) -> u64 {
    batch.columns().iter().map(column_weight).sum()
}

fn column_weight(column: &ArrayRef) -> u64 {
    match column.data_type() {
        DataType::Utf8 => between(column.as_string::<i32>().offsets()),
        DataType::LargeUtf8 => between(column.as_string::<i64>().offsets()),
        DataType::Binary => between(column.as_binary::<i32>().offsets()),
        DataType::LargeBinary => between(column.as_binary::<i64>().offsets()),
        DataType::List(_) => list_weight(column.as_list::<i32>().offsets(), column.as_list::<i32>().values()),
        DataType::LargeList(_) => list_weight(column.as_list::<i64>().offsets(), column.as_list::<i64>().values()),
        DataType::Map(..) => {
            let map = column.as_map();
            map.entries().columns().iter().map(|entries| list_weight(map.offsets(), entries)).sum()
        }
        DataType::FixedSizeList(_, width) => {
            let list = column.as_fixed_size_list();
            let first = list.value_offset(0) as usize;
            column_weight(&list.values().slice(first, list.len() * *width as usize))
        }
        DataType::Struct(_) => column.as_struct().columns().iter().map(column_weight).sum(),
        // Readers may get the values themselves in the place of keys.
        DataType::Dictionary(..) => {
            let dictionary = column.as_any_dictionary();
            let values = dictionary.values();
            let weights: Vec<u64> = (0..values.len()).map(|key| column_weight(&values.slice(key, 1))).collect();
            match weights.is_empty() {
                true => 0,
                false => {
                    let keys = dictionary.normalized_keys().into_iter().enumerate();
                    keys.filter(|(row, _)| dictionary.keys().is_valid(*row)).map(|(_, key)| weights[key]).sum()
                }
            }
        }
        _ => 0,
    }
}

fn list_weight<O: OffsetSizeTrait>(offsets: &[O], values: &ArrayRef) -> u64 {
    let (first, items) = (offsets[0].as_usize(), between(offsets));
    items + column_weight(&values.slice(first, items as usize))
}

fn between<O: OffsetSizeTrait>(offsets: &[O]) -> u64 {
    (offsets[offsets.len() - 1].as_usize() - offsets[0].as_usize()) as u64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        BinaryArray, DictionaryArray, FixedSizeListArray, Int32Array, Int32Builder, LargeStringArray, ListArray,
        MapBuilder, StringArray, StringBuilder, StructArray,
    };
    use arrow::datatypes::{Field, Int8Type, Int32Type};

    use super::*;

    fn batch(column: ArrayRef) -> RecordBatch {
        RecordBatch::try_from_iter([("a", column)]).expect("one column")
    }

    fn texts(lengths: &[usize]) -> ArrayRef {
        Arc::new(StringArray::from_iter_values(lengths.iter().map(|&length| "x".repeat(length))))
    }

    /// The rows of each piece, which are the rows of `column` in its order, whatever its chunks.
    fn pieces(column: &ArrayRef, rows: usize, weight: u64) -> Vec<usize> {
        let (whole, limits) = (batch(Arc::clone(column)), PieceLimits { rows, weight });
        let cut = |sizes: &[usize]| {
            let mut at = 0;
            let mut chunk = |size: usize| {
                let size = size.min(whole.num_rows() - at);
                at += size;
                whole.slice(at - size, size)
            };
            let mut chunks: Vec<_> = sizes.iter().map(|&size| chunk(size)).collect();
            chunks.push(chunk(usize::MAX));
            in_pieces(&whole.schema(), &chunks, limits).expect("small pieces")
        };
        let found = cut(&[]);
        assert_eq!(concat_batches(&whole.schema(), &found).expect("one schema"), whole);
        for sizes in [vec![1], vec![2, 3], vec![1; 5], vec![4]] {
            assert_eq!(cut(&sizes), found);
        }
        found.iter().map(RecordBatch::num_rows).collect()
    }

    #[test]
    fn a_piece_ends_before_the_limit_of_rows_or_bytes() {
        let column = texts(&[4, 4, 4, 1, 1, 1, 1, 1]);
        assert_eq!(pieces(&column, 100, 1 << 30), [8]);
        assert_eq!(pieces(&column, 3, 1 << 30), [3, 3, 2]);
        assert_eq!(pieces(&column, 8, 1 << 30), [8]);
        assert_eq!(pieces(&column, 100, 9), [2, 6]);
        assert_eq!(pieces(&column, 100, 8), [2, 5, 1]);
        assert_eq!(pieces(&column, 4, 8), [2, 4, 2]);
    }

    #[test]
    fn a_row_beyond_the_limit_is_a_piece() {
        assert_eq!(pieces(&texts(&[1, 50, 1, 60]), 100, 10), [1, 1, 1, 1]);
        assert_eq!(pieces(&texts(&[50, 1, 1]), 100, 10), [1, 2]);
        assert_eq!(pieces(&texts(&[0, 0, 50, 0, 0]), 100, 10), [2, 1, 2]);
    }

    /// Each column has rows of weight 6 alone.
    #[test]
    fn all_that_offsets_address_has_a_weight() {
        let list = |items: usize| {
            let rows = (0..4).map(|_| Some(vec![Some(1); items]));
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(rows)) as ArrayRef
        };
        let fixed = {
            let item = Arc::new(Field::new("item", DataType::Utf8, false));
            Arc::new(FixedSizeListArray::new(item, 2, texts(&[1, 5, 2, 4, 3, 3, 4, 2]), None)) as ArrayRef
        };
        let nested = {
            let field = |name: &str, column: &ArrayRef| Arc::new(Field::new(name, column.data_type().clone(), true));
            let (a, b) = (texts(&[2; 4]), list(4));
            Arc::new(StructArray::from(vec![(field("a", &a), a), (field("b", &b), b)])) as ArrayRef
        };
        let mut maps = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
        for _ in 0..4 {
            // An item of two columns, and four bytes.
            maps.keys().append_value("keys");
            maps.values().append_value(1);
            maps.append(true).unwrap();
        }
        let dictionary = ["abcdef", "ghijkl", "abcdef", "abcdef"].into_iter().collect::<DictionaryArray<Int8Type>>();
        for column in [
            texts(&[6; 4]),
            Arc::new(LargeStringArray::from(vec!["abcdef"; 4])),
            Arc::new(BinaryArray::from_vec(vec![b"abcdef"; 4])),
            list(6),
            fixed,
            nested,
            Arc::new(maps.finish()),
            Arc::new(dictionary),
        ] {
            assert_eq!(pieces(&column, 100, 13), [2, 2], "{}", column.data_type());
            assert_eq!(pieces(&column, 100, 23), [3, 1], "{}", column.data_type());
        }
        let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values(0..8));
        assert_eq!(pieces(&numbers, 100, 1), [8]);
        assert_eq!(PieceLimits::DEFAULT.weight.checked_mul(2), Some(1 << 31));
    }
}
