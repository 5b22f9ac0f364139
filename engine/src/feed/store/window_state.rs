//! How far a stored window is.

use crate::error::Error;

/// How far a stored window is.
#[derive(Clone, Debug)]
pub enum StoredState {
    /// Being read and filtered.
    Computing,
    /// Its rows are known, and it can be read.
    Counted {
        /// Samples in it, bad ones included.
        rows: u64,
        /// Bytes that its source rows take.
        bytes: u64,
    },
    /// Computed as far as memory allows.
    Ready {
        /// Samples in it, bad ones included.
        rows: u64,
        /// Bytes that its source rows take.
        bytes: u64,
    },
    /// It could not be computed.
    Failed(Error),
}
