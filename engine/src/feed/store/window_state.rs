//! The state of a stored window.

use crate::error::Error;

/// The state of a stored window.
#[derive(Clone, Debug)]
pub enum StoredState {
    /// Being read and filtered.
    Computing,
    /// Its rows are known, and reading can start.
    Counted {
        /// Samples in it, including bad ones.
        rows: u64,
        /// Bytes of its source rows.
        bytes: u64,
    },
    /// Computed as far as memory allows.
    Ready {
        /// Samples in it, including bad ones.
        rows: u64,
        /// Bytes of its source rows.
        bytes: u64,
    },
    /// Its computation failed.
    Failed(Error),
}
