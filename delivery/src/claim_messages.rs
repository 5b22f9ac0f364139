//! Messages about claims between a rank with dynamic delivery and a dispatcher.
//!
//! As in [`messages`](crate::messages), each message states all that its sender knows.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::claim::{CLAIMS_HELD_MAX, Claim, CompletedPrefix, Granted};
use crate::clock::Millis;
use crate::messages::Report;
use crate::position::EndedRank;
use crate::runs::ClaimSet;
use crate::window::Plan;

/// The most claims that a message may name as held. Claims that two dispatchers granted may add up.
const NAMED_HELD_MAX: usize = 8 * CLAIMS_HELD_MAX;
/// The most bytes of a job's name.
const NAME_BYTES_MAX: usize = 512;

/// A rank's state in dynamic delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimSync {
    /// The job's name, which all its ranks share and no other job has.
    pub job: String,
    /// Identifies the position at which the job began. Ranks that began at another position belong to another job.
    pub origin: u64,
    /// Offsets in a claim.
    pub claim_rows: u64,
    /// The batch size with `drop_last`, else 1. The samples of an epoch beyond a multiple of it are left out.
    pub unit: u64,
    /// The claims that all ranks have done, as far as the rank knows.
    pub base: CompletedPrefix,
    /// The sum of the `mark`s of those of these claims that the rank has done itself.
    pub before: u64,
    /// The claims that the rank has delivered since.
    pub done: ClaimSet,
    /// The claims that the rank is granted and has not wholly delivered.
    pub held: Vec<Granted>,
    /// The rank's furthest claim, from which a dispatcher learns where the windows are.
    pub furthest: Option<Granted>,
    /// The newest session that the rank knows of each rank.
    pub sessions: BTreeMap<u64, u64>,
    /// The sessions of the ranks when all of them had last reported their claims, or those that the rank's token names.
    /// The claims of later processes may differ from what they had then.
    #[serde(default)]
    pub met: BTreeMap<u64, u64>,
    /// Other ranks that have ended.
    #[serde(default)]
    pub ended: BTreeMap<u64, EndedRank>,
    /// Whether the rank takes no claims beyond those it holds, from now on. A rank that holds none has then ended.
    pub is_leaving: bool,
}

/// The dispatcher's answer about a rank's claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimReply {
    /// All claims of the rank that are not done.
    pub granted: Vec<Granted>,
    /// The claims that all ranks have done.
    pub base: CompletedPrefix,
    /// Whether no claim is left to grant.
    pub is_exhausted: bool,
    /// The first ranks that have not yet reported their claims.
    pub awaited: Vec<u64>,
    /// The newest session of each rank.
    pub sessions: BTreeMap<u64, u64>,
    /// Ranks that have ended. The rank's own entry acknowledges its end.
    #[serde(default)]
    pub ended: BTreeMap<u64, EndedRank>,
    /// The number of workers that compute this feed.
    pub workers: usize,
    /// The reason that no claim can be granted now.
    pub failed: Option<Report>,
}

/// A rank's message about its claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimMessage {
    /// The feed's id.
    pub feed: Arc<str>,
    /// The rank's process, drawn when it starts; greater than the sessions of the rank's earlier processes.
    pub session: u64,
    /// The message's number. The dispatcher ignores a message that is older than one it has heard.
    pub seq: u64,
    /// The number of the rank's first message since it turned to this dispatcher.
    pub since: u64,
    /// The rank.
    pub rank: u64,
    /// The number of ranks.
    pub world_size: u64,
    /// The epoch before which the rank stops.
    pub until_epoch: u64,
    /// The version of the newest answer of this dispatcher, or 0.
    pub known: u64,
    /// The rank's claims.
    pub claims: ClaimSync,
}

impl ClaimMessage {
    /// Returns whether the message fits this feed and its numbers are small enough to compute with. Any client may have
    /// sent it.
    pub(crate) fn is_sane<P: Plan>(&self, plan: &P) -> bool {
        let claims = &self.claims;
        let is_claim = |claim: &Claim| claim.epoch <= self.until_epoch && claim.run < 1 << 28;
        let is_run = |(epoch, _, last): (u64, u64, u64)| is_claim(&Claim { epoch, run: last });
        let is_granted = |granted: &Granted| {
            is_claim(&granted.claim)
                && granted.window.epoch < self.until_epoch
                && plan.has(granted.window, self.until_epoch)
                && granted.end.max(granted.window_offset) < 1 << 62
        };
        // Each granted claim may be of another epoch, whose windows have to be computed.
        claims.held.len() <= NAMED_HELD_MAX
            && claims.job.len() <= NAME_BYTES_MAX
            && self.until_epoch <= 1 << 32
            && (1..=1 << 34).contains(&claims.claim_rows)
            && (1..=1 << 34).contains(&claims.unit)
            && is_claim(&claims.base.begin)
            && claims.done.runs().all(is_run)
            && claims.ended.values().all(|ended| ended.done.runs().all(is_run))
            && claims.held.iter().chain(&claims.furthest).all(is_granted)
    }
}

/// The answer to a [`ClaimMessage`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimAnswer {
    /// The answer's version, which changes with its content.
    pub version: u64,
    /// The newest message of the rank that the dispatcher has heard.
    pub seq: u64,
    /// The dispatcher's clock, which decides when waiting ranks turn to the next dispatcher.
    #[serde(default)]
    pub clock_ms: Millis,
    /// The rank's claims.
    pub reply: ClaimReply,
}
