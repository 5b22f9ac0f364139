//! Finds the source rows of a batch by reading the log again without transforming it.

use std::ops::Range;

use forebay_delivery::{Plan, Start, WindowId};
use forebay_protocol::ReadOptions;

use super::Feed;
use super::plan::WindowPlan;
use crate::error::{Error, Result};

/// A row of a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceRow {
    /// The file's path or URL.
    pub file: String,
    /// The row in the file, from 0.
    pub row: u64,
}

impl Feed {
    /// The source rows of the rank's batch of global step `step` in `epoch`, in the batch's order. For a sample that
    /// derives from several rows, returns the first. Includes bad rows. Empty for a rank that takes no part in the
    /// epoch's last step.
    ///
    /// Step numbers depend on `options`. In the epoch where reading begins, steps count from that position, which need
    /// not be a multiple of the global batch.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), errors of reading the sources, and `Invalid` for a step that the epoch does not
    /// have.
    pub async fn trace(&self, options: &ReadOptions, epoch: u64, step: u64) -> Result<Vec<SourceRow>> {
        let (settings, begin) = self.resolve(options)?;
        let global = settings.batch_size.saturating_mul(settings.world_size);
        let begins_at = if begin.window.epoch == epoch { begin.offset } else { 0 };
        let step_at = match step.checked_sub(begins_at / global) {
            Some(steps) => begins_at.saturating_add(steps.saturating_mul(global)),
            // A step before the start of reading refers to the same global batch as in the earlier run.
            None => step.saturating_mul(global),
        };
        let first = step_at.saturating_add(settings.rank * settings.batch_size);
        let wanted = first..first.saturating_add(settings.batch_size);
        let at_least = step_at.saturating_add(if settings.drop_last { global } else { 1 });
        self.trace_offsets_of(epoch, wanted, at_least).await?.map_err(|samples| {
            let dropped = if settings.drop_last { ", without the last if it is incomplete" } else { "" };
            Error::invalid(format!("epoch {epoch} has no step {step}"))
                .with_hint(format!("it has {samples} samples, in global batches of {global}{dropped}"))
        })
    }

    /// The source rows of the offsets `wanted` in `epoch`, as in [`trace`](Self::trace); fewer at the epoch's end.
    ///
    /// # Errors
    /// Those of [`trace`](Self::trace).
    pub async fn trace_offsets(&self, epoch: u64, wanted: Range<u64>) -> Result<Vec<SourceRow>> {
        Ok(self.trace_offsets_of(epoch, wanted, 0).await?.unwrap_or_default())
    }

    /// The inner error is the number of offsets in the epoch, if it is less than `at_least`.
    async fn trace_offsets_of(
        &self,
        epoch: u64,
        wanted: Range<u64>,
        at_least: u64,
    ) -> Result<Result<Vec<SourceRow>, u64>> {
        // Begin at the window that holds the step if it is known, otherwise at the epoch's first window.
        let known = self.offsets_per_epoch();
        if let Some(offsets) = known.filter(|&offsets| wanted.start >= offsets || at_least > offsets) {
            return Ok(if at_least > offsets { Err(offsets) } else { Ok(Vec::new()) });
        }
        let from = Start::Offset { epoch, offset: if known.is_some() { wanted.start } else { 0 } };
        let (_, begin) = self.resolve(&ReadOptions { from, ..ReadOptions::default() })?;
        let plan = WindowPlan(std::sync::Arc::clone(&self.core().plan));
        let reading = self.runner.join(begin.window, epoch + 1);
        let (mut id, mut offset) = (begin.window, begin.window_offset);
        let mut rows = Vec::new();
        let end = if known.is_some() { wanted.end } else { wanted.end.max(at_least) };
        while offset < end {
            let window = reading.window(id).await?;
            let inside = wanted.start.max(offset)..wanted.end.min(offset + window.len());
            for origin in inside.filter_map(|at| window.origin_at(at - offset)) {
                let (file, row) = self.core().place(origin);
                rows.push(SourceRow { file: file.to_owned(), row });
            }
            offset += window.len();
            if plan.is_last(id) {
                break;
            }
            id = WindowId { index: id.index + 1, ..id };
            reading.advance(id);
        }
        Ok(if known.is_none() && offset < at_least { Err(offset) } else { Ok(rows) })
    }
}
