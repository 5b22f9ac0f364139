//! The rows that one rank takes of one window: arithmetic on offsets, the same on the sending worker and the cutting
//! trainer.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::settings::ReadSettings;

/// A rank's rows of a window, as runs that each belong to one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// The offset of the window's first row.
    pub first: u64,
    /// Rows in the window.
    pub rows: u64,
    /// The offset from which global steps are counted. Rows before it are not taken.
    pub origin: u64,
    /// The offset before which to stop.
    pub end: u64,
    /// Samples per batch of one rank.
    pub batch_size: u64,
    /// The rank.
    pub rank: u64,
    /// The number of ranks.
    pub world_size: u64,
}

impl Slice {
    /// Returns the slice that a rank with `settings` takes of the window with the offsets `offsets`.
    pub fn new(settings: &ReadSettings, origin: u64, end: u64, offsets: Range<u64>) -> Self {
        let ReadSettings { batch_size, rank, world_size, .. } = *settings;
        Self { first: offsets.start, rows: offsets.end - offsets.start, origin, end, batch_size, rank, world_size }
    }

    /// Returns whether the numbers are consistent and small enough to compute with. Any client may have sent them.
    pub fn is_valid(&self) -> bool {
        let global = self.batch_size.checked_mul(self.world_size);
        global.is_some_and(|global| global > 0 && global <= 1 << 32)
            && self.rank < self.world_size
            && self.first.checked_add(self.rows).is_some_and(|end| end <= 1 << 62)
            && self.origin <= 1 << 62
    }

    /// Returns the first run that ends after `row`, from `row` on: rows of the window that belong to one batch.
    pub fn run(&self, row: u64) -> Option<Range<u64>> {
        let global = self.batch_size * self.world_size;
        let offset = (self.first + row).max(self.origin);
        let step = self.origin + (offset - self.origin) / global * global;
        let mut start = step + self.rank * self.batch_size;
        if offset >= start + self.batch_size {
            start += global;
        }
        let end = (start + self.batch_size).min(self.first + self.rows).min(self.end);
        let start = start.max(offset);
        (start < end).then(|| start - self.first..end - self.first)
    }

    /// Returns all runs from `row` on.
    pub fn runs(self, row: u64) -> impl Iterator<Item = Range<u64>> {
        std::iter::successors(self.run(row), move |run| self.run(run.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cutter;

    #[test]
    fn runs_are_the_parts_that_the_cutter_cuts() {
        let windows = [5u64, 0, 3, 9, 40, 4];
        for batch_size in [1, 2, 3, 8, 50] {
            for world_size in [1, 2, 3, 4] {
                for origin in [0, 1, 7, 8, 20, 70] {
                    for rank in 0..world_size {
                        let settings = ReadSettings { batch_size, epochs: 1, drop_last: false, rank, world_size };
                        let mut cutter = Cutter::new(settings, origin);
                        let (mut cut, mut run, mut first) = (Vec::new(), Vec::new(), 0);
                        for (index, rows) in windows.into_iter().enumerate() {
                            let slice = Slice::new(&settings, origin, u64::MAX, first..first + rows);
                            assert!(slice.is_valid());
                            run.extend(slice.runs(0).map(|rows| (index, rows)));
                            cutter.push(index, first..first + rows, index + 1 == windows.len());
                            while let Some(whole) = cutter.next() {
                                cut.extend(whole.parts);
                            }
                            first += rows;
                        }
                        assert_eq!(run, cut);
                    }
                }
            }
        }
    }

    #[test]
    fn runs_may_begin_anywhere() {
        let settings = ReadSettings { batch_size: 4, epochs: 1, drop_last: false, rank: 1, world_size: 2 };
        let slice = Slice::new(&settings, 0, u64::MAX, 10..40);
        // Rank 1 has the offsets 12..16, 20..24, 28..32, 36..40.
        assert_eq!(slice.runs(0).collect::<Vec<_>>(), [2..6, 10..14, 18..22, 26..30]);
        assert_eq!(slice.runs(4).next(), Some(4..6));
        assert_eq!(slice.run(30), None);
    }
}
