//! The world of the nodes: time, the network, and a trace of all events.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use super::faults::{Fault, Faults};
use super::liar::Overheard;
use super::poison::Poison;
use super::random::{SeededRandom, hash};
use super::reader::{PATIENCE_MS, SILENCE_MS};
use super::transport::FlowControl;
use super::worker::SHORT;
use super::writer::{Target, WritingState};
use crate::changes::CHANGES_MAX;
use crate::messages::{ReaderReply, ReaderSync, Report, WorkerReply, WorkerSync};
use crate::{ClaimAnswer, ClaimMessage, Ended, Fragment, Millis, Open, Plan, WindowId, WindowKey, WorkerId};

/// Index of a node: dispatchers first, then workers, then trainers.
pub(super) type NodeId = usize;
pub(super) const DISPATCHERS: usize = 3;
pub(super) const WORKERS: usize = 8;
pub(super) const READERS: usize = 3;
pub(super) const RANKS: usize = 4;
/// The client that lies.
pub(super) const LIAR: NodeId = DISPATCHERS + WORKERS + READERS * RANKS;
/// The client that asks for a job that writes files.
pub(super) const WRITER: NodeId = LIAR + 1;
/// No message is on its way for this long.
const CALM_MS: Millis = 8_000;
const NODES: usize = WRITER + 1;

pub(super) fn worker_node(worker: usize) -> NodeId {
    DISPATCHERS + worker
}

pub(super) fn trainer_node(reader: usize, rank: usize) -> NodeId {
    DISPATCHERS + WORKERS + reader * RANKS + rank
}

/// The role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Dispatcher(usize),
    Worker(usize),
    Trainer(usize, usize),
    Liar,
    Writer,
}

pub(super) fn role(node: NodeId) -> Role {
    if node < DISPATCHERS {
        Role::Dispatcher(node)
    } else if node < DISPATCHERS + WORKERS {
        Role::Worker(node - DISPATCHERS)
    } else if node == LIAR {
        Role::Liar
    } else if node == WRITER {
        Role::Writer
    } else {
        let trainer = node - DISPATCHERS - WORKERS;
        Role::Trainer(trainer / RANKS, trainer % RANKS)
    }
}

/// A process at a node. A restarted node has another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Process {
    pub(super) node: NodeId,
    pub(super) generation: u32,
}

/// Rows, as they are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SimulatedRows {
    pub(super) feed: usize,
    pub(super) window: WindowId,
    pub(super) rows: std::ops::Range<u64>,
    /// Each row with its [content](super::content), without bad rows.
    pub(super) contents: Vec<(u64, u64)>,
}

/// Messages between nodes.
#[derive(Clone, Debug)]
pub(super) enum NodeMessage {
    /// A worker's message, with the digest of what its build computes.
    WorkerSync {
        probe: u64,
        sync: WorkerSync,
    },
    /// The answer to message `call`. It may name a newer message in `reply.seq`.
    WorkerReply {
        call: u64,
        reply: WorkerReply,
    },
    /// Another worker took the address.
    Replaced,
    /// The worker is of another build.
    OtherBuild,
    /// A reader's message, with its secret key.
    ReaderSync {
        secret: Arc<str>,
        sync: Box<ReaderSync>,
    },
    /// The session belongs to another reader.
    Denied,
    ReaderReply {
        call: u64,
        reply: ReaderReply,
    },
    ClaimSync(Box<ClaimMessage>),
    ClaimAnswer {
        call: u64,
        answer: Box<ClaimAnswer>,
    },
    /// Asks for the job that writes files.
    WritingSync {
        call: u64,
    },
    WritingReply {
        call: u64,
        how: WritingState,
    },
    /// The reader may not read yet, because processes of its job's earlier life may still read.
    Wait {
        call: u64,
    },
    /// A newer process of the same rank replaced this one, or the ranks of its job do not fit.
    Superseded,
    /// A worker's connection broke.
    HungUp(WorkerId),
    /// No process listens at the node.
    Unreachable,
    Open {
        stream: u64,
        /// The process that owns the connection.
        owner: Process,
        feed: Arc<str>,
        open: Open,
    },
    Rows {
        stream: u64,
        fragment: Fragment<SimulatedRows>,
    },
    Ended {
        stream: u64,
        how: Ended,
    },
    /// A fragment was taken, so its bytes may be sent again.
    Taken {
        stream: u64,
    },
    Close {
        stream: u64,
    },
}

/// Timers of a process.
#[derive(Clone, Debug)]
pub(super) enum Timer {
    /// A long poll may be due.
    Polls,
    /// The message is given up if it is still unanswered.
    Unanswered(u64),
    /// A window reaches its next stage.
    Computed { key: WindowKey, task: u64 },
    /// The training loop asks for its next batch, or a stream can be opened again or is silent.
    Pump,
}

/// An event of the world.
#[derive(Clone, Debug)]
pub(super) enum WorldEvent {
    NodeMessage {
        from: Process,
        /// Any process at a node, or only one generation.
        to: NodeId,
        generation: Option<u32>,
        message: NodeMessage,
    },
    Timer {
        process: Process,
        timer: Timer,
    },
    /// Starts a node, unless it is up.
    Start(NodeId),
    /// Injects a fault into a node.
    Blow,
    /// Ends the faults.
    Heal,
}

/// The plan of a simulated feed.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimulatedPlan {
    pub(super) seed: u64,
    pub(super) windows_max: u64,
    pub(super) rows_max: u64,
    /// How many of ten windows are empty.
    pub(super) empty: u64,
    /// How many of sixteen rows are bad.
    pub(super) bad: u64,
}

/// Bytes of a row.
pub(super) const ROW_BYTES: u64 = 10;

impl SimulatedPlan {
    pub(super) fn rows(&self, window: WindowId) -> u64 {
        let drawn = hash(&[self.seed, 2, window.epoch, u64::from(window.index)]);
        match drawn % 10 < self.empty {
            true => 0,
            false => 1 + (drawn >> 8) % self.rows_max,
        }
    }

    pub(super) fn computed_bytes(&self, window: WindowId) -> u64 {
        self.rows(window) * ROW_BYTES
    }
}

impl Plan for SimulatedPlan {
    fn windows(&self, epoch: u64) -> u32 {
        1 + (hash(&[self.seed, 1, epoch]) % self.windows_max) as u32
    }

    fn bytes(&self, _: WindowId) -> u64 {
        self.rows_max * ROW_BYTES
    }
}

#[derive(Clone, Copy)]
struct Wall {
    until: Millis,
    one_way: bool,
}

/// Time, network and randomness.
pub(super) struct World {
    pub(super) now: Millis,
    pub(super) random: SeededRandom,
    pub(super) faults: Faults,
    pub(super) plans: Vec<SimulatedPlan>,
    pub(super) feeds: Vec<Arc<str>>,
    /// For each process that resumed from a token, the newest process of each rank that the token names.
    pub(super) named: BTreeMap<u64, BTreeMap<u64, u64>>,
    /// How often dispatchers were started.
    pub(super) dispatchers_started: u64,
    /// When each dispatcher was started, if it is up.
    pub(super) up_since: [Option<Millis>; DISPATCHERS],
    /// The target of the job that writes files. The job is the last of `feeds`, and is not read.
    pub(super) target: Option<Target>,
    /// What a client may learn of others.
    pub(super) overheard: Overheard,
    /// The number of dispatchers, one of which may be down.
    pub(super) dispatchers: usize,
    /// Whether each process lists the dispatchers in an order of its own.
    pub(super) has_own_lists: bool,
    /// Whether ranks have many streams to few workers: windows are many, and computed far ahead.
    pub(super) has_many_streams: bool,
    /// The bytes in flight of all streams.
    pub(super) flow: FlowControl,
    /// Whether a reader can no longer reach some worker.
    pub(super) is_cut: bool,
    /// The window that ends its workers.
    pub(super) poison: Option<Poison>,
    /// Whether there ever was one.
    pub(super) was_poisoned: bool,
    /// How often a worker ended, lost its address to another, or could not reach the others for a while.
    pub(super) workers_out_of_contact: u32,
    /// Whether a stream ends when its window is dropped.
    pub(super) drops_end_streams: bool,
    /// The node that serves at each address.
    addresses: [NodeId; WORKERS],
    queue: BinaryHeap<Reverse<(Millis, u64, usize)>>,
    slots: Vec<Option<WorldEvent>>,
    free: Vec<usize>,
    scheduled: u64,
    walls: [[Wall; NODES]; NODES],
    paused: [Millis; NODES],
    next_id: u64,
    latency: u64,
    hash: u64,
    trace: Option<Vec<String>>,
    violation: Option<String>,
}

impl World {
    pub(super) fn new(seed: u64, traced: bool) -> Self {
        let mut random = SeededRandom::new(seed);
        let mut faults = Faults::draw(&mut random);
        let feeds: Vec<Arc<str>> = match random.chance(200) {
            true => vec!["a".into(), "b".into()],
            false => vec!["a".into()],
        };
        let has_many_streams = random.chance(150);
        if has_many_streams && random.chance(500) {
            // Streams must not stop each other without any fault.
            faults.until = faults.until.min(500);
        }
        let plan = |random: &mut SeededRandom| SimulatedPlan {
            seed: random.next(),
            windows_max: random.pick(if has_many_streams { &[24] } else { &[1, 2, 4, 6, 8, 12, 12] }),
            rows_max: random.pick(&[1, 5, 20, 40]),
            empty: random.pick(&[0, 0, 1, 3, 7]),
            bad: random.pick(&[0, 0, 1, 8]),
        };
        let plans: Vec<SimulatedPlan> = feeds.iter().map(|_| plan(&mut random)).collect();
        // Rows that come one at a time would take long in large windows.
        let is_small = plans.iter().all(|plan| plan.rows_max <= 5);
        let window_rows = random.pick(if is_small { &[1, 3, 24] } else { &[3, 3, 24] });
        Self {
            now: 0,
            named: BTreeMap::new(),
            dispatchers_started: 0,
            target: None,
            overheard: Overheard::default(),
            up_since: [None; DISPATCHERS],
            dispatchers: random.pick(&[1, 1, 1, 2, 2, DISPATCHERS]),
            has_own_lists: random.chance(500),
            has_many_streams,
            is_cut: false,
            poison: None,
            was_poisoned: false,
            workers_out_of_contact: 0,
            flow: FlowControl::new(window_rows * ROW_BYTES),
            drops_end_streams: random.chance(500),
            latency: random.pick(&[2, 5, 30]),
            random,
            faults,
            plans,
            feeds,
            addresses: [0; WORKERS],
            queue: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            scheduled: 0,
            walls: [[Wall { until: 0, one_way: false }; NODES]; NODES],
            paused: [0; NODES],
            next_id: 0,
            hash: seed,
            trace: traced.then(Vec::new),
            violation: None,
        }
    }

    /// Returns the number of feeds that are read.
    pub(super) fn read_feeds(&self) -> u64 {
        (self.feeds.len() - usize::from(self.target.is_some())) as u64
    }

    pub(super) fn feed(&self, id: &str) -> usize {
        self.feeds.iter().position(|feed| **feed == *id).expect("a feed of this world")
    }

    /// Records that a worker serves at an address.
    pub(super) fn serve(&mut self, address: usize, node: NodeId) {
        self.addresses[address] = node;
    }

    /// Returns the node that serves at an address, as any process.
    pub(super) fn at(&self, address: usize) -> Process {
        Process { node: self.addresses[address], generation: 0 }
    }

    /// Returns a unique number.
    pub(super) fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Returns a secret that no other process knows.
    pub(super) fn secret(&mut self) -> Arc<str> {
        format!("{:016x}", self.random.next()).into()
    }

    /// Returns whether faults are injected now.
    pub(super) fn is_faulty(&self) -> bool {
        self.now < self.faults.until
    }

    /// Returns whether a fault of this rate occurs now, and counts it if so.
    pub(super) fn strikes(&mut self, rate: u64, fault: Fault) -> bool {
        let strikes = rate > 0 && self.is_faulty() && self.random.chance(rate);
        if strikes {
            self.faults.fired(fault);
        }
        strikes
    }

    pub(super) fn schedule(&mut self, at: Millis, event: WorldEvent) {
        self.scheduled += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(event);
        self.queue.push(Reverse((at, self.scheduled, slot)));
    }

    pub(super) fn timer(&mut self, at: Millis, process: Process, timer: Timer) {
        self.schedule(at.max(self.now), WorldEvent::Timer { process, timer });
    }

    /// Returns the next event. Events of a paused node wait.
    pub(super) fn next(&mut self) -> Option<WorldEvent> {
        loop {
            let Reverse((at, _, slot)) = self.queue.pop()?;
            let event = self.slots[slot].take().expect("each event is scheduled once");
            self.free.push(slot);
            self.now = at;
            let (node, code) = match &event {
                WorldEvent::NodeMessage { to, .. } => (*to, 1),
                WorldEvent::Timer { process, .. } => (process.node, 2),
                WorldEvent::Start(_) | WorldEvent::Blow | WorldEvent::Heal => (NODES, 3),
            };
            if let Some(&until) = self.paused.get(node).filter(|&&until| until > at) {
                self.schedule(until, event);
                continue;
            }
            self.note(&[at, node as u64, code]);
            if self.trace.is_some() {
                self.trace_event(&event);
            }
            return Some(event);
        }
    }

    fn trace_event(&mut self, event: &WorldEvent) {
        match event {
            WorldEvent::NodeMessage { from, to, message, .. } => {
                let text = format!("{:?}#{} -> {:?}: {message:?}", role(from.node), from.generation, role(*to));
                self.say(|| text);
            }
            WorldEvent::Timer { process, timer } => {
                let text = format!("{:?}#{}: {timer:?}", role(process.node), process.generation);
                self.say(|| text);
            }
            WorldEvent::Start(node) => {
                let text = format!("start {:?}", role(*node));
                self.say(|| text);
            }
            WorldEvent::Blow | WorldEvent::Heal => {
                let text = format!("{event:?}");
                self.say(|| text);
            }
        }
    }

    fn latency(&mut self) -> Millis {
        let high = self.latency;
        self.random.between(0, high)
    }

    /// Sends a message that may be lost, late or duplicated.
    pub(super) fn send(&mut self, from: Process, to: NodeId, generation: Option<u32>, message: NodeMessage) {
        let changes = match &message {
            NodeMessage::WorkerSync { sync, .. } => sync.held.changed.len(),
            NodeMessage::WorkerReply { reply, .. } => reply.leases.changed.len(),
            _ => 0,
        };
        if changes > CHANGES_MAX {
            self.violated(|| format!("a message has {changes} changes, more than {CHANGES_MAX}"));
        }
        if self.is_walled(from.node, to) || self.strikes(self.faults.rates.lost, Fault::Lost) {
            return;
        }
        let mut at = self.now + self.latency();
        if self.strikes(self.faults.rates.late, Fault::Late) {
            at += self.random.between(100, 4_000);
        }
        if self.strikes(self.faults.rates.duplicated, Fault::Duplicated) {
            let again = at + self.random.pick(&[0, 10, 300, 3_000]);
            self.schedule(again, WorldEvent::NodeMessage { from, to, generation, message: message.clone() });
        }
        self.schedule(at, WorldEvent::NodeMessage { from, to, generation, message });
    }

    /// Sends a message of a stream, to arrive no earlier than `clock`. Returns `false` if it is lost, and with it the
    /// rest of the stream.
    pub(super) fn stream(&mut self, from: Process, to: Process, clock: &mut Millis, message: NodeMessage) -> bool {
        if self.is_walled(from.node, to.node) {
            return false;
        }
        *clock = (*clock).max(self.now + self.latency());
        let generation = (to.generation > 0).then_some(to.generation);
        self.schedule(*clock, WorldEvent::NodeMessage { from, to: to.node, generation, message });
        true
    }

    fn is_walled(&mut self, from: NodeId, to: NodeId) -> bool {
        let wall = self.walls[from][to];
        if wall.until <= self.now {
            return false;
        }
        self.faults.fired(if wall.one_way { Fault::PartitionedOneWay } else { Fault::Partitioned });
        true
    }

    /// Blocks messages from `from` to `to` until `until`.
    pub(super) fn wall(&mut self, from: NodeId, to: NodeId, until: Millis, one_way: bool) {
        let until = until.max(self.walls[from][to].until);
        self.walls[from][to] = Wall { until, one_way };
        if matches!(role(to), Role::Dispatcher(_)) {
            self.out_of_contact(from);
        }
    }

    pub(super) fn pause(&mut self, node: NodeId, until: Millis) {
        self.paused[node] = until;
        self.out_of_contact(node);
    }

    /// Records that a node, if it is a worker, may seem lost.
    pub(super) fn out_of_contact(&mut self, node: NodeId) {
        self.workers_out_of_contact += u32::from(matches!(role(node), Role::Worker(_)));
    }

    pub(super) fn heal(&mut self) {
        for wall in self.walls.iter_mut().flatten().filter(|wall| wall.until < Millis::MAX) {
            wall.until = 0;
        }
        self.paused = [self.now; NODES];
        self.poison = None;
    }

    /// Adds numbers to the trace's hash.
    pub(super) fn note(&mut self, numbers: &[u64]) {
        self.hash = hash(&[self.hash, hash(numbers)]);
    }

    pub(super) fn say(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>7} {}", self.now, text().replace("WindowId { epoch: ", "{").replace("index: ", "")));
        }
    }

    /// Records that a reader failed. No rows may be missing for long when all nodes and connections work.
    pub(super) fn failed(&mut self, report: &Report) {
        self.judge_given_up(report);
        let is_late = self.now > self.faults.until + SILENCE_MS + PATIENCE_MS + 2_000;
        if is_late && !self.is_cut && report.message.starts_with("no rows of window") {
            self.violated(|| format!("stuck: {}", report.message));
        }
        if report.message == SHORT {
            self.violated(|| "a shortage, which passes, ended a reader".to_owned());
        }
    }

    /// Records that a call to a dispatcher failed. Calls do not fail when no fault has occurred for a while.
    pub(super) fn call_failed(&mut self, dispatcher: NodeId) {
        let is_up = self.up_since[dispatcher].is_some_and(|since| self.now > since + CALM_MS);
        if is_up && self.now > self.faults.until + CALM_MS {
            self.violated(|| format!("a call to dispatcher {dispatcher}, which is up, failed"));
        }
    }

    /// Records a violation.
    pub(super) fn violated(&mut self, text: impl FnOnce() -> String) {
        if self.violation.is_none() {
            let text = text();
            self.say(|| format!("VIOLATED: {text}"));
            self.violation = Some(text);
        }
    }

    pub(super) fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn trace(&mut self) -> Vec<String> {
        self.trace.take().unwrap_or_default()
    }
}
