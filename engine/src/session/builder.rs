//! Builds a session from its settings.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_protocol::{OptionSet, SessionOptions};
use forebay_storage::Stores;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::Session;
use super::catalog::Catalog;
use super::piece_caches::PieceCaches;
use crate::batch::{BatchLimits, StageProgress};
use crate::error::{Error, Result};
use crate::executor::{Executor, Threads};
use crate::feed::OpenFeeds;
use crate::memory::{FeedMemory, batch_memory_bytes};
use crate::planner::planner;

/// Builds a [`Session`].
#[derive(Clone, Debug)]
pub struct SessionBuilder {
    threads: Option<usize>,
    cpu_limit: Option<usize>,
    yields: bool,
    memory_limit: Option<u64>,
    window_memory_bytes: Option<u64>,
    lookup_memory_bytes: Option<u64>,
    batch_memory_limit: Option<u64>,
    spill_folder: Option<String>,
    no_precompute: bool,
    cache_folder: Option<String>,
    cache_limit: u64,
    sql_queries: bool,
    sql_rows_max: u64,
    base: PathBuf,
    root: String,
}

impl Session {
    /// A builder with defaults that suit a laptop.
    pub fn builder() -> SessionBuilder {
        SessionBuilder {
            threads: None,
            cpu_limit: None,
            yields: false,
            memory_limit: None,
            window_memory_bytes: None,
            lookup_memory_bytes: None,
            batch_memory_limit: None,
            spill_folder: None,
            no_precompute: false,
            cache_folder: None,
            cache_limit: 0,
            sql_queries: false,
            sql_rows_max: 0,
            base: PathBuf::new(),
            root: String::new(),
        }
        .options(SessionOptions {
            window_memory_limit: None,
            lookup_memory_limit: None,
            ..SessionOptions::defaults()
        })
    }
}

impl SessionBuilder {
    /// Sets the options that are given.
    #[must_use]
    pub fn options(self, options: SessionOptions) -> Self {
        let SessionOptions { threads, cpu_limit, memory_limit, window_memory_limit, lookup_memory_limit, .. } = options;
        let SessionOptions { batch_memory_limit, spill_folder, no_precompute, .. } = options;
        let SessionOptions { base, root, cache_folder, cache_limit, sql_queries, sql_rows_limit, .. } = options;
        Self {
            threads: threads.or(self.threads),
            cpu_limit: cpu_limit.or(self.cpu_limit),
            yields: self.yields,
            memory_limit: memory_limit.or(self.memory_limit),
            base: base.map_or(self.base, PathBuf::from),
            root: root.unwrap_or(self.root),
            window_memory_bytes: window_memory_limit.or(self.window_memory_bytes),
            lookup_memory_bytes: lookup_memory_limit.or(self.lookup_memory_bytes),
            batch_memory_limit: batch_memory_limit.or(self.batch_memory_limit),
            spill_folder: spill_folder.or(self.spill_folder),
            no_precompute: no_precompute.unwrap_or(self.no_precompute),
            cache_folder: cache_folder.or(self.cache_folder),
            cache_limit: cache_limit.unwrap_or(self.cache_limit),
            sql_queries: sql_queries.unwrap_or(self.sql_queries),
            sql_rows_max: sql_rows_limit.unwrap_or(self.sql_rows_max),
        }
    }

    /// Sets the number of worker threads, and of pieces of work that are under way at a time. By default, there are as
    /// many threads as cores, and more pieces are under way while pieces wait: a call that sleeps, or a function of the
    /// embedding program that waits for something else.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Sets whether the worker threads leave the processors to other threads that want them, such as a trainer's in the
    /// same process. They do not by default. Only Linux has priorities of threads.
    #[must_use]
    pub fn yields(mut self, yields: bool) -> Self {
        self.yields = yields;
        self
    }

    /// Sets the memory for the windows of one feed, 128 MiB by default. A feed always holds the window being read, so a
    /// limit below the pipeline's `window_bytes` disables reading ahead.
    #[must_use]
    pub fn window_memory_bytes(mut self, bytes: u64) -> Self {
        self.window_memory_bytes = Some(bytes);
        self
    }

    /// Sets the memory for the lookup tables of one feed's joins, 1 GiB by default. A feed that needs more is refused.
    #[must_use]
    pub fn lookup_memory_bytes(mut self, bytes: u64) -> Self {
        self.lookup_memory_bytes = Some(bytes);
        self
    }

    /// Sets the folder that relative locations and paths are relative to; the current folder by default.
    #[must_use]
    pub fn base(mut self, folder: impl Into<PathBuf>) -> Self {
        self.base = folder.into();
        self
    }

    /// Sets the URL or path of the folder that Forebay writes to; `.forebay` in the current folder by default.
    #[must_use]
    pub fn root(mut self, root: impl Into<String>) -> Self {
        self.root = root.into();
        self
    }

    /// Starts the worker threads.
    ///
    /// # Errors
    /// `Invalid` for a number of threads out of range, `Internal` if the system cannot start the threads.
    pub fn build(self) -> Result<Session> {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let number = self.threads.unwrap_or_else(cores);
        if self.cpu_limit == Some(0) {
            return Err(Error::invalid("\"cpu_limit\" must be at least 1, got 0"));
        }
        let number = self.cpu_limit.map_or(number, |most| number.min(most));
        if !(1..=THREADS_MAX).contains(&number) {
            return Err(Error::invalid(format!("\"threads\" must be between 1 and {THREADS_MAX}, got {number}")));
        }
        let threads = Threads { number, widens: self.threads.is_none(), yields: self.yields };
        forebay_arrays::pool::settle_allocator();
        // Absolute from here on, because the process may change its current folder.
        let base = std::env::current_dir().map(|folder| folder.join(&self.base)).unwrap_or(self.base);
        Ok(Session {
            catalog: Catalog::new(planner()),
            feeds: OpenFeeds::default(),
            specs: Mutex::default(),
            opening_spec: tokio::sync::Mutex::default(),
            executing: tokio::sync::Mutex::new(()),
            stores: Stores::new().with_base(&base),
            base,
            executor: Arc::new(Executor::new(threads)?),
            root: absolute(self.root)?,
            batch: BatchLimits {
                memory_bytes: self.batch_memory_limit.unwrap_or_else(batch_memory_bytes),
                spill_folder: self.spill_folder.map(local_folder).transpose()?,
            },
            runs_stages: !self.no_precompute,
            stage_progress: Arc::new(StageProgress::default()),
            memory: FeedMemory::of(self.memory_limit, self.window_memory_bytes, self.lookup_memory_bytes),
            piece_caches: Arc::new(PieceCaches::new(self.cache_folder, self.cache_limit)),
            sql_queries: self.sql_queries.then(|| Arc::new(Semaphore::new(SQL_QUERIES))),
            sql_rows_max: self.sql_rows_max,
        })
    }
}

/// Queries of SQL clients that run at a time. Each may take the memory of a query.
const SQL_QUERIES: usize = 2;

/// A number of threads beyond any machine's cores is a typing error, and starting them would take minutes.
const THREADS_MAX: usize = 4096;

/// The absolute path of a folder of the local disk.
fn local_folder(folder: String) -> Result<PathBuf> {
    if folder.contains("://") {
        let message =
            format!("\"spill_folder\" must be the path of a folder of the local disk, got the URL \"{folder}\"");
        return Err(Error::invalid(message));
    }
    absolute(folder).map(PathBuf::from)
}

/// Makes `root` absolute by the current folder, not by the tables' folder, because it is not part of the data, and
/// messages contain it.
fn absolute(root: String) -> Result<String> {
    if root.contains("://") {
        return Ok(root);
    }
    let absolute = std::path::absolute(&root)
        .map_err(|error| Error::invalid(format!("\"{root}\" is not a folder to write to: {error}")))?;
    absolute.into_os_string().into_string().map_err(|_| Error::invalid(format!("the path of \"{root}\" is not UTF-8")))
}
