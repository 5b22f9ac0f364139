//! A worker's state: its leases, the windows that it holds, and its messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::messages::{HeldState, HeldWindow, Lease, Report, WorkerReply, WorkerSync};
use crate::rules::{Rule, holds};
use crate::sequencer::{LeaseId, WorkerId};
use crate::window::WindowId;

/// A window of a feed.
pub type WindowKey = (Arc<str>, WindowId);

/// An action that the worker's process must take.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerAction {
    /// Compute this window and keep it. Of several actions, the first is the most urgent.
    Start(WindowKey),
    /// Drop this window.
    Drop(WindowKey),
}

/// A worker's properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerProfile {
    /// The worker's id, drawn at random when its process starts.
    pub worker: WorkerId,
    /// The address at which trainers reach it.
    pub address: String,
    /// Bytes of windows that it may hold.
    pub memory_bytes: u64,
    /// The number of windows that it computes at a time.
    pub computing: usize,
}

/// A window that the worker holds.
#[derive(Debug)]
struct Held {
    lease: LeaseId,
    state: HeldState,
    at_work: bool,
}

impl Held {
    fn new(lease: LeaseId) -> Self {
        Self { lease, state: HeldState::Computing, at_work: false }
    }
}

/// A worker's state.
#[derive(Debug)]
pub struct Worker {
    profile: WorkerProfile,
    held: BTreeMap<WindowKey, Held>,
    /// The leases of the newest answer, nearest to a reader first.
    leases: Vec<Lease>,
    refused: BTreeMap<Arc<str>, Report>,
    draining: bool,
    seq: u64,
    /// The newest message that was answered, and the version of its answer.
    answered: u64,
    known: u64,
}

impl Worker {
    /// Creates a worker that holds no window.
    pub fn new(profile: WorkerProfile) -> Self {
        Self {
            profile,
            held: BTreeMap::new(),
            leases: Vec::new(),
            refused: BTreeMap::new(),
            draining: false,
            seq: 0,
            answered: 0,
            known: 0,
        }
    }

    /// Returns the next message to the dispatcher.
    pub fn sync(&mut self) -> WorkerSync {
        self.seq += 1;
        let WorkerProfile { worker, address, memory_bytes, computing } = self.profile.clone();
        let held = self.held.iter().map(|((feed, window), held)| HeldWindow {
            feed: Arc::clone(feed),
            window: *window,
            lease: held.lease,
            state: held.state.clone(),
            at_work: held.at_work,
        });
        WorkerSync {
            worker,
            seq: self.seq,
            address,
            memory_bytes,
            computing,
            draining: self.draining,
            leaving: false,
            known: self.known,
            held: held.collect(),
            refused: self.refused.iter().map(|(feed, report)| (Arc::clone(feed), report.clone())).collect(),
        }
    }

    /// Takes the dispatcher's answer, and returns the actions to take. Ignores an answer that is older than the newest.
    pub fn reply(&mut self, reply: &WorkerReply) -> Vec<WorkerAction> {
        if (reply.seq, reply.version) < (self.answered, self.known) && holds(Rule::OnlyTheNewestAnswer) {
            return Vec::new();
        }
        self.answered = reply.seq;
        self.known = reply.version;
        self.leases.clone_from(&reply.leases);
        let told: BTreeMap<WindowKey, LeaseId> =
            reply.leases.iter().map(|lease| ((Arc::clone(&lease.feed), lease.window), lease.lease)).collect();
        let dropped: Vec<_> = self.held.keys().filter(|key| !told.contains_key(*key)).cloned().collect();
        let mut actions = Vec::new();
        for key in dropped {
            self.held.remove(&key);
            actions.push(WorkerAction::Drop(key));
        }
        for lease in &reply.leases {
            let key = (Arc::clone(&lease.feed), lease.window);
            match self.held.get_mut(&key) {
                // A new lease of a window that the worker holds: only a failed window is computed again.
                Some(held) if held.lease != lease.lease && matches!(held.state, HeldState::Failed(_)) => {
                    *held = Held::new(lease.lease);
                    actions.push(WorkerAction::Drop(key.clone()));
                    actions.push(WorkerAction::Start(key));
                }
                Some(held) => held.lease = lease.lease,
                None => {
                    self.held.insert(key.clone(), Held::new(lease.lease));
                    actions.push(WorkerAction::Start(key));
                }
            }
        }
        actions
    }

    /// Records how far a window is computed, and whether the worker is at work on it. Returns whether the dispatcher
    /// should be told: not if the window was dropped. Work that ended changes the state as well, or is no news.
    pub fn report(&mut self, key: &WindowKey, state: HeldState, at_work: bool) -> bool {
        let Some(Held { state: held, at_work: was_at_work, .. }) = self.held.get_mut(key) else { return false };
        let begins = !std::mem::replace(was_at_work, at_work) && at_work;
        let is_known = match (&*held, &state) {
            // A ready window may be computed further, which the dispatcher does not need to know.
            (HeldState::Ready { rows: ready, .. }, HeldState::Counted { rows, .. }) => rows == ready,
            (held, state) => held == state,
        };
        if !is_known {
            *held = state;
        }
        !is_known || begins
    }

    /// Records that this worker cannot compute the feed. Returns whether the dispatcher should be told.
    pub fn refuse(&mut self, feed: Arc<str>, report: Report) -> bool {
        self.refused.insert(feed, report).is_none()
    }

    /// Records that this worker can compute the feed again.
    pub fn forgive(&mut self, feed: &str) {
        self.refused.remove(feed);
    }

    /// Takes no new windows from now on.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Returns the leases of the newest answer, nearest to a reader first.
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// Returns whether the worker holds no window.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker() -> Worker {
        Worker::new(WorkerProfile { worker: 7, address: "w".into(), memory_bytes: 100, computing: 2 })
    }

    fn key(index: u32) -> WindowKey {
        ("f".into(), WindowId { epoch: 0, index })
    }

    /// Returns the answer to message `seq` that leases these windows.
    fn answer(seq: u64, windows: &[(u32, LeaseId)]) -> WorkerReply {
        let lease = |&(index, lease): &(u32, LeaseId)| {
            let (feed, window) = key(index);
            Lease { feed, window, lease, shares: 1.0 }
        };
        WorkerReply { version: 10 * seq, seq, leases: windows.iter().map(lease).collect() }
    }

    fn failed() -> HeldState {
        HeldState::Failed(Report { kind: crate::ErrorKind::Data, message: "no".into(), hint: None, retry: true })
    }

    #[test]
    fn it_starts_leased_windows_in_order_and_drops_the_others() {
        let mut worker = worker();
        assert_eq!(worker.sync().seq, 1);
        let (start, drop) = (WorkerAction::Start, WorkerAction::Drop);
        assert_eq!(worker.reply(&answer(1, &[(4, 1), (2, 2)])), [start(key(4)), start(key(2))]);
        assert!(worker.report(&key(4), HeldState::Computing, true), "it has begun");
        assert!(!worker.report(&key(4), HeldState::Computing, true));
        assert!(worker.report(&key(4), HeldState::Ready { rows: 1, bytes: 2 }, false));
        assert_eq!(worker.reply(&answer(1, &[(4, 1), (2, 2)])), []);
        assert_eq!(worker.reply(&answer(2, &[(3, 3), (4, 1)])), [drop(key(2)), start(key(3))]);
        assert!(!worker.report(&key(2), HeldState::Computing, true), "the window was dropped");
        let sync = worker.sync();
        let held: Vec<_> = sync.held.iter().map(|held| (held.window.index, held.lease)).collect();
        assert_eq!((sync.known, held), (20, vec![(3, 3), (4, 1)]));
        assert_eq!(worker.leases().iter().map(|lease| lease.window.index).collect::<Vec<_>>(), [3, 4]);
        worker.reply(&answer(3, &[]));
        assert!(worker.is_empty());
    }

    #[test]
    fn an_answer_to_an_older_message_changes_nothing() {
        let mut worker = worker();
        worker.reply(&answer(5, &[(1, 1)]));
        assert_eq!(worker.reply(&answer(4, &[])), []);
        assert_eq!((worker.sync().known, worker.leases().len()), (50, 1));
        // Two calls may both be answered for the newest message, at different times, and the older answer may arrive
        // last.
        let before = WorkerReply { version: 49, ..answer(5, &[(2, 2)]) };
        assert_eq!(worker.reply(&before), []);
        assert_eq!(worker.leases().len(), 1);
    }

    #[test]
    fn a_new_lease_keeps_a_held_window_unless_it_failed() {
        let mut worker = worker();
        worker.reply(&answer(1, &[(1, 1), (2, 2)]));
        worker.report(&key(1), HeldState::Ready { rows: 1, bytes: 2 }, false);
        worker.report(&key(2), failed(), false);
        // The lease is the same: the dispatcher has not heard of the failure.
        assert_eq!(worker.reply(&answer(2, &[(1, 1), (2, 2)])), []);
        let actions = worker.reply(&answer(3, &[(1, 3), (2, 4)]));
        assert_eq!(actions, [WorkerAction::Drop(key(2)), WorkerAction::Start(key(2))]);
        let sync = worker.sync();
        let held: Vec<_> = sync.held.into_iter().map(|held| (held.lease, held.state)).collect();
        assert_eq!(held, [(3, HeldState::Ready { rows: 1, bytes: 2 }), (4, HeldState::Computing)]);
    }

    #[test]
    fn it_reports_refused_feeds_and_draining() {
        let mut worker = worker();
        let report = Report { kind: crate::ErrorKind::Invalid, message: "older".into(), hint: None, retry: false };
        worker.refuse("f".into(), report.clone());
        worker.drain();
        let sync = worker.sync();
        assert!(sync.draining && !sync.leaving);
        assert_eq!(sync.refused, [("f".into(), report)]);
        worker.forgive("f");
        assert_eq!(worker.sync().refused, []);
    }
}
