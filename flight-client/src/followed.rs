//! A trainer's state machine, shared by the loop, the task that follows its routes, and its streams.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use forebay_delivery::messages::{ReaderSync, Report};
use forebay_delivery::{Claim, DynamicTrainer, Millis, Trainer, Trouble};
use forebay_protocol::{Error, ErrorKind};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::piece::Piece;

/// A trainer whose routes are followed.
pub(crate) struct FollowedTrainer {
    pub(crate) feed: Arc<str>,
    pub(crate) schema: SchemaRef,
    pub(crate) clock: Clock,
    machine: Machine,
    state: Mutex<TroubleState>,
    /// Wakes the loop.
    pub(crate) moved: Arc<Notify>,
    /// Wakes the task that follows the routes.
    pub(crate) news: Notify,
    /// Wakes streams that wait for room.
    pub(crate) room: Notify,
}

/// The location of the state machine.
pub(crate) enum Machine {
    /// The only one, of a rank with ordered delivery.
    OfRank(Box<Mutex<Trainer<Piece>>>),
    /// One of several: a rank with dynamic delivery has one per claim that it reads.
    OfClaim(Arc<Mutex<DynamicTrainer<Piece>>>, Claim),
}

#[derive(Default)]
struct TroubleState {
    /// Current trouble that may pass.
    dispatcher: Trouble,
    stream: Trouble,
    /// An error that will not pass.
    fatal: Option<Error>,
    has_left: bool,
}

impl FollowedTrainer {
    pub(crate) fn new(
        machine: Machine,
        feed: Arc<str>,
        schema: SchemaRef,
        clock: Clock,
        moved: Arc<Notify>,
    ) -> Arc<Self> {
        let state = Mutex::default();
        Arc::new(Self { feed, schema, clock, machine, state, moved, news: Notify::new(), room: Notify::new() })
    }

    pub(crate) fn now(&self) -> Millis {
        self.clock.now()
    }

    /// Runs `act` on the trainer; `None` if it belongs to a claim that is no longer read.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Trainer<Piece>) -> T) -> Option<T> {
        match &self.machine {
            Machine::OfRank(trainer) => Some(act(&mut trainer.lock())),
            Machine::OfClaim(rank, claim) => rank.lock().trainer(*claim).map(act),
        }
    }

    /// The last message to the dispatcher, if it has not been sent yet.
    pub(crate) fn last_message(&self) -> Option<ReaderSync> {
        match &self.machine {
            Machine::OfRank(trainer) => Some(trainer.lock().leave(self.now())),
            Machine::OfClaim(rank, claim) => rank.lock().end(*claim, self.now()),
        }
    }

    /// The loop has taken the available rows: streams may have room now, or the loop waits whether or not they have.
    pub(crate) fn looked(&self) {
        self.room.notify_waiters();
        self.news.notify_one();
    }

    /// The loop stops reading.
    pub(crate) fn leave(&self) {
        self.state.lock().has_left = true;
        self.news.notify_one();
    }

    pub(crate) fn has_left(&self) -> bool {
        self.state.lock().has_left
    }

    /// A stream broke. The loop gets this error if no stream delivers rows for too long.
    pub(crate) fn stream_trouble(&self, error: &Error) {
        tracing::debug!(%error, "a stream broke");
        self.state.lock().stream.lasts(error.report(), self.now());
        self.moved.notify_one();
    }

    /// A stream delivered rows.
    pub(crate) fn streams_are_well(&self) {
        self.state.lock().stream.passes();
    }

    /// The dispatcher cannot help. The loop gets this error if that lasts too long.
    pub(crate) fn dispatcher_trouble(&self, report: Report) {
        self.state.lock().dispatcher.lasts(report, self.now());
        self.moved.notify_one();
    }

    /// The dispatcher works.
    pub(crate) fn dispatcher_is_well(&self) {
        self.state.lock().dispatcher.passes();
    }

    /// The current trouble, and when it started.
    pub(crate) fn trouble(&self) -> Option<(Millis, Report)> {
        let state = self.state.lock();
        state.dispatcher.latest().or(state.stream.latest()).cloned()
    }

    /// Ends reading with this error.
    pub(crate) fn fail(&self, error: Error) {
        self.state.lock().fatal = Some(error);
        self.moved.notify_one();
    }

    /// Takes the error of a reader that another process of its rank replaced, or whose job conflicts.
    pub(crate) fn take_conflict(&self) -> Option<Error> {
        self.state.lock().fatal.take_if(|error| error.kind() == ErrorKind::Conflict)
    }

    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.state.lock().fatal.take()
    }
}
