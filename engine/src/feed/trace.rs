//! Which source rows were in a batch: the log read again, without transforming anything.

use forebay_delivery::{Plan, Start, WindowId};

use super::Feed;
use super::options::ReadOptions;
use super::plan::WindowPlan;
use crate::error::Result;

/// A row of a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceRow {
    /// The file's path or URL.
    pub file: String,
    /// The row in the file, from 0.
    pub row: u64,
}

impl Feed {
    /// The source rows of the rank's batch of global step `step` in `epoch`, in the batch's order, of a sample that is
    /// made of several rows the first; rows that turn out to be bad are among them. Empty past the epoch's end.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), and of reading the sources.
    pub async fn trace(&self, options: &ReadOptions, epoch: u64, step: u64) -> Result<Vec<SourceRow>> {
        let of = |offset| ReadOptions { from: Start::Offset { epoch, offset }, ..options.clone() };
        let (settings, _) = self.resolve(&of(0))?;
        let global = settings.batch_size.saturating_mul(settings.world_size);
        let first = step.saturating_mul(global).saturating_add(settings.rank * settings.batch_size);
        let wanted = first..first.saturating_add(settings.batch_size);
        // From the window that holds the step, where that is known; otherwise windows are counted from the epoch's first.
        let known = self.offsets_per_epoch();
        if known.is_some_and(|offsets| first >= offsets) {
            return Ok(Vec::new());
        }
        let (_, begin) = self.resolve(&of(if known.is_some() { first } else { 0 }))?;
        let plan = WindowPlan(std::sync::Arc::clone(&self.core().plan));
        let reading = self.runner.join(begin.window, epoch + 1);
        let (mut id, mut offset) = (begin.window, begin.window_offset);
        let mut rows = Vec::new();
        while offset < wanted.end {
            let window = reading.window(id).await?;
            let inside = wanted.start.max(offset)..wanted.end.min(offset + window.len());
            for origin in inside.filter_map(|at| window.origin_at(at - offset)) {
                let (file, row) = self.core().place(origin);
                rows.push(SourceRow { file: file.to_owned(), row });
            }
            if plan.is_last(id) {
                break;
            }
            offset += window.len();
            id = WindowId { index: id.index + 1, ..id };
            reading.advance(id);
        }
        Ok(rows)
    }
}
