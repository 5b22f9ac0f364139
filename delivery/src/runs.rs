//! Sets of claims as runs: consecutive claims of an epoch are kept, and written, as the first and the last. In JSON
//! `[epoch, first, last]`.
//!
//! No function visits the claims of a run one by one. A short text may name a run of any length.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::claim::{Claim, marks_of_run};

/// Indices of claims are less. The number of claims of any text then fits a `u64`.
const INDICES: u64 = 1 << 32;

/// A set of claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimSet {
    /// The last index of each run by its first claim. Between two runs of an epoch there is a claim.
    runs: BTreeMap<Claim, u64>,
}

impl ClaimSet {
    /// Adds a claim.
    pub fn insert(&mut self, claim: Claim) {
        self.insert_run((claim.epoch, claim.run, claim.run));
    }

    fn insert_run(&mut self, (epoch, mut first, mut last): (u64, u64, u64)) {
        let at = |run| Claim { epoch, run };
        if let Some((&before, &end)) = self.runs.range(at(0)..=at(first)).next_back()
            && end.saturating_add(1) >= first
        {
            first = before.run;
            last = last.max(end);
        }
        while let Some((&joined, &end)) = self.runs.range(at(first)..=at(last.saturating_add(1))).next() {
            self.runs.remove(&joined);
            last = last.max(end);
        }
        self.runs.insert(at(first), last);
    }

    /// Adds the claims of another set.
    pub fn extend(&mut self, other: &Self) {
        other.runs().for_each(|run| self.insert_run(run));
    }

    /// Returns whether the set has a claim.
    pub fn contains(&self, claim: &Claim) -> bool {
        self.next_free(*claim) != *claim
    }

    /// Returns the first claim from `claim` on in its epoch that is not in the set.
    pub(crate) fn next_free(&self, claim: Claim) -> Claim {
        let run = self.runs.range(Claim { run: 0, ..claim }..=claim).next_back();
        let last = run.map(|(_, &last)| last).filter(|&last| last >= claim.run);
        Claim { run: last.map_or(claim.run, |last| last.saturating_add(1)), ..claim }
    }

    /// Returns the claims from `begin` on.
    pub(crate) fn from(&self, begin: Claim) -> Self {
        let run = self.runs.range(Claim { run: 0, ..begin }..begin).next_back();
        let cut = run.filter(|(_, last)| **last >= begin.run).map(|(_, &last)| (begin, last));
        Self { runs: self.runs.range(begin..).map(|(&first, &last)| (first, last)).chain(cut).collect() }
    }

    /// Returns the claims before `end`.
    pub(crate) fn before(&self, end: Claim) -> Self {
        let cut = |(first, last): (&Claim, &u64)| {
            (*first, if first.epoch == end.epoch { (*last).min(end.run.saturating_sub(1)) } else { *last })
        };
        Self { runs: self.runs.range(..end).map(cut).collect() }
    }

    /// Returns the number of claims.
    pub fn len(&self) -> u64 {
        self.runs().map(|(_, first, last)| (last - first).saturating_add(1)).fold(0, u64::saturating_add)
    }

    /// Returns whether the set has no claim.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the first claim.
    pub(crate) fn first(&self) -> Option<Claim> {
        self.runs.keys().next().copied()
    }

    /// Returns the claim that has `before` claims before it.
    pub(crate) fn nth(&self, mut before: u64) -> Option<Claim> {
        self.runs().find_map(|(epoch, first, last)| match last - first {
            longer if longer >= before => Some(Claim { epoch, run: first + before }),
            shorter => {
                before -= shorter + 1;
                None
            }
        })
    }

    /// Returns the sum of the claims' marks.
    pub(crate) fn marks(&self) -> u64 {
        self.runs().map(|(epoch, first, last)| marks_of_run(epoch, first, last)).fold(0, u64::wrapping_add)
    }

    /// Returns epoch, first and last index of each run.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.runs.iter().map(|(first, &last)| (first.epoch, first.run, last))
    }

    /// Returns the set of `runs`; `None` if a run ends before it begins, or an index is too large.
    pub(crate) fn of_runs(runs: impl Iterator<Item = (u64, u64, u64)>) -> Option<Self> {
        let mut set = Self::default();
        for (epoch, first, last) in runs {
            (first <= last && last < INDICES).then_some(())?;
            set.insert_run((epoch, first, last));
        }
        Some(set)
    }
}

impl FromIterator<Claim> for ClaimSet {
    fn from_iter<I: IntoIterator<Item = Claim>>(claims: I) -> Self {
        let mut set = Self::default();
        claims.into_iter().for_each(|claim| set.insert(claim));
        set
    }
}

impl Serialize for ClaimSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.runs())
    }
}

impl<'de> Deserialize<'de> for ClaimSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let runs = Vec::<(u64, u64, u64)>::deserialize(deserializer)?;
        Self::of_runs(runs.into_iter()).ok_or_else(|| {
            serde::de::Error::custom("runs of claims that end before they begin, or with too large an index")
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::claim::mark;

    #[test]
    fn consecutive_claims_are_one_run() {
        let all: ClaimSet = [(0, 4), (0, 3), (0, 7), (1, 8), (0, 5)].map(Claim::from).into_iter().collect();
        let runs = [(0, 3, 5), (0, 7, 7), (1, 8, 8)];
        assert_eq!(all.runs().collect::<Vec<_>>(), runs);
        assert_eq!(ClaimSet::of_runs(runs.into_iter()), Some(all));
        for wrong in [(0, 5, 3), (0, 5, INDICES), (0, 0, u64::MAX)] {
            assert_eq!(ClaimSet::of_runs([wrong].into_iter()), None, "{wrong:?}");
        }
    }

    #[test]
    fn it_is_a_set() {
        let mut number = 1_u64;
        for _ in 0..2_000 {
            let (mut set, mut plain) = (ClaimSet::default(), BTreeSet::new());
            for _ in 0..12 {
                number = number.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let (epoch, first, longer) = (number >> 60 & 1, number >> 40 & 15, number >> 50 & 3);
                set.insert_run((epoch, first, first + longer));
                plain.extend((first..=first + longer).map(|run| Claim { epoch, run }));
            }
            let at = Claim { epoch: number >> 33 & 1, run: number >> 45 & 15 };
            let of = |claims: &mut dyn Iterator<Item = &Claim>| claims.copied().collect::<ClaimSet>();
            assert_eq!(set, of(&mut plain.iter()));
            assert_eq!(set.len(), plain.len() as u64);
            assert_eq!(set.contains(&at), plain.contains(&at));
            assert_eq!(set.first(), plain.first().copied());
            assert_eq!(set.nth(at.run), plain.iter().nth(at.run as usize).copied());
            assert_eq!((set.from(at), set.before(at)), (of(&mut plain.range(at..)), of(&mut plain.range(..at))));
            assert_eq!(set.marks(), plain.iter().map(mark).fold(0, u64::wrapping_add));
        }
    }

    #[test]
    fn hostile_runs_take_no_more_than_their_text() {
        let run = INDICES - 1;
        let set: ClaimSet = serde_json::from_str(&format!("[[0,0,{run}],[1,0,{run}],[1,5,{run}]]")).expect("runs");
        assert_eq!((set.runs().count(), set.len()), (2, 2 * INDICES));
        let last = Claim { epoch: 0, run };
        assert!(set.contains(&last) && set.before(last).len() == run && set.from(last).runs().count() == 2);
        assert_eq!(set.nth(9), Some(Claim { epoch: 0, run: 9 }));
        assert_ne!(set.marks(), 0);
    }
}
