//! Which windows are blamed when a worker is lost.
//!
//! Computing a window may end its worker: a row may crash a decoder, or take all memory. Workers are also lost by
//! coincidence. A lost worker counts against the windows that it was computing. A window that may have ended several
//! workers becomes suspicious and is leased *alone*: its worker computes no other window meanwhile. A window is given
//! up only when workers that computed it alone were lost too.

use super::{Replica, ReplicaState, Sequencer, WindowEntry, WorkerId};
use crate::rules::{Rule, holds};
use crate::window::{Plan, WindowId};

/// The number of workers that may be lost over a window before it is leased alone.
pub(super) const LOSSES_MAX: u32 = 3;
/// The number of workers that may be lost over a window that is leased alone. One may be a coincidence.
pub(super) const LOSSES_ALONE_MAX: u32 = 2;
/// The number of workers that may be lost over a window in all. A window that ends its worker at once is never
/// reported by it.
const LOSSES_IN_ALL_MAX: u32 = 20;
/// The number of windows, of those that a lost worker would have begun next, that it may have begun since its last
/// message.
const UNREPORTED_MAX: usize = 2;

/// The workers that were lost over a window.
///
/// They are counted for as long as the window is needed. A window that is ready may still hold a row that ends its
/// worker, because a worker whose memory is full computes some rows when they are requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    all: u32,
    alone: u32,
}

impl Losses {
    /// Returns whether the window may end its workers, so that it must be leased alone.
    pub(super) fn are_suspicious(self) -> bool {
        self.all >= LOSSES_MAX
    }

    fn count(&mut self, is_alone: bool) {
        if holds(Rule::LossesAreCounted) {
            self.all += 1;
            self.alone += u32::from(is_alone);
        }
    }

    fn are_too_many(self) -> bool {
        match holds(Rule::BlameIsConfirmedAlone) {
            true => self.alone >= LOSSES_ALONE_MAX || self.all >= LOSSES_IN_ALL_MAX,
            false => self.are_suspicious(),
        }
    }
}

impl<P: Plan> Sequencer<P> {
    pub(super) fn is_suspicious(&self, window: WindowId) -> bool {
        self.windows.get(&window).is_some_and(|held| held.losses.are_suspicious())
    }

    /// Counts the loss of a worker against the windows that it was computing, and gives up those that lost too many.
    /// With `is_shared`, it was computing windows of other feeds as well, so that none was alone.
    pub(super) fn blame(&mut self, worker: WorkerId, is_shared: bool) {
        let blames_all = !holds(Rule::OnlyWindowsAtWorkAreBlamed);
        let mut blamed = Vec::new();
        let mut waiting = Vec::new();
        for (window, copy) in self.copies_of(worker) {
            if copy.at_work || (blames_all && copy.state < ReplicaState::Ready) {
                blamed.push(window);
            } else if copy.state < ReplicaState::Ready {
                waiting.push((self.distance(window).unwrap_or(u64::MAX), window));
            }
        }
        waiting.sort_unstable();
        blamed.extend(waiting.into_iter().take(UNREPORTED_MAX).map(|(_, window)| window));
        for window in blamed {
            let Some(WindowEntry { copies, losses, failed, .. }) = self.windows.get_mut(&window) else { continue };
            // A worker that has not reported the lease may still have computed the windows that were taken from it.
            let was_alone = |copy: &Replica| copy.worker == worker && copy.is_alone && copy.is_reported;
            losses.count(!is_shared && copies.iter().any(was_alone));
            *failed |= losses.are_too_many();
        }
    }
}
