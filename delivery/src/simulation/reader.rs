//! A training job with ordered delivery: ranks that read one feed, save a checkpoint now and then, and resume from it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::contact::Contact;
use super::faults::Fault;
use super::oracle::Oracle;
use super::worker::at_address;
use super::world::{NodeMessage, Process, SimulatedRows, Timer, World, WorldEvent, trainer_node};
use crate::messages::ReaderSync;
use crate::rules::{Rule, holds};
use crate::{
    Ended, Fragment, Millis, Next, Origin, ReadSettings, ReceiveLimits, Start, Token, Trainer, WindowId, session_of,
};

/// A trainer turns to another dispatcher when it has been told for this long that no worker computes its feed.
const NO_WORKERS_MS: Millis = 2_000;
/// A trainer turns to another dispatcher when it has waited for this long: that dispatcher may know workers that it can
/// reach.
const STALLED_MS: Millis = 8_000;
/// A trainer that a dispatcher asked to wait asks again after this time.
const PAUSE_MS: Millis = 200;
/// A stream that the loop waits for, and that brings nothing for this long, is asked for again.
pub(super) const SILENCE_MS: Millis = 3_000;
/// A job fails when nothing has come for this long after that.
pub(super) const PATIENCE_MS: Millis = 10_000;

/// Returns the limits of a rank that buffers about `buffered_bytes`.
pub(super) fn limits(buffered_bytes: u64) -> ReceiveLimits {
    ReceiveLimits { silence_ms: SILENCE_MS, patience_ms: PATIENCE_MS, ..ReceiveLimits::of_bytes(buffered_bytes) }
}

/// A change of the job before it resumes from a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResumeChange {
    /// The number of ranks changes, but not the global batch.
    World,
    /// Both change.
    GlobalBatch,
}

pub(super) struct IncomingStream {
    window: WindowId,
    lease: u64,
    to: Process,
    inbox: VecDeque<Fragment<SimulatedRows>>,
    ended: Option<Ended>,
}

/// A process, or a part of one, that follows the routes of a trainer.
pub(super) struct TrainerNode {
    pub(super) process: Process,
    /// The process that owns the connections to workers: the rank's.
    owner: Process,
    feed: Arc<str>,
    /// The key from which its session follows.
    secret: Arc<str>,
    contact: Contact,
    streams: BTreeMap<u64, IncomingStream>,
    /// The time until which the loop computes.
    pub(super) busy_until: Millis,
    pump_at: Millis,
    rotated_at: Millis,
    /// When the dispatcher may be asked again, after it asked to wait.
    paused_until: Millis,
    ended: bool,
}

/// A rank with ordered delivery.
struct OrderedRank {
    node: TrainerNode,
    trainer: Trainer<SimulatedRows>,
}

/// An old process of a rank that does not know that its job has restarted.
struct OrderedZombie {
    rank: OrderedRank,
    until: Millis,
}

pub(super) struct OrderedJob {
    index: usize,
    /// Its name, if it has one: dispatchers then compare its ranks.
    name: Option<String>,
    feed: usize,
    start: Start,
    settings: ReadSettings,
    checkpoint: Option<Token>,
    checkpoint_steps: usize,
    /// Whether the ranks wait for each other after every step.
    lockstep: bool,
    step_ms: Millis,
    buffer_limit: u64,
    ranks: Vec<OrderedRank>,
    zombie: Option<OrderedZombie>,
    /// The change of the job before it resumes.
    change: Option<ResumeChange>,
    generation: u32,
    pub(super) oracle: Oracle,
    pub(super) is_done: bool,
}

impl OrderedJob {
    pub(super) fn draw(world: &mut World, index: usize) -> Self {
        let feed = world.random.below(world.read_feeds()) as usize;
        let plan = world.plans[feed];
        let settings = ReadSettings {
            batch_size: world.random.pick(&[1, 2, 2, 3, 3, 4, 8, 16, 60]),
            epochs: world.random.pick(&[1, 1, 2, 2, 3]),
            drop_last: world.random.chance(400),
            rank: 0,
            world_size: world.random.pick(&[1, 1, 2, 2, 3, 4]),
        };
        let settings = match plan.windows_max * plan.rows_max * settings.epochs / settings.batch_size > 300 {
            // Many small batches would take long to simulate.
            true => ReadSettings { batch_size: 8, epochs: 1, ..settings },
            false => settings,
        };
        let start = match world.random.chance(200) {
            true => (world.random.below(settings.epochs), world.random.below(2 * plan.rows_max)),
            false => (0, 0),
        };
        if !start.1.is_multiple_of(settings.batch_size * settings.world_size) {
            world.faults.fired(Fault::OddStart);
        }
        Self {
            index,
            name: world.random.chance(700).then(|| format!("reader {index}")),
            feed,
            start: Start::Offset { epoch: start.0, offset: start.1 },
            settings,
            checkpoint: None,
            checkpoint_steps: world.random.between(1, 6) as usize,
            lockstep: world.random.chance(500),
            step_ms: world.random.pick(&[0, 5, 20, 60, 200, 400]),
            buffer_limit: world.random.pick(&[1, 200, 1_000, 1 << 30]),
            ranks: Vec::new(),
            zombie: None,
            change: None,
            generation: 0,
            oracle: Oracle::new(plan, settings, start),
            is_done: false,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        !self.ranks.is_empty()
    }

    /// Starts the processes, at the job's start or at its last checkpoint.
    pub(super) fn start(&mut self, world: &mut World) {
        if self.is_up() || self.is_done {
            return;
        }
        self.generation += 1;
        if let Some(change) = self.change.take() {
            self.change_world(world, change);
        }
        let start = self.checkpoint.clone().map_or_else(|| self.start.clone(), Start::Token);
        // Text, as a job keeps it.
        let start: Start = start.to_string().parse().expect("its own text");
        let mut origin = match &start {
            Start::Offset { epoch, offset } => {
                Origin { window: WindowId { epoch: *epoch, index: 0 }, window_offset: 0, offset: *offset }
            }
            Start::Token(token) => Origin {
                window: WindowId { epoch: token.epoch, index: token.window },
                window_offset: token.window_offset,
                offset: token.offset,
            },
        };
        if !holds(Rule::WindowOffsetIsKept) {
            origin.window_offset = 0;
        }
        let at = (origin.window.epoch, origin.offset);
        if !holds(Rule::StepsBeginAtTheOffset) {
            origin.offset = origin.window_offset;
        }
        self.oracle.resume(self.settings, at);
        if self.checkpoint.is_some() {
            if self.oracle.is_inside(at.0, at.1) {
                world.faults.fired(Fault::ResumedMidWindow);
            } else if at.1 >= self.oracle.samples(at.0) {
                world.faults.fired(Fault::ResumedAtEpochEnd);
            }
        }
        world.say(|| format!("reader {} begins at {start} with {:?}", self.index, self.settings));
        for rank in 0..self.settings.world_size as usize {
            let secret = world.secret();
            let session = session_of(&secret);
            let settings = ReadSettings { rank: rank as u64, ..self.settings };
            let feed = Arc::clone(&world.feeds[self.feed]);
            let process = Process { node: trainer_node(self.index, rank), generation: self.generation };
            let trainer = Trainer::new(feed, session, settings, origin, limits(self.buffer_limit));
            let trainer = match &self.name {
                // A process's number begins with the time.
                Some(name) => {
                    // A process may read again after its first reader failed.
                    let is_first = self.generation == 1 || world.random.chance(700);
                    trainer.in_job(name.clone(), (world.now << 16) + world.id(), is_first)
                }
                None => trainer,
            };
            let contact = Contact::new(world);
            let node = TrainerNode::new(world, process, process, trainer.feed(), secret, contact);
            self.ranks.push(OrderedRank { node, trainer });
        }
    }

    fn change_world(&mut self, world: &mut World, change: ResumeChange) {
        let settings = &mut self.settings;
        let global = settings.batch_size * settings.world_size;
        match change {
            ResumeChange::World => {
                let sizes: Vec<u64> = (1..=4).filter(|&size| global.is_multiple_of(size)).collect();
                settings.world_size = world.random.pick(&sizes);
                settings.batch_size = global / settings.world_size;
                world.faults.fired(Fault::WorldChanged);
            }
            ResumeChange::GlobalBatch => {
                settings.world_size = world.random.between(1, 4);
                settings.batch_size = world.random.between(2, 20);
                world.faults.fired(Fault::GlobalBatchChanged);
            }
        }
    }

    /// Kills all processes, which restart after a while.
    pub(super) fn kill(&mut self, world: &mut World, change: Option<ResumeChange>) {
        self.change = self.change.or(change);
        if self.name.is_some() && self.zombie.is_none() && self.is_up() && world.random.chance(200) {
            let rank = self.ranks.remove(world.random.below(self.ranks.len() as u64) as usize);
            self.zombie = Some(OrderedZombie { rank, until: world.now + world.random.between(100, 8_000) });
            world.faults.fired(Fault::OrderedZombie);
        }
        self.ranks.drain(..).for_each(|rank| rank.node.close(world));
        let after = world.random.between(10, 1_500);
        world.schedule(world.now + after, WorldEvent::Start(trainer_node(self.index, 0)));
    }

    fn rank(&mut self, process: Process) -> Option<usize> {
        self.ranks.iter().position(|rank| rank.node.process == process)
    }

    pub(super) fn handle(&mut self, world: &mut World, to: Process, from: Process, message: NodeMessage) {
        if let Some(OrderedZombie { rank: OrderedRank { node, trainer }, .. }) = self.zombie_at(to) {
            if matches!(message, NodeMessage::Superseded) {
                world.faults.fired(Fault::OrderedSuperseded);
                return self.bury(world);
            }
            node.handle(world, trainer, from, message);
            return self.pump_zombie(world);
        }
        let Some(index) = self.rank(to) else {
            // The process is gone, and its connections with it.
            if let NodeMessage::Rows { stream, .. } = message {
                world.stream(to, from, &mut 0, NodeMessage::Close { stream });
            }
            return;
        };
        if matches!(message, NodeMessage::Superseded) {
            world.violated(|| format!("reader {}: the newest process of a rank is refused", self.index));
        }
        let OrderedRank { node, trainer } = &mut self.ranks[index];
        node.handle(world, trainer, from, message);
        self.pump(world, index);
    }

    fn zombie_at(&mut self, process: Process) -> Option<&mut OrderedZombie> {
        self.zombie.as_mut().filter(|zombie| zombie.rank.node.process == process)
    }

    /// Ends the old process.
    fn bury(&mut self, world: &mut World) {
        if let Some(zombie) = self.zombie.take() {
            zombie.rank.node.close(world);
        }
    }

    /// Does all that the old process can do now. It discards its batches.
    fn pump_zombie(&mut self, world: &mut World) {
        let Some(OrderedZombie { rank: OrderedRank { node, trainer }, until }) = &mut self.zombie else { return };
        let mut is_over = *until <= world.now;
        while !is_over {
            node.open(world, trainer);
            let has_taken = node.take(world, trainer);
            let is_busy = node.busy_until > world.now;
            match if is_busy { Next::Wait } else { trainer.next(world.now) } {
                Next::Deliver(_) => node.busy_until = world.now + self.step_ms.max(20),
                Next::Wait if !has_taken => break,
                Next::Wait => {}
                Next::End | Next::Fail(_) => is_over = true,
            }
        }
        match is_over {
            true => self.bury(world),
            false => node.wait(world, trainer),
        }
    }

    pub(super) fn timer(&mut self, world: &mut World, process: Process, timer: Timer) {
        if let Some(zombie) = self.zombie_at(process) {
            zombie.rank.node.timer(world, &timer);
            return self.pump_zombie(world);
        }
        let Some(index) = self.rank(process) else { return };
        self.ranks[index].node.timer(world, &timer);
        self.pump(world, index);
    }

    /// Does all that can be done now.
    fn pump(&mut self, world: &mut World, index: usize) {
        loop {
            if !self.ask(world, index) {
                return;
            }
            let Some(rank) = self.ranks.get_mut(index) else { return };
            rank.node.open(world, &mut rank.trainer);
            let progressed = rank.node.take(world, &mut rank.trainer);
            let buffered = rank.trainer.buffered_bytes();
            if buffered > self.oracle.buffer_max(self.buffer_limit, world.flow.fragment_max()) {
                world.violated(|| format!("reader {} rank {index} buffers {buffered} bytes", self.index));
            }
            if world.violation().is_some() {
                return;
            }
            if !progressed {
                break;
            }
        }
        let OrderedRank { node, trainer } = &mut self.ranks[index];
        node.wait(world, trainer);
    }

    /// Asks for the training loop's next batches; `false` if the job was killed.
    fn ask(&mut self, world: &mut World, index: usize) -> bool {
        loop {
            let is_first = !self.lockstep || self.oracle.step(index) <= self.oracle.slowest();
            let rank = &mut self.ranks[index];
            if rank.node.ended || rank.node.busy_until > world.now || !is_first {
                return true;
            }
            match rank.trainer.next(world.now) {
                Next::Deliver(delivery) => {
                    rank.node.busy_until = world.now + self.step_ms;
                    world.say(|| format!("reader {} rank {index} gets {:?}", self.index, delivery.token.to_string()));
                    let slowest = self.oracle.slowest();
                    self.oracle.delivered(world, index, self.feed, &delivery);
                    if let Some(mut token) = self.oracle.checkpoint(world, self.checkpoint_steps) {
                        if !holds(Rule::PositionIsHandedOut) {
                            token.offset += self.settings.batch_size * self.settings.world_size;
                        }
                        world.say(|| format!("reader {} saves {token}", self.index));
                        self.checkpoint = Some(token);
                    }
                    if self.lockstep && self.oracle.slowest() > slowest {
                        let own = self.ranks[index].node.process;
                        for other in self.ranks.iter().map(|other| other.node.process).filter(|other| *other != own) {
                            world.timer(world.now, other, Timer::Pump);
                        }
                    }
                }
                Next::Wait => return true,
                Next::End => {
                    let leave = rank.trainer.leave(world.now);
                    rank.node.end(world, leave);
                    if let Some(expected) = self.oracle.expected(index) {
                        world.violated(|| format!("reader {} rank {index} ended before {expected:?}", self.index));
                    } else if self.ranks.iter().all(|rank| rank.node.ended) {
                        self.is_done = true;
                        self.oracle.finished(world);
                    }
                    return true;
                }
                Next::Fail(report) => {
                    world.say(|| format!("reader {} rank {index} fails: {report:?}", self.index));
                    world.faults.fired(Fault::ReaderFailed);
                    world.failed(&report);
                    self.kill(world, None);
                    return false;
                }
            }
            if world.violation().is_some() {
                return false;
            }
        }
    }
}

impl TrainerNode {
    pub(super) fn new(
        world: &mut World,
        process: Process,
        owner: Process,
        feed: &Arc<str>,
        secret: Arc<str>,
        contact: Contact,
    ) -> Self {
        world.timer(world.now, process, Timer::Pump);
        Self {
            process,
            owner,
            feed: Arc::clone(feed),
            secret,
            contact,
            streams: BTreeMap::new(),
            busy_until: 0,
            pump_at: 0,
            rotated_at: 0,
            paused_until: 0,
            ended: false,
        }
    }

    /// Closes the streams of a process that is gone.
    pub(super) fn close(self, world: &mut World) {
        for (stream, reading) in self.streams {
            world.flow.closed(stream);
            world.stream(self.process, reading.to, &mut 0, NodeMessage::Close { stream });
        }
    }

    pub(super) fn handle(
        &mut self,
        world: &mut World,
        trainer: &mut Trainer<SimulatedRows>,
        from: Process,
        message: NodeMessage,
    ) {
        match message {
            NodeMessage::ReaderReply { call, mut reply } => {
                self.contact.answered(world, call);
                // Workers of another dispatcher may not refuse the feed.
                if reply.refused && world.dispatchers > 1 {
                    reply.failed = None;
                }
                trainer.reply(reply);
                self.contact.judge(world, trainer.workers() > 0, NO_WORKERS_MS);
            }
            NodeMessage::Wait { call } => {
                self.contact.answered(world, call);
                self.paused_until = world.now + PAUSE_MS;
            }
            NodeMessage::Denied if !self.ended => {
                world.violated(|| "a reader is refused its own session".to_owned());
            }
            NodeMessage::Unreachable => {
                self.contact.unreachable(world, from.node);
            }
            NodeMessage::Rows { stream, fragment } => match self.streams.get_mut(&stream) {
                Some(reading) => {
                    reading.to = from;
                    reading.inbox.push_back(fragment);
                }
                None => {
                    world.stream(self.process, from, &mut 0, NodeMessage::Close { stream });
                }
            },
            NodeMessage::Ended { stream, how } => {
                if let Some(reading) = self.streams.get_mut(&stream) {
                    reading.ended = Some(how);
                }
            }
            _ => {}
        }
    }

    pub(super) fn timer(&mut self, world: &mut World, timer: &Timer) {
        if let Timer::Unanswered(seq) = *timer
            && !self.ended
        {
            self.contact.unanswered(world, seq);
        }
    }

    /// Sends news, and sets a timer for the next thing to do.
    pub(super) fn wait(&mut self, world: &mut World, trainer: &mut Trainer<SimulatedRows>) {
        let is_paused = self.paused_until > world.now;
        if self.contact.may_call(trainer.has_news()) && !self.ended && !is_paused {
            self.sync(world, trainer);
        }
        let retry_at = trainer.retry_at().filter(|&at| at > world.now);
        let gives_up_at = trainer.gives_up_at().filter(|&at| at > world.now);
        let busy_until = [self.busy_until, self.paused_until].into_iter().filter(|&at| at > world.now);
        if let Some(at) = retry_at.into_iter().chain(busy_until).chain(gives_up_at).min()
            && (self.pump_at <= world.now || at < self.pump_at)
        {
            self.pump_at = at;
            world.timer(at, self.process, Timer::Pump);
        }
    }

    fn sync(&mut self, world: &mut World, trainer: &mut Trainer<SimulatedRows>) {
        let sync = trainer.sync(world.now);
        let waited = sync.waiting.map_or(0, |(_, waited)| waited);
        if waited >= STALLED_MS && self.rotated_at + STALLED_MS <= world.now {
            self.rotated_at = world.now;
            self.contact.rotate(world);
        }
        self.contact.sent(world, self.process, sync.seq);
        world.overheard.reader = Some(sync.clone());
        let message = NodeMessage::ReaderSync { secret: Arc::clone(&self.secret), sync: Box::new(sync) };
        world.send(self.process, self.contact.dispatcher(), None, message);
    }

    pub(super) fn end(&mut self, world: &mut World, leave: ReaderSync) {
        self.ended = true;
        let message = NodeMessage::ReaderSync { secret: Arc::clone(&self.secret), sync: Box::new(leave) };
        world.send(self.process, self.contact.dispatcher(), None, message);
    }

    /// Opens the streams that the trainer asks for.
    pub(super) fn open(&mut self, world: &mut World, trainer: &mut Trainer<SimulatedRows>) {
        for mut open in trainer.opens(world.now) {
            if !holds(Rule::StreamsGoOnAtTheNextRow) {
                open.from_row = 0;
            }
            let stream = world.id();
            let to = world.at(at_address(&open.address));
            let feed = Arc::clone(&self.feed);
            let (window, lease) = (open.window, open.lease);
            let reading = IncomingStream { window, lease, to, inbox: VecDeque::new(), ended: None };
            // A replaced stream is closed at once. Rows that it has brought already are refused, unless the window is
            // back at the same lease.
            for (&before, replaced) in self.streams.iter().filter(|(_, it)| it.window == window) {
                world.flow.closed(before);
                world.stream(self.process, replaced.to, &mut 0, NodeMessage::Close { stream: before });
            }
            self.streams.insert(stream, reading);
            let owner = self.owner;
            if !world.stream(self.process, to, &mut 0, NodeMessage::Open { stream, owner, feed, open })
                && world.random.chance(500)
            {
                self.streams.entry(stream).and_modify(|reading| reading.ended = Some(Ended::Lost));
            }
        }
    }

    /// Passes the trainer the next received fragment or end of stream. Returns `true` if there was one.
    pub(super) fn take(&mut self, world: &mut World, trainer: &mut Trainer<SimulatedRows>) -> bool {
        let streams: Vec<u64> = self.streams.keys().copied().collect();
        for stream in streams {
            let Some(reading) = self.streams.get_mut(&stream) else { continue };
            let (window, lease, to) = (reading.window, reading.lease, reading.to);
            let (mut is_over, mut progressed) = (false, false);
            // One at a time: each may complete the batch that the loop waits for.
            if trainer.wants(window)
                && let Some(fragment) = reading.inbox.pop_front()
            {
                progressed = true;
                world.flow.taken(stream, fragment.bytes);
                if trainer.received(window, lease, fragment, world.now) {
                    world.stream(self.process, to, &mut 0, NodeMessage::Taken { stream });
                } else {
                    world.faults.fired(Fault::RowsLate);
                    world.stream(self.process, to, &mut 0, NodeMessage::Close { stream });
                    is_over = true;
                }
            }
            if !is_over
                && reading.inbox.is_empty()
                && let Some(how) = reading.ended.take()
            {
                trainer.ended(window, lease, how, world.now);
                progressed = true;
                is_over = true;
            }
            if is_over {
                world.flow.closed(stream);
                self.streams.remove(&stream);
            }
            if progressed {
                return true;
            }
        }
        false
    }
}
