//! Resolves options to settings: the caller's, else the pipeline's, else the defaults. Checks them against each other.

use forebay_delivery::{ReadSettings, Start};
use serde::{Deserialize, Serialize};

use super::choices::{CacheMode, CallOrder, DeliveryMode, OnError};
use super::spec::OptionSet;
use super::table::{FeedOptions, ReadDefaults, ReadOptions};
use crate::error::{Error, Result};
use crate::length_buckets::LengthBuckets;

/// Settings of a feed, resolved. All of them enter the feed's id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedSettings {
    /// Seed of order and augmentation.
    pub seed: u64,
    /// Whether samples come in a keyed random order.
    pub shuffle: bool,
    /// Source bytes that are shuffled together.
    pub window_bytes: u64,
    /// Approximate number of source rows that are shuffled together. A row range is never split, and a window has at
    /// least one.
    pub window_rows: u64,
    /// What to do with bad rows.
    pub on_error: OnError,
    /// How rows are grouped by length, if at all. Omitted from the feed's identity if not, so that existing ids stay
    /// the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buckets: Option<LengthBuckets>,
    /// Whether random calls draw the same in every epoch, namely what they draw in the first. Omitted from the feed's
    /// identity if not.
    #[serde(default, skip_serializing_if = "is_false")]
    pub draws_once: bool,
    /// The order in which calls on images run. Omitted from the feed's identity if exact.
    #[serde(default, skip_serializing_if = "CallOrder::is_exact")]
    pub order: CallOrder,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl Default for FeedSettings {
    fn default() -> Self {
        FeedOptions::default().resolve(&FeedOptions::default()).expect("the defaults fit together")
    }
}

impl FeedSettings {
    /// Refuses invalid settings.
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
        let given = self.or(pipeline).or(&Self::defaults());
        let settings = FeedSettings {
            seed: given.seed.expect(DEFAULT),
            shuffle: given.shuffle.expect(DEFAULT),
            window_bytes: given.window_bytes.expect(DEFAULT),
            window_rows: given.window_rows.expect(DEFAULT),
            on_error: given.on_error.expect(DEFAULT),
            buckets: LengthBuckets::resolve(given.bucket_by_length, given.bucket_boundaries, given.global_batch_size)?,
            draws_once: given.cache == Some(CacheMode::Full),
            order: given.order.expect(DEFAULT),
        };
        settings.check()?;
        Ok(settings)
    }
}

impl FeedOptions {
    /// What the feed keeps: by these options, else `pipeline`'s, else nothing.
    pub fn cache_mode(&self, pipeline: &Self) -> CacheMode {
        self.cache.or(pipeline.cache).unwrap_or_default()
    }
}

const DEFAULT: &str = "the table has its default";

/// Larger batches are a typing error. The limit keeps offsets far from overflow.
const GLOBAL_BATCH_MAX: u64 = 1 << 32;
/// Maximum number of epochs, for the same reason.
pub const EPOCHS_MAX: u64 = 1 << 32;
/// Maximum offset of a sample, for the same reason.
pub const OFFSET_MAX: u64 = 1 << 62;

impl ReadOptions {
    /// These options, else `pipeline`'s, else the defaults. `buckets` are the feed's length buckets, if any.
    pub fn resolve(&self, pipeline: &ReadDefaults, buckets: Option<&LengthBuckets>) -> Result<ReadSettings> {
        let given = self.or(pipeline).or(&ReadDefaults::defaults());
        let world_size = self.world_size;
        let batch_size = match buckets {
            // The pipeline's default applies only to feeds without a global batch.
            Some(buckets) if world_size > 0 && self.batch_size != Some(0) => {
                buckets.batch_size(self.batch_size, world_size)?
            }
            _ => given.batch_size.expect(DEFAULT),
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
                "\"batch_size\" times \"world_size\" must be at most {GLOBAL_BATCH_MAX}, got {batch_size} x \
                 {world_size}"
            )));
        }
        self.check_delivery(batch_size)?;
        if buckets.is_some() && self.delivery == Some(DeliveryMode::Dynamic) {
            return Err(Error::invalid("length buckets cannot be combined with dynamic delivery")
                .with_hint("dynamic delivery has no global steps to fill from one bucket"));
        }
        let epochs = given.epochs.expect(DEFAULT);
        if !(1..=EPOCHS_MAX).contains(&epochs) {
            return Err(Error::invalid(format!("\"epochs\" must be between 1 and {EPOCHS_MAX}, got {epochs}")));
        }
        Ok(ReadSettings { batch_size, epochs, drop_last: given.drop_last.expect(DEFAULT), rank: self.rank, world_size })
    }
}

impl ReadOptions {
    /// Whether reading resumes from a token.
    pub fn is_resume(&self) -> bool {
        matches!(self.from, Start::Token(_))
    }

    /// Refuses options that conflict with the delivery mode.
    fn check_delivery(&self, batch_size: u64) -> Result<()> {
        let claims = match &self.from {
            Start::Token(token) => token.claims.as_deref(),
            Start::Offset { .. } => None,
        };
        let is_token = matches!(self.from, Start::Token(_));
        match (self.delivery.unwrap_or_default(), claims) {
            (DeliveryMode::Ordered, None) => Ok(()),
            (DeliveryMode::Ordered, Some(_)) => Err(Error::invalid("the resume token belongs to dynamic delivery")
                .with_hint("read with delivery 'dynamic' and the tokens of all ranks, or begin at an offset")),
            (DeliveryMode::Dynamic, None) if is_token => {
                Err(Error::invalid("the resume token belongs to ordered delivery")
                    .with_hint("read with delivery 'ordered', or begin at an offset"))
            }
            (DeliveryMode::Dynamic, Some(claims)) if claims.batch_size != batch_size => Err(Error::invalid(format!(
                "the resume token belongs to batches of {}, and \"batch_size\" is {batch_size}",
                claims.batch_size
            ))
            .with_hint("ranks claim whole batches: keep the batch size")),
            (DeliveryMode::Dynamic, _) if self.job.as_ref().is_none_or(String::is_empty) && self.world_size > 1 => {
                Err(Error::invalid("dynamic delivery to several ranks needs a \"job\" name")
                    .with_hint("use the same name for all ranks of the job, and for no other job"))
            }
            (DeliveryMode::Dynamic, _) => Ok(()),
        }
    }
}
