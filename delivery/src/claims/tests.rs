//! Tests of claims: reports of ranks and the answers.

use super::*;
use crate::sequencer::{Event, WorkerLimits};

#[derive(Clone)]
struct ThreeWindows;

impl Plan for ThreeWindows {
    fn windows(&self, _: u64) -> u32 {
        3
    }

    fn bytes(&self, _: WindowId) -> u64 {
        1
    }
}

/// Returns a sequencer whose windows of 10, 0 and 7 rows are counted.
fn counted() -> Sequencer<ThreeWindows> {
    let mut sequencer = Sequencer::new(ThreeWindows, 0);
    let limits = WorkerLimits { memory_bytes: 100, computing: 100, windows_at_least: 0 };
    sequencer.handle(Event::WorkerJoined { worker: 1, limits }).expect("no window");
    let at = WindowId { epoch: 0, index: 0 };
    sequencer.handle(Event::ReaderJoined { reader: 1, at, until_epoch: 2, share: 1.0 }).expect("no window");
    for (window, lease) in sequencer.leases(1) {
        let rows = [10, 0, 7][window.index as usize];
        sequencer.handle(Event::WindowCounted { window, lease, rows, bytes: 1 }).expect("pure");
    }
    sequencer
}

fn report(done: &[(u64, u64)], held: &[Granted]) -> ClaimSync {
    ClaimSync {
        job: "job".to_owned(),
        origin: 0,
        claim_rows: 4,
        unit: 1,
        base: CompletedPrefix::default(),
        before: 0,
        done: done.iter().map(|&claim| claim.into()).collect(),
        held: held.to_vec(),
        furthest: None,
        sessions: BTreeMap::new(),
        met: BTreeMap::new(),
        ended: BTreeMap::new(),
        is_leaving: false,
    }
}

fn names(granted: &[Granted]) -> Vec<(u64, u64)> {
    granted.iter().map(|granted| granted.claim.into()).collect()
}

#[test]
fn claims_are_granted_on_request_and_once() {
    let sequencer = counted();
    let mut claims = Claims::new(&report(&[], &[]));
    claims.sync(0, 1, true, false, &report(&[], &[]));
    assert!(claims.reply(0, vec![1], &sequencer).granted.is_empty(), "rank 1 has not reported its claims");
    claims.sync(1, 1, true, true, &report(&[], &[]));
    let first = claims.reply(0, vec![], &sequencer).granted;
    assert_eq!(names(&first), [(0, 0), (0, 1)]);
    assert_eq!(claims.reply(0, vec![], &sequencer).granted, first, "a lost answer is repeated");
    let second = claims.reply(1, vec![], &sequencer).granted;
    assert_eq!(names(&second), [(0, 2), (0, 3)]);
    // Offsets 8..12 begin in window 0 and end in window 2. The window between them is empty.
    assert_eq!((second[0].window.index, second[0].window_offset, second[0].end), (0, 0, 12));
    assert_eq!((second[1].window.index, second[1].window_offset, second[1].end), (2, 10, 16));
    claims.sync(1, 1, false, true, &report(&[(0, 2)], &[]));
    let last = claims.reply(1, vec![], &sequencer);
    assert_eq!(names(&last.granted), [(0, 3), (0, 4)]);
    assert_eq!(last.granted[1].end, 17);
    claims.sync(0, 1, false, true, &report(&[(0, 0), (0, 1)], &[]));
    let reply = claims.reply(0, vec![], &sequencer);
    assert!(reply.granted.is_empty() && reply.is_exhausted);
}

#[test]
fn a_resumed_rank_keeps_the_claims_that_it_names_and_returns_the_others() {
    let sequencer = counted();
    let mut claims = Claims::new(&report(&[], &[]));
    (0..2).for_each(|rank| claims.sync(rank, 1, true, true, &report(&[], &[])));
    (0..2).for_each(|rank| drop(claims.reply(rank, vec![], &sequencer)));
    // Rank 0 had delivered claim 0 before its checkpoint, and resumes from it. Rank 1 continues.
    claims.sync(0, 1, true, true, &report(&[(0, 0)], &[]));
    assert_eq!(names(&claims.reply(0, vec![], &sequencer).granted), [(0, 1), (0, 4)]);
    assert_eq!(names(&claims.reply(1, vec![], &sequencer).granted), [(0, 2), (0, 3)]);
}

#[test]
fn a_new_dispatcher_learns_all_claims_from_the_ranks() {
    let sequencer = counted();
    let mut claims = Claims::new(&report(&[], &[]));
    (0..2).for_each(|rank| claims.sync(rank, 1, true, true, &report(&[], &[])));
    let held = [0, 1].map(|rank| claims.reply(rank, vec![], &sequencer).granted);
    let mut anew = Claims::new(&report(&[], &[]));
    anew.sync(1, 1, true, false, &report(&[(0, 2)], &held[1][1..]));
    assert_eq!(anew.reply(1, vec![0], &sequencer).granted, held[1][1..]);
    anew.sync(0, 1, true, true, &report(&[(0, 0)], &held[0][1..]));
    assert_eq!(names(&anew.reply(0, vec![], &sequencer).granted), [(0, 1), (0, 4)]);
}

/// Returns the report of a rank that has done `runs` of epoch 0, with a base that ends at `begin`.
fn passed(begin: u64, before: std::ops::Range<u64>, runs: std::ops::Range<u64>) -> ClaimSync {
    let done: Vec<_> = runs.map(|run| (0, run)).collect();
    let base = CompletedPrefix { begin: Claim { epoch: 0, run: begin }, passed: sum(0..begin), ends: BTreeMap::new() };
    ClaimSync { base, before: sum(before), ..report(&done, &[]) }
}

fn sum(runs: std::ops::Range<u64>) -> u64 {
    runs.map(|run| Claim { epoch: 0, run }).collect::<ClaimSet>().marks()
}

#[test]
fn old_done_claims_are_kept_only_as_a_sum() {
    let sequencer = counted();
    let mut claims = Claims::new(&report(&[], &[]));
    claims.sync(0, 1_000, true, true, &report(&[], &[]));
    for run in 0..100 {
        claims.sync(0, 1_000, run == 0, true, &passed(0, 0..0, 0..run));
        let base = claims.reply(0, vec![1], &sequencer).base;
        assert_eq!((base.begin.epoch, base.passed), (0, sum(0..base.begin.run)));
        let kept = run - base.begin.run;
        assert!(kept < 2 * REMEMBERED + 1 && (base.passed == 0 || kept >= REMEMBERED), "{run} {base:?}");
        assert!(claims.taken.len() <= 2 * REMEMBERED + 1 && claims.ranks[&0].marks.done.len() < 10);
    }
}

#[test]
fn no_claim_is_granted_while_a_rank_resumes_from_a_token_that_is_too_old() {
    let sequencer = counted();
    let mut claims = Claims::new(&report(&[], &[]));
    // Rank 1 had done four of the first ten claims. It resumes with three of them.
    claims.sync(0, 1, true, true, &passed(10, 0..6, 10..12));
    claims.sync(1, 1, true, true, &passed(2, 0..0, 6..9));
    let reply = claims.reply(1, vec![], &sequencer);
    assert!(reply.granted.is_empty() && !reply.is_exhausted && reply.base == CompletedPrefix::default());
    assert!(reply.failed.expect("a reason").message.starts_with("rank 1 resumed from a token that is too old"));
    // Four claims match in number, but these are not the four that it had done.
    claims.sync(1, 1, true, true, &passed(2, 0..0, 5..9));
    let reply = claims.reply(1, vec![], &sequencer);
    assert!(reply.granted.is_empty() && reply.failed.is_some());
    // With the right four, no claim is missing.
    claims.sync(1, 1, true, true, &passed(2, 0..0, 6..10));
    assert_eq!(claims.reply(1, vec![], &sequencer).base.passed, sum(0..10));
    // All ranks resume from one earlier checkpoint.
    claims.sync(0, 1, true, true, &passed(0, 0..0, 0..2));
    claims.sync(1, 1, true, true, &passed(0, 0..0, 2..3));
    assert_eq!(names(&claims.reply(1, vec![], &sequencer).granted), [(0, 3), (0, 4)]);
}

#[test]
fn the_window_to_count_next_is_named() {
    let sequencer = counted();
    let mut claims = Claims::new(&report(&[], &[]));
    let base = CompletedPrefix { begin: Claim { epoch: 2, run: 0 }, ..CompletedPrefix::default() };
    claims.sync(0, 3, true, true, &ClaimSync { base, ..report(&[], &[]) });
    assert!(claims.reply(0, vec![], &sequencer).granted.is_empty());
    assert_eq!(claims.needed(), Some(WindowId { epoch: 2, index: 0 }));
}

#[test]
fn a_false_end_of_an_epoch_ends_nothing_but_the_search() {
    let sequencer = counted();
    let truthful = report(&[], &[]);
    let mut claims = Claims::new(&truthful);
    claims.sync(0, 2, true, true, &truthful);
    let granted = claims.reply(0, vec![], &sequencer).granted;
    assert_eq!(names(&granted), [(0, 0), (0, 1)]);
    // The dispatcher counts the epoch to its end.
    claims.sync(0, 2, true, true, &report(&[(0, 0), (0, 1), (0, 2)], &[]));
    assert_eq!(names(&claims.reply(0, vec![], &sequencer).granted), [(0, 3), (0, 4)]);
    // The epoch has 17 samples, in 5 claims. The rank says that it is longer, and has taken more than there is.
    let all: Vec<_> = (0..1_000).map(|run| (0, run)).collect();
    let mut lie = report(&all, &[]);
    lie.base.ends.insert(0, 1 << 40);
    let window = WindowId { epoch: 0, index: 0 };
    lie.furthest = Some(Granted { claim: (0, 999).into(), end: 4_000, window, window_offset: 4_000 });
    for _ in 0..3 {
        claims.sync(0, 2, true, true, &lie);
        let reply = claims.reply(0, vec![], &sequencer);
        assert!(reply.granted.iter().all(|granted| granted.claim.epoch == 1), "{:?}", reply.granted);
    }
}
