//! Feeds: a pipeline opened for training, read as a log that is computed on demand.
//!
//! An epoch is a log of samples with dense offsets. It is not stored, since any part of it can be recomputed bit for
//! bit. [`plan`] divides row ranges into windows, and [`window`] computes one. The sequencer of `forebay-delivery`
//! schedules windows, and [`runner`] drives it. [`reader`] cuts a rank's batches from windows. A trainer only stores a
//! [`Token`].

mod auto_cache;
mod buckets;
mod cache_report;
mod cache_room;
mod copy_out;
mod costs;
mod count;
mod demand;
mod feed_core;
mod id;
mod lookups;
mod memo;
mod opening;
mod plan;
pub(crate) mod quarantine;
mod reader;
mod reads;
mod rows_read;
mod runner;
mod shared_texts;
mod snapshots;
mod spec;
mod store;
mod trace;
mod trial;
mod window;

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use forebay_arrays::digest;
use forebay_delivery::{Origin, ReadSettings, WindowId};
use forebay_protocol::{DeliveryMode, EPOCHS_MAX, FeedSettings, OFFSET_MAX, ReadOptions, Start, Token};
use forebay_storage::Dataset;

pub use cache_report::CacheReport;
pub(crate) use costs::Step;
pub use costs::{CostMeter, FeedCosts};
pub(crate) use feed_core::FeedCore;
pub(crate) use memo::Memo;
pub(crate) use opening::{FeedParts, OpenFeeds};
pub use plan::WindowPlan;
pub use reader::Reader;
pub(crate) use snapshots::fetch as fetch_snapshot;
pub use snapshots::{SnapshotPieces, SnapshotSource};
pub(crate) use spec::SpecTable;
pub use spec::{FeedSpec, LookupSpec, StageValue, TableColumns, operator_differences, operator_versions};
pub use store::{StoreUsage, StoredState, StoredWindow, WindowRows, WindowStore};
pub use trace::SourceRow;
pub(crate) use trial::Candidate;
pub use trial::{Trial, Work};
pub(crate) use window::Window;

use crate::compile::{Lengths, LookupPlan, Stage};
use crate::error::{Error, Result};
use crate::pipeline::Pipeline;
pub(crate) use reader::{PIECE_BYTES_MAX, PIECE_ROWS_MAX};
use runner::Runner;

/// A pipeline opened for training: snapshot, settings and compiled stage. Cheap to clone.
#[derive(Clone)]
pub struct Feed {
    pipeline: Arc<Pipeline>,
    runner: Arc<Runner>,
}

impl Feed {
    pub(crate) fn core(&self) -> &Arc<FeedCore> {
        self.runner.core()
    }

    #[cfg(test)]
    pub(crate) fn stage(&self) -> &Stage {
        &self.core().stage
    }

    /// The feed's id: a hash of query, operator versions, snapshot and settings.
    pub fn id(&self) -> &str {
        &self.core().id
    }

    /// The name of its pipeline.
    pub fn pipeline(&self) -> &str {
        self.pipeline.name()
    }

    /// The text of its pipeline's `CREATE PIPELINE`.
    pub fn statement(&self) -> &str {
        self.pipeline.statement()
    }

    /// The driving table's dataset by the table's name, then those of the joined tables.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (&str, &Dataset)> {
        let lookups = self.core().stage.lookups().map(|lookup| (lookup.table.as_str(), &lookup.dataset));
        std::iter::once((self.pipeline.table(), &self.core().dataset)).chain(lookups)
    }

    /// Its settings.
    pub fn settings(&self) -> &FeedSettings {
        &self.core().settings
    }

    /// The inputs of its id's hash, to show how two feeds differ.
    pub fn identity(&self) -> serde_json::Value {
        let short = |text: &str| blake3::hash(text.as_bytes()).to_hex()[..16].to_owned();
        let mut identity = serde_json::json!({
            "feed": self.id(),
            "query": short(self.pipeline.fingerprint()),
            "snapshot": short(self.core().dataset.snapshot().id()),
            "operators": self.pipeline.operators(),
            "settings": self.settings(),
        });
        let of = |lookup: &LookupPlan| (lookup.table.clone(), short(lookup.dataset.snapshot().id()));
        let lookups: Vec<(String, String)> = self.core().stage.lookups().map(of).collect();
        if !lookups.is_empty() {
            identity["lookups"] = serde_json::json!(lookups);
        }
        let values = self.pipeline.values().map(|(name, value)| (name, digest(&value.row)));
        let values: Vec<(&String, String)> = values.collect();
        if !values.is_empty() {
            identity["values"] = serde_json::json!(values);
        }
        identity
    }

    /// The calls in its query of functions without a version.
    pub(crate) fn unversioned_functions(&self) -> Vec<String> {
        self.pipeline.unversioned_functions()
    }

    /// The calls in its query whose results must not be stored: random calls, which would repeat in every epoch, and
    /// functions without a version.
    pub fn uncacheable_calls(&self) -> Vec<String> {
        self.pipeline.uncacheable_calls()
    }

    /// The schema of its samples.
    pub fn schema(&self) -> SchemaRef {
        self.core().stage.schema()
    }

    /// Samples per epoch, if each source row becomes exactly one sample. Otherwise the number is known only after
    /// reading.
    pub fn samples_per_epoch(&self) -> Option<u64> {
        self.core().stage.is_one_to_one().then(|| self.core().plan.epoch(0).rows())
    }

    /// Whether offsets are known before reading: each source row has one offset, and there are no other offsets.
    fn has_known_offsets(&self) -> bool {
        self.core().stage.is_one_to_one() && self.settings().buckets.is_none()
    }

    /// Offsets per epoch over all ranks, if known before reading.
    pub fn offsets_per_epoch(&self) -> Option<u64> {
        self.samples_per_epoch().filter(|_| self.has_known_offsets())
    }

    /// The URL for quarantined rows.
    pub fn quarantine_url(&self) -> &str {
        &self.core().quarantine_url
    }

    /// Counts for `EXPLAIN PIPELINE`: source rows, row ranges, windows of the first epoch.
    pub(crate) fn extent(&self) -> (u64, usize, u32) {
        let plan = self.core().plan.epoch(0);
        (plan.rows(), self.core().plan.row_ranges(), plan.windows())
    }

    /// The stored bytes of the columns that an epoch reads, and the bytes that it reads: for `EXPLAIN PIPELINE`.
    pub(crate) async fn bytes_to_read(&self) -> Result<Option<(u64, u64)>> {
        let core = self.core();
        Ok(core.dataset.bytes_to_read(core.plan.read(), core.stage.read_columns()).await?)
    }

    /// The stage to show: that which keeps something, if there is one.
    pub(crate) fn shown_stage(&self) -> &Stage {
        self.core().memo().map_or(&self.core().stage, |memo| &memo.stage)
    }

    /// What counts the costs of this feed in this process.
    pub fn meter(&self) -> &CostMeter {
        &self.core().meter
    }

    /// What the feed keeps, for `EXPLAIN PIPELINE`. Computes a few rows.
    pub(crate) async fn explain_cache(&self) -> Result<Option<CacheReport>> {
        let core = self.core();
        if let Some(auto) = self.runner.auto() {
            return auto.explain(core).await.map(Some);
        }
        match (core.memo(), &core.pieces) {
            (Some(memo), _) => memo.explain(core).await.map(Some),
            (None, Some(pieces)) => {
                let (bytes, folder) = (pieces.usage().await.bytes, pieces.folder().display().to_string());
                let (mode, limit, is_local) = (core.cache, Some(pieces.limit()), core.dataset.is_local());
                let choice = None;
                Ok(Some(CacheReport { mode, folder, rows: None, bytes, limit, is_local, bytes_per_byte: None, choice }))
            }
            (None, None) => Ok(None),
        }
    }

    /// The places where the feed may keep its samples, if it chooses by itself.
    pub(crate) fn candidates(&self) -> &[Candidate] {
        self.runner.auto().map_or(&[], |auto| auto.candidates())
    }

    /// The number of offsets that a rank reads with these options, if known before reading. Checks the options but
    /// reads no data.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn expected_samples(&self, options: &ReadOptions) -> Result<Option<u64>> {
        let settings = options.resolve(&self.pipeline.read_defaults, self.settings().buckets.as_ref())?;
        let StartingPoint { epoch, offset, .. } = self.start(&options.from)?;
        let of_epoch = |from: u64, total: u64| {
            let left = total.saturating_sub(from);
            let global = settings.batch_size * settings.world_size;
            let rest = (left % global).saturating_sub(settings.rank * settings.batch_size).min(settings.batch_size);
            left / global * settings.batch_size + if settings.drop_last { 0 } else { rest }
        };
        Ok(self.offsets_per_epoch().map(|total| match settings.epochs.checked_sub(epoch + 1) {
            Some(later) => later.saturating_mul(of_epoch(0, total)).saturating_add(of_epoch(offset, total)),
            None => 0,
        }))
    }

    /// The position of `from` in this feed.
    fn start(&self, from: &Start) -> Result<StartingPoint> {
        let (Start::Offset { epoch, offset } | Start::Token(Token { epoch, offset, .. })) = from;
        if *epoch >= EPOCHS_MAX || *offset > OFFSET_MAX {
            return Err(Error::invalid(format!(
                "\"from\" must be below epoch {EPOCHS_MAX} and offset {OFFSET_MAX}, got {epoch}:{offset}"
            )));
        }
        if let Some(buckets) = &self.settings().buckets {
            buckets.check_start(*offset)?;
        }
        match from {
            // A token's offset may lie past the end, where the next global step would begin.
            Start::Offset { offset, .. } if self.offsets_per_epoch().is_some_and(|offsets| *offset > offsets) => {
                Err(Error::invalid(format!(
                    "\"from\" is offset {offset}, and an epoch of this feed has {} samples",
                    self.offsets_per_epoch().unwrap_or(0)
                ))
                .with_hint("EPOCH:OFFSET begins in a later epoch"))
            }
            Start::Offset { epoch, offset } => Ok(StartingPoint { epoch: *epoch, offset: *offset, known: (0, 0) }),
            Start::Token(token) if *token.feed == *self.id() => {
                let known = (token.window, token.window_offset);
                Ok(StartingPoint { epoch: token.epoch, offset: token.offset, known })
            }
            Start::Token(token) => Err(Error::invalid(format!(
                "the resume token is of feed {}, but pipeline \"{}\" opens as feed {}",
                token.feed,
                self.pipeline(),
                self.id()
            ))
            .with_hint(
                "a feed is its query, operator versions, source files, seed, shuffle, window size, length buckets, \
                 on_error and feed format: one of them differs from the run that made the token. After an upgrade, \
                 begin a new run, or resume with the version that made the token",
            )),
        }
    }

    /// Applies the pipeline's defaults to the options. Returns them with the position where reading begins.
    ///
    /// # Errors
    /// `Invalid` for contradictory options and for a token of another feed.
    pub fn resolve(&self, options: &ReadOptions) -> Result<(ReadSettings, Origin)> {
        let settings = options.resolve(&self.pipeline.read_defaults, self.settings().buckets.as_ref())?;
        let StartingPoint { epoch, offset, known } = self.start(&options.from)?;
        let plan = self.core().plan.epoch(epoch);
        let (index, window_offset) = match known {
            // Known offsets determine the window exactly.
            _ if self.has_known_offsets() => {
                let index = plan.window_at(offset);
                (index, plan.rows_before(index))
            }
            (window, first) if window < plan.windows() && first <= offset => known,
            _ => (0, 0),
        };
        Ok((settings, Origin { window: WindowId { epoch, index }, window_offset, offset }))
    }

    /// Begins reading as one rank.
    ///
    /// # Errors
    /// Those of [`resolve`](Self::resolve).
    pub fn read(&self, options: &ReadOptions) -> Result<Reader> {
        let (settings, begin) = self.resolve(options)?;
        if options.delivery == Some(DeliveryMode::Dynamic) && (settings.world_size > 1 || options.is_resume()) {
            return Err(Error::invalid("dynamic delivery needs a dispatcher that the ranks share")
                .with_hint("start a server, and let every rank connect to it"));
        }
        self.core().memos.iter().for_each(|memo| memo.read_by(settings.rank, settings.world_size));
        // A loop that names no end reads the greatest number of epochs.
        let epochs = (settings.epochs < EPOCHS_MAX).then(|| settings.epochs.saturating_sub(begin.window.epoch));
        self.runner.begin_choosing(epochs);
        let reading = self.runner.join(begin.window, settings.epochs);
        Ok(Reader::new(reading, settings, begin))
    }

    /// The plan of rows' lengths, for `EXPLAIN PIPELINE`.
    pub(crate) fn lengths(&self) -> Option<&Lengths> {
        self.core().lengths.as_ref()
    }

    /// The division of the feed into windows.
    pub fn plan(&self) -> WindowPlan {
        WindowPlan(Arc::clone(&self.core().plan))
    }
}

/// The position where a reader begins.
struct StartingPoint {
    epoch: u64,
    offset: u64,
    /// A window at or before the offset, and the window's first offset.
    known: (u32, u64),
}
