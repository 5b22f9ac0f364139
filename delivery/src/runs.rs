//! Claims as runs: consecutive claims of an epoch are written as the first and the last. In JSON `[epoch, first,
//! last]`.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer, Serializer};

use crate::claim::Claim;

/// The most claims that a text may name, so that a forged text cannot fill the memory.
const CLAIMS_MAX: u64 = 1 << 24;

/// Returns epoch, first and last index of each run.
pub(crate) fn of(claims: &BTreeSet<Claim>) -> Vec<(u64, u64, u64)> {
    let mut runs: Vec<(u64, u64, u64)> = Vec::new();
    for claim in claims {
        match runs.last_mut() {
            Some((epoch, _, last)) if *epoch == claim.epoch && *last + 1 == claim.run => *last = claim.run,
            _ => runs.push((claim.epoch, claim.run, claim.run)),
        }
    }
    runs
}

/// Returns the claims of `runs`; `None` if a run ends before it begins, or there are too many claims.
pub(crate) fn claims(runs: impl Iterator<Item = (u64, u64, u64)>) -> Option<BTreeSet<Claim>> {
    let (mut claims, mut count) = (BTreeSet::new(), 0_u64);
    for (epoch, first, last) in runs {
        count = count.saturating_add(last.checked_sub(first)?);
        (count < CLAIMS_MAX).then_some(())?;
        claims.extend((first..=last).map(|run| Claim { epoch, run }));
    }
    Some(claims)
}

pub(crate) fn serialize<S: Serializer>(claims: &BTreeSet<Claim>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(of(claims))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<Claim>, D::Error> {
    let runs = Vec::<(u64, u64, u64)>::deserialize(deserializer)?;
    claims(runs.into_iter()).ok_or_else(|| {
        serde::de::Error::custom("runs of claims that end before they begin, or that name too many claims")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_claims_are_one_run() {
        let all: BTreeSet<Claim> = [(0, 3), (0, 4), (0, 5), (0, 7), (1, 8)].map(Claim::from).into();
        let runs = [(0, 3, 5), (0, 7, 7), (1, 8, 8)];
        assert_eq!(of(&all), runs);
        assert_eq!(claims(runs.into_iter()), Some(all));
        for wrong in [(0, 5, 3), (0, 0, u64::MAX), (0, 1, CLAIMS_MAX + 1)] {
            assert_eq!(claims([wrong].into_iter()), None, "{wrong:?}");
        }
    }
}
