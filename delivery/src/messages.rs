//! Messages between dispatcher, workers and trainers.
//!
//! Every message states all that its sender knows, and every answer states all that its receiver should know. So
//! messages may be lost, late or duplicated, and a dispatcher may be replaced, without any repair. The windows of a
//! worker are many: about them, a message states all that its receiver has not acknowledged ([`Changes`]).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::changes::{Changes, Known, Told};
use crate::error::ErrorKind;
use crate::place::Place;
use crate::sequencer::{LeaseId, WorkerId};
use crate::window::{WindowId, WindowKey};

/// A worker's state. The answer comes at once if the worker's leases changed, else after a while.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerSync {
    /// The worker's id, drawn at random when its process starts.
    pub worker: WorkerId,
    /// The message's number. The dispatcher ignores a message that is older than one it has heard.
    pub seq: u64,
    /// The address at which trainers reach the worker.
    pub address: String,
    /// Bytes of windows that the worker may hold.
    pub memory_bytes: u64,
    /// The number of windows that the worker computes at a time.
    pub computing: usize,
    /// Whether it is about to stop.
    pub draining: bool,
    /// Whether this is the worker's last message.
    pub leaving: bool,
    /// The version of the newest answer.
    pub known: u64,
    /// The leases that it knows.
    pub leases: Known,
    /// The number of windows that it holds.
    pub windows: usize,
    /// The windows that it holds.
    pub held: Changes<WindowKey, Holding>,
    /// Feeds that the worker cannot compute, with the reason.
    pub refused: Vec<(Arc<str>, Report)>,
    /// What it waits for from object stores, if it has waited for long.
    #[serde(default)]
    pub store_wait: Option<StoreWait>,
}

/// Requests to object stores that have waited for five seconds or more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreWait {
    /// Their number.
    pub requests: u64,
    /// Milliseconds that the oldest has waited, with all its retries.
    pub oldest_ms: u64,
    /// What the oldest asks for.
    pub object: String,
}

/// How a worker holds a window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Holding {
    /// The lease.
    pub lease: LeaseId,
    /// How far the window is computed.
    pub state: HeldState,
    /// Whether the worker is at work on it: it has begun to compute it, and has not finished.
    pub at_work: bool,
}

/// How far a window is computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldState {
    /// Being read and filtered.
    Computing,
    /// Its rows are known, and it can be read.
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
    /// Its samples are in a file of a job.
    Stored {
        /// Samples in the file.
        rows: u64,
        /// Bytes of the file.
        bytes: u64,
    },
    /// It could not be computed.
    Failed(Report),
}

/// An error, as it is sent between processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// What the receiver should do.
    pub kind: ErrorKind,
    /// What failed, and where.
    pub message: String,
    /// How to fix it.
    pub hint: Option<String>,
    /// Whether another worker or a later attempt may succeed.
    pub retry: bool,
}

impl Report {
    /// Returns the bytes that its texts take in a message, where some characters are escaped.
    pub(crate) fn text_bytes(&self) -> usize {
        let escaped = |byte: u8| match byte {
            0..b' ' => 6,
            b'"' | b'\\' => 2,
            _ => 1,
        };
        self.message.bytes().chain(self.hint.iter().flat_map(|hint| hint.bytes())).map(escaped).sum()
    }
}

impl Told for Holding {
    fn text_bytes(&self) -> usize {
        match &self.state {
            HeldState::Failed(report) => report.text_bytes(),
            HeldState::Computing | HeldState::Counted { .. } | HeldState::Ready { .. } | HeldState::Stored { .. } => 0,
        }
    }
}

/// The leases of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerReply {
    /// The answer's version, which changes with its content.
    pub version: u64,
    /// The newest message of the worker that the dispatcher has heard.
    pub seq: u64,
    /// The windows of the worker that the dispatcher has heard of.
    pub held: Known,
    /// The windows to compute and keep. When the worker knows all of them, it drops all others.
    pub leases: Changes<WindowKey, Granted>,
    /// For each feed, the places of readers from which the distance of these windows is counted.
    pub places: Vec<(Arc<str>, Vec<Place>)>,
    /// Whether ranks with dynamic delivery wait for others at this dispatcher. A worker without leases stays there:
    /// ranks look for a dispatcher that has workers, and must not keep missing each other.
    pub has_waiting_ranks: bool,
}

impl WorkerReply {
    /// Returns whether the answer to this message should not wait, because it has news, or the worker has more to say.
    pub fn is_urgent(&self, sync: &WorkerSync) -> bool {
        let is_news = self.version != sync.known || self.seq > sync.seq || !self.leases.changed.is_empty();
        is_news || !sync.held.is_all || self.held != sync.held.known.1
    }
}

/// A lease of a window, which is computed and kept.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Granted {
    /// The lease.
    pub lease: LeaseId,
    /// The number of times that the window's rows will still be read: a whole reader counts 1, a rank its fraction.
    pub shares: f64,
}

impl Told for Granted {}

/// A trainer's state: one rank of one reader.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReaderSync {
    /// The trainer's session, drawn at random when it opens.
    pub session: u64,
    /// The message's number. The dispatcher ignores a message that is older than one it has heard.
    pub seq: u64,
    /// The feed's id.
    pub feed: Arc<str>,
    /// The rank.
    pub rank: u64,
    /// The number of ranks.
    pub world_size: u64,
    /// Its place in its job, if that has a name. Trainers of claims have none.
    #[serde(default)]
    pub member: Option<Membership>,
    /// The first window that the trainer has not wholly received.
    pub at: WindowId,
    /// The epoch before which the trainer stops.
    pub until_epoch: u64,
    /// The version of the newest answer.
    pub known: u64,
    /// Leases whose worker the trainer could not read from.
    pub broken: Vec<BrokenLease>,
    /// The window that its loop waits for, and the milliseconds so far.
    pub waiting: Option<(WindowId, u64)>,
    /// Whether this is the trainer's last message.
    pub leaving: bool,
    /// Whether the trainer reads a claim that is not the first of its process. The job continues, so a window that was
    /// given up stays so.
    #[serde(default)]
    pub is_later_claim: bool,
    /// Samples delivered to the loop so far.
    pub samples: u64,
    /// Bytes received so far.
    pub bytes: u64,
    /// Milliseconds that the loop has waited so far.
    pub stalled_ms: u64,
    /// Milliseconds since its first message, by its own clock.
    #[serde(default)]
    pub elapsed_ms: u64,
}

/// The place of a rank with ordered delivery in a named job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The job's name.
    pub job: String,
    /// The reader's number, which is greater than those of the rank's earlier readers, in this process or another.
    pub process: u64,
    /// The epoch and the offset at which it begins.
    pub begin: (u64, u64),
    /// The number of samples of a global step.
    pub step_rows: u64,
    /// Whether its process reads on: a dispatcher has admitted it, or an earlier reader of the process came before.
    pub is_admitted: bool,
}

/// A lease from which a trainer could not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokenLease {
    /// The window.
    pub window: WindowId,
    /// The lease.
    pub lease: LeaseId,
    /// The worker of the lease.
    pub worker: WorkerId,
    /// Whether the worker answered that it does not hold the window. Otherwise it could not be reached, or the stream
    /// broke.
    pub missing: bool,
}

/// The windows that a trainer can read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReaderReply {
    /// The answer's version, which changes with its content.
    pub version: u64,
    /// The newest message of the trainer that the dispatcher has heard.
    pub seq: u64,
    /// Routes to windows, from the trainer's position on without a gap.
    pub routes: Vec<Route>,
    /// The first window after those, with the reason, if it cannot be computed.
    pub failed: Option<(WindowId, Report)>,
    /// The number of workers that compute this feed.
    pub workers: usize,
    /// Whether no worker computes the feed because all refuse it. `failed` then has the reason.
    #[serde(default)]
    pub refused: bool,
}

/// A window that can be read, and its worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The window.
    pub window: WindowId,
    /// Samples in it.
    pub rows: u64,
    /// Whether it is the last of its epoch.
    pub last: bool,
    /// Whether it is computed as far as memory allows, and not only counted.
    #[serde(default)]
    pub ready: bool,
    /// The lease.
    pub lease: LeaseId,
    /// The worker.
    pub worker: WorkerId,
    /// The worker's address.
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
        let held =
            states.map(|state| (("0f3a".into(), window), Some(Holding { lease: u64::MAX, state, at_work: true })));
        let known = Known { pass: u64::MAX, upto: 1 };
        survives(&WorkerSync {
            worker: u64::MAX,
            seq: 1,
            address: "http://[::1]:7070".into(),
            memory_bytes: u64::MAX,
            computing: 2,
            draining: true,
            leaving: false,
            known: u64::MAX,
            leases: known,
            windows: 4,
            held: Changes { known: (Known::default(), known), is_all: true, changed: held.into() },
            refused: vec![("0f3a".into(), report.clone())],
            store_wait: Some(StoreWait { requests: 1, oldest_ms: u64::MAX, object: "http://s3/x".into() }),
        });
        // Thirds are not exact in decimal; the largest number stands for an unknown number of reads.
        let shares = [0.0, 1.0 / 3.0, 1.0 / 7.0 + 1.0, f64::MAX];
        let leases = shares.map(|shares| (("0f3a".into(), window), Some(Granted { lease: u64::MAX, shares })));
        let leases = Changes { known: (known, known), is_all: false, changed: leases.into() };
        let places = vec![("0f3a".into(), vec![Place { at: window, until_epoch: u64::MAX, windows: 1 }])];
        survives(&WorkerReply { version: u64::MAX, seq: 1, held: known, leases, places, has_waiting_ranks: true });
        let broken = [true, false].map(|missing| BrokenLease { window, lease: 1, worker: u64::MAX, missing });
        survives(&ReaderSync {
            session: u64::MAX,
            seq: 1,
            feed: "0f3a".into(),
            rank: 3,
            world_size: 4,
            member: Some(Membership {
                job: "j".into(),
                process: u64::MAX,
                begin: (u64::MAX, 7),
                step_rows: 8,
                is_admitted: true,
            }),
            at: window,
            until_epoch: u64::MAX,
            known: 0,
            broken: broken.into(),
            waiting: Some((window, 1_000)),
            leaving: true,
            is_later_claim: false,
            samples: 1,
            bytes: 2,
            stalled_ms: 3,
            elapsed_ms: 0,
        });
        let route = Route { window, rows: 5, last: true, ready: true, lease: 1, worker: u64::MAX, address: "a".into() };
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
