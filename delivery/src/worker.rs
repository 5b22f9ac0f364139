//! A worker's state: its leases, the windows that it holds, and its messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::changes::{CHANGES_MAX, Followed, Kept, Known};
use crate::messages::{Granted, HeldState, Holding, Report, WorkerReply, WorkerSync};
use crate::place::Place;
use crate::rules::{Rule, holds};
use crate::sequencer::{LeaseId, WorkerId};
use crate::window::WindowKey;

/// The most bytes of the reasons in a message for which the worker refuses feeds. It refuses more without a reason.
const REFUSAL_BYTES_MAX: usize = 128 << 10;

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

/// A window to compute and keep.
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    /// The window.
    pub key: WindowKey,
    /// The lease.
    pub lease: LeaseId,
    /// The number of times that the window's rows will still be read: a whole reader counts 1, a rank its fraction.
    pub shares: f64,
}

/// A worker's state.
#[derive(Debug)]
pub struct Worker {
    profile: WorkerProfile,
    held: Kept<WindowKey, Holding>,
    /// The held windows of which the dispatcher has heard.
    heard: Known,
    /// Those that the newest message named.
    said: Known,
    /// Whether the newest message could not name all changes.
    has_more: bool,
    /// The number of changes in the newest message, and the most in one.
    changes: usize,
    changes_max: usize,
    granted: Followed<WindowKey, Granted>,
    places: Vec<(Arc<str>, Vec<Place>)>,
    /// What is granted, nearest to a reader first.
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
            held: Kept::new(0),
            heard: Known::default(),
            said: Known::default(),
            has_more: false,
            changes: 0,
            changes_max: CHANGES_MAX,
            granted: Followed::new(),
            places: Vec::new(),
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
        let held = self.held.since(self.heard, self.changes_max);
        self.has_more = !held.is_all;
        self.said = held.known.1;
        self.changes = held.changed.len();
        WorkerSync {
            worker,
            seq: self.seq,
            address,
            memory_bytes,
            computing,
            draining: self.draining,
            leaving: false,
            known: self.known,
            leases: self.granted.known(),
            windows: self.held.iter().count(),
            held,
            refused: self.refusals(),
            store_wait: None,
        }
    }

    /// Returns the feeds that it refuses, with reasons that fit into a message.
    fn refusals(&self) -> Vec<(Arc<str>, Report)> {
        let mut bytes = 0;
        let refusal = |(feed, report): (&Arc<str>, &Report)| {
            bytes += report.text_bytes();
            let report = match bytes <= REFUSAL_BYTES_MAX {
                true => report.clone(),
                false => Report { message: "the reason is in the worker's log".into(), hint: None, ..*report },
            };
            (Arc::clone(feed), report)
        };
        self.refused.iter().map(refusal).collect()
    }

    /// Lets later messages have half as many changes as the newest, which a dispatcher could not take. Returns `false`
    /// if it has one at most.
    pub fn say_less(&mut self) -> bool {
        let can = self.changes > 1;
        if can {
            self.changes_max = self.changes / 2;
        }
        can
    }

    /// Takes the dispatcher's answer, and returns the actions to take. Ignores an answer that is older than the newest.
    pub fn reply(&mut self, reply: &WorkerReply) -> Vec<WorkerAction> {
        if (reply.seq, reply.version) < (self.answered, self.known) && holds(Rule::OnlyTheNewestAnswer) {
            return Vec::new();
        }
        self.answered = reply.seq;
        self.known = reply.version;
        // A dispatcher that has heard nothing of the windows must be told all of them.
        self.has_more |= reply.held.pass != self.said.pass && !self.is_empty();
        self.heard = reply.held;
        if !self.granted.take(&reply.leases) {
            return Vec::new();
        }
        self.places.clone_from(&reply.places);
        self.order();
        self.act()
    }

    /// Orders the leases by their distance from readers.
    fn order(&mut self) {
        let places: BTreeMap<&str, &[Place]> = self.places.iter().map(|(feed, all)| (&**feed, &**all)).collect();
        let distance = |(feed, window): &WindowKey| {
            let places = places.get(&**feed).copied().unwrap_or_default();
            places.iter().filter_map(|place| place.distance(*window)).min().unwrap_or(u64::MAX)
        };
        let granted = self.granted.values().iter();
        let mut leases: Vec<_> = granted.map(|(key, granted)| (distance(key), key, granted)).collect();
        // Feeds take turns, so that none waits for all windows of another.
        leases.sort_by_key(|&(distance, key, _)| (distance, key.1));
        let lease = |(_, key, granted): (u64, &WindowKey, &Granted)| Lease {
            key: key.clone(),
            lease: granted.lease,
            shares: granted.shares,
        };
        self.leases = leases.into_iter().map(lease).collect();
    }

    /// Returns the actions that make the held windows those that are granted.
    fn act(&mut self) -> Vec<WorkerAction> {
        let mut actions = Vec::new();
        let told = self.granted.values();
        let dropped = self.held.iter().map(|(key, _)| key).filter(|key| !told.contains_key(*key));
        let dropped: Vec<_> = dropped.cloned().collect();
        for key in dropped {
            self.held.set(key.clone(), None);
            actions.push(WorkerAction::Drop(key));
        }
        for Lease { key, lease, .. } in &self.leases {
            let (key, lease) = (key.clone(), *lease);
            let begun = Holding { lease, state: HeldState::Computing, at_work: false };
            match self.held.get(&key) {
                Some(held) if held.lease == lease => {}
                // A new lease of a window that the worker holds: only a failed window is computed again.
                Some(held) if matches!(held.state, HeldState::Failed(_)) => {
                    self.held.set(key.clone(), Some(begun));
                    actions.push(WorkerAction::Drop(key.clone()));
                    actions.push(WorkerAction::Start(key));
                }
                Some(held) => {
                    let held = Holding { lease, ..held.clone() };
                    self.held.set(key, Some(held));
                }
                None => {
                    self.held.set(key.clone(), Some(begun));
                    actions.push(WorkerAction::Start(key));
                }
            }
        }
        actions
    }

    /// Returns whether a pass is under way, in which a second message at a time would begin another pass.
    pub fn is_in_pass(&self) -> bool {
        self.heard.pass != self.said.pass || !self.granted.is_whole()
    }

    /// Returns whether the next message has more to say than the newest, which could not name all windows.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// Records how far a window is computed, and whether the worker is at work on it. Returns whether the dispatcher
    /// should be told: not if the window was dropped. Work that ended changes the state as well, or is no news.
    pub fn report(&mut self, key: &WindowKey, state: HeldState, at_work: bool) -> bool {
        let Some(held) = self.held.get(key) else { return false };
        let is_known = match (&held.state, &state) {
            // A ready window may be computed further, which the dispatcher does not need to know.
            (HeldState::Ready { rows: ready, .. }, HeldState::Counted { rows, .. }) => rows == ready,
            (held, state) => held == state,
        };
        let begins = at_work && !held.at_work;
        let state = if is_known { held.state.clone() } else { state };
        let now = Holding { lease: held.lease, state, at_work };
        self.held.set(key.clone(), Some(now));
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
        self.held.iter().next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::Changes;
    use crate::rules::break_rule;
    use crate::window::WindowId;

    fn worker() -> Worker {
        Worker::new(WorkerProfile { worker: 7, address: "w".into(), memory_bytes: 100, computing: 2 })
    }

    fn key(index: u32) -> WindowKey {
        ("f".into(), WindowId { epoch: 0, index })
    }

    /// Returns the answer to message `seq` that leases these windows, to a reader at the third window.
    fn answer(seq: u64, windows: &[(u32, LeaseId)]) -> WorkerReply {
        let granted = |&(index, lease): &(u32, LeaseId)| (key(index), Some(Granted { lease, shares: 1.0 }));
        let upto = windows.len() as u64;
        let known = (Known { pass: seq, upto: 0 }, Known { pass: seq, upto });
        let leases = Changes { known, is_all: true, changed: windows.iter().map(granted).collect() };
        let place = Place { at: WindowId { epoch: 0, index: 3 }, until_epoch: 1, windows: 6 };
        WorkerReply {
            version: 10 * seq,
            seq,
            held: Known::default(),
            leases,
            places: vec![("f".into(), vec![place])],
            has_waiting_ranks: false,
        }
    }

    /// Returns the windows that a message names, to a dispatcher that knows none, with their leases.
    fn held(sync: &WorkerSync) -> Vec<(u32, LeaseId)> {
        let held = sync.held.changed.iter().filter_map(|(key, held)| Some((key.1.index, held.as_ref()?.lease)));
        let mut held: Vec<_> = held.collect();
        held.sort_unstable();
        held
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
        assert_eq!((sync.known, held(&sync)), (20, vec![(3, 3), (4, 1)]));
        assert_eq!(worker.leases().iter().map(|lease| lease.key.1.index).collect::<Vec<_>>(), [3, 4]);
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
        assert_eq!(held(&sync), [(1, 3), (2, 4)]);
        let states = sync.held.changed.into_iter().filter_map(|(_, held)| Some(held?.state));
        let states: Vec<_> = states.collect();
        assert_eq!(states, [HeldState::Ready { rows: 1, bytes: 2 }, HeldState::Computing]);
    }

    #[test]
    fn a_part_of_the_leases_revokes_none() {
        let (drop, start) = (WorkerAction::Drop, WorkerAction::Start);
        let actions = |rule| {
            break_rule(rule);
            let mut worker = worker();
            worker.reply(&answer(1, &[(1, 1), (2, 2)]));
            let mut part = answer(2, &[(2, 2)]);
            part.leases.is_all = false;
            let first = worker.reply(&part);
            let before = part.leases.known.1;
            part.leases.known = (before, Known { upto: 2, ..before });
            part.leases.is_all = true;
            part.leases.changed = vec![(key(5), Some(Granted { lease: 3, shares: 1.0 }))];
            part.version += 1;
            let second = worker.reply(&part);
            break_rule(None);
            (first, second)
        };
        assert_eq!(actions(None), (vec![], vec![drop(key(1)), start(key(5))]));
        let broken = actions(Some(Rule::PartsRevokeNothing));
        assert_eq!(broken, (vec![drop(key(1))], vec![start(key(5))]));
    }

    #[test]
    fn messages_that_are_too_long_become_shorter() {
        let mut worker = worker();
        let windows: Vec<_> = (0..6).map(|window| (window, u64::from(window))).collect();
        worker.reply(&answer(1, &windows));
        let mut sizes = Vec::new();
        loop {
            sizes.push(worker.sync().held.changed.len());
            assert_eq!(worker.has_more(), sizes[sizes.len() - 1] < 6);
            if !worker.say_less() {
                break;
            }
        }
        assert_eq!(sizes, [6, 3, 1]);
    }

    #[test]
    fn reasons_of_many_refused_feeds_fit_into_a_message() {
        let mut worker = worker();
        let message = "no".repeat(REFUSAL_BYTES_MAX / 8);
        let report = Report { kind: crate::ErrorKind::Invalid, message, hint: None, retry: false };
        for feed in 0..8 {
            worker.refuse(feed.to_string().into(), report.clone());
        }
        let told: Vec<_> = worker.sync().refused.into_iter().map(|(_, told)| told == report).collect();
        assert_eq!(told, [true, true, true, true, false, false, false, false]);
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
