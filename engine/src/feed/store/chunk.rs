//! Rows of a window that are transformed together.

use std::ops::Range;

use arrow::array::RecordBatch;
use forebay_arrays::batch_bytes;
use forebay_delivery::WindowId;
use forebay_protocol::OnError;

use super::super::feed_core::FeedCore;
use super::super::window::Window;
use crate::error::{Error, Result};

/// The transformed rows of a chunk.
pub(super) struct ChunkRows {
    first: u64,
    records: Vec<RecordBatch>,
    /// Positions without a record (bad rows and gaps), ascending.
    absent: Vec<u64>,
    /// The first bad row, if bad rows are raised.
    raised: Option<(u64, Error)>,
    /// The bytes of these rows alone. They may share their window's memory.
    pub(super) bytes: u64,
}

impl ChunkRows {
    /// Adds the records of `rows` to `into`, without copying.
    pub(super) fn slice(&self, rows: &Range<u64>, into: &mut Vec<RecordBatch>) -> Result<()> {
        if let Some((_, error)) = self.raised.as_ref().filter(|(row, _)| *row < rows.end) {
            return Err(error.clone());
        }
        let good = |row: u64| (row - self.first) as usize - self.absent.partition_point(|&absent| absent < row);
        let (mut from, to, mut before) = (good(rows.start), good(rows.end), 0);
        for batch in &self.records {
            let end = before + batch.num_rows();
            if from < end && from < to {
                into.push(batch.slice(from - before, to.min(end) - from));
                from = to.min(end);
            }
            before = end;
        }
        debug_assert_eq!(from, to, "a stage gives one row for each that is not bad");
        Ok(())
    }
}

/// Transforms the rows `range` of `window`.
pub(super) async fn transform(core: &FeedCore, id: WindowId, window: &Window, range: Range<u64>) -> Result<ChunkRows> {
    let raise = core.settings.on_error == OnError::Raise;
    let transformed = window.transform(std::slice::from_ref(&range), raise).await?;
    let mut chunk = ChunkRows {
        first: range.start,
        bytes: transformed.batches.iter().map(batch_bytes).sum(),
        records: transformed.batches,
        absent: window.place_gaps(&range),
        raised: None,
    };
    if transformed.bad.is_empty() {
        return Ok(chunk);
    }
    let bad = window.place_bad(&range, transformed.bad);
    match raise {
        true => chunk.raised = bad.first().map(|(row, bad)| (*row, core.bad_row_error(bad))),
        false => {
            chunk.absent.extend(bad.iter().map(|(row, _)| *row));
            chunk.absent.sort_unstable();
        }
    }
    if core.settings.on_error == OnError::Quarantine {
        let bad: Vec<_> = bad.into_iter().map(|(_, bad)| bad).collect();
        let name = format!("window-{:06}-row-{:09}", id.index, range.start);
        core.quarantine(&bad, id.epoch, &name).await?;
    }
    Ok(chunk)
}
