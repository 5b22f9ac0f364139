//! Tokens that the ranks of a job save, and those of all ranks joined.

use std::collections::BTreeSet;

use super::faults::Fault;
use super::oracle::Taken;
use super::world::World;
use crate::rules::{Rule, holds};
use crate::{ClaimMarks, Start};

/// A token, and the number of batches that its rank had taken.
pub(super) type Saved = (String, usize);

/// Returns the tokens of all ranks as one text.
pub(super) fn joined(saved: &[Saved]) -> String {
    saved.iter().map(|(token, _)| token.as_str()).collect::<Vec<_>>().join(",")
}

/// Returns the claims of a token.
pub(super) fn marks(token: &str) -> Option<ClaimMarks> {
    match token.parse() {
        Ok(Start::Token(token)) => token.claims.as_deref().cloned(),
        _ => None,
    }
}

/// The last token of an old process that is gone.
pub(super) struct OldToken {
    pub(super) rank: usize,
    /// The batches that the process had taken.
    pub(super) taken: Vec<Taken>,
    pub(super) token: String,
}

impl OldToken {
    /// Checks that the token joins those of the other ranks only if no batch is in two of them. `taken` are the batches
    /// of each rank.
    pub(super) fn join<'a>(&self, world: &mut World, saved: &[Saved], taken: impl Iterator<Item = &'a [Taken]>) {
        let mut saved = saved.to_vec();
        saved[self.rank].0.clone_from(&self.token);
        let joined = joined(&saved);
        let others = saved.len() as u64 % 4 + 1;
        if marks(&joined).is_none_or(|marks| marks.of(0, others).is_err()) {
            if holds(Rule::TokensAreOfOneHistory) {
                world.faults.fired(Fault::OldTokensRefused);
            }
            return;
        }
        let others = taken.enumerate().filter(|(rank, _)| *rank != self.rank);
        let mut all = BTreeSet::new();
        for (epoch, offsets) in others.flat_map(|(_, taken)| taken).chain(&self.taken) {
            if !all.insert((*epoch, offsets.start)) {
                return world.violated(|| format!("{epoch}:{offsets:?} is in two of {joined}"));
            }
        }
    }
}
