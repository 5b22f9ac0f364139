//! Keeps the part of each sample that need not be computed again: see `cache`.
//!
//! A feed with a memo has two stages that give the same samples. The usual one reads source rows, and computes samples
//! when a reader is about to receive them. The *keeping* one computes the input of its lowest layer while a window is
//! prepared, or reads it from the cache, and keeps it. A window is of one of the two. It is of the keeping stage if all
//! of its rows are kept, or if it is this process's turn to keep it. Else the usual stage computes only the rows that
//! this process delivers: each of several ranks prepares every window.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{RecordBatch, UInt64Array};
use datafusion::execution::SessionState;
use forebay_arrays::batch_bytes;
use forebay_delivery::WindowId;
use forebay_protocol::{CacheMode, FeedSettings};
use forebay_storage::{BadRead, FoundRange, RangeCache, RangeCacheUsage, RangeRows, RowRange, Stores};
use futures::future::try_join_all;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{timeout, timeout_at};

use super::cache_report::CacheReport;
use super::costs::{CostMeter, Step};
use super::feed_core::FeedCore;
use super::rows_read::{limited, with_keys};
use crate::build::build;
use crate::compile::{Keeping, Stage};
use crate::error::{Error, Result};
use crate::executor::Task;
use crate::pipeline::Pipeline;
use crate::sealed::Sealed;

/// The most row ranges, and about the most of their bytes, that are computed to see how much larger the results are.
const MEASURED_MAX: usize = 32;
const MEASURED_BYTES_MAX: u64 = 4 << 20;
/// How long the first windows wait to learn what is kept.
const LOOK_PATIENCE: Duration = Duration::from_millis(250);
/// After a failure, nothing is kept for so long.
const FAILURE_PAUSE: Duration = Duration::from_secs(60);
/// Kept rows that take longer to read are computed. For the pause after a failure, all are.
const READ_PATIENCE: Duration = Duration::from_secs(30);

/// What a feed keeps.
pub(crate) struct Memo {
    pub(crate) stage: Sealed<Stage>,
    /// Whether random results are kept too.
    is_full: bool,
    cache: Arc<RangeCache>,
    /// The most bytes to keep.
    limit: AtomicU64,
    /// The rank that reads in this process, and the number of ranks. Unknown before a rank reads, and on workers.
    turn: Mutex<Option<(u64, u64)>>,
    looking: Mutex<Looking>,
    /// Held while something is kept within a limit.
    keeping: tokio::sync::Mutex<()>,
    /// When keeping last failed.
    failed: Mutex<Option<Instant>>,
    /// When reading last took too long.
    slow: Mutex<Option<Instant>>,
}

/// Looking for what other processes have kept.
#[derive(Default)]
struct Looking {
    /// The latest look. Dropping it ends it.
    task: Option<Task<()>>,
    /// When the first began.
    began: Option<Instant>,
    ended: Arc<Ended>,
}

#[derive(Default)]
struct Ended {
    /// Whether no look is under way.
    is_idle: AtomicBool,
    /// Whether one has ended.
    is_first_over: AtomicBool,
    changed: Notify,
}

/// A row range of a window, and where the rows that the keeping stage makes of it are kept, if they are.
pub(super) struct Wanted {
    range: RowRange,
    /// The ids of its rows.
    ids: Range<u64>,
    found: Option<FoundRange>,
    /// Whether it is kept if it has to be computed.
    is_kept_here: bool,
}

/// What the keeping stage made of a row range.
pub(super) struct Made {
    /// The ids of the range's rows.
    pub(super) ids: Range<u64>,
    pub(super) rows: RangeRows,
    /// Whether it is to be kept: it was computed now.
    pub(super) is_new: bool,
}

impl Memo {
    /// The memo of a feed that keeps this part of its samples.
    ///
    /// # Errors
    /// `Invalid` if nothing of the pipeline can be kept.
    pub(crate) fn of(
        pipeline: &Pipeline,
        keeping: Keeping,
        settings: &FeedSettings,
        state: &SessionState,
        stores: &Stores,
        root: &str,
    ) -> Result<Self> {
        let unversioned = pipeline.unversioned_functions();
        if !unversioned.is_empty() {
            let message =
                format!("\"cache\" cannot keep results of \"{}\", which has no version", unversioned.join("\", \""));
            return Err(Error::invalid(message)
                .with_hint("give the function a version, and a new one whenever its results change"));
        }
        let stage = pipeline.keeping_stage(keeping, settings.order, state)?;
        let layer = stage.layers().first().ok_or_else(|| Error::internal("a keeping stage has a layer"))?;
        let is_random = layer.below().is_random();
        if is_random && keeping != Keeping::All {
            return Err(Error::invalid(
                "\"cache\" has nothing to keep: random values are drawn before rows are derived",
            )
            .with_hint("move random calls above the table operator, join or unnest"));
        }
        let name = serde_json::json!({
            "query": layer.fingerprint(),
            "snapshot": pipeline.dataset.snapshot().id(),
            // Other builds may compute other bytes.
            "build": build()?,
            // Random results are those of a seed.
            "seed": is_random.then_some(settings.seed),
        });
        let name = blake3::hash(name.to_string().as_bytes()).to_hex()[..32].to_owned();
        let cache = Arc::new(RangeCache::new(stores, root, &name, &layer.input_schema())?);
        Ok(Self {
            stage: stage.into(),
            is_full: keeping == Keeping::All,
            cache,
            limit: AtomicU64::new(u64::MAX),
            turn: Mutex::new(None),
            looking: Mutex::default(),
            keeping: tokio::sync::Mutex::default(),
            failed: Mutex::new(None),
            slow: Mutex::new(None),
        })
    }

    /// Keeps at most about so many bytes. What is kept stays: an epoch reads each row once, so a row that replaced
    /// another would only lose it.
    pub(super) fn limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// What is kept, as far as this process knows.
    pub(super) fn usage(&self) -> RangeCacheUsage {
        self.cache.usage()
    }

    /// The folder of what is kept.
    pub(super) fn folder(&self) -> &str {
        self.cache.folder()
    }

    /// Learns of what others have kept.
    ///
    /// # Errors
    /// Those of listing the folder.
    pub(super) async fn learn(&self) -> Result<()> {
        Ok(self.cache.look().await?)
    }

    /// The bytes that keeping takes for some rows.
    ///
    /// # Errors
    /// `Internal` for rows of another stage.
    pub(super) fn bytes_to_keep(&self, made: &RangeRows) -> Result<u64> {
        Ok(self.cache.bytes_to_keep(made)?)
    }

    /// What is kept, and how much larger than its source it is, measured on a few row ranges.
    pub(super) async fn explain(self: &Arc<Self>, core: &Arc<FeedCore>) -> Result<CacheReport> {
        if let Err(error) = self.cache.look().await {
            tracing::warn!(folder = self.cache.folder(), %error, "what is kept cannot be listed");
        }
        let (mut read, mut made) = (0, 0);
        for (range, rows) in core.plan.single_ranges(WindowId { epoch: 0, index: 0 }).into_iter().take(MEASURED_MAX) {
            if range.bytes > MEASURED_BYTES_MAX {
                continue;
            }
            let ids = first_id(core, &range)..first_id(core, &range) + rows;
            let wanted = Wanted { range, ids, found: None, is_kept_here: false };
            let (this, its) = (Arc::clone(self), Arc::clone(core));
            let mut task = core.executor.spawn(async move { this.get(&its, wanted, 0).await });
            // A range that cannot be read is the feed's concern, not the explanation's.
            let Ok(rows) = task.join().await? else { continue };
            made += batch_bytes(&rows.rows.batch);
            read += range.bytes;
            if read > MEASURED_BYTES_MAX {
                break;
            }
        }
        let bytes_per_byte = (read > 0).then(|| made as f64 / read as f64);
        let RangeCacheUsage { rows, bytes, .. } = self.cache.usage();
        let mode = if self.is_full { CacheMode::Full } else { CacheMode::Prefix };
        let folder = self.cache.folder().to_owned();
        let (rows, is_local, choice) = (Some(rows), false, None);
        Ok(CacheReport { mode, folder, rows, bytes, limit: None, is_local, bytes_per_byte, choice })
    }

    /// Tells that a rank reads in this process. Processes of one rank each keep their share of the windows.
    pub(super) fn read_by(&self, rank: u64, world_size: u64) {
        let mut turn = self.turn.lock();
        *turn = match *turn {
            None => Some((rank, world_size)),
            Some(other) if other == (rank, world_size) => Some(other),
            Some(_) => Some((0, 1)),
        };
    }

    fn is_turn(&self, window: WindowId) -> bool {
        let (rank, world_size) = self.turn.lock().unwrap_or((0, 1));
        u64::from(window.index) % world_size == rank
    }

    /// The ranges of a window, or `None` if the usual stage computes it.
    pub(super) async fn wanted(&self, core: &FeedCore, window: WindowId) -> Option<Vec<Wanted>> {
        if is_recent(&self.slow) {
            return None;
        }
        let wanted = |(range, rows): (RowRange, u64)| {
            let ids = first_id(core, &range)..first_id(core, &range) + rows;
            Wanted { range, found: self.cache.find(ids.clone()), ids, is_kept_here: false }
        };
        let mut all: Vec<Wanted> = core.plan.single_ranges(window).into_iter().map(wanted).collect();
        if all.iter().any(|wanted| wanted.found.is_none()) {
            self.look(core).await;
            for wanted in &mut all {
                wanted.found = wanted.found.take().or_else(|| self.cache.find(wanted.ids.clone()));
            }
        }
        let is_kept_here = self.is_turn(window) && self.has_room() && !self.has_failed();
        all.iter_mut().for_each(|wanted| wanted.is_kept_here = is_kept_here);
        (is_kept_here || all.iter().all(|wanted| wanted.found.is_some())).then_some(all)
    }

    fn has_room(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        limit == u64::MAX || self.cache.bytes() < limit
    }

    fn has_failed(&self) -> bool {
        is_recent(&self.failed)
    }

    /// Reads kept rows; `None` if they are damaged or gone, or take too long.
    async fn read(&self, found: &FoundRange) -> Option<RangeRows> {
        match timeout(READ_PATIENCE, self.cache.read(found)).await {
            Ok(rows) => rows,
            Err(_) => {
                if self.slow.lock().replace(Instant::now()).is_none_or(|at| at.elapsed() >= FAILURE_PAUSE) {
                    let folder = self.cache.folder();
                    tracing::warn!(folder, "kept rows are computed again for a minute: reading them takes too long");
                }
                None
            }
        }
    }

    /// Learns what other processes have kept, in the background. The first windows wait for that, but not for long.
    async fn look(&self, core: &FeedCore) {
        let (began, ended) = {
            let mut looking = self.looking.lock();
            let is_first = looking.began.is_none();
            if is_first || looking.ended.is_idle.swap(false, Ordering::Relaxed) {
                let (cache, ended) = (Arc::clone(&self.cache), Arc::clone(&looking.ended));
                looking.task = Some(core.executor.spawn(async move {
                    if let Err(error) = cache.look().await {
                        tracing::warn!(folder = cache.folder(), %error, "what is kept cannot be listed");
                    }
                    ended.is_idle.store(true, Ordering::Relaxed);
                    ended.is_first_over.store(true, Ordering::Relaxed);
                    ended.changed.notify_waiters();
                }));
            }
            (*looking.began.get_or_insert_with(Instant::now), Arc::clone(&looking.ended))
        };
        let changed = ended.changed.notified();
        tokio::pin!(changed);
        // Register before checking, so that an end in between is not missed.
        changed.as_mut().enable();
        if !ended.is_first_over.load(Ordering::Relaxed) {
            let _ = timeout_at((began + LOOK_PATIENCE).into(), changed).await;
        }
    }

    /// Gets what the keeping stage makes of a range. Random values are those of `epoch`.
    pub(super) async fn get(&self, core: &FeedCore, wanted: Wanted, epoch: u64) -> Result<Made> {
        let Wanted { range, ids, found, is_kept_here } = wanted;
        let begun = Instant::now();
        // Other ranges of a window that has begun do not wait again.
        if let Some(found) = found.filter(|_| !is_recent(&self.slow))
            && let Some(rows) = self.read(&found).await
        {
            core.read_in(begun.elapsed());
            return Ok(Made { ids, rows, is_new: false });
        }
        let begun = Instant::now();
        let read = self.source(core, range).await?;
        core.read_in(begun.elapsed());
        let begun = Instant::now();
        let rows = self.made(core, &read, epoch).await?;
        core.meter.count(Step::Preparing, begun);
        // A store that is slow, or deletes what was found, is not given more at once.
        Ok(Made { ids, rows, is_new: is_kept_here && !is_recent(&self.slow) })
    }

    /// Reads the source rows of a range that may pass the filters.
    pub(super) async fn source(&self, core: &FeedCore, range: RowRange) -> Result<Vec<RangeRows>> {
        let parts = self.stage.possible(&core.dataset, range).await?;
        let columns = self.stage.read_columns();
        let read = parts.iter().map(|part| core.dataset.read_with_dictionaries(part, columns, &[]));
        Ok(try_join_all(read).await?.into_iter().map(|read| limited(read, core.limit)).collect())
    }

    /// What the keeping stage makes of source rows.
    pub(super) async fn made(&self, core: &FeedCore, read: &[RangeRows], epoch: u64) -> Result<RangeRows> {
        let mut bad: Vec<BadRead> = read.iter().flat_map(|read| read.bad.clone()).collect();
        let layer = &self.stage.layers()[0];
        match with_keys(read, core.settings.seed, epoch)? {
            Some(source) => {
                let risen = self.stage.rise(layer, &source).await?;
                bad.extend(risen.bad.into_iter().map(|bad| BadRead { sample_id: bad.sample_id, reason: bad.reason }));
                Ok(RangeRows { batch: risen.rows.batch, sample_ids: risen.rows.sample_ids, bad })
            }
            None => {
                let batch = RecordBatch::new_empty(layer.input_schema());
                Ok(RangeRows { batch, sample_ids: UInt64Array::from_iter_values([]), bad })
            }
        }
    }

    /// Keeps what was computed. If that fails, the feed continues without keeping more for a while.
    pub(super) async fn keep(&self, made: Vec<(Range<u64>, RangeRows)>, meter: &CostMeter) {
        if made.is_empty() || self.has_failed() {
            return;
        }
        let begun = Instant::now();
        let limit = self.limit.load(Ordering::Relaxed);
        // Windows that are kept at the same time would exceed a limit together.
        let (made, _turn) = match limit {
            u64::MAX => (made, None),
            _ => {
                let turn = self.keeping.lock().await;
                (fitting(made, limit.saturating_sub(self.cache.bytes())), Some(turn))
            }
        };
        let kept = self.cache.keep(&made).await;
        meter.count(Step::Storing, begun);
        if let Err(error) = kept
            && self.failed.lock().replace(Instant::now()).is_none_or(|at| at.elapsed() >= FAILURE_PAUSE)
        {
            let folder = self.cache.folder();
            tracing::warn!(folder, %error, "nothing is kept for a minute: the cache cannot be written");
        }
    }
}

/// The first ranges whose results have at most so many bytes together, about.
fn fitting(mut made: Vec<(Range<u64>, RangeRows)>, room: u64) -> Vec<(Range<u64>, RangeRows)> {
    let mut bytes = 0;
    let over = made.iter().position(|(_, rows)| {
        bytes += batch_bytes(&rows.batch);
        bytes > room
    });
    made.truncate(over.unwrap_or(made.len()));
    made
}

fn is_recent(at: &Mutex<Option<Instant>>) -> bool {
    at.lock().is_some_and(|at| at.elapsed() < FAILURE_PAUSE)
}

/// The id of a range's first row.
fn first_id(core: &FeedCore, range: &RowRange) -> u64 {
    core.dataset.snapshot().files()[range.file as usize].first_sample_id + range.first_row
}
