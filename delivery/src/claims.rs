//! Dynamic delivery: claims are granted to ranks on request.
//!
//! An epoch is cut into *claims*, runs of a few batches. The next rank that asks is granted the next claim, so a slow
//! rank takes fewer. A claim belongs to its rank, not to a connection, and does not expire. A rank that restarts finds
//! its claims again. Other ranks are granted one of its claims only if it resumed from a token that does not name that
//! claim. So each sample is taken once in the history that survives, without any clock.
//!
//! The dispatcher knows only the claims that ranks report. It grants none before every rank has reported its claims:
//! neither after a start, nor after a rank returns from another dispatcher, where the other ranks may have been with
//! it.
//!
//! Claims that were done long ago are kept only as a sum (see [`CompletedPrefix`]). A rank that resumes from a token
//! before them would need claims that no dispatcher or rank remembers. The sum reveals this, and then no claim is
//! granted until all ranks resume from one checkpoint.

use std::collections::BTreeMap;

use crate::claim::{CLAIMS_HELD_MAX, Claim, CompletedPrefix, Granted};
use crate::claim_messages::{ClaimReply, ClaimSync};
use crate::error::ErrorKind;
use crate::messages::Report;
use crate::position::{EndedRank, RankMarks};
use crate::rules::{Rule, holds};
use crate::runs::ClaimSet;
use crate::sequencer::Sequencer;
use crate::window::{Plan, WindowId};

/// The number of done claims to remember for each rank. When there are twice as many, the oldest are reduced to a sum.
/// A single rank can resume from this far back.
const REMEMBERED: u64 = if cfg!(test) { 2 } else { 1 << 10 };

#[derive(Debug, Default)]
struct ClaimingRank {
    /// Claims that the rank has done before this one are kept in `marks.before`.
    begin: Claim,
    passed: u64,
    marks: RankMarks,
    held: BTreeMap<Claim, Granted>,
    until_epoch: u64,
    is_leaving: bool,
}

/// The claims of the ranks of a job.
#[derive(Debug)]
pub(crate) struct Claims {
    claim_rows: u64,
    /// The batch size with `drop_last`, else 1. The samples of an epoch beyond a multiple of it are left out.
    unit: u64,
    base: CompletedPrefix,
    ranks: BTreeMap<u64, ClaimingRank>,
    /// Whether all ranks have reported their claims.
    all_here: bool,
    /// Whether the reported claims add up to the base.
    is_whole: bool,
    /// The claims from the base on that ranks hold or have done.
    taken: ClaimSet,
    /// Every claim before this one is taken.
    next: Claim,
    /// Indices of windows, by epoch and first offset.
    anchors: BTreeMap<(u64, u64), u32>,
    /// The number of offsets in each epoch that is counted to its end.
    totals: BTreeMap<u64, u64>,
    /// The window that must be counted before another claim can be granted.
    needed: Option<WindowId>,
    /// The window in which the latest claim ends.
    frontier: Option<WindowId>,
}

impl Claims {
    pub(crate) fn new(sync: &ClaimSync) -> Self {
        Self {
            claim_rows: sync.claim_rows.max(1),
            unit: sync.unit.max(1),
            base: CompletedPrefix::default(),
            ranks: BTreeMap::new(),
            all_here: false,
            is_whole: false,
            taken: ClaimSet::default(),
            next: Claim::default(),
            anchors: BTreeMap::new(),
            totals: BTreeMap::new(),
            needed: None,
            frontier: None,
        }
    }

    /// Takes a rank's report. With `is_whole`, the report names all claims of the rank: others that it had are not in
    /// the history from which it resumes. Otherwise the rank may not have heard of the latest claims that it was
    /// granted here. `all_here` says whether all ranks have reported all their claims.
    pub(crate) fn sync(&mut self, rank: u64, until_epoch: u64, is_whole: bool, all_here: bool, sync: &ClaimSync) {
        for granted in sync.held.iter().chain(&sync.furthest) {
            self.anchors.insert((granted.claim.epoch, granted.window_offset), granted.window.index);
        }
        self.base.ends.extend(&sync.base.ends);
        let state = self.ranks.entry(rank).or_default();
        (state.until_epoch, state.is_leaving) = (until_epoch, sync.is_leaving);
        if is_whole {
            (state.begin, state.passed) = (sync.base.begin, sync.base.passed);
            let (before, done) = (sync.before, sync.done.clone());
            state.marks = RankMarks { before, done, ..RankMarks::default() };
            if holds(Rule::UnnamedClaimsGoBack) {
                state.held.clear();
            }
            state.held.extend(sync.held.iter().map(|held| (held.claim, *held)));
        } else {
            state.marks.done.extend(&sync.done.from(state.begin));
            state.held.retain(|claim, _| !sync.done.contains(claim));
        }
        if is_whole || self.all_here != all_here {
            self.all_here = all_here;
            self.take_stock();
        }
        if all_here && self.is_whole {
            self.taken.extend(&sync.done.from(self.base.begin));
            self.advance();
        }
    }

    /// Derives the taken claims from the ranks' reports.
    fn take_stock(&mut self) {
        let newest = self.ranks.values().map(|rank| (rank.begin, rank.passed)).max();
        (self.base.begin, self.base.passed) = newest.unwrap_or_default();
        let begin = self.base.begin;
        let before = |rank: &ClaimingRank| rank.marks.before.wrapping_add(rank.marks.done.before(begin).marks());
        self.taken = self.ranks.values().flat_map(|rank| rank.held.keys()).copied().collect();
        let mut claims: u64 = self.ranks.values().map(|rank| rank.held.len() as u64).sum();
        for rank in self.ranks.values() {
            let done = rank.marks.done.from(begin);
            claims = claims.saturating_add(done.len());
            self.taken.extend(&done);
        }
        self.is_whole = (self.ranks.values().map(before).fold(0, u64::wrapping_add) == self.base.passed
            && claims == self.taken.len()
            && self.taken.first().is_none_or(|first| first >= begin))
            || !holds(Rule::ReturnsAreWhole);
        self.next = begin;
        if self.is_whole && self.all_here {
            self.pass();
        }
    }

    /// Replaces the claims before the base by their sum.
    fn pass(&mut self) {
        let CompletedPrefix { begin, passed, .. } = self.base;
        for rank in self.ranks.values_mut() {
            rank.marks.pass(begin);
            (rank.begin, rank.passed) = (begin, passed);
        }
        self.taken = self.taken.from(begin);
        self.next = self.next.max(begin);
        self.base.ends = self.base.ends.split_off(&begin.epoch);
        self.totals = self.totals.split_off(&begin.epoch);
        let offset = (begin.epoch, begin.run * self.claim_rows);
        if let Some((&first, _)) = self.anchors.range(..=offset).next_back() {
            self.anchors = self.anchors.split_off(&first);
        }
    }

    /// Moves the base past claims that were done long ago.
    fn advance(&mut self) {
        let remembered = REMEMBERED * self.ranks.len() as u64;
        let done = |before: Claim| {
            self.ranks.values().map(|it| it.marks.done.before(before).len()).fold(0, u64::saturating_add)
        };
        let all: u64 = self.ranks.values().map(|it| it.marks.done.len()).fold(0, u64::saturating_add);
        if all < 2 * remembered {
            return;
        }
        self.next = self.taken.next_free(self.next);
        let held = self.ranks.values().filter_map(|rank| rank.held.keys().next()).min();
        let until = held.map_or(self.next, |&held| held.min(self.next));
        let until = if holds(Rule::OnlyDoneClaimsArePassed) { until } else { self.next };
        let passed = done(until).min(all - remembered);
        if passed < remembered {
            return;
        }
        // Every claim before `until` is taken, and none of them is held.
        let at = self.taken.nth(passed);
        let begin = at.map_or(until, |at| at.min(until));
        let passed = self.ranks.values().map(|it| it.marks.done.before(begin).marks());
        self.base.passed = passed.fold(self.base.passed, u64::wrapping_add);
        self.base.begin = begin;
        self.pass();
    }

    /// Grants `rank` the claims that it may have, and returns the answer. The ranks `awaited` have not yet reported.
    pub(crate) fn reply<P: Plan>(&mut self, rank: u64, awaited: Vec<u64>, sequencer: &Sequencer<P>) -> ClaimReply {
        let until_epoch = self.ranks.get(&rank).map_or(0, |rank| rank.until_epoch);
        let may_grant = (awaited.is_empty() || !holds(Rule::ClaimsWaitForAllRanks)) && self.is_whole;
        while may_grant
            && let Some(found) = self.find(until_epoch, sequencer)
            && let Some(rank) = self.ranks.get_mut(&rank)
            && rank.held.len() < CLAIMS_HELD_MAX
            && !rank.is_leaving
        {
            rank.held.insert(found.claim, found);
            self.taken.insert(found.claim);
        }
        ClaimReply {
            granted: self.ranks.get(&rank).map(|rank| rank.held.values().copied().collect()).unwrap_or_default(),
            // Ranks must not take over a base that does not match the reports.
            base: if self.is_whole && self.all_here { self.base.clone() } else { CompletedPrefix::default() },
            is_exhausted: may_grant && self.next.epoch >= until_epoch,
            failed: (awaited.is_empty() && !self.is_whole).then(|| self.behind()),
            awaited,
            sessions: BTreeMap::new(),
            ended: BTreeMap::new(),
            workers: 0,
        }
    }

    /// Returns the claim before which the claims that a rank has done are kept as a sum.
    pub(crate) fn begin_of(&self, rank: u64) -> Option<Claim> {
        self.ranks.get(&rank).map(|it| it.begin)
    }

    /// Returns the claims that a process of a rank that has ended had done. They are empty if the reports do not add
    /// up.
    pub(crate) fn ended(&self, rank: u64, session: u64) -> EndedRank {
        let marks = self.ranks.get(&rank).filter(|_| self.is_whole && self.all_here).map(|it| it.marks.clone());
        let RankMarks { before, done, .. } = marks.unwrap_or_default();
        EndedRank { session, before, done }
    }

    /// Returns whether the ranks' reports are complete and add up.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_whole && self.all_here
    }

    /// Returns the reason that no claim can be granted although all ranks have reported.
    fn behind(&self) -> Report {
        let behind = self.ranks.iter().filter(|(_, it)| it.begin < self.base.begin).map(|(rank, _)| rank.to_string());
        let behind = behind.collect::<Vec<_>>().join(", ");
        Report {
            kind: ErrorKind::Conflict,
            message: match behind.is_empty() {
                true => {
                    "the ranks resumed from tokens of different checkpoints: some batches are in two of them".to_owned()
                }
                false => format!("rank {behind} resumed from a token that is too old for the other ranks"),
            },
            hint: Some("resume all ranks from one checkpoint".to_owned()),
            retry: false,
        }
    }

    /// Returns the first claim before `until_epoch` that is not taken, if its windows are counted.
    fn find<P: Plan>(&mut self, until_epoch: u64, sequencer: &Sequencer<P>) -> Option<Granted> {
        self.needed = None;
        while self.next.epoch < until_epoch {
            let claim = self.next;
            if self.taken.contains(&claim) {
                self.next = self.taken.next_free(claim);
                continue;
            }
            if self.base.ends.get(&claim.epoch).is_some_and(|&claims| claim.run >= claims) {
                self.next = Claim { epoch: claim.epoch + 1, run: 0 };
                continue;
            }
            let start = claim.run * self.claim_rows;
            let end = start + self.claim_rows;
            let (window, window_offset) = self.locate(claim.epoch, start, sequencer)?;
            // An epoch's last claim may be short. Its length is known once the epoch is counted to its end.
            let (last, _) = self.locate(claim.epoch, end - 1, sequencer)?;
            let end = end.min(self.totals.get(&claim.epoch).copied().unwrap_or(end));
            if start < end {
                self.frontier = Some(last);
                return Some(Granted { claim, end, window, window_offset });
            }
            // The count decides where the epoch ends, and not what a rank reported.
            self.next = Claim { epoch: claim.epoch + 1, run: 0 };
        }
        None
    }

    /// Returns the window that holds `offset`, and its first offset. For an offset past an epoch's end, returns the
    /// last window, and records the epoch's total. Returns `None` and sets `needed` if a window before `offset` is not
    /// yet counted.
    fn locate<P: Plan>(&mut self, epoch: u64, offset: u64, sequencer: &Sequencer<P>) -> Option<(WindowId, u64)> {
        let before = self.anchors.range((epoch, 0)..=(epoch, offset)).next_back();
        let (mut first, mut index) = before.map_or((0, 0), |(&(_, first), &index)| (first, index));
        loop {
            let window = WindowId { epoch, index };
            let Some(rows) = sequencer.rows(window) else {
                self.needed = Some(window);
                return None;
            };
            self.anchors.insert((epoch, first), index);
            let is_last = sequencer.plan().is_last(window);
            if is_last {
                let total = first + rows;
                let total = total - total % self.unit;
                self.totals.insert(epoch, total);
                self.base.ends.insert(epoch, total.div_ceil(self.claim_rows));
            }
            if offset < first + rows || is_last {
                return Some((window, first));
            }
            first += rows;
            index += 1;
        }
    }

    /// Returns the epoch before which all ranks stop.
    pub(crate) fn until_epoch(&self) -> u64 {
        self.ranks.values().map(|rank| rank.until_epoch).max().unwrap_or(0)
    }

    /// Returns the number of claims that are granted and not wholly delivered.
    pub(crate) fn held(&self) -> usize {
        self.ranks.values().map(|rank| rank.held.len()).sum()
    }

    /// Returns a lower bound of the first claim that is not taken.
    pub(crate) fn next(&self) -> Claim {
        self.next
    }

    /// Returns the window that must be counted before another claim can be granted.
    pub(crate) fn needed(&self) -> Option<WindowId> {
        self.needed
    }

    /// Returns the first window that a claim is read from or cut from; `None` if no claim is left.
    pub(crate) fn at(&self) -> Option<WindowId> {
        let held = self.ranks.values().flat_map(|rank| rank.held.values()).map(|held| held.window).min();
        let next = match self.needed {
            None if self.next.epoch >= self.until_epoch() => None,
            None => self.frontier,
            needed => needed,
        };
        held.into_iter().chain(next).min()
    }
}

#[cfg(test)]
mod tests;
