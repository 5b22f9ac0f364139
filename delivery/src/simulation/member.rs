//! A process of a rank with dynamic delivery, which asks for claims, reads them, and delivers batches.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::contact::{Contact, SharedAddress};
use super::faults::Fault;
use super::reader::{TrainerNode, limits};
use super::world::{NodeId, NodeMessage, Process, ROW_BYTES, SimulatedRows, Timer, World};
use crate::messages::Report;
use crate::{AssembledBatch, Claim, Claimer, DynamicTrainer, ErrorKind, Millis, Next, STREAMS_OF_A_RANK_MAX};

/// A rank fails when trouble lasts for longer.
const PATIENCE_MS: Millis = 30_000;
/// A rank is restarted when it has reported for this long that no claim can be granted.
const FAILED_MS: Millis = 3_000;

/// A process of a rank.
pub(super) struct Member {
    pub(super) rank: usize,
    pub(super) process: Process,
    pub(super) trainer: DynamicTrainer<SimulatedRows>,
    contact: Contact,
    /// The dispatcher to which each unanswered message went.
    asked: BTreeMap<u64, NodeId>,
    /// The dispatcher that the readers of its claims ask.
    readers_at: SharedAddress,
    /// The readers of its claims.
    pub(super) reading: VecDeque<(Claim, TrainerNode)>,
    busy_until: Millis,
    failed_since: Option<Millis>,
    /// How often dispatchers had been started when it first said that it takes no more claims. Those of that time may
    /// know its end.
    pub(super) leaving_since: Option<u64>,
    /// The most bytes that its claims may buffer.
    buffered_max: u64,
}

pub(super) enum Done {
    Nothing,
    Ended,
    Failed(Report),
}

impl Member {
    /// Creates the process of `claimer`, which buffers about `buffer_limit` bytes.
    pub(super) fn new(
        world: &mut World,
        rank: usize,
        process: Process,
        claimer: Claimer,
        batch_size: u64,
        buffer_limit: u64,
    ) -> Self {
        // Each of two claims may buffer its limit, a fragment beyond, and the batch that the loop waits for.
        let batch = batch_size * ROW_BYTES;
        let buffered_max = buffer_limit + 2 * (batch + batch.min(world.flow.fragment_max()));
        Self {
            rank,
            process,
            trainer: DynamicTrainer::new(claimer, world.dispatchers, limits(buffer_limit), PATIENCE_MS),
            contact: Contact::new(world),
            asked: BTreeMap::new(),
            readers_at: Contact::anywhere(world),
            reading: VecDeque::new(),
            busy_until: 0,
            failed_since: None,
            leaving_since: None,
            buffered_max,
        }
    }

    /// Creates the reader of a claim.
    pub(super) fn read(&mut self, world: &mut World, process: Process, claim: Claim, secret: Arc<str>) {
        let contact = Contact::sharing(&self.readers_at);
        let feed = self.trainer.claimer().feed().clone();
        self.reading.push_back((claim, TrainerNode::new(world, process, self.process, &feed, secret, contact)));
    }

    /// Announces the process to the other dispatchers. A message may be lost.
    pub(super) fn announce(&mut self, world: &mut World) {
        let Some(message) = self.trainer.announce() else { return };
        if !world.strikes(500, Fault::Lost) {
            let others = (0..world.dispatchers).filter(|&it| it != self.contact.dispatcher());
            let message = NodeMessage::ClaimSync(Box::new(message));
            others.for_each(|other| world.send(self.process, other, None, message.clone()));
        }
    }

    /// Sends the messages that are due.
    fn sync(&mut self, world: &mut World) {
        while let Some(message) = self.trainer.sync(world.now) {
            let dispatcher = self.contact.dispatcher();
            if message.claims.is_leaving {
                self.leaving_since.get_or_insert(world.dispatchers_started);
            }
            self.contact.sent(world, self.process, message.seq);
            self.asked.insert(message.seq, dispatcher);
            world.overheard.rank = Some(message.clone());
            world.send(self.process, dispatcher, None, NodeMessage::ClaimSync(Box::new(message)));
        }
    }

    pub(super) fn leave(&mut self, world: &mut World) {
        let message = self.trainer.leave();
        world.send(self.process, self.contact.dispatcher(), None, NodeMessage::ClaimSync(Box::new(message)));
    }

    pub(super) fn close(self, world: &mut World) {
        self.reading.into_iter().for_each(|(_, node)| node.close(world));
    }

    pub(super) fn handle(&mut self, world: &mut World, from: Process, message: NodeMessage) {
        match message {
            NodeMessage::ClaimAnswer { call, answer } => {
                self.asked.remove(&call);
                for failed in self.contact.answered(world, call) {
                    self.unanswered(world, failed);
                }
                let is_home = self.contact.is_home(from.node, answer.reply.workers > 0);
                if self.trainer.reply(call, *answer, "d", is_home, world.now) {
                    self.rotate(world);
                }
                let latest = self.trainer.claimer().latest();
                let is_failed = latest.is_some_and(|reply| reply.failed.is_some());
                self.failed_since = is_failed.then(|| self.failed_since.unwrap_or(world.now));
            }
            NodeMessage::Unreachable => {
                let asked = self.asked.iter().filter(|(_, at)| **at == from.node);
                let unanswered: Vec<u64> = asked.map(|(&seq, _)| seq).collect();
                self.contact.unreachable(world, from.node);
                unanswered.into_iter().for_each(|seq| self.unanswered(world, seq));
            }
            _ => {}
        }
    }

    /// Handles a message to the reader of a claim.
    pub(super) fn handle_claim(&mut self, world: &mut World, index: usize, from: Process, message: NodeMessage) {
        let (claim, node) = &mut self.reading[index];
        if let Some(trainer) = self.trainer.trainer(*claim) {
            node.handle(world, trainer, from, message);
        }
    }

    pub(super) fn timer(&mut self, world: &mut World, timer: &Timer) {
        // The time limit is the call's. A message that the trainer awaits after its call was answered has none.
        if let Timer::Unanswered(seq) = *timer
            && self.asked.contains_key(&seq)
        {
            self.contact.unanswered(world, seq);
            self.unanswered(world, seq);
        }
    }

    /// Handles a timer of the reader of a claim.
    pub(super) fn timer_of_claim(&mut self, world: &mut World, index: usize, timer: &Timer) {
        self.reading[index].1.timer(world, timer);
    }

    fn unanswered(&mut self, world: &mut World, seq: u64) {
        self.asked.remove(&seq);
        let message = "the dispatcher does not answer".to_owned();
        let why = Report { kind: ErrorKind::Unavailable, message, hint: None, retry: true };
        self.trainer.unanswered(seq, why, world.now);
        self.rotate(world);
    }

    /// Turns to another dispatcher, after the trainer's pause.
    fn rotate(&mut self, world: &mut World) {
        self.contact.rotate(world);
        if let Some(at) = self.trainer.sync_at() {
            world.timer(at, self.process, Timer::Pump);
        }
    }

    /// Takes one step. Returns a batch that was delivered to the loop, and the result of the step, or `None` if there
    /// was nothing to do.
    pub(super) fn step(
        &mut self,
        world: &mut World,
        step_ms: Millis,
    ) -> (Option<AssembledBatch<SimulatedRows>>, Option<Done>) {
        let mut buffered = 0;
        for (claim, node) in &mut self.reading {
            let Some(trainer) = self.trainer.trainer(*claim) else { continue };
            node.open(world, trainer);
            while node.take(world, trainer) {
                node.open(world, trainer);
            }
            buffered += trainer.buffered_bytes();
        }
        if buffered > self.buffered_max {
            world.violated(|| format!("rank {} buffers {buffered} bytes over its claims", self.rank));
        }
        let streams = self.trainer.streams();
        if streams > STREAMS_OF_A_RANK_MAX {
            world.violated(|| format!("rank {} has {streams} open streams", self.rank));
        }
        let (mut handed, mut done) = (None, None);
        if self.busy_until <= world.now {
            let next = self.trainer.next(world.now);
            self.end_claims(world);
            match next {
                Next::Deliver(batch) => {
                    self.busy_until = world.now + step_ms;
                    world.timer(self.busy_until, self.process, Timer::Pump);
                    handed = Some(*batch);
                    done = Some(Done::Nothing);
                }
                Next::End => return (None, Some(Done::Ended)),
                Next::Fail(report) => {
                    world.failed(&report);
                    // An error of a claim's windows is not about the job.
                    let is_of_claim = self.trainer.reading().next().is_some();
                    let kind = if is_of_claim { ErrorKind::Data } else { report.kind };
                    return (None, Some(Done::Failed(Report { kind, ..report })));
                }
                Next::Wait => {
                    if let Some(report) = self.failed(world.now) {
                        world.failed(&report);
                        return (None, Some(Done::Failed(report)));
                    }
                }
            }
        }
        for (claim, node) in &mut self.reading {
            if let Some(trainer) = self.trainer.trainer(*claim) {
                node.wait(world, trainer);
            }
        }
        self.sync(world);
        (handed, done)
    }

    /// Returns the reason that no claim can be granted, if it has lasted long and no claim is being read.
    fn failed(&self, now: Millis) -> Option<Report> {
        let is_long = self.failed_since.is_some_and(|since| since + FAILED_MS <= now);
        let reply = self.trainer.claimer().latest().filter(|_| is_long && self.reading.is_empty());
        reply.and_then(|reply| reply.failed.clone())
    }

    /// Ends the readers of claims that were read to their end.
    fn end_claims(&mut self, world: &mut World) {
        while let Some((claim, node)) = self.reading.front_mut()
            && self.trainer.trainer(*claim).is_none()
        {
            if let Some(leave) = self.trainer.end(*claim, world.now) {
                node.end(world, leave);
            }
            self.reading.pop_front();
        }
    }
}
