//! The record of quarantined rows: one small Parquet file per batch with bad rows, or per piece of a window if a worker
//! computes for several readers.
//!
//! A file is written before its batch is delivered, so every missing row is recorded. Its name is the batch's position
//! in the log, so a repeated run overwrites the same files.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray, UInt64Array};

use crate::error::{Error, Result};

/// The URL of a file. `name` identifies an offset or a window.
pub(crate) fn url(folder: &str, epoch: u64, name: &str) -> String {
    format!("{folder}/epoch-{epoch:05}-{name}.parquet")
}

/// A quarantined row.
pub(crate) struct QuarantinedRow<'a> {
    pub(crate) file: &'a str,
    pub(crate) row: u64,
    pub(crate) reason: &'a str,
}

/// Columns: feed, epoch, file, row (from 0), reason.
pub(crate) fn records(feed: &str, epoch: u64, rows: &[QuarantinedRow<'_>]) -> Result<RecordBatch> {
    let text = |of: &dyn Fn(&QuarantinedRow<'_>) -> String| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(rows.iter().map(of)))
    };
    RecordBatch::try_from_iter([
        ("feed", text(&|_| feed.to_owned())),
        ("epoch", Arc::new(UInt64Array::from(vec![epoch; rows.len()])) as ArrayRef),
        ("file", text(&|row| row.file.to_owned())),
        ("row", Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.row)))),
        ("reason", text(&|row| row.reason.to_owned())),
    ])
    .map_err(|error| Error::internal(format!("cannot record quarantined rows: {error}")))
}
