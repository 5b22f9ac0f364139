//! The state of a stored window.

use crate::error::Error;

/// The state of a stored window.
#[derive(Clone, Debug)]
pub enum StoredState {
    /// Being read and filtered.
    Computing,
    /// Its rows are known, and it can be read.
    Counted {
        /// Samples in it, bad ones included.
        rows: u64,
        /// Bytes of its source rows.
        bytes: u64,
    },
    /// Computed as far as memory allows.
    Ready {
        /// Samples in it, bad ones included.
        rows: u64,
        /// Bytes of its source rows.
        bytes: u64,
    },
    /// It could not be computed.
    Failed(Error),
}
