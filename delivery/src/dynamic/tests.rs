//! Tests of a rank with dynamic delivery: messages and answers.

use super::*;
use crate::claim::CompletedPrefix;
use crate::claim_messages::ClaimReply;
use crate::error::ErrorKind;
use crate::messages::{ReaderReply, Route};
use crate::position::EndedRank;
use crate::rules::break_rule;
use crate::trainer::Fragment;
use crate::window::WindowId;

const PATIENCE_MS: Millis = 1_000;

/// Returns a rank with batches of 2, and so claims of 8 offsets, that may ask this number of dispatchers.
fn trainer(dispatchers: usize) -> DynamicTrainer<u64> {
    let settings = ReadSettings { batch_size: 2, epochs: 1, drop_last: false, rank: 0, world_size: 2 };
    let claimer = Claimer::new("f".into(), "j".into(), 9 << 16, settings, Claim::default(), None).expect("new");
    DynamicTrainer::new(claimer, dispatchers, ReceiveLimits::of_bytes(1_000), PATIENCE_MS)
}

fn window() -> WindowId {
    WindowId { epoch: 0, index: 0 }
}

fn granted(run: u64) -> Granted {
    Granted { claim: Claim { epoch: 0, run }, end: 8 * run + 8, window: window(), window_offset: 0 }
}

fn answer(seq: u64, runs: &[u64]) -> ClaimAnswer {
    let reply = ClaimReply {
        granted: runs.iter().map(|&run| granted(run)).collect(),
        base: CompletedPrefix::default(),
        is_exhausted: false,
        awaited: Vec::new(),
        sessions: BTreeMap::new(),
        ended: BTreeMap::new(),
        workers: 1,
        failed: None,
    };
    ClaimAnswer { version: seq, seq, clock_ms: 0, reply }
}

fn report(kind: ErrorKind, message: &str) -> Report {
    Report { kind, message: message.to_owned(), hint: None, retry: false }
}

/// Begins all granted claims.
fn begin(trainer: &mut DynamicTrainer<u64>) -> Vec<u64> {
    std::iter::from_fn(|| trainer.begin(|| 1).map(|claim| claim.run)).collect()
}

/// Receives all rows of a claim, from a window of 100 rows.
fn bring(trainer: &mut DynamicTrainer<u64>, run: u64) {
    let trainer = trainer.trainer(granted(run).claim).expect("begun");
    let seq = trainer.sync(0).seq;
    let route =
        Route { window: window(), rows: 100, last: true, ready: true, lease: 1, worker: 1, address: "a".into() };
    let reply = ReaderReply { version: 1, seq, routes: vec![route], failed: None, workers: 1, refused: false };
    trainer.reply(reply);
    let opens = trainer.opens(0);
    for rows in opens[0].slice.runs(0) {
        let records = rows.start;
        assert!(trainer.received(window(), 1, Fragment { rows, bytes: 20, records }, 0));
    }
}

/// Returns offset, step and token of the next batch.
fn delivered(trainer: &mut DynamicTrainer<u64>) -> (u64, u64, String) {
    match trainer.next(0) {
        Next::Deliver(batch) => (batch.offsets.start, batch.step, batch.token.to_string()),
        next => panic!("{next:?}"),
    }
}

#[test]
fn claims_are_delivered_one_after_the_other_and_received_together() {
    let mut trainer = trainer(1);
    let seq = trainer.sync(0).expect("a first message").seq;
    assert!(!trainer.reply(seq, answer(seq, &[0, 3]), "d", true, 0));
    assert_eq!(begin(&mut trainer), [0, 3]);
    bring(&mut trainer, 3);
    assert_eq!(trainer.next(0), Next::Wait, "the first claim is delivered first");
    bring(&mut trainer, 0);
    let batches: Vec<_> = (0..8).map(|_| delivered(&mut trainer)).collect();
    let offsets: Vec<_> = batches.iter().map(|(offset, step, _)| (*offset, *step)).collect();
    assert_eq!(offsets, [(0, 0), (2, 1), (4, 2), (6, 3), (24, 12), (26, 13), (28, 14), (30, 15)]);
    // The first token names a claim that is begun, and the last a claim that is done.
    let marks = |text: &str| {
        let token: Token = text.parse().expect("own text");
        token.claims.expect("dynamic").ranks[&0].clone()
    };
    assert_eq!(marks(&batches[0].2).held, [(granted(0), 2)]);
    assert_eq!(marks(&batches[7].2).done.len(), 2);
    // The rank tells the dispatcher at once that a claim is done, although one message is unanswered. The claim's
    // trainer leaves.
    assert_eq!(trainer.sync(0).map(|message| message.claims.done.len()), Some(2));
    assert!(trainer.end(granted(0).claim, 0).is_some_and(|sync| sync.leaving));
    assert!(trainer.end(granted(0).claim, 0).is_none());
    // The rank ends only after the dispatcher has said that no claim is left.
    assert_eq!(trainer.next(0), Next::Wait);
    assert!(trainer.sync(0).is_some() && trainer.sync(0).is_none(), "two messages are unanswered");
    let mut last = answer(seq + 2, &[]);
    last.reply.is_exhausted = true;
    assert!(!trainer.reply(seq + 2, last.clone(), "d", true, 0));
    // The rank says that it takes no more claims, and ends when the dispatcher has heard of it.
    assert_eq!((trainer.next(0), trainer.gives_up_at()), (Next::Wait, Some(FAREWELL_MS)));
    let message = trainer.sync(0).expect("the end is news");
    assert!(message.claims.is_leaving && message.claims.held.is_empty());
    (last.seq, last.version) = (message.seq, message.seq);
    last.reply.ended = [(0, EndedRank { session: 9 << 16, ..EndedRank::default() })].into();
    assert!(!trainer.reply(message.seq, last, "d", true, 0));
    assert_eq!(trainer.next(0), Next::End);
}

#[test]
fn a_rank_leaves_a_dispatcher_without_workers_after_a_pause() {
    let mut trainer = trainer(2);
    assert_eq!(trainer.announce().expect("a second dispatcher").seq, 1);
    let seq = trainer.sync(0).expect("a first message").seq;
    assert!(!trainer.reply(1, answer(1, &[5]), "other", false, 0), "the answer to an announcement grants nothing");
    let mut idle = answer(seq, &[]);
    idle.reply.workers = 0;
    assert!(trainer.reply(seq, idle, "d", true, 10));
    assert_eq!((trainer.sync(10), trainer.sync_at()), (None, Some(210)));
    let next = trainer.sync(210).expect("the pause is over");
    assert_eq!((next.since, next.known), (next.seq, 0));
    // A late answer of the dispatcher that was left.
    assert!(!trainer.reply(seq, answer(seq, &[5]), "d", true, 220));
    assert_eq!(begin(&mut trainer), [0; 0]);
    break_rule(Some(Rule::LeftDispatchersAreNotHeard));
    assert!(!trainer.reply(seq, ClaimAnswer { version: 9, ..answer(seq, &[5]) }, "d", true, 220));
    break_rule(None);
    assert_eq!(begin(&mut trainer), [5], "the broken rule has an effect");
    // A message that stays unanswered makes room for the next, too.
    trainer.unanswered(next.seq, report(ErrorKind::Unavailable, "gone"), 300);
    assert!(!trainer.awaits(next.seq) && trainer.sync(499).is_none() && trainer.sync(500).is_some());
}

#[test]
fn lasting_trouble_is_an_error_unless_a_claim_is_being_read() {
    let mut trainer = trainer(1);
    let seq = trainer.sync(0).expect("a first message").seq;
    let mut waits = answer(seq, &[]);
    waits.reply.awaited = vec![1];
    assert!(!trainer.reply(seq, waits, "d", true, 100), "there is no other dispatcher");
    assert_eq!((trainer.awaiting().map(|(since, _)| since), trainer.gives_up_at()), (Some(100), Some(1_100)));
    assert_eq!(trainer.next(1_099), Next::Wait);
    assert!(matches!(trainer.next(1_100), Next::Fail(report) if report.message.contains("until rank 1 joins")));
    let seq = trainer.sync(0).expect("no message is unanswered").seq;
    let mut failed = answer(seq, &[0]);
    failed.reply.failed = Some(report(ErrorKind::Conflict, "no"));
    assert!(!trainer.reply(seq, failed, "d", true, 1_200));
    begin(&mut trainer);
    assert_eq!((trainer.next(9_000), trainer.gives_up_at()), (Next::Wait, None));
}

#[test]
fn an_answer_counts_for_the_message_that_it_answers() {
    let mut trainer = trainer(1);
    let seq = trainer.sync(0).expect("a first message").seq;
    assert!(!trainer.reply(seq, answer(seq, &[0]), "d", true, 0));
    begin(&mut trainer);
    bring(&mut trainer, 0);
    let older = trainer.sync(0).expect("a message that waits for news").seq;
    (0..4).for_each(|_| drop(delivered(&mut trainer)));
    assert_eq!(trainer.next(0), Next::Wait);
    let newer = trainer.sync(0).expect("a message that brings news").seq;
    // The dispatcher has heard both messages when it answers the first.
    assert!(!trainer.reply(older, answer(newer, &[]), "d", true, 0));
    assert!(!trainer.awaits(older) && trainer.awaits(newer));
    assert!(trainer.sync(0).is_none(), "the newer message is unanswered");
    assert!(!trainer.reply(newer, answer(newer, &[]), "d", true, 0));
    assert!(trainer.sync(0).is_some(), "no message is unanswered");
}

#[test]
fn a_replaced_process_delivers_no_batches() {
    let mut trainer = trainer(1);
    let seq = trainer.sync(0).expect("a first message").seq;
    assert!(!trainer.reply(seq, answer(seq, &[0]), "d", true, 0));
    begin(&mut trainer);
    bring(&mut trainer, 0);
    delivered(&mut trainer);
    trainer.refused(report(ErrorKind::Conflict, "another process"));
    assert!(matches!(trainer.next(0), Next::Fail(report) if report.kind == ErrorKind::Conflict));
    assert!(trainer.sync(0).is_none());
}

#[test]
fn all_claims_of_a_rank_share_one_buffer() {
    for (rule, claims) in [(None, 2), (Some(Rule::ClaimsShareTheBuffer), 1)] {
        break_rule(rule);
        assert_eq!(trainer(1).limits().buffered_bytes * claims, 1_000);
        break_rule(None);
    }
}

#[test]
fn a_rank_ends_when_a_dispatcher_knows_or_does_not_answer() {
    let finished = || {
        let mut trainer = trainer(1);
        let seq = trainer.sync(0).expect("a first message").seq;
        let mut last = answer(seq, &[]);
        last.reply.is_exhausted = true;
        assert!(!trainer.reply(seq, last, "d", true, 0));
        trainer
    };
    let mut trainer = finished();
    assert_eq!((trainer.next(7), trainer.next(6 + FAREWELL_MS)), (Next::Wait, Next::Wait));
    assert!(trainer.sync(7).is_some_and(|message| message.claims.is_leaving));
    assert_eq!(trainer.next(7 + FAREWELL_MS), Next::End);
    break_rule(Some(Rule::EndsAreAcknowledged));
    let ended = finished().next(7);
    break_rule(None);
    assert_eq!(ended, Next::End, "the broken rule has an effect");
}

#[test]
fn a_rank_reads_few_claims_at_a_time() {
    for (rule, reads) in [(None, vec![0, 3]), (Some(Rule::FewClaimsAreRead), vec![0, 3, 5])] {
        break_rule(rule);
        let mut trainer = trainer(1);
        let seq = trainer.sync(0).expect("a first message").seq;
        // A rank that resumes with the claims of several ranks holds more than it may read.
        assert!(!trainer.reply(seq, answer(seq, &[0, 3, 5]), "d", true, 0));
        let begun = begin(&mut trainer);
        break_rule(None);
        assert_eq!(begun, reads);
    }
    assert_eq!(STREAMS_OF_A_RANK_MAX, 6);
}
