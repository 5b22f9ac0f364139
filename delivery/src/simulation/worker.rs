//! A worker's process, which computes its leased windows, a few at a time, and serves their rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::contact::Contact;
use super::content::{BUILD, content, probe};
use super::faults::Fault;
use super::world::{NodeId, NodeMessage, Process, ROW_BYTES, SimulatedRows, Timer, World};
use crate::changes::Followed;
use crate::messages::{Granted, HeldState, Report, WorkerSync};
use crate::rules::{Rule, holds};
use crate::{Ended, ErrorKind, Fragment, Lease, Millis, Open, Plan, WindowKey, Worker, WorkerAction, WorkerProfile};

/// The most windows that a worker computes at a time.
pub(super) const COMPUTING_MAX: usize = 3;
/// A worker that has held no window for this long turns to another dispatcher.
const IDLE_MS: Millis = 4_000;
/// A draining worker leaves after this time at the latest.
const DRAIN_MS: Millis = 5_000;

/// What a worker that runs short says.
pub(super) const SHORT: &str = "no room for a row";

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TaskStage {
    Queued,
    Computing,
    Counted,
    Ready,
    Stored,
    Failed,
}

struct WindowTask {
    id: u64,
    stage: TaskStage,
}

struct Serving {
    key: WindowKey,
    open: Open,
    to: Process,
    /// The process that owns the connection.
    owner: Process,
    row: u64,
    /// The arrival time of the last message.
    clock: Millis,
}

struct WorkerState {
    worker: Worker,
    contact: Contact,
    computing: usize,
    /// How many times slower it is than other workers.
    slow: u64,
    tasks: BTreeMap<WindowKey, WindowTask>,
    streams: BTreeMap<u64, Serving>,
    draining_since: Option<Millis>,
    /// Whether to tell the dispatcher at once.
    has_news: bool,
    /// The newest message that was answered, the version of its newest answer, and what it granted.
    newest: ((u64, u64), Followed<WindowKey, Granted>),
    refuses: Option<usize>,
    build: u64,
    probe: u64,
}

pub(super) struct WorkerNode {
    pub(super) process: Process,
    /// The index of the address at which it serves.
    pub(super) address: usize,
    state: Option<WorkerState>,
}

pub(super) fn address(worker: usize) -> String {
    format!("w{worker}")
}

/// Returns the index of this address.
pub(super) fn at_address(address: &str) -> usize {
    address[1..].parse().expect("an address of `address`")
}

fn report(kind: ErrorKind, message: &str) -> Report {
    Report { kind, message: message.into(), hint: None, retry: kind.may_pass() }
}

impl WorkerNode {
    pub(super) fn new(node: NodeId, address: usize) -> Self {
        Self { process: Process { node, generation: 0 }, address, state: None }
    }

    pub(super) fn is_up(&self) -> bool {
        self.state.is_some()
    }

    pub(super) fn start(&mut self, world: &mut World, may_refuse: bool) {
        self.process.generation += 1;
        world.serve(self.address, self.process.node);
        let window = world.plans.iter().map(|plan| plan.rows_max * ROW_BYTES).max().unwrap_or(1);
        let memory_bytes = match world.random.below(6) {
            _ if world.has_many_streams => 1 << 40,
            0..3 => 0,
            3 => world.random.between(1, 2 * window),
            4 => world.random.between(1, 8 * window),
            _ => 1 << 40,
        };
        let computing = world.random.between(1, COMPUTING_MAX as u64) as usize;
        let worker = world.random.next() >> 1;
        let refuses = may_refuse && world.strikes(world.faults.rates.refused, Fault::Refused);
        let build = if world.strikes(world.faults.rates.other_build, Fault::OtherBuild) { 1 } else { BUILD };
        self.state = Some(WorkerState {
            worker: Worker::new(WorkerProfile { worker, address: address(self.address), memory_bytes, computing }),
            contact: Contact::new(world),
            computing,
            slow: world.random.pick(&[1, 1, 1, 10]),
            tasks: BTreeMap::new(),
            streams: BTreeMap::new(),
            draining_since: None,
            has_news: false,
            newest: ((0, 0), Followed::new()),
            refuses: refuses.then(|| world.random.below(world.read_feeds()) as usize),
            build,
            probe: probe(build),
        });
        self.sync(world);
    }

    /// Ends the process. With `noticed`, its connections are closed; otherwise its peers wait.
    pub(super) fn kill(&mut self, world: &mut World, noticed: bool) {
        let Some(mut state) = self.state.take() else { return };
        world.out_of_contact(self.process.node);
        if noticed {
            let hung_up = NodeMessage::HungUp(state.worker.sync().worker);
            world.send(self.process, state.contact.dispatcher(), None, hung_up);
            for (&stream, serving) in &mut state.streams {
                world.stream(
                    self.process,
                    serving.to,
                    &mut serving.clock,
                    NodeMessage::Ended { stream, how: Ended::Lost },
                );
            }
        }
        self.process.generation += 1;
    }

    pub(super) fn drain(&mut self, world: &mut World) {
        let now = world.now;
        let Some(state) = &mut self.state else { return };
        if state.draining_since.is_none() {
            state.draining_since = Some(now);
            state.worker.drain();
            self.sync(world);
        }
    }

    /// Tells the dispatcher the news.
    fn sync(&mut self, world: &mut World) {
        if let Some(state) = &mut self.state {
            state.has_news = true;
            self.call(world);
        }
    }

    /// Sends a message if there is room for one.
    fn call(&mut self, world: &mut World) {
        let Some(state) = &mut self.state else { return };
        let has_news = state.has_news && !state.worker.is_in_pass();
        if !state.contact.may_call(has_news) {
            return;
        }
        state.has_news = false;
        let sync = state.worker.sync();
        state.contact.sent(world, self.process, sync.seq);
        let message = NodeMessage::WorkerSync { probe: state.probe, sync };
        world.send(self.process, state.contact.dispatcher(), None, message);
    }

    /// Sends the last message, and ends the process.
    fn leave(&mut self, world: &mut World) {
        if let Some(state) = &mut self.state {
            let sync = WorkerSync { leaving: true, ..state.worker.sync() };
            let message = NodeMessage::WorkerSync { probe: state.probe, sync };
            world.send(self.process, state.contact.dispatcher(), None, message);
        }
        self.kill(world, true);
    }

    pub(super) fn unanswered(&mut self, world: &mut World, seq: u64) {
        let Some(state) = &mut self.state else { return };
        if state.contact.unanswered(world, seq) {
            self.call(world);
        }
    }

    pub(super) fn handle(&mut self, world: &mut World, from: Process, message: NodeMessage) {
        if self.state.is_none() {
            if let NodeMessage::Open { stream, .. } = message
                && world.random.chance(500)
            {
                let mut clock = 0;
                world.stream(self.process, from, &mut clock, NodeMessage::Ended { stream, how: Ended::Lost });
            }
            return;
        }
        let Some(state) = &mut self.state else { return };
        match message {
            NodeMessage::WorkerReply { call, reply } => {
                state.contact.answered(world, call);
                let actions = state.worker.reply(&reply);
                let age = (reply.seq, reply.version);
                if age >= state.newest.0 {
                    state.newest.0 = age;
                    state.newest.1.take(&reply.leases);
                }
                let told = state.newest.1.values();
                let follows = |lease: &Lease| told.get(&lease.key).is_some_and(|it| it.lease == lease.lease);
                if state.worker.leases().len() != told.len() || !state.worker.leases().iter().all(follows) {
                    world.violated(|| "a worker does not follow the newest answer".to_owned());
                }
                state.contact.judge(world, !state.worker.is_empty() || reply.has_waiting_ranks, IDLE_MS);
                self.act(world, actions);
                let Some(state) = &mut self.state else { return };
                let is_over = |since| state.worker.is_empty() || world.now >= since + DRAIN_MS;
                if state.draining_since.is_some_and(is_over) {
                    self.leave(world);
                } else {
                    state.has_news |= state.worker.has_more();
                    self.call(world);
                }
            }
            NodeMessage::Replaced => {
                world.faults.fired(Fault::SentAway);
                self.kill(world, true);
            }
            NodeMessage::OtherBuild => self.kill(world, true),
            NodeMessage::Unreachable => {
                state.contact.unreachable(world, from.node);
                self.call(world);
            }
            NodeMessage::Open { stream, owner, feed, open } => {
                let key = (feed, open.window);
                let has = |stage| (TaskStage::Counted..=TaskStage::Ready).contains(&stage);
                if state.tasks.get(&key).is_some_and(|task| has(task.stage)) {
                    let row = open.from_row;
                    state.streams.insert(stream, Serving { key, open, to: from, owner, row, clock: 0 });
                    world.flow.open(stream, owner, self.process);
                    self.serve(world, stream);
                } else {
                    world.faults.fired(Fault::Missing);
                    let mut clock = 0;
                    world.stream(self.process, from, &mut clock, NodeMessage::Ended { stream, how: Ended::Missing });
                }
            }
            NodeMessage::Taken { stream } => {
                if let Some(serving) = state.streams.get(&stream) {
                    let owner = serving.owner;
                    self.serve_all(world, owner);
                }
            }
            NodeMessage::Close { stream } => {
                if let Some(Serving { owner, .. }) = state.streams.remove(&stream) {
                    self.serve_all(world, owner);
                }
            }
            _ => {}
        }
    }

    fn act(&mut self, world: &mut World, actions: Vec<WorkerAction>) {
        let Some(state) = &mut self.state else { return };
        let mut refused = false;
        for action in actions {
            match action {
                WorkerAction::Start(key) => {
                    let feed = world.feed(&key.0);
                    if !world.plans[feed].has(key.1, u64::MAX) {
                        world.violated(|| format!("the feed has no window {:?}", key.1));
                    }
                    if state.refuses == Some(world.feed(&key.0)) {
                        state.worker.refuse(Arc::clone(&key.0), report(ErrorKind::Unsupported, "an older build"));
                        refused = true;
                    } else {
                        let before = state.tasks.insert(key, WindowTask { id: world.id(), stage: TaskStage::Queued });
                        if before.is_some() {
                            world.violated(|| "a window was started twice".to_owned());
                        }
                    }
                }
                WorkerAction::Drop(key) => {
                    state.tasks.remove(&key);
                    if world.drops_end_streams {
                        let process = self.process;
                        state.streams.retain(|&stream, serving| {
                            if serving.key == key {
                                let ended = NodeMessage::Ended { stream, how: Ended::Missing };
                                world.stream(process, serving.to, &mut serving.clock, ended);
                            }
                            serving.key != key
                        });
                    }
                }
            }
        }
        let leased = |key: &WindowKey| state.worker.leases().iter().any(|it| it.key == *key);
        if let Some(key) = state.tasks.keys().find(|key| !leased(key)) {
            world.violated(|| format!("a worker holds {key:?} without a lease"));
        }
        self.compute(world);
        if refused {
            self.sync(world);
        }
    }

    /// Begins the most urgent windows, as many as can be computed at a time.
    fn compute(&mut self, world: &mut World) {
        let Some(state) = &mut self.state else { return };
        let busy = |task: &&WindowTask| matches!(task.stage, TaskStage::Computing | TaskStage::Counted);
        let mut begins = false;
        let mut free = state.computing.saturating_sub(state.tasks.values().filter(busy).count());
        for lease in state.worker.leases().to_vec() {
            if free == 0 {
                break;
            }
            let key = lease.key.clone();
            if let Some(task) = state.tasks.get_mut(&key).filter(|task| task.stage == TaskStage::Queued) {
                task.stage = TaskStage::Computing;
                begins |= state.worker.report(&key, HeldState::Computing, true);
                free -= 1;
                let straggles = world.strikes(world.faults.rates.slow, Fault::Slow);
                let takes = world.random.between(2, 80) * state.slow * if straggles { 30 } else { 1 };
                world.timer(world.now + takes, self.process, Timer::Computed { key, task: task.id });
            }
        }
        if begins {
            self.sync(world);
        }
    }

    /// Moves a window to its next stage.
    pub(super) fn computed(&mut self, world: &mut World, key: WindowKey, task: u64) {
        let plan = world.plans[world.feed(&key.0)];
        let Some(state) = &mut self.state else { return };
        let Some(held) = state.tasks.get_mut(&key).filter(|held| held.id == task) else { return };
        if world.is_poisoned(&key) {
            // A process that ends closes its connections.
            return self.kill(world, true);
        }
        let (rows, bytes) = (plan.rows(key.1), plan.computed_bytes(key.1));
        let failure = if world.strikes(world.faults.rates.failed, Fault::Failed) {
            Some(ErrorKind::Unavailable)
        } else if world.strikes(world.faults.rates.failed_for_good, Fault::FailedForGood) {
            Some(ErrorKind::Data)
        } else {
            None
        };
        let said = match (failure, held.stage) {
            (Some(kind), _) => {
                held.stage = TaskStage::Failed;
                HeldState::Failed(report(kind, "a file could not be read"))
            }
            (None, _) if world.is_written(&key) => {
                held.stage = TaskStage::Stored;
                world.store(key.1);
                HeldState::Stored { rows, bytes }
            }
            (None, TaskStage::Computing) => {
                held.stage = TaskStage::Counted;
                if rows == 0 {
                    world.faults.fired(Fault::EmptyWindow);
                }
                let rest = world.random.between(0, 30) * state.slow;
                world.timer(world.now + rest, self.process, Timer::Computed { key: key.clone(), task });
                HeldState::Counted { rows, bytes }
            }
            (None, _) => {
                held.stage = TaskStage::Ready;
                HeldState::Ready { rows, bytes }
            }
        };
        let at_work = held.stage == TaskStage::Counted;
        if !state.worker.report(&key, said, at_work) {
            world.violated(|| format!("a worker does not hold {key:?}, which it computed"));
        }
        self.compute(world);
        self.sync(world);
    }

    /// Sends what the connection's streams have room for, beginning at any stream.
    fn serve_all(&mut self, world: &mut World, owner: Process) {
        let Some(state) = &self.state else { return };
        let connection = (owner, self.process);
        let mut streams: Vec<u64> =
            state.streams.keys().copied().filter(|&stream| world.flow.is_shared(stream, connection)).collect();
        if !streams.is_empty() {
            let first = world.random.below(streams.len() as u64) as usize;
            streams.rotate_left(first);
        }
        streams.into_iter().for_each(|stream| self.serve(world, stream));
    }

    /// Sends the fragments that the stream has room for.
    fn serve(&mut self, world: &mut World, stream: u64) {
        let Some(state) = &mut self.state else { return };
        let Some(serving) = state.streams.get_mut(&stream) else { return };
        let Serving { key, open, to, row, clock, .. } = serving;
        loop {
            let rates = world.faults.rates;
            let room = world.flow.room(stream) / ROW_BYTES;
            if room == 0 && open.slice.run(*row).is_some() {
                return;
            }
            let is_short = world.strikes(rates.shortage, Fault::Shortage);
            let ended = if world.strikes(rates.stream_broken, Fault::StreamBroken) {
                Some(Ended::Lost)
            } else if world.strikes(rates.stream_failed, Fault::StreamFailed) {
                Some(Ended::of(report(ErrorKind::Data, "a row could not be decoded")))
            } else if is_short && holds(Rule::ShortagesAreNoBadRows) {
                Some(Ended::of(report(ErrorKind::Exhausted, SHORT)))
            } else {
                None
            };
            let run = open.slice.run(*row);
            if ended.is_some() || run.is_none() {
                let how = ended.unwrap_or(Ended::Complete);
                world.stream(self.process, *to, clock, NodeMessage::Ended { stream, how });
                state.streams.remove(&stream);
                return;
            }
            let Some(mut rows) = run else { return };
            rows.end = rows.end.min(rows.start + room);
            // A run may come in pieces.
            if rows.end - rows.start > 1 && world.random.chance(200) {
                rows.end = world.random.between(rows.start + 1, rows.end - 1);
            }
            if world.strikes(rates.stream_garbled, Fault::StreamGarbled) {
                match world.random.chance(500) {
                    true => rows.end = rows.start + 1,
                    false => {
                        *row = rows.end;
                        continue;
                    }
                }
            } else {
                *row = rows.end;
            }
            let feed = world.feed(&key.0);
            let compute = |row| Some((row, content(&world.plans[feed], key.1, row, state.build)?));
            let mut contents: Vec<_> = rows.clone().filter_map(compute).collect();
            if is_short {
                contents.pop();
            }
            let records = SimulatedRows { feed, window: key.1, rows: rows.clone(), contents };
            let bytes = (rows.end - rows.start) * ROW_BYTES;
            let fragment = Fragment { bytes, rows, records };
            if !world.stream(self.process, *to, clock, NodeMessage::Rows { stream, fragment }) {
                // A lost message ends the stream, because later ones must not arrive without it.
                state.streams.remove(&stream);
                return;
            }
            world.flow.sent(stream, bytes);
        }
    }
}
