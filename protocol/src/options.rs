//! The options of a feed and of reading it, and the settings that they come to.

use std::fmt;
use std::str::FromStr;

use forebay_delivery::{ReadSettings, Start};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::length_buckets::{Boundaries, LengthBuckets};

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
    /// The output column by whose length rows are grouped, so that each global step is of one length bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket_by_length: Option<String>,
    /// The longest length of each bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket_boundaries: Option<Boundaries>,
    /// Samples of all ranks in a step: what rows are grouped into.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_batch_size: Option<u64>,
}

/// Settings of a feed, resolved. All of them enter the feed's id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// How rows are grouped by length, if they are. Left out of the feed's identity if not: ids stay what they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buckets: Option<LengthBuckets>,
}

impl Default for FeedSettings {
    fn default() -> Self {
        Self {
            seed: 0,
            shuffle: false,
            window_bytes: 32 << 20,
            window_rows: 1 << 18,
            on_error: OnError::Raise,
            buckets: None,
        }
    }
}

impl FeedSettings {
    /// Refuses settings that no feed can have.
    pub fn check(&self) -> Result<()> {
        match self {
            Self { window_bytes: 0, .. } => Err(Error::invalid("\"window_bytes\" must be positive, got 0")),
            Self { window_rows: 0, .. } => Err(Error::invalid("\"window_rows\" must be positive, got 0")),
            Self { buckets: Some(buckets), .. } => buckets.check(),
            _ => Ok(()),
        }
    }
}

impl FeedOptions {
    /// These options, else `pipeline`'s, else the defaults.
    pub fn resolve(&self, pipeline: &Self) -> Result<FeedSettings> {
        let defaults = FeedSettings::default();
        let settings = FeedSettings {
            seed: self.seed.or(pipeline.seed).unwrap_or(defaults.seed),
            shuffle: self.shuffle.or(pipeline.shuffle).unwrap_or(defaults.shuffle),
            window_bytes: self.window_bytes.or(pipeline.window_bytes).unwrap_or(defaults.window_bytes),
            window_rows: self.window_rows.or(pipeline.window_rows).unwrap_or(defaults.window_rows),
            on_error: self.on_error.or(pipeline.on_error).unwrap_or(defaults.on_error),
            buckets: LengthBuckets::resolve(
                self.bucket_by_length.as_ref().or(pipeline.bucket_by_length.as_ref()).cloned(),
                self.bucket_boundaries.as_ref().or(pipeline.bucket_boundaries.as_ref()).cloned(),
                self.global_batch_size.or(pipeline.global_batch_size),
            )?,
        };
        settings.check()?;
        Ok(settings)
    }
}

/// How one rank reads a feed. What is `None` is taken from the pipeline's `WITH`, else from the defaults named here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReadOptions {
    /// Samples per batch of one rank; 32 by default, and with length buckets the rank's share of the global batch.
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
    /// Which batches are this rank's; its stride of the global steps by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliveryMode>,
    /// With dynamic delivery: what the ranks of one job have in common, and no other job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
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

impl FromStr for DeliveryMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.to_ascii_lowercase().as_str() {
            "ordered" => Ok(Self::Ordered),
            "dynamic" => Ok(Self::Dynamic),
            _ => Err(Error::invalid(format!("\"delivery\" must be 'ordered' or 'dynamic', got '{text}'"))),
        }
    }
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            batch_size: None,
            epochs: None,
            drop_last: None,
            rank: 0,
            world_size: 1,
            from: Start::default(),
            delivery: None,
            job: None,
        }
    }
}

/// Batches above this are a slip of the keyboard; offsets then stay far from overflow.
const GLOBAL_BATCH_MAX: u64 = 1 << 32;
/// The greatest number of epochs, for the same reason.
pub const EPOCHS_MAX: u64 = 1 << 32;
/// The greatest offset of a sample, for the same reason.
pub const OFFSET_MAX: u64 = 1 << 62;

impl ReadOptions {
    /// These options, else `pipeline`'s, else the defaults, for a feed that is grouped by `buckets` or not at all.
    pub fn resolve(&self, pipeline: &ReadDefaults, buckets: Option<&LengthBuckets>) -> Result<ReadSettings> {
        let world_size = self.world_size;
        let batch_size = match buckets {
            // A pipeline's default is for feeds without a global batch.
            Some(buckets) if world_size > 0 && self.batch_size != Some(0) => {
                buckets.batch_size(self.batch_size, world_size)?
            }
            _ => self.batch_size.or(pipeline.batch_size).unwrap_or(32),
        };
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
        self.check_delivery(batch_size)?;
        if buckets.is_some() && self.delivery == Some(DeliveryMode::Dynamic) {
            return Err(Error::invalid("length buckets and dynamic delivery exclude each other")
                .with_hint("dynamic delivery has no global steps, whose rows could be of one bucket"));
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

impl ReadOptions {
    /// Whether reading goes on from a token.
    pub fn is_resume(&self) -> bool {
        matches!(self.from, Start::Token(_))
    }

    /// Refuses what does not go with the delivery.
    fn check_delivery(&self, batch_size: u64) -> Result<()> {
        let claims = match &self.from {
            Start::Token(token) => token.claims.as_deref(),
            Start::Offset { .. } => None,
        };
        let is_token = matches!(self.from, Start::Token(_));
        match (self.delivery.unwrap_or_default(), claims) {
            (DeliveryMode::Ordered, None) => Ok(()),
            (DeliveryMode::Ordered, Some(_)) => Err(Error::invalid("the resume token is of dynamic delivery")
                .with_hint("read with delivery 'dynamic' and the tokens of all ranks, or begin at an offset")),
            (DeliveryMode::Dynamic, None) if is_token => Err(Error::invalid("the resume token is of ordered delivery")
                .with_hint("read with delivery 'ordered', or begin at an offset")),
            (DeliveryMode::Dynamic, Some(claims)) if claims.batch_size != batch_size => Err(Error::invalid(format!(
                "the resume token is of batches of {}, and \"batch_size\" is {batch_size}",
                claims.batch_size
            ))
            .with_hint("what ranks claim is counted in batches: keep the batch size")),
            (DeliveryMode::Dynamic, _) if self.job.as_ref().is_none_or(String::is_empty) && self.world_size > 1 => {
                Err(Error::invalid("dynamic delivery to several ranks needs the name of their \"job\"")
                    .with_hint("give all ranks of the job the same name, and no other job"))
            }
            (DeliveryMode::Dynamic, _) => Ok(()),
        }
    }
}

/// What a pipeline's `WITH` says about reading it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadDefaults {
    /// See [`ReadOptions::batch_size`].
    pub batch_size: Option<u64>,
    /// See [`ReadOptions::epochs`].
    pub epochs: Option<u64>,
    /// See [`ReadOptions::drop_last`].
    pub drop_last: Option<bool>,
}
