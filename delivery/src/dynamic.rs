//! A trainer's side of dynamic delivery: one rank that claims batches as they come, and reads each claim as a run of
//! offsets.
//!
//! The sister of [`Trainer`] for ordered delivery, and like it without I/O or clock. It owns the rank's [`Claimer`] and
//! one trainer for each claim that is being read. The caller sends the messages that it makes, gives it the answers,
//! follows the routes of each claim's trainer, and asks it for the loop's next batch. The rules:
//!
//! - An answer of a dispatcher that the rank has left changes nothing.
//! - A dispatcher that does not answer, or has no workers, is left for the next one after a pause.
//! - A rank that waits for others looks for them at the next dispatcher.
//! - The loop gets the batches of one claim after the other; the next claim is received meanwhile.
//! - A token counts a batch that the loop was handed, and no other.
//! - A process that a newer one has replaced hands out nothing.
//! - What the claims of a rank receive at a time has one bound: see [`DynamicTrainer::limits`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::claim::{CLAIMS_HELD_MAX, Claim, Granted};
use crate::claim_messages::{ClaimAnswer, ClaimMessage};
use crate::claimer::Claimer;
use crate::clock::Millis;
use crate::messages::{ReaderSync, Report};
use crate::position::Token;
use crate::rules::{Rule, holds};
use crate::settings::ReadSettings;
use crate::trainer::{AssembledBatch, Next, Origin, ReceiveLimits, Trainer};
use crate::trouble::{Trouble, awaited, no_workers};

/// Messages to the dispatcher that wait for an answer at a time: one that waits for news, and one that brings some.
const CALLS_MAX: usize = 2;
/// Between leaving a dispatcher and asking the next.
const PAUSE_MS: Millis = 200;

/// A rank that takes batches as they come.
#[derive(Debug)]
pub struct DynamicTrainer<R> {
    claimer: Claimer,
    limits: ReceiveLimits,
    patience_ms: Millis,
    dispatchers: usize,
    /// Claims that are being read, in the order in which they were taken.
    reading: VecDeque<(Granted, Trainer<R>)>,
    /// Claims that were read to their end, whose dispatcher has not been told.
    ended: BTreeMap<Claim, Trainer<R>>,
    /// Messages that wait for an answer.
    unanswered: BTreeSet<u64>,
    /// Whether the dispatcher should be told at once rather than in its own time.
    has_news: bool,
    /// When the next dispatcher may be asked.
    paused_until: Option<Millis>,
    /// Since when other ranks are awaited at this dispatcher.
    awaiting_since: Option<Millis>,
    trouble: Trouble,
    /// Why this rank may not take part any more.
    refused: Option<Report>,
}

impl<R> DynamicTrainer<R> {
    /// The rank of `claimer`, which may ask any of `dispatchers`. About `buffer_bytes` are received ahead of the loop,
    /// over all claims; trouble that lasts for longer than `patience_ms` is an error.
    pub fn new(claimer: Claimer, dispatchers: usize, buffer_bytes: u64, patience_ms: Millis) -> Self {
        Self {
            claimer,
            limits: ReceiveLimits::of_bytes(buffer_bytes),
            patience_ms,
            dispatchers,
            reading: VecDeque::new(),
            ended: BTreeMap::new(),
            unanswered: BTreeSet::new(),
            has_news: true,
            paused_until: None,
            awaiting_since: None,
            trouble: Trouble::default(),
            refused: None,
        }
    }

    /// What each claim may receive at a time.
    ///
    /// All streams of a rank share one connection, and so one flow-control window. A stream that stands still because
    /// its claim's buffer is full keeps its part of that window. **The bound on what may stand still, over all claims,
    /// belongs here**: no other code decides how many streams a rank has, or how much it buffers. Today each claim has
    /// as many streams as a rank with ordered delivery, and its part of the rank's buffer.
    fn limits(&self) -> ReceiveLimits {
        let parts = if holds(Rule::ClaimsShareTheBuffer) { CLAIMS_HELD_MAX as u64 } else { 1 };
        ReceiveLimits { buffered_bytes: self.limits.buffered_bytes / parts, ..self.limits }
    }

    /// A first message to every dispatcher but the one that is asked: whichever of them an older process of this rank
    /// asks then knows that there is a newer one. Its answer says nothing, unless it is a refusal: see
    /// [`refused`](Self::refused).
    pub fn announce(&mut self) -> Option<ClaimMessage> {
        (self.dispatchers > 1).then(|| self.claimer.announce())
    }

    /// The next message to the dispatcher, if it is time for one.
    pub fn sync(&mut self, now: Millis) -> Option<ClaimMessage> {
        self.paused_until.take_if(|until| *until <= now && holds(Rule::PausesEnd));
        let has_room = self.unanswered.is_empty() || (self.unanswered.len() < CALLS_MAX && self.has_news);
        if self.paused_until.is_some() || !has_room || self.refused.is_some() {
            return None;
        }
        self.has_news = false;
        let message = self.claimer.sync();
        self.unanswered.insert(message.seq);
        Some(message)
    }

    /// When [`sync`](Self::sync) may have a message, if nothing else happens.
    pub fn sync_at(&self) -> Option<Millis> {
        self.paused_until
    }

    /// The last message to the dispatcher.
    pub fn leave(&mut self) -> ClaimMessage {
        self.claimer.leave()
    }

    /// Whether message `seq` still waits for an answer.
    pub fn awaits(&self, seq: u64) -> bool {
        self.unanswered.contains(&seq)
    }

    /// Takes the answer to message `seq` of `dispatcher`, as errors call it, which is the first of the list or not
    /// (`is_first`). Returns whether the caller must turn to the next dispatcher.
    ///
    /// The answer itself names the newest message that the dispatcher has heard, which may be a later one than `seq`.
    #[must_use]
    pub fn reply(&mut self, seq: u64, answer: ClaimAnswer, dispatcher: &str, is_first: bool, now: Millis) -> bool {
        self.unanswered.remove(&seq);
        if !self.claimer.is_heard(seq) {
            return false;
        }
        let reply = &answer.reply;
        let is_idle = reply.workers == 0;
        let is_awaiting = !reply.awaited.is_empty();
        self.awaiting_since = is_awaiting.then(|| self.awaiting_since.unwrap_or(now));
        let idle = is_idle.then(|| no_workers(dispatcher));
        let trouble = reply.failed.clone().or(idle).or_else(|| is_awaiting.then(|| awaited(&reply.awaited)));
        match trouble {
            Some(report) => self.trouble.lasts(report, now),
            None => self.trouble.passes(),
        }
        self.claimer.reply(answer);
        // Ranks that are awaited may be elsewhere.
        let may_turn = self.dispatchers > 1 && holds(Rule::AwaitedRanksAreLookedFor);
        let must_turn = is_idle || (may_turn && self.claimer.should_turn(is_first, self.dispatchers));
        if must_turn {
            self.turn(now);
        }
        must_turn
    }

    /// Message `seq` will not be answered; the caller goes on with the next dispatcher, if there is one.
    pub fn unanswered(&mut self, seq: u64, why: Report, now: Millis) {
        if holds(Rule::UnansweredIsGivenUp) {
            self.unanswered.remove(&seq);
        }
        if self.claimer.is_heard(seq) {
            self.trouble.lasts(why, now);
            self.turn(now);
        }
    }

    /// A dispatcher refuses this rank for good, such as because a newer process is this rank.
    pub fn refused(&mut self, why: Report) {
        self.refused.get_or_insert(why);
    }

    /// The next message goes to another dispatcher, after a pause.
    fn turn(&mut self, now: Millis) {
        self.claimer.turn();
        self.paused_until = Some(now + PAUSE_MS);
        self.awaiting_since = None;
    }

    /// Since when other ranks are awaited at the dispatcher that is asked, and which.
    pub fn awaiting(&self) -> Option<(Millis, Report)> {
        self.awaiting_since.zip(self.claimer.latest().map(|reply| awaited(&reply.awaited)))
    }

    /// The rank's claims, as far as it knows.
    pub fn claimer(&self) -> &Claimer {
        &self.claimer
    }

    /// Begins to read a claim that was granted; `session` should be drawn at random. The caller follows the routes
    /// of its [`trainer`](Self::trainer) from now on. `None` if all claims that were granted are being read.
    pub fn begin(&mut self, session: impl FnOnce() -> u64) -> Option<Claim> {
        let (granted, from) = self.claimer.take()?;
        let settings = self.claimer.settings();
        let first = granted.claim.run * Claimer::claim_rows(settings);
        let offset = if holds(Rule::ClaimsGoOnInTheMiddle) { from } else { first };
        let settings = ReadSettings {
            epochs: granted.claim.epoch + 1,
            // What is not whole was left out when the claim was granted.
            drop_last: false,
            rank: 0,
            world_size: 1,
            ..*settings
        };
        let begin = Origin { window: granted.window, window_offset: granted.window_offset, offset };
        let trainer = Trainer::new(Arc::clone(self.claimer.feed()), session(), settings, begin, self.limits());
        self.reading.push_back((granted, trainer.until(granted.end)));
        Some(granted.claim)
    }

    /// The trainer of a claim; `None` if the claim is not being read, or not any more.
    pub fn trainer(&mut self, claim: Claim) -> Option<&mut Trainer<R>> {
        self.reading.iter_mut().find(|(granted, _)| granted.claim == claim).map(|(_, trainer)| trainer)
    }

    /// Claims that are being read, the one that the loop is in first.
    pub fn reading(&self) -> impl Iterator<Item = Claim> {
        self.reading.iter().map(|(granted, _)| granted.claim)
    }

    /// The last message of a claim's trainer, whether it came to its end or not; `None` after that.
    pub fn end(&mut self, claim: Claim, now: Millis) -> Option<ReaderSync> {
        match self.ended.remove(&claim) {
            Some(mut trainer) => Some(trainer.leave(now)),
            None => self.trainer(claim).map(|trainer| trainer.leave(now)),
        }
    }

    /// What is next for the loop. Where that is nothing yet, [`gives_up_at`](Self::gives_up_at) says how long to wait.
    pub fn next(&mut self, now: Millis) -> Next<R> {
        // Before anything that is here: of a process that was replaced, nothing counts any more.
        if let Some(report) = &self.refused {
            return Next::Fail(report.clone());
        }
        while let Some((granted, trainer)) = self.reading.front_mut() {
            let granted = *granted;
            match trainer.next(now) {
                Next::Deliver(batch) => return Next::Deliver(Box::new(self.hand_out(&granted, *batch))),
                Next::End => {
                    let (_, trainer) = self.reading.pop_front().expect("the one at the front");
                    self.ended.insert(granted.claim, trainer);
                    self.handed(&granted, granted.end);
                }
                next => return next,
            }
        }
        if self.claimer.is_finished() {
            return Next::End;
        }
        match self.trouble.latest() {
            Some((since, report)) if since + self.patience_ms <= now => Next::Fail(report.clone()),
            _ => Next::Wait,
        }
    }

    /// When the loop gives up, if nothing else happens. A claim that is being read has trouble of its own.
    pub fn gives_up_at(&self) -> Option<Millis> {
        let trouble = self.trouble.latest().filter(|_| self.reading.is_empty());
        trouble.map(|(since, _)| since + self.patience_ms)
    }

    /// Where to go on after what was handed out so far.
    pub fn token(&self) -> Token {
        self.claimer.token()
    }

    fn hand_out(&mut self, granted: &Granted, batch: AssembledBatch<R>) -> AssembledBatch<R> {
        let before = (!holds(Rule::TokensCountTheBatch)).then(|| self.token());
        self.handed(granted, batch.offsets.end);
        let step = batch.offsets.start / self.claimer.settings().batch_size;
        AssembledBatch { step, token: before.unwrap_or_else(|| self.token()), ..batch }
    }

    /// Everything of a claim before `offset` was handed to the loop.
    fn handed(&mut self, granted: &Granted, offset: u64) {
        self.claimer.handed(granted.claim, offset);
        self.has_news |= offset >= granted.end;
    }
}

#[cfg(test)]
mod tests;
