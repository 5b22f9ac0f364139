//! Where readers are, and how far a window is from them.

use serde::{Deserialize, Serialize};

use crate::window::WindowId;

/// The place of some readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Their current window.
    pub at: WindowId,
    /// The epoch before which they stop.
    pub until_epoch: u64,
    /// The number of windows in the epoch of their current window.
    pub windows: u32,
}

impl Place {
    /// Returns whether readers at this place need `window`.
    pub(crate) fn needs(&self, window: WindowId) -> bool {
        self.at <= window && window.epoch < self.until_epoch
    }

    /// Returns the number of windows from here to `window`, or `None` if it is not needed.
    pub(crate) fn distance(&self, window: WindowId) -> Option<u64> {
        let (at, index) = (u64::from(self.at.index), u64::from(window.index));
        self.needs(window).then(|| match window.epoch - self.at.epoch {
            0 => index - at,
            // Distances are only compared, so the epochs between may be assumed to be as long as this one.
            epochs => epochs.saturating_mul(self.windows.into()).saturating_add(index).saturating_sub(at),
        })
    }
}
