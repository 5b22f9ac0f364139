//! Windows: the unit of work, lease and retry.

use serde::{Deserialize, Serialize};

/// A window of an epoch. In JSON `[epoch, index]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "(u64, u32)", into = "(u64, u32)")]
pub struct WindowId {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Place in the epoch, from 0.
    pub index: u32,
}

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

/// How many windows an epoch has and how large they are: a pure function of a feed.
pub trait Plan {
    /// Windows in `epoch`, at least one.
    fn windows(&self, epoch: u64) -> u32;

    /// Expected bytes of `window` in memory, for as long as nobody has computed it.
    fn bytes(&self, window: WindowId) -> u64;

    /// Whether there is such a window before epoch `until_epoch`, or it is where that begins.
    fn has(&self, window: WindowId, until_epoch: u64) -> bool {
        match window.epoch {
            epoch if epoch < until_epoch => window.index < self.windows(epoch),
            epoch => epoch == until_epoch && window.index == 0,
        }
    }

    /// Whether `window` is the last of its epoch.
    fn is_last(&self, window: WindowId) -> bool {
        window.index + 1 >= self.windows(window.epoch)
    }

    /// The window after `window`; epochs follow each other without end.
    fn after(&self, window: WindowId) -> WindowId {
        match self.is_last(window) {
            true => WindowId { epoch: window.epoch + 1, index: 0 },
            false => WindowId { index: window.index + 1, ..window },
        }
    }
}
