//! Which window is computed when, by whom, and how long it is kept: a state machine without I/O, clock or randomness.
//!
//! Events go in; [`Sequencer::leases`] then says what each worker should hold, and [`Sequencer::copies`] where a window
//! can be read. Whoever drives it makes the world so: in process that is the feed's runner with itself as the only
//! worker,
//! on a cluster the [dispatcher](crate::Dispatcher). The rules:
//!
//! - A reader's current window is always leased, whatever the memory limit says: without it nobody would move.
//! - Windows ahead of the readers are leased in order while workers have room, so computing overlaps reading.
//! - A window is kept until every reader has passed it. When a current window needs room, or one that is much nearer to
//!   a reader, the windows whose readers are furthest away go first; they are computed again when their reader comes,
//!   never skipped.
//! - The windows of a worker that is lost are leased to others. A window that keeps losing its workers is given up.
//! - A window whose reader waits too long is leased a second time; whichever is ready first is right, for both are
//!   equal. So is one whose only worker cannot be reached, before anybody waits for it.
//! - A report about a window that the worker does not lease (a late or duplicate one) changes nothing.

mod leasing;

use std::collections::{BTreeMap, BTreeSet};

use leasing::ReadersAt;

use crate::rules::{Rule, holds};
use crate::window::{Plan, WindowId};

/// Names a reader to the sequencer.
pub type ReaderId = u64;

/// Names a worker: drawn at random when its process starts, so a restarted one is another.
pub type WorkerId = u64;

/// Names one grant of one window to one worker. Reports carry it, so that those about an earlier grant are told apart.
pub type LeaseId = u64;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A worker is there and well, or its limits changed.
    WorkerJoined {
        /// Which.
        worker: WorkerId,
        /// What it can take.
        limits: WorkerLimits,
    },
    /// A reader could not reach a worker: it gets nothing new until it is heard of again.
    WorkerSuspected {
        /// Which.
        worker: WorkerId,
    },
    /// A worker takes no more windows; those it holds can be read until it leaves.
    WorkerDraining {
        /// Which.
        worker: WorkerId,
    },
    /// A worker is gone, and its windows with it.
    WorkerLeft {
        /// Which.
        worker: WorkerId,
    },
    /// A reader began.
    ReaderJoined {
        /// Which.
        reader: ReaderId,
        /// The window it begins in.
        at: WindowId,
        /// The epoch it will stop before.
        until_epoch: u64,
        /// How much of the samples it takes: one over its world size.
        share: f64,
    },
    /// A reader needs `to` next, and nothing before it.
    ReaderAdvanced {
        /// Which.
        reader: ReaderId,
        /// The window.
        to: WindowId,
    },
    /// A reader has waited too long for this window.
    ReaderStalled {
        /// The window.
        window: WindowId,
    },
    /// A reader is gone.
    ReaderLeft {
        /// Which.
        reader: ReaderId,
    },
    /// A leased window has been read and filtered: its rows are known, and it can be read from.
    WindowCounted {
        /// Which.
        window: WindowId,
        /// The grant.
        lease: LeaseId,
        /// Samples in it.
        rows: u64,
        /// Bytes it takes.
        bytes: u64,
    },
    /// A leased window is computed as far as memory allows.
    WindowReady {
        /// Which.
        window: WindowId,
        /// The grant.
        lease: LeaseId,
    },
    /// A leased window could not be computed.
    WindowFailed {
        /// Which.
        window: WindowId,
        /// The grant.
        lease: LeaseId,
        /// Whether another worker may fare better.
        retry: bool,
    },
    /// A worker does not hold a window that it was leased.
    WindowMissing {
        /// Which.
        window: WindowId,
        /// The grant.
        lease: LeaseId,
    },
}

/// What a worker can take of one feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerLimits {
    /// Bytes of windows.
    pub memory_bytes: u64,
    /// Windows that it computes at a time ahead of the readers.
    pub computing: usize,
    /// Windows that it may hold whatever their size, so that computing overlaps reading even if windows are large.
    pub windows_at_least: usize,
}

/// So many workers may be lost or fail over one window before it is taken to be the reason.
const ATTEMPTS_MAX: u32 = 4;

/// One worker's copy of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Who holds it.
    pub worker: WorkerId,
    /// The grant.
    pub lease: LeaseId,
    /// How far it is.
    pub state: ReplicaState,
    bytes: u64,
}

/// How far a copy of a window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplicaState {
    /// Being read and filtered.
    Leased,
    /// Its rows are known, and it can be read from.
    Counted,
    /// Computed as far as memory allows.
    Ready,
}

#[derive(Clone, Debug, Default)]
struct Window {
    copies: Vec<Replica>,
    /// Workers that were lost or failed before this window was ready.
    attempts: u32,
    failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct ReaderEntry {
    at: WindowId,
    until_epoch: u64,
    share: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WorkerEntry {
    limits: WorkerLimits,
    draining: bool,
    suspected: bool,
}

/// Something that must not happen: equal inputs gave different windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NonDeterministicWindow {
    /// The window.
    pub window: WindowId,
    /// Its rows as first reported, and as reported now.
    pub rows: (u64, u64),
}

/// The state machine of one feed.
#[derive(Clone, Debug)]
pub struct Sequencer<P> {
    plan: P,
    workers: BTreeMap<WorkerId, WorkerEntry>,
    windows: BTreeMap<WindowId, Window>,
    /// Rows of every window that was ever counted: eight bytes a window, and a check that windows are pure.
    rows: BTreeMap<WindowId, u64>,
    readers: BTreeMap<ReaderId, ReaderEntry>,
    /// Where readers stand, and the epoch that they stop before: ranks of a job are near each other, so these are few.
    places: BTreeMap<(WindowId, u64), ReadersAt>,
    /// Windows that were counted, and let go or lost although a reader needs them.
    let_go: BTreeSet<WindowId>,
    /// Nothing is forgotten while this is set: the readers may not all have come back yet.
    keeps_all: bool,
    next_lease: LeaseId,
    revision: u64,
    granted: u64,
    speculative: u64,
    recomputed: u64,
}

impl<P: Plan> Sequencer<P> {
    /// Of a feed that nobody reads yet. Leases are numbered from `first_lease`, which should be another one for each
    /// dispatcher that workers have known.
    pub fn new(plan: P, first_lease: LeaseId) -> Self {
        Self {
            plan,
            workers: BTreeMap::new(),
            windows: BTreeMap::new(),
            rows: BTreeMap::new(),
            readers: BTreeMap::new(),
            places: BTreeMap::new(),
            let_go: BTreeSet::new(),
            keeps_all: false,
            next_lease: first_lease,
            revision: 0,
            granted: 0,
            speculative: 0,
            recomputed: 0,
        }
    }

    /// The plan it follows.
    pub fn plan(&self) -> &P {
        &self.plan
    }

    /// Whether windows are kept even if no reader that is known needs them.
    pub fn set_keeps_all(&mut self, keeps_all: bool) {
        self.keeps_all = keeps_all;
        self.settle();
    }

    /// Takes one event. Most only say what is known already: what they cost does not grow with the readers there are.
    ///
    /// # Errors
    /// [`NonDeterministicWindow`], if a window has another row count than it had before; the event then changed
    /// nothing.
    pub fn handle(&mut self, event: Event) -> Result<(), NonDeterministicWindow> {
        if self.take(event)? {
            self.settle();
        }
        Ok(())
    }

    /// Grows with every change of what [`leases`](Self::leases), [`copies`](Self::copies) and
    /// [`has_failed`](Self::has_failed) say.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether the event changed anything that leases follow from.
    fn take(&mut self, event: Event) -> Result<bool, NonDeterministicWindow> {
        match event {
            Event::WorkerJoined { worker, limits } => {
                let before = self.workers.get(&worker).copied();
                let draining = before.is_some_and(|worker| worker.draining);
                let now = WorkerEntry { limits, draining, suspected: false };
                self.workers.insert(worker, now);
                return Ok(before != Some(now));
            }
            Event::WorkerSuspected { worker } => {
                let Some(worker) = self.workers.get_mut(&worker) else { return Ok(false) };
                return Ok(!std::mem::replace(&mut worker.suspected, true));
            }
            Event::WorkerDraining { worker } => {
                let Some(state) = self.workers.get_mut(&worker) else { return Ok(false) };
                let is_new = !std::mem::replace(&mut state.draining, true);
                // What it has not begun to give is better begun elsewhere.
                let dropped =
                    self.drop_copies(|copy| copy.worker == worker && copy.state == ReplicaState::Leased, false);
                return Ok(is_new || dropped);
            }
            Event::WorkerLeft { worker } => {
                let left = self.workers.remove(&worker);
                // Who was about to leave did not die of its windows.
                let is_lost = !left.as_ref().is_some_and(|state| state.draining);
                if holds(Rule::LostIsLeasedAgain) {
                    self.drop_copies(|copy| copy.worker == worker, is_lost);
                }
                return Ok(left.is_some());
            }
            Event::ReaderJoined { reader, at, until_epoch, share } => {
                self.stand(reader, Some(ReaderEntry { at, until_epoch, share }));
                self.retry_failed(at);
            }
            Event::ReaderAdvanced { reader, to } => {
                return Ok(self.advance(reader, to));
            }
            Event::ReaderStalled { window } => return Ok(self.lease_again(window)),
            Event::ReaderLeft { reader } => return Ok(self.stand(reader, None)),
            Event::WindowCounted { window, lease, rows, bytes } => {
                return self.counted(window, lease, rows, bytes);
            }
            Event::WindowReady { window, lease } => {
                let Some(copy) = self.copy_mut(window, lease).filter(|copy| copy.state == ReplicaState::Counted) else {
                    return Ok(false);
                };
                copy.state = ReplicaState::Ready;
                let held = self.windows.get_mut(&window).expect("it has a copy");
                held.attempts = 0;
                // The race is decided.
                held.copies.retain(|copy| copy.state == ReplicaState::Ready);
            }
            Event::WindowFailed { window, lease, retry } => {
                if self.copy_mut(window, lease).is_none() {
                    return Ok(false);
                }
                let held = self.windows.get_mut(&window).expect("it has a copy");
                held.copies.retain(|copy| copy.lease != lease);
                held.attempts += 1;
                held.failed |= !retry || held.attempts >= ATTEMPTS_MAX || !holds(Rule::FailedIsTriedAgain);
            }
            Event::WindowMissing { window, lease } => {
                let Some(&mut missing) = self.copy_mut(window, lease) else { return Ok(false) };
                self.drop_copies(|copy| copy.lease == lease, false);
                // Whoever lost it, or cannot be found where it says, may do so again.
                self.lease_elsewhere(window, missing.worker);
            }
        }
        Ok(true)
    }

    /// Moves a reader on. A late message must not move it back, and most only say that a reader is still there.
    fn advance(&mut self, reader: ReaderId, to: WindowId) -> bool {
        let Some(&before) = self.readers.get(&reader).filter(|reader| reader.at < to) else { return false };
        if !holds(Rule::KeptForEveryReader) {
            for (reader, state) in self.readers.clone() {
                self.stand(reader, Some(ReaderEntry { at: state.at.max(to), ..state }));
            }
        }
        self.stand(reader, Some(ReaderEntry { at: to, ..before }))
    }

    fn counted(
        &mut self,
        window: WindowId,
        lease: LeaseId,
        rows: u64,
        bytes: u64,
    ) -> Result<bool, NonDeterministicWindow> {
        if let Some(&before) = self.rows.get(&window).filter(|&&before| before != rows) {
            return Err(NonDeterministicWindow { window, rows: (before, rows) });
        }
        let Some(copy) = self.copy_mut(window, lease) else { return Ok(false) };
        let is_news = copy.state < ReplicaState::Counted || copy.bytes != bytes;
        copy.state = copy.state.max(ReplicaState::Counted);
        copy.bytes = bytes;
        self.rows.insert(window, rows);
        Ok(is_news)
    }

    /// A reader stands there from now on, or is gone. Whether that is somewhere new, or nobody is left where it stood.
    fn stand(&mut self, reader: ReaderId, state: Option<ReaderEntry>) -> bool {
        let mut is_change = false;
        if let Some(state) = state {
            let windows = || ReadersAt::of_epoch(self.plan.windows(state.at.epoch));
            let place = self.places.entry((state.at, state.until_epoch)).or_insert_with(windows);
            is_change |= place.is_empty();
            place.enter(state.share);
        }
        let before = match state {
            Some(state) => self.readers.insert(reader, state),
            None => self.readers.remove(&reader),
        };
        if let Some(before) = before
            && let Some(place) = self.places.get_mut(&(before.at, before.until_epoch))
        {
            place.leave(before.share);
            if place.is_empty() {
                self.places.remove(&(before.at, before.until_epoch));
                is_change = true;
            }
        }
        is_change
    }

    /// What `worker` should hold, nearest to a reader first.
    pub fn leases(&self, worker: WorkerId) -> Vec<(WindowId, LeaseId)> {
        let held = self.copies_of(worker);
        let mut leases: Vec<_> = held.map(|(window, copy)| (self.distance(window), window, copy.lease)).collect();
        leases.sort_unstable_by_key(|&(distance, window, _)| (distance.unwrap_or(u64::MAX), window));
        leases.into_iter().map(|(_, window, lease)| (window, lease)).collect()
    }

    /// The copies of `window` that can be read from, the best first.
    pub fn copies(&self, window: WindowId) -> impl Iterator<Item = Replica> {
        let mut copies: Vec<Replica> = match self.windows.get(&window) {
            Some(held) => held.copies.iter().filter(|copy| copy.state >= ReplicaState::Counted).copied().collect(),
            None => Vec::new(),
        };
        copies.sort_by_key(|copy| (self.is_suspected(copy.worker), std::cmp::Reverse(copy.state)));
        copies.into_iter()
    }

    /// Samples in `window`, once it has been counted.
    pub fn rows(&self, window: WindowId) -> Option<u64> {
        self.rows.get(&window).copied()
    }

    /// Whether `window` cannot be computed, and its readers must be told.
    pub fn has_failed(&self, window: WindowId) -> bool {
        self.windows.get(&window).is_some_and(|held| held.failed)
    }

    /// Where the reader stands.
    pub fn position(&self, reader: ReaderId) -> Option<WindowId> {
        self.readers.get(&reader).map(|reader| reader.at)
    }

    /// Whether anybody reads.
    pub fn is_read(&self) -> bool {
        !self.readers.is_empty()
    }

    /// Windows by how far they are: leased, counted, ready, failed.
    pub fn census(&self) -> [usize; 4] {
        let mut census = [0; 4];
        for held in self.windows.values() {
            match held.copies.iter().map(|copy| copy.state).max() {
                _ if held.failed => census[3] += 1,
                Some(ReplicaState::Leased) => census[0] += 1,
                Some(ReplicaState::Counted) => census[1] += 1,
                Some(ReplicaState::Ready) => census[2] += 1,
                None => {}
            }
        }
        census
    }

    /// Bytes of the windows that `worker` holds or computes.
    pub fn held_bytes(&self, worker: WorkerId) -> u64 {
        self.copies_of(worker).map(|(_, copy)| copy.bytes).sum()
    }

    fn copies_of(&self, worker: WorkerId) -> impl Iterator<Item = (WindowId, &Replica)> {
        let all = self.windows.iter().flat_map(|(&window, held)| held.copies.iter().map(move |copy| (window, copy)));
        all.filter(move |(_, copy)| copy.worker == worker)
    }

    fn copy_mut(&mut self, window: WindowId, lease: LeaseId) -> Option<&mut Replica> {
        self.windows.get_mut(&window)?.copies.iter_mut().find(|copy| copy.lease == lease)
    }

    /// Removes copies, and says whether there were any; with `lost`, a window that was still being computed is a step
    /// nearer to being given up: it may be what its workers die of.
    fn drop_copies(&mut self, which: impl Fn(&Replica) -> bool, lost: bool) -> bool {
        let mut dropped = false;
        for (&window, held) in &mut self.windows {
            let Some(&copy) = held.copies.iter().find(|copy| which(copy)) else { continue };
            dropped = true;
            held.copies.retain(|copy| !which(copy));
            if copy.state >= ReplicaState::Counted && held.copies.is_empty() {
                self.let_go.insert(window);
            }
            if lost && copy.state < ReplicaState::Ready {
                held.attempts += 1;
                held.failed |= held.attempts >= ATTEMPTS_MAX;
            }
        }
        dropped
    }

    /// Whoever joins may be a reader that comes back after a failure: it gets a new try, not the old error.
    fn retry_failed(&mut self, from: WindowId) {
        if !holds(Rule::FailedIsTriedAgain) {
            return;
        }
        for held in self.windows.range_mut(from..).map(|(_, held)| held).filter(|held| held.failed) {
            *held = Window { copies: std::mem::take(&mut held.copies), ..Window::default() };
        }
    }

    /// Takes over a window that a worker was leased by a dispatcher that is gone, or before it was thought lost: if
    /// nobody else is leased it, or if it is computed here and not yet there.
    pub fn adopt(&mut self, worker: WorkerId, window: WindowId, lease: LeaseId, is_computed: bool) {
        let is_needed = self.keeps_all || self.distance(window).is_some();
        let is_behind = |copy: &Replica| is_computed && copy.worker != worker && copy.state == ReplicaState::Leased;
        let is_open = self.windows.get(&window).is_none_or(|held| !held.failed && held.copies.iter().all(is_behind));
        if is_needed && is_open && self.workers.contains_key(&worker) {
            self.hold(window, worker, lease);
            self.revision += 1;
        }
    }

    /// Whether the grant is in force.
    pub fn holds(&self, window: WindowId, lease: LeaseId) -> bool {
        self.windows.get(&window).is_some_and(|held| held.copies.iter().any(|copy| copy.lease == lease))
    }

    /// Whether the window of this grant is computed as far as memory allows.
    pub fn is_ready(&self, window: WindowId, lease: LeaseId) -> bool {
        let held = self.windows.get(&window);
        held.is_some_and(|held| held.copies.iter().any(|it| it.lease == lease && it.state == ReplicaState::Ready))
    }

    /// The windows that cannot be computed.
    pub fn failed(&self) -> impl Iterator<Item = WindowId> {
        self.windows.iter().filter(|(_, held)| held.failed).map(|(&window, _)| window)
    }

    /// How many leases were granted.
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// How many of those were a second copy, because a reader waited too long or could not reach the first.
    pub fn speculative(&self) -> u64 {
        self.speculative
    }

    /// How many windows were leased again because they were let go or lost although a reader needed them.
    pub fn recomputed(&self) -> u64 {
        self.recomputed
    }
}

#[cfg(test)]
mod tests;
