//! A rank with dynamic delivery, message by message.

use super::*;
use crate::claim::CompletedPrefix;
use crate::claim_messages::ClaimReply;
use crate::error::ErrorKind;
use crate::messages::{ReaderReply, Route};
use crate::rules::break_rule;
use crate::trainer::Fragment;
use crate::window::WindowId;

const PATIENCE_MS: Millis = 1_000;

/// A rank with batches of 2, and so claims of 8 offsets, that may ask so many dispatchers.
fn trainer(dispatchers: usize) -> DynamicTrainer<u64> {
    let settings = ReadSettings { batch_size: 2, epochs: 1, drop_last: false, rank: 0, world_size: 2 };
    let claimer = Claimer::new("f".into(), "j".into(), 9 << 16, settings, Claim::default(), None).expect("new");
    DynamicTrainer::new(claimer, dispatchers, 1_000, PATIENCE_MS)
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
        workers: 1,
        failed: None,
    };
    ClaimAnswer { version: seq, seq, clock_ms: 0, reply }
}

fn report(kind: ErrorKind, message: &str) -> Report {
    Report { kind, message: message.to_owned(), hint: None, retry: false }
}

/// Begins all claims that were granted.
fn begin(trainer: &mut DynamicTrainer<u64>) -> Vec<u64> {
    std::iter::from_fn(|| trainer.begin(|| 1).map(|claim| claim.run)).collect()
}

/// Brings all rows of a claim, whose window has 100.
fn bring(trainer: &mut DynamicTrainer<u64>, run: u64) {
    let trainer = trainer.trainer(granted(run).claim).expect("begun");
    let seq = trainer.sync(0).seq;
    let route = Route { window: window(), rows: 100, last: true, lease: 1, worker: 1, address: "a".into() };
    let reply = ReaderReply { version: 1, seq, routes: vec![route], failed: None, workers: 1, refused: false };
    trainer.reply(reply);
    let opens = trainer.opens(0);
    for rows in opens[0].slice.runs(0) {
        let records = rows.start;
        assert!(trainer.received(window(), 1, Fragment { rows, bytes: 20, records }));
    }
}

/// Offset, step and token of the next batch.
fn handed(trainer: &mut DynamicTrainer<u64>) -> (u64, u64, String) {
    match trainer.next(0) {
        Next::Deliver(batch) => (batch.offsets.start, batch.step, batch.token.to_string()),
        next => panic!("{next:?}"),
    }
}

#[test]
fn claims_are_handed_out_one_after_the_other_and_received_together() {
    let mut trainer = trainer(1);
    let seq = trainer.sync(0).expect("a first message").seq;
    assert!(!trainer.reply(seq, answer(seq, &[0, 3]), "d", true, 0));
    assert_eq!(begin(&mut trainer), [0, 3]);
    bring(&mut trainer, 3);
    assert_eq!(trainer.next(0), Next::Wait, "the first claim comes first");
    bring(&mut trainer, 0);
    let batches: Vec<_> = (0..8).map(|_| handed(&mut trainer)).collect();
    let offsets: Vec<_> = batches.iter().map(|(offset, step, _)| (*offset, *step)).collect();
    assert_eq!(offsets, [(0, 0), (2, 1), (4, 2), (6, 3), (24, 12), (26, 13), (28, 14), (30, 15)]);
    // The first of all tokens is of a claim that is begun, and the last of one that is done.
    let marks = |text: &str| {
        let token: Token = text.parse().expect("own text");
        token.claims.expect("dynamic").ranks[&0].clone()
    };
    assert_eq!(marks(&batches[0].2).held, [(granted(0), 2)]);
    assert_eq!(marks(&batches[7].2).done.len(), 2);
    // That a claim is done is told at once, although a message is still to be answered; and its reader leaves.
    assert_eq!(trainer.sync(0).map(|message| message.claims.done.len()), Some(2));
    assert!(trainer.end(granted(0).claim, 0).is_some_and(|sync| sync.leaving));
    assert!(trainer.end(granted(0).claim, 0).is_none());
    // It is not over before the dispatcher has said that nothing is left.
    assert_eq!(trainer.next(0), Next::Wait);
    assert!(trainer.sync(0).is_some() && trainer.sync(0).is_none(), "two wait");
    let mut last = answer(seq + 2, &[]);
    last.reply.is_exhausted = true;
    assert!(!trainer.reply(seq + 2, last, "d", true, 0));
    assert_eq!(trainer.next(0), Next::End);
}

#[test]
fn a_dispatcher_without_workers_is_left_after_a_pause() {
    let mut trainer = trainer(2);
    assert_eq!(trainer.announce().expect("there is another").seq, 1);
    let seq = trainer.sync(0).expect("a first message").seq;
    assert!(!trainer.reply(1, answer(1, &[5]), "other", false, 0), "what it announced has no answer");
    let mut idle = answer(seq, &[]);
    idle.reply.workers = 0;
    assert!(trainer.reply(seq, idle, "d", true, 10));
    assert_eq!((trainer.sync(10), trainer.sync_at()), (None, Some(210)));
    let next = trainer.sync(210).expect("the pause is over");
    assert_eq!((next.since, next.known), (next.seq, 0));
    // It comes late.
    assert!(!trainer.reply(seq, answer(seq, &[5]), "d", true, 220));
    assert_eq!(begin(&mut trainer), [0; 0]);
    break_rule(Some(Rule::LeftDispatchersAreNotHeard));
    assert!(!trainer.reply(seq, ClaimAnswer { version: 9, ..answer(seq, &[5]) }, "d", true, 220));
    break_rule(None);
    assert_eq!(begin(&mut trainer), [5], "a rule that is broken shows");
    // One that does not answer makes room for the next message too.
    trainer.unanswered(next.seq, report(ErrorKind::Unavailable, "gone"), 300);
    assert!(!trainer.awaits(next.seq) && trainer.sync(499).is_none() && trainer.sync(500).is_some());
}

#[test]
fn trouble_that_lasts_is_an_error_unless_a_claim_is_read() {
    let mut trainer = trainer(1);
    let seq = trainer.sync(0).expect("a first message").seq;
    let mut waits = answer(seq, &[]);
    waits.reply.awaited = vec![1];
    assert!(!trainer.reply(seq, waits, "d", true, 100), "there is no other");
    assert_eq!((trainer.awaiting().map(|(since, _)| since), trainer.gives_up_at()), (Some(100), Some(1_100)));
    assert_eq!(trainer.next(1_099), Next::Wait);
    assert!(matches!(trainer.next(1_100), Next::Fail(report) if report.message.contains("rank 1 is there")));
    let seq = trainer.sync(0).expect("none waits").seq;
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
    let older = trainer.sync(0).expect("one that waits for news").seq;
    (0..4).for_each(|_| drop(handed(&mut trainer)));
    assert_eq!(trainer.next(0), Next::Wait);
    let newer = trainer.sync(0).expect("one that brings news").seq;
    // The dispatcher has heard both when it answers the first.
    assert!(!trainer.reply(older, answer(newer, &[]), "d", true, 0));
    assert!(!trainer.awaits(older) && trainer.awaits(newer));
    assert!(trainer.sync(0).is_none(), "the newer message waits for news");
    assert!(!trainer.reply(newer, answer(newer, &[]), "d", true, 0));
    assert!(trainer.sync(0).is_some(), "none waits");
}

#[test]
fn a_process_that_was_replaced_hands_out_nothing() {
    let mut trainer = trainer(1);
    let seq = trainer.sync(0).expect("a first message").seq;
    assert!(!trainer.reply(seq, answer(seq, &[0]), "d", true, 0));
    begin(&mut trainer);
    bring(&mut trainer, 0);
    handed(&mut trainer);
    trainer.refused(report(ErrorKind::Conflict, "another process"));
    assert!(matches!(trainer.next(0), Next::Fail(report) if report.kind == ErrorKind::Conflict));
    assert!(trainer.sync(0).is_none());
}

#[test]
fn all_claims_of_a_rank_have_one_buffer() {
    for (rule, claims) in [(None, 2), (Some(Rule::ClaimsShareTheBuffer), 1)] {
        break_rule(rule);
        assert_eq!(trainer(1).limits().buffered_bytes * claims, 1_000);
        break_rule(None);
    }
}
