//! The dispatcher: one sequencer a feed, and who is in contact. Soft state only: a new dispatcher learns all of it from the
//! first message of each worker and trainer.

mod groups;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use groups::{Group, GroupKey};

use crate::messages::{Held, HeldState, Lease, ReaderReply, ReaderSync, Report, Route, WorkerReply, WorkerSync};
use crate::sequencer::{Event, LeaseId, Sequencer, WorkerId, WorkerLimits};
use crate::window::{Plan, WindowId};

/// Milliseconds of a clock that only goes forward.
pub type Millis = u64;

/// Windows that a trainer is told of ahead of the one it is in.
const ROUTES_AHEAD: usize = 8;
/// Windows that a worker may hold of each feed whatever their size: one to read and one to compute.
const WINDOWS_AT_LEAST: usize = 2;
/// Epochs beyond this are a mistake.
const EPOCHS_MAX: u64 = 1 << 32;
/// A worker whose place another took is told so for as long as it is among the latest.
const REPLACED_KEPT: usize = 256;

/// What the dispatcher's patience is.
#[derive(Clone, Copy, Debug)]
pub struct DispatcherSettings {
    /// A worker that was silent for so long is lost.
    pub worker_contact_ms: Millis,
    /// A trainer that was silent for so long is gone.
    pub reader_contact_ms: Millis,
    /// A dispatcher younger than this forgets no window: its readers may still be on their way to it.
    pub young_ms: Millis,
    /// A trainer that waited so long, and three times as long as windows usually take, has its window computed twice.
    pub stall_ms: Millis,
    /// A feed that nobody read for so long is closed.
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

/// Why a worker is sent away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// The address at which another worker serves now.
    pub address: String,
}

/// The dispatcher's state.
#[derive(Debug)]
pub struct Dispatcher<P> {
    settings: DispatcherSettings,
    started: Millis,
    /// When it last looked who is silent.
    ticked: Millis,
    young: bool,
    feeds: BTreeMap<Arc<str>, Feed<P>>,
    workers: BTreeMap<WorkerId, Worker>,
    replaced: Vec<(WorkerId, String)>,
    workers_lost: u64,
    /// Where versions and leases are counted from: another for each dispatcher.
    next_number: u64,
}

#[derive(Debug)]
struct Worker {
    seq: u64,
    contact: Millis,
    address: String,
    memory_bytes: u64,
    computing: usize,
    draining: bool,
    refused: BTreeMap<Arc<str>, Report>,
    /// What it was last told.
    told: Vec<Lease>,
    version: u64,
    /// What it holds of feeds that nobody has opened here yet.
    unknown: Vec<Held>,
}

#[derive(Debug)]
struct Feed<P> {
    sequencer: Sequencer<P>,
    readers: BTreeMap<u64, Reader>,
    failures: BTreeMap<WindowId, Report>,
    /// When leases that are not ready yet were granted.
    granted: BTreeMap<(WindowId, LeaseId), Millis>,
    /// What a window takes, about.
    typical_ms: Millis,
    last_read: Millis,
    /// Jobs with dynamic delivery.
    groups: BTreeMap<GroupKey, Group>,
}

#[derive(Debug)]
struct Reader {
    seq: u64,
    contact: Millis,
    rank: u64,
    world_size: u64,
    at: WindowId,
    until_epoch: u64,
    /// Workers that it could not reach, per window.
    avoid: BTreeMap<WindowId, WorkerId>,
    waiting: Option<(WindowId, u64)>,
    samples: u64,
    bytes: u64,
    stalled_ms: u64,
    told: Told,
    version: u64,
}

type Told = (Vec<Route>, Option<(WindowId, Report)>, usize);

impl<P: Plan> Dispatcher<P> {
    /// A dispatcher that knows nothing. `instance` should differ from that of every dispatcher before it: take some
    /// random bits.
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
            next_number: u64::from(instance) << 32,
        }
    }

    /// Whether the feed is open.
    pub fn has_feed(&self, feed: &str) -> bool {
        self.feeds.contains_key(feed)
    }

    /// Opens a feed, if it is not open yet.
    pub fn open(&mut self, feed: &Arc<str>, plan: P, now: Millis) {
        if self.feeds.contains_key(feed) {
            return;
        }
        // Leases of different feeds may have equal numbers; a lease belongs to a feed.
        let mut sequencer = Sequencer::new(plan, self.next_number);
        sequencer.set_keeps_all(self.young);
        let state = Feed {
            sequencer,
            readers: BTreeMap::new(),
            failures: BTreeMap::new(),
            granted: BTreeMap::new(),
            typical_ms: 0,
            last_read: now,
            groups: BTreeMap::new(),
        };
        self.feeds.insert(Arc::clone(feed), state);
        self.share_memory();
        let ids: Vec<WorkerId> = self.workers.keys().copied().collect();
        for id in ids {
            let Some(worker) = self.workers.get_mut(&id) else { continue };
            let (ours, others) = std::mem::take(&mut worker.unknown).into_iter().partition(|held| held.feed == *feed);
            worker.unknown = others;
            self.take_stock(id, ours, true, now);
        }
    }

    /// Takes a worker's message; [`worker_reply`](Self::worker_reply) then is what to answer.
    ///
    /// # Errors
    /// [`Replaced`], if another worker serves at its address.
    pub fn worker_sync(&mut self, sync: &WorkerSync, now: Millis) -> Result<(), Replaced> {
        self.tick(now);
        if let Some((_, address)) = self.replaced.iter().find(|(id, _)| *id == sync.worker) {
            return Err(Replaced { address: address.clone() });
        }
        if sync.leaving {
            self.remove_worker(sync.worker);
            return Ok(());
        }
        let rival = self.workers.iter().find(|(id, it)| **id != sync.worker && it.address == sync.address);
        if let Some(rival) = rival.map(|(&id, _)| id) {
            self.remove_worker(rival);
            self.replaced.push((rival, sync.address.clone()));
            if self.replaced.len() > REPLACED_KEPT {
                self.replaced.remove(0);
            }
        }
        if self.workers.get(&sync.worker).is_some_and(|worker| worker.seq >= sync.seq) {
            return Ok(());
        }
        let is_new = !self.workers.contains_key(&sync.worker);
        let version = self.number();
        let worker = self.workers.entry(sync.worker).or_insert_with(|| Worker {
            seq: 0,
            contact: now,
            address: sync.address.clone(),
            memory_bytes: 0,
            computing: 0,
            draining: false,
            refused: BTreeMap::new(),
            told: Vec::new(),
            version,
            unknown: Vec::new(),
        });
        worker.seq = sync.seq;
        worker.contact = now;
        worker.address.clone_from(&sync.address);
        worker.memory_bytes = sync.memory_bytes;
        worker.computing = sync.computing;
        worker.draining = sync.draining;
        worker.unknown.clear();
        worker.refused = sync.refused.iter().cloned().collect();
        // It had been told of these, and does not have them.
        let missing: Vec<Lease> = match !is_new && sync.known == worker.version {
            true => {
                let held: BTreeSet<_> = sync.held.iter().map(|held| (&held.feed, held.window, held.lease)).collect();
                let is_missing = |lease: &&Lease| !held.contains(&(&lease.feed, lease.window, lease.lease));
                worker.told.iter().filter(is_missing).cloned().collect()
            }
            false => Vec::new(),
        };
        self.introduce(sync.worker);
        for lease in missing {
            if let Some(feed) = self.feeds.get_mut(&lease.feed) {
                let _ = feed.sequencer.handle(Event::WindowMissing { window: lease.window, lease: lease.lease });
            }
        }
        self.take_stock(sync.worker, sync.held.clone(), is_new, now);
        Ok(())
    }

    /// What a worker should hold; a new version whenever that changed.
    pub fn worker_reply(&mut self, id: WorkerId, now: Millis) -> Option<WorkerReply> {
        let worker = self.workers.get(&id)?;
        let mut leases = Vec::new();
        for (feed, state) in &mut self.feeds {
            let Feed { sequencer, granted, .. } = state;
            granted.retain(|&(window, lease), _| sequencer.holds(window, lease));
            for (window, lease) in sequencer.leases(id) {
                if !sequencer.is_ready(window, lease) {
                    granted.entry((window, lease)).or_insert(now);
                }
                let shares = sequencer.shares(window);
                leases.push(Lease { feed: Arc::clone(feed), window, lease, shares });
            }
        }
        if self.young {
            let keep = |held: &Held| Lease {
                feed: Arc::clone(&held.feed),
                window: held.window,
                lease: held.lease,
                // Nobody knows yet.
                shares: f64::MAX,
            };
            leases.extend(worker.unknown.iter().map(keep));
        }
        let version = match worker.told == leases {
            true => worker.version,
            false => self.number(),
        };
        let worker = self.workers.get_mut(&id)?;
        worker.version = version;
        worker.told.clone_from(&leases);
        Some(WorkerReply { version, seq: worker.seq, leases })
    }

    /// Takes a trainer's message about a feed that is open; [`reader_reply`](Self::reader_reply) then is what to answer.
    pub fn reader_sync(&mut self, sync: &ReaderSync, now: Millis) {
        self.tick(now);
        let version = self.number();
        let Some(feed) = self.feeds.get_mut(&sync.feed) else { return };
        // It may come from anyone; whoever sends nonsense is answered as if it were not there.
        let is_sane = sync.until_epoch <= EPOCHS_MAX && feed.sequencer.plan().has(sync.at, sync.until_epoch);
        if sync.world_size == 0 || !is_sane {
            return;
        }
        if sync.leaving {
            feed.remove_reader(sync.session);
            return;
        }
        feed.last_read = now;
        let handle = |feed: &mut Feed<P>, event| {
            let _ = feed.sequencer.handle(event);
        };
        match feed.readers.get(&sync.session) {
            Some(reader) if reader.seq >= sync.seq => return,
            Some(_) => handle(feed, Event::ReaderAdvanced { reader: sync.session, to: sync.at }),
            None => {
                let until_epoch = sync.until_epoch;
                let share = 1.0 / sync.world_size.max(1) as f64;
                // It may have come to see whether what failed still does.
                feed.failures.retain(|&window, _| window < sync.at);
                handle(feed, Event::ReaderJoined { reader: sync.session, at: sync.at, until_epoch, share });
            }
        }
        let reader = feed.readers.entry(sync.session).or_insert_with(|| Reader {
            seq: 0,
            contact: now,
            rank: sync.rank,
            world_size: sync.world_size,
            at: sync.at,
            until_epoch: sync.until_epoch,
            avoid: BTreeMap::new(),
            waiting: None,
            samples: 0,
            bytes: 0,
            stalled_ms: 0,
            told: Told::default(),
            version,
        });
        reader.seq = sync.seq;
        reader.contact = now;
        reader.at = reader.at.max(sync.at);
        reader.waiting = sync.waiting;
        (reader.samples, reader.bytes, reader.stalled_ms) = (sync.samples, sync.bytes, sync.stalled_ms);
        reader.avoid = reader.avoid.split_off(&reader.at);
        for broken in &sync.broken {
            reader.avoid.insert(broken.window, broken.worker);
        }
        for broken in &sync.broken {
            let (window, lease, worker) = (broken.window, broken.lease, broken.worker);
            if broken.missing {
                handle(feed, Event::WindowMissing { window, lease });
            } else {
                handle(feed, Event::WorkerSuspected { worker });
                handle(feed, Event::ReaderStalled { window });
            }
        }
        let patience = self.settings.stall_ms.max(3 * feed.typical_ms);
        if let Some((window, _)) = sync.waiting.filter(|&(_, waited)| waited >= patience) {
            handle(feed, Event::ReaderStalled { window });
        }
    }

    /// What a trainer should know; a new version whenever that changed.
    pub fn reader_reply(&mut self, feed: &str, session: u64) -> Option<ReaderReply> {
        let new_version = self.number();
        let state = self.feeds.get_mut(feed)?;
        let reader = state.readers.get_mut(&session)?;
        let mut routes = Vec::new();
        let mut window = reader.at;
        while routes.len() < ROUTES_AHEAD && window.epoch < reader.until_epoch {
            let avoided = reader.avoid.get(&window);
            let copies: Vec<_> = state.sequencer.copies(window).collect();
            let copy = copies.iter().find(|copy| Some(&copy.worker) != avoided).or(copies.first());
            let (Some(copy), Some(rows)) = (copy, state.sequencer.rows(window)) else { break };
            let Some(worker) = self.workers.get(&copy.worker) else { break };
            routes.push(Route {
                window,
                rows,
                last: state.sequencer.plan().is_last(window),
                lease: copy.lease,
                worker: copy.worker,
                address: worker.address.clone(),
            });
            window = state.sequencer.plan().after(window);
        }
        let failed = (state.sequencer.has_failed(window) && window.epoch < reader.until_epoch)
            .then(|| (window, state.failures.get(&window).cloned().unwrap_or_else(|| lost_too_often(window))));
        let (workers, refusal) = computing(&self.workers, feed);
        // With nobody left to compute it, the reason why they do not is the reader's to know; but others may be on their
        // way to a young dispatcher.
        let failed = failed
            .or_else(|| refusal.filter(|_| routes.is_empty() && !self.young).map(|report| (window, report.clone())));
        let told = (routes, failed, workers);
        if reader.told != told {
            reader.told = told;
            reader.version = new_version;
        }
        let (routes, failed, workers) = reader.told.clone();
        Some(ReaderReply { version: reader.version, seq: reader.seq, routes, failed, workers })
    }

    /// Notices who is silent. To be called several times in every `worker_contact_ms`.
    pub fn tick(&mut self, now: Millis) {
        self.excuse(now);
        if self.young && now >= self.started + self.settings.young_ms {
            self.young = false;
            self.feeds.values_mut().for_each(|feed| feed.sequencer.set_keeps_all(false));
            self.workers.values_mut().for_each(|worker| worker.unknown.clear());
        }
        let patience = self.settings.worker_contact_ms;
        let lost: Vec<_> =
            self.workers.iter().filter(|(_, it)| it.contact + patience < now).map(|(&id, _)| id).collect();
        self.workers_lost += lost.len() as u64;
        lost.into_iter().for_each(|id| self.remove_worker(id));
        let (patience, idle) = (self.settings.reader_contact_ms, self.settings.idle_feed_ms);
        for feed in self.feeds.values_mut() {
            let gone: Vec<_> =
                feed.readers.iter().filter(|(_, it)| it.contact + patience < now).map(|(&id, _)| id).collect();
            gone.into_iter().for_each(|id| feed.remove_reader(id));
            feed.rest_groups(now.saturating_sub(patience), now.saturating_sub(idle));
        }
        let open = self.feeds.len();
        self.feeds.retain(|_, feed| !feed.readers.is_empty() || feed.last_read + idle >= now);
        if self.feeds.len() < open {
            self.share_memory();
        }
    }

    /// Whoever was silent while this process stood still is not to blame.
    fn excuse(&mut self, now: Millis) {
        let still = now.saturating_sub(std::mem::replace(&mut self.ticked, now));
        if still >= self.settings.worker_contact_ms / 2 {
            self.workers.values_mut().for_each(|it| it.contact += still);
            self.feeds.values_mut().flat_map(|feed| feed.readers.values_mut()).for_each(|it| it.contact += still);
            self.feeds.values_mut().for_each(|feed| feed.excuse_groups(still));
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn remove_worker(&mut self, id: WorkerId) {
        self.workers.remove(&id);
        for feed in self.feeds.values_mut() {
            let _ = feed.sequencer.handle(Event::WorkerLeft { worker: id });
        }
    }

    /// Tells every sequencer what each worker can take of its feed: equal parts of its memory.
    fn share_memory(&mut self) {
        let ids: Vec<WorkerId> = self.workers.keys().copied().collect();
        ids.into_iter().for_each(|id| self.introduce(id));
    }

    /// Tells every sequencer that this worker is there and well, and what it can take.
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

    /// Takes in what a worker says it holds. What was leased before it was known here (`is_new`) is taken over; else what is
    /// not leased any more is what it has not been told yet to drop.
    fn take_stock(&mut self, id: WorkerId, held: Vec<Held>, is_new: bool, now: Millis) {
        let mut unknown = Vec::new();
        for held in held {
            let Some(feed) = self.feeds.get_mut(&held.feed) else {
                unknown.push(held);
                continue;
            };
            let (window, lease) = (held.window, held.lease);
            if is_new && !matches!(held.state, HeldState::Failed(_)) {
                let is_computed = !matches!(held.state, HeldState::Computing);
                feed.sequencer.adopt(id, window, lease, is_computed);
            }
            match held.state {
                HeldState::Computing => {}
                HeldState::Counted { rows, bytes } => feed.counted(window, lease, rows, bytes),
                HeldState::Ready { rows, bytes } => {
                    feed.counted(window, lease, rows, bytes);
                    let _ = feed.sequencer.handle(Event::WindowReady { window, lease });
                    if let Some(granted) = feed.granted.remove(&(window, lease)) {
                        feed.typical_ms = (3 * feed.typical_ms + now.saturating_sub(granted)) / 4;
                    }
                }
                HeldState::Failed(report) => {
                    let retry = report.retry;
                    if feed.sequencer.holds(window, lease) {
                        feed.failures.insert(window, report);
                        let _ = feed.sequencer.handle(Event::WindowFailed { window, lease, retry });
                    }
                }
            }
        }
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.unknown.extend(unknown);
        }
    }
}

impl<P: Plan> Feed<P> {
    fn remove_reader(&mut self, session: u64) {
        self.readers.remove(&session);
        let _ = self.sequencer.handle(Event::ReaderLeft { reader: session });
    }

    fn counted(&mut self, window: WindowId, lease: LeaseId, rows: u64, bytes: u64) {
        if !self.sequencer.holds(window, lease) {
            return;
        }
        if let Err(impure) = self.sequencer.handle(Event::WindowCounted { window, lease, rows, bytes }) {
            let (before, now) = impure.rows;
            self.failures.insert(
                window,
                Report {
                    kind: "internal".to_owned(),
                    message: format!(
                        "window {} of epoch {} has {now} samples, and had {before} when it was computed before",
                        window.index, window.epoch
                    ),
                    hint: Some("do all workers read the same files, with the same build?".to_owned()),
                    retry: false,
                },
            );
            let _ = self.sequencer.handle(Event::WindowFailed { window, lease, retry: false });
        }
    }
}

/// How many workers compute this feed; if none does, why.
fn computing<'a>(workers: &'a BTreeMap<WorkerId, Worker>, feed: &str) -> (usize, Option<&'a Report>) {
    let refusals: Vec<_> = workers.values().filter_map(|worker| worker.refused.get(feed)).collect();
    let computing = workers.len() - refusals.len();
    (computing, refusals.first().copied().filter(|_| computing == 0))
}

fn lost_too_often(window: WindowId) -> Report {
    Report {
        kind: "unavailable".to_owned(),
        message: format!(
            "window {} of epoch {} was given up: every worker that computed it was lost",
            window.index, window.epoch
        ),
        hint: Some("look at the workers' logs; perhaps they run out of memory: lower window_bytes".to_owned()),
        retry: false,
    }
}

/// What `forebay status` shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Feeds that are open.
    pub feeds: Vec<FeedStatus>,
    /// Workers in contact.
    pub workers: Vec<WorkerStatus>,
    /// Workers that fell silent, since this dispatcher began.
    pub workers_lost: u64,
}

/// A feed that is open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeedStatus {
    /// Its id.
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
    /// Leases of a second copy, because a reader waited too long or could not reach the first.
    pub leases_speculative: u64,
    /// Windows that were leased again although they had been computed before.
    pub windows_recomputed: u64,
    /// Milliseconds that a window takes, about.
    pub window_ms: Millis,
    /// Its readers.
    pub readers: Vec<ReaderStatus>,
}

/// One rank of a reader.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReaderStatus {
    /// Which.
    pub session: u64,
    /// Which rank.
    pub rank: u64,
    /// Of how many.
    pub world_size: u64,
    /// Where it stands.
    pub at: WindowId,
    /// The epoch it stops before.
    pub until_epoch: u64,
    /// Samples handed to its loop so far.
    pub samples: u64,
    /// Bytes received so far.
    pub bytes: u64,
    /// Milliseconds that its loop has waited so far.
    pub stalled_ms: u64,
    /// The window it waits for now, and for how long.
    pub waiting: Option<(WindowId, u64)>,
}

/// A worker in contact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Which.
    pub worker: WorkerId,
    /// Where it is reached.
    pub address: String,
    /// Whether it is about to stop.
    pub draining: bool,
    /// Windows that it holds.
    pub windows: usize,
    /// Bytes of windows that it holds.
    pub held_bytes: u64,
    /// Bytes of windows that it may hold.
    pub memory_bytes: u64,
    /// Milliseconds since it was last heard of.
    pub silent_ms: Millis,
    /// Feeds that it cannot compute, and why.
    pub refused: Vec<(Arc<str>, Report)>,
}

impl<P: Plan> Dispatcher<P> {
    /// What goes on.
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
                window_ms: feed.typical_ms,
                readers: readers.collect(),
            }
        });
        let workers = self.workers.iter().map(|(&worker, state)| WorkerStatus {
            worker,
            address: state.address.clone(),
            draining: state.draining,
            windows: state.told.len(),
            held_bytes: self.feeds.values().map(|feed| feed.sequencer.held_bytes(worker)).sum(),
            memory_bytes: state.memory_bytes,
            silent_ms: now.saturating_sub(state.contact),
            refused: state.refused.iter().map(|(feed, report)| (Arc::clone(feed), report.clone())).collect(),
        });
        Status { feeds: feeds.collect(), workers: workers.collect(), workers_lost: self.workers_lost }
    }

    /// The windows that cannot be computed, and why.
    pub fn failures(&self) -> impl Iterator<Item = (&Arc<str>, WindowId, Report)> {
        self.feeds.iter().flat_map(|(id, feed)| {
            let why = |window| feed.failures.get(&window).cloned().unwrap_or_else(|| lost_too_often(window));
            feed.sequencer.failed().map(move |window| (id, window, why(window)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::Broken;
    use crate::{ReadSettings, Trainer, WorkerProfile};

    /// Epochs of six windows of 10 bytes each.
    struct Even;

    impl Plan for Even {
        fn windows(&self, _: u64) -> u32 {
            6
        }

        fn bytes(&self, _: WindowId) -> u64 {
            10
        }
    }

    /// After its youth.
    const LATER: Millis = 10_000;

    fn window(index: u32) -> WindowId {
        WindowId { epoch: 0, index }
    }

    fn dispatcher(instance: u32, feeds: &[&str]) -> Dispatcher<Even> {
        let mut dispatcher = Dispatcher::new(DispatcherSettings::default(), instance, 0);
        dispatcher.tick(LATER);
        feeds.iter().for_each(|&feed| dispatcher.open(&feed.into(), Even, LATER));
        dispatcher
    }

    fn worker(id: WorkerId, address: &str, memory_bytes: u64) -> crate::Worker {
        crate::Worker::new(WorkerProfile { worker: id, address: address.into(), memory_bytes, computing: 2 })
    }

    fn trainer(feed: &str, session: u64) -> Trainer<()> {
        let settings = ReadSettings { batch_size: 2, epochs: 1, drop_last: false, rank: 0, world_size: 1 };
        let begin = crate::Origin { window: window(0), window_offset: 0, offset: 0 };
        Trainer::new(feed.into(), session, settings, begin, 1_000)
    }

    fn report(message: &str) -> Report {
        Report { kind: "data".into(), message: message.into(), hint: None, retry: false }
    }

    /// One message and its answer; the leases then, and what was computed of them is reported with the next message.
    fn exchange(dispatcher: &mut Dispatcher<Even>, worker: &mut crate::Worker, now: Millis) -> Vec<(u32, LeaseId)> {
        let sync = worker.sync();
        dispatcher.worker_sync(&sync, now).expect("nobody else has its address");
        let reply = dispatcher.worker_reply(sync.worker, now).expect("known");
        for action in worker.reply(&reply) {
            if let crate::WorkerAction::Start(key) = action {
                worker.report(&key, HeldState::Ready { rows: 5, bytes: 10 });
            }
        }
        reply.leases.iter().map(|lease| (lease.window.index, lease.lease)).collect()
    }

    fn windows(leases: &[(u32, LeaseId)]) -> Vec<u32> {
        leases.iter().map(|&(window, _)| window).collect()
    }

    fn ask(dispatcher: &mut Dispatcher<Even>, trainer: &mut Trainer<()>, now: Millis) -> ReaderReply {
        let sync = trainer.sync(now);
        dispatcher.reader_sync(&sync, now);
        dispatcher.reader_reply(&sync.feed, sync.session).expect("open")
    }

    #[test]
    fn a_reader_is_told_where_its_windows_are() {
        let mut dispatcher = dispatcher(1, &["f"]);
        let (mut worker, mut trainer) = (worker(7, "w7", 1_000), trainer("f", 1));
        assert_eq!(ask(&mut dispatcher, &mut trainer, LATER).workers, 0);
        let first = exchange(&mut dispatcher, &mut worker, LATER);
        assert_eq!(windows(&first), [0, 1]);
        exchange(&mut dispatcher, &mut worker, LATER);
        let reply = ask(&mut dispatcher, &mut trainer, LATER);
        let routes: Vec<_> = reply.routes.iter().map(|route| (route.window.index, route.lease)).collect();
        assert_eq!((routes, reply.workers), (first, 1));
        assert!(reply.routes.iter().all(|it| it.address == "w7" && it.worker == 7 && it.rows == 5 && !it.last));
        // Nothing new has no new version.
        assert_eq!(dispatcher.reader_reply("f", 1).expect("open").version, reply.version);
    }

    #[test]
    fn an_older_message_changes_nothing() {
        let mut dispatcher = dispatcher(1, &["f"]);
        let (mut worker, mut trainer) = (worker(7, "w7", 1_000), trainer("f", 1));
        let (old, new) = (trainer.sync(0), trainer.sync(0));
        dispatcher.reader_sync(&ReaderSync { at: window(3), ..new }, LATER);
        dispatcher.reader_sync(&old, LATER);
        assert_eq!(dispatcher.status(LATER).feeds[0].readers[0].at, window(3));
        let old = worker.sync();
        exchange(&mut dispatcher, &mut worker, LATER);
        exchange(&mut dispatcher, &mut worker, LATER);
        let before = dispatcher.worker_reply(7, LATER);
        dispatcher.worker_sync(&WorkerSync { draining: true, ..old }, LATER).expect("its address");
        assert_eq!(dispatcher.worker_reply(7, LATER), before);
    }

    #[test]
    fn a_worker_whose_address_another_took_is_sent_away() {
        let mut dispatcher = dispatcher(1, &["f"]);
        let (mut old, mut new, mut trainer) = (worker(7, "w", 1_000), worker(8, "w", 1_000), trainer("f", 1));
        ask(&mut dispatcher, &mut trainer, LATER);
        exchange(&mut dispatcher, &mut old, LATER);
        exchange(&mut dispatcher, &mut old, LATER);
        assert_eq!(windows(&exchange(&mut dispatcher, &mut new, LATER)), [0, 1]);
        let sent_away = dispatcher.worker_sync(&old.sync(), LATER);
        assert_eq!(sent_away, Err(Replaced { address: "w".into() }));
        assert_eq!(dispatcher.worker_reply(7, LATER), None);
        exchange(&mut dispatcher, &mut new, LATER);
        assert!(ask(&mut dispatcher, &mut trainer, LATER).routes.iter().all(|route| route.worker == 8));
    }

    #[test]
    fn a_young_dispatcher_keeps_the_windows_of_feeds_that_nobody_has_opened_yet() {
        let (mut worker, mut trainer) = (worker(7, "w7", 1_000), trainer("f", 1));
        let mut before = dispatcher(1, &["f"]);
        ask(&mut before, &mut trainer, LATER);
        exchange(&mut before, &mut worker, LATER);
        let leases = exchange(&mut before, &mut worker, LATER);

        let mut young = Dispatcher::new(DispatcherSettings::default(), 2, 0);
        assert_eq!(exchange(&mut young, &mut worker, 0).len(), leases.len());
        let told = young.worker_reply(7, 1).expect("known");
        assert!(told.leases.iter().all(|lease| lease.shares == f64::MAX));
        young.open(&"f".into(), Even, 100);
        let reply = ask(&mut young, &mut trainer, 100);
        let routes: Vec<_> = reply.routes.iter().map(|route| (route.window.index, route.lease)).collect();
        assert_eq!(routes, leases, "they can be read at once");

        // With no reader, they go when it is no longer young.
        let mut young = Dispatcher::new(DispatcherSettings::default(), 3, 0);
        young.open(&"f".into(), Even, 0);
        exchange(&mut young, &mut worker, 0);
        for now in (0..5_000).step_by(500) {
            assert!(!exchange(&mut young, &mut worker, now).is_empty());
        }
        assert!(exchange(&mut young, &mut worker, 5_000).is_empty());
    }

    #[test]
    fn what_a_worker_has_ready_is_not_computed_again_by_one_that_came_first() {
        let (mut first, mut second, mut trainer) = (worker(7, "w7", 1_000), worker(8, "w8", 1_000), trainer("f", 1));
        let mut before = dispatcher(1, &["f"]);
        ask(&mut before, &mut trainer, LATER);
        exchange(&mut before, &mut second, LATER);
        exchange(&mut before, &mut second, LATER);

        let mut after = dispatcher(2, &["f"]);
        ask(&mut after, &mut trainer, LATER);
        after.worker_sync(&first.sync(), LATER).expect("its address");
        exchange(&mut after, &mut second, LATER);
        assert!(ask(&mut after, &mut trainer, LATER).routes.iter().all(|route| route.worker == 8));
        let leases = exchange(&mut after, &mut first, LATER);
        assert!(!windows(&leases).contains(&0), "{leases:?}");
    }

    #[test]
    fn a_feed_that_every_worker_refuses_gives_its_reader_the_reason() {
        let mut dispatcher = dispatcher(1, &["f", "g"]);
        let (mut worker, mut trainer) = (worker(7, "w7", 1_000), trainer("f", 1));
        worker.refuse("f".into(), report("an older build"));
        ask(&mut dispatcher, &mut trainer, LATER);
        assert!(exchange(&mut dispatcher, &mut worker, LATER).is_empty());
        let reply = ask(&mut dispatcher, &mut trainer, LATER);
        assert_eq!((reply.failed, reply.workers), (Some((window(0), report("an older build"))), 0));
        // Another may still come to a young one.
        let mut young = Dispatcher::new(DispatcherSettings::default(), 2, 0);
        young.open(&"f".into(), Even, 0);
        exchange(&mut young, &mut worker, 0);
        assert_eq!(ask(&mut young, &mut trainer, 0).failed, None);
    }

    #[test]
    fn a_failure_is_told_where_it_lies_and_forgotten_for_a_reader_that_comes_back() {
        let mut dispatcher = dispatcher(1, &["f"]);
        let (mut worker, mut first, mut again) = (worker(7, "w7", 1_000), trainer("f", 1), trainer("f", 2));
        ask(&mut dispatcher, &mut first, LATER);
        exchange(&mut dispatcher, &mut worker, LATER);
        worker.report(&("f".into(), window(1)), HeldState::Failed(report("bad row")));
        exchange(&mut dispatcher, &mut worker, LATER);
        let reply = ask(&mut dispatcher, &mut first, LATER);
        assert_eq!((reply.routes.len(), reply.failed), (1, Some((window(1), report("bad row")))));
        assert_eq!(ask(&mut dispatcher, &mut again, LATER).failed, None);
        assert!(windows(&exchange(&mut dispatcher, &mut worker, LATER)).contains(&1));
    }

    #[test]
    fn a_window_with_other_rows_than_before_fails_with_a_reason() {
        let mut dispatcher = dispatcher(1, &["f"]);
        let (mut one, mut other, mut trainer) = (worker(7, "w7", 0), worker(8, "w8", 0), trainer("f", 1));
        ask(&mut dispatcher, &mut trainer, LATER);
        exchange(&mut dispatcher, &mut one, LATER);
        exchange(&mut dispatcher, &mut one, LATER);
        let leaving = WorkerSync { leaving: true, ..one.sync() };
        dispatcher.worker_sync(&leaving, LATER).expect("its address");
        exchange(&mut dispatcher, &mut other, LATER);
        other.report(&("f".into(), window(0)), HeldState::Counted { rows: 6, bytes: 10 });
        exchange(&mut dispatcher, &mut other, LATER);
        let (at, report) = ask(&mut dispatcher, &mut trainer, LATER).failed.expect("failed");
        assert_eq!((at, report.kind.as_str()), (window(0), "internal"));
        assert!(report.message.contains("has 6 samples, and had 5"), "{}", report.message);
    }

    #[test]
    fn feeds_share_the_memory_of_a_worker() {
        let mut dispatcher = dispatcher(1, &["f"]);
        let (mut worker, mut trainers) = (worker(7, "w7", 80), [trainer("f", 1), trainer("g", 2)]);
        let held = |dispatcher: &mut Dispatcher<Even>, worker: &mut crate::Worker, feed: &str| {
            for _ in 0..10 {
                exchange(dispatcher, worker, LATER);
            }
            worker.leases().iter().filter(|lease| &*lease.feed == feed).count()
        };
        ask(&mut dispatcher, &mut trainers[0], LATER);
        assert_eq!(held(&mut dispatcher, &mut worker, "f"), 6);
        dispatcher.open(&"g".into(), Even, LATER);
        ask(&mut dispatcher, &mut trainers[1], LATER);
        assert_eq!(held(&mut dispatcher, &mut worker, "g"), 4);
        // What the first had before is kept until it is passed.
        assert_eq!(held(&mut dispatcher, &mut worker, "f"), 6);
    }

    #[test]
    fn a_silent_worker_is_lost_but_not_if_the_dispatcher_stood_still() {
        let mut dispatcher = dispatcher(1, &["f"]);
        let (mut worker, mut trainer) = (worker(7, "w7", 1_000), trainer("f", 1));
        ask(&mut dispatcher, &mut trainer, LATER);
        exchange(&mut dispatcher, &mut worker, LATER);
        dispatcher.tick(LATER + 60_000);
        let status = dispatcher.status(LATER + 60_000);
        assert_eq!((status.workers.len(), status.feeds[0].readers.len()), (1, 1));
        for now in (60_000..=62_500).step_by(500) {
            dispatcher.tick(LATER + now);
        }
        let status = dispatcher.status(LATER + 62_500);
        assert_eq!((status.workers.len(), status.feeds[0].readers.len()), (0, 1));
        for now in (62_500..=70_500).step_by(500) {
            dispatcher.tick(LATER + now);
        }
        assert!(!dispatcher.has_feed("f"), "the trainer is gone, and nobody read for a minute");
    }

    #[test]
    fn a_worker_that_a_reader_cannot_reach_gets_nothing_new_whoever_else_is_heard_of() {
        let mut dispatcher = dispatcher(1, &["f"]);
        let (mut bad, mut good, mut trainer) = (worker(7, "w7", 0), worker(8, "w8", 1_000), trainer("f", 1));
        ask(&mut dispatcher, &mut trainer, LATER);
        let leases = exchange(&mut dispatcher, &mut bad, LATER);
        assert_eq!(windows(&leases), [0, 1]);
        exchange(&mut dispatcher, &mut bad, LATER);
        let broken = Broken { window: window(0), lease: leases[0].1, worker: 7, missing: false };
        let sync = ReaderSync { broken: vec![broken], ..trainer.sync(LATER) };
        exchange(&mut dispatcher, &mut good, LATER);
        dispatcher.reader_sync(&sync, LATER);
        for _ in 0..10 {
            exchange(&mut dispatcher, &mut good, LATER);
        }
        // Its window was leased a second time at once, and that is where it is sent.
        let route = ask(&mut dispatcher, &mut trainer, LATER).routes[0].clone();
        assert_eq!((route.window, route.worker), (window(0), 8));
        dispatcher.reader_sync(&ReaderSync { at: window(1), ..trainer.sync(LATER) }, LATER);
        assert_eq!(dispatcher.worker_reply(7, LATER).expect("in contact").leases.len(), 1);
    }

    #[test]
    fn windows_are_timed_once_from_their_grant_until_they_are_ready() {
        let mut dispatcher = dispatcher(1, &["f"]);
        let (mut worker, mut trainer) = (worker(7, "w7", 0), trainer("f", 1));
        ask(&mut dispatcher, &mut trainer, LATER);
        exchange(&mut dispatcher, &mut worker, LATER);
        exchange(&mut dispatcher, &mut worker, LATER + 400);
        let timed = dispatcher.status(LATER + 400).feeds[0].window_ms;
        assert!(timed > 100, "{timed}");
        for now in 401..450 {
            exchange(&mut dispatcher, &mut worker, LATER + now);
        }
        assert_eq!(dispatcher.status(LATER + 450).feeds[0].window_ms, timed);
    }

    #[test]
    fn a_worker_that_lost_what_it_was_told_to_hold_is_told_again() {
        let mut dispatcher = dispatcher(1, &["f"]);
        let (mut worker, mut trainer) = (worker(7, "w7", 0), trainer("f", 1));
        ask(&mut dispatcher, &mut trainer, LATER);
        let before = exchange(&mut dispatcher, &mut worker, LATER);
        let sync = worker.sync();
        dispatcher.worker_sync(&WorkerSync { held: Vec::new(), ..sync }, LATER).expect("its address");
        let after = dispatcher.worker_reply(7, LATER).expect("known").leases;
        assert_eq!(after[0].window.index, before[0].0);
        assert_ne!(after[0].lease, before[0].1);
    }
}
