//! Rows of a window that are transformed together.

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Weak;

use arrow::array::RecordBatch;
use forebay_protocol::OnError;
use futures::FutureExt;

use super::{Filling, StoredWindow};
use crate::compile::slice_bytes;
use crate::error::{Error, Result};
use crate::executor::panic_text;

/// The transformed rows of a chunk.
pub(super) struct ChunkRows {
    first: u64,
    records: Vec<RecordBatch>,
    /// Positions of the window without a record, ascending: bad rows and gaps.
    absent: Vec<u64>,
    /// Where bad rows are raised, the first of them.
    raised: Option<(u64, Error)>,
    /// Of these rows alone: they may be parts of their window's memory.
    pub(super) bytes: u64,
}

impl ChunkRows {
    /// Adds the records of `rows`, without copying.
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

pub(super) async fn compute(stored: Weak<StoredWindow>, index: usize, ahead: Option<Filling>) {
    let Some(stored) = stored.upgrade() else { return };
    let result = match AssertUnwindSafe(transform(&stored, index)).catch_unwind().await {
        Ok(result) => result,
        Err(panic) => Err(Error::internal(format!("computing a window panicked: {}", panic_text(panic.as_ref())))),
    };
    // Before the next chunk is looked for.
    drop(ahead);
    stored.done(index, result);
}

async fn transform(stored: &StoredWindow, index: usize) -> Result<ChunkRows> {
    let (core, prepared) = (&stored.core, stored.prepared().expect("chunks are of prepared windows")?);
    let range = prepared.rows(index);
    let raise = core.settings.on_error == OnError::Raise;
    let transformed = prepared.window.transform(core, std::slice::from_ref(&range), raise).await?;
    let mut chunk = ChunkRows {
        first: range.start,
        bytes: transformed.batches.iter().map(logical_bytes).sum(),
        records: transformed.batches,
        absent: prepared.window.place_gaps(&range),
        raised: None,
    };
    if transformed.bad.is_empty() {
        return Ok(chunk);
    }
    let bad = prepared.window.place_bad(&range, transformed.bad);
    match raise {
        true => chunk.raised = bad.first().map(|(row, bad)| (*row, core.bad_row_error(bad))),
        false => {
            chunk.absent.extend(bad.iter().map(|(row, _)| *row));
            chunk.absent.sort_unstable();
        }
    }
    if core.settings.on_error == OnError::Quarantine {
        let bad: Vec<_> = bad.into_iter().map(|(_, bad)| bad).collect();
        let name = format!("window-{:06}-row-{:09}", stored.key.1.index, range.start);
        core.quarantine(&bad, stored.key.1.epoch, &name).await?;
    }
    Ok(chunk)
}

fn logical_bytes(batch: &RecordBatch) -> u64 {
    batch.columns().iter().map(slice_bytes).sum()
}
