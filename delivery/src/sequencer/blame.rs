//! Which windows are blamed when a worker is lost.
//!
//! Computing a window may end its worker: a row may crash a decoder, or take all memory. Workers are also lost by
//! coincidence. A lost worker counts against the windows that it was computing. A window that may have ended several
//! workers becomes suspicious and is leased *alone*: its worker computes no other window meanwhile. A window is given
//! up only when workers that computed it alone were lost too.
//!
//! A worker that is heard again was cut off, or another one took its address. No window ended it, so its loss no longer
//! counts.

use super::event::WorkerId;
use crate::rules::{Rule, holds};

/// The number of workers that may be lost over a window before it is leased alone.
pub(super) const LOSSES_MAX: usize = 3;
/// The number of workers that may be lost over a window that is leased alone. One may be a coincidence.
pub(super) const LOSSES_ALONE_MAX: usize = 2;
/// The number of workers that may be lost over a window in all. A window that ends its worker at once is never
/// reported by it.
const LOSSES_IN_ALL_MAX: usize = 20;
/// The number of windows, of those that a lost worker would have begun next, that it may have begun since its last
/// message.
pub(super) const UNREPORTED_MAX: usize = 2;

/// The workers that were lost over a window.
///
/// They are counted for as long as the window is needed. A window that is ready may still hold a row that ends its
/// worker, because a worker whose memory is full computes some rows when they are requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    lost: Vec<Lost>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lost {
    /// The worker, unless it was lost in an earlier life of this process.
    worker: Option<WorkerId>,
    /// Whether it was computing nothing else.
    is_alone: bool,
}

impl Losses {
    /// Returns whether the window may end its workers, so that it must be leased alone.
    pub(super) fn are_suspicious(&self) -> bool {
        self.lost.len() >= LOSSES_MAX
    }

    /// Counts a worker, or one of an earlier life, which was computing nothing else if the window was leased alone.
    pub(super) fn count(&mut self, worker: Option<WorkerId>, is_alone: bool) {
        if holds(Rule::LossesAreCounted) {
            self.lost.push(Lost { worker, is_alone });
        }
    }

    /// Counts a worker no longer. Returns how often it was counted.
    pub(super) fn acquit(&mut self, worker: WorkerId) -> usize {
        let before = self.lost.len();
        self.lost.retain(|lost| lost.worker != Some(worker));
        before - self.lost.len()
    }

    /// Returns whether the window must be given up.
    pub(super) fn are_too_many(&self) -> bool {
        let alone = self.lost.iter().filter(|lost| lost.is_alone).count();
        match holds(Rule::BlameIsConfirmedAlone) {
            true => alone >= LOSSES_ALONE_MAX || self.lost.len() >= LOSSES_IN_ALL_MAX,
            false => self.are_suspicious(),
        }
    }
}
