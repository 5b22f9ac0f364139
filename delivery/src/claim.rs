//! Claims of dynamic delivery: runs of batches, their place in the log, and the sum of those that are done.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::window::WindowId;

/// The most claims that a rank holds at a time: one to deliver, one to receive.
pub(crate) const CLAIMS_HELD_MAX: usize = 2;

/// A run of batches of an epoch, by its index. In JSON `[epoch, run]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct Claim {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Index of the run in the epoch, from 0.
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
    /// The claim.
    pub claim: Claim,
    /// The offset after its last.
    pub end: u64,
    /// A window at or before its first offset.
    pub window: WindowId,
    /// The window's first offset.
    pub window_offset: u64,
}

/// The claims that all ranks of a job have done and that are kept only as a sum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompletedPrefix {
    /// Every claim before this one is done.
    pub begin: Claim,
    /// The sum of the `mark`s of those claims.
    pub passed: u64,
    /// For each epoch from `begin` on that is counted to its end, its number of claims.
    pub ends: BTreeMap<u64, u64>,
}

/// An odd base. Its powers modulo 2^64 repeat after 2^62.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns `BASE` to the power of `exponent`.
fn power(mut exponent: u64) -> u64 {
    let (mut power, mut square) = (1_u64, BASE);
    while exponent > 0 {
        if exponent & 1 == 1 {
            power = power.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        exponent >>= 1;
    }
    power
}

/// Returns the sum of the marks of consecutive claims of an epoch, without visiting them: a geometric series.
///
/// A mark is a hash of a claim, for sums over many claims. Unlike counts, the sums of different sets of claims differ.
pub(crate) fn marks_of_run(epoch: u64, first: u64, last: u64) -> u64 {
    let mixed = (epoch ^ epoch >> 30).wrapping_add(1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ mixed >> 31 | 1).wrapping_mul(power(last.wrapping_add(1)).wrapping_sub(power(first)))
}

/// Returns the mark of a claim.
#[cfg(test)]
pub(crate) fn mark(claim: &Claim) -> u64 {
    marks_of_run(claim.epoch, claim.run, claim.run)
}

impl CompletedPrefix {
    pub(crate) fn join(&mut self, other: &Self) {
        (self.begin, self.passed) = (self.begin, self.passed).max((other.begin, other.passed));
        self.ends.extend(&other.ends);
        self.ends = self.ends.split_off(&self.begin.epoch);
    }
}
