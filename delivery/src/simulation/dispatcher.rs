//! A dispatcher's process, with long polls: it answers news at once, and other messages after a while.

use std::collections::{BTreeMap, BTreeSet};

use super::content::{BUILD, probe};
use super::faults::Fault;
use super::worker::COMPUTING_MAX;
use super::world::{LIAR, NodeMessage, Process, ROW_BYTES, SimulatedPlan, Timer, World};
use super::writer::{OpenWriting, WritingState};
use crate::messages::{ReaderSync, WorkerSync};
use crate::rules::{Rule, holds};
use crate::{
    ClaimMessage, Dispatcher, DispatcherSettings, ErrorKind, Millis, ReaderSessions, RefusedReader, Unanswered,
    WorkerId,
};

/// The time after which a message is answered without news.
const POLL_MS: Millis = 500;

enum Who {
    Worker(Box<WorkerSync>),
    Reader(Box<ReaderSync>),
    Claims(Box<ClaimMessage>),
    Writer,
}

/// A call that waits for its answer.
struct Poll {
    client: Process,
    who: Who,
    /// The number of the call's message.
    seq: u64,
    known: u64,
    until: Millis,
}

pub(super) struct DispatcherNode {
    pub(super) process: Process,
    state: Option<Dispatcher<SimulatedPlan>>,
    started: Millis,
    polls: Vec<Poll>,
    /// The most readers at a time. Leases of readers that are gone are kept while other readers will need them.
    readers_max: usize,
    /// Windows that were computed again, as last counted.
    recomputed: u64,
    /// The newest process of each rank that this dispatcher should know.
    newest: BTreeMap<(JobName, u64), u64>,
    /// The newest process of each rank of a named job with ordered delivery that was answered.
    answered: BTreeMap<(String, u64), u64>,
    sessions: ReaderSessions,
    /// The readers that have left this dispatcher.
    left: BTreeSet<u64>,
    /// The job that writes files, if this dispatcher has opened it.
    writing: Option<OpenWriting>,
}

/// A job's name, world size and origin.
type JobName = (String, u64, u64);

impl DispatcherNode {
    pub(super) fn new(node: usize) -> Self {
        let process = Process { node, generation: 0 };
        Self {
            process,
            state: None,
            started: 0,
            polls: Vec::new(),
            readers_max: 0,
            recomputed: 0,
            newest: BTreeMap::new(),
            answered: BTreeMap::new(),
            sessions: ReaderSessions::default(),
            left: BTreeSet::new(),
            writing: None,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.state.is_some()
    }

    pub(super) fn start(&mut self, world: &mut World) {
        self.process.generation += 1;
        world.dispatchers_started += 1;
        self.started = world.now;
        world.up_since[self.process.node] = Some(world.now);
        self.readers_max = 0;
        self.recomputed = 0;
        self.newest.clear();
        self.answered.clear();
        self.sessions = ReaderSessions::default();
        self.left.clear();
        self.writing = None;
        let instance = world.random.next() as u32;
        self.state = Some(Dispatcher::new(DispatcherSettings::default(), instance, world.now));
        world.timer(world.now + POLL_MS, self.process, Timer::Polls);
    }

    pub(super) fn kill(&mut self, world: &mut World) {
        world.up_since[self.process.node] = None;
        self.process.generation += 1;
        self.state = None;
        self.polls.clear();
    }

    pub(super) fn handle(&mut self, world: &mut World, from: Process, message: NodeMessage) {
        let Some(dispatcher) = &mut self.state else {
            // Some hosts answer for a process that is gone, others do not.
            if world.random.chance(500) {
                world.send(self.process, from.node, Some(from.generation), NodeMessage::Unreachable);
            }
            return;
        };
        let now = world.now;
        let (who, seq, known) = match message {
            NodeMessage::HungUp(worker) => {
                dispatcher.suspect(worker);
                return self.answer(world);
            }
            NodeMessage::WorkerSync { probe: there, .. }
                if there != probe(BUILD) && holds(Rule::OtherBuildsAreRefused) =>
            {
                world.send(self.process, from.node, Some(from.generation), NodeMessage::OtherBuild);
                return;
            }
            NodeMessage::WorkerSync { sync, .. } => {
                let adoptable = sync.known != 0 && sync.windows > 0;
                if adoptable && dispatcher.status(now).workers.iter().all(|it| it.worker != sync.worker) {
                    world.faults.fired(Fault::Adopted);
                }
                if dispatcher.worker_sync(&sync, now).is_err() {
                    world.send(self.process, from.node, Some(from.generation), NodeMessage::Replaced);
                    return self.answer(world);
                }
                if sync.leaving {
                    return self.answer(world);
                }
                if let Some(named) = dispatcher.named(&sync).filter(|&named| named != sync.windows) {
                    world.violated(|| format!("{named} windows are known of a worker that holds {}", sync.windows));
                }
                (Who::Worker(Box::new(sync.clone())), sync.seq, sync.known)
            }
            NodeMessage::ReaderSync { secret, sync } => {
                if let Err(why) = self.sessions.admit(&sync, &secret) {
                    if why == RefusedReader::Stranger {
                        world.send(self.process, from.node, Some(from.generation), NodeMessage::Denied);
                    }
                    return;
                }
                if !dispatcher.has_feed(&sync.feed) {
                    let plan = world.plans[world.feed(&sync.feed)];
                    dispatcher.open(&sync.feed, plan, now);
                }
                if let Err(why) = dispatcher.reader_sync(&sync, now) {
                    let message = match why.retry {
                        false => NodeMessage::Superseded,
                        true => NodeMessage::Wait { call: sync.seq },
                    };
                    if matches!(message, NodeMessage::Wait { .. }) {
                        world.faults.fired(Fault::MisfitWaited);
                    }
                    world.say(|| format!("a rank is refused: {why:?}"));
                    world.send(self.process, from.node, Some(from.generation), message);
                    return self.answer(world);
                }
                let status = dispatcher.status(now);
                let readers = status.feeds.iter().map(|feed| feed.readers.len()).sum();
                self.readers_max = self.readers_max.max(readers);
                let is_there =
                    |left: &u64| status.feeds.iter().flat_map(|it| &it.readers).any(|it| it.session == *left);
                if let Some(left) = self.left.iter().find(|left| is_there(left)) {
                    world.violated(|| format!("reader {left:x} has left, and came back"));
                }
                if sync.leaving {
                    self.left.insert(sync.session);
                    if let Some(member) = &sync.member {
                        self.answered.remove(&(member.job.clone(), sync.rank));
                    }
                    return self.answer(world);
                }
                let (seq, known) = (sync.seq, sync.known);
                (Who::Reader(sync), seq, known)
            }
            NodeMessage::ClaimSync(message) => {
                if !dispatcher.has_feed(&message.feed) {
                    let plan = world.plans[world.feed(&message.feed)];
                    dispatcher.open(&message.feed, plan, now);
                }
                let job = (message.claims.job.clone(), message.world_size, message.claims.origin);
                let said = message.claims.sessions.iter().chain([(&message.rank, &message.session)]);
                // A process must report the sessions of its token.
                let said = said.chain(world.named.get(&message.session).into_iter().flatten());
                for (&rank, &session) in said.filter(|_| from.node != LIAR) {
                    let newest = self.newest.entry((job.clone(), rank)).or_default();
                    *newest = session.max(*newest);
                }
                if let Err(Unanswered::Replaced { .. }) = dispatcher.claim_sync(&message, now) {
                    world.send(self.process, from.node, Some(from.generation), NodeMessage::Superseded);
                    return self.answer(world);
                }
                let (seq, known) = (message.seq, message.known);
                (Who::Claims(message), seq, known)
            }
            NodeMessage::WritingSync { call } => {
                OpenWriting::ask(&mut self.writing, world, dispatcher);
                (Who::Writer, call, 0)
            }
            _ => return,
        };
        self.polls.push(Poll { client: from, who, seq, known, until: now + POLL_MS });
        self.answer(world);
    }

    /// Handles the timer of long polls.
    pub(super) fn poll(&mut self, world: &mut World) {
        if let Some(dispatcher) = &mut self.state {
            dispatcher.tick(world.now);
            self.answer(world);
            world.timer(world.now + POLL_MS / 5, self.process, Timer::Polls);
        }
    }

    fn answer(&mut self, world: &mut World) {
        let Some(dispatcher) = &mut self.state else { return };
        let (process, now, started) = (self.process, world.now, self.started);
        let (readers_max, newest, answered) = (self.readers_max, &self.newest, &mut self.answered);
        let writing = &mut self.writing;
        self.polls.retain(|poll| {
            let call = poll.seq;
            let mut is_urgent = false;
            let (heard, version, message) = match &poll.who {
                Who::Worker(sync) => {
                    let Some(reply) = dispatcher.worker_reply(sync.worker, now) else { return false };
                    check_memory(world, dispatcher, started, readers_max, sync.worker);
                    if let Some(writing) = writing {
                        writing.check(world, dispatcher, sync.worker);
                    }
                    is_urgent = reply.is_urgent(sync);
                    (reply.seq, reply.version, NodeMessage::WorkerReply { call, reply })
                }
                Who::Reader(sync) => {
                    let reply = match dispatcher.reader_reply(sync) {
                        Ok(reply) => reply,
                        Err(why) => {
                            if why.kind == ErrorKind::Conflict {
                                let client = poll.client;
                                world.send(process, client.node, Some(client.generation), NodeMessage::Superseded);
                            }
                            return false;
                        }
                    };
                    check_fence(world, answered, sync);
                    (reply.seq, reply.version, NodeMessage::ReaderReply { call, reply })
                }
                Who::Writer => {
                    let how = OpenWriting::answer(writing, world, dispatcher);
                    is_urgent = how != WritingState::Begun { has_workers: true };
                    (call, 0, NodeMessage::WritingReply { call, how })
                }
                Who::Claims(message) => match dispatcher.claim_answer(message, now) {
                    Ok(answer) => {
                        let job = (message.claims.job.clone(), message.world_size, message.claims.origin);
                        if newest.get(&(job, message.rank)).is_some_and(|&newest| newest > message.session) {
                            world.violated(|| format!("an old process gets an answer: {message:?}"));
                        }
                        let (heard, version) = (answer.seq, answer.version);
                        (heard, version, NodeMessage::ClaimAnswer { call, answer: Box::new(answer) })
                    }
                    Err(why) => {
                        let is_replaced = matches!(why, Unanswered::Replaced { .. });
                        let message = if is_replaced { NodeMessage::Superseded } else { NodeMessage::Unreachable };
                        world.send(process, poll.client.node, Some(poll.client.generation), message);
                        return false;
                    }
                },
            };
            // A newer message ends an older call, whose answer then names the newer one.
            let is_superseded = heard > call;
            let is_due = is_urgent || version != poll.known || is_superseded || now >= poll.until;
            if is_due {
                if is_superseded {
                    world.faults.fired(Fault::AnsweredAsNewer);
                }
                world.send(process, poll.client.node, Some(poll.client.generation), message);
            }
            !is_due
        });
    }

    /// Counts the windows that were computed again.
    pub(super) fn count(&mut self, world: &mut World) {
        let Some(dispatcher) = &self.state else { return };
        let recomputed = dispatcher.status(world.now).feeds.iter().map(|feed| feed.windows_recomputed).sum();
        if recomputed > self.recomputed {
            world.faults.fired(Fault::Recomputed);
        }
        self.recomputed = recomputed;
    }
}

/// Checks that no process is answered after a newer one of its rank was.
fn check_fence(world: &mut World, answered: &mut BTreeMap<(String, u64), u64>, sync: &ReaderSync) {
    let Some(member) = &sync.member else { return };
    let newest = answered.entry((member.job.clone(), sync.rank)).or_insert(member.process);
    if *newest > member.process {
        world.violated(|| format!("an old process of an ordered rank gets an answer: {sync:?}"));
    }
    *newest = member.process;
}

/// Checks that a worker's leases fit its memory, apart from readers' current windows and the few windows that it may
/// hold whatever their size.
fn check_memory(
    world: &mut World,
    dispatcher: &Dispatcher<SimulatedPlan>,
    started: Millis,
    readers_max: usize,
    worker: WorkerId,
) {
    let leases = dispatcher.leases(worker);
    // A young dispatcher keeps all windows, and a few windows prove nothing.
    if world.now <= started + DispatcherSettings::default().young_ms || leases.len() < 4 {
        return;
    }
    let size = |plan: &SimulatedPlan| plan.rows_max * ROW_BYTES;
    let largest = world.plans.iter().map(size).max().unwrap_or(0);
    let held: u64 = leases.iter().map(|(feed, window)| world.plans[world.feed(feed)].computed_bytes(*window)).sum();
    let status = dispatcher.status(world.now);
    let limit = status.workers.iter().find(|it| it.worker == worker).map_or(0, |it| it.memory_bytes);
    // Exempt are a reader's current window and those of its broken streams that are leased a second time, and the
    // windows of jobs with dynamic delivery, including those from before a job changed its number of ranks. Windows
    // that another dispatcher leased, or this one leased earlier, are not dropped either.
    let readers_max = readers_max + usize::from(world.target.is_some());
    let spare = (4 * readers_max + 2 * dispatcher.groups() + 2 + COMPUTING_MAX) as u64 * largest;
    if held > limit + spare {
        world.violated(|| format!("worker {worker} is leased {held} bytes, more than {limit} and {spare}: {leases:?}"));
    }
}
