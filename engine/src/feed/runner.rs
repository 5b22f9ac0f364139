//! Drives a feed's sequencer: turns its leases into tasks and its evictions into freed memory.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::FeedCore;
use super::plan::FeedPlan;
use super::sequencer::{Action, Event, ReaderId, Schedule, Sequencer, WindowId};
use super::window::Window;
use crate::error::{Error, Result};
use crate::executor::{Task, panic_text};

/// The windows of one open feed, shared by its readers.
pub(crate) struct Runner {
    core: Arc<FeedCore>,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    sequencer: Sequencer<Arc<FeedPlan>>,
    slots: HashMap<WindowId, Slot>,
    readers: ReaderId,
}

enum Slot {
    /// Dropping the task aborts it.
    Computing {
        _task: Task<()>,
    },
    Done(Result<Arc<Window>>),
}

impl Schedule for Arc<FeedPlan> {
    fn after(&self, window: WindowId) -> WindowId {
        self.as_ref().after(window)
    }

    fn bytes(&self, window: WindowId) -> u64 {
        self.as_ref().bytes(window)
    }
}

impl Runner {
    pub(crate) fn new(core: Arc<FeedCore>, memory_limit_bytes: u64) -> Arc<Self> {
        let sequencer = Sequencer::new(Arc::clone(&core.plan), memory_limit_bytes);
        let state = Mutex::new(State { sequencer, slots: HashMap::new(), readers: 0 });
        Arc::new(Self { core, state, changed: Notify::new() })
    }

    pub(crate) fn core(&self) -> &Arc<FeedCore> {
        &self.core
    }

    /// A new reader that begins at `at` and stops before `until_epoch`.
    pub(crate) fn join(self: &Arc<Self>, at: WindowId, until_epoch: u64) -> Reading {
        let mut state = self.state.lock();
        state.readers += 1;
        let reader = state.readers;
        self.apply(&mut state, Event::ReaderJoined { reader, at, until_epoch });
        drop(state);
        Reading { runner: Arc::clone(self), reader }
    }

    fn apply(self: &Arc<Self>, state: &mut State, event: Event) {
        for action in state.sequencer.handle(event) {
            match action {
                Action::Lease(window) => {
                    tracing::debug!(feed = %self.core.id, window.epoch, window.index, "window leased");
                    let _task = self.core.executor.spawn(compute(Arc::downgrade(self), window));
                    state.slots.insert(window, Slot::Computing { _task });
                }
                Action::Evict(window) => {
                    state.slots.remove(&window);
                }
            }
        }
    }

    fn report(self: &Arc<Self>, window: WindowId, outcome: Result<Arc<Window>>) {
        let mut state = self.state.lock();
        let event = match &outcome {
            Ok(ready) => Event::WindowReady { window, bytes: ready.bytes() },
            Err(_) => Event::WindowFailed { window },
        };
        if let Some(slot) = state.slots.get_mut(&window) {
            *slot = Slot::Done(outcome);
        }
        self.apply(&mut state, event);
        drop(state);
        self.changed.notify_waiters();
    }
}

/// Holds the runner only weakly, so that a feed nobody reads any more does not live on in its tasks.
async fn compute(runner: Weak<Runner>, window: WindowId) {
    let Some(core) = runner.upgrade().map(|runner| Arc::clone(&runner.core)) else { return };
    // Nobody joins this task: a panic that went unreported would leave the readers waiting for ever.
    let outcome = match AssertUnwindSafe(Window::prepare(&core, window)).catch_unwind().await {
        Ok(prepared) => prepared.map(Arc::new),
        Err(panic) => Err(Error::internal(format!("preparing a window panicked: {}", panic_text(panic.as_ref())))),
    };
    if let Some(runner) = runner.upgrade() {
        runner.report(window, outcome);
    }
}

/// One reader's place among the windows; leaving is dropping it.
pub(crate) struct Reading {
    runner: Arc<Runner>,
    reader: ReaderId,
}

impl Reading {
    pub(crate) fn core(&self) -> &Arc<FeedCore> {
        self.runner.core()
    }

    /// Tells the sequencer that everything before `to` was taken.
    pub(crate) fn advance(&self, to: WindowId) {
        let mut state = self.runner.state.lock();
        self.runner.apply(&mut state, Event::ReaderAdvanced { reader: self.reader, to });
    }

    /// The window, if it is there already.
    pub(crate) fn try_window(&self, window: WindowId) -> Option<Result<Arc<Window>>> {
        match self.runner.state.lock().slots.get(&window) {
            Some(Slot::Done(outcome)) => Some(outcome.clone()),
            Some(Slot::Computing { .. }) | None => None,
        }
    }

    /// Waits for the window that this reader advanced to. Cancel-safe.
    pub(crate) async fn window(&self, window: WindowId) -> Result<Arc<Window>> {
        loop {
            let changed = self.runner.changed.notified();
            tokio::pin!(changed);
            // Listening begins before looking, so a report in between is not missed.
            changed.as_mut().enable();
            if let Some(outcome) = self.try_window(window) {
                return outcome;
            }
            changed.await;
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut state = self.runner.state.lock();
        self.runner.apply(&mut state, Event::ReaderLeft { reader: self.reader });
    }
}
