//! Windows: the unit of computing, leasing and retrying.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A window of an epoch. In JSON `[epoch, index]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "(u64, u32)", into = "(u64, u32)")]
pub struct WindowId {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Index in the epoch, from 0.
    pub index: u32,
}

/// A window of a feed.
pub type WindowKey = (Arc<str>, WindowId);

impl From<(u64, u32)> for WindowId {
    fn from((epoch, index): (u64, u32)) -> Self {
        Self { epoch, index }
    }
}

impl From<WindowId> for (u64, u32) {
    fn from(WindowId { epoch, index }: WindowId) -> Self {
        (epoch, index)
    }
}

/// The number of windows of each epoch and their sizes: a pure function of a feed.
pub trait Plan {
    /// Returns the number of windows in `epoch`, at least one.
    fn windows(&self, epoch: u64) -> u32;

    /// Returns the expected bytes of `window` in memory, used until it has been computed.
    fn bytes(&self, window: WindowId) -> u64;

    /// Returns whether `window` exists before epoch `until_epoch`, or is the first of that epoch.
    fn has(&self, window: WindowId, until_epoch: u64) -> bool {
        match window.epoch {
            epoch if epoch < until_epoch => window.index < self.windows(epoch),
            epoch => epoch == until_epoch && window.index == 0,
        }
    }

    /// Returns whether `window` is the last of its epoch.
    fn is_last(&self, window: WindowId) -> bool {
        window.index + 1 >= self.windows(window.epoch)
    }

    /// Returns the window after `window`. The last window of an epoch is followed by the first of the next.
    fn after(&self, window: WindowId) -> WindowId {
        match self.is_last(window) {
            true => WindowId { epoch: window.epoch + 1, index: 0 },
            false => WindowId { index: window.index + 1, ..window },
        }
    }
}
