//! The fence of ordered delivery: the ranks of a named job, of which each reads its own part of every global step.
//!
//! Ranks do not wait for each other, so nothing but the fence notices two processes that read as one rank, or ranks
//! whose parts do not make up the global steps. Of two processes of a rank, the one that started later reads on. A
//! process whose parts do not fit those of other ranks waits until these have left or are silent, because the job may
//! be restarting. Otherwise its patience ends, and it fails with the difference.
//!
//! A dispatcher knows the ranks that it has heard. Ranks that read from different dispatchers are not compared.

use std::collections::BTreeMap;

use crate::clock::Millis;
use crate::error::ErrorKind;
use crate::messages::{Membership, ReaderSync, Report};
use crate::rules::{Rule, holds};
use crate::sessions::RANKS_MAX;
use crate::trouble::replaced;

/// A rank that has been silent for longer does not keep its job from restarting with other settings. Ranks are heard
/// twice a second.
const CONTACT_MS: Millis = 3_000;
/// The most bytes of a job's name.
const NAME_BYTES_MAX: usize = 512;

/// The named jobs of a feed.
#[derive(Debug, Default)]
pub(super) struct Fence(BTreeMap<String, Crew>);

/// The ranks of a job whose parts fit together.
#[derive(Debug)]
struct Crew {
    world_size: u64,
    step_rows: u64,
    ranks: BTreeMap<u64, Member>,
    /// The number of the newest process of each rank that a restart of the job replaced while it was silent. Older
    /// processes of the rank may still live.
    replaced: BTreeMap<u64, u64>,
    /// The number of processes that have joined.
    joined: u64,
}

/// The newest process of a rank.
#[derive(Debug)]
struct Member {
    session: u64,
    process: u64,
    begin: (u64, u64),
    contact: Millis,
    /// The number of processes that had joined before it.
    joined: u64,
    /// The number of processes that had joined when it was last heard.
    heard: u64,
    /// Whether its process began to read here: neither another dispatcher nor an earlier reader of it came before.
    is_fresh: bool,
    has_left: bool,
}

impl Fence {
    /// Takes a rank's message. Returns the session of the reader that this one replaces, if there is one.
    ///
    /// # Errors
    /// Returns the reason if the process may not read: for good, or, with `retry`, until it asks again.
    pub(super) fn admit(&mut self, sync: &ReaderSync, now: Millis) -> Result<Option<u64>, Report> {
        let Some(member) = sync.member.as_ref().filter(|_| holds(Rule::OrderedRanksAreFenced)) else {
            return Ok(None);
        };
        if member.job.len() > NAME_BYTES_MAX || sync.rank >= sync.world_size || sync.world_size > RANKS_MAX {
            let message = format!(
                "\"rank\" must be below \"world_size\", \"world_size\" at most {RANKS_MAX}, and \"job\" at most \
                 {NAME_BYTES_MAX} bytes, got rank {} of {}",
                sync.rank, sync.world_size
            );
            return Err(Report { kind: ErrorKind::Invalid, message, hint: None, retry: false });
        }
        if !self.0.contains_key(&member.job) {
            if sync.leaving {
                return Ok(None);
            }
            self.0.insert(member.job.clone(), Crew::new(sync));
        }
        let Some(crew) = self.0.get_mut(&member.job) else { return Ok(None) };
        if crew.take(sync, member, now)? || sync.leaving {
            return Ok(None);
        }
        if let Some((misfit, others)) = crew.misfit(sync, member) {
            let gives_way = |rank| crew.ranks.get(rank).is_none_or(|it| it.gives_way(member, now));
            if !others.iter().all(gives_way) {
                return Err(misfit);
            }
            crew.replace(&others);
            (crew.world_size, crew.step_rows) = (sync.world_size, member.step_rows);
        }
        Ok(crew.join(sync, member, now))
    }

    /// Checks that no newer process has replaced the sender of this message, which was admitted.
    ///
    /// # Errors
    /// Returns the reason if the process may no longer read.
    pub(super) fn check(&self, sync: &ReaderSync) -> Result<(), Report> {
        let Some(member) = sync.member.as_ref().filter(|_| holds(Rule::OrderedRanksAreFenced)) else {
            return Ok(());
        };
        let newest = self.0.get(&member.job).and_then(|crew| crew.ranks.get(&sync.rank));
        match newest {
            Some(newest) if newest.session != sync.session => Err(replaced(sync.rank, &member.job)),
            _ => Ok(()),
        }
    }

    /// Forgets jobs of which all ranks have been silent since `since`. A rank may take long to restart alone.
    pub(super) fn forget_silent(&mut self, since: Millis) {
        self.0.retain(|_, crew| crew.ranks.values().any(|member| member.contact >= since));
    }

    /// Doesn't count the dispatcher's own pause against ranks.
    pub(super) fn discount_pause(&mut self, still: Millis) {
        for crew in self.0.values_mut() {
            crew.ranks.values_mut().for_each(|member| member.contact += still);
        }
    }
}

impl Member {
    /// Returns whether a process that does not fit may take this one's place: it has left, or is older and silent.
    fn gives_way(&self, to: &Membership, now: Millis) -> bool {
        self.has_left || (self.contact + CONTACT_MS < now && self.process < to.process)
    }
}

impl Crew {
    fn new(sync: &ReaderSync) -> Self {
        let step_rows = sync.member.as_ref().map_or(0, |member| member.step_rows);
        Self { world_size: sync.world_size, step_rows, ranks: BTreeMap::new(), replaced: BTreeMap::new(), joined: 0 }
    }

    /// Takes the message of a process that has joined. Returns `false` if it has not.
    ///
    /// # Errors
    /// Returns the reason if a newer process has replaced it.
    fn take(&mut self, sync: &ReaderSync, member: &Membership, now: Millis) -> Result<bool, Report> {
        let is_older = self.is_older_than_replaced(sync.rank, member);
        match self.ranks.get_mut(&sync.rank) {
            Some(known) if known.session == sync.session => {
                known.contact = now;
                known.heard = self.joined;
                known.has_left |= sync.leaving;
                Ok(true)
            }
            Some(known) if !known.has_left && known.process > member.process => {
                // The newer process may be gone, and its machine's clock ahead.
                let is_silent = known.contact + CONTACT_MS < now;
                let report = replaced(sync.rank, &member.job);
                Err(Report { retry: is_silent, ..report })
            }
            _ if is_older => {
                let report = replaced(sync.rank, &member.job);
                Err(Report { retry: true, ..report })
            }
            _ => Ok(false),
        }
    }

    fn is_older_than_replaced(&self, rank: u64, member: &Membership) -> bool {
        let newest = self.replaced.get(&rank).filter(|_| holds(Rule::ReplacedRanksAreRemembered));
        newest.is_some_and(|&newest| newest > member.process)
    }

    /// Removes ranks for a process that they do not fit. Of those that have not left, it remembers how new they are.
    fn replace(&mut self, others: &[u64]) {
        for rank in others {
            if let Some(it) = self.ranks.remove(rank).filter(|it| !it.has_left) {
                self.replaced.insert(*rank, it.process);
            }
        }
    }

    /// Returns the difference between a process and the ranks whose parts do not fit its own, and these ranks.
    fn misfit(&self, sync: &ReaderSync, member: &Membership) -> Option<(Report, Vec<u64>)> {
        let report = |what: String, rank, other: String, hint: &str| Report {
            kind: ErrorKind::Conflict,
            message: format!("rank {} {what} in job \"{}\", and rank {rank} {other}", sync.rank, member.job),
            hint: Some(hint.to_owned()),
            retry: true,
        };
        let rank = *self.ranks.keys().next()?;
        let all = || self.ranks.keys().copied().collect();
        if self.world_size != sync.world_size {
            let has = |ranks| format!("has world size {ranks}");
            let hint = "start all ranks of a job with the same number of ranks, and give another job another name";
            return Some((report(has(sync.world_size), rank, has(self.world_size), hint), all()));
        }
        if self.step_rows != member.step_rows {
            let has = |step_rows: u64| format!("has batches of {}", step_rows / sync.world_size.max(1));
            let hint = "start all ranks of a job with the same batch size, and give another job another name";
            return Some((report(has(member.step_rows), rank, has(self.step_rows), hint), all()));
        }
        // A rank whose earlier process was heard after the other rank began has restarted alone.
        let before = self.ranks.get(&sync.rank).map(|before| before.heard);
        let is_new_beside =
            |it: &Member| !member.is_admitted && it.is_fresh && before.is_none_or(|heard| heard <= it.joined);
        let differs = |it: &Member| {
            (is_new_beside(it) && it.begin != member.begin) || !is_aligned(it.begin, member.begin, self.step_rows)
        };
        let others = self.ranks.iter().filter(|(rank, it)| **rank != sync.rank && differs(it));
        let others: Vec<_> = others.collect();
        let (&rank, other) = *others.first()?;
        let begins = |word, (epoch, offset): (u64, u64)| format!("{word} at {epoch}:{offset}");
        let hint = "resume all ranks from the tokens of one checkpoint";
        let report = report(begins("begins", member.begin), rank, begins("began", other.begin), hint);
        Some((report, others.into_iter().map(|(&rank, _)| rank).collect()))
    }

    /// Adds a process, and returns the session of the one that it replaces.
    fn join(&mut self, sync: &ReaderSync, member: &Membership, now: Millis) -> Option<u64> {
        let joins = Member {
            session: sync.session,
            process: member.process,
            begin: member.begin,
            contact: now,
            joined: self.joined,
            heard: self.joined + 1,
            is_fresh: !member.is_admitted,
            has_left: false,
        };
        self.joined += 1;
        // From now on this process is the newest, and older ones are compared with it.
        self.replaced.remove(&sync.rank);
        self.ranks.insert(sync.rank, joins).map(|before| before.session)
    }
}

/// Returns whether ranks that begin at these positions have the same global steps. Steps are counted from the beginning
/// in its epoch, and from the first sample in later epochs.
fn is_aligned(one: (u64, u64), other: (u64, u64), step_rows: u64) -> bool {
    let epoch = one.0.max(other.0);
    let first = |begin: (u64, u64)| if begin.0 == epoch { begin.1 } else { 0 };
    first(one).abs_diff(first(other)).is_multiple_of(step_rows.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WindowId;
    use crate::rules::break_rule;

    const STEP: u64 = 8;

    /// The newest message of process `process` as `rank` of `world_size` that began at `begin`.
    fn rank(rank: u64, world_size: u64, process: u64, begin: (u64, u64)) -> ReaderSync {
        ReaderSync {
            session: 100 * process + rank,
            seq: 1,
            feed: "f".into(),
            rank,
            world_size,
            member: Some(Membership { job: "j".into(), process, begin, step_rows: STEP, is_admitted: false }),
            at: WindowId { epoch: 0, index: 0 },
            until_epoch: 1,
            known: 0,
            broken: Vec::new(),
            waiting: None,
            leaving: false,
            is_later_claim: false,
            samples: 0,
            bytes: 0,
            stalled_ms: 0,
            elapsed_ms: 0,
        }
    }

    /// A fence with ranks 0 and 1 of 2, which began at the first sample, as processes 10 and 11.
    fn two() -> Fence {
        let mut fence = Fence::default();
        assert_eq!(fence.admit(&rank(0, 2, 10, (0, 0)), 0), Ok(None));
        assert_eq!(fence.admit(&rank(1, 2, 11, (0, 0)), 0), Ok(None));
        fence
    }

    /// Returns whether the refused process should ask again, and why it is refused.
    fn refusal(fence: &mut Fence, sync: &ReaderSync, now: Millis) -> (bool, String) {
        let report = fence.admit(sync, now).expect_err("a misfit");
        assert_eq!(report.kind, ErrorKind::Conflict);
        (report.retry, report.message)
    }

    #[test]
    fn of_two_processes_of_a_rank_the_later_reads_on() {
        let mut fence = two();
        let (old, new) = (rank(0, 2, 10, (0, 0)), rank(0, 2, 12, (0, 0)));
        assert_eq!(fence.check(&old), Ok(()));
        assert_eq!(fence.admit(&new, 1), Ok(Some(old.session)));
        assert_eq!(fence.check(&new), Ok(()));
        let replaced = "a newer process reads as rank 0 of job \"j\"";
        assert_eq!(fence.check(&old).expect_err("replaced").message, replaced);
        assert_eq!(refusal(&mut fence, &old, 2), (false, replaced.to_owned()));
        // Other jobs, and ranks without a job, are not compared.
        let member = Membership { job: "k".into(), ..old.member.clone().expect("of a job") };
        assert_eq!(fence.admit(&ReaderSync { member: Some(member), ..old.clone() }, 2), Ok(None));
        assert_eq!(fence.admit(&ReaderSync { member: None, ..old }, 2), Ok(None));
    }

    #[test]
    fn a_misfit_waits_as_long_as_those_live_that_it_does_not_fit() {
        let sizes = "rank 2 has world size 3 in job \"j\", and rank 0 has world size 2";
        let begin = "rank 1 begins at 0:8 in job \"j\", and rank 0 began at 0:0";
        let member = rank(1, 2, 12, (0, 0)).member.expect("of a job");
        let batches =
            ReaderSync { member: Some(Membership { step_rows: 2 * STEP, ..member }), ..rank(1, 2, 12, (0, 0)) };
        for (misfit, said) in [
            (rank(2, 3, 12, (0, 0)), sizes),
            (rank(1, 2, 12, (0, 8)), begin),
            (batches, "rank 1 has batches of 8 in job \"j\", and rank 0 has batches of 4"),
        ] {
            let mut fence = Fence::default();
            for now in [0, CONTACT_MS, 2 * CONTACT_MS] {
                assert_eq!(fence.admit(&rank(0, 2, 10, (0, 0)), now), Ok(None));
                assert_eq!(refusal(&mut fence, &misfit, now + CONTACT_MS), (true, said.to_owned()));
            }
            assert_eq!(fence.admit(&misfit, 3 * CONTACT_MS + 1), Ok(None));
        }
    }

    #[test]
    fn a_job_restarts_with_other_settings_when_its_ranks_are_silent_or_have_left() {
        let mut fence = two();
        let new = rank(0, 3, 12, (0, 40));
        assert!(refusal(&mut fence, &new, CONTACT_MS).0);
        assert_eq!(fence.admit(&new, CONTACT_MS + 1), Ok(None));
        assert_eq!(fence.admit(&rank(1, 3, 13, (0, 40)), CONTACT_MS + 1), Ok(None));
        // An old process that wakes does not read, however long the new ones are silent.
        let said = "a newer process reads as rank 1 of job \"j\"";
        for (now, retry) in [(2 * CONTACT_MS, false), (9 * CONTACT_MS, true)] {
            assert_eq!(refusal(&mut fence, &rank(1, 2, 11, (0, 0)), now), (retry, said.to_owned()));
        }
        let woken = refusal(&mut fence, &rank(2, 4, 8, (0, 0)), 9 * CONTACT_MS);
        assert_eq!(woken.1, "rank 2 has world size 4 in job \"j\", and rank 0 has world size 3");

        let mut fence = two();
        for old in [rank(0, 2, 10, (0, 0)), rank(1, 2, 11, (0, 0))] {
            assert_eq!(fence.admit(&ReaderSync { leaving: true, ..old }, 1), Ok(None));
        }
        // Its clock may be behind.
        assert_eq!(fence.admit(&rank(0, 3, 9, (0, 40)), 2), Ok(None));
    }

    #[test]
    fn a_process_that_is_older_than_one_that_was_replaced_does_not_read() {
        let woken = |rule| {
            break_rule(rule);
            let mut fence = Fence::default();
            assert_eq!(fence.admit(&rank(0, 1, 10, (0, 0)), 0), Ok(None));
            // The job restarts, and its only rank here reads to its end.
            let new = rank(2, 3, 12, (0, 0));
            assert_eq!(fence.admit(&new, CONTACT_MS + 1), Ok(None));
            assert_eq!(fence.admit(&ReaderSync { leaving: true, ..new }, CONTACT_MS + 2), Ok(None));
            // A process from before both asks here for the first time.
            let woken = fence.admit(&rank(0, 1, 8, (0, 0)), CONTACT_MS + 3);
            // The restarted job's rank 0 is newer than all.
            assert!(rule.is_some() || fence.admit(&rank(0, 3, 11, (0, 0)), CONTACT_MS + 4) == Ok(None));
            break_rule(None);
            woken.map_err(|report| (report.retry, report.message))
        };
        let said = "a newer process reads as rank 0 of job \"j\"";
        assert_eq!(woken(None), Err((true, said.to_owned())));
        assert_eq!(woken(Some(Rule::ReplacedRanksAreRemembered)), Ok(None));
    }

    #[test]
    fn the_readers_of_a_process_may_be_epochs_apart() {
        let again = |sync: ReaderSync| {
            let member = sync.member.clone().map(|member| Membership { is_admitted: true, ..member });
            ReaderSync { member, ..sync }
        };
        let mut fence = Fence::default();
        let first = rank(0, 2, 10, (0, 0));
        assert_eq!(fence.admit(&first, 0), Ok(None));
        assert_eq!(fence.admit(&ReaderSync { leaving: true, ..first }, 1), Ok(None));
        assert_eq!(fence.admit(&again(rank(0, 2, 12, (1, 0))), 2), Ok(Some(1_000)));
        assert_eq!(fence.admit(&rank(1, 2, 11, (0, 0)), 3), Ok(None));
        assert_eq!(fence.admit(&again(rank(1, 2, 13, (0, 2 * STEP))), 4), Ok(Some(1_101)));
    }

    #[test]
    fn a_rank_that_restarts_alone_begins_at_its_own_token() {
        let mut fence = two();
        // Heard after the other began, so the other did not restart with it.
        assert_eq!(fence.admit(&rank(0, 2, 10, (0, 0)), 1), Ok(None));
        assert_eq!(fence.admit(&rank(0, 2, 12, (0, 2 * STEP)), 2), Ok(Some(1_000)));
        // The next dispatcher hears of both what an earlier one admitted.
        let admitted = |sync: ReaderSync| {
            let member = sync.member.clone().map(|member| Membership { is_admitted: true, ..member });
            ReaderSync { member, ..sync }
        };
        let mut fence = Fence::default();
        assert_eq!(fence.admit(&admitted(rank(0, 2, 12, (0, 2 * STEP))), 0), Ok(None));
        assert_eq!(fence.admit(&admitted(rank(1, 2, 11, (0, 0))), 0), Ok(None));
        // But not between two global steps of the others.
        let between = refusal(&mut fence, &rank(1, 2, 13, (0, 3)), 1);
        assert_eq!(between.1, "rank 1 begins at 0:3 in job \"j\", and rank 0 began at 0:16");
    }

    #[test]
    fn steps_are_counted_from_the_beginning_in_its_epoch() {
        for (one, other, expected) in [
            ((0, 0), (0, 16), true),
            ((0, 3), (0, 11), true),
            ((0, 3), (0, 8), false),
            ((0, 3), (1, 0), true),
            ((0, 3), (1, 8), true),
            ((0, 8), (1, 3), false),
            ((1, 3), (1, 3), true),
        ] {
            assert_eq!(is_aligned(one, other, STEP), expected, "{one:?} {other:?}");
            assert_eq!(is_aligned(other, one, STEP), expected, "{other:?} {one:?}");
        }
    }
}
