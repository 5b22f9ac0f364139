//! A trainer's side of dynamic delivery: one rank that asks for claims, and reads each claim as a run of offsets.
//!
//! The counterpart of [`Trainer`], which is for ordered delivery; it also has no I/O and no clock. It owns the rank's
//! [`Claimer`] and one trainer for each claim that is being read. The caller sends its messages, passes it the answers,
//! follows the routes of each claim's trainer, and asks it for the loop's next batch. The rules:
//!
//! - Of an answer of a dispatcher that the rank has left, only the newest process of each rank counts.
//! - A rank leaves a dispatcher that does not answer or has no workers, and asks the next after a pause.
//! - A rank that waits for other ranks looks for them at the next dispatcher.
//! - The loop gets the batches of one claim after the other. The next claim is received meanwhile.
//! - A token counts exactly the batches that were delivered to the loop.
//! - A rank ends when a dispatcher knows that it takes no more claims, so that no other rank waits for it.
//! - A process that a newer one has replaced delivers no more batches.
//! - One limit bounds what all claims of a rank receive at a time: see [`DynamicTrainer::limits`].

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
use crate::trainer::{AssembledBatch, Next, Origin, ReceiveLimits, STREAMS_MAX, Trainer};
use crate::trouble::{Trouble, awaited, no_workers};

/// The most streams that a rank has open at a time, over all claims that it reads.
///
/// All streams of a rank to a worker share one connection. The flow-control window of the connection must be at least
/// this many times the window of a stream: then streams that wait for room never keep the stream that the loop waits
/// for from sending.
pub const STREAMS_OF_A_RANK_MAX: usize = STREAMS_MAX * CLAIMS_HELD_MAX;
/// The most unanswered messages at a time: one that waits for news, and one that brings news.
const CALLS_MAX: usize = 2;
/// A rank that was granted all it can get, and has delivered it, waits this long for a dispatcher to know.
const FAREWELL_MS: Millis = 5_000;
/// The pause between leaving a dispatcher and asking the next.
const PAUSE_MS: Millis = 200;

/// A rank with dynamic delivery.
#[derive(Debug)]
pub struct DynamicTrainer<R> {
    claimer: Claimer,
    limits: ReceiveLimits,
    patience_ms: Millis,
    dispatchers: usize,
    /// Claims that are being read, in the order in which they were begun.
    reading: VecDeque<(Granted, Trainer<R>)>,
    /// Whether a claim was begun.
    has_begun: bool,
    /// Claims that were read to their end, whose trainers have not yet sent their last message.
    ended: BTreeMap<Claim, Trainer<R>>,
    /// Unanswered messages.
    unanswered: BTreeSet<u64>,
    /// Whether to tell the dispatcher at once, instead of with the next message.
    has_news: bool,
    /// The end of the pause before the next dispatcher is asked.
    paused_until: Option<Millis>,
    /// When ranks started missing at this dispatcher.
    awaiting_since: Option<Millis>,
    trouble: Trouble,
    /// When no claim was left for this rank.
    finished_since: Option<Millis>,
    /// The reason that this rank was refused for good.
    refused: Option<Report>,
}

impl<R> DynamicTrainer<R> {
    /// Creates the rank of `claimer`, which may ask any of `dispatchers`. Its claims share the buffer of `limits`. It
    /// fails when trouble lasts for longer than `patience_ms`.
    pub fn new(claimer: Claimer, dispatchers: usize, limits: ReceiveLimits, patience_ms: Millis) -> Self {
        Self {
            claimer,
            limits,
            patience_ms,
            dispatchers,
            reading: VecDeque::new(),
            has_begun: false,
            ended: BTreeMap::new(),
            unanswered: BTreeSet::new(),
            has_news: true,
            paused_until: None,
            awaiting_since: None,
            trouble: Trouble::default(),
            finished_since: None,
            refused: None,
        }
    }

    /// Returns the limits of each claim.
    ///
    /// Each claim has as many streams as a rank with ordered delivery, and an equal part of the rank's buffer. A rank
    /// reads at most [`CLAIMS_HELD_MAX`] claims at a time, and so has at most [`STREAMS_OF_A_RANK_MAX`] streams.
    ///
    /// A stream without room in its claim's buffer is not read, and keeps its part of the flow-control window of the
    /// connection, which all streams of the rank share. This function does not prevent that. The transport must give
    /// the connection a window that has room for the windows of all these streams.
    fn limits(&self) -> ReceiveLimits {
        let parts = if holds(Rule::ClaimsShareTheBuffer) { CLAIMS_HELD_MAX as u64 } else { 1 };
        ReceiveLimits { buffered_bytes: self.limits.buffered_bytes / parts, ..self.limits }
    }

    /// Returns a first message for every dispatcher except the current one. It tells them that this process is newer
    /// than any earlier process of the rank, which may ask any of them. Pass its answers to [`reply`](Self::reply), or
    /// a refusal to [`refused`](Self::refused): other dispatchers may know of newer processes of other ranks.
    pub fn announce(&mut self) -> Option<ClaimMessage> {
        (self.dispatchers > 1).then(|| self.claimer.announce())
    }

    /// Returns the next message to the dispatcher, if one is due.
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

    /// Returns when [`sync`](Self::sync) may have a message, if nothing else happens.
    pub fn sync_at(&self) -> Option<Millis> {
        self.paused_until
    }

    /// Returns the last message to the dispatcher.
    pub fn leave(&mut self) -> ClaimMessage {
        self.claimer.leave()
    }

    /// Returns whether message `seq` is unanswered.
    #[cfg(test)]
    fn awaits(&self, seq: u64) -> bool {
        self.unanswered.contains(&seq)
    }

    /// Takes the answer to message `seq`. Errors name `dispatcher`; `is_home` says whether it is the
    /// rank's home ([`Meeting`](crate::Meeting)). Returns whether the caller must turn to the next dispatcher.
    ///
    /// `answer.seq` is the newest message that the dispatcher has heard, which may be later than `seq`.
    #[must_use]
    pub fn reply(&mut self, seq: u64, answer: ClaimAnswer, dispatcher: &str, is_home: bool, now: Millis) -> bool {
        let seq = if holds(Rule::AnswersCountForTheirMessage) { seq } else { answer.seq };
        self.unanswered.remove(&seq);
        if !self.claimer.is_heard(seq) {
            // The current dispatcher must know of newer processes before it grants more.
            self.has_news |= self.claimer.hear_of(&answer.reply.sessions);
            return false;
        }
        let reply = &answer.reply;
        let is_idle = reply.workers == 0;
        let is_awaiting = !reply.awaited.is_empty();
        self.awaiting_since = is_awaiting.then(|| self.awaiting_since.unwrap_or(now));
        let idle = is_idle.then(|| no_workers(dispatcher));
        let trouble =
            reply.failed.clone().or(idle).or_else(|| is_awaiting.then(|| awaited(self.claimer.job(), &reply.awaited)));
        match trouble {
            Some(report) => self.trouble.lasts(report, now),
            None => self.trouble.passes(),
        }
        self.claimer.reply(answer);
        // The awaited ranks may be at another dispatcher.
        let may_turn = self.dispatchers > 1 && holds(Rule::AwaitedRanksAreLookedFor);
        let must_turn = is_idle || (may_turn && self.claimer.should_turn(is_home, self.dispatchers));
        if must_turn {
            self.turn(now);
        }
        must_turn
    }

    /// Records that message `seq` will not be answered. The rank turns to the next dispatcher, if there is one.
    pub fn unanswered(&mut self, seq: u64, why: Report, now: Millis) {
        if holds(Rule::UnansweredIsGivenUp) {
            self.unanswered.remove(&seq);
        }
        if self.claimer.is_heard(seq) {
            self.trouble.lasts(why, now);
            self.turn(now);
        }
    }

    /// Records that a dispatcher refused this rank for good, for example because a newer process replaced it.
    pub fn refused(&mut self, why: Report) {
        self.refused.get_or_insert(why);
    }

    /// Turns to another dispatcher, after a pause.
    fn turn(&mut self, now: Millis) {
        self.claimer.turn();
        // The next dispatcher knows nothing yet, and calls to the one before may still wait for their time limit.
        self.has_news = true;
        self.paused_until = Some(now + PAUSE_MS);
        self.awaiting_since = None;
    }

    /// Returns when ranks started missing at the current dispatcher, and a report that names them.
    pub fn awaiting(&self) -> Option<(Millis, Report)> {
        self.awaiting_since.zip(self.claimer.latest().map(|reply| awaited(self.claimer.job(), &reply.awaited)))
    }

    /// Returns the rank's claims.
    pub fn claimer(&self) -> &Claimer {
        &self.claimer
    }

    /// Begins to read a granted claim; draw `session` at random. From now on the caller follows the routes of the
    /// claim's [`trainer`](Self::trainer). Returns `None` if all granted claims are being read, or as many as may be.
    pub fn begin(&mut self, session: impl FnOnce() -> u64) -> Option<Claim> {
        // A rank of a job that resumed with fewer ranks may hold more claims than it may read at a time.
        if self.reading.len() >= CLAIMS_HELD_MAX && holds(Rule::FewClaimsAreRead) {
            return None;
        }
        let (granted, from) = self.claimer.take()?;
        let settings = self.claimer.settings();
        let first = granted.claim.run * Claimer::claim_rows(settings);
        let offset = if holds(Rule::ClaimsGoOnInTheMiddle) { from } else { first };
        let settings = ReadSettings {
            epochs: granted.claim.epoch + 1,
            // Incomplete batches were left out when the claim was granted.
            drop_last: false,
            rank: 0,
            world_size: 1,
            ..*settings
        };
        let begin = Origin { window: granted.window, window_offset: granted.window_offset, offset };
        let trainer = Trainer::new(Arc::clone(self.claimer.feed()), session(), settings, begin, self.limits());
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        self.reading.push_back((granted, trainer.of_claim(granted.end, is_first)));
        Some(granted.claim)
    }

    /// Returns the trainer of a claim; `None` if the claim is not being read.
    pub fn trainer(&mut self, claim: Claim) -> Option<&mut Trainer<R>> {
        self.reading.iter_mut().find(|(granted, _)| granted.claim == claim).map(|(_, trainer)| trainer)
    }

    /// Returns the number of streams that are open and have rows to bring: at most [`STREAMS_OF_A_RANK_MAX`].
    pub(crate) fn streams(&self) -> usize {
        self.reading.iter().map(|(_, trainer)| trainer.streams()).sum()
    }

    /// Returns the claims that are being read, the one that the loop is in first.
    pub fn reading(&self) -> impl Iterator<Item = Claim> {
        self.reading.iter().map(|(granted, _)| granted.claim)
    }

    /// Returns the last message of a claim's trainer, whether or not the claim was read to its end. Later calls return
    /// `None`.
    pub fn end(&mut self, claim: Claim, now: Millis) -> Option<ReaderSync> {
        match self.ended.remove(&claim) {
            Some(mut trainer) => Some(trainer.leave(now)),
            None => self.trainer(claim).map(|trainer| trainer.leave(now)),
        }
    }

    /// Returns the next batch of the loop. If there is none yet, [`gives_up_at`](Self::gives_up_at) says how long to
    /// wait.
    pub fn next(&mut self, now: Millis) -> Next<R> {
        debug_assert!(self.streams() <= STREAMS_OF_A_RANK_MAX || !holds(Rule::FewClaimsAreRead), "few claims are read");
        // Checked before delivering received batches: another process may deliver them now.
        if let Some(report) = &self.refused {
            return Next::Fail(report.clone());
        }
        while let Some((granted, trainer)) = self.reading.front_mut() {
            let granted = *granted;
            match trainer.next(now) {
                Next::Deliver(batch) => return Next::Deliver(Box::new(self.deliver(&granted, *batch))),
                Next::End => {
                    let (_, trainer) = self.reading.pop_front().expect("the loop's condition found one");
                    self.ended.insert(granted.claim, trainer);
                    self.delivered(&granted, granted.end);
                }
                next => return next,
            }
        }
        if self.claimer.is_finished() && self.finished_since.is_none() {
            self.finished_since = Some(now);
            self.has_news = true;
        }
        if let Some(since) = self.finished_since {
            // All batches were delivered, so a dispatcher that does not answer is no error.
            let is_over = self.claimer.has_ended() || now >= since + FAREWELL_MS || !holds(Rule::EndsAreAcknowledged);
            return if is_over { Next::End } else { Next::Wait };
        }
        match self.trouble.latest() {
            Some((since, report)) if since + self.patience_ms <= now => Next::Fail(report.clone()),
            _ => Next::Wait,
        }
    }

    /// Returns when the loop gives up, or ends without an answer, if nothing else happens.
    pub fn gives_up_at(&self) -> Option<Millis> {
        match self.reading.front() {
            Some((_, trainer)) => trainer.gives_up_at(),
            None if self.finished_since.is_some() => self.finished_since.map(|since| since + FAREWELL_MS),
            None => self.trouble.latest().map(|(since, _)| since + self.patience_ms),
        }
    }

    /// Returns the position after the batches delivered so far.
    pub fn token(&self) -> Token {
        self.claimer.token()
    }

    fn deliver(&mut self, granted: &Granted, batch: AssembledBatch<R>) -> AssembledBatch<R> {
        let before = (!holds(Rule::TokensCountTheBatch)).then(|| self.token());
        self.delivered(granted, batch.offsets.end);
        let step = batch.offsets.start / self.claimer.settings().batch_size;
        AssembledBatch { step, token: before.unwrap_or_else(|| self.token()), ..batch }
    }

    /// Records that every sample of a claim before `offset` was delivered to the loop.
    fn delivered(&mut self, granted: &Granted, offset: u64) {
        self.claimer.delivered(granted.claim, offset);
        self.has_news |= offset >= granted.end;
    }
}

#[cfg(test)]
mod tests;
