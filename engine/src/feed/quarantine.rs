//! The record of rows that were left out: one small Parquet file per batch that had any.
//!
//! A file is written before its batch is handed out and named by the batch's place in the log, so a row is on record
//! whenever its absence was seen, and a run that is repeated writes the same files again.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray, UInt64Array};

use crate::error::{Error, Result};

pub(crate) fn url(folder: &str, epoch: u64, offset: u64) -> String {
    format!("{folder}/epoch-{epoch:05}-offset-{offset:012}.parquet")
}

/// Columns: pipeline, epoch, file, row (from 0), reason.
pub(crate) fn records(pipeline: &str, epoch: u64, rows: &[((&str, u64), &str)]) -> Result<RecordBatch> {
    let text = |of: &dyn Fn(&((&str, u64), &str)) -> String| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(rows.iter().map(of)))
    };
    RecordBatch::try_from_iter([
        ("pipeline", text(&|_| pipeline.to_owned())),
        ("epoch", Arc::new(UInt64Array::from(vec![epoch; rows.len()])) as ArrayRef),
        ("file", text(&|((file, _), _)| (*file).to_owned())),
        ("row", Arc::new(UInt64Array::from_iter_values(rows.iter().map(|((_, row), _)| *row)))),
        ("reason", text(&|(_, reason)| (*reason).to_owned())),
    ])
    .map_err(|error| Error::internal(format!("cannot record quarantined rows: {error}")))
}
