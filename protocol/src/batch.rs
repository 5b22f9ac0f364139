//! Finished batches, as returned by every reader of a feed.

use arrow::array::RecordBatch;
use forebay_delivery::Token;

/// A finished batch.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Global step in the epoch, from 0: the same on all ranks.
    pub step: u64,
    /// Offset of the batch's first sample in the epoch.
    pub offset: u64,
    /// Offsets that the batch covers, including skipped rows, quarantined rows and gaps.
    pub positions: u64,
    /// Offsets without any row: the last rows of a window may not fill a step of a length bucket.
    pub gaps: u64,
    /// The samples.
    pub records: RecordBatch,
    /// Resumes after this batch's global step.
    pub token: Token,
}

impl Batch {
    /// The number of bad rows omitted from the batch.
    pub fn bad_rows(&self) -> u64 {
        self.positions.saturating_sub(self.records.num_rows() as u64 + self.gaps)
    }
}
