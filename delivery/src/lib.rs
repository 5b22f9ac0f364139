//! Who computes which window and who reads what: the delivery of feeds as state machines without I/O, clock or chance.
//!
//! A feed is a log that is computed on demand (see ARCHITECTURE.md). Here is everything that makes its delivery exact:
//! the [`Sequencer`] leases windows, the [`Dispatcher`] keeps one for each feed and talks to each [`Worker`] and
//! [`Trainer`] in [`messages`], the [`Cutter`] and [`Slice`] say which offsets are whose, and a [`Token`] is what a trainer
//! keeps. The engine drives the sequencer in process; `flight-server` and `flight-client` drive the rest over the network;
//! the simulation drives all of them by the million, with every fault there is.
//!
//! It knows nothing of Arrow, files, threads or sockets.

mod claimer;
mod claims;
mod cutter;
mod dispatcher;
mod error;
pub mod messages;
mod position;
mod rules;
mod runs;
mod sequencer;
mod sessions;
#[cfg(test)]
mod simulation;
mod slice;
mod steps;
mod trainer;
mod window;
mod worker;

pub use claimer::Claimer;
pub use claims::{Claim, ClaimAnswer, ClaimMessage, ClaimReply, ClaimSync, CompletedPrefix, Granted};
pub use cutter::{Cut, Cutter};
pub use dispatcher::{
    Dispatcher, DispatcherSettings, FeedStatus, JobStatus, Millis, ReaderStatus, Replaced, Status, Unanswered,
    WorkerStatus,
};
pub use error::{Error, ErrorKind};
pub use position::{ClaimMarks, RankMarks, Start, Token};
pub use sequencer::{
    Event, LeaseId, NonDeterministicWindow, ReaderId, Replica, ReplicaState, Sequencer, WorkerId, WorkerLimits,
};
pub use slice::Slice;
pub use steps::Steps;
pub use trainer::{AssembledBatch, Ended, Fragment, Next, Open, Origin, Trainer};
pub use window::{Plan, WindowId};
pub use worker::{WindowKey, Worker, WorkerAction, WorkerProfile};

/// How one rank reads a feed, resolved and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSettings {
    /// Samples per batch of one rank.
    pub batch_size: u64,
    /// The epoch to stop before.
    pub epochs: u64,
    /// Whether an incomplete global batch at an epoch's end is left out.
    pub drop_last: bool,
    /// Which rank.
    pub rank: u64,
    /// Of how many.
    pub world_size: u64,
}
