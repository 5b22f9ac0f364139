//! The delivery of feeds: state machines that decide who computes which window and who reads which samples, without
//! I/O, clock or randomness.
//!
//! A feed is a log that is computed on demand (see ARCHITECTURE.md). This crate makes its delivery exact. The
//! [`Sequencer`] leases windows. The [`Dispatcher`] keeps one sequencer for each feed, and exchanges [`messages`] with
//! each [`Worker`] and [`Trainer`]. The [`Cutter`] and [`Slice`] assign offsets to ranks, and a [`Token`] is a
//! trainer's position. The engine drives the sequencer in process; `flight-server` and `flight-client` drive the rest
//! over the network. The simulation runs all of them over millions of events with injected faults.
//!
//! The crate knows nothing of Arrow, files, threads or sockets.

mod changes;
mod claim;
mod claim_messages;
mod claimer;
mod claims;
mod clock;
mod cutter;
mod dispatcher;
mod dynamic;
mod empty_epoch;
mod error;
mod meeting;
pub mod messages;
mod place;
mod position;
mod reader_sessions;
mod rules;
mod runs;
mod sequencer;
mod sessions;
mod settings;
#[cfg(test)]
mod simulation;
mod slice;
mod steps;
mod trainer;
mod trouble;
mod window;
mod worker;

pub use changes::{Changes, Known};
pub use claim::{Claim, CompletedPrefix, Granted};
pub use claim_messages::{ClaimAnswer, ClaimMessage, ClaimReply, ClaimSync};
pub use claimer::Claimer;
pub use clock::Millis;
pub use cutter::{Cut, Cutter};
pub use dispatcher::claiming::Unanswered;
pub use dispatcher::group::JobStatus;
pub use dispatcher::status::{FeedStatus, ReaderStatus, ScalingStatus, Status, WorkerStatus};
pub use dispatcher::writing::WritingProgress;
pub use dispatcher::{Dispatcher, DispatcherSettings, Replaced};
pub use dynamic::{DynamicTrainer, STREAMS_OF_A_RANK_MAX};
pub use empty_epoch::EmptyEpoch;
pub use error::{Error, ErrorKind};
pub use meeting::Meeting;
pub use place::Place;
pub use position::{ClaimMarks, EndedRank, RankMarks, Start, Token};
pub use reader_sessions::{ReaderSessions, RefusedReader, session_of};
pub use runs::ClaimSet;
pub use sequencer::{
    Event, LeaseId, NonDeterministicWindow, ReaderId, Replica, ReplicaState, Sequencer, WorkerId, WorkerLimits,
};
pub use settings::{PATIENCE_MS, ReadSettings, SILENCE_MS};
pub use slice::Slice;
pub use steps::Steps;
pub use trainer::{AssembledBatch, Ended, Fragment, Next, Open, Origin, ReceiveLimits, Trainer};
pub use trouble::{Trouble, no_workers};
pub use window::{Plan, WindowId, WindowKey};
pub use worker::{Lease, Worker, WorkerAction, WorkerProfile};
