//! What makes one feed differ from another of the same pipeline, and one reading of it from another.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::position::Start;
use crate::error::{Error, Result};

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

impl FromStr for OnError {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.to_ascii_lowercase().as_str() {
            "raise" => Ok(Self::Raise),
            "skip" => Ok(Self::Skip),
            "quarantine" => Ok(Self::Quarantine),
            _ => Err(Error::invalid(format!("\"on_error\" must be 'raise', 'skip' or 'quarantine', got '{text}'"))),
        }
    }
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

/// Settings of a feed. What is `None` is taken from the pipeline's `WITH`, else from [`FeedSettings::default`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FeedOptions {
    /// Seed of order and augmentation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Whether samples come in a keyed random order; in file order otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shuffle: Option<bool>,
    /// Source bytes that are shuffled together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_bytes: Option<u64>,
    /// Source rows that are shuffled together, about: a row range is never split, and a window has at least one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_rows: Option<u64>,
    /// What to do with bad rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_error: Option<OnError>,
}

/// Settings of a feed, resolved. All of them enter the feed's id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FeedSettings {
    /// Seed of order and augmentation.
    pub seed: u64,
    /// Whether samples come in a keyed random order.
    pub shuffle: bool,
    /// Source bytes that are shuffled together.
    pub window_bytes: u64,
    /// Source rows that are shuffled together, about: a row range is never split, and a window has at least one.
    pub window_rows: u64,
    /// What to do with bad rows.
    pub on_error: OnError,
}

impl Default for FeedSettings {
    fn default() -> Self {
        Self { seed: 0, shuffle: false, window_bytes: 32 << 20, window_rows: 1 << 18, on_error: OnError::Raise }
    }
}

impl FeedOptions {
    /// These options, else `pipeline`'s, else the defaults.
    pub(crate) fn resolve(&self, pipeline: &Self) -> Result<FeedSettings> {
        let defaults = FeedSettings::default();
        let settings = FeedSettings {
            seed: self.seed.or(pipeline.seed).unwrap_or(defaults.seed),
            shuffle: self.shuffle.or(pipeline.shuffle).unwrap_or(defaults.shuffle),
            window_bytes: self.window_bytes.or(pipeline.window_bytes).unwrap_or(defaults.window_bytes),
            window_rows: self.window_rows.or(pipeline.window_rows).unwrap_or(defaults.window_rows),
            on_error: self.on_error.or(pipeline.on_error).unwrap_or(defaults.on_error),
        };
        match settings {
            FeedSettings { window_bytes: 0, .. } => Err(Error::invalid("\"window_bytes\" must be positive, got 0")),
            FeedSettings { window_rows: 0, .. } => Err(Error::invalid("\"window_rows\" must be positive, got 0")),
            settings => Ok(settings),
        }
    }
}

/// How one rank reads a feed. What is `None` is taken from the pipeline's `WITH`, else from the defaults named here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReadOptions {
    /// Samples per batch of one rank; 32 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<u64>,
    /// The epoch to stop before, counted from 0; 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    /// Whether an incomplete global batch at an epoch's end is left out; not by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drop_last: Option<bool>,
    /// Which of the ranks this is.
    pub rank: u64,
    /// How many ranks share the samples.
    pub world_size: u64,
    /// Where to begin.
    pub from: Start,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { batch_size: None, epochs: None, drop_last: None, rank: 0, world_size: 1, from: Start::default() }
    }
}

/// How one rank reads a feed, resolved and checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadSettings {
    pub(crate) batch_size: u64,
    pub(crate) epochs: u64,
    pub(crate) drop_last: bool,
    pub(crate) rank: u64,
    pub(crate) world_size: u64,
}

/// Batches above this are a slip of the keyboard; offsets then stay far from overflow.
const GLOBAL_BATCH_MAX: u64 = 1 << 32;
/// Likewise.
pub(crate) const EPOCHS_MAX: u64 = 1 << 32;
pub(crate) const OFFSET_MAX: u64 = 1 << 62;

impl ReadOptions {
    pub(crate) fn resolve(&self, pipeline: &ReadDefaults) -> Result<ReadSettings> {
        let batch_size = self.batch_size.or(pipeline.batch_size).unwrap_or(32);
        let world_size = self.world_size;
        if batch_size == 0 {
            return Err(Error::invalid("\"batch_size\" must be a positive integer, got 0"));
        }
        if world_size == 0 {
            return Err(Error::invalid("\"world_size\" must be a positive integer, got 0"));
        }
        if self.rank >= world_size {
            return Err(Error::invalid(format!(
                "\"rank\" must be below the world size of {world_size}, got {}",
                self.rank
            ))
            .with_hint(format!("ranks count from 0, so the last of {world_size} is {}", world_size - 1)));
        }
        if batch_size.checked_mul(world_size).is_none_or(|global| global > GLOBAL_BATCH_MAX) {
            return Err(Error::invalid(format!(
                "\"batch_size\" times \"world_size\" must be at most {GLOBAL_BATCH_MAX}, got {batch_size} x {world_size}"
            )));
        }
        let epochs = self.epochs.or(pipeline.epochs).unwrap_or(1);
        if !(1..=EPOCHS_MAX).contains(&epochs) {
            return Err(Error::invalid(format!("\"epochs\" must be between 1 and {EPOCHS_MAX}, got {epochs}")));
        }
        Ok(ReadSettings {
            batch_size,
            epochs,
            drop_last: self.drop_last.or(pipeline.drop_last).unwrap_or(false),
            rank: self.rank,
            world_size,
        })
    }
}

/// What a pipeline's `WITH` says about reading it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadDefaults {
    pub(crate) batch_size: Option<u64>,
    pub(crate) epochs: Option<u64>,
    pub(crate) drop_last: Option<bool>,
}
