//! Decides how many workers a dispatcher should have, from what it sees of its feeds, and tells whoever starts them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebay_delivery::ScalingStatus;
use forebay_engine::{Error, Result};
use forebay_flight_client::wire::WorkDone;
use forebay_policy::{Decision, FeedSeen, Observation, WorkerPolicy, WorkerSeen, WorkerSettings};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::dispatcher::{DispatcherService, WorkerWork};

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

    /// Whether the worker at `address` is one that it can drain, and so one of those whose number is decided. Workers
    /// beside trainers never are.
    fn controls(&self, _address: &str) -> bool {
        true
    }
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
    policy: Mutex<WorkerPolicy>,
    began: Instant,
}

impl ScalingService {
    /// # Errors
    /// `Invalid` for settings that contradict themselves.
    pub(crate) fn new(dispatcher: Arc<DispatcherService>, scaling: Scaling) -> Result<Self> {
        let invalid = |error: forebay_policy::Error| Error::invalid(error.message).with_hint(error.hint);
        let policy = Mutex::new(WorkerPolicy::new(scaling.settings).map_err(invalid)?);
        Ok(Self { dispatcher, scaling, policy, began: Instant::now() })
    }

    /// Decides, forever.
    pub(crate) async fn run(&self) {
        loop {
            let seen = self.observe();
            let decision = self.policy.lock().observe(&seen);
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

    fn observe(&self) -> Observation {
        let (status, readings) = self.dispatcher.observe();
        let work = self.dispatcher.work();
        let mut feeds = Vec::new();
        let mut files_left = 0;
        for (feed, reading) in status.feeds.iter().zip(readings) {
            if let Some(writing) = &feed.writing {
                files_left += writing.files - writing.stored.min(writing.files);
                continue;
            }
            let done = |of: fn(&WorkDone) -> u64| {
                work.values().filter_map(|work| work.done.get(&*feed.feed)).map(of).sum::<u64>()
            };
            feeds.push(FeedSeen {
                feed: feed.feed.to_string(),
                readers: u32::try_from(feed.readers.len()).unwrap_or(u32::MAX),
                samples_taken: reading.samples,
                waited_seconds: reading.stalled_ms.values().sum::<u64>() as f64 / 1e3,
                // As old as what was taken and waited: all three are of the readers' messages.
                reading_seconds: reading.elapsed_ms as f64 / 1e3,
                samples_per_window: done(|work| work.samples) as f64 / done(|work| work.windows).max(1) as f64,
            });
        }
        let workers = status.workers.iter().map(|worker| {
            let WorkerWork { threads, done, beside_trainer, .. } =
                work.get(&worker.worker).cloned().unwrap_or_default();
            let controls = |scaler: &Arc<dyn Scaler>| scaler.controls(&worker.address);
            WorkerSeen {
                worker: worker.address.clone(),
                draining: worker.draining,
                managed: !beside_trainer && self.scaling.scaler.as_ref().is_none_or(controls),
                slots: threads.max(1),
                computed_samples: done.iter().map(|(feed, of)| (feed.clone(), of.samples)).collect(),
                busy_seconds: done.iter().map(|(feed, of)| (feed.clone(), of.thread_seconds)).collect(),
            }
        });
        let seconds = self.began.elapsed().as_secs_f64();
        Observation { seconds, feeds, workers: workers.collect(), files_left }
    }
}

#[cfg(test)]
mod tests {
    use forebay_delivery::{Worker, WorkerProfile};
    use forebay_engine::{Session, build, operator_versions};
    use forebay_flight_client::wire::WorkerCall;

    use super::*;

    /// A program that started one worker.
    struct StartedOne;

    impl Scaler for StartedOne {
        fn decided(&self, _: Observation, _: Decision) {}

        fn controls(&self, address: &str) -> bool {
            address == "grpc://started:1"
        }
    }

    #[tokio::test]
    async fn workers_beside_trainers_and_those_of_others_are_not_the_scaler_s() {
        let session = Session::builder().root("memory:///root").build().unwrap();
        let dispatcher = Arc::new(DispatcherService::new(Arc::new(session)).unwrap());
        let join = |worker, name: &str, beside_trainer| {
            let address = format!("grpc://{name}:1");
            let profile = WorkerProfile { worker, address, memory_bytes: 1 << 20, computing: 2 };
            dispatcher.worker_sync(WorkerCall {
                build: build().unwrap().clone(),
                operators: operator_versions().clone(),
                sync: Worker::new(profile).sync(),
                work: Default::default(),
                threads: 3,
                beside_trainer,
            })
        };
        let joined = (join(1, "started", false), join(2, "other", false), join(3, "trainer", true));
        let joined = tokio::join!(joined.0, joined.1, joined.2);
        assert!(joined.0.is_ok() && joined.1.is_ok() && joined.2.is_ok());
        let beside: Vec<bool> = dispatcher.status().workers.iter().map(|worker| worker.beside_trainer).collect();
        assert_eq!(beside, [false, false, true]);
        let managed = |scaler: Option<Arc<dyn Scaler>>| {
            let scaling = Scaling { scaler, ..Scaling::default() };
            let seen = ScalingService::new(Arc::clone(&dispatcher), scaling).unwrap().observe();
            assert!(seen.workers.iter().all(|worker| worker.slots == 3));
            seen.workers.into_iter().filter(|worker| worker.managed).map(|worker| worker.worker).collect::<Vec<_>>()
        };
        assert_eq!(managed(Some(Arc::new(StartedOne))), ["grpc://started:1"]);
        assert_eq!(managed(None), ["grpc://started:1", "grpc://other:1"]);
    }
}
