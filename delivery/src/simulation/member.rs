//! A process of a rank with dynamic delivery: it asks for claims, reads them, and hands out batches.

use std::collections::VecDeque;

use super::contact::{Contact, SharedAddress};
use super::faults::Fault;
use super::reader::TrainerNode;
use super::world::{NodeMessage, Process, Rows, Timer, World};
use crate::messages::Report;
use crate::{AssembledBatch, Claimer, Granted, Millis, Next, Trainer};

/// After a dispatcher could not be reached, or knew no workers.
const PAUSE_MS: Millis = 200;
/// A rank that is told for so long why nothing can be granted gives up.
const FAILED_MS: Millis = 3_000;

/// A process of a rank.
pub(super) struct Member {
    pub(super) rank: usize,
    pub(super) process: Process,
    pub(super) claimer: Claimer,
    pub(super) contact: Contact,
    /// Where its claims' readers ask for windows.
    readers_at: SharedAddress,
    /// Claims that are being read, in the order in which they were taken.
    pub(super) reading: VecDeque<(Granted, TrainerNode)>,
    pub(super) busy_until: Millis,
    pub(super) has_news: bool,
    /// After a dispatcher was of no use.
    pub(super) paused_until: Option<Millis>,
    /// Since when others are waited for, at any dispatcher.
    pub(super) awaiting_since: Option<Millis>,
    pub(super) failed_since: Option<Millis>,
}

pub(super) enum Done {
    Nothing,
    Ended,
    Failed(Report),
}

impl Member {
    pub(super) fn new(world: &mut World, rank: usize, process: Process, claimer: Claimer) -> Self {
        Self {
            rank,
            process,
            claimer,
            contact: Contact::new(world),
            readers_at: Contact::anywhere(world),
            reading: VecDeque::new(),
            busy_until: 0,
            has_news: true,
            paused_until: None,
            awaiting_since: None,
            failed_since: None,
        }
    }

    /// Begins to read a claim.
    pub(super) fn read(&mut self, world: &mut World, process: Process, granted: Granted, trainer: Trainer<Rows>) {
        let contact = Contact::sharing(&self.readers_at);
        self.reading.push_back((granted, TrainerNode::new(world, process, trainer, contact)));
    }

    /// Tells the other dispatchers that it is there, if they can be reached.
    pub(super) fn announce(&mut self, world: &mut World) {
        if world.dispatchers > 1 && !world.strikes(500, Fault::Lost) {
            let message = NodeMessage::ClaimSync(Box::new(self.claimer.announce()));
            let others = (0..world.dispatchers).filter(|&it| it != self.contact.dispatcher());
            others.for_each(|other| world.send(self.process, other, None, message.clone()));
        }
    }

    fn sync(&mut self, world: &mut World) {
        self.has_news = false;
        let message = self.claimer.sync();
        self.contact.sent(world, self.process, message.seq);
        world.send(self.process, self.contact.dispatcher(), None, NodeMessage::ClaimSync(Box::new(message)));
    }

    pub(super) fn leave(&mut self, world: &mut World) {
        let message = self.claimer.leave();
        world.send(self.process, self.contact.dispatcher(), None, NodeMessage::ClaimSync(Box::new(message)));
    }

    /// Goes on with another dispatcher, or with what is there in place of this one.
    pub(super) fn turn(&mut self, world: &mut World) {
        self.contact.rotate(world);
        self.claimer.turn();
        self.sync(world);
    }

    pub(super) fn close(self, world: &mut World) {
        self.reading.into_iter().for_each(|(_, reader)| reader.close(world));
    }

    pub(super) fn handle(&mut self, world: &mut World, message: NodeMessage) {
        match message {
            NodeMessage::ClaimAnswer(answer) => {
                self.contact.answered(answer.seq);
                self.claimer.reply(*answer);
                let latest = self.claimer.latest();
                let is_failed = latest.is_some_and(|reply| reply.failed.is_some());
                let is_idle = latest.is_some_and(|reply| reply.workers == 0);
                let is_awaiting = latest.is_some_and(|reply| !reply.awaited.is_empty());
                self.failed_since = is_failed.then(|| self.failed_since.unwrap_or(world.now));
                self.awaiting_since = is_awaiting.then(|| self.awaiting_since.unwrap_or(world.now));
                let is_first = self.contact.dispatcher() == 0;
                if world.dispatchers > 1 && self.claimer.should_turn(is_first, world.dispatchers) {
                    self.turn(world);
                } else if is_idle {
                    self.pause(world);
                } else if self.contact.is_quiet() && self.paused_until.is_none() {
                    self.sync(world);
                }
            }
            NodeMessage::Unreachable => self.pause(world),
            _ => {}
        }
    }

    /// Goes on with another dispatcher after a while.
    fn pause(&mut self, world: &mut World) {
        if self.paused_until.is_none() {
            self.contact.rotate(world);
            self.claimer.turn();
            self.paused_until = Some(world.now + PAUSE_MS);
            world.timer(world.now + PAUSE_MS, self.process, Timer::Pump);
        }
    }

    /// Does what can be done at once: what the loop was handed, each with its token; none of it if there is nothing to do.
    pub(super) fn step(
        &mut self,
        world: &mut World,
        step_ms: Millis,
    ) -> (Vec<(AssembledBatch<Rows>, String)>, Option<Done>) {
        let mut deliveries = Vec::new();
        let mut done = None;
        for (_, reader) in &mut self.reading {
            reader.open(world);
            while reader.take(world) {
                reader.open(world);
            }
        }
        if self.busy_until <= world.now {
            match self.reading.front_mut() {
                Some((granted, reader)) => match reader.trainer.next(world.now) {
                    Next::Deliver(delivery) => {
                        self.busy_until = world.now + step_ms;
                        world.timer(self.busy_until, self.process, Timer::Pump);
                        self.claimer.handed(granted.claim, delivery.offsets.end);
                        self.has_news |= delivery.offsets.end == granted.end;
                        deliveries.push((*delivery, self.claimer.token().to_string()));
                        done = Some(Done::Nothing);
                    }
                    Next::End => {
                        self.claimer.handed(granted.claim, granted.end);
                        self.has_news = true;
                        reader.end(world);
                        self.reading.pop_front();
                        done = Some(Done::Nothing);
                    }
                    Next::Fail(report) => {
                        return (deliveries, Some(Done::Failed(Report { kind: crate::ErrorKind::Data, ..report })));
                    }
                    Next::Wait => {}
                },
                None if self.claimer.is_finished() => return (deliveries, Some(Done::Ended)),
                None => {
                    let reply = self
                        .claimer
                        .latest()
                        .filter(|_| self.failed_since.is_some_and(|since| since + FAILED_MS <= world.now));
                    if let Some(report) = reply.and_then(|reply| reply.failed.clone()) {
                        return (deliveries, Some(Done::Failed(report)));
                    }
                }
            }
        }
        self.reading.iter_mut().for_each(|(_, reader)| reader.wait(world));
        if self.paused_until.is_some_and(|until| until <= world.now) {
            self.paused_until = None;
            self.has_news = true;
        }
        if self.has_news && self.paused_until.is_none() {
            self.sync(world);
        }
        (deliveries, done)
    }
}
