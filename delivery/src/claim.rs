//! Claims of dynamic delivery: runs of batches, where they lie, and how those that are done are added up.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::window::WindowId;

/// Claims that a rank holds at a time: one to hand out, one to receive.
pub(crate) const CLAIMS_HELD_MAX: usize = 2;

/// Names a run of batches of an epoch: the `run`-th, from 0. In JSON `[epoch, run]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct Claim {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Place in the epoch, from 0.
    pub run: u64,
}

impl From<(u64, u64)> for Claim {
    fn from((epoch, run): (u64, u64)) -> Self {
        Self { epoch, run }
    }
}

impl From<Claim> for (u64, u64) {
    fn from(Claim { epoch, run }: Claim) -> Self {
        (epoch, run)
    }
}

/// A claim with its place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Granted {
    /// Which.
    pub claim: Claim,
    /// One past its last offset.
    pub end: u64,
    /// A window at or before its first offset.
    pub window: WindowId,
    /// That window's first offset.
    pub window_offset: u64,
}

/// What all ranks of a job have done together, and nobody has to remember one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompletedPrefix {
    /// Everything before it is done.
    pub begin: Claim,
    /// Which claims these are, as the sum of their `mark`s.
    pub passed: u64,
    /// Claims in epochs that have been counted to their end, from there on.
    pub ends: BTreeMap<u64, u64>,
}

/// Stands for a claim in sums of many: sums of different sets of claims differ, which their counts need not.
pub(crate) fn mark(claim: &Claim) -> u64 {
    let mixed = (claim.epoch << 32 ^ claim.run).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// The sum of the marks of some claims.
pub(crate) fn marks<'a>(claims: impl Iterator<Item = &'a Claim>) -> u64 {
    claims.map(mark).fold(0, u64::wrapping_add)
}

impl CompletedPrefix {
    pub(crate) fn join(&mut self, other: &Self) {
        (self.begin, self.passed) = (self.begin, self.passed).max((other.begin, other.passed));
        self.ends.extend(&other.ends);
        self.ends = self.ends.split_off(&self.begin.epoch);
    }
}
