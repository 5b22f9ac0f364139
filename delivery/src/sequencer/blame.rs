//! Which windows are blamed when a worker is lost.
//!
//! Computing a window may end its worker: a row may crash a decoder, or take all memory. Workers are also lost by
//! coincidence. A lost worker counts against the windows that it was computing. A window that may have ended several
//! workers becomes suspicious and is leased *alone*: its worker computes no other window meanwhile. A window is given
//! up only when workers that computed it alone were lost too.

use crate::rules::{Rule, holds};

/// The number of workers that may be lost over a window before it is leased alone.
pub(super) const LOSSES_MAX: u32 = 3;
/// The number of workers that may be lost over a window that is leased alone. One may be a coincidence.
pub(super) const LOSSES_ALONE_MAX: u32 = 2;
/// The number of workers that may be lost over a window in all. A window that ends its worker at once is never
/// reported by it.
const LOSSES_IN_ALL_MAX: u32 = 20;
/// The number of windows, of those that a lost worker would have begun next, that it may have begun since its last
/// message.
pub(super) const UNREPORTED_MAX: usize = 2;

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

    /// Counts a worker, which was computing nothing else if the window was leased alone.
    pub(super) fn count(&mut self, is_alone: bool) {
        if holds(Rule::LossesAreCounted) {
            self.all += 1;
            self.alone += u32::from(is_alone);
        }
    }

    /// Returns whether the window must be given up.
    pub(super) fn are_too_many(self) -> bool {
        match holds(Rule::BlameIsConfirmedAlone) {
            true => self.alone >= LOSSES_ALONE_MAX || self.all >= LOSSES_IN_ALL_MAX,
            false => self.are_suspicious(),
        }
    }
}
