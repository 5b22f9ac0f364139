//! Assignment of windows to workers: first the readers' current windows, then those ahead of them, each to the worker
//! with the least to do.
//!
//! Leases are assigned anew after every change. The cost is about proportional to the windows held times the places of
//! readers, plus the workers. It is independent of the number of readers at a place.
//!
//! The losses of workers are counted here too, since a window that is suspicious is leased alone.

use std::collections::{BTreeMap, BTreeSet};

use super::blame::{Losses, UNREPORTED_MAX};
use super::{LeaseId, Replica, ReplicaState, Sequencer, WindowEntry, WorkerEntry, WorkerId};
use crate::place::Place;
use crate::rules::{Rule, holds};
use crate::window::{Plan, WindowId};

/// The most windows to look ahead of one reader. Usually memory is the limit.
const LOOKAHEAD_WINDOWS_MAX: u64 = 64;

/// A window is evicted, before any reader waits, for one that is this many times nearer to a reader.
const MUCH_NEARER: u64 = 4;

/// The readers at one place.
#[derive(Clone, Debug)]
pub(super) struct ReadersAt {
    /// The number of readers by share.
    shares: BTreeMap<u64, u32>,
    /// The number of windows in the place's epoch, kept because a plan may have to compute it.
    windows: u32,
}

impl ReadersAt {
    pub(super) fn of_epoch(windows: u32) -> Self {
        Self { shares: BTreeMap::new(), windows }
    }

    /// Returns the place of these readers.
    fn at(&self, (at, until_epoch): (WindowId, u64)) -> Place {
        Place { at, until_epoch, windows: self.windows }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.shares.is_empty()
    }

    pub(super) fn enter(&mut self, share: f64) {
        *self.shares.entry(share.to_bits()).or_default() += 1;
    }

    pub(super) fn leave(&mut self, share: f64) {
        if let Some(count) = self.shares.get_mut(&share.to_bits()) {
            *count -= 1;
            if *count == 0 {
                self.shares.remove(&share.to_bits());
            }
        }
    }

    /// Summed anew each time: a running sum of floats would drift.
    fn share(&self) -> f64 {
        self.shares.iter().map(|(&share, &count)| f64::from_bits(share) * f64::from(count)).sum()
    }
}

/// The work assigned to a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Load {
    unready: u64,
    held_bytes: u64,
    holds: usize,
    computing: usize,
    /// Whether it holds a window alone.
    is_alone: bool,
    /// Whether it has something left to compute.
    has_to_do: bool,
}

impl Load {
    fn add(&mut self, copy: &Replica) {
        self.unready += u64::from(copy.state < ReplicaState::Ready);
        self.held_bytes += copy.bytes;
        self.holds += 1;
        self.computing += usize::from(copy.state == ReplicaState::Leased);
        self.is_alone |= copy.is_alone && copy.state < ReplicaState::Ready;
        self.has_to_do |= copy.is_to_do();
    }

    /// Returns whether the worker may compute another window ahead of the readers.
    fn has_room(&self, worker: &WorkerEntry, bytes: u64) -> bool {
        let limits = worker.limits;
        let fits = self.held_bytes + bytes <= limits.memory_bytes || self.holds < limits.windows_at_least;
        self.has_time(worker) && fits
    }

    fn has_time(&self, worker: &WorkerEntry) -> bool {
        self.computing < worker.limits.computing
    }
}

type Loads = BTreeMap<WorkerId, Load>;

impl<P: Plan> Sequencer<P> {
    /// Leases a second copy of a window whose reader has waited too long or cannot reach the first. Returns whether it
    /// did.
    pub(super) fn lease_again(&mut self, window: WindowId) -> bool {
        let Some(held) = self.windows.get(&window) else { return false };
        if let [only] = held.copies[..]
            && (only.state < ReplicaState::Ready || self.is_out_of_reach(&only))
        {
            let mut loads = self.loads();
            if let Some(worker) = self.idlest(&loads, |id, _, _| id != only.worker) {
                self.make_room(&mut loads, worker, self.plan.bytes(window), 0);
                self.grant(&mut loads, window, worker);
                return true;
            }
        }
        false
    }

    /// Leases a second copy of a window to worker `idle`, if it may take one as ahead of the readers. Returns whether
    /// it did.
    pub(super) fn lease_to_idle(&mut self, window: WindowId, idle: WorkerId) -> bool {
        let Some(held) = self.windows.get(&window).filter(|held| !held.failed) else { return false };
        let [only] = held.copies[..] else { return false };
        // A window that may end its worker is computed by one worker at a time.
        if only.state >= ReplicaState::Ready || only.worker == idle || self.is_suspicious(window) {
            return false;
        }
        let Some(distance) = self.distance(window) else { return false };
        let (bytes, beyond) = (self.plan.bytes(window), distance.saturating_mul(MUCH_NEARER));
        let mut loads = self.loads();
        let has_room = |id, worker: &WorkerEntry, load: &Load| id == idle && load.has_room(worker, bytes);
        let has_room = self.idlest(&loads, has_room).is_some();
        if !has_room && self.idlest_with_room(&loads, bytes, beyond, |id| id == idle).is_none() {
            return false;
        }
        self.make_room(&mut loads, idle, bytes, beyond);
        self.grant(&mut loads, window, idle);
        true
    }

    /// Leases a window that worker `than` lost or does not serve to another worker, if one may take it.
    pub(super) fn lease_elsewhere(&mut self, window: WindowId, than: WorkerId) {
        if !self.is_wanted(window) || self.distance(window).is_none() {
            return;
        }
        let (bytes, is_current) = (self.plan.bytes(window), self.distance(window) == Some(0));
        let mut loads = self.loads();
        let may = |id, worker: &WorkerEntry, load: &Load| id != than && (is_current || load.has_room(worker, bytes));
        if let Some(worker) = self.idlest(&loads, may) {
            self.make_room(&mut loads, worker, bytes, 0);
            self.grant(&mut loads, window, worker);
        }
    }

    /// Returns the number of times that `window` will still be read: the sum of its readers' shares.
    pub fn shares(&self, window: WindowId) -> f64 {
        self.places.iter().filter(|(at, place)| place.at(**at).needs(window)).map(|(_, place)| place.share()).sum()
    }

    /// Returns the places from which the distances of these windows are counted.
    pub fn nearest_places(&self, windows: impl Iterator<Item = WindowId>) -> Vec<Place> {
        let nearest = |window| {
            let places = self.places.iter().map(|(&at, place)| place.at(at));
            places.filter_map(|place| Some((place.distance(window)?, place))).min_by_key(|(distance, _)| *distance)
        };
        let mut places: Vec<Place> = windows.filter_map(nearest).map(|(_, place)| place).collect();
        places.sort_unstable_by_key(|place| (place.at, place.until_epoch));
        places.dedup();
        places
    }

    /// Returns the distance of `window` from the nearest reader that still needs it.
    pub(crate) fn distance(&self, window: WindowId) -> Option<u64> {
        self.places.iter().filter_map(|(&at, place)| place.at(at).distance(window)).min()
    }

    fn is_needed(&self, window: WindowId) -> bool {
        self.places.iter().any(|(&at, place)| place.at(at).needs(window))
    }

    /// Releases windows that no reader needs, and leases the windows that readers need next.
    pub(super) fn settle(&mut self) {
        self.revision += 1;
        if !self.keeps_all {
            let passed: Vec<_> = self.windows.keys().copied().filter(|&it| !self.is_needed(it)).collect();
            for window in passed {
                self.windows.remove(&window);
            }
            if !self.evicted.is_empty() {
                let places = &self.places;
                self.evicted.retain(|&window| places.iter().any(|(&at, place)| place.at(at).needs(window)));
            }
            self.forget_rows();
        }
        if self.workers.is_empty() {
            return;
        }
        let mut loads = self.loads();
        // A lease alone takes other windows from its worker, which are leased again.
        loop {
            let leased_alone = self.leased_alone;
            self.lease_current(&mut loads);
            self.lease_ahead(&mut loads);
            if self.leased_alone == leased_alone {
                break;
            }
        }
    }

    /// Forgets the rows of windows of epochs in which no reader is, unless a worker holds them.
    fn forget_rows(&mut self) {
        let epochs: BTreeSet<u64> = self.places.keys().map(|(at, _)| at.epoch).collect();
        // Between two readers, a feed without readers keeps the rows of the first.
        if epochs.is_empty() || epochs == self.rows_of {
            return;
        }
        let windows = &self.windows;
        self.rows.retain(|window, _| epochs.contains(&window.epoch) || windows.contains_key(window));
        self.rows_of = epochs;
    }

    /// Returns whether no reachable worker has a lease on this window.
    fn is_wanted(&self, window: WindowId) -> bool {
        if self.is_stored(window) && holds(Rule::StoredIsNotLeasedAgain) {
            return false;
        }
        let Some(held) = self.windows.get(&window) else { return !self.has_failed(window) };
        match held.copies[..] {
            _ if held.failed => false,
            [] => true,
            [only] => self.is_out_of_reach(&only),
            _ => false,
        }
    }

    /// Returns whether the worker of a window's only copy cannot be reached. The worker may still finish first.
    fn is_out_of_reach(&self, only: &Replica) -> bool {
        self.is_suspected(only.worker) && holds(Rule::UnreachableIsLeasedAgain)
    }

    pub(super) fn is_suspected(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_some_and(|worker| worker.suspected)
    }

    fn lease_current(&mut self, loads: &mut Loads) {
        let places = self.places.keys().filter(|(at, until_epoch)| at.epoch < *until_epoch);
        let current: Vec<_> = places.map(|&(at, _)| at).filter(|&at| self.is_wanted(at)).collect();
        for window in current {
            let bytes = self.plan.bytes(window);
            if self.is_wanted(window)
                && let Some(worker) = self.idlest(loads, |_, worker, load| {
                    holds(Rule::CurrentIsLeasedOverTheLimit) || load.has_room(worker, bytes)
                })
            {
                self.make_room(loads, worker, bytes, 0);
                self.grant(loads, window, worker);
            }
        }
    }

    fn lease_ahead(&mut self, loads: &mut Loads) {
        // Usually all workers are busy, which is cheaper to find than the windows ahead.
        if self.idlest(loads, |_, worker, load| load.has_time(worker)).is_none() {
            return;
        }
        for (distance, window) in self.ahead() {
            let (bytes, beyond) = (self.plan.bytes(window), distance.saturating_mul(MUCH_NEARER));
            let is_suspicious = self.is_suspicious(window);
            let has_room = |_, worker: &WorkerEntry, load: &Load| {
                load.has_room(worker, bytes) && (!is_suspicious || !load.has_to_do)
            };
            if let Some(worker) = self.idlest(loads, has_room) {
                self.grant(loads, window, worker);
            } else if is_suspicious {
                // No worker is idle. It is leased at the latest when a reader needs it.
            } else if let Some(worker) = self.idlest_with_room(loads, bytes, beyond, |_| true) {
                self.make_room(loads, worker, bytes, beyond);
                self.grant(loads, window, worker);
            } else {
                break;
            }
        }
    }

    /// Returns the idlest worker that satisfies `may`, and has time, and room for `bytes` after evicting computed
    /// windows further than `beyond`.
    fn idlest_with_room(
        &self,
        loads: &Loads,
        bytes: u64,
        beyond: u64,
        may: impl Fn(WorkerId) -> bool,
    ) -> Option<WorkerId> {
        if self.keeps_all {
            return None;
        }
        let mut room: BTreeMap<WorkerId, u64> = BTreeMap::new();
        for (&window, held) in &self.windows {
            if self.distance(window).is_none_or(|distance| distance > beyond) {
                for copy in held.copies.iter().filter(|copy| copy.state != ReplicaState::Leased) {
                    *room.entry(copy.worker).or_default() += copy.bytes;
                }
            }
        }
        self.idlest(loads, |id, worker, load| {
            let evicted = room.get(&id).copied().unwrap_or_default();
            may(id)
                && load.has_time(worker)
                && load.held_bytes + bytes <= worker.limits.memory_bytes.saturating_add(evicted)
        })
    }

    fn loads(&self) -> Loads {
        let mut loads: Loads = self.workers.keys().map(|&id| (id, Load::default())).collect();
        for copy in self.windows.values().flat_map(|held| &held.copies) {
            loads.entry(copy.worker).or_default().add(copy);
        }
        loads
    }

    /// Returns the worker with the least to do, of those that take windows of this feed, hold none alone, and satisfy
    /// `may`.
    fn idlest(&self, loads: &Loads, may: impl Fn(WorkerId, &WorkerEntry, &Load) -> bool) -> Option<WorkerId> {
        let workers = self.workers.iter().filter(|(_, it)| !it.draining && !it.suspected && !it.reserved);
        workers
            .filter_map(|(&id, worker)| {
                let load = loads.get(&id).copied().unwrap_or_default();
                (!load.is_alone && may(id, worker, &load)).then_some((load.unready, load.held_bytes, id))
            })
            .min()
            .map(|(_, _, id)| id)
    }

    /// Returns the windows ahead of the readers that no worker computes, with their distance, nearest first.
    fn ahead(&self) -> Vec<(u64, WindowId)> {
        let mut ahead = BTreeMap::new();
        for &(at, until_epoch) in self.places.keys() {
            let mut window = at;
            for distance in 0..LOOKAHEAD_WINDOWS_MAX {
                if window.epoch >= until_epoch {
                    break;
                }
                if self.is_wanted(window) {
                    let nearest = ahead.entry(window).or_insert(distance);
                    *nearest = distance.min(*nearest);
                }
                window = self.plan.after(window);
            }
        }
        let mut ahead: Vec<_> = ahead.into_iter().map(|(window, distance)| (distance, window)).collect();
        ahead.sort_unstable();
        ahead
    }

    /// Evicts computed windows that are further than `beyond` from a reader, the furthest first, until `bytes` more
    /// fit.
    fn make_room(&mut self, loads: &mut Loads, worker: WorkerId, bytes: u64, beyond: u64) {
        let Some(limit) = self.workers.get(&worker).map(|worker| worker.limits.memory_bytes) else { return };
        while loads.get(&worker).is_some_and(|load| load.held_bytes + bytes > limit) {
            let furthest = self
                .copies_of(worker)
                .filter(|(_, copy)| copy.state != ReplicaState::Leased)
                .map(|(window, copy)| (self.distance(window).unwrap_or(u64::MAX), window, copy.lease))
                .filter(|&(distance, ..)| distance > beyond)
                .max();
            let Some((_, window, lease)) = furthest else { break };
            let held = self.windows.get_mut(&window).expect("it has a copy");
            held.copies.retain(|copy| copy.lease != lease);
            if held.copies.is_empty() {
                self.evicted.insert(window);
            }
            *loads = self.loads();
        }
    }

    fn grant(&mut self, loads: &mut Loads, window: WindowId, worker: WorkerId) {
        let lease = self.next_lease;
        self.next_lease += 1;
        self.granted += 1;
        self.speculative += u64::from(self.windows.get(&window).is_some_and(|held| !held.copies.is_empty()));
        self.recomputed += u64::from(self.evicted.remove(&window));
        let is_alone = self.is_suspicious(window);
        if is_alone {
            self.leased_alone += 1;
            self.drop_copies(|copy| copy.worker == worker && copy.is_to_do());
            *loads = self.loads();
        }
        let copy = self.hold(window, worker, lease, is_alone);
        loads.entry(worker).or_default().add(&copy);
    }

    pub(super) fn hold(&mut self, window: WindowId, worker: WorkerId, lease: LeaseId, is_alone: bool) -> Replica {
        let bytes = self.plan.bytes(window);
        let copy =
            Replica { worker, lease, state: ReplicaState::Leased, bytes, at_work: false, is_alone, is_reported: false };
        let remembered =
            || WindowEntry { losses: self.remembered.remove(&window).unwrap_or_default(), ..Default::default() };
        let held: &mut WindowEntry = self.windows.entry(window).or_insert_with(remembered);
        held.copies.push(copy);
        copy
    }
}

impl<P: Plan> Sequencer<P> {
    /// Returns whether the window may end its workers.
    pub(super) fn is_suspicious(&self, window: WindowId) -> bool {
        let held = self.windows.get(&window).map(|held| &held.losses);
        held.or_else(|| self.remembered.get(&window)).is_some_and(Losses::are_suspicious)
    }

    /// Counts the loss of a worker against the windows that it was computing, and gives up those that lost too many.
    /// With `is_shared`, it was computing windows of other feeds as well, so that none was alone.
    pub(super) fn blame(&mut self, worker: WorkerId, is_shared: bool) {
        let blames_all = !holds(Rule::OnlyWindowsAtWorkAreBlamed);
        let mut blamed = Vec::new();
        let mut waiting = Vec::new();
        for (window, copy) in self.copies_of(worker) {
            if copy.at_work || (blames_all && copy.state < ReplicaState::Ready) {
                blamed.push(window);
            } else if copy.state < ReplicaState::Ready {
                waiting.push((self.distance(window).unwrap_or(u64::MAX), window));
            }
        }
        waiting.sort_unstable();
        blamed.extend(waiting.into_iter().take(UNREPORTED_MAX).map(|(_, window)| window));
        for window in blamed {
            let Some(WindowEntry { copies, losses, failed, .. }) = self.windows.get_mut(&window) else { continue };
            // A worker that has not reported the lease may still have computed the windows that were taken from it.
            let was_alone = |copy: &Replica| copy.worker == worker && copy.is_alone && copy.is_reported;
            losses.count(Some(worker), !is_shared && copies.iter().any(was_alone));
            *failed |= losses.are_too_many();
        }
    }

    /// Counts a worker against no window, because it lives. Windows that were given up stay so for their readers.
    /// Returns whether it was counted.
    pub(super) fn acquit(&mut self, worker: WorkerId) -> bool {
        self.windows.values_mut().map(|held| held.losses.acquit(worker)).sum::<usize>() > 0
    }
}
