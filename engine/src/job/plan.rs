//! The division of a feed's first epoch into files, and an estimate of them from a sample.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use forebay_arrays::batch_bytes;
use forebay_delivery::WindowId;

use crate::error::Result;
use crate::feed::{FeedCore, Window};

/// The rows of the first window from which sizes are estimated, and the number of places that they are taken from.
const SAMPLE_ROWS: u64 = 64;
const SAMPLE_PLACES: u64 = 8;

/// The division of a feed's first epoch into files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobPlan {
    /// Windows of the epoch.
    pub(super) windows: u32,
    /// Windows in each file but the last.
    pub(super) windows_per_file: u32,
}

impl JobPlan {
    pub(super) fn new(core: &FeedCore, sample: &Sample, file_size: u64) -> Self {
        let epoch = core.plan.epoch(0);
        let windows = epoch.windows();
        let window_rows = epoch.rows() / u64::from(windows.max(1));
        let window_bytes = sample.bytes_of(window_rows).max(1);
        let windows_per_file = u32::try_from(file_size / window_bytes).unwrap_or(u32::MAX).clamp(1, windows.max(1));
        Self { windows, windows_per_file }
    }

    /// The division that another process has found.
    pub(super) fn of_files(core: &FeedCore, windows_per_file: u32) -> Self {
        Self { windows: core.plan.epoch(0).windows(), windows_per_file: windows_per_file.max(1) }
    }

    /// The number of files. A feed without windows is one file without rows, which keeps the schema.
    pub(super) fn files(&self) -> u32 {
        self.windows.div_ceil(self.windows_per_file).max(1)
    }

    /// The windows of file `ordinal`.
    pub(super) fn windows_of(&self, ordinal: u32) -> Range<u32> {
        let first = ordinal.saturating_mul(self.windows_per_file).min(self.windows);
        first..first.saturating_add(self.windows_per_file).min(self.windows)
    }
}

/// Samples of the first window. The same feed has the same sample in every process.
pub(super) struct Sample {
    /// Source rows that the window was made of.
    window_rows: u64,
    /// Positions of the window.
    window_len: u64,
    /// Positions that were computed.
    taken: u64,
    /// Rows among them that could not be computed.
    pub(super) bad: u64,
    pub(super) batches: Vec<RecordBatch>,
}

impl Sample {
    pub(super) async fn take(core: &Arc<FeedCore>) -> Result<Self> {
        let epoch = core.plan.epoch(0);
        if epoch.windows() == 0 {
            return Ok(Self { window_rows: 0, window_len: 0, taken: 0, bad: 0, batches: Vec::new() });
        }
        let prepared = Arc::clone(core);
        let mut task =
            core.executor.spawn(async move { Window::prepare(&prepared, WindowId { epoch: 0, index: 0 }).await });
        let window = task.join().await??;
        let len = window.len();
        let ranges = sampled(len);
        let taken = ranges.iter().map(|range| range.end - range.start).sum();
        let mut task = core.executor.spawn(async move { window.transform(&ranges, false).await });
        let rows = task.join().await??;
        let (window_rows, bad) = (epoch.rows_before(1), rows.bad.len() as u64);
        Ok(Self { window_rows, window_len: len, taken, bad, batches: rows.batches })
    }

    /// Rows in the sample.
    pub(super) fn rows(&self) -> u64 {
        self.batches.iter().map(|batch| batch.num_rows() as u64).sum()
    }

    /// The estimated number of samples that `source_rows` rows become.
    pub(super) fn rows_of(&self, source_rows: u64) -> u64 {
        let per_position = self.rows() as f64 / self.taken.max(1) as f64;
        (source_rows as f64 * self.window_len as f64 / self.window_rows.max(1) as f64 * per_position) as u64
    }

    /// The estimated bytes in memory of the samples that `source_rows` rows become.
    fn bytes_of(&self, source_rows: u64) -> u64 {
        let bytes: u64 = self.batches.iter().map(batch_bytes).sum();
        (self.rows_of(source_rows) as f64 * bytes as f64 / self.rows().max(1) as f64) as u64
    }
}

/// The positions of a window of `len` that are in the sample: runs at equal distances.
fn sampled(len: u64) -> Vec<Range<u64>> {
    if len <= SAMPLE_ROWS {
        return std::iter::once(0..len).collect();
    }
    let run = SAMPLE_ROWS / SAMPLE_PLACES;
    (0..SAMPLE_PLACES).map(|place| place * (len - run) / (SAMPLE_PLACES - 1)).map(|first| first..first + run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_window_is_in_one_file() {
        for (windows, windows_per_file) in [(0, 1), (1, 1), (7, 3), (6, 3), (5, 9)] {
            let plan = JobPlan { windows, windows_per_file };
            let all: Vec<u32> = (0..plan.files()).flat_map(|file| plan.windows_of(file)).collect();
            assert_eq!(all, (0..windows).collect::<Vec<_>>());
            assert!(windows == 0 || (0..plan.files()).all(|file| !plan.windows_of(file).is_empty()));
        }
    }

    #[test]
    fn a_sample_lies_in_its_window_and_has_no_row_twice() {
        for len in [0, 1, 63, 64, 65, 80, 100_000] {
            let ranges = sampled(len);
            let rows: Vec<u64> = ranges.iter().flat_map(Clone::clone).collect();
            assert_eq!(rows.len() as u64, len.min(SAMPLE_ROWS));
            assert!(rows.windows(2).all(|pair| pair[0] < pair[1]) && rows.iter().all(|&row| row < len));
        }
    }
}
