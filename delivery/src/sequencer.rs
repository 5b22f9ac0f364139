//! Which window is computed when, by whom, and how long it is kept: a state machine without I/O, clock or randomness.
//!
//! The sequencer takes events. [`Sequencer::leases`] then returns the windows that each worker should hold, and
//! [`Sequencer::copies`] the workers from which a window can be read. In process, the feed's runner drives it, with
//! itself as the only worker; on a cluster, the [dispatcher](crate::Dispatcher) does. The rules:
//!
//! - A reader's current window is always leased, whatever the memory limit: otherwise no reader would advance.
//! - Windows ahead of the readers are leased in order while workers have room, so that computing overlaps reading.
//! - A window is kept until every reader has passed it. To make room for a current window, or for one that is much
//!   nearer to a reader, the windows furthest from a reader are evicted. They are computed again when their reader
//!   arrives.
//! - The windows of a lost worker are leased to others. A window that may have ended several workers is leased alone:
//!   its worker computes nothing else. It is given up only if such workers are lost as well ([`blame`]).
//! - A lost worker that is heard again was not ended by a window.
//! - A window for which a reader waits too long is leased a second time, and so is a window that takes long while a
//!   worker has nothing to do. Both copies are equal, so the first that is ready is used. A window whose only worker
//!   cannot be reached is leased a second time before any reader waits.
//! - A late or duplicate report, about a window that is not leased to the worker, changes nothing.
//! - A window whose samples are in a file takes no memory, outlives its worker, and is not leased again. Only jobs that
//!   [write files](crate::Dispatcher::open_writing) have such windows.

mod blame;
mod event;
mod leasing;

use std::collections::{BTreeMap, BTreeSet};

use blame::Losses;
pub use event::{Event, LeaseId, ReaderId, WorkerId, WorkerLimits};
use leasing::ReadersAt;

use crate::rules::{Rule, holds};
use crate::window::{Plan, WindowId};

/// The number of workers that may fail to compute a window before it is given up.
const FAILURES_MAX: u32 = 4;

/// One worker's copy of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// The worker.
    pub worker: WorkerId,
    /// The lease.
    pub lease: LeaseId,
    /// How far it is computed.
    pub state: ReplicaState,
    bytes: u64,
    /// Whether the worker has begun to compute it, and has not finished.
    at_work: bool,
    /// Whether it was leased alone.
    is_alone: bool,
    /// Whether the worker has reported it.
    is_reported: bool,
}

/// How far a copy of a window is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplicaState {
    /// Being read and filtered.
    Leased,
    /// Its rows are known, and it can be read.
    Counted,
    /// Computed as far as memory allows.
    Ready,
}

impl Replica {
    /// Returns whether its worker has something left to compute. A worker whose memory is full calls a window ready,
    /// and is still at work on it when there is room.
    fn is_to_do(&self) -> bool {
        self.state < ReplicaState::Ready || self.at_work
    }
}

#[derive(Clone, Debug, Default)]
struct WindowEntry {
    copies: Vec<Replica>,
    /// Workers that failed to compute it since it was last ready.
    failures: u32,
    losses: Losses,
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
    /// Whether it computes a window of another feed alone.
    reserved: bool,
}

/// A violated invariant: equal inputs gave different windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NonDeterministicWindow {
    /// The window.
    pub window: WindowId,
    /// Its rows as first reported, and as reported now.
    pub rows: (u64, u64),
}

/// The sequencer of one feed.
#[derive(Clone, Debug)]
pub struct Sequencer<P> {
    plan: P,
    workers: BTreeMap<WorkerId, WorkerEntry>,
    windows: BTreeMap<WindowId, WindowEntry>,
    /// Rows of the windows that were counted, of the epochs in which readers are, and of windows that workers hold.
    /// They also reveal windows that are not deterministic.
    rows: BTreeMap<WindowId, u64>,
    /// The epochs in which readers were when rows were last forgotten.
    rows_of: BTreeSet<u64>,
    readers: BTreeMap<ReaderId, ReaderEntry>,
    /// The readers by current window and the epoch before which they stop. The ranks of a job are near each other, so
    /// the places are few.
    places: BTreeMap<(WindowId, u64), ReadersAt>,
    /// Windows that were evicted or lost after they were counted, although a reader needs them.
    evicted: BTreeSet<WindowId>,
    /// Windows whose samples are in files.
    stored: BTreeSet<WindowId>,
    /// Losses that were counted in an earlier life, of windows that were not leased since.
    remembered: BTreeMap<WindowId, Losses>,
    /// Whether to keep all windows, because readers may not have returned yet.
    keeps_all: bool,
    next_lease: LeaseId,
    /// The number of leases of windows alone.
    leased_alone: u64,
    revision: u64,
    granted: u64,
    speculative: u64,
    recomputed: u64,
}

impl<P: Plan> Sequencer<P> {
    /// Creates the sequencer of a feed without readers. Leases are numbered from `first_lease`, which must differ
    /// between the dispatchers that workers have known.
    pub fn new(plan: P, first_lease: LeaseId) -> Self {
        Self {
            plan,
            workers: BTreeMap::new(),
            windows: BTreeMap::new(),
            rows: BTreeMap::new(),
            rows_of: BTreeSet::new(),
            readers: BTreeMap::new(),
            places: BTreeMap::new(),
            evicted: BTreeSet::new(),
            stored: BTreeSet::new(),
            remembered: BTreeMap::new(),
            keeps_all: false,
            next_lease: first_lease,
            leased_alone: 0,
            revision: 0,
            granted: 0,
            speculative: 0,
            recomputed: 0,
        }
    }

    /// Returns the feed's plan.
    pub fn plan(&self) -> &P {
        &self.plan
    }

    /// Sets whether to keep windows that no known reader needs.
    pub fn set_keeps_all(&mut self, keeps_all: bool) {
        self.keeps_all = keeps_all;
        self.settle();
    }

    /// Takes one event. The cost of an event that changes nothing, as most do, is independent of the number of readers.
    ///
    /// # Errors
    /// Returns [`NonDeterministicWindow`] if a window's row count differs from the one it had before. The event then
    /// changes nothing.
    pub fn handle(&mut self, event: Event) -> Result<(), NonDeterministicWindow> {
        if self.take(event)? {
            self.settle();
        }
        Ok(())
    }

    /// Increases whenever [`leases`](Self::leases), [`copies`](Self::copies) or [`has_failed`](Self::has_failed) may
    /// have changed.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Takes one event, and returns whether leases may change.
    fn take(&mut self, event: Event) -> Result<bool, NonDeterministicWindow> {
        match event {
            Event::WorkerJoined { worker, limits } => {
                let before = self.workers.get(&worker).copied();
                let draining = before.is_some_and(|worker| worker.draining);
                let reserved = before.is_some_and(|worker| worker.reserved);
                let now = WorkerEntry { limits, draining, suspected: false, reserved };
                self.workers.insert(worker, now);
                if before.is_none() {
                    self.acquit(worker);
                }
                return Ok(before != Some(now));
            }
            Event::WorkerLives { worker } => return Ok(self.acquit(worker)),
            Event::WorkerSuspected { worker } => {
                let Some(worker) = self.workers.get_mut(&worker) else { return Ok(false) };
                return Ok(!std::mem::replace(&mut worker.suspected, true));
            }
            Event::WorkerDraining { worker } => {
                let Some(state) = self.workers.get_mut(&worker) else { return Ok(false) };
                let is_new = !std::mem::replace(&mut state.draining, true);
                // Windows that cannot be read yet are better computed by another worker.
                let dropped = self.drop_copies(|copy| copy.worker == worker && copy.state == ReplicaState::Leased);
                return Ok(is_new || dropped);
            }
            Event::WorkerReserved { worker, is_reserved } => {
                let Some(state) = self.workers.get_mut(&worker) else { return Ok(false) };
                let is_new = std::mem::replace(&mut state.reserved, is_reserved) != is_reserved;
                let dropped = is_reserved && self.drop_copies(|copy| copy.worker == worker && copy.is_to_do());
                return Ok(is_new || dropped);
            }
            Event::WorkerLost { worker, is_shared } => {
                // A draining worker was about to leave, so its windows did not end it. A worker whose connection is
                // intact is only silent: its machine or the network is slow.
                if self.workers.get(&worker).is_some_and(|state| state.suspected && !state.draining) {
                    self.blame(worker, is_shared);
                }
                return self.take(Event::WorkerLeft { worker });
            }
            Event::WorkerLeft { worker } => {
                let left = self.workers.remove(&worker);
                if holds(Rule::LostIsLeasedAgain) {
                    self.drop_copies(|copy| copy.worker == worker);
                }
                if !holds(Rule::StoredOutlivesItsWorker) {
                    self.stored.clear();
                }
                return Ok(left.is_some());
            }
            Event::ReaderJoined { reader, at, until_epoch, share } => {
                self.place_reader(reader, Some(ReaderEntry { at, until_epoch, share }));
                self.retry_failed(at, false);
            }
            Event::ReaderContinued { reader, at, until_epoch, share } => {
                self.place_reader(reader, Some(ReaderEntry { at, until_epoch, share }));
                self.retry_failed(at, true);
            }
            Event::ReaderAdvanced { reader, to } => {
                return Ok(self.advance(reader, to));
            }
            Event::ReaderStalled { window } => return Ok(self.lease_again(window)),
            Event::WindowLate { window, idle } => return Ok(self.lease_to_idle(window, idle)),
            Event::ReaderLeft { reader } => return Ok(self.place_reader(reader, None)),
            Event::WindowAtWork { window, lease, at_work } => {
                if let Some(copy) = self.copy_mut(window, lease) {
                    (copy.at_work, copy.is_reported) = (at_work, true);
                }
                return Ok(false);
            }
            Event::WindowCounted { window, lease, rows, bytes } => {
                return self.counted(window, lease, rows, bytes);
            }
            Event::WindowReady { window, lease } => {
                let Some(copy) = self.copy_mut(window, lease).filter(|copy| copy.state == ReplicaState::Counted) else {
                    return Ok(false);
                };
                copy.state = ReplicaState::Ready;
                let held = self.windows.get_mut(&window).expect("it has a copy");
                held.failures = 0;
                // The other copies are no longer needed.
                held.copies.retain(|copy| copy.state == ReplicaState::Ready);
            }
            Event::WindowStored { window } => {
                self.windows.remove(&window);
                return Ok(self.stored.insert(window));
            }
            Event::WindowFailed { window, lease, retry } => {
                if self.copy_mut(window, lease).is_none() {
                    return Ok(false);
                }
                let held = self.windows.get_mut(&window).expect("it has a copy");
                held.copies.retain(|copy| copy.lease != lease);
                held.failures += 1;
                held.failed |= !retry || held.failures >= FAILURES_MAX || !holds(Rule::FailedIsTriedAgain);
            }
            Event::WindowMissing { window, lease } => {
                let Some(&mut missing) = self.copy_mut(window, lease) else { return Ok(false) };
                self.drop_copies(|copy| copy.lease == lease);
                // The worker lost the window, or trainers cannot find the worker at its address. Either may happen
                // again.
                self.lease_elsewhere(window, missing.worker);
            }
        }
        Ok(true)
    }

    /// Advances a reader. A late message must not move it back. Most messages leave it where it is.
    fn advance(&mut self, reader: ReaderId, to: WindowId) -> bool {
        let Some(&before) = self.readers.get(&reader).filter(|reader| reader.at < to) else { return false };
        if !holds(Rule::KeptForEveryReader) {
            for (reader, state) in self.readers.clone() {
                self.place_reader(reader, Some(ReaderEntry { at: state.at.max(to), ..state }));
            }
        }
        self.place_reader(reader, Some(ReaderEntry { at: to, ..before }))
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

    /// Sets a reader's place, or removes the reader. Returns whether a place was created or removed.
    fn place_reader(&mut self, reader: ReaderId, state: Option<ReaderEntry>) -> bool {
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

    /// Returns the leases of `worker`, nearest to a reader first.
    pub fn leases(&self, worker: WorkerId) -> Vec<(WindowId, LeaseId)> {
        let held = self.copies_of(worker);
        let mut leases: Vec<_> = held.map(|(window, copy)| (self.distance(window), window, copy.lease)).collect();
        leases.sort_unstable_by_key(|&(distance, window, _)| (distance.unwrap_or(u64::MAX), window));
        leases.into_iter().map(|(_, window, lease)| (window, lease)).collect()
    }

    /// Returns the copies of `window` that can be read, the best first.
    pub fn copies(&self, window: WindowId) -> impl Iterator<Item = Replica> {
        let mut copies: Vec<Replica> = match self.windows.get(&window) {
            Some(held) => held.copies.iter().filter(|copy| copy.state >= ReplicaState::Counted).copied().collect(),
            None => Vec::new(),
        };
        copies.sort_by_key(|copy| (self.is_suspected(copy.worker), std::cmp::Reverse(copy.state)));
        copies.into_iter()
    }

    /// Returns the samples in `window`, once it has been counted. They are forgotten when no reader is in its epoch and
    /// no worker holds it.
    pub fn rows(&self, window: WindowId) -> Option<u64> {
        self.rows.get(&window).copied()
    }

    /// Returns whether `window` cannot be computed, which its readers must be told.
    pub fn has_failed(&self, window: WindowId) -> bool {
        let is_remembered = || self.remembered.get(&window).is_some_and(|losses| losses.are_too_many());
        self.windows.get(&window).map_or_else(is_remembered, |held| held.failed)
    }

    /// Counts the loss of a worker of an earlier life that was computing these windows, and nothing else if `is_alone`.
    pub fn remember_loss(&mut self, windows: impl IntoIterator<Item = WindowId>, is_alone: bool) {
        for window in windows {
            let losses = self.remembered.entry(window).or_default();
            losses.count(None, is_alone && losses.are_suspicious());
        }
    }

    /// Forgets the remembered losses over windows from `from` on, because their reader begins again.
    pub fn forget_losses(&mut self, from: WindowId) {
        self.remembered.split_off(&from);
    }

    /// Returns whether the samples of `window` are in a file.
    pub fn is_stored(&self, window: WindowId) -> bool {
        self.stored.contains(&window)
    }

    /// Returns the number of windows whose samples are in files.
    pub fn stored(&self) -> usize {
        self.stored.len()
    }

    /// Returns the first window from `window` on whose samples are not in a file.
    pub fn next_to_store(&self, mut window: WindowId) -> WindowId {
        while self.is_stored(window) {
            window = self.plan.after(window);
        }
        window
    }

    /// Returns the reader's current window.
    pub fn position(&self, reader: ReaderId) -> Option<WindowId> {
        self.readers.get(&reader).map(|reader| reader.at)
    }

    /// Returns whether the feed has readers.
    pub fn is_read(&self) -> bool {
        !self.readers.is_empty()
    }

    /// Returns the number of windows that are leased, counted, ready and failed.
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

    /// Returns the bytes of the windows that `worker` holds or computes.
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

    /// Removes copies, and returns whether there were any.
    fn drop_copies(&mut self, which: impl Fn(&Replica) -> bool) -> bool {
        let mut dropped = false;
        for (&window, held) in &mut self.windows {
            let Some(&copy) = held.copies.iter().find(|copy| which(copy)) else { continue };
            dropped = true;
            held.copies.retain(|copy| !which(copy));
            if copy.state >= ReplicaState::Counted && held.copies.is_empty() {
                self.evicted.insert(window);
            }
        }
        dropped
    }

    /// Retries failed windows for a reader that joins, because it may have restarted after the failure. If its job
    /// continues, lost workers still count, and windows that lost too many stay given up.
    fn retry_failed(&mut self, from: WindowId, goes_on: bool) {
        if !holds(Rule::FailedIsTriedAgain) {
            return;
        }
        for held in self.windows.range_mut(from..).map(|(_, held)| held).filter(|held| held.failed) {
            let losses = if goes_on { std::mem::take(&mut held.losses) } else { Losses::default() };
            let (copies, failed) = (std::mem::take(&mut held.copies), losses.are_too_many());
            *held = WindowEntry { copies, losses, failed, ..WindowEntry::default() };
        }
    }

    /// Adopts a window that an earlier dispatcher leased to a worker, or that was leased before the worker was thought
    /// lost. It is adopted if no other worker has a lease on it, or if this worker has computed it and the others have
    /// not.
    pub fn adopt(&mut self, worker: WorkerId, window: WindowId, lease: LeaseId, is_computed: bool) {
        let is_needed = self.keeps_all || self.distance(window).is_some();
        let is_behind = |copy: &Replica| is_computed && copy.worker != worker && copy.state == ReplicaState::Leased;
        let is_open = !(self.is_stored(window) && holds(Rule::StoredIsNotLeasedAgain))
            && self.windows.get(&window).is_none_or(|held| !held.failed && held.copies.iter().all(is_behind));
        if is_needed && is_open && self.workers.contains_key(&worker) {
            self.hold(window, worker, lease, false);
            self.revision += 1;
        }
    }

    /// Returns whether `worker` has leases of windows that it has not finished.
    pub fn is_computing(&self, worker: WorkerId) -> bool {
        self.copies_of(worker).any(|(_, copy)| copy.is_to_do())
    }

    /// Returns the leases of windows alone that are not finished.
    pub(crate) fn alone(&self) -> impl Iterator<Item = (WorkerId, WindowId)> {
        let all = self.windows.iter().flat_map(|(&window, held)| held.copies.iter().map(move |copy| (copy, window)));
        let alone = all.filter(|(copy, _)| copy.is_alone && copy.state < ReplicaState::Ready);
        alone.map(|(copy, window)| (copy.worker, window))
    }

    /// Returns the workers that have leases of windows which they have not finished. They may be named several times.
    pub(crate) fn computing(&self) -> impl Iterator<Item = WorkerId> {
        let all = self.windows.values().flat_map(|held| &held.copies);
        all.filter(|copy| copy.is_to_do()).map(|copy| copy.worker)
    }

    /// Returns whether the lease is in force.
    pub fn holds(&self, window: WindowId, lease: LeaseId) -> bool {
        self.windows.get(&window).is_some_and(|held| held.copies.iter().any(|copy| copy.lease == lease))
    }

    /// Returns whether the window of this lease is computed as far as memory allows.
    pub fn is_ready(&self, window: WindowId, lease: LeaseId) -> bool {
        let held = self.windows.get(&window);
        held.is_some_and(|held| held.copies.iter().any(|it| it.lease == lease && it.state == ReplicaState::Ready))
    }

    /// Returns the windows that cannot be computed.
    pub fn failed(&self) -> impl Iterator<Item = WindowId> {
        self.windows.iter().filter(|(_, held)| held.failed).map(|(&window, _)| window)
    }

    /// Returns the windows that an earlier life gave up, and that are not stored.
    pub fn given_up(&self) -> impl Iterator<Item = WindowId> {
        let given_up = self.remembered.keys().filter(|window| self.has_failed(**window) && !self.is_stored(**window));
        given_up.copied()
    }

    /// Returns the number of leases that were granted.
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// Returns how many of those were for a second copy, because the first took too long or could not be reached.
    pub fn speculative(&self) -> u64 {
        self.speculative
    }

    /// Returns how many windows were leased again because they were evicted or lost although a reader needed them.
    pub fn recomputed(&self) -> u64 {
        self.recomputed
    }
}

#[cfg(test)]
mod tests;
