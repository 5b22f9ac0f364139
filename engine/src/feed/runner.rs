//! Runs a feed's sequencer in process: starts a task for each lease, and drops windows whose lease has ended.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};

use forebay_delivery::{Event, LeaseId, ReaderId, Sequencer, WindowId, WorkerId, WorkerLimits};
use futures::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::auto_cache::AutoCache;
use super::feed_core::FeedCore;
use super::plan::WindowPlan;
use super::reads::WINDOWS_LEAST;
use super::window::Window;
use crate::error::{Error, ErrorKind, Result};
use crate::executor::{Task, panicked};

/// The only worker: this process.
const HERE: WorkerId = 0;

/// The windows of one open feed, shared by its readers.
pub(crate) struct Runner {
    core: Arc<FeedCore>,
    /// Chooses what the feed keeps, if it does so by itself.
    auto: Option<Arc<AutoCache>>,
    /// Dropping it ends choosing.
    choosing: Mutex<Option<Task<()>>>,
    state: Mutex<RunnerState>,
    changed: Notify,
}

struct RunnerState {
    sequencer: Sequencer<WindowPlan>,
    slots: HashMap<WindowId, Slot>,
    limits: WorkerLimits,
    /// Memory for windows ahead of the readers.
    memory_bytes: u64,
    readers: ReaderId,
}

struct Slot {
    lease: LeaseId,
    /// Aborts the task when dropped.
    _task: Task<()>,
    outcome: Option<Result<Arc<Window>>>,
}

impl Runner {
    pub(crate) fn new(core: Arc<FeedCore>, auto: Option<Arc<AutoCache>>, memory_limit_bytes: u64) -> Arc<Self> {
        let mut sequencer = Sequencer::new(WindowPlan(Arc::clone(&core.plan)), 0);
        // What is kept may be much larger than its source, and then no second window would fit.
        let windows_at_least = if !core.memos.is_empty() { 2 } else { 0 };
        // What is prepared before the feed has chosen what to keep is not kept.
        let memory_bytes = if auto.is_some() { 0 } else { memory_limit_bytes };
        let limits = WorkerLimits { memory_bytes, computing: WINDOWS_LEAST, windows_at_least };
        let joined = sequencer.handle(Event::WorkerJoined { worker: HERE, limits });
        joined.expect("says nothing about a window");
        let state = Mutex::new(RunnerState {
            sequencer,
            slots: HashMap::new(),
            limits,
            memory_bytes: memory_limit_bytes,
            readers: 0,
        });
        Arc::new(Self { core, auto, choosing: Mutex::new(None), state, changed: Notify::new() })
    }

    pub(crate) fn core(&self) -> &Arc<FeedCore> {
        &self.core
    }

    /// What chooses what the feed keeps.
    pub(crate) fn auto(&self) -> Option<&Arc<AutoCache>> {
        self.auto.as_ref()
    }

    /// Begins to choose what the feed keeps, if it does so by itself. It will be read until `epochs`, if that is known.
    pub(super) fn begin_choosing(&self, epochs: Option<u64>) {
        if let Some(choosing) = self.auto.as_ref().and_then(|auto| auto.begin(&self.core, epochs)) {
            *self.choosing.lock() = Some(self.core.executor.spawn(choosing));
        }
    }

    /// Adds a reader that begins at `at` and stops before `until_epoch`.
    pub(crate) fn join(self: &Arc<Self>, at: WindowId, until_epoch: u64) -> WindowCursor {
        let mut state = self.state.lock();
        state.readers += 1;
        let reader = state.readers;
        self.apply(&mut state, Event::ReaderJoined { reader, at, until_epoch, share: 1.0 });
        drop(state);
        WindowCursor { runner: Arc::clone(self), reader }
    }

    fn apply(self: &Arc<Self>, state: &mut RunnerState, event: Event) {
        if let Err(impure) = state.sequencer.handle(event) {
            // A changed file fails when it is read, so a function must have violated its declaration.
            let message =
                format!("a window had {} rows, and {} when it was computed again", impure.rows.0, impure.rows.1);
            if let Some(slot) = state.slots.get_mut(&impure.window) {
                slot.outcome = Some(Err(Error::internal(message)));
            }
        }
        let leases: HashMap<WindowId, LeaseId> = state.sequencer.leases(HERE).into_iter().collect();
        // A failed window has lost its lease, but its readers must still receive the error.
        let (sequencer, slots) = (&state.sequencer, &mut state.slots);
        slots.retain(|window, slot| leases.get(window) == Some(&slot.lease) || sequencer.has_failed(*window));
        for (window, lease) in leases {
            slots.entry(window).or_insert_with(|| {
                tracing::debug!(feed = %self.core.id, window.epoch, window.index, "window leased");
                let _task = self.core.executor.spawn(compute(Arc::downgrade(self), window, lease));
                Slot { lease, _task, outcome: None }
            });
        }
    }

    fn report(self: &Arc<Self>, window: WindowId, lease: LeaseId, outcome: Result<Arc<Window>>) {
        let mut state = self.state.lock();
        let event = match &outcome {
            Ok(ready) => Event::WindowCounted { window, lease, rows: ready.len(), bytes: ready.bytes() },
            Err(_) => Event::WindowFailed { window, lease, retry: false },
        };
        if let Some(slot) = state.slots.get_mut(&window).filter(|slot| slot.lease == lease) {
            slot.outcome = Some(outcome);
        }
        self.apply(&mut state, event);
        self.set_limits(&mut state, window);
        drop(state);
        self.changed.notify_waiters();
    }
}

impl Runner {
    /// Prepares as many windows at a time as reading needs, and as far ahead as there is memory.
    fn set_limits(self: &Arc<Self>, state: &mut RunnerState, window: WindowId) {
        let ranges = self.core.plan.epoch(window.epoch).ranges(window.index).len();
        let is_choosing = self.auto.as_ref().is_some_and(|auto| auto.is_choosing());
        let limits = WorkerLimits {
            computing: self.core.reads.windows(ranges),
            memory_bytes: if is_choosing { 0 } else { state.memory_bytes },
            ..state.limits
        };
        if limits != state.limits {
            state.limits = limits;
            self.apply(state, Event::WorkerJoined { worker: HERE, limits });
        }
    }
}

/// Computes a window. Holds the runner weakly, so that tasks do not keep alive a feed without readers.
async fn compute(runner: Weak<Runner>, window: WindowId, lease: LeaseId) {
    let Some(core) = runner.upgrade().map(|runner| Arc::clone(&runner.core)) else { return };
    // Nothing joins this task: if a panic were not reported, the readers would wait forever.
    let outcome = match AssertUnwindSafe(Window::prepare(&core, window)).catch_unwind().await {
        Ok(prepared) => prepared.map(Arc::new),
        Err(panic) => Err(panicked(ErrorKind::Internal, "preparing a window panicked", panic.as_ref())),
    };
    if let Some(runner) = runner.upgrade() {
        runner.report(window, lease, outcome);
    }
}

/// One reader's position among the windows. Dropping it removes the reader.
pub(crate) struct WindowCursor {
    runner: Arc<Runner>,
    reader: ReaderId,
}

impl WindowCursor {
    pub(crate) fn core(&self) -> &Arc<FeedCore> {
        self.runner.core()
    }

    /// Tells the sequencer that the reader has taken everything before `to`.
    pub(crate) fn advance(&self, to: WindowId) {
        let mut state = self.runner.state.lock();
        self.runner.apply(&mut state, Event::ReaderAdvanced { reader: self.reader, to });
    }

    /// The window, if it is ready.
    pub(crate) fn try_window(&self, window: WindowId) -> Option<Result<Arc<Window>>> {
        self.runner.state.lock().slots.get(&window)?.outcome.clone()
    }

    /// Waits for the window that this reader advanced to. Cancel-safe.
    pub(crate) async fn window(&self, window: WindowId) -> Result<Arc<Window>> {
        loop {
            let changed = self.runner.changed.notified();
            tokio::pin!(changed);
            // Register before checking, so that a report in between is not missed.
            changed.as_mut().enable();
            if let Some(outcome) = self.try_window(window) {
                return outcome;
            }
            changed.await;
        }
    }
}

impl Drop for WindowCursor {
    fn drop(&mut self) {
        let mut state = self.runner.state.lock();
        self.runner.apply(&mut state, Event::ReaderLeft { reader: self.reader });
    }
}
