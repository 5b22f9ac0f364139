//! Whether the process is ready for work, for an orchestrator that asks `GET /readyz`.
//!
//! A process that is alive but not ready gets no traffic, and is not restarted. So its port answers from the start,
//! while the pipelines of a large dataset are still being opened.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Metrics;

/// The state of a process: starting, serving, or stopping.
#[derive(Default)]
pub(crate) struct Health {
    metrics: OnceLock<Metrics>,
    is_stopping: AtomicBool,
}

impl Health {
    /// The process serves from now on.
    pub(crate) fn serves(&self, metrics: Metrics) {
        let _ = self.metrics.set(metrics);
    }

    /// The process drains, and takes no new work.
    pub(crate) fn stops(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    /// The metrics, once the process serves.
    pub(super) fn metrics(&self) -> Option<&Metrics> {
        self.metrics.get()
    }

    /// Whether the process is ready.
    ///
    /// # Errors
    /// What it waits for. A worker whose dispatcher restarts stays ready, because trainers still read from it.
    pub(super) fn ready(&self) -> Result<(), &'static str> {
        let Some(metrics) = self.metrics() else { return Err("starting: the pipelines are not open yet") };
        if self.is_stopping.load(Ordering::Relaxed) {
            return Err("draining: the process was told to stop");
        }
        match metrics.has_dispatcher() {
            true => Ok(()),
            false => Err("waiting: no dispatcher has answered this worker yet"),
        }
    }
}
