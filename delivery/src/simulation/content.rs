//! What a row holds, and the bytes that workers compute of it.
//!
//! The content of a row follows from the feed, the epoch, the window and the row. A worker of another build computes
//! other bytes of some rows. A bad row is left out on every worker.

use super::random::hash;
use super::world::SimulatedPlan;
use crate::WindowId;

/// The build of the dispatchers, and of the workers that they let in.
pub(super) const BUILD: u64 = 0;

/// Returns what a worker of `build` computes of a row; `None` if the row is bad.
pub(super) fn content(plan: &SimulatedPlan, window: WindowId, row: u64, build: u64) -> Option<u64> {
    let content = hash(&[plan.seed, 3, window.epoch, u64::from(window.index), row]);
    let is_bad = content >> 32 & 15 < plan.bad;
    // Most functions give the same bytes in both builds.
    let is_same = content & 3 != 0;
    (!is_bad).then_some(if is_same { content } else { content ^ build })
}

/// Returns the digest of what a build computes of fixed rows, which a worker tells when it joins.
pub(super) fn probe(build: u64) -> u64 {
    let plan = SimulatedPlan { seed: 0, windows_max: 1, rows_max: 64, empty: 0, bad: 0 };
    let first = WindowId { epoch: 0, index: 0 };
    hash(&(0..plan.rows_max).filter_map(|row| content(&plan, first, row, build)).collect::<Vec<_>>())
}
