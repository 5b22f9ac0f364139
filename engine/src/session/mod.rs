//! A session: tables, pipelines, worker threads and memory limits. It runs SQL and opens feeds.
//!
//! The [`catalog`] holds tables and pipelines by name. [`statements`] runs SQL over it and returns [`outputs`].
//! [`data_frames`] makes pipelines of DataFrames. [`jobs`] writes samples to files, [`trials`] measures what keeping
//! samples would save, [`specs`] opens feeds that another process describes, and [`beside`] replaces scripts while
//! feeds are read.

mod beside;
mod builder;
mod catalog;
mod data_frames;
mod jobs;
mod ordered;
mod outputs;
mod piece_caches;
mod queries;
mod specs;
mod stages;
mod statements;
mod trials;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use forebay_storage::{Dataset, DatasetSpec, Keeping, StoreWait, Stores};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

pub use builder::SessionBuilder;
pub use catalog::Broken;
use catalog::Catalog;
use forebay_protocol::{CacheMode, FeedOptions, FeedSettings, OnError};
pub use outputs::Output;
use piece_caches::PieceCaches;
pub(crate) use statements::misplaced;

use crate::batch::{BatchLimits, StageProgress};
use crate::error::{Error, ErrorKind, Result};
use crate::executor::Executor;
use crate::explain::{Explanation, FeedExplanation};
use crate::feed::{Feed, FeedParts, FeedSpec, OpenFeeds, WindowStore};
use crate::function::Function;
use crate::memory::FeedMemory;
use crate::pipeline::Pipeline;

/// Tables, pipelines and the threads that compute them.
pub struct Session {
    pub(crate) catalog: Catalog,
    feeds: OpenFeeds,
    /// Opened specs with their compiled pipelines, the latest last.
    specs: Mutex<Vec<(FeedSpec, Arc<Pipeline>)>>,
    opening_spec: tokio::sync::Mutex<()>,
    /// Scripts run one at a time, because a statement reads tables and names before it writes them.
    pub(crate) executing: tokio::sync::Mutex<()>,
    pub(crate) stores: Stores,
    /// The base folder of relative file paths in calls.
    base: PathBuf,
    executor: Arc<Executor>,
    root: String,
    memory: FeedMemory,
    batch: BatchLimits,
    /// Whether it runs stages whose rows are not kept.
    runs_stages: bool,
    stage_progress: Arc<StageProgress>,
    piece_caches: Arc<PieceCaches>,
    /// A permit for each query of SQL clients that may run at a time; `None` if they may run none.
    pub(crate) sql_queries: Option<Arc<Semaphore>>,
    /// The most rows of a [`TablePreview`](crate::TablePreview).
    pub(crate) sql_rows_max: u64,
}

/// Versions of what opening a table finds. Raise this when the same files give other columns or row groups.
const FOUND_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " 1");
/// Opening that takes longer is kept under the root.
const KEPT_AFTER: Duration = Duration::from_secs(1);

impl Session {
    /// Opens the files of a table.
    pub(crate) async fn open_dataset(&self, spec: &DatasetSpec) -> forebay_storage::Result<Dataset> {
        Dataset::open_keeping(&self.stores, spec, Some(self.keeping())).await
    }

    /// Where to keep what opening tables found.
    pub(crate) fn keeping(&self) -> Keeping<'_> {
        Keeping { root: self.root(), build: FOUND_VERSION, after: KEPT_AFTER }
    }

    /// Adds or replaces a function of the embedding program.
    ///
    /// # Errors
    /// `Conflict` for the name of an operator or an SQL function.
    pub fn add_function(&self, function: Function) -> Result<()> {
        self.catalog.add_function(function)
    }

    /// The total busy time of the worker threads.
    pub fn compute_time(&self) -> Duration {
        self.executor.busy()
    }

    /// The number of threads that compute.
    pub fn threads(&self) -> usize {
        self.executor.threads()
    }

    /// Sets how many of the threads compute at a time from now on, one at least: by default all.
    pub fn use_threads(&self, threads: usize) {
        self.executor.use_threads(threads);
    }

    /// The processors' time for the worker threads; only Linux tells it.
    pub fn cpu_time(&self) -> Duration {
        self.executor.cpu_time()
    }

    /// The number of pieces of work that are under way at a time: the number of threads, or more while pieces wait.
    pub fn width(&self) -> usize {
        self.executor.width()
    }

    /// The most bytes that a feed keeps.
    pub fn cache_limit(&self) -> u64 {
        self.piece_caches.limit()
    }

    /// URL or absolute path of the folder that Forebay writes to.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The requests to object stores that have waited for five seconds or more, if there are any.
    pub fn store_wait(&self) -> Option<StoreWait> {
        self.stores.waits()
    }

    /// The names and columns of all tables.
    pub fn tables(&self) -> Vec<(String, SchemaRef)> {
        let tables = self.catalog.tables();
        tables.into_iter().map(|(name, dataset)| (name, Arc::clone(dataset.schema()))).collect()
    }

    /// The names of all pipelines.
    pub fn pipelines(&self) -> Vec<String> {
        self.catalog.pipelines().into_keys().collect()
    }

    /// The tables that could not be opened, and the pipelines that read them. They are not among the
    /// [`tables`](Self::tables) and [`pipelines`](Self::pipelines).
    pub fn broken(&self) -> Broken {
        self.catalog.broken()
    }

    /// The pipeline `name`.
    ///
    /// # Errors
    /// `NotFound`, with the nearest name, and the error of a table that could not be opened.
    pub fn pipeline(&self, name: &str) -> Result<Arc<Pipeline>> {
        self.catalog.pipeline(name)
    }

    /// A store for windows that this session's threads compute, with about this much memory for transformed rows.
    pub fn window_store(&self, chunk_limit_bytes: u64) -> WindowStore {
        WindowStore::new(Arc::clone(&self.executor), chunk_limit_bytes)
    }

    /// Opens pipeline `name` as a feed. If its query needs whole tables, [`prepare`](Self::prepare) it before.
    ///
    /// # Errors
    /// `NotFound` for an unknown pipeline, `Conflict` for one that is not prepared, `Invalid` for contradictory options
    /// or a dataset without rows, and the error of a table that could not be opened.
    pub fn open(&self, name: &str, options: &FeedOptions) -> Result<Feed> {
        self.open_pipeline(self.pipeline(name)?, options)
    }

    /// Like [`open`](Self::open), but computes only some columns of the samples, in this order. It is the same feed,
    /// with the same offsets and tokens, but a row is bad only if these columns fail.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and `Invalid` for columns that do not exist.
    pub fn open_columns(&self, name: &str, options: &FeedOptions, columns: &[String]) -> Result<Feed> {
        let pipeline = self.pipeline(name)?;
        let settings = options.resolve(&pipeline.feed_options)?;
        self.open_feed(pipeline, settings, CacheMode::None, &self.root, Some(columns))
    }

    pub(crate) fn open_pipeline(&self, pipeline: Arc<Pipeline>, options: &FeedOptions) -> Result<Feed> {
        let settings = options.resolve(&pipeline.feed_options)?;
        let cache = options.cache_mode(&pipeline.feed_options);
        self.open_feed(pipeline, settings, cache, &self.root, None)
    }

    fn open_feed(
        &self,
        pipeline: Arc<Pipeline>,
        settings: FeedSettings,
        cache: CacheMode,
        root: &str,
        columns: Option<&[String]>,
    ) -> Result<Feed> {
        if !pipeline.is_ready() {
            let stages: Vec<&str> = pipeline.stages().iter().map(|stage| stage.name.as_str()).collect();
            let message = format!("\"{}\" cannot be opened before {} have run", pipeline.name(), stages.join(", "));
            return Err(Error::new(ErrorKind::Conflict, message).with_hint("prepare the pipeline first"));
        }
        let left_out = pipeline.results().map_or(0, |results| results.bad_rows);
        if left_out > 0 && settings.on_error == OnError::Raise {
            let (name, error) = (pipeline.name(), ErrorKind::Data);
            let message = format!("the stages of \"{name}\" have left out {left_out} rows that cannot be read");
            return Err(Error::new(error, message)
                .with_hint("leave out on_error: the stages of a pipeline follow on_error in its WITH alone"));
        }
        let pieces = match cache {
            CacheMode::Source => Some(self.piece_caches.of_root(root)?),
            // Without a local disk, there is one choice less.
            CacheMode::Auto if !pipeline.dataset.is_local() => self.piece_caches.of_root(root).ok(),
            _ => None,
        };
        Feed::open(FeedParts {
            pipeline,
            settings,
            cache,
            pieces,
            cache_limit: self.piece_caches.limit(),
            columns,
            context: self.catalog.context(),
            executor: Arc::clone(&self.executor),
            stores: self.stores.clone(),
            root,
            runs_stages: self.runs_stages,
            memory: self.memory,
            open: &self.feeds,
        })
    }

    /// Explains how pipeline `name` will run. Runs no stage.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub async fn explain(&self, name: &str, options: &FeedOptions) -> Result<Explanation> {
        let stages = self.stages(name).await?;
        if stages.iter().any(|stage| stage.kept.is_none()) {
            return Ok(Explanation { pipeline: name.to_owned(), stages, feed: None });
        }
        self.prepare(name).await?;
        let (pipeline, feed) = (self.pipeline(name)?, self.open(name, options)?);
        let mut explained = FeedExplanation::new(&pipeline, &feed);
        explained.bytes = feed.bytes_to_read().await?;
        explained.cache = feed.explain_cache().await?;
        Ok(Explanation { pipeline: pipeline.name().to_owned(), stages, feed: Some(explained) })
    }
}
