//! The state of one job with dynamic delivery: its claims, and its ranks in contact.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::claim_messages::{ClaimMessage, ClaimReply, ClaimSync};
use crate::claims::Claims;
use crate::clock::Millis;
use crate::position::EndedRank;
use crate::rules::{Rule, holds};
use crate::sequencer::{Event, ReaderId, Sequencer};
use crate::trouble::AWAITED_MAX;
use crate::window::{Plan, WindowId};

/// A job with dynamic delivery.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) claims: Claims,
    /// The group's own reader in the sequencer, which keeps the windows that claims are cut from leased and counted.
    pub(super) reader: ReaderId,
    pub(super) at: Option<WindowId>,
    pub(super) contact: Millis,
    pub(super) ranks: BTreeMap<u64, RankContact>,
    /// The newest process of each rank, at any dispatcher.
    pub(super) sessions: BTreeMap<u64, u64>,
    /// Ranks that hold no claim and take no more, with the process that ended. They need not be here.
    pub(super) ended: BTreeMap<u64, u64>,
    /// Answers of this era have greater versions.
    pub(super) era: u64,
    /// When ranks started missing.
    pub(super) awaiting: Option<Millis>,
}

/// A job with dynamic delivery, and the ranks it waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// The job's name.
    pub job: String,
    /// The number of ranks.
    pub world_size: u64,
    /// The first ranks that have not yet reported their claims. Claims are granted when there are none.
    pub awaited: Vec<u64>,
    /// Milliseconds that the other ranks have waited for these here; 0 if no rank asks here.
    pub awaiting_ms: Millis,
    /// Claims that ranks hold.
    pub claims_held: usize,
    /// The epoch in which claims are granted.
    pub epoch: u64,
    /// The least number of claims of that epoch that were granted.
    pub claims_granted: u64,
}

/// A rank in contact.
#[derive(Debug)]
pub(super) struct RankContact {
    pub(super) session: u64,
    pub(super) seq: u64,
    pub(super) since: u64,
    /// Whether the rank has named an answer of this era, or had left after it named one of an earlier era.
    pub(super) is_here: bool,
    /// Whether the rank has named any answer of this dispatcher. Reports from before that may be late ones, meant for
    /// an earlier dispatcher.
    pub(super) was_here: bool,
    pub(super) has_left: bool,
    /// The sessions of the ranks that the rank has met, or that its token names.
    pub(super) met: BTreeMap<u64, u64>,
    pub(super) told: Option<ClaimReply>,
    pub(super) version: u64,
}

/// The properties that the ranks of a job share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupKey {
    pub(super) job: String,
    pub(super) world_size: u64,
    origin: u64,
    claim_rows: u64,
    unit: u64,
}

impl GroupKey {
    pub(super) fn of(message: &ClaimMessage) -> Self {
        let claims = &message.claims;
        Self {
            job: claims.job.clone(),
            world_size: message.world_size,
            origin: claims.origin,
            claim_rows: claims.claim_rows,
            unit: claims.unit,
        }
    }
}

impl Group {
    /// Begins a visit of a rank, if this message is the first of one. Returns whether it is, and whether it is the
    /// first of a new process.
    pub(super) fn visit(&mut self, message: &ClaimMessage, era: u64) -> (bool, bool) {
        let ClaimMessage { rank, session, seq, since, .. } = *message;
        let contact = self.ranks.get(&rank);
        let is_new_process = contact.is_none_or(|contact| contact.session != session);
        let is_new = is_new_process || contact.is_some_and(|contact| contact.since < since);
        let is_new_era = is_new && (is_new_process || holds(Rule::AVisitBeginsAnEra));
        if is_new_era {
            self.era = era;
            for contact in self.ranks.values_mut() {
                // A new process may have resumed from an earlier checkpoint together with all ranks, so a rank that
                // left may have to return.
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
                met: BTreeMap::new(),
                told: None,
                version: self.era,
            };
            self.ranks.insert(rank, contact);
        }
        (is_new, is_new_process)
    }

    /// Records a process of a rank, and returns whether it is the newest. Messages of older processes are refused.
    pub(super) fn heard_of(&mut self, rank: u64, session: u64) -> bool {
        if !holds(Rule::OldProcessesAreNotHeard) {
            return true;
        }
        let newest = self.sessions.entry(rank).or_insert(session);
        *newest = session.max(*newest);
        if self.ranks.get(&rank).is_some_and(|contact| contact.session < session) {
            self.ranks.remove(&rank);
        }
        if self.ended.get(&rank).is_some_and(|ended| *ended < session) {
            self.ended.remove(&rank);
        }
        self.sessions[&rank] == session
    }

    /// Returns the first [`AWAITED_MAX`] ranks that have not yet reported their claims.
    pub(super) fn awaited(&self, world_size: u64) -> Vec<u64> {
        let is_here = |rank: &u64| self.ranks.get(rank).is_some_and(|contact| contact.is_here);
        let living: Vec<_> = self.ranks.iter().filter(|(rank, _)| !self.ended.contains_key(rank)).collect();
        let awaited = (0..world_size).filter(|rank| !is_here(rank) && !self.has_ended(*rank, &living));
        awaited.take(AWAITED_MAX).collect()
    }

    /// Returns whether a rank has ended, in the history of all `living` ranks.
    ///
    /// A rank without a token, or with one that is older than the ended process, may have begun together with all
    /// ranks: from the start, or from a checkpoint at which the ended rank had claims that its last process never had.
    fn has_ended(&self, rank: u64, living: &[(&u64, &RankContact)]) -> bool {
        let Some(session) = self.ended.get(&rank).filter(|_| holds(Rule::EndedRanksAreNotAwaited)) else {
            return false;
        };
        living.iter().all(|(_, contact)| contact.met.get(&rank) == Some(session))
    }

    /// Takes what a rank knows of ranks that have ended, and returns those that are news here, each with its claims.
    ///
    /// The claims of a process that has ended never change. A rank whose first report (`is_whole`) is from before the
    /// base knows those that are only a sum here. If all ranks resumed from an earlier checkpoint, they are the ones
    /// to compare with.
    pub(super) fn hear_of_ended(&mut self, message: &ClaimMessage, is_whole: bool) -> Vec<(u64, ClaimSync)> {
        let begin = message.claims.base.begin;
        let others = message.claims.ended.iter().filter(|(rank, _)| **rank < message.world_size);
        let others: Vec<_> = others.filter(|(rank, _)| **rank != message.rank).collect();
        let is_news = |group: &mut Self, rank, session| {
            let is_known = group.ended.get(&rank) == Some(&session);
            let says_more = is_whole && group.claims.begin_of(rank).is_some_and(|known| begin < known);
            (!is_known || says_more) && group.heard_of(rank, session)
        };
        let others = others.into_iter().filter(|(rank, ended)| is_news(self, **rank, ended.session));
        let others: Vec<_> = others.collect();
        self.ended.extend(others.iter().map(|(rank, ended)| (**rank, ended.session)));
        let report = |ended: &EndedRank| ClaimSync {
            before: ended.before,
            done: ended.done.clone(),
            held: Vec::new(),
            ended: BTreeMap::new(),
            is_leaving: true,
            ..message.claims.clone()
        };
        others.into_iter().map(|(&rank, ended)| (rank, report(ended))).collect()
    }

    /// Moves the group's own reader to the window from which claims are cut.
    pub(super) fn follow<P: Plan>(&mut self, sequencer: &mut Sequencer<P>) {
        let to = self.claims.at();
        if to == self.at {
            return;
        }
        let event = match (self.at, to) {
            (Some(at), Some(to)) if to > at => Event::ReaderAdvanced { reader: self.reader, to },
            (None, Some(at)) => self.joined(at),
            // Claims of a resumed rank may lie further back. The job continues, so lost workers still count.
            (Some(_), Some(at)) => {
                let (until_epoch, share) = (self.claims.until_epoch(), 0.0);
                Event::ReaderContinued { reader: self.reader, at, until_epoch, share }
            }
            (_, None) => Event::ReaderLeft { reader: self.reader },
        };
        let _ = sequencer.handle(event);
        self.at = to;
    }

    pub(super) fn joined(&self, at: WindowId) -> Event {
        Event::ReaderJoined { reader: self.reader, at, until_epoch: self.claims.until_epoch(), share: 0.0 }
    }
}
