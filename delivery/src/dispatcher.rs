//! The dispatcher: one sequencer for each feed, and the workers and trainers in contact.
//!
//! Its state is soft: a new dispatcher learns all of it from the first message of each worker and trainer.

pub(crate) mod claiming;
mod feed;
mod fence;
pub(crate) mod group;
mod reading;
mod reserving;
pub(crate) mod status;
pub(crate) mod writing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use feed::OpenFeed;

use crate::changes::{CHANGES_MAX, Followed, Kept, Known};
use crate::clock::Millis;
use crate::messages::{Granted, HeldState, Holding, Report, StoreWait, WorkerReply, WorkerSync};
use crate::place::Place;
use crate::rules::{Rule, holds};
use crate::sequencer::{Event, Sequencer, WorkerId, WorkerLimits};
use crate::window::{Plan, WindowId, WindowKey};

/// The interval of checks for silent workers and trainers.
const TICK_MS: Millis = 100;
/// Windows of each feed that a worker may hold whatever their size: one to read and one to compute.
const WINDOWS_AT_LEAST: usize = 2;
/// The number of replaced workers to remember, so that they can be refused.
const REPLACED_KEPT: usize = 256;

/// The dispatcher's time limits.
#[derive(Clone, Copy, Debug)]
pub struct DispatcherSettings {
    /// A worker that is silent for longer is lost.
    pub worker_contact_ms: Millis,
    /// A trainer that is silent for longer is gone.
    pub reader_contact_ms: Millis,
    /// A dispatcher younger than this keeps all windows, because readers may not have reached it yet.
    pub young_ms: Millis,
    /// A window for which a trainer waits is computed a second time when it has taken this long, and three times as
    /// long as windows usually take. A worker that has nothing to do takes it after half of that, although nobody
    /// waits.
    pub stall_ms: Millis,
    /// A feed that has not been read for longer is closed.
    pub idle_feed_ms: Millis,
}

impl Default for DispatcherSettings {
    fn default() -> Self {
        Self {
            worker_contact_ms: 2_000,
            reader_contact_ms: 10_000,
            young_ms: 5_000,
            stall_ms: 1_000,
            idle_feed_ms: 60_000,
        }
    }
}

/// The refusal of a worker whose address another worker took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// The address that the other worker took.
    pub address: String,
}

/// The dispatcher's state.
#[derive(Debug)]
pub struct Dispatcher<P> {
    settings: DispatcherSettings,
    started: Millis,
    /// The time of the last check for silent workers and trainers.
    ticked: Millis,
    young: bool,
    feeds: BTreeMap<Arc<str>, OpenFeed<P>>,
    workers: BTreeMap<WorkerId, WorkerContact>,
    replaced: Vec<(WorkerId, String)>,
    workers_lost: u64,
    /// Counts changes of the state outside of the sequencers.
    revision: u64,
    /// The revision after which workers were last reserved.
    reserved_at: u64,
    /// The last number used for a version or lease. Each dispatcher counts from another number.
    next_number: u64,
}

/// Rounds a sum of shares, so that it does not depend on their order: a lease whose shares change is told again.
fn exact(shares: f64) -> f64 {
    const UNIT: f64 = (1_u64 << 32) as f64;
    // Adding zero makes a negative zero positive.
    (shares * UNIT).round() / UNIT + 0.0
}

#[derive(Debug)]
struct WorkerContact {
    seq: u64,
    contact: Millis,
    address: String,
    memory_bytes: u64,
    computing: usize,
    draining: bool,
    refused: BTreeMap<Arc<str>, Report>,
    store_wait: Option<StoreWait>,
    /// Its leases as of the last answer, and those that it knows.
    told: Kept<WindowKey, Granted>,
    known: Known,
    /// The readers' places as of the last answer.
    places: Vec<(Arc<str>, Vec<Place>)>,
    version: u64,
    /// The windows that it holds.
    held: Followed<WindowKey, Holding>,
    /// The feed of which it computes a window alone.
    reserved_for: Option<Arc<str>>,
    /// Whether it has not yet named all windows that it holds. Their leases were granted by an earlier dispatcher.
    is_new: bool,
}

impl<P: Plan> Dispatcher<P> {
    /// Creates a dispatcher without feeds and workers. Draw `instance` at random: it must differ from that of every
    /// earlier dispatcher.
    pub fn new(settings: DispatcherSettings, instance: u32, now: Millis) -> Self {
        Self {
            settings,
            started: now,
            ticked: now,
            young: true,
            feeds: BTreeMap::new(),
            workers: BTreeMap::new(),
            replaced: Vec::new(),
            workers_lost: 0,
            revision: 0,
            reserved_at: 0,
            next_number: u64::from(instance) << 32,
        }
    }

    /// Returns whether the feed is open.
    pub fn has_feed(&self, feed: &str) -> bool {
        self.feeds.contains_key(feed)
    }

    /// Returns whether a worker is in contact.
    pub fn has_worker(&self, worker: WorkerId) -> bool {
        self.workers.contains_key(&worker)
    }

    /// Opens a feed, unless it is open.
    pub fn open(&mut self, feed: &Arc<str>, plan: P, now: Millis) {
        if self.feeds.contains_key(feed) {
            return;
        }
        // Leases of different feeds may have equal numbers: a lease is identified together with its feed.
        let mut sequencer = Sequencer::new(plan, self.next_number);
        sequencer.set_keeps_all(self.young);
        self.feeds.insert(Arc::clone(feed), OpenFeed::new(sequencer, now));
        self.share_memory();
        let ids: Vec<WorkerId> = self.workers.keys().copied().collect();
        for id in ids {
            let Some(worker) = self.workers.get(&id) else { continue };
            let held = worker.held.values().iter().filter(|((of, _), _)| of == feed);
            let held: Vec<_> = held.map(|(key, held)| (key.clone(), held.clone())).collect();
            self.take_stock(id, held, true, now);
        }
    }

    /// Counts the loss of a worker of an earlier life that was computing these windows of an open feed, and nothing
    /// else if `is_alone`.
    pub fn remember_loss(&mut self, feed: &str, windows: Vec<WindowId>, is_alone: bool) {
        if let Some(feed) = self.feeds.get_mut(feed) {
            feed.sequencer.remember_loss(windows, is_alone);
        }
    }

    /// Sets a description of the feed's pipeline, such as ` of pipeline "p"`, for errors that name a window.
    pub fn describe(&mut self, feed: &str, about: String) {
        if let Some(feed) = self.feeds.get_mut(feed) {
            feed.about = about;
        }
    }

    /// Takes a worker's message. [`worker_reply`](Self::worker_reply) returns the answer.
    ///
    /// # Errors
    /// Returns [`Replaced`] if another worker serves at this worker's address.
    pub fn worker_sync(&mut self, sync: &WorkerSync, now: Millis) -> Result<(), Replaced> {
        self.tick(now);
        if let Some(replaced) = self.replaced(sync.worker) {
            for feed in self.feeds.values_mut() {
                let _ = feed.sequencer.handle(Event::WorkerLives { worker: sync.worker });
            }
            return Err(replaced);
        }
        if sync.leaving {
            self.remove_worker(sync.worker);
            return Ok(());
        }
        let rival = self.workers.iter().find(|(id, it)| **id != sync.worker && it.address == sync.address);
        if let Some(rival) = rival.map(|(&id, _)| id) {
            self.suspect(rival);
            self.lose_worker(rival);
            self.replaced.push((rival, sync.address.clone()));
            if self.replaced.len() > REPLACED_KEPT {
                self.replaced.remove(0);
            }
        }
        if self.workers.get(&sync.worker).is_some_and(|worker| worker.seq >= sync.seq) {
            return Ok(());
        }
        self.revision += u64::from(!self.workers.contains_key(&sync.worker));
        let version = self.number();
        let worker = self.workers.entry(sync.worker).or_insert_with(|| WorkerContact {
            seq: 0,
            contact: now,
            address: sync.address.clone(),
            memory_bytes: 0,
            computing: 0,
            draining: false,
            refused: BTreeMap::new(),
            store_wait: None,
            told: Kept::new(version),
            known: Known::default(),
            places: Vec::new(),
            version,
            held: Followed::new(),
            reserved_for: None,
            is_new: true,
        });
        worker.seq = sync.seq;
        worker.contact = now;
        worker.address.clone_from(&sync.address);
        worker.memory_bytes = sync.memory_bytes;
        worker.computing = sync.computing;
        worker.draining = sync.draining;
        worker.store_wait.clone_from(&sync.store_wait);
        worker.known = sync.leases;
        if worker.refused.len() != sync.refused.len() || !sync.refused.is_empty() {
            self.revision += 1;
            worker.refused = sync.refused.iter().cloned().collect();
        }
        let is_new = worker.is_new;
        let changed = if worker.held.take(&sync.held) { &*sync.held.changed } else { &[] };
        worker.is_new &= !worker.held.is_whole();
        // The worker knows of these leases, but no longer holds their windows.
        let removed = changed.iter().filter(|(_, held)| held.is_none());
        let missing = removed.filter_map(|(key, _)| Some((key, worker.told.get_known(key, sync.leases)?.lease)));
        let missing: Vec<_> = missing.map(|(key, lease)| (key.clone(), lease)).collect();
        self.introduce(sync.worker);
        for ((feed, window), lease) in missing {
            if let Some(feed) = self.feeds.get_mut(&feed) {
                let _ = feed.sequencer.handle(Event::WindowMissing { window, lease });
            }
        }
        let held = changed.iter().filter_map(|(key, held)| Some((key.clone(), held.clone()?))).collect();
        self.take_stock(sync.worker, held, is_new, now);
        Ok(())
    }

    /// Returns the worker's replacement, if another worker took its address.
    pub fn replaced(&self, worker: WorkerId) -> Option<Replaced> {
        let (_, address) = self.replaced.iter().find(|(id, _)| *id == worker)?;
        Some(Replaced { address: address.clone() })
    }

    /// Returns the answer to a worker. Its version changes when its leases change.
    pub fn worker_reply(&mut self, id: WorkerId, now: Millis) -> Option<WorkerReply> {
        self.reserve_workers(now);
        let worker = self.workers.get(&id)?;
        let (mut leases, mut places) = (BTreeMap::new(), Vec::new());
        for (feed, state) in &mut self.feeds {
            let OpenFeed { sequencer, granted, .. } = state;
            granted.retain(|&(window, lease), _| sequencer.holds(window, lease));
            let held = sequencer.leases(id);
            for &(window, lease) in &held {
                if !sequencer.is_ready(window, lease) {
                    granted.entry((window, lease)).or_insert(now);
                }
                let shares = exact(sequencer.shares(window));
                leases.insert((Arc::clone(feed), window), Granted { lease, shares });
            }
            if !held.is_empty() {
                let windows = held.into_iter().map(|(window, _)| window);
                places.push((Arc::clone(feed), sequencer.nearest_places(windows)));
            }
        }
        if self.young {
            let unknown = worker.held.values().iter().filter(|((feed, _), _)| !self.feeds.contains_key(feed));
            // The readers are not known yet.
            let kept = unknown.map(|(key, held)| (key.clone(), Granted { lease: held.lease, shares: f64::MAX }));
            leases.extend(kept);
        }
        let version = self.number();
        let worker = self.workers.get_mut(&id)?;
        if worker.told.replace(leases) || worker.places != places {
            worker.version = version;
            worker.places = places;
        }
        let mut leases = worker.told.since(worker.known, CHANGES_MAX);
        // The leases of windows that it has not named yet may be adopted.
        leases.is_all &= worker.held.is_whole() || !holds(Rule::UnnamedWindowsAreNotRevoked);
        Some(WorkerReply {
            version: worker.version,
            seq: worker.seq,
            held: worker.held.known(),
            leases,
            places: worker.places.clone(),
            has_waiting_ranks: self.feeds.values().any(|feed| feed.has_waiting_ranks(now)),
        })
    }

    /// Returns the number of windows that a worker has named, if the message is its newest, and it should be known to
    /// have named all.
    #[cfg(test)]
    pub(crate) fn named(&self, sync: &WorkerSync) -> Option<usize> {
        let worker = self.workers.get(&sync.worker).filter(|it| it.seq == sync.seq && it.held.is_whole())?;
        let is_end_or_begin = sync.held.is_all || sync.held.known.0.upto == 0;
        is_end_or_begin.then(|| worker.held.values().len())
    }

    /// Returns the windows of a worker's leases as of the last answer.
    #[cfg(test)]
    pub(crate) fn leases(&self, worker: WorkerId) -> Vec<WindowKey> {
        self.workers.get(&worker).map_or(Vec::new(), |it| it.told.iter().map(|(key, _)| key.clone()).collect())
    }

    /// Increases whenever an answer to a worker or trainer may have changed, except in the shares of leases.
    pub fn revision(&self) -> u64 {
        self.revision + self.feeds.values().map(|feed| feed.sequencer.revision()).sum::<u64>()
    }

    /// Records that a worker's connection broke. Until the worker's next message, its windows are leased to other
    /// workers as well.
    pub fn suspect(&mut self, worker: WorkerId) {
        for feed in self.feeds.values_mut() {
            let _ = feed.sequencer.handle(Event::WorkerSuspected { worker });
        }
    }

    /// Removes silent workers and trainers. Call this several times in every `worker_contact_ms`.
    pub fn tick(&mut self, now: Millis) {
        let is_grown = self.young && now >= self.started + self.settings.young_ms;
        // Checking with every message would make its cost grow with the number of workers and trainers.
        if !is_grown && now < self.ticked + TICK_MS && now >= self.ticked {
            return;
        }
        self.discount_pause(now);
        if self.young && now >= self.started + self.settings.young_ms {
            self.young = false;
            self.feeds.values_mut().for_each(|feed| feed.sequencer.set_keeps_all(false));
        }
        let patience = self.settings.worker_contact_ms;
        let lost: Vec<_> =
            self.workers.iter().filter(|(_, it)| it.contact + patience < now).map(|(&id, _)| id).collect();
        self.workers_lost += lost.len() as u64;
        lost.into_iter().for_each(|id| self.lose_worker(id));
        let (patience, idle) = (self.settings.reader_contact_ms, self.settings.idle_feed_ms);
        for feed in self.feeds.values_mut() {
            let gone: Vec<_> =
                feed.readers.iter().filter(|(_, it)| it.contact + patience < now).map(|(&id, _)| id).collect();
            gone.into_iter().for_each(|id| feed.remove_reader(id));
            feed.fence.forget_silent(now.saturating_sub(idle));
            feed.release_silent_groups(now.saturating_sub(patience), now.saturating_sub(idle));
            feed.stop_forgotten_writing(now.saturating_sub(patience));
        }
        self.use_idle_workers(now);
        let open = self.feeds.len();
        let closing = |feed: &OpenFeed<P>| feed.readers.is_empty() && feed.last_read + idle < now;
        let closed = self.feeds.values().filter(|feed| closing(feed)).map(|feed| feed.sequencer.revision());
        self.revision += closed.map(|revision| revision + 1).sum::<u64>();
        self.feeds.retain(|_, feed| !feed.readers.is_empty() || feed.last_read + idle >= now);
        if self.feeds.len() < open {
            self.share_memory();
        }
    }

    /// Has workers that compute nothing of any feed compute windows that take long.
    fn use_idle_workers(&mut self, now: Millis) {
        let computing: BTreeSet<WorkerId> = self.feeds.values().flat_map(|feed| feed.sequencer.computing()).collect();
        let mut idle: Vec<WorkerId> = self.workers.keys().copied().filter(|id| !computing.contains(id)).collect();
        self.feeds.values_mut().for_each(|feed| feed.use_idle_workers(&mut idle, self.settings.stall_ms, now));
    }

    /// Doesn't count this process's own pause against its workers, trainers and jobs.
    fn discount_pause(&mut self, now: Millis) {
        let still = now.saturating_sub(std::mem::replace(&mut self.ticked, now));
        if still >= self.settings.worker_contact_ms / 2 {
            self.workers.values_mut().for_each(|it| it.contact += still);
            self.feeds.values_mut().flat_map(|feed| feed.readers.values_mut()).for_each(|it| it.contact += still);
            self.feeds.values_mut().for_each(|feed| feed.discount_pause(still));
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn remove_worker(&mut self, id: WorkerId) {
        self.workers.remove(&id);
        self.revision += 1;
        for feed in self.feeds.values_mut() {
            let _ = feed.sequencer.handle(Event::WorkerLeft { worker: id });
        }
    }

    /// Removes a worker that its windows may have ended.
    fn lose_worker(&mut self, id: WorkerId) {
        let computing = self.feeds.values().filter(|feed| feed.sequencer.is_computing(id)).count();
        for feed in self.feeds.values_mut() {
            let is_shared = computing > usize::from(feed.sequencer.is_computing(id));
            let _ = feed.sequencer.handle(Event::WorkerLost { worker: id, is_shared });
        }
        self.remove_worker(id);
    }

    /// Tells every sequencer the limits of each worker: equal parts of the worker's memory.
    fn share_memory(&mut self) {
        let ids: Vec<WorkerId> = self.workers.keys().copied().collect();
        ids.into_iter().for_each(|id| self.introduce(id));
    }

    /// Tells every sequencer of the worker and its limits.
    fn introduce(&mut self, worker: WorkerId) {
        let Some(it) = self.workers.get(&worker) else { return };
        let memory_bytes = it.memory_bytes / self.feeds.len().max(1) as u64;
        let limits = WorkerLimits { memory_bytes, computing: it.computing, windows_at_least: WINDOWS_AT_LEAST };
        for (id, feed) in &mut self.feeds {
            if it.refused.contains_key(id) {
                let _ = feed.sequencer.handle(Event::WorkerLeft { worker });
                continue;
            }
            let _ = feed.sequencer.handle(Event::WorkerJoined { worker, limits });
            if it.draining {
                let _ = feed.sequencer.handle(Event::WorkerDraining { worker });
            }
        }
    }

    /// Takes windows that a worker holds. Adopts the leases of a worker that is new here (`is_new`). Ignores other
    /// windows that are not leased to it: the worker will be told to drop them.
    fn take_stock(&mut self, id: WorkerId, held: Vec<(WindowKey, Holding)>, is_new: bool, now: Millis) {
        for ((feed, window), held) in held {
            let Some(feed) = self.feeds.get_mut(&feed) else { continue };
            let lease = held.lease;
            if is_new && !matches!(held.state, HeldState::Stored { .. } | HeldState::Failed(_)) {
                let is_computed = !matches!(held.state, HeldState::Computing);
                feed.sequencer.adopt(id, window, lease, is_computed);
            }
            let at_work = held.at_work;
            let _ = feed.sequencer.handle(Event::WindowAtWork { window, lease, at_work });
            match held.state {
                HeldState::Computing => {}
                HeldState::Counted { rows, bytes } => feed.counted(window, lease, rows, bytes),
                HeldState::Ready { rows, bytes } => {
                    feed.counted(window, lease, rows, bytes);
                    let _ = feed.sequencer.handle(Event::WindowReady { window, lease });
                    if feed.sequencer.is_ready(window, lease) && !feed.sequencer.has_failed(window) {
                        feed.failures.remove(&window);
                    }
                    if let Some(granted) = feed.granted.remove(&(window, lease)) {
                        feed.took(now.saturating_sub(granted));
                    }
                }
                HeldState::Stored { rows, bytes } => feed.stored(window, lease, [rows, bytes], now),
                HeldState::Failed(report) => feed.failed(window, lease, report),
            }
        }
    }
}

/// Returns the number of workers that compute this feed, and the reason if there are none.
fn computing<'a>(workers: &'a BTreeMap<WorkerId, WorkerContact>, feed: &str) -> (usize, Option<&'a Report>) {
    let refusals: Vec<_> = workers.values().filter_map(|worker| worker.refused.get(feed)).collect();
    let computing = workers.len() - refusals.len();
    (computing, refusals.first().copied().filter(|_| computing == 0))
}

#[cfg(test)]
mod tests;
