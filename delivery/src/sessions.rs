//! The newest process of each rank of a job, as text for tokens. Ranks start at about the same time, so the text has
//! only differences.
//!
//! `LEAST+D0+D1…`, in base 36: the least session, and for each rank in turn the difference of its session. The
//! difference of an unknown rank is empty. The text has about seven characters for each rank.

use std::collections::BTreeMap;

const BASE: u32 = 36;
/// The most ranks that a job may have.
pub(crate) const RANKS_MAX: u64 = 1 << 16;

/// Merges the sessions of another process, and keeps the newest of each rank.
pub(crate) fn join(sessions: &mut BTreeMap<u64, u64>, others: &BTreeMap<u64, u64>) {
    for (&rank, &session) in others {
        let newest = sessions.entry(rank).or_insert(session);
        *newest = session.max(*newest);
    }
}

pub(crate) fn body(sessions: &BTreeMap<u64, u64>) -> String {
    let least = sessions.values().min().copied().unwrap_or(0);
    let ranks = sessions.keys().next_back().map_or(0, |&last| last.min(RANKS_MAX - 1) + 1);
    let mut text = digits(least);
    for rank in 0..ranks {
        text.push('+');
        text.push_str(&sessions.get(&rank).map_or(String::new(), |session| digits(session - least)));
    }
    text
}

pub(crate) fn parse(text: &str) -> Option<BTreeMap<u64, u64>> {
    let mut items = text.split('+');
    let least = u64::from_str_radix(items.next()?, BASE).ok()?;
    let mut sessions = BTreeMap::new();
    for (rank, item) in (0..RANKS_MAX).zip(items).filter(|(_, item)| !item.is_empty()) {
        sessions.insert(rank, least.checked_add(u64::from_str_radix(item, BASE).ok()?)?);
    }
    Some(sessions)
}

fn digits(mut number: u64) -> String {
    let mut digits = Vec::new();
    loop {
        digits.extend(char::from_digit((number % u64::from(BASE)) as u32, BASE));
        number /= u64::from(BASE);
        if number == 0 {
            return digits.into_iter().rev().collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_survive_text() {
        for sessions in [
            BTreeMap::from([(0, 7)]),
            BTreeMap::from([(3, u64::MAX)]),
            BTreeMap::from([
                (0, 1_700_000_000_000 << 16),
                (1, (1_700_000_000_003 << 16) + 5),
                (4, 1_699_999_999_999 << 16),
            ]),
        ] {
            assert_eq!(parse(&body(&sessions)), Some(sessions));
        }
        assert_eq!(body(&[(1, 36), (2, 71)].into()), "10++0+z");
        for wrong in ["", "x y+1", "1+-", "3w5e11264sgsf+1"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
