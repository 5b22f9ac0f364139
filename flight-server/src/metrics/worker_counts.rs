//! Counters of a worker, for its metrics.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_engine::{CostMeter, StoredState, WindowKey};
use forebay_flight_client::wire::WorkDone;
use parking_lot::Mutex;
use prometheus_client::metrics::histogram::Histogram;
use tokio::time::Instant;

use super::streams::{ByFeed, OpenStream, Sent};

/// Windows of rows take milliseconds, windows of videos take minutes.
const LATENCY_SECONDS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];

/// A worker's counters.
#[derive(Default)]
pub(crate) struct WorkerMetrics {
    pub(super) feeds: ByFeed<FeedCounts>,
    leases: Mutex<HashMap<WindowKey, LeaseTimes>>,
    pub(super) streams: Arc<AtomicU64>,
    pub(super) tickets_refused: AtomicU64,
    pub(super) is_reachable: AtomicBool,
    was_reachable: AtomicBool,
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

/// A worker's counters of one feed.
pub(crate) struct FeedCounts {
    pub(super) pipeline: String,
    pub(super) sent: Sent,
    pub(super) prepared: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) counted_seconds: Histogram,
    pub(super) ready_seconds: Histogram,
    /// What counts the costs, since the feed was last opened.
    pub(super) meter: Mutex<Option<CostMeter>>,
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
            meter: Mutex::new(None),
        }
    }
}

impl WorkerMetrics {
    /// This worker opened a feed.
    pub(crate) fn opened(&self, feed: &str, pipeline: &str) {
        self.feeds.get(feed, || FeedCounts::new(pipeline));
    }

    /// From now on, `meter` counts the costs of a feed.
    pub(crate) fn meter(&self, feed: &str, meter: &CostMeter) {
        *self.feeds.get(feed, || FeedCounts::new("")).meter.lock() = Some(meter.clone());
    }

    /// What was done for each feed since it was last opened, by a worker with `threads` threads.
    pub(crate) fn work(&self, threads: usize) -> BTreeMap<String, WorkDone> {
        let feeds = self.feeds.all().into_iter();
        let work = feeds.filter_map(|(feed, counts)| {
            let meter = counts.meter.lock().clone()?;
            let costs = meter.costs();
            let done = WorkDone {
                windows: costs.windows,
                samples: costs.transformed,
                thread_seconds: costs.thread_seconds(threads),
                keeps: meter.keeps().map(str::to_owned),
            };
            Some((feed.to_string(), done))
        });
        work.filter(|(_, done)| done.windows > 0).collect()
    }

    /// A window was leased to this worker.
    pub(crate) fn leased(&self, key: &WindowKey) {
        self.leases.lock().insert(key.clone(), LeaseTimes { since: Instant::now(), stage: LeaseStage::Computing });
    }

    /// A window was dropped.
    pub(crate) fn dropped(&self, key: &WindowKey) {
        self.leases.lock().remove(key);
    }

    /// A window reached this state. May be called any number of times per state.
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

    /// Starts counting a stream of a window of this feed.
    pub(crate) fn stream(&self, feed: &str) -> OpenStream<FeedCounts> {
        // A held window's feed was opened, so its counters exist.
        OpenStream::new(self.feeds.get(feed, || FeedCounts::new("")), &self.streams)
    }

    /// A trainer sent an invalid ticket.
    pub(crate) fn ticket_refused(&self) {
        self.tickets_refused.fetch_add(1, Ordering::Relaxed);
    }

    /// A dispatcher answered, or did not answer.
    pub(crate) fn reachable(&self, is_reachable: bool) {
        self.is_reachable.store(is_reachable, Ordering::Relaxed);
        self.was_reachable.fetch_or(is_reachable, Ordering::Relaxed);
    }

    /// Whether a dispatcher has ever answered.
    pub(super) fn was_reachable(&self) -> bool {
        self.was_reachable.load(Ordering::Relaxed)
    }
}
