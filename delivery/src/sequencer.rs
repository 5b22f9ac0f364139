//! Which window is computed when, by whom, and how long it is kept: a state machine without I/O, clock or randomness.
//!
//! Events go in; [`Sequencer::leases`] then says what each worker should hold, and [`Sequencer::copies`] where a window
//! can be read. Whoever drives it makes the world so: in process that is the feed's runner with itself as the only worker,
//! on a cluster the [dispatcher](crate::Dispatcher). The rules:
//!
//! - A reader's current window is always leased, whatever the memory limit says: without it nobody would move.
//! - Windows ahead of the readers are leased in order while workers have room, so computing overlaps reading.
//! - A window is kept until every reader has passed it. When a current window needs room, the windows whose readers
//!   are furthest away go first; they are computed again when their reader comes, never skipped.
//! - The windows of a worker that is lost are leased to others. A window that keeps losing its workers is given up.
//! - A window whose reader waits too long is leased a second time; whichever is ready first is right, for both are equal.
//! - A report about a window that the worker does not lease (a late or duplicate one) changes nothing.

use std::collections::BTreeMap;

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

/// At most this many windows are looked at ahead of one reader; what bounds them usually is memory.
const LOOKAHEAD_WINDOWS_MAX: usize = 64;
/// So many workers may be lost or fail over one window before it is taken to be the reason.
const ATTEMPTS_MAX: u32 = 4;

/// One worker's copy of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Who holds it.
    pub worker: WorkerId,
    /// The grant.
    pub lease: LeaseId,
    /// How far it is.
    pub state: CopyState,
    bytes: u64,
}

/// How far a copy of a window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CopyState {
    /// Being read and filtered.
    Leased,
    /// Its rows are known, and it can be read from.
    Counted,
    /// Computed as far as memory allows.
    Ready,
}

#[derive(Clone, Debug, Default)]
struct Window {
    copies: Vec<Copy>,
    /// Workers that were lost or failed before this window was counted.
    attempts: u32,
    failed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Reader {
    at: WindowId,
    until_epoch: u64,
    share: f64,
}

#[derive(Clone, Copy, Debug)]
struct Worker {
    limits: WorkerLimits,
    draining: bool,
    suspected: bool,
}

/// Something that must not happen: equal inputs gave different windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Impure {
    /// The window.
    pub window: WindowId,
    /// Its rows as first reported, and as reported now.
    pub rows: (u64, u64),
}

/// The state machine of one feed.
#[derive(Clone, Debug)]
pub struct Sequencer<P> {
    plan: P,
    workers: BTreeMap<WorkerId, Worker>,
    windows: BTreeMap<WindowId, Window>,
    /// Rows of every window that was ever counted: eight bytes a window, and a check that windows are pure.
    rows: BTreeMap<WindowId, u64>,
    readers: BTreeMap<ReaderId, Reader>,
    /// Nothing is forgotten while this is set: the readers may not all have come back yet.
    keeps_all: bool,
    next_lease: LeaseId,
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
            keeps_all: false,
            next_lease: first_lease,
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

    /// Takes one event.
    ///
    /// # Errors
    /// [`Impure`], if a window has another row count than it had before; the event then changed nothing.
    pub fn handle(&mut self, event: Event) -> Result<(), Impure> {
        match event {
            Event::WorkerJoined { worker, limits } => {
                let draining = self.workers.get(&worker).is_some_and(|worker| worker.draining);
                self.workers.insert(worker, Worker { limits, draining, suspected: false });
            }
            Event::WorkerSuspected { worker } => {
                if let Some(worker) = self.workers.get_mut(&worker) {
                    worker.suspected = true;
                }
            }
            Event::WorkerDraining { worker } => {
                if let Some(worker) = self.workers.get_mut(&worker) {
                    worker.draining = true;
                }
                // What it has not begun to give is better begun elsewhere.
                self.drop_copies(|copy| copy.worker == worker && copy.state == CopyState::Leased, false);
            }
            Event::WorkerLeft { worker } => {
                self.workers.remove(&worker);
                if holds(Rule::LostIsLeasedAgain) {
                    self.drop_copies(|copy| copy.worker == worker, true);
                }
            }
            Event::ReaderJoined { reader, at, until_epoch, share } => {
                self.readers.insert(reader, Reader { at, until_epoch, share });
                self.retry_failed(at);
            }
            Event::ReaderAdvanced { reader, to } => {
                match self.readers.get_mut(&reader) {
                    // Most messages only say that a reader is still there.
                    Some(reader) if reader.at == to => return Ok(()),
                    // A late message must not move a reader back.
                    Some(reader) => reader.at = reader.at.max(to),
                    None => {}
                }
                if !holds(Rule::KeptForEveryReader) {
                    self.readers.values_mut().for_each(|reader| reader.at = reader.at.max(to));
                }
            }
            Event::ReaderStalled { window } => self.lease_again(window),
            Event::ReaderLeft { reader } => {
                self.readers.remove(&reader);
            }
            Event::WindowCounted { window, lease, rows, bytes } => {
                if let Some(&before) = self.rows.get(&window).filter(|&&before| before != rows) {
                    return Err(Impure { window, rows: (before, rows) });
                }
                if let Some(copy) = self.copy_mut(window, lease) {
                    copy.state = copy.state.max(CopyState::Counted);
                    copy.bytes = bytes;
                    self.rows.insert(window, rows);
                }
            }
            Event::WindowReady { window, lease } => {
                if let Some(copy) = self.copy_mut(window, lease).filter(|copy| copy.state == CopyState::Counted) {
                    copy.state = CopyState::Ready;
                    let held = self.windows.get_mut(&window).expect("it has a copy");
                    held.attempts = 0;
                    // The race is decided.
                    held.copies.retain(|copy| copy.state == CopyState::Ready);
                }
            }
            Event::WindowFailed { window, lease, retry } => {
                if self.copy_mut(window, lease).is_some() {
                    let held = self.windows.get_mut(&window).expect("it has a copy");
                    held.copies.retain(|copy| copy.lease != lease);
                    held.attempts += 1;
                    held.failed |= !retry || held.attempts >= ATTEMPTS_MAX || !holds(Rule::FailedIsTriedAgain);
                }
            }
            Event::WindowMissing { window, lease } => {
                let Some(&mut missing) = self.copy_mut(window, lease) else { return Ok(()) };
                self.drop_copies(|copy| copy.lease == lease, false);
                // Whoever lost it, or cannot be found where it says, may do so again.
                let (bytes, is_current) = (self.plan.bytes(window), self.distance(window) == Some(0));
                let may =
                    |id, worker: &Worker| id != missing.worker && (is_current || self.has_room(id, worker, bytes));
                if self.is_wanted(window)
                    && self.distance(window).is_some()
                    && let Some(worker) = self.idlest(may)
                {
                    self.make_room(worker, bytes);
                    self.grant(window, worker);
                }
            }
        }
        self.settle();
        Ok(())
    }

    /// What `worker` should hold, nearest to a reader first.
    pub fn leases(&self, worker: WorkerId) -> Vec<(WindowId, LeaseId)> {
        let held = self.copies_of(worker);
        let mut leases: Vec<_> = held.map(|(window, copy)| (self.distance(window), window, copy.lease)).collect();
        leases.sort_unstable_by_key(|&(distance, window, _)| (distance.unwrap_or(u64::MAX), window));
        leases.into_iter().map(|(_, window, lease)| (window, lease)).collect()
    }

    /// The copies of `window` that can be read from, the best first.
    pub fn copies(&self, window: WindowId) -> impl Iterator<Item = Copy> {
        let mut copies: Vec<Copy> = match self.windows.get(&window) {
            Some(held) => held.copies.iter().filter(|copy| copy.state >= CopyState::Counted).copied().collect(),
            None => Vec::new(),
        };
        copies.sort_by_key(|copy| std::cmp::Reverse(copy.state));
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
                Some(CopyState::Leased) => census[0] += 1,
                Some(CopyState::Counted) => census[1] += 1,
                Some(CopyState::Ready) => census[2] += 1,
                None => {}
            }
        }
        census
    }

    /// Bytes of the windows that `worker` holds or computes.
    pub fn held_bytes(&self, worker: WorkerId) -> u64 {
        self.copies_of(worker).map(|(_, copy)| copy.bytes).sum()
    }

    fn copies_of(&self, worker: WorkerId) -> impl Iterator<Item = (WindowId, &Copy)> {
        let all = self.windows.iter().flat_map(|(&window, held)| held.copies.iter().map(move |copy| (window, copy)));
        all.filter(move |(_, copy)| copy.worker == worker)
    }

    fn copy_mut(&mut self, window: WindowId, lease: LeaseId) -> Option<&mut Copy> {
        self.windows.get_mut(&window)?.copies.iter_mut().find(|copy| copy.lease == lease)
    }

    /// Removes copies; with `lost`, a window that was not even counted is a step nearer to being given up.
    fn drop_copies(&mut self, which: impl Fn(&Copy) -> bool, lost: bool) {
        for held in self.windows.values_mut() {
            let Some(&copy) = held.copies.iter().find(|copy| which(copy)) else { continue };
            held.copies.retain(|copy| !which(copy));
            if lost && copy.state == CopyState::Leased {
                held.attempts += 1;
                held.failed |= held.attempts >= ATTEMPTS_MAX;
            }
        }
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

    /// A second copy of a window that its reader has waited for too long, or cannot reach.
    fn lease_again(&mut self, window: WindowId) {
        let Some(held) = self.windows.get(&window) else { return };
        let is_suspected = |worker| self.workers.get(&worker).is_some_and(|worker| worker.suspected);
        if let [only] = held.copies[..]
            && (only.state < CopyState::Ready || is_suspected(only.worker) && holds(Rule::UnreachableIsLeasedAgain))
            && let Some(worker) = self.idlest(|id, _| id != only.worker)
        {
            self.make_room(worker, self.plan.bytes(window));
            self.speculative += 1;
            self.grant(window, worker);
        }
    }

    fn needs(reader: &Reader, window: WindowId) -> bool {
        reader.at <= window && window.epoch < reader.until_epoch
    }

    /// How often `window` is still to be taken: the sum of its readers' shares.
    pub fn shares(&self, window: WindowId) -> f64 {
        self.readers.values().filter(|reader| Self::needs(reader, window)).map(|reader| reader.share).sum()
    }

    /// How far `window` is ahead of the nearest reader that still needs it.
    fn distance(&self, window: WindowId) -> Option<u64> {
        self.readers
            .values()
            .filter(|reader| Self::needs(reader, window))
            // Only compared, so epochs may be taken as longer than any other distance.
            .map(|reader| {
                let epochs = window.epoch - reader.at.epoch;
                (epochs << 32) + u64::from(window.index) - u64::from(reader.at.index) * u64::from(epochs == 0)
            })
            .min()
    }

    /// Forgets what no reader needs, and leases what they need next.
    fn settle(&mut self) {
        if !self.keeps_all {
            let passed: Vec<_> = self.windows.keys().copied().filter(|&it| self.distance(it).is_none()).collect();
            for window in passed {
                self.windows.remove(&window);
            }
        }
        self.lease_current();
        self.lease_ahead();
    }

    fn is_wanted(&self, window: WindowId) -> bool {
        self.windows.get(&window).is_none_or(|held| held.copies.is_empty() && !held.failed)
    }

    fn lease_current(&mut self) {
        let current: Vec<_> = self.readers.values().filter(|r| r.at.epoch < r.until_epoch).map(|r| r.at).collect();
        for window in current {
            if self.is_wanted(window)
                && let Some(worker) = self.idlest(|id, worker| {
                    holds(Rule::CurrentIsLeasedOverTheLimit) || self.has_room(id, worker, self.plan.bytes(window))
                })
            {
                self.make_room(worker, self.plan.bytes(window));
                self.grant(window, worker);
            }
        }
    }

    fn lease_ahead(&mut self) {
        if self.workers.is_empty() {
            return;
        }
        for window in self.ahead() {
            let bytes = self.plan.bytes(window);
            let Some(worker) = self.idlest(|id, worker| self.has_room(id, worker, bytes)) else { break };
            self.grant(window, worker);
        }
    }

    /// Whether `worker` may compute another window ahead of the readers.
    fn has_room(&self, id: WorkerId, worker: &Worker, bytes: u64) -> bool {
        let (mut held, mut computing, mut holds) = (0, 0, 0);
        for (_, copy) in self.copies_of(id) {
            held += copy.bytes;
            holds += 1;
            computing += usize::from(copy.state == CopyState::Leased);
        }
        let fits = held + bytes <= worker.limits.memory_bytes || holds < worker.limits.windows_at_least;
        computing < worker.limits.computing && fits
    }

    /// The worker with the least to do.
    fn idlest(&self, may: impl Fn(WorkerId, &Worker) -> bool) -> Option<WorkerId> {
        let workers =
            self.workers.iter().filter(|(id, worker)| !worker.draining && !worker.suspected && may(**id, worker));
        workers
            .map(|(&id, _)| {
                let (mut unready, mut held) = (0, 0);
                for (_, copy) in self.copies_of(id) {
                    unready += u64::from(copy.state < CopyState::Ready);
                    held += copy.bytes;
                }
                (unready, held, id)
            })
            .min()
            .map(|(_, _, id)| id)
    }

    /// Windows ahead of the readers that nobody computes yet, nearest first.
    fn ahead(&self) -> Vec<WindowId> {
        let mut ahead = BTreeMap::new();
        for reader in self.readers.values() {
            let mut window = reader.at;
            for distance in 0..LOOKAHEAD_WINDOWS_MAX {
                if window.epoch >= reader.until_epoch {
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
        ahead.into_iter().map(|(_, window)| window).collect()
    }

    /// Forgets finished windows that no reader is at, the furthest away first, until `bytes` more fit.
    fn make_room(&mut self, worker: WorkerId, bytes: u64) {
        let Some(limit) = self.workers.get(&worker).map(|worker| worker.limits.memory_bytes) else { return };
        while self.held_bytes(worker) + bytes > limit {
            let furthest = self
                .copies_of(worker)
                .filter(|(_, copy)| copy.state != CopyState::Leased)
                .map(|(window, copy)| (self.distance(window).unwrap_or(u64::MAX), window, copy.lease))
                .filter(|&(distance, ..)| distance > 0)
                .max();
            let Some((_, window, lease)) = furthest else { break };
            self.windows.get_mut(&window).expect("it has a copy").copies.retain(|copy| copy.lease != lease);
        }
    }

    fn grant(&mut self, window: WindowId, worker: WorkerId) {
        let lease = self.next_lease;
        self.next_lease += 1;
        self.granted += 1;
        self.recomputed += u64::from(self.rows.contains_key(&window));
        self.hold(window, worker, lease);
    }

    fn hold(&mut self, window: WindowId, worker: WorkerId, lease: LeaseId) {
        let bytes = self.plan.bytes(window);
        let held = self.windows.entry(window).or_default();
        held.copies.push(Copy { worker, lease, state: CopyState::Leased, bytes });
    }

    /// Takes over a window that a worker was leased by a dispatcher that is gone, or before it was thought lost: if nobody
    /// else is leased it, or if it is computed here and not yet there.
    pub fn adopt(&mut self, worker: WorkerId, window: WindowId, lease: LeaseId, is_computed: bool) {
        let is_needed = self.keeps_all || self.distance(window).is_some();
        let is_behind = |copy: &Copy| is_computed && copy.worker != worker && copy.state == CopyState::Leased;
        let is_open = self.windows.get(&window).is_none_or(|held| !held.failed && held.copies.iter().all(is_behind));
        if is_needed && is_open && self.workers.contains_key(&worker) {
            self.hold(window, worker, lease);
        }
    }

    /// Whether the grant is in force.
    pub fn holds(&self, window: WindowId, lease: LeaseId) -> bool {
        self.windows.get(&window).is_some_and(|held| held.copies.iter().any(|copy| copy.lease == lease))
    }

    /// Whether the window of this grant is computed as far as memory allows.
    pub fn is_ready(&self, window: WindowId, lease: LeaseId) -> bool {
        let held = self.windows.get(&window);
        held.is_some_and(|held| held.copies.iter().any(|it| it.lease == lease && it.state == CopyState::Ready))
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

    /// How many windows were leased again although they had been computed before.
    pub fn recomputed(&self) -> u64 {
        self.recomputed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Epochs of `windows` windows of 10 bytes each.
    struct Even {
        windows: u32,
    }

    impl Plan for Even {
        fn windows(&self, _: u64) -> u32 {
            self.windows
        }

        fn bytes(&self, _: WindowId) -> u64 {
            10
        }
    }

    fn window(index: u32) -> WindowId {
        WindowId { epoch: 0, index }
    }

    /// With workers numbered from 1, each of which can take `memory_bytes` and computes two windows at a time.
    fn sequencer(windows: u32, workers: u64, memory_bytes: u64) -> Sequencer<Even> {
        let mut sequencer = Sequencer::new(Even { windows }, 100);
        for worker in 1..=workers {
            join(&mut sequencer, worker, memory_bytes);
        }
        sequencer
    }

    fn join(sequencer: &mut Sequencer<Even>, worker: WorkerId, memory_bytes: u64) {
        let limits = WorkerLimits { memory_bytes, computing: 2, windows_at_least: 1 };
        sequencer.handle(Event::WorkerJoined { worker, limits }).expect("pure");
    }

    fn read(sequencer: &mut Sequencer<Even>, reader: ReaderId, from: u32) {
        let event = Event::ReaderJoined { reader, at: window(from), until_epoch: 1, share: 1.0 };
        sequencer.handle(event).expect("pure");
    }

    fn advance(sequencer: &mut Sequencer<Even>, reader: ReaderId, to: u32) {
        sequencer.handle(Event::ReaderAdvanced { reader, to: window(to) }).expect("pure");
    }

    fn held(sequencer: &Sequencer<Even>, worker: WorkerId) -> Vec<u32> {
        sequencer.leases(worker).into_iter().map(|(window, _)| window.index).collect()
    }

    fn lease(sequencer: &Sequencer<Even>, worker: WorkerId, index: u32) -> LeaseId {
        let leases = sequencer.leases(worker);
        leases.into_iter().find(|(at, _)| *at == window(index)).expect("leased to this worker").1
    }

    fn count(sequencer: &mut Sequencer<Even>, worker: WorkerId, index: u32) {
        let lease = lease(sequencer, worker, index);
        let event = Event::WindowCounted { window: window(index), lease, rows: 5, bytes: 10 };
        sequencer.handle(event).expect("pure");
    }

    fn finish(sequencer: &mut Sequencer<Even>, worker: WorkerId, index: u32) {
        count(sequencer, worker, index);
        let lease = lease(sequencer, worker, index);
        sequencer.handle(Event::WindowReady { window: window(index), lease }).expect("pure");
    }

    fn fail(sequencer: &mut Sequencer<Even>, worker: WorkerId, index: u32, retry: bool) {
        let lease = lease(sequencer, worker, index);
        sequencer.handle(Event::WindowFailed { window: window(index), lease, retry }).expect("pure");
    }

    /// Computes all that is leased, and what is leased for it.
    fn finish_all(sequencer: &mut Sequencer<Even>, worker: WorkerId) {
        while let Some((window, _)) =
            sequencer.leases(worker).into_iter().find(|&(window, lease)| !sequencer.is_ready(window, lease))
        {
            finish(sequencer, worker, window.index);
        }
    }

    #[test]
    fn a_reader_gets_its_window_even_over_the_limit() {
        let mut sequencer = sequencer(5, 1, 0);
        read(&mut sequencer, 1, 2);
        assert_eq!(held(&sequencer, 1), [2]);
        finish(&mut sequencer, 1, 2);
        assert_eq!(held(&sequencer, 1), [2]);
        advance(&mut sequencer, 1, 3);
        assert_eq!(held(&sequencer, 1), [3]);
    }

    #[test]
    fn windows_ahead_are_leased_in_order_while_memory_lasts() {
        let mut sequencer = sequencer(9, 1, 35);
        read(&mut sequencer, 1, 0);
        assert_eq!(held(&sequencer, 1), [0, 1]);
        finish(&mut sequencer, 1, 0);
        assert_eq!(held(&sequencer, 1), [0, 1, 2]);
        finish(&mut sequencer, 1, 1);
        assert_eq!(held(&sequencer, 1), [0, 1, 2]);
        advance(&mut sequencer, 1, 1);
        assert_eq!(held(&sequencer, 1), [1, 2, 3]);
    }

    #[test]
    fn windows_ahead_go_to_whoever_has_the_least_to_do() {
        let mut sequencer = sequencer(9, 3, 1_000);
        read(&mut sequencer, 1, 0);
        let mut all: Vec<u32> = (1..=3).flat_map(|worker| held(&sequencer, worker)).collect();
        assert!((1..=3).all(|worker| held(&sequencer, worker).len() == 2));
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_reader_that_falls_behind_has_its_windows_computed_again() {
        let mut sequencer = sequencer(50, 1, 30);
        read(&mut sequencer, 1, 0);
        read(&mut sequencer, 2, 0);
        finish_all(&mut sequencer, 1);
        for index in 1..20 {
            advance(&mut sequencer, 1, index);
            finish_all(&mut sequencer, 1);
            let held: BTreeSet<_> = held(&sequencer, 1).into_iter().collect();
            assert!(held.contains(&index) && held.contains(&0));
            assert!(held.len() <= 3, "the limit holds three windows, got {held:?}");
        }
        assert_eq!(sequencer.recomputed(), 0);
        for index in 1..20 {
            advance(&mut sequencer, 2, index);
            finish_all(&mut sequencer, 1);
            assert!(held(&sequencer, 1).contains(&index));
        }
        assert!(sequencer.recomputed() > 0);
    }

    #[test]
    fn nothing_is_leased_past_the_last_epoch_and_nothing_kept_after_the_last_reader() {
        let mut sequencer = sequencer(3, 1, 1_000);
        read(&mut sequencer, 7, 2);
        assert_eq!(held(&sequencer, 1), [2]);
        sequencer.handle(Event::ReaderLeft { reader: 7 }).expect("pure");
        assert!(held(&sequencer, 1).is_empty() && !sequencer.is_read());
    }

    #[test]
    fn a_failed_window_is_computed_again_for_a_reader_that_comes_back() {
        let mut sequencer = sequencer(9, 1, 25);
        read(&mut sequencer, 1, 0);
        finish(&mut sequencer, 1, 0);
        fail(&mut sequencer, 1, 1, false);
        assert!(sequencer.has_failed(window(1)) && !held(&sequencer, 1).contains(&1));
        read(&mut sequencer, 2, 1);
        assert!(!sequencer.has_failed(window(1)) && held(&sequencer, 1).contains(&1));
        // A reader that was there all the time waits for the new try as well.
        advance(&mut sequencer, 1, 1);
        assert!(held(&sequencer, 1).contains(&1));
    }

    #[test]
    fn late_and_duplicate_reports_change_nothing() {
        let mut sequencer = sequencer(3, 1, 10);
        read(&mut sequencer, 1, 0);
        let old = lease(&sequencer, 1, 0);
        fail(&mut sequencer, 1, 0, true);
        let new = lease(&sequencer, 1, 0);
        assert_ne!(old, new);
        let before = sequencer.leases(1);
        let (here, elsewhere) = (window(0), window(2));
        for (window, lease) in [(here, old), (elsewhere, new)] {
            for event in [
                Event::WindowCounted { window, lease, rows: 5, bytes: 99 },
                Event::WindowReady { window, lease },
                Event::WindowFailed { window, lease, retry: false },
                Event::WindowMissing { window, lease },
            ] {
                sequencer.handle(event).expect("pure");
                assert_eq!(sequencer.leases(1), before);
            }
            assert!(sequencer.rows(window).is_none() && !sequencer.has_failed(window));
        }
        finish(&mut sequencer, 1, 0);
        finish(&mut sequencer, 1, 0);
        assert_eq!((sequencer.held_bytes(1), sequencer.census()), (10, [0, 0, 1, 0]));
    }

    #[test]
    fn a_late_message_does_not_move_a_reader_back() {
        let mut sequencer = sequencer(9, 1, 10);
        read(&mut sequencer, 1, 0);
        advance(&mut sequencer, 1, 4);
        advance(&mut sequencer, 1, 2);
        assert_eq!(sequencer.position(1), Some(window(4)));
        assert_eq!(held(&sequencer, 1), [4]);
    }

    #[test]
    fn a_lost_workers_windows_are_leased_to_others() {
        let mut sequencer = sequencer(4, 2, 1_000);
        read(&mut sequencer, 1, 0);
        finish_all(&mut sequencer, 1);
        finish_all(&mut sequencer, 2);
        sequencer.handle(Event::WorkerLeft { worker: 1 }).expect("pure");
        assert!(held(&sequencer, 1).is_empty());
        finish_all(&mut sequencer, 2);
        assert_eq!(held(&sequencer, 2), [0, 1, 2, 3]);
    }

    #[test]
    fn a_window_that_keeps_losing_its_workers_is_given_up() {
        let mut sequencer = sequencer(1, 0, 1_000);
        read(&mut sequencer, 1, 0);
        for worker in 1..=u64::from(ATTEMPTS_MAX) {
            assert!(!sequencer.has_failed(window(0)));
            join(&mut sequencer, worker, 1_000);
            assert_eq!(held(&sequencer, worker), [0]);
            sequencer.handle(Event::WorkerLeft { worker }).expect("pure");
        }
        assert!(sequencer.has_failed(window(0)));
        join(&mut sequencer, 99, 1_000);
        assert!(held(&sequencer, 99).is_empty());
    }

    #[test]
    fn workers_lost_after_they_counted_a_window_do_not_speak_against_it() {
        let mut sequencer = sequencer(1, 0, 1_000);
        read(&mut sequencer, 1, 0);
        for worker in 1..=u64::from(3 * ATTEMPTS_MAX) {
            join(&mut sequencer, worker, 1_000);
            finish(&mut sequencer, worker, 0);
            sequencer.handle(Event::WorkerLeft { worker }).expect("pure");
        }
        assert!(!sequencer.has_failed(window(0)));
    }

    #[test]
    fn a_draining_worker_keeps_what_can_be_read_and_begins_nothing() {
        let mut sequencer = sequencer(4, 2, 1_000);
        read(&mut sequencer, 1, 0);
        finish(&mut sequencer, 1, 0);
        sequencer.handle(Event::WorkerDraining { worker: 1 }).expect("pure");
        join(&mut sequencer, 1, 1_000);
        finish_all(&mut sequencer, 2);
        assert_eq!((held(&sequencer, 1), held(&sequencer, 2)), (vec![0], vec![1, 2, 3]));
        advance(&mut sequencer, 1, 1);
        assert!(held(&sequencer, 1).is_empty());
    }

    #[test]
    fn a_window_that_is_waited_for_is_leased_a_second_time_and_the_first_to_be_ready_is_kept() {
        let mut sequencer = sequencer(1, 2, 1_000);
        read(&mut sequencer, 1, 0);
        for _ in 0..3 {
            sequencer.handle(Event::ReaderStalled { window: window(0) }).expect("pure");
            assert_eq!((held(&sequencer, 1), held(&sequencer, 2)), (vec![0], vec![0]));
        }
        count(&mut sequencer, 1, 0);
        finish(&mut sequencer, 2, 0);
        assert_eq!((held(&sequencer, 1), held(&sequencer, 2)), (vec![], vec![0]));
        sequencer.handle(Event::ReaderStalled { window: window(0) }).expect("pure");
        assert!(held(&sequencer, 1).is_empty(), "what is ready only has to be fetched");
    }

    #[test]
    fn a_window_whose_worker_cannot_be_reached_is_leased_a_second_time() {
        let mut sequencer = sequencer(1, 2, 1_000);
        read(&mut sequencer, 1, 0);
        finish(&mut sequencer, 1, 0);
        sequencer.handle(Event::WorkerSuspected { worker: 1 }).expect("pure");
        sequencer.handle(Event::ReaderStalled { window: window(0) }).expect("pure");
        finish(&mut sequencer, 2, 0);
        let copies: BTreeSet<_> = sequencer.copies(window(0)).map(|copy| copy.worker).collect();
        assert_eq!(copies, BTreeSet::from([1, 2]));
    }

    #[test]
    fn a_suspected_worker_gets_nothing_new_until_it_is_heard_of() {
        let mut sequencer = sequencer(9, 1, 20);
        read(&mut sequencer, 1, 0);
        sequencer.handle(Event::WorkerSuspected { worker: 1 }).expect("pure");
        advance(&mut sequencer, 1, 5);
        assert!(held(&sequencer, 1).is_empty());
        join(&mut sequencer, 1, 20);
        assert_eq!(held(&sequencer, 1), [5, 6]);
    }

    #[test]
    fn a_missing_window_is_leased_to_another_worker_if_there_is_one() {
        let mut sequencer = sequencer(1, 2, 1_000);
        read(&mut sequencer, 1, 0);
        finish(&mut sequencer, 1, 0);
        let missing = lease(&sequencer, 1, 0);
        sequencer.handle(Event::WindowMissing { window: window(0), lease: missing }).expect("pure");
        assert_eq!((held(&sequencer, 1), held(&sequencer, 2)), (vec![], vec![0]));
        sequencer.handle(Event::WorkerLeft { worker: 1 }).expect("pure");
        let missing = lease(&sequencer, 2, 0);
        sequencer.handle(Event::WindowMissing { window: window(0), lease: missing }).expect("pure");
        assert_ne!(lease(&sequencer, 2, 0), missing);
    }

    #[test]
    fn windows_of_a_dispatcher_that_is_gone_are_taken_over_while_all_is_kept() {
        let mut sequencer = sequencer(9, 3, 10);
        sequencer.set_keeps_all(true);
        sequencer.adopt(1, window(3), 7, true);
        sequencer.adopt(9, window(4), 8, true);
        assert_eq!(sequencer.leases(1), [(window(3), 7)]);
        assert!(held(&sequencer, 9).is_empty(), "nobody knows that worker");
        // Another has the same window, and nobody needs it twice; but what is not computed yet may come from elsewhere.
        sequencer.adopt(2, window(3), 9, false);
        assert!(held(&sequencer, 2).is_empty());
        sequencer.adopt(2, window(3), 9, true);
        finish(&mut sequencer, 2, 3);
        assert_eq!((held(&sequencer, 1), sequencer.leases(2)), (vec![], vec![(window(3), 9)]));
        sequencer.adopt(3, window(3), 10, true);
        assert!(held(&sequencer, 3).is_empty());
        read(&mut sequencer, 1, 3);
        sequencer.set_keeps_all(false);
        assert!(held(&sequencer, 2).contains(&3));
        advance(&mut sequencer, 1, 4);
        assert!(!held(&sequencer, 2).contains(&3));
    }

    #[test]
    fn what_nobody_needs_is_not_taken_over() {
        let mut sequencer = sequencer(9, 1, 10);
        sequencer.adopt(1, window(3), 7, true);
        read(&mut sequencer, 1, 4);
        sequencer.adopt(1, window(3), 7, true);
        assert_eq!(held(&sequencer, 1), [4]);
    }

    #[test]
    fn a_window_with_other_rows_than_before_is_an_error() {
        let mut sequencer = sequencer(1, 1, 10);
        read(&mut sequencer, 1, 0);
        count(&mut sequencer, 1, 0);
        let lease = lease(&sequencer, 1, 0);
        let event = Event::WindowCounted { window: window(0), lease, rows: 6, bytes: 10 };
        assert_eq!(sequencer.handle(event), Err(Impure { window: window(0), rows: (5, 6) }));
        assert_eq!(sequencer.rows(window(0)), Some(5));
    }

    #[test]
    fn shares_say_how_often_a_window_is_still_to_be_taken() {
        let mut sequencer = sequencer(9, 1, 10);
        read(&mut sequencer, 1, 0);
        let rank = Event::ReaderJoined { reader: 2, at: window(2), until_epoch: 1, share: 0.25 };
        sequencer.handle(rank).expect("pure");
        assert_eq!((sequencer.shares(window(1)), sequencer.shares(window(2))), (1.0, 1.25));
    }
}
