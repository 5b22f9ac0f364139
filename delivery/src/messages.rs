//! What dispatcher, workers and trainers say to each other.
//!
//! Every message states all that its sender knows, and every answer all that should be: so a message may be lost, late
//! or doubled, and a dispatcher may be a new one, without anything to repair.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::ErrorKind;
use crate::sequencer::{LeaseId, WorkerId};
use crate::window::WindowId;

/// A worker's state. Answered at once if the worker should hold something else than it was last told; else in a while.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerSync {
    /// Which: drawn at random when the process starts.
    pub worker: WorkerId,
    /// Counts its messages: an older one that arrives late is ignored.
    pub seq: u64,
    /// Where trainers reach it.
    pub address: String,
    /// Bytes of windows that it may hold.
    pub memory_bytes: u64,
    /// Windows that it computes at a time.
    pub computing: usize,
    /// Whether it is about to stop.
    pub draining: bool,
    /// Whether it is gone with this message.
    pub leaving: bool,
    /// The answer that it goes by.
    pub known: u64,
    /// Every window it holds.
    pub held: Vec<Held>,
    /// Feeds that it cannot compute, and why.
    pub refused: Vec<(Arc<str>, Report)>,
}

/// A window at a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// The feed's id.
    pub feed: Arc<str>,
    /// Which window.
    pub window: WindowId,
    /// The grant.
    pub lease: LeaseId,
    /// How far it is.
    pub state: HeldState,
}

/// How far a window at a worker is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldState {
    /// Being read and filtered.
    Computing,
    /// Its rows are known, and it can be read from.
    Counted {
        /// Samples in it.
        rows: u64,
        /// Bytes that its source rows take.
        bytes: u64,
    },
    /// Computed as far as memory allows.
    Ready {
        /// Samples in it.
        rows: u64,
        /// Bytes that its source rows take.
        bytes: u64,
    },
    /// It could not be computed.
    Failed(Report),
}

/// An error on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// What the receiver should do.
    pub kind: ErrorKind,
    /// What failed and where.
    pub message: String,
    /// What to do.
    pub hint: Option<String>,
    /// Whether another worker, or a later try, may fare better.
    pub retry: bool,
}

/// What a worker should hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerReply {
    /// Names this answer.
    pub version: u64,
    /// The message that it answers.
    pub seq: u64,
    /// The windows to compute and keep, nearest to a reader first. All others are to be dropped.
    pub leases: Vec<Lease>,
}

/// A window to compute and keep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// The feed's id.
    pub feed: Arc<str>,
    /// Which window.
    pub window: WindowId,
    /// The grant.
    pub lease: LeaseId,
    /// How often its rows are still to be taken: a reader counts one, its ranks fractions.
    pub shares: f64,
}

/// A trainer's state: one rank of one reader.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReaderSync {
    /// Which: drawn at random when it opens.
    pub session: u64,
    /// Counts its messages: an older one that arrives late is ignored.
    pub seq: u64,
    /// The feed's id.
    pub feed: Arc<str>,
    /// Which rank.
    pub rank: u64,
    /// Of how many.
    pub world_size: u64,
    /// The first window that it has not wholly received.
    pub at: WindowId,
    /// The epoch it stops before.
    pub until_epoch: u64,
    /// The answer that it goes by.
    pub known: u64,
    /// Grants whose worker it could not read from, and whether it could not even be reached.
    pub broken: Vec<Broken>,
    /// The window that its loop waits for, and for how long.
    pub waiting: Option<(WindowId, u64)>,
    /// Whether it is done.
    pub leaving: bool,
    /// Samples handed to the loop so far.
    pub samples: u64,
    /// Bytes received so far.
    pub bytes: u64,
    /// Milliseconds that the loop has waited so far.
    pub stalled_ms: u64,
}

/// A grant that a trainer could not read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    /// The window.
    pub window: WindowId,
    /// The grant.
    pub lease: LeaseId,
    /// Who was to hold it.
    pub worker: WorkerId,
    /// Whether the worker answered, but did not hold the window.
    pub missing: bool,
}

/// Where a trainer reads next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReaderReply {
    /// Names this answer.
    pub version: u64,
    /// The message that it answers.
    pub seq: u64,
    /// The windows that can be read, from the trainer's position on without a gap.
    pub routes: Vec<Route>,
    /// The first window after those, if it cannot be computed.
    pub failed: Option<(WindowId, Report)>,
    /// Workers that compute this feed.
    pub workers: usize,
    /// Whether that is because all refuse this feed; `failed` then says why.
    #[serde(default)]
    pub refused: bool,
}

/// Where a window can be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Which window.
    pub window: WindowId,
    /// Samples in it.
    pub rows: u64,
    /// Whether it is the last of its epoch.
    pub last: bool,
    /// The grant.
    pub lease: LeaseId,
    /// Who holds it.
    pub worker: WorkerId,
    /// Where that is.
    pub address: String,
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;

    fn survives<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(message: &T) {
        let text = serde_json::to_string(message).expect("plain data");
        assert_eq!(serde_json::from_str::<T>(&text).expect("own text"), *message, "{text}");
    }

    #[test]
    fn messages_survive_json() {
        let window = WindowId { epoch: u64::MAX, index: u32::MAX };
        let report =
            Report { kind: ErrorKind::Data, message: "\"x\"\n".into(), hint: Some("look".into()), retry: true };
        let states = [
            HeldState::Computing,
            HeldState::Counted { rows: u64::MAX, bytes: 0 },
            HeldState::Ready { rows: 0, bytes: u64::MAX },
            HeldState::Failed(report.clone()),
        ];
        let held = states.into_iter().map(|state| Held { feed: "0f3a".into(), window, lease: u64::MAX, state });
        survives(&WorkerSync {
            worker: u64::MAX,
            seq: 1,
            address: "http://[::1]:7070".into(),
            memory_bytes: u64::MAX,
            computing: 2,
            draining: true,
            leaving: false,
            known: u64::MAX,
            held: held.collect(),
            refused: vec![("0f3a".into(), report.clone())],
        });
        // Thirds are not exact in decimal, and the largest number means that nobody knows.
        let shares = [0.0, 1.0 / 3.0, 1.0 / 7.0 + 1.0, f64::MAX];
        let leases = shares.map(|shares| Lease { feed: "0f3a".into(), window, lease: u64::MAX, shares });
        survives(&WorkerReply { version: u64::MAX, seq: 1, leases: leases.into() });
        let broken = [true, false].map(|missing| Broken { window, lease: 1, worker: u64::MAX, missing });
        survives(&ReaderSync {
            session: u64::MAX,
            seq: 1,
            feed: "0f3a".into(),
            rank: 3,
            world_size: 4,
            at: window,
            until_epoch: u64::MAX,
            known: 0,
            broken: broken.into(),
            waiting: Some((window, 1_000)),
            leaving: true,
            samples: 1,
            bytes: 2,
            stalled_ms: 3,
        });
        let route = Route { window, rows: 5, last: true, lease: 1, worker: u64::MAX, address: "a".into() };
        survives(&ReaderReply {
            version: u64::MAX,
            seq: 1,
            routes: vec![route],
            failed: Some((window, report)),
            workers: 0,
            refused: true,
        });
    }
}
