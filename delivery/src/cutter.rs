//! Cutting a rank's batches from the log: arithmetic on offsets, without I/O.
//!
//! Global step g with world size n and batch size B is the offsets [o, o + nB); rank r takes [o + rB, o + (r + 1)B).
//! Windows arrive in order, each with its first offset and row count. A cut is complete when its last row is covered.

use std::ops::Range;

use crate::rules::{Rule, holds};
use crate::settings::ReadSettings;

/// One batch of one rank: its offsets, and the rows of windows that hold them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut<W> {
    /// The global step in its epoch.
    pub step: u64,
    /// The offsets it covers.
    pub offsets: Range<u64>,
    /// The first offset of the next global step.
    pub next_step_at: u64,
    /// Rows of windows, in order.
    pub parts: Vec<(W, Range<u64>)>,
}

#[derive(Debug)]
/// Cuts one epoch, one batch at a time, because a window may hold many small batches.
pub struct Cutter<W> {
    settings: ReadSettings,
    /// The first offset of the step that is being filled.
    step_at: u64,
    open: Vec<(W, Range<u64>)>,
    /// The window that is being cut.
    current: Option<CurrentWindow<W>>,
    /// With `drop_last`, a complete cut whose global step is not yet known to be complete.
    held: Option<Cut<W>>,
}

#[derive(Debug)]
struct CurrentWindow<W> {
    window: W,
    offsets: Range<u64>,
    last_of_epoch: bool,
}

impl<W: Clone> Cutter<W> {
    /// Begins an epoch at `offset`, the first offset of a global step.
    pub fn new(settings: ReadSettings, offset: u64) -> Self {
        Self { settings, step_at: offset, open: Vec::new(), current: None, held: None }
    }

    fn global_batch(&self) -> u64 {
        self.settings.global_batch()
    }

    /// Takes the next window, which covers `offsets`. The window before it must be cut to its end.
    pub fn push(&mut self, window: W, offsets: Range<u64>, last_of_epoch: bool) {
        debug_assert!(self.current.is_none(), "the window before is not cut to its end");
        self.current = Some(CurrentWindow { window, offsets, last_of_epoch });
    }

    /// Returns the next cut that the window completes; `None` when the cutter needs another window.
    #[expect(
        clippy::should_implement_trait,
        reason = "it returns `None` at each window's end, and cuts again after the next `push`"
    )]
    pub fn next(&mut self) -> Option<Cut<W>> {
        let current = self.current.take()?;
        let (covered, last) = (current.offsets.end, current.last_of_epoch);
        if self.held.as_ref().is_some_and(|cut| cut.next_step_at <= covered) {
            self.current = Some(current);
            return self.held.take();
        }
        let start = self.step_at + self.settings.rank * self.settings.batch_size;
        let end = start + self.settings.batch_size;
        // No cut follows a step that is held back: the rest of that step lies in later windows, or is missing.
        if self.held.is_none() {
            let part = start.max(current.offsets.start)..end.min(covered);
            if part.start < part.end {
                let rows = part.start - current.offsets.start..part.end - current.offsets.start;
                self.open.push((current.window.clone(), rows));
            }
            if end <= covered {
                let cut = self.close(start..end);
                if !self.settings.drop_last || cut.next_step_at <= covered || !holds(Rule::DropsIncompleteSteps) {
                    self.current = Some(current);
                    return Some(cut);
                }
                self.held = Some(cut);
            } else if last && start < covered && !self.settings.drop_last {
                return Some(self.close(start..covered));
            }
        }
        if last {
            self.held = None;
        }
        None
    }

    fn close(&mut self, offsets: Range<u64>) -> Cut<W> {
        let step = self.step_at / self.global_batch();
        self.step_at += self.global_batch();
        let parts = std::mem::take(&mut self.open);
        Cut { step, offsets, next_step_at: self.step_at, parts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(batch_size: u64, rank: u64, world_size: u64, drop_last: bool) -> ReadSettings {
        ReadSettings { batch_size, epochs: 1, drop_last, rank, world_size }
    }

    /// Cuts an epoch whose windows have the given row counts.
    fn cut(settings: ReadSettings, from: u64, windows: &[u64]) -> Vec<Cut<usize>> {
        let mut cutter = Cutter::new(settings, from);
        let mut at = 0;
        let mut cuts = Vec::new();
        for (index, rows) in windows.iter().enumerate() {
            cutter.push(index, at..at + rows, index + 1 == windows.len());
            cuts.extend(std::iter::from_fn(|| cutter.next()));
            at += rows;
        }
        cuts
    }

    /// Returns the offsets that the cut's parts cover, to compare with its own `offsets`.
    fn covered(cut: &Cut<usize>, windows: &[u64]) -> Vec<u64> {
        cut.parts
            .iter()
            .flat_map(|(window, rows)| {
                let first: u64 = windows[..*window].iter().sum();
                first + rows.start..first + rows.end
            })
            .collect()
    }

    #[test]
    fn every_offset_is_cut_once_for_any_windows_ranks_and_batches() {
        let shapes: [&[u64]; 6] = [&[10], &[3, 0, 4, 1, 9], &[0, 0, 5], &[1; 13], &[40, 2], &[7, 0]];
        for windows in shapes {
            let total: u64 = windows.iter().sum();
            for batch_size in [1, 2, 3, 8, 50] {
                for world_size in [1, 2, 3, 4] {
                    for from in 0..=total + 1 {
                        let mut seen = Vec::new();
                        for rank in 0..world_size {
                            for cut in cut(settings(batch_size, rank, world_size, false), from, windows) {
                                assert_eq!(covered(&cut, windows), cut.offsets.clone().collect::<Vec<_>>());
                                seen.extend(cut.offsets);
                            }
                        }
                        seen.sort_unstable();
                        assert_eq!(seen, (from..total.max(from)).collect::<Vec<_>>());
                    }
                }
            }
        }
    }

    #[test]
    fn drop_last_gives_every_rank_the_same_number_of_whole_batches() {
        let windows = [5, 0, 3, 9, 4];
        for batch_size in 1..=6 {
            for world_size in 1..=4 {
                let counts: Vec<_> = (0..world_size)
                    .map(|rank| {
                        let cuts = cut(settings(batch_size, rank, world_size, true), 0, &windows);
                        assert!(cuts.iter().all(|cut| cut.offsets.end - cut.offsets.start == batch_size));
                        cuts.len() as u64
                    })
                    .collect();
                assert!(counts.iter().all(|&count| count == 21 / (batch_size * world_size)), "{counts:?}");
            }
        }
    }

    #[test]
    fn a_resumed_rank_gets_the_rest_of_the_whole_run() {
        let windows = [5, 0, 3, 9, 4];
        let whole = cut(settings(2, 1, 2, false), 0, &windows);
        for (done, first) in whole.iter().enumerate() {
            let resumed = cut(settings(2, 1, 2, false), first.next_step_at, &windows);
            assert_eq!(resumed, whole[done + 1..]);
        }
    }
}
