//! The dispatcher's part in dynamic delivery: one [`Claims`] for each job of a feed.
//!
//! Several dispatchers may be up, and each rank goes from one to the other as it likes. Two of them must not both
//! believe that they know what every rank holds. So whenever a rank comes to a dispatcher, new or from elsewhere, an
//! *era* begins there: nothing is granted until every rank has named an answer of this era, which shows that it was
//! here since. A rank that goes elsewhere takes no answer any more from where it was; thus of two dispatchers only the
//! one that all ranks came to last can grant anything that a rank takes.
//!
//! Ranks that wait for others look for them at the next dispatcher, and must not miss each other for ever. They leave
//! by the
//! dispatcher's clock, all at the same moments ([`Claimer::should_turn`](crate::Claimer::should_turn)): so those that met
//! once mostly stay together.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Dispatcher, OpenFeed, computing, lost_too_often};
use crate::claim_messages::{ClaimAnswer, ClaimMessage, ClaimReply};
use crate::claims::Claims;
use crate::clock::Millis;
use crate::error::ErrorKind;
use crate::messages::Report;
use crate::rules::{Rule, holds};
use crate::sequencer::{Event, ReaderId};
use crate::sessions;
use crate::window::{Plan, WindowId};

/// Whoever was not heard of for so long asks elsewhere.
const ASKED_MS: Millis = 1_500;
const WORLD_SIZE_MAX: u64 = sessions::RANKS_MAX;

/// A job whose ranks take batches as they come.
#[derive(Debug)]
pub(super) struct Group {
    claims: Claims,
    /// It reads the windows that claims are cut from, so that they are counted and kept.
    reader: ReaderId,
    at: Option<WindowId>,
    contact: Millis,
    ranks: BTreeMap<u64, RankContact>,
    /// The newest of each rank, here or elsewhere.
    sessions: BTreeMap<u64, u64>,
    /// Answers of this era have greater versions.
    era: u64,
    /// Since when it is not all ranks that are here.
    awaiting: Option<Millis>,
}

/// Why a rank's message about its claims has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// It makes no sense.
    Invalid(String),
    /// A newer process is this rank: this one is over.
    Replaced {
        /// Which rank.
        rank: u64,
        /// Of which job.
        job: String,
    },
    /// The feed was closed meanwhile.
    Gone,
}

impl Unanswered {
    fn replaced(message: &ClaimMessage) -> Self {
        Self::Replaced { rank: message.rank, job: message.claims.job.clone() }
    }

    /// The same as an error on its way.
    pub fn report(&self) -> Report {
        let (kind, message, hint) = match self {
            Self::Invalid(message) => (ErrorKind::Invalid, message.clone(), None),
            Self::Replaced { rank, job } => (
                ErrorKind::Conflict,
                format!("another process reads as rank {rank} of job \"{job}\" since"),
                Some(
                    "each rank of a job is one process, and the one that began last is it; if this is the one that began \
                     last, the clock of the other's machine is ahead",
                ),
            ),
            Self::Gone => (ErrorKind::Unavailable, "the feed was closed".to_owned(), None),
        };
        Report { kind, message, hint: hint.map(str::to_owned), retry: false }
    }
}

/// A job with dynamic delivery, and whom it waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Its name.
    pub job: String,
    /// How many ranks it has.
    pub world_size: u64,
    /// Ranks that have yet to say what they hold: nothing is granted before.
    pub awaited: Vec<u64>,
    /// Milliseconds since others ask here and wait for them; 0 where nobody asks.
    pub awaiting_ms: Millis,
    /// Claims that ranks hold.
    pub claims_held: usize,
    /// The epoch that claims are granted in.
    pub epoch: u64,
    /// Claims of that epoch that were granted, at least.
    pub claims_granted: u64,
}

#[derive(Debug)]
struct RankContact {
    session: u64,
    seq: u64,
    since: u64,
    /// Whether it has named an answer of this era, or had and then left.
    is_here: bool,
    /// Whether it has named any answer. What it said before may have been late, and said to another process.
    was_here: bool,
    has_left: bool,
    told: Option<ClaimReply>,
    version: u64,
}

/// What the ranks of a job have in common: name, world size, beginning, rows in a claim and unit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupKey(String, u64, u64, u64, u64);

impl GroupKey {
    fn of(message: &ClaimMessage) -> Self {
        let claims = &message.claims;
        Self(claims.job.clone(), message.world_size, claims.origin, claims.claim_rows, claims.unit)
    }
}

impl<P: Plan> Dispatcher<P> {
    /// Takes a rank's message about its claims; [`claim_answer`](Self::claim_answer) then is what to answer.
    ///
    /// # Errors
    /// Why it cannot take part.
    pub fn claim_sync(&mut self, message: &ClaimMessage, now: Millis) -> Result<(), Unanswered> {
        self.tick(now);
        let (reader, era) = (self.number(), self.number());
        let Some(feed) = self.feeds.get_mut(&message.feed) else { return Ok(()) };
        feed.last_read = now;
        let ClaimMessage { rank, world_size, session, seq, since, known, .. } = *message;
        if rank >= world_size || world_size > WORLD_SIZE_MAX {
            let message = format!("rank {rank} is not one of {world_size}, or those are more than {WORLD_SIZE_MAX}");
            return Err(Unanswered::Invalid(message));
        }
        if !message.is_sane(feed.sequencer.plan()) {
            return Err(Unanswered::Invalid("the claims are not of this feed".to_owned()));
        }
        let group = feed.groups.entry(GroupKey::of(message)).or_insert_with(|| Group {
            claims: Claims::new(&message.claims),
            reader,
            at: None,
            contact: now,
            ranks: BTreeMap::new(),
            sessions: BTreeMap::new(),
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
        let contact = group.ranks.get(&rank);
        if contact.is_some_and(|contact| contact.session == session && contact.seq >= seq) {
            return Ok(());
        }
        let is_new_process = contact.is_none_or(|contact| contact.session != session);
        let is_new = is_new_process || contact.is_some_and(|contact| contact.since < since);
        let is_new_era = is_new && (is_new_process || holds(Rule::AVisitBeginsAnEra));
        if is_new_era {
            group.era = era;
            for contact in group.ranks.values_mut() {
                // With a new process, one that left may have to do again what it did: all may have resumed from before.
                contact.has_left &= !is_new_process;
                contact.is_here = contact.has_left;
                contact.told = None;
            }
        }
        if is_new {
            let contact = RankContact {
                session,
                seq,
                since,
                is_here: false,
                was_here: false,
                has_left: false,
                told: None,
                version: group.era,
            };
            group.ranks.insert(rank, contact);
        }
        let contact = group.ranks.get_mut(&rank).expect("just looked at");
        contact.seq = seq;
        contact.is_here |= group.era < known && known <= contact.version;
        contact.has_left = contact.is_here && message.claims.is_leaving;
        // One that leaves takes nothing any more that it does not name.
        let is_whole = !contact.was_here || message.claims.is_leaving;
        contact.was_here |= contact.is_here;
        let all_here = group.awaited(world_size).is_empty();
        // Others learn of it now: that they wait no more, or for whom, or what came back to all.
        self.revision += u64::from(is_new || is_whole || all_here == group.awaiting.is_some());
        group.awaiting = (!all_here).then(|| group.awaiting.unwrap_or(now));
        group.claims.sync(rank, message.until_epoch, is_whole, all_here, &message.claims);
        if is_new_process {
            // It may have come to see whether what failed still does.
            feed.retry_group(&GroupKey::of(message));
        }
        Ok(())
    }

    /// Jobs with dynamic delivery, those that began anew counted again until they are forgotten.
    #[cfg(test)]
    pub(crate) fn groups(&self) -> usize {
        self.feeds.values().map(|feed| feed.groups.len()).sum()
    }

    /// What a rank should know about its claims; a new version whenever that changed.
    ///
    /// # Errors
    /// Why it should know nothing any more.
    pub fn claim_answer(&mut self, message: &ClaimMessage, now: Millis) -> Result<ClaimAnswer, Unanswered> {
        let new_version = self.number();
        let feed = self.feeds.get_mut(&message.feed).ok_or(Unanswered::Gone)?;
        let group = feed.groups.get_mut(&GroupKey::of(message)).ok_or(Unanswered::Gone)?;
        if group.ranks.get(&message.rank).is_none_or(|contact| contact.session != message.session) {
            return Err(Unanswered::replaced(message));
        }
        let awaited = group.awaited(message.world_size);
        let mut reply = group.claims.reply(message.rank, awaited, &feed.sequencer);
        reply.sessions.clone_from(&group.sessions);
        group.follow(&mut feed.sequencer);
        if let Some(window) = group.claims.needed().filter(|&window| feed.sequencer.has_failed(window)) {
            let why = feed.failures.get(&window).cloned();
            reply.failed = Some(why.unwrap_or_else(|| lost_too_often(window, &feed.about)));
        }
        let (workers, refusal) = computing(&self.workers, &message.feed);
        reply.workers = workers;
        if let Some(refusal) = refusal.filter(|_| !self.young) {
            reply.failed = Some(refusal.clone());
        }
        let contact = group.ranks.get_mut(&message.rank).ok_or(Unanswered::Gone)?;
        if contact.told.as_ref() != Some(&reply) {
            contact.told = Some(reply.clone());
            contact.version = new_version;
        }
        Ok(ClaimAnswer { version: contact.version, seq: contact.seq, clock_ms: now, reply })
    }
}

impl Group {
    /// Whether this is the newest process of the rank; what an older one said does not count any more.
    fn heard_of(&mut self, rank: u64, session: u64) -> bool {
        if !holds(Rule::OldProcessesAreNotHeard) {
            return true;
        }
        let newest = self.sessions.entry(rank).or_insert(session);
        *newest = session.max(*newest);
        if self.ranks.get(&rank).is_some_and(|contact| contact.session < session) {
            self.ranks.remove(&rank);
        }
        self.sessions[&rank] == session
    }

    /// Ranks that have yet to say what they hold.
    fn awaited(&self, world_size: u64) -> Vec<u64> {
        let is_here = |rank: &u64| self.ranks.get(rank).is_some_and(|contact| contact.is_here);
        (0..world_size).filter(|rank| !is_here(rank)).collect()
    }

    /// Moves the group's own reader to where claims are cut now.
    fn follow<P: Plan>(&mut self, sequencer: &mut crate::Sequencer<P>) {
        let to = self.claims.at();
        if to == self.at {
            return;
        }
        let event = match (self.at, to) {
            (Some(at), Some(to)) if to > at => Event::ReaderAdvanced { reader: self.reader, to },
            // Claims that came back may lie further back.
            (_, Some(at)) => self.joined(at),
            (_, None) => Event::ReaderLeft { reader: self.reader },
        };
        let _ = sequencer.handle(event);
        self.at = to;
    }

    fn joined(&self, at: WindowId) -> Event {
        Event::ReaderJoined { reader: self.reader, at, until_epoch: self.claims.until_epoch(), share: 0.0 }
    }
}

impl<P: Plan> OpenFeed<P> {
    /// Tries again what failed and this job needs.
    fn retry_group(&mut self, key: &GroupKey) {
        if let Some((group, at)) = self.groups.get(key).and_then(|group| Some((group, group.at?))) {
            self.failures.retain(|&window, _| window < at);
            let _ = self.sequencer.handle(group.joined(at));
        }
    }

    /// Jobs that are silent keep what they claimed, but no windows; after long silence they are forgotten, as by a new
    /// dispatcher.
    pub(super) fn rest_groups(&mut self, silent_since: Millis, forgotten_since: Millis) {
        for group in self.groups.values_mut().filter(|group| group.contact < silent_since && group.at.is_some()) {
            let _ = self.sequencer.handle(Event::ReaderLeft { reader: group.reader });
            group.at = None;
        }
        self.groups.retain(|_, group| group.contact >= forgotten_since);
    }

    /// The jobs that share it dynamically.
    pub(super) fn jobs(&self, now: Millis) -> impl Iterator<Item = JobStatus> {
        let mut newest: BTreeMap<&str, (&GroupKey, &Group)> = BTreeMap::new();
        for (key, group) in &self.groups {
            // A job that began anew may be another group than before.
            let seen = newest.entry(&key.0).or_insert((key, group));
            if seen.1.contact < group.contact {
                *seen = (key, group);
            }
        }
        newest.into_values().map(move |(GroupKey(job, world_size, ..), group)| JobStatus {
            job: job.clone(),
            world_size: *world_size,
            awaited: group.awaited(*world_size),
            awaiting_ms: group
                .awaiting
                .filter(|_| group.contact + ASKED_MS >= now)
                .map_or(0, |since| now.saturating_sub(since)),
            claims_held: group.claims.held(),
            epoch: group.claims.next().epoch,
            claims_granted: group.claims.next().run,
        })
    }

    /// Whoever was silent while this process stood still is not to blame.
    pub(super) fn excuse_groups(&mut self, still: Millis) {
        self.groups.values_mut().for_each(|group| group.contact += still);
    }
}
