//! Feeds: a pipeline opened for training, read as a log that is computed on demand.
//!
//! An epoch is a log of samples with dense offsets that nobody stores, since any piece of it can be computed again, bit
//! for bit. [`plan`] says which row ranges form a window, [`window`] computes one, the sequencer of `forebay-delivery`
//! says when and [`runner`] does it, [`reader`] cuts a rank's batches from them, and a [`Token`] is all that a trainer
//! has to keep.

mod buckets;
mod detach;
mod lookups;
mod materialize;
mod plan;
mod quarantine;
mod reader;
mod runner;
mod shared_texts;
mod spec;
mod store;
mod trace;
mod window;

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use arrow::datatypes::SchemaRef;
use datafusion::prelude::SessionContext;
use forebay_delivery::{Origin, ReadSettings, WindowId};
use forebay_protocol::{DeliveryMode, EPOCHS_MAX, FeedSettings, OFFSET_MAX, ReadOptions, Start, Token};
use forebay_storage::{Dataset, Stores};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

pub use materialize::Materialized;
pub use plan::WindowPlan;
pub use reader::Reader;
pub use spec::{FeedSpec, LookupSpec, operator_differences, operator_versions};
pub use store::{StoreUsage, StoredState, StoredWindow, WindowRows, WindowStore};
pub use trace::SourceRow;

use crate::compile::{Audience, BadRow, Lengths, Lookup, LookupPlan, Stage};
use crate::error::{Error, ErrorKind, Result};
use crate::executor::Executor;
use crate::pipeline::Pipeline;
use plan::FeedPlan;
use quarantine::QuarantinedRow;
use runner::Runner;

/// Raised whenever equal inputs would give another order, key or cut: tokens of older feeds are then refused.
const FEED_FORMAT: u32 = 1;

/// A pipeline opened for training: snapshot, settings and compiled stage. Cheap to clone.
#[derive(Clone)]
pub struct Feed {
    pipeline: Arc<Pipeline>,
    runner: Arc<Runner>,
}

/// What every part of an open feed needs to know.
pub(crate) struct FeedCore {
    pub(crate) id: Arc<str>,
    pub(crate) settings: FeedSettings,
    pub(crate) dataset: Dataset,
    pub(crate) stage: Arc<Stage>,
    /// How long rows are, where they are grouped by that.
    pub(crate) lengths: Option<Lengths>,
    /// For each layer what a join looks its rows up in, once a window needs it.
    lookups: OnceCell<Vec<Option<Lookup>>>,
    lookup_bytes_max: u64,
    pub(crate) plan: Arc<FeedPlan>,
    /// Rows of the dataset from this on are not read.
    pub(crate) limit: u64,
    pub(crate) executor: Arc<Executor>,
    pub(crate) stores: Stores,
    pub(crate) root: String,
    pub(crate) quarantine_url: String,
}

/// What a session hands over to open a feed.
pub(crate) struct FeedParts<'a> {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) settings: FeedSettings,
    /// The only columns of the samples to compute, if not all.
    pub(crate) columns: Option<&'a [String]>,
    /// Plans what only some feeds need.
    pub(crate) context: &'a SessionContext,
    pub(crate) executor: Arc<Executor>,
    pub(crate) stores: Stores,
    pub(crate) root: &'a str,
    pub(crate) memory_limit_bytes: u64,
    pub(crate) lookup_bytes_max: u64,
    /// Feeds that are open already, to share their windows with.
    pub(crate) open: &'a OpenFeeds,
}

/// The feeds of a session that somebody holds, by root, id, columns and who is handed them: readers of equal feeds
/// share windows.
pub(crate) type OpenFeeds = Mutex<HashMap<(String, String, Option<Vec<String>>, Audience), Weak<Runner>>>;

/// Sixteen row ranges or more make a window, so that it mixes rows from all over the dataset.
const RANGES_PER_WINDOW: u64 = 16;

/// The id of the feed that these make.
fn feed_id(pipeline: &Pipeline, settings: &FeedSettings) -> String {
    let mut identity = serde_json::json!({
        "format": FEED_FORMAT,
        "query": pipeline.fingerprint(),
        "snapshot": pipeline.dataset.snapshot().id(),
        "settings": settings,
    });
    let lookups: Vec<&str> = pipeline.stage.lookups().map(|lookup| lookup.dataset.snapshot().id()).collect();
    // Left out where there are none: ids stay what they were.
    if !lookups.is_empty() {
        identity["lookups"] = serde_json::json!(lookups);
    }
    blake3::hash(identity.to_string().as_bytes()).to_hex()[..16].to_owned()
}

impl Feed {
    pub(crate) fn open(parts: FeedParts<'_>) -> Result<Self> {
        let FeedParts { pipeline, settings, columns, context, executor, stores, root, .. } = parts;
        let dataset = pipeline.dataset.clone();
        if dataset.snapshot().rows() == 0 {
            let files = dataset.snapshot().files();
            let found = match files.first() {
                Some(file) if files.len() == 1 => format!("\"{}\" has none", file.path),
                Some(file) => format!("none of {} files has any, such as \"{}\"", files.len(), file.path),
                None => "there are no files".to_owned(),
            };
            return Err(Error::invalid(format!(
                "pipeline \"{}\" reads a dataset without rows: {found}",
                pipeline.name()
            ))
            .with_hint("fill the files, or check the LOCATION of its table"));
        }
        let id = feed_id(&pipeline, &settings);
        let key = (root.to_owned(), id.clone(), columns.map(<[String]>::to_vec), pipeline.audience);
        let mut open = parts.open.lock();
        if let Some(runner) = open.get(&key).and_then(Weak::upgrade) {
            return Ok(Self { pipeline, runner });
        }
        let lengths = match &settings.buckets {
            Some(buckets) => Some(pipeline.lengths(&buckets.by, &context.state())?),
            None => None,
        };
        let stage = match columns {
            Some(columns) => Arc::new(pipeline.stage_of(columns, lengths.is_some(), &context.state())?),
            None => Arc::clone(&pipeline.stage),
        };
        // Other columns have other bad rows, and a file of them is written once.
        let of_columns = columns.map(|columns| blake3::hash(columns.join("\0").as_bytes()).to_hex());
        let of_columns = of_columns.map_or(String::new(), |hash| format!("-{}", &hash[..8]));
        let ranges = dataset.row_ranges((settings.window_bytes / RANGES_PER_WINDOW).max(1));
        let core = FeedCore {
            quarantine_url: format!("{}/quarantine/{id}{of_columns}", root.trim_end_matches('/')),
            root: root.to_owned(),
            id: id.as_str().into(),
            plan: Arc::new(FeedPlan::new(ranges, settings.clone()).limited(&dataset, pipeline.limit)),
            limit: pipeline.limit.unwrap_or(u64::MAX),
            settings,
            dataset,
            stage,
            lengths,
            lookups: OnceCell::new(),
            lookup_bytes_max: parts.lookup_bytes_max,
            executor,
            stores,
        };
        let runner = Runner::new(Arc::new(core), parts.memory_limit_bytes);
        open.retain(|_, runner| runner.strong_count() > 0);
        open.insert(key, Arc::downgrade(&runner));
        Ok(Self { pipeline, runner })
    }

    fn core(&self) -> &FeedCore {
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

    /// Its settings.
    pub fn settings(&self) -> &FeedSettings {
        &self.core().settings
    }

    /// What its id is a hash of, part by part, for saying in what two feeds differ.
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
        identity
    }

    /// Calls in its query whose results must not be kept: random ones, which would be the same ever after, and
    /// functions without a version.
    pub fn uncacheable_calls(&self) -> Vec<String> {
        self.pipeline.uncacheable_calls()
    }

    /// The schema of its samples.
    pub fn schema(&self) -> SchemaRef {
        self.core().stage.schema()
    }

    /// Samples per epoch, where each source row gives one; where some give none or several, only reading tells.
    pub fn samples_per_epoch(&self) -> Option<u64> {
        self.core().stage.is_one_to_one().then(|| self.core().plan.epoch(0).rows())
    }

    /// Whether offsets are known before anything is read: each source row has one, and nothing else has.
    fn has_known_offsets(&self) -> bool {
        self.core().stage.is_one_to_one() && self.settings().buckets.is_none()
    }

    /// Offsets per epoch over all ranks, where they are known before reading.
    pub fn offsets_per_epoch(&self) -> Option<u64> {
        self.samples_per_epoch().filter(|_| self.has_known_offsets())
    }

    /// Where quarantined rows are written.
    pub fn quarantine_url(&self) -> &str {
        &self.core().quarantine_url
    }

    /// Numbers for `EXPLAIN PIPELINE`: source rows, row ranges, windows of the first epoch.
    pub(crate) fn extent(&self) -> (u64, usize, u32) {
        let plan = self.core().plan.epoch(0);
        (plan.rows(), self.core().plan.row_ranges(), plan.windows())
    }

    /// Checks options without reading anything, and says how many offsets the rank will be handed, where that is known.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn check(&self, options: &ReadOptions) -> Result<Option<u64>> {
        let settings = options.resolve(&self.pipeline.read_defaults, self.settings().buckets.as_ref())?;
        let Place { epoch, offset, .. } = self.start(&options.from)?;
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

    /// Where `from` is in this feed.
    fn start(&self, from: &Start) -> Result<Place> {
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
            // A token's offset may lie past the end: it is where the next global step would begin.
            Start::Offset { offset, .. } if self.offsets_per_epoch().is_some_and(|offsets| *offset > offsets) => {
                Err(Error::invalid(format!(
                    "\"from\" is offset {offset}, and an epoch of this feed has {} samples",
                    self.offsets_per_epoch().unwrap_or(0)
                ))
                .with_hint("EPOCH:OFFSET begins in a later epoch"))
            }
            Start::Offset { epoch, offset } => Ok(Place { epoch: *epoch, offset: *offset, known: (0, 0) }),
            Start::Token(token) if *token.feed == *self.id() => {
                let known = (token.window, token.window_offset);
                Ok(Place { epoch: token.epoch, offset: token.offset, known })
            }
            Start::Token(token) => Err(Error::invalid(format!(
                "the resume token is of feed {}, but pipeline \"{}\" opens as feed {}",
                token.feed,
                self.pipeline(),
                self.id()
            ))
            .with_hint(
                "a feed is its query, operator versions, source files, seed, shuffle, window size, length buckets and on_error: \
                 one of them differs from the run that made the token",
            )),
        }
    }

    /// The options that hold with the pipeline's defaults, and where reading begins.
    ///
    /// # Errors
    /// `Invalid` for options that make no sense together and for a token of another feed.
    pub fn resolve(&self, options: &ReadOptions) -> Result<(ReadSettings, Origin)> {
        let settings = options.resolve(&self.pipeline.read_defaults, self.settings().buckets.as_ref())?;
        let Place { epoch, offset, known } = self.start(&options.from)?;
        let plan = self.core().plan.epoch(epoch);
        let (index, window_offset) = match known {
            // Offsets known in advance say more exactly where to begin.
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
                .with_hint("start `forebay serve`, and read with --connect"));
        }
        let reading = self.runner.join(begin.window, settings.epochs);
        Ok(Reader::new(reading, settings, begin))
    }

    /// How long rows are, for `EXPLAIN PIPELINE`.
    pub(crate) fn lengths(&self) -> Option<&Lengths> {
        self.core().lengths.as_ref()
    }

    /// How the feed is cut into windows.
    pub fn plan(&self) -> WindowPlan {
        WindowPlan(Arc::clone(&self.core().plan))
    }
}

/// Where a reader begins.
struct Place {
    epoch: u64,
    offset: u64,
    /// A window at or before the offset, and its first offset.
    known: (u32, u64),
}

impl FeedCore {
    /// Names a bad row: file, row, reason.
    pub(crate) fn bad_row_error(&self, bad: &BadRow) -> Error {
        let (file, row) = self.place(bad.origin);
        Error::new(ErrorKind::Data, format!("\"{file}\", row {row}: {}", bad.reason))
            .with_hint("mend the file or the query, or leave such rows out: on_error 'skip' or 'quarantine'")
    }

    /// The file that a sample came from, and its row there, from 0.
    fn place(&self, sample_id: u64) -> (&str, u64) {
        let (file, row) = self.dataset.snapshot().locate(sample_id);
        (&self.dataset.snapshot().files()[file].path, row)
    }

    pub(crate) async fn quarantine(&self, bad: &[BadRow], epoch: u64, name: &str) -> Result<()> {
        let rows: Vec<_> = bad
            .iter()
            .map(|bad| {
                let (file, row) = self.place(bad.origin);
                QuarantinedRow { file, row, reason: &bad.reason }
            })
            .collect();
        let url = quarantine::url(&self.quarantine_url, epoch, name);
        let records = quarantine::records(&self.id, epoch, &rows)?;
        forebay_storage::write_parquet(&self.stores, &url, &records).await.map_err(|error| {
            let error = Error::from(error);
            Error::new(error.kind(), format!("cannot write quarantined rows: {}", error.message()))
                .with_hint("give a folder or URL that can be written to (--root), or use on_error => 'skip'")
        })?;
        tracing::warn!(feed = %self.id, epoch, name, rows = rows.len(), "rows quarantined");
        Ok(())
    }
}
