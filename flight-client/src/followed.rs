//! A trainer's state machine, as the loop, the task that follows its routes and its streams share it.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use forebay_delivery::messages::{ReaderSync, Report};
use forebay_delivery::{Claim, DynamicTrainer, Millis, Trainer, Trouble};
use forebay_protocol::Error;
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
    /// There may be something for the loop.
    pub(crate) moved: Arc<Notify>,
    /// There may be something for the task that follows the routes.
    pub(crate) news: Notify,
    /// There may be room for streams to go on.
    pub(crate) room: Notify,
}

/// Where the state machine is.
pub(crate) enum Machine {
    /// A rank with ordered delivery has one.
    OfRank(Box<Mutex<Trainer<Piece>>>),
    /// A rank with dynamic delivery has one for each claim that it reads.
    OfClaim(Arc<Mutex<DynamicTrainer<Piece>>>, Claim),
}

#[derive(Default)]
struct TroubleState {
    /// What stands in the way now, and may pass.
    dispatcher: Trouble,
    stream: Trouble,
    /// What will not pass.
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

    /// Does something with the trainer; `None` if it is a claim's that is not read any more.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Trainer<Piece>) -> T) -> Option<T> {
        match &self.machine {
            Machine::OfRank(trainer) => Some(act(&mut trainer.lock())),
            Machine::OfClaim(rank, claim) => rank.lock().trainer(*claim).map(act),
        }
    }

    /// The last message to the dispatcher, if it has not been sent.
    pub(crate) fn last_message(&self) -> Option<ReaderSync> {
        match &self.machine {
            Machine::OfRank(trainer) => Some(trainer.lock().leave(self.now())),
            Machine::OfClaim(rank, claim) => rank.lock().end(*claim, self.now()),
        }
    }

    /// The loop has taken what there was: there may be room now, or it waits for something whatever the room.
    pub(crate) fn looked(&self) {
        self.room.notify_waiters();
        self.news.notify_one();
    }

    /// The loop does not read on.
    pub(crate) fn leave(&self) {
        self.state.lock().has_left = true;
        self.news.notify_one();
    }

    pub(crate) fn has_left(&self) -> bool {
        self.state.lock().has_left
    }

    /// A stream broke; if none brings anything for long, it is what the loop is told.
    pub(crate) fn stream_trouble(&self, error: &Error) {
        tracing::debug!(%error, "a stream broke");
        self.state.lock().stream.lasts(error.report(), self.now());
        self.moved.notify_one();
    }

    /// A stream brings something.
    pub(crate) fn streams_are_well(&self) {
        self.state.lock().stream.passes();
    }

    /// The dispatcher is of no use; if that lasts, it is what the loop is told.
    pub(crate) fn dispatcher_trouble(&self, report: Report) {
        self.state.lock().dispatcher.lasts(report, self.now());
        self.moved.notify_one();
    }

    /// The dispatcher is of use.
    pub(crate) fn dispatcher_is_well(&self) {
        self.state.lock().dispatcher.passes();
    }

    /// What stands in the way, and since when.
    pub(crate) fn trouble(&self) -> Option<(Millis, Report)> {
        let state = self.state.lock();
        state.dispatcher.latest().or(state.stream.latest()).cloned()
    }

    /// Nothing more will come, for this reason.
    pub(crate) fn fail(&self, error: Error) {
        self.state.lock().fatal = Some(error);
        self.moved.notify_one();
    }

    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.state.lock().fatal.take()
    }
}
