//! Copies samples that share memory with their source rows.
//!
//! Adjacent rows of a window are transformed as a slice, without a copy. A column that the query passes through
//! unchanged then still refers to the window's memory, so a consumer that keeps one batch would keep the whole window.

use std::collections::HashSet;

use arrow::array::{Array, ArrayData, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::concat;

use crate::error::{Error, Result};

/// The addresses of allocations.
type Places = HashSet<*const u8>;

/// Copies the columns of `batches` that share memory with `source`.
pub(super) fn copied_out(batches: Vec<RecordBatch>, source: &RecordBatch) -> Result<Vec<RecordBatch>> {
    let mut places = Places::new();
    source.columns().iter().for_each(|column| visit(&column.to_data(), &mut |place| _ = places.insert(place)));
    batches.into_iter().map(|batch| without(batch, &places)).collect()
}

fn without(batch: RecordBatch, places: &Places) -> Result<RecordBatch> {
    let shares = |column: &ArrayRef| {
        let mut shares = false;
        visit(&column.to_data(), &mut |place| shares |= places.contains(&place));
        shares
    };
    if !batch.columns().iter().any(shares) {
        return Ok(batch);
    }
    let columns = batch.columns().iter().map(|column| if shares(column) { copy(column) } else { Ok(column.clone()) });
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let copied_out = RecordBatch::try_new_with_options(batch.schema(), columns.collect::<Result<_>>()?, &options);
    copied_out.map_err(|error| Error::internal(format!("samples cannot be copied: {error}")))
}

/// Concatenates two halves, because Arrow does not copy an array that it concatenates with nothing.
fn copy(column: &ArrayRef) -> Result<ArrayRef> {
    let half = column.len() / 2;
    let (first, second) = (column.slice(0, half), column.slice(half, column.len() - half));
    concat(&[&first, &second]).map_err(|error| Error::internal(format!("samples cannot be copied: {error}")))
}

fn visit(data: &ArrayData, found: &mut impl FnMut(*const u8)) {
    data.buffers().iter().for_each(|buffer| found(buffer.data_ptr().as_ptr()));
    data.nulls().into_iter().for_each(|nulls| found(nulls.buffer().data_ptr().as_ptr()));
    data.child_data().iter().for_each(|child| visit(child, found));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, ListArray, StringArray};
    use arrow::datatypes::Int32Type;

    use super::*;

    fn places(batch: &RecordBatch) -> Places {
        let mut places = Places::new();
        batch.columns().iter().for_each(|column| visit(&column.to_data(), &mut |place| _ = places.insert(place)));
        places
    }

    #[test]
    fn only_what_is_shared_is_copied() {
        let lists = [Some(vec![Some(1)]), None, Some(vec![]), Some(vec![Some(2), None])];
        let source = RecordBatch::try_from_iter([
            ("a", Arc::new(Int64Array::from(vec![Some(1), None, Some(3), Some(4)])) as ArrayRef),
            ("b", Arc::new(StringArray::from(vec!["x", "", "yz", "w"]))),
            ("c", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists))),
        ])
        .unwrap();
        for (from, len) in [(0, 4), (1, 3), (3, 1), (2, 0)] {
            let slice = source.slice(from, len);
            let computed: ArrayRef = Arc::new(Int64Array::from_iter_values(0..len as i64));
            let mut columns = slice.columns().to_vec();
            columns.push(Arc::clone(&computed));
            let fields = ["a", "b", "c", "d"].into_iter().zip(columns);
            let mixed =
                RecordBatch::try_from_iter_with_nullable(fields.map(|(name, column)| (name, column, true))).unwrap();
            let [own] = &copied_out(vec![mixed.clone()], &source).unwrap()[..] else { panic!("one batch in, one out") };
            assert_eq!(own, &mixed);
            assert!(places(own).is_disjoint(&places(&source)) || len == 0);
            assert!(Arc::ptr_eq(own.column(3), &computed));
        }
    }
}
