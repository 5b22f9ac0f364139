//! The turns of a session's stages, and their progress for a progress bar.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

/// The stage that a session runs at the moment.
#[derive(Debug, Default)]
pub(crate) struct StageProgress {
    /// Held by the stage that runs. Each takes all threads, and the memory of a query.
    turn: tokio::sync::Mutex<()>,
    running: Mutex<Option<Running>>,
    rows: AtomicU64,
    waits: AtomicBool,
}

#[derive(Clone, Debug)]
struct Running {
    pipeline: String,
    stage: String,
    begun: Instant,
}

/// Ends what is shown of a stage, also if it is cancelled.
struct Ends<'a> {
    progress: &'a StageProgress,
    _turn: tokio::sync::MutexGuard<'a, ()>,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        *self.progress.running.lock() = None;
    }
}

/// A stage that runs.
#[derive(Clone, Debug)]
pub struct RunningStage {
    /// The pipeline.
    pub pipeline: String,
    /// The name of the stage.
    pub stage: String,
    /// Rows that it has made so far.
    pub rows: u64,
    /// Whether it waits for another process that runs the same stage.
    pub waits: bool,
    /// Seconds since it was begun.
    pub seconds: f64,
}

impl StageProgress {
    /// Waits until no other stage of the session runs. The stage then runs until the result is dropped.
    pub(crate) async fn begin(&self, pipeline: &str, stage: &str) -> impl Drop {
        let turn = self.turn.lock().await;
        self.rows.store(0, Ordering::Relaxed);
        self.waits.store(false, Ordering::Relaxed);
        let (pipeline, stage) = (pipeline.to_owned(), stage.to_owned());
        *self.running.lock() = Some(Running { pipeline, stage, begun: Instant::now() });
        Ends { progress: self, _turn: turn }
    }

    pub(super) fn add_rows(&self, rows: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
    }

    pub(super) fn set_waits(&self, waits: bool) {
        self.waits.store(waits, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> Option<RunningStage> {
        let Running { pipeline, stage, begun } = self.running.lock().clone()?;
        let (rows, waits) = (self.rows.load(Ordering::Relaxed), self.waits.load(Ordering::Relaxed));
        Some(RunningStage { pipeline, stage, rows, waits, seconds: begun.elapsed().as_secs_f64() })
    }
}
