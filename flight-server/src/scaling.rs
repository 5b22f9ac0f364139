//! Decides how many workers a dispatcher should have, from what it sees of its feeds, and tells whoever starts them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebay_delivery::ScalingStatus;
use forebay_engine::{Error, Result};
use forebay_flight_client::wire::WorkDone;
use forebay_policy::{Decision, FeedSeen, Observation, WorkerPolicy, WorkerSeen, WorkerSettings};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::dispatcher::DispatcherService;

/// How often to decide.
const INTERVAL: Duration = Duration::from_secs(1);

/// How many workers a dispatcher should have, and who starts and drains them.
#[derive(Clone, Default)]
pub struct Scaling {
    /// What the number is chosen for, and its limits.
    pub settings: WorkerSettings,
    /// Who acts on decisions. Without anyone, they are only shown.
    pub scaler: Option<Arc<dyn Scaler>>,
}

/// Acts on decisions.
pub trait Scaler: Send + Sync {
    /// What was seen, and decided, every second. Must return at once.
    fn decided(&self, seen: Observation, decision: Decision);
}

impl fmt::Debug for Scaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scaling").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Watches a dispatcher.
pub(crate) struct ScalingService {
    dispatcher: Arc<DispatcherService>,
    scaling: Scaling,
    watched: Mutex<Watched>,
}

struct Watched {
    policy: WorkerPolicy,
    began: Instant,
    looked: Instant,
    /// Seconds that the readers of each feed were connected.
    reading: HashMap<Arc<str>, f64>,
}

impl ScalingService {
    /// # Errors
    /// `Invalid` for settings that contradict themselves.
    pub(crate) fn new(dispatcher: Arc<DispatcherService>, scaling: Scaling) -> Result<Self> {
        let invalid = |error: forebay_policy::Error| Error::invalid(error.message).with_hint(error.hint);
        let policy = WorkerPolicy::new(scaling.settings).map_err(invalid)?;
        let (began, reading) = (Instant::now(), HashMap::new());
        Ok(Self { dispatcher, scaling, watched: Mutex::new(Watched { policy, began, looked: began, reading }) })
    }

    /// Decides, forever.
    pub(crate) async fn run(&self) {
        loop {
            let (seen, decision) = self.look();
            let status = ScalingStatus { workers: decision.workers, reason: decision.reason.to_string() };
            if self.dispatcher.set_scaling(status.clone()).is_none_or(|before| before.workers != status.workers) {
                tracing::info!(workers = status.workers, reason = status.reason, "workers wanted");
            }
            if let Some(scaler) = &self.scaling.scaler {
                scaler.decided(seen, decision);
            }
            sleep(INTERVAL).await;
        }
    }

    fn look(&self) -> (Observation, Decision) {
        let mut watched = self.watched.lock();
        let seen = self.observe(&mut watched);
        let decision = watched.policy.observe(&seen);
        (seen, decision)
    }

    fn observe(&self, watched: &mut Watched) -> Observation {
        let now = Instant::now();
        let passed = now.duration_since(watched.looked).as_secs_f64();
        watched.looked = now;
        let (status, readings) = self.dispatcher.observe();
        let work = self.dispatcher.work();
        watched.reading.retain(|feed, _| status.feeds.iter().any(|open| open.feed == *feed));
        let mut feeds = Vec::new();
        let mut files_left = 0;
        for (feed, reading) in status.feeds.iter().zip(readings) {
            if let Some(writing) = &feed.writing {
                files_left += writing.files - writing.stored.min(writing.files);
                continue;
            }
            let connected = watched.reading.entry(Arc::clone(&feed.feed)).or_default();
            *connected += passed * feed.readers.len() as f64;
            let done = |of: fn(&WorkDone) -> u64| {
                work.values().filter_map(|(_, work)| work.get(&*feed.feed)).map(of).sum::<u64>()
            };
            feeds.push(FeedSeen {
                feed: feed.feed.to_string(),
                readers: u32::try_from(feed.readers.len()).unwrap_or(u32::MAX),
                samples_taken: reading.samples,
                waited_seconds: reading.stalled_ms.values().sum::<u64>() as f64 / 1e3,
                reading_seconds: *connected,
                samples_per_window: done(|work| work.samples) as f64 / done(|work| work.windows).max(1) as f64,
            });
        }
        let workers = status.workers.iter().map(|worker| {
            let (threads, work) = work.get(&worker.worker).cloned().unwrap_or_default();
            WorkerSeen {
                worker: worker.address.clone(),
                draining: worker.draining,
                slots: threads.max(1),
                computed_samples: work.iter().map(|(feed, done)| (feed.clone(), done.samples)).collect(),
                busy_seconds: work.iter().map(|(feed, done)| (feed.clone(), done.thread_seconds)).collect(),
            }
        });
        let seconds = now.duration_since(watched.began).as_secs_f64();
        Observation { seconds, feeds, workers: workers.collect(), files_left }
    }
}
