//! Finished batches, as every reader of a feed hands them out.

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
    /// Offsets that the batch covers; rows that were skipped or quarantined are among them, and gaps.
    pub positions: u64,
    /// Offsets that have no row, bad or good: the last rows of a window may not fill a step of a length bucket.
    pub gaps: u64,
    /// The samples.
    pub records: RecordBatch,
    /// Where to go on after this batch's global step.
    pub token: Token,
}

impl Batch {
    /// How many rows were left out for being bad.
    pub fn bad_rows(&self) -> u64 {
        self.positions.saturating_sub(self.records.num_rows() as u64 + self.gaps)
    }
}
