//! Options whose values are words.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What to do with a row that cannot be processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// Stop the feed with an error that names the row.
    #[default]
    Raise,
    /// Leave the row out. It keeps its offset, so that what follows does not shift.
    Skip,
    /// As `skip`, and write file, row and reason to Parquet under the root's `quarantine/`.
    Quarantine,
}

impl OnError {
    /// The values as they are written.
    pub const WORDS: &[&str] = &["raise", "skip", "quarantine"];
}

impl fmt::Display for OnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Raise => "raise",
            Self::Skip => "skip",
            Self::Quarantine => "quarantine",
        })
    }
}

/// Which batches are a rank's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryMode {
    /// Its stride of the global steps: a run can be repeated, batch for batch.
    #[default]
    Ordered,
    /// The next that no rank has taken, when it asks: a slow rank takes fewer. Each sample still comes exactly once.
    Dynamic,
}

impl DeliveryMode {
    /// The values as they are written.
    pub const WORDS: &[&str] = &["ordered", "dynamic"];
}
