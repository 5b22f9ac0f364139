//! What a rank with dynamic delivery and a dispatcher say to each other about claims.
//!
//! As in [`messages`](crate::messages), each states all that its sender knows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::claim::{Claim, CompletedPrefix, Granted};
use crate::clock::Millis;
use crate::messages::Report;
use crate::window::Plan;

/// What a rank says about dynamic delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimSync {
    /// What the ranks of one job have in common, and no other job.
    pub job: String,
    /// Names what the job began with; ranks that began with something else are of another job.
    pub origin: u64,
    /// Offsets in a claim.
    pub claim_rows: u64,
    /// With `drop_last`, the batch size: what an epoch has beyond a multiple of it is left out. Else one.
    pub unit: u64,
    /// What all ranks have done, as far as it knows.
    pub base: CompletedPrefix,
    /// Which of those claims are its own, as the sum of their `mark`s.
    pub before: u64,
    /// What it has handed out since.
    #[serde(with = "crate::runs")]
    pub done: BTreeSet<Claim>,
    /// What it is granted and has not handed out whole.
    pub held: Vec<Granted>,
    /// Its furthest claim: where the windows are.
    pub furthest: Option<Granted>,
    /// The newest session of each rank that it has heard of.
    pub sessions: BTreeMap<u64, u64>,
    /// Whether it wants no more than it holds, and this is its last message.
    pub is_leaving: bool,
}

/// What a rank should know about dynamic delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimReply {
    /// All its claims that are not done.
    pub granted: Vec<Granted>,
    /// What all ranks have done.
    pub base: CompletedPrefix,
    /// There is nothing left to grant.
    pub is_exhausted: bool,
    /// Ranks that have yet to say what they hold.
    pub awaited: Vec<u64>,
    /// The newest session of each rank.
    pub sessions: BTreeMap<u64, u64>,
    /// Workers that compute this feed.
    pub workers: usize,
    /// Why nothing can be granted now.
    pub failed: Option<Report>,
}

/// A rank's message about dynamic delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimMessage {
    /// The feed's id.
    pub feed: Arc<str>,
    /// Drawn when the rank begins, and greater than those of the processes before it.
    pub session: u64,
    /// Counts its messages: an older one that arrives late is ignored.
    pub seq: u64,
    /// The first message that it sent to this dispatcher since it sent one to another.
    pub since: u64,
    /// Which rank.
    pub rank: u64,
    /// Of how many.
    pub world_size: u64,
    /// The epoch it stops before.
    pub until_epoch: u64,
    /// The answer that it goes by, if it is of this dispatcher.
    pub known: u64,
    /// Its claims.
    pub claims: ClaimSync,
}

impl ClaimMessage {
    /// Whether its numbers are of this feed, and small enough to be reckoned with: it may come from anyone.
    pub(crate) fn is_sane<P: Plan>(&self, plan: &P) -> bool {
        let claims = &self.claims;
        let is_claim = |claim: &Claim| claim.epoch <= self.until_epoch && claim.run < 1 << 28;
        let is_granted = |granted: &Granted| {
            is_claim(&granted.claim)
                && granted.window.epoch < self.until_epoch
                && plan.has(granted.window, self.until_epoch)
                && granted.end.max(granted.window_offset) < 1 << 62
        };
        self.until_epoch <= 1 << 32
            && (1..=1 << 34).contains(&claims.claim_rows)
            && (1..=1 << 34).contains(&claims.unit)
            && is_claim(&claims.base.begin)
            && claims.done.iter().all(is_claim)
            && claims.held.iter().chain(&claims.furthest).all(is_granted)
    }
}

/// The answer to a [`ClaimMessage`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimAnswer {
    /// Names this answer.
    pub version: u64,
    /// The message that it answers.
    pub seq: u64,
    /// What the dispatcher's clock says: ranks that wait for others go on to the next dispatcher by it.
    #[serde(default)]
    pub clock_ms: Millis,
    /// The rank's claims.
    pub reply: ClaimReply,
}
