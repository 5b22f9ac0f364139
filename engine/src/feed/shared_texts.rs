//! Texts that are read as dictionaries: all rows of a window share one dictionary.
//!
//! Each row range has its own dictionary when it is read. With one dictionary per window, taking and concatenating rows
//! only moves numbers, and the result for a text is known for every piece of the window.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, DictionaryArray, RecordBatch, RecordBatchOptions};
use arrow::compute::concat;
use arrow::datatypes::Int32Type;
use arrow::error::ArrowError;

use crate::compile::{SourceRows, Stage};
use crate::error::{Error, Result};

/// The size of the result kept for each text: usually one number.
const RESULT_BYTES: usize = size_of::<i64>();

/// Merges the dictionaries of a window's sources into one per column.
pub(super) fn share(sources: &mut [SourceRows], stage: &Stage) -> Result<()> {
    if sources.len() < 2 {
        return Ok(());
    }
    let cannot = |error| Error::internal(format!("dictionaries cannot be joined: {error}"));
    for at in places(stage) {
        let columns: Vec<ArrayRef> = sources.iter().map(|rows| Arc::clone(rows.batch.column(at))).collect();
        for (rows, column) in sources.iter_mut().zip(counting_in_one(&columns).map_err(cannot)?) {
            let mut all = rows.batch.columns().to_vec();
            all[at] = Arc::new(column);
            let options = RecordBatchOptions::new().with_row_count(Some(rows.batch.num_rows()));
            rows.batch = RecordBatch::try_new_with_options(rows.batch.schema(), all, &options).map_err(cannot)?;
        }
    }
    Ok(())
}

/// Bytes of a window's sources, counting each dictionary once, plus the approximate bytes of the results for their
/// texts.
pub(super) fn memory_size(sources: &[SourceRows], stage: &Stage) -> usize {
    let Some(first) = sources.first() else { return 0 };
    let counted: usize = sources.iter().map(|rows| rows.batch.get_array_memory_size()).sum();
    let texts = || places(stage).map(|at| first.batch.column(at).as_dictionary::<Int32Type>().values());
    let again: usize = texts().map(|texts| (sources.len() - 1) * texts.get_array_memory_size()).sum();
    let results: usize = texts().map(|texts| texts.len() * RESULT_BYTES).sum();
    counted - again + results
}

/// The indices of the dictionaries among the columns read.
fn places(stage: &Stage) -> impl Iterator<Item = usize> {
    let at =
        |column| stage.read_columns().binary_search(column).expect("categories are among the columns that are read");
    stage.read_categories().iter().map(at)
}

/// The same columns over one dictionary, the concatenation of theirs.
fn counting_in_one(columns: &[ArrayRef]) -> Result<Vec<DictionaryArray<Int32Type>>, ArrowError> {
    let own: Vec<&DictionaryArray<Int32Type>> = columns.iter().map(|column| column.as_dictionary()).collect();
    let texts: Vec<&dyn Array> = own.iter().map(|own| own.values().as_ref()).collect();
    let texts = concat(&texts)?;
    let mut before = 0;
    let mut columns = Vec::with_capacity(own.len());
    for own in own {
        // Values under nulls are arbitrary.
        let numbers = own.keys().unary::<_, Int32Type>(|number| number.wrapping_add(before));
        columns.push(DictionaryArray::try_new(numbers, Arc::clone(&texts))?);
        before += own.values().len() as i32;
    }
    Ok(columns)
}

/// What `of` makes of columns: of their numbers only, where these count in the same dictionary.
pub(super) fn by_numbers(
    columns: &[ArrayRef],
    of: impl FnOnce(&[&dyn Array]) -> Result<ArrayRef, ArrowError>,
) -> Result<ArrayRef, ArrowError> {
    let dictionaries: Option<Vec<_>> = columns.iter().map(|column| column.as_dictionary_opt::<Int32Type>()).collect();
    match dictionaries.as_deref() {
        Some([first, others @ ..]) if others.iter().all(|other| Arc::ptr_eq(other.values(), first.values())) => {
            let numbers: Vec<&dyn Array> =
                std::iter::once(first).chain(others).map(|it| it.keys() as &dyn Array).collect();
            let numbers = of(&numbers)?;
            Ok(Arc::new(DictionaryArray::try_new(
                numbers.as_primitive::<Int32Type>().clone(),
                Arc::clone(first.values()),
            )?))
        }
        _ => of(&columns.iter().map(AsRef::as_ref).collect::<Vec<_>>()),
    }
}
