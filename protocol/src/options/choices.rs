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
    /// Omit the row. It keeps its offset, so later offsets do not shift.
    Skip,
    /// Like `skip`, and write file, row and reason to Parquet under the root's `quarantine/`.
    Quarantine,
}

impl OnError {
    /// The values as text.
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

/// What a feed keeps, so that later epochs, ranks and jobs need not read or compute it again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheMode {
    /// Nothing.
    #[default]
    None,
    /// What it reads of remote files, on the local disk.
    Source,
    /// The part of each sample that is the same in every epoch, under the root. It changes no sample.
    Prefix,
    /// Also random results: all epochs have those of the first.
    Full,
    /// What is measured to pay off, of `none`, `source`, and `prefix` at several places of the query. It changes no
    /// sample.
    Auto,
}

impl CacheMode {
    /// The values as text.
    pub const WORDS: &[&str] = &["none", "source", "prefix", "full", "auto"];
}

/// The order in which the calls of a query on one image run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallOrder {
    /// As written, or another order with the same results, bit for bit.
    #[default]
    Exact,
    /// Calls that keep an image's size run where images are smallest. The results are other ones.
    Relaxed,
}

impl CallOrder {
    /// The values as text.
    pub const WORDS: &[&str] = &["exact", "relaxed"];

    /// Whether this is the order that a query has by itself.
    pub fn is_exact(&self) -> bool {
        *self == Self::Exact
    }
}

/// How batches are assigned to ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryMode {
    /// A rank reads its stride of the global steps, so a run can be repeated batch for batch.
    #[default]
    Ordered,
    /// A rank requests the next batch that no rank has taken, so a slow rank takes fewer. Each sample still comes
    /// exactly once.
    Dynamic,
}

impl DeliveryMode {
    /// The values as text.
    pub const WORDS: &[&str] = &["ordered", "dynamic"];
}
