//! Opens a pipeline as a feed. Equal feeds of a session share their windows.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};

use datafusion::prelude::SessionContext;
use forebay_protocol::{CacheMode, CallOrder, FeedSettings};
use forebay_storage::{Dataset, PieceCache, Stores};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::Feed;
use super::auto_cache::{AutoCache, TrialOf};
use super::costs::CostMeter;
use super::demand::Demand;
use super::feed_core::FeedCore;
use super::id::feed_id;
use super::memo::Memo;
use super::plan::FeedPlan;
use super::reads::Reads;
use super::runner::Runner;
use super::trial::Candidate;
use crate::build::build;
use crate::compile::{Audience, Keeping};
use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::memory::FeedMemory;
use crate::pipeline::Pipeline;
use crate::sealed::Sealed;

/// The inputs for opening a feed.
pub(crate) struct FeedParts<'a> {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) settings: FeedSettings,
    pub(crate) cache: CacheMode,
    /// Where pieces of remote files are kept, if they are.
    pub(crate) pieces: Option<Arc<PieceCache>>,
    /// The most bytes that a feed keeps if it chooses what.
    pub(crate) cache_limit: u64,
    /// The sample columns to compute, or `None` for all.
    pub(crate) columns: Option<&'a [String]>,
    /// Plans the parts that only some feeds need.
    pub(crate) context: &'a SessionContext,
    pub(crate) executor: Arc<Executor>,
    pub(crate) stores: Stores,
    pub(crate) root: &'a str,
    /// Whether stages whose rows are not kept may run.
    pub(crate) runs_stages: bool,
    pub(crate) memory: FeedMemory,
    /// Open feeds, whose windows may be shared.
    pub(crate) open: &'a OpenFeeds,
}

/// A session's open feeds, by root, id, columns, audience and cache. Readers of equal feeds share windows.
pub(crate) type OpenFeeds = Mutex<HashMap<(String, String, Option<Vec<String>>, Audience, CacheMode), Weak<Runner>>>;

/// A window consists of at least sixteen row ranges, so that it mixes rows from the whole dataset.
const RANGES_PER_WINDOW: u64 = 16;
/// The most row ranges of a feed whose windows are smaller than the default.
const SMALL_RANGES_MAX: u64 = 1 << 22;

impl Feed {
    pub(crate) fn open(parts: FeedParts<'_>) -> Result<Self> {
        let FeedParts { pipeline, settings, cache, columns, context, executor, stores, root, memory, .. } = parts;
        let keeps_pieces = Arc::new(AtomicBool::new(cache == CacheMode::Source));
        let dataset = match &parts.pieces {
            Some(pieces) => pipeline.dataset.keeping_pieces(Arc::clone(pieces), Arc::clone(&keeps_pieces)),
            None => pipeline.dataset.clone(),
        };
        if dataset.snapshot().rows() == 0 {
            if pipeline.stages().iter().any(|stage| stage.name == pipeline.table()) {
                let (name, stage) = (pipeline.name(), pipeline.table());
                return Err(Error::invalid(format!("pipeline \"{name}\" has no samples: {stage} gave no rows"))
                    .with_hint("look at the rows of its query: `forebay sql script.sql -c \"SELECT …\"`"));
            }
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
        let key = (root.to_owned(), id.clone(), columns.map(<[String]>::to_vec), pipeline.audience, cache);
        let mut open = parts.open.lock();
        // A function without a version may have been replaced under the same feed id, so only the same plan is shared.
        let is_versioned = pipeline.unversioned_functions().is_empty();
        let is_same = |runner: &Arc<Runner>| is_versioned || Sealed::is_same(&runner.core().stage, &pipeline.stage);
        if let Some(runner) = open.get(&key).and_then(Weak::upgrade).filter(is_same) {
            return Ok(Self { pipeline, runner });
        }
        let lengths = match &settings.buckets {
            Some(buckets) => Some(pipeline.lengths(&buckets.by, settings.order, &context.state())?),
            None => None,
        };
        let stage = match columns {
            Some(columns) => pipeline.stage_of(columns, lengths.is_some(), settings.order, &context.state())?.into(),
            None => pipeline.stage_in(settings.order, &context.state())?,
        };
        let keeps_rows = matches!(cache, CacheMode::Prefix | CacheMode::Full);
        if lengths.is_some() && keeps_rows && stage.layers().is_empty() {
            return Err(Error::invalid("\"cache\" cannot be combined with \"bucket_by_length\"")
                .with_hint("leave out one of them"));
        }
        let memo = |keeping| Memo::of(&pipeline, keeping, &settings, &context.state(), &stores, root).map(Arc::new);
        let kept = OnceLock::from(0);
        let (memos, kept, auto) = match cache {
            // A stage of some columns would keep something else.
            _ if columns.is_some() => (Vec::new(), kept, None),
            CacheMode::None | CacheMode::Source => (Vec::new(), kept, None),
            CacheMode::Prefix => (vec![memo(Keeping::WHOLE_PREFIX)?], kept, None),
            CacheMode::Full => (vec![memo(Keeping::All)?], kept, None),
            CacheMode::Auto => {
                let candidates = match lengths.is_some() && stage.layers().is_empty() {
                    // As above, rows cannot be kept.
                    true => Vec::new(),
                    false => candidates(&pipeline, settings.order, memo),
                };
                let pieces = parts.pieces.is_some().then(|| Arc::clone(&keeps_pieces));
                let trial_of = trial_of(&pipeline, settings.order)?;
                let memos = candidates.iter().map(|candidate| Arc::clone(&candidate.memo)).collect();
                let auto = AutoCache::new(candidates, pieces, parts.cache_limit, root, trial_of);
                (memos, OnceLock::new(), Some(Arc::new(auto)))
            }
        };
        // Different columns have different bad rows, and each file of bad rows is written only once.
        let of_columns = columns.map(|columns| blake3::hash(columns.join("\0").as_bytes()).to_hex());
        let of_columns = of_columns.map_or(String::new(), |hash| format!("-{}", &hash[..8]));
        check_ranges(&dataset, &settings)?;
        let ranges = dataset.row_ranges((settings.window_bytes / RANGES_PER_WINDOW).max(1));
        let meter = CostMeter::new(
            kept.get().and_then(|at| memos.get(*at)).map_or(&stage, |memo: &Arc<Memo>| &memo.stage).costs(),
        );
        let core = FeedCore {
            quarantine_url: format!("{}/quarantine/{id}{of_columns}", root.trim_end_matches('/')),
            root: root.to_owned(),
            id: id.as_str().into(),
            plan: Arc::new(FeedPlan::new(ranges, settings.clone()).limited(&dataset, pipeline.limit)),
            limit: pipeline.limit.unwrap_or(u64::MAX),
            settings,
            dataset,
            meter,
            stage,
            _results: pipeline.results().cloned(),
            runs_stages: parts.runs_stages,
            cache,
            pieces: parts.pieces,
            memos,
            kept,
            demand: Demand::default(),
            reads: Reads::new(executor.threads()),
            lengths,
            lookups: OnceCell::new(),
            lookup_bytes_max: memory.lookup_bytes,
            waiting_bytes_max: memory.waiting_bytes,
            executor,
            stores,
        };
        let runner = Runner::new(Arc::new(core), auto, memory.windows_bytes);
        open.retain(|_, runner| runner.strong_count() > 0);
        open.insert(key, Arc::downgrade(&runner));
        Ok(Self { pipeline, runner })
    }
}

/// The places where a pipeline's samples may be kept. A place where they may not is none.
fn candidates(pipeline: &Pipeline, order: CallOrder, memo: impl Fn(Keeping) -> Result<Arc<Memo>>) -> Vec<Candidate> {
    let cuts = pipeline.cuts(order).unwrap_or_default().into_iter();
    cuts.filter_map(|cut| {
        let memo = memo(Keeping::Prefix { depth: cut.depth }).ok()?;
        Some(Candidate { name: cut.after, memo, is_random: false })
    })
    .collect()
}

fn trial_of(pipeline: &Pipeline, order: CallOrder) -> Result<TrialOf> {
    Ok(TrialOf {
        query: (pipeline.fingerprint().to_owned(), order),
        snapshot: pipeline.dataset.snapshot().id().to_owned(),
        build: serde_json::json!(build()?),
    })
}

/// Refuses windows so small that the list of their row ranges, about a hundred bytes each, would take gigabytes.
fn check_ranges(dataset: &Dataset, settings: &FeedSettings) -> Result<()> {
    if settings.window_bytes >= FeedSettings::default().window_bytes {
        return Ok(());
    }
    let bytes: u64 = dataset
        .snapshot()
        .files()
        .iter()
        .flat_map(|file| &file.groups)
        .map(|group| group.bytes)
        .fold(0, u64::saturating_add);
    let ranges = bytes / (settings.window_bytes / RANGES_PER_WINDOW).max(1);
    if ranges <= SMALL_RANGES_MAX {
        return Ok(());
    }
    let least = bytes.div_ceil(SMALL_RANGES_MAX).saturating_mul(RANGES_PER_WINDOW);
    let message =
        format!("\"window_bytes\" of {} divides {bytes} bytes into about {ranges} parts", settings.window_bytes);
    Err(Error::invalid(message).with_hint(format!("give \"window_bytes\" at least {least}, or leave it out")))
}
