//! The dispatcher's part in dynamic delivery: one [`Claims`] for each job of a feed.
//!
//! With several dispatchers, each rank chooses which one it asks. Two dispatchers must not both believe that they know
//! the claims of every rank. So whenever a rank arrives at a dispatcher, a new *era* begins there. No claim is granted
//! until every rank has named an answer of this era, which proves that the rank has been there since. A rank that turns
//! to another dispatcher ignores later answers of the one it left. So of two dispatchers, only the one that all ranks
//! asked last can grant a claim that a rank takes.
//!
//! A rank that has ended holds no claim and takes no more, so it need not be here. The dispatcher that it told of its
//! end tells the other ranks, which tell other dispatchers and keep it in their tokens. If its end is known neither
//! here nor to any rank, it is awaited like any other.
//!
//! Ranks that wait for others look for them at the next dispatcher, and must not keep missing each other. All ranks at
//! a dispatcher leave it at the same moments of its clock ([`Claimer::should_turn`](crate::Claimer::should_turn)), so
//! ranks that met mostly stay together.

use std::collections::BTreeMap;

use super::group::{Group, GroupKey};
use super::{Dispatcher, computing, writing};
use crate::claim_messages::{ClaimAnswer, ClaimMessage};
use crate::claims::Claims;
use crate::clock::Millis;
use crate::error::ErrorKind;
use crate::messages::Report;
use crate::rules::{Rule, holds};
use crate::sessions;
use crate::trouble::replaced;
use crate::window::Plan;

const WORLD_SIZE_MAX: u64 = sessions::RANKS_MAX;
/// The most jobs of a feed with dynamic delivery. A job that is silent is forgotten after a minute.
pub(super) const JOBS_MAX: usize = if cfg!(test) { 64 } else { 256 };

/// Why a rank's message about its claims gets no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The message is invalid.
    Invalid(String),
    /// A newer process of the same rank replaced this one.
    Replaced {
        /// The rank.
        rank: u64,
        /// The job's name.
        job: String,
    },
    /// The feed has as many jobs as it may have.
    TooManyJobs,
    /// The feed was closed.
    Gone,
}

impl Unanswered {
    fn replaced(message: &ClaimMessage) -> Self {
        Self::Replaced { rank: message.rank, job: message.claims.job.clone() }
    }

    /// Returns the same as a report.
    pub fn report(&self) -> Report {
        let (kind, message) = match self {
            Self::Invalid(message) => (ErrorKind::Invalid, message.clone()),
            Self::Replaced { rank, job } => return replaced(*rank, job),
            Self::TooManyJobs => {
                (ErrorKind::Exhausted, format!("the feed is read by {JOBS_MAX} jobs with dynamic delivery already"))
            }
            Self::Gone => (ErrorKind::Unavailable, "the feed was closed".to_owned()),
        };
        Report { kind, message, hint: None, retry: false }
    }
}

impl<P: Plan> Dispatcher<P> {
    /// Takes a rank's message about its claims. [`claim_answer`](Self::claim_answer) returns the answer.
    ///
    /// # Errors
    /// Returns the reason if the rank cannot take part.
    pub fn claim_sync(&mut self, message: &ClaimMessage, now: Millis) -> Result<(), Unanswered> {
        self.tick(now);
        let (reader, era) = (self.number(), self.number());
        let Some(feed) = self.feeds.get_mut(&message.feed) else { return Ok(()) };
        if feed.writing.is_some() {
            return Err(Unanswered::Invalid(writing::not_a_feed(&message.feed).message));
        }
        feed.last_read = now;
        let ClaimMessage { rank, world_size, session, seq, known, .. } = *message;
        if rank >= world_size || world_size > WORLD_SIZE_MAX {
            let message = format!(
                "\"rank\" must be below \"world_size\", and \"world_size\" at most {WORLD_SIZE_MAX}, \
                 got rank {rank} of {world_size}"
            );
            return Err(Unanswered::Invalid(message));
        }
        if !message.is_sane(feed.sequencer.plan()) && holds(Rule::ClaimsFitTheFeed) {
            return Err(Unanswered::Invalid("the claims do not fit this feed".to_owned()));
        }
        let key = GroupKey::of(message);
        if feed.groups.len() >= JOBS_MAX && !feed.groups.contains_key(&key) {
            return Err(Unanswered::TooManyJobs);
        }
        let group = feed.groups.entry(key).or_insert_with(|| Group {
            claims: Claims::new(&message.claims),
            reader,
            at: None,
            contact: now,
            ranks: BTreeMap::new(),
            sessions: BTreeMap::new(),
            ended: BTreeMap::new(),
            era,
            awaiting: Some(now),
        });
        group.contact = now;
        for (&other, &newest) in message.claims.sessions.iter().filter(|(other, _)| **other < world_size) {
            group.heard_of(other, newest);
        }
        if !group.heard_of(rank, session) {
            return Err(Unanswered::replaced(message));
        }
        let is_end = message.claims.is_leaving && message.claims.held.is_empty();
        if group.ended.get(&rank) == Some(&session) && !is_end {
            // A late message from before the end, which another rank has reported here.
            return Ok(());
        }
        let contact = group.ranks.get(&rank);
        if contact.is_some_and(|contact| contact.session == session && contact.seq >= seq) {
            return Ok(());
        }
        let (is_new, is_new_process) = group.visit(message, era);
        let contact = group.ranks.get_mut(&rank).expect("a visit begins with a contact");
        contact.seq = seq;
        contact.met.clone_from(&message.claims.met);
        contact.is_here |= group.era < known && known <= contact.version;
        contact.has_left = contact.is_here && message.claims.is_leaving;
        // A leaving rank takes no claim that it does not name.
        let is_whole = !contact.was_here || message.claims.is_leaving;
        contact.was_here |= contact.is_here;
        if is_end {
            // An end is final, so it counts even if the message is late or was meant for an earlier dispatcher.
            group.ended.insert(rank, session);
        }
        let ended = group.hear_of_ended(message, is_whole);
        let all_here = group.awaited(world_size).is_empty();
        // Wakes the other ranks: the set of awaited ranks, or of claims to grant, may have changed.
        self.revision += u64::from(is_new || is_whole || !ended.is_empty() || all_here == group.awaiting.is_some());
        group.awaiting = (!all_here).then(|| group.awaiting.unwrap_or(now));
        for (other, report) in &ended {
            group.claims.sync(*other, message.until_epoch, true, all_here, report);
        }
        group.claims.sync(rank, message.until_epoch, is_whole, all_here, &message.claims);
        if is_new_process {
            // The rank may have restarted to retry a failed window.
            feed.retry_group(&GroupKey::of(message));
        }
        Ok(())
    }

    /// Returns the number of groups. A job that began again counts twice until its old group is forgotten.
    #[cfg(test)]
    pub(crate) fn groups(&self) -> usize {
        self.feeds.values().map(|feed| feed.groups.len()).sum()
    }

    /// Returns the answer about a rank's claims. Its version changes when its content changes.
    ///
    /// # Errors
    /// Returns the reason if the rank no longer takes part.
    pub fn claim_answer(&mut self, message: &ClaimMessage, now: Millis) -> Result<ClaimAnswer, Unanswered> {
        let new_version = self.number();
        let feed = self.feeds.get_mut(&message.feed).ok_or(Unanswered::Gone)?;
        let key = GroupKey::of(message);
        let group = feed.groups.get_mut(&key).ok_or(Unanswered::Gone)?;
        if group.ranks.get(&message.rank).is_none_or(|contact| contact.session != message.session) {
            return Err(Unanswered::replaced(message));
        }
        let awaited = group.awaited(message.world_size);
        let mut reply = group.claims.reply(message.rank, awaited, &feed.sequencer);
        reply.sessions.clone_from(&group.sessions);
        let own = |rank: u64| group.claims.is_settled() || rank == message.rank;
        let ended = group.ended.iter().filter(|(rank, _)| own(**rank));
        reply.ended = ended.map(|(&rank, &session)| (rank, group.claims.ended(rank, session))).collect();
        group.follow(&mut feed.sequencer);
        if let Some(window) = group.claims.needed().filter(|&window| feed.sequencer.has_failed(window)) {
            reply.failed = Some(feed.failure(window));
        }
        let (workers, refusal) = computing(&self.workers, &message.feed);
        reply.workers = workers;
        if let Some(refusal) = refusal.filter(|_| !self.young) {
            reply.failed = Some(refusal.clone());
        }
        let group = feed.groups.get_mut(&key).ok_or(Unanswered::Gone)?;
        let contact = group.ranks.get_mut(&message.rank).ok_or(Unanswered::Gone)?;
        if contact.told.as_ref() != Some(&reply) {
            contact.told = Some(reply.clone());
            contact.version = new_version;
        }
        Ok(ClaimAnswer { version: contact.version, seq: contact.seq, clock_ms: now, reply })
    }
}
