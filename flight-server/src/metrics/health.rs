//! Whether the process is ready for work, for an orchestrator that asks `GET /readyz` or the gRPC health service.
//!
//! A process that is alive but not ready gets no traffic, and is not restarted. So its port answers from the start,
//! while the pipelines of a large dataset are still being opened.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::Metrics;

/// How long a scrape waits for a process that has just said where it listens.
const START: Duration = Duration::from_secs(1);

/// The state of a process: starting, serving, or stopping.
#[derive(Default)]
pub(crate) struct Health {
    metrics: OnceLock<Metrics>,
    has_metrics: watch::Sender<bool>,
    is_stopping: AtomicBool,
}

impl Health {
    /// The process serves from now on.
    pub(crate) fn serves(&self, metrics: Metrics) {
        let _ = self.metrics.set(metrics);
        self.has_metrics.send_replace(true);
    }

    /// The process drains, and takes no new work.
    pub(crate) fn stops(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    /// Whether the process was told to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// The metrics, if the process serves now or within a moment.
    pub(crate) async fn metrics(&self) -> Option<&Metrics> {
        // A receiver whose sender lives gets an answer; without one in time, the metrics are not there.
        let _ = timeout(START, self.has_metrics.subscribe().wait_for(|&is_there| is_there)).await;
        self.metrics.get()
    }

    /// Whether the process is ready.
    ///
    /// # Errors
    /// What it waits for. A worker whose dispatcher restarts stays ready, because trainers still read from it.
    pub(crate) fn ready(&self) -> Result<(), &'static str> {
        let Some(metrics) = self.metrics.get() else { return Err("starting: the pipelines are not open yet") };
        if self.is_stopping() {
            return Err("draining: the process was told to stop");
        }
        match metrics.has_dispatcher() {
            true => Ok(()),
            false => Err("waiting: no dispatcher has answered this worker yet"),
        }
    }
}
