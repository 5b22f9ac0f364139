//! A worker's side of the leases: what to begin, what to drop, what to say.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::messages::{Held, HeldState, Lease, Report, WorkerReply, WorkerSync};
use crate::rules::{Rule, holds};
use crate::sequencer::{LeaseId, WorkerId};
use crate::window::WindowId;

/// A window of a feed.
pub type WindowKey = (Arc<str>, WindowId);

/// What a worker is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerAction {
    /// Compute this window and keep it. Of several, the first is needed first.
    Start(WindowKey),
    /// Forget this window.
    Drop(WindowKey),
}

/// What a worker says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerProfile {
    /// Drawn at random when the process starts.
    pub worker: WorkerId,
    /// Where trainers reach it.
    pub address: String,
    /// Bytes of windows that it may hold.
    pub memory_bytes: u64,
    /// Windows that it computes at a time.
    pub computing: usize,
}

/// The worker's state.
#[derive(Debug)]
pub struct Worker {
    profile: WorkerProfile,
    held: BTreeMap<WindowKey, (LeaseId, HeldState)>,
    /// The leases as last told, nearest to a reader first.
    leases: Vec<Lease>,
    refused: BTreeMap<Arc<str>, Report>,
    draining: bool,
    seq: u64,
    /// The newest message of ours that was answered, and the answer's version.
    answered: u64,
    known: u64,
}

impl Worker {
    /// A worker that holds nothing.
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

    /// The next message to the dispatcher.
    pub fn sync(&mut self) -> WorkerSync {
        self.seq += 1;
        let WorkerProfile { worker, address, memory_bytes, computing } = self.profile.clone();
        let held = self.held.iter().map(|((feed, window), (lease, state))| Held {
            feed: Arc::clone(feed),
            window: *window,
            lease: *lease,
            state: state.clone(),
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

    /// Takes the dispatcher's answer. An older answer than the last changes nothing: one to an older message, or of
    /// before something changed.
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
                // A new grant of what is here already: only a failure is tried again.
                Some((held, state)) if *held != lease.lease && matches!(state, HeldState::Failed(_)) => {
                    (*held, *state) = (lease.lease, HeldState::Computing);
                    actions.push(WorkerAction::Drop(key.clone()));
                    actions.push(WorkerAction::Start(key));
                }
                Some((held, _)) => *held = lease.lease,
                None => {
                    self.held.insert(key.clone(), (lease.lease, HeldState::Computing));
                    actions.push(WorkerAction::Start(key));
                }
            }
        }
        actions
    }

    /// A window that was started is this far. Whether that is news: not if it was dropped meanwhile.
    pub fn report(&mut self, key: &WindowKey, state: HeldState) -> bool {
        match self.held.get_mut(key) {
            // A window that is ready may be computed further, which changes nothing for anybody.
            Some((_, HeldState::Ready { rows: ready, .. })) if matches!(state, HeldState::Counted { rows, .. } if rows == *ready) => {
                false
            }
            Some((_, held)) if *held != state => {
                *held = state;
                true
            }
            _ => false,
        }
    }

    /// This feed cannot be computed here. Whether that is news.
    pub fn refuse(&mut self, feed: Arc<str>, report: Report) -> bool {
        self.refused.insert(feed, report).is_none()
    }

    /// This feed can be computed here after all.
    pub fn forgive(&mut self, feed: &str) {
        self.refused.remove(feed);
    }

    /// From now on nothing new is taken.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// The leases as last told, nearest to a reader first.
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// Whether there is nothing left that anybody may read.
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

    /// The answer to message `seq` that leases these windows.
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
    fn it_starts_what_it_is_leased_in_order_and_drops_the_rest() {
        let mut worker = worker();
        assert_eq!(worker.sync().seq, 1);
        let (start, drop) = (WorkerAction::Start, WorkerAction::Drop);
        assert_eq!(worker.reply(&answer(1, &[(4, 1), (2, 2)])), [start(key(4)), start(key(2))]);
        assert!(worker.report(&key(4), HeldState::Ready { rows: 1, bytes: 2 }));
        assert_eq!(worker.reply(&answer(1, &[(4, 1), (2, 2)])), []);
        assert_eq!(worker.reply(&answer(2, &[(3, 3), (4, 1)])), [drop(key(2)), start(key(3))]);
        assert!(!worker.report(&key(2), HeldState::Computing), "it was dropped");
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
        // Two calls may both be answered for the newest message, at two times, and the answers overtake each other.
        let before = WorkerReply { version: 49, ..answer(5, &[(2, 2)]) };
        assert_eq!(worker.reply(&before), []);
        assert_eq!(worker.leases().len(), 1);
    }

    #[test]
    fn a_new_grant_of_a_window_that_is_here_keeps_it_unless_it_failed() {
        let mut worker = worker();
        worker.reply(&answer(1, &[(1, 1), (2, 2)]));
        worker.report(&key(1), HeldState::Ready { rows: 1, bytes: 2 });
        worker.report(&key(2), failed());
        // The same grant still: the dispatcher has not heard of the failure.
        assert_eq!(worker.reply(&answer(2, &[(1, 1), (2, 2)])), []);
        let actions = worker.reply(&answer(3, &[(1, 3), (2, 4)]));
        assert_eq!(actions, [WorkerAction::Drop(key(2)), WorkerAction::Start(key(2))]);
        let sync = worker.sync();
        let held: Vec<_> = sync.held.into_iter().map(|held| (held.lease, held.state)).collect();
        assert_eq!(held, [(3, HeldState::Ready { rows: 1, bytes: 2 }), (4, HeldState::Computing)]);
    }

    #[test]
    fn it_says_what_it_refuses_and_that_it_drains() {
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
