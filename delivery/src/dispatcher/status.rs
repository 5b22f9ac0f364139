//! The dispatcher's status, for users.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Dispatcher;
use super::group::JobStatus;
use super::writing::WritingProgress;
use crate::clock::Millis;
use crate::messages::{Report, StoreWait};
use crate::sequencer::WorkerId;
use crate::window::{Plan, WindowId};

/// Serializes ids as text of 16 hexadecimal digits, as in logs: some JSON readers round numbers this large.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{number:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map_err(serde::de::Error::custom)
    }
}

/// The output of `forebay status`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Open feeds.
    pub feeds: Vec<FeedStatus>,
    /// Workers in contact.
    pub workers: Vec<WorkerStatus>,
    /// Workers that were lost since this dispatcher started.
    pub workers_lost: u64,
    /// Scripts that could not be opened again, with the error. Their earlier versions are served.
    #[serde(default)]
    pub scripts_failed: Vec<(String, String)>,
    /// How many workers there should be, if that was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<ScalingStatus>,
    /// What the dispatcher itself waits for from object stores, if it has waited for long and is no worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_wait: Option<StoreWait>,
}

/// How many workers there should be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalingStatus {
    /// The number, without workers that are about to stop.
    pub workers: u32,
    /// Why, and what would change it.
    pub reason: String,
}

/// An open feed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeedStatus {
    /// The feed's id.
    pub feed: Arc<str>,
    /// Windows that are being read and filtered.
    pub windows_leased: usize,
    /// Windows whose rows are known.
    pub windows_counted: usize,
    /// Windows that are computed.
    pub windows_ready: usize,
    /// Windows that cannot be computed.
    pub windows_failed: usize,
    /// Leases granted.
    pub leases_granted: u64,
    /// Leases of a second copy, granted because a reader waited too long or could not reach the first.
    pub leases_speculative: u64,
    /// Windows that were leased again after they had been computed.
    pub windows_recomputed: u64,
    /// The usual time to compute a window, in milliseconds.
    pub window_ms: Millis,
    /// The feed's readers.
    pub readers: Vec<ReaderStatus>,
    /// The feed's jobs with dynamic delivery. The readers of their claims are among `readers`.
    pub jobs: Vec<JobStatus>,
    /// How far a job is that writes files, if this is one. Its windows are files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writing: Option<WritingProgress>,
    /// What a worker has chosen to keep of it, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeps: Option<String>,
}

/// One rank of a reader.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReaderStatus {
    /// The trainer's session.
    #[serde(with = "hex")]
    pub session: u64,
    /// The rank.
    pub rank: u64,
    /// The number of ranks.
    pub world_size: u64,
    /// The first window that it has not wholly received.
    pub at: WindowId,
    /// The epoch before which it stops.
    pub until_epoch: u64,
    /// Samples delivered to its loop so far.
    pub samples: u64,
    /// Bytes received so far.
    pub bytes: u64,
    /// Milliseconds that its loop has waited so far.
    pub stalled_ms: u64,
    /// The window that it waits for, and the milliseconds so far.
    pub waiting: Option<(WindowId, u64)>,
}

/// A worker in contact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// The worker's id.
    #[serde(with = "hex")]
    pub worker: WorkerId,
    /// The address at which trainers reach it.
    pub address: String,
    /// Whether it is about to stop.
    pub draining: bool,
    /// Windows that it holds.
    pub windows: usize,
    /// Bytes of windows that it holds.
    pub held_bytes: u64,
    /// Bytes of windows that it may hold.
    pub memory_bytes: u64,
    /// Milliseconds since its last message.
    pub silent_ms: Millis,
    /// Feeds that it cannot compute, with the reason.
    pub refused: Vec<(Arc<str>, Report)>,
    /// What it waits for from object stores, if it has waited for long.
    #[serde(default)]
    pub store_wait: Option<StoreWait>,
    /// Whether it computes beside a trainer, on what that leaves.
    #[serde(default)]
    pub beside_trainer: bool,
}

impl<P: Plan> Dispatcher<P> {
    /// Returns the dispatcher's status.
    pub fn status(&self, now: Millis) -> Status {
        let feeds = self.feeds.iter().map(|(id, feed)| {
            let [leased, counted, ready, failed] = feed.sequencer.census();
            let readers = feed.readers.iter().map(|(&session, reader)| ReaderStatus {
                session,
                rank: reader.rank,
                world_size: reader.world_size,
                at: reader.at,
                until_epoch: reader.until_epoch,
                samples: reader.samples,
                bytes: reader.bytes,
                stalled_ms: reader.stalled_ms,
                waiting: reader.waiting,
            });
            FeedStatus {
                feed: Arc::clone(id),
                windows_leased: leased,
                windows_counted: counted,
                windows_ready: ready,
                windows_failed: failed,
                leases_granted: feed.sequencer.granted(),
                leases_speculative: feed.sequencer.speculative(),
                windows_recomputed: feed.sequencer.recomputed(),
                window_ms: feed.typical_ms.unwrap_or_default(),
                readers: readers.collect(),
                jobs: feed.jobs(now).collect(),
                writing: self.writing_progress(id),
                keeps: None,
            }
        });
        let workers = self.workers.iter().map(|(&worker, state)| WorkerStatus {
            worker,
            address: state.address.clone(),
            draining: state.draining,
            windows: state.told.iter().count(),
            held_bytes: self.feeds.values().map(|feed| feed.sequencer.held_bytes(worker)).sum(),
            memory_bytes: state.memory_bytes,
            silent_ms: now.saturating_sub(state.contact),
            refused: state.refused.iter().map(|(feed, report)| (Arc::clone(feed), report.clone())).collect(),
            store_wait: state.store_wait.clone(),
            beside_trainer: false,
        });
        Status {
            feeds: feeds.collect(),
            workers: workers.collect(),
            workers_lost: self.workers_lost,
            scripts_failed: Vec::new(),
            scaling: None,
            store_wait: None,
        }
    }

    /// Returns the windows that cannot be computed, with the reason.
    pub fn failures(&self) -> impl Iterator<Item = (&Arc<str>, WindowId, Report)> {
        self.feeds
            .iter()
            .flat_map(|(id, feed)| feed.sequencer.failed().map(move |window| (id, window, feed.failure(window))))
    }
}
