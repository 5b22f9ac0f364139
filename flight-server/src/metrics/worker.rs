//! A worker's metrics, and what is counted for them as windows go by.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_engine::{StoredState, WindowKey};
use parking_lot::Mutex;
use prometheus_client::metrics::histogram::Histogram;
use tokio::time::Instant;

use super::streams::{ByFeed, OpenStream, Sent};
use super::{Page, feed_labels};
use crate::worker::WorkerService;

/// Windows of rows take milliseconds, windows of videos minutes.
const LATENCY_SECONDS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];

/// What a worker counts.
#[derive(Default)]
pub(crate) struct WorkerMetrics {
    feeds: ByFeed<FeedCounts>,
    leases: Mutex<HashMap<WindowKey, LeaseTimes>>,
    streams: Arc<AtomicU64>,
    tickets_refused: AtomicU64,
    is_reachable: AtomicBool,
}

struct LeaseTimes {
    since: Instant,
    stage: LeaseStage,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LeaseStage {
    Computing,
    Counted,
    Ready,
    Failed,
}

/// What is counted of a feed.
pub(crate) struct FeedCounts {
    pipeline: String,
    sent: Sent,
    prepared: AtomicU64,
    failed: AtomicU64,
    counted_seconds: Histogram,
    ready_seconds: Histogram,
}

impl AsRef<Sent> for FeedCounts {
    fn as_ref(&self) -> &Sent {
        &self.sent
    }
}

impl FeedCounts {
    fn new(pipeline: &str) -> Self {
        Self {
            pipeline: pipeline.to_owned(),
            sent: Sent::default(),
            prepared: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            counted_seconds: Histogram::new(LATENCY_SECONDS),
            ready_seconds: Histogram::new(LATENCY_SECONDS),
        }
    }
}

impl WorkerMetrics {
    /// A feed is open here.
    pub(crate) fn opened(&self, feed: &str, pipeline: &str) {
        self.feeds.get(feed, || FeedCounts::new(pipeline));
    }

    /// A window was leased to this worker.
    pub(crate) fn leased(&self, key: &WindowKey) {
        self.leases.lock().insert(key.clone(), LeaseTimes { since: Instant::now(), stage: LeaseStage::Computing });
    }

    /// A window was dropped.
    pub(crate) fn dropped(&self, key: &WindowKey) {
        self.leases.lock().remove(key);
    }

    /// A window is this far; said as often as one likes.
    pub(crate) fn reached(&self, key: &WindowKey, state: &StoredState) {
        let mut leases = self.leases.lock();
        let Some(lease) = leases.get_mut(key) else { return };
        let stage = match state {
            StoredState::Computing => LeaseStage::Computing,
            StoredState::Counted { .. } => LeaseStage::Counted,
            StoredState::Ready { .. } => LeaseStage::Ready,
            StoredState::Failed(_) => LeaseStage::Failed,
        };
        let before = lease.stage;
        if stage <= before {
            return;
        }
        lease.stage = stage;
        let Some(counts) = self.feeds.known(&key.0) else { return };
        let took = lease.since.elapsed().as_secs_f64();
        if stage == LeaseStage::Failed {
            counts.failed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if before < LeaseStage::Counted {
            counts.prepared.fetch_add(1, Ordering::Relaxed);
            counts.counted_seconds.observe(took);
        }
        if stage == LeaseStage::Ready {
            counts.ready_seconds.observe(took);
        }
    }

    /// A stream of a window of this feed begins.
    pub(crate) fn stream(&self, feed: &str) -> OpenStream<FeedCounts> {
        // The feed of a window that is held was opened.
        OpenStream::new(self.feeds.get(feed, || FeedCounts::new("")), &self.streams)
    }

    /// A trainer came with a ticket that is not good.
    pub(crate) fn ticket_refused(&self) {
        self.tickets_refused.fetch_add(1, Ordering::Relaxed);
    }

    /// A dispatcher answered, or did not.
    pub(crate) fn reachable(&self, is_reachable: bool) {
        self.is_reachable.store(is_reachable, Ordering::Relaxed);
    }
}

pub(super) fn write(page: &mut Page<'_>, worker: &WorkerService) -> fmt::Result {
    let metrics = worker.metrics();
    let feeds = metrics.feeds.all();
    let of = |value: fn(&FeedCounts) -> f64| {
        feeds.iter().map(move |(feed, counts)| (feed_labels(feed, &counts.pipeline), value(counts)))
    };
    page.counter("forebay_worker_sent_rows", "Rows of windows sent to readers", of(|counts| counts.sent.rows()))?;
    page.counter(
        "forebay_worker_sent_bytes",
        "Bytes of Arrow data of windows sent to readers",
        of(|counts| counts.sent.bytes()),
    )?;
    page.counter(
        "forebay_worker_windows_prepared",
        "Windows that were read and filtered",
        of(|counts| counts.prepared.load(Ordering::Relaxed) as f64),
    )?;
    page.counter(
        "forebay_worker_windows_failed",
        "Windows that could not be computed",
        of(|counts| counts.failed.load(Ordering::Relaxed) as f64),
    )?;
    let histograms = |which: fn(&FeedCounts) -> &Histogram| {
        feeds.iter().map(move |(feed, counts)| (feed_labels(feed, &counts.pipeline), which(counts)))
    };
    page.histogram(
        "forebay_worker_window_counted_seconds",
        "Time from a window's lease until it was read and filtered",
        histograms(|counts| &counts.counted_seconds),
    )?;
    page.histogram(
        "forebay_worker_window_ready_seconds",
        "Time from a window's lease until it was computed as far as memory allows",
        histograms(|counts| &counts.ready_seconds),
    )?;
    windows(page, worker, &feeds)?;
    let usage = worker.usage();
    page.single("forebay_worker_source_memory_bytes", "Source rows of windows in memory", usage.source_bytes as f64)?;
    page.single("forebay_worker_chunk_memory_bytes", "Processed rows of windows in memory", usage.chunk_bytes as f64)?;
    page.single(
        "forebay_worker_chunk_memory_limit_bytes",
        "Processed rows that there may be in memory, about",
        usage.chunk_limit_bytes as f64,
    )?;
    page.total("forebay_worker_chunks_computed", "Chunks of windows that were computed", usage.chunks_computed as f64)?;
    page.total(
        "forebay_worker_chunks_recomputed",
        "Chunks that were computed again, since memory had not sufficed to keep them",
        usage.chunks_recomputed as f64,
    )?;
    let streams = metrics.streams.load(Ordering::Relaxed) as f64;
    page.single("forebay_worker_streams", "Streams of windows that are open", streams)?;
    let refused = metrics.tickets_refused.load(Ordering::Relaxed) as f64;
    page.total("forebay_worker_tickets_refused", "Requests for windows with a ticket that is not good", refused)?;
    let is_reachable = f64::from(u8::from(metrics.is_reachable.load(Ordering::Relaxed)));
    page.single("forebay_worker_dispatcher_reachable", "1 while a dispatcher answers", is_reachable)
}

/// The windows that are held.
fn windows(page: &mut Page<'_>, worker: &WorkerService, feeds: &[(Arc<str>, Arc<FeedCounts>)]) -> fmt::Result {
    let mut held: HashMap<Arc<str>, [usize; 4]> = HashMap::new();
    for ((feed, _), state) in worker.states() {
        let index = match state {
            StoredState::Computing => 0,
            StoredState::Counted { .. } => 1,
            StoredState::Ready { .. } => 2,
            StoredState::Failed(_) => 3,
        };
        held.entry(feed).or_default()[index] += 1;
    }
    let series = feeds.iter().flat_map(|(feed, counts)| {
        let held = held.get(feed).copied().unwrap_or_default();
        ["computing", "counted", "ready", "failed"].into_iter().zip(held).map(move |(state, windows)| {
            ([("feed", &**feed), ("pipeline", counts.pipeline.as_str()), ("state", state)], windows as f64)
        })
    });
    page.gauge("forebay_worker_windows", "Windows that are held, by how far they are", series)
}
