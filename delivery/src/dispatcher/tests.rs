//! Tests of the dispatcher: messages and answers.

use super::*;
use crate::error::ErrorKind;
use crate::messages::{BrokenLease, ReaderReply, ReaderSync};
use crate::rules::{Rule, break_rule};
use crate::sequencer::LeaseId;
use crate::window::WindowId;
use crate::{ReadSettings, ReceiveLimits, Trainer, Unanswered, WorkerProfile};

/// Epochs of six windows of 10 bytes each.
struct SixWindows;

impl Plan for SixWindows {
    fn windows(&self, _: u64) -> u32 {
        6
    }

    fn bytes(&self, _: WindowId) -> u64 {
        10
    }
}

/// A time at which the dispatcher is no longer young.
const LATER: Millis = 10_000;

fn window(index: u32) -> WindowId {
    WindowId { epoch: 0, index }
}

fn dispatcher(instance: u32, feeds: &[&str]) -> Dispatcher<SixWindows> {
    let mut dispatcher = Dispatcher::new(DispatcherSettings::default(), instance, 0);
    dispatcher.tick(LATER);
    feeds.iter().for_each(|&feed| dispatcher.open(&feed.into(), SixWindows, LATER));
    dispatcher
}

fn worker(id: WorkerId, address: &str, memory_bytes: u64) -> crate::Worker {
    crate::Worker::new(WorkerProfile { worker: id, address: address.into(), memory_bytes, computing: 2 })
}

fn trainer(feed: &str, session: u64) -> Trainer<()> {
    let settings = ReadSettings { batch_size: 2, epochs: 1, drop_last: false, rank: 0, world_size: 1 };
    let begin = crate::Origin { window: window(0), window_offset: 0, offset: 0 };
    Trainer::new(feed.into(), session, settings, begin, ReceiveLimits::of_bytes(1_000))
}

fn report(message: &str) -> Report {
    Report { kind: ErrorKind::Data, message: message.into(), hint: None, retry: false }
}

/// Sends one message, or all that a new dispatcher must be told, takes the answer and returns the leases. The next
/// message reports their windows as ready.
fn exchange(dispatcher: &mut Dispatcher<SixWindows>, worker: &mut crate::Worker, now: Millis) -> Vec<(u32, LeaseId)> {
    loop {
        let sync = worker.sync();
        dispatcher.worker_sync(&sync, now).expect("its own address");
        let reply = dispatcher.worker_reply(sync.worker, now).expect("known");
        let actions = worker.reply(&reply);
        let is_done = !worker.has_more();
        for action in actions {
            if let crate::WorkerAction::Start(key) = action {
                worker.report(&key, HeldState::Ready { rows: 5, bytes: 10 }, false);
            }
        }
        if is_done {
            break;
        }
    }
    worker.leases().iter().map(|lease| (lease.key.1.index, lease.lease)).collect()
}

fn windows(leases: &[(u32, LeaseId)]) -> Vec<u32> {
    leases.iter().map(|&(window, _)| window).collect()
}

fn ask(dispatcher: &mut Dispatcher<SixWindows>, trainer: &mut Trainer<()>, now: Millis) -> ReaderReply {
    let sync = trainer.sync(now);
    dispatcher.reader_sync(&sync, now).expect("admitted");
    dispatcher.reader_reply(&sync).expect("open")
}

#[test]
fn a_reader_gets_routes_to_its_windows() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let (mut worker, mut trainer) = (worker(7, "w7", 1_000), trainer("f", 1));
    assert_eq!(ask(&mut dispatcher, &mut trainer, LATER).workers, 0);
    let first = exchange(&mut dispatcher, &mut worker, LATER);
    assert_eq!(windows(&first), [0, 1]);
    exchange(&mut dispatcher, &mut worker, LATER);
    let reply = ask(&mut dispatcher, &mut trainer, LATER);
    let routes: Vec<_> = reply.routes.iter().map(|route| (route.window.index, route.lease)).collect();
    assert_eq!((routes, reply.workers), (first, 1));
    assert!(reply.routes.iter().all(|it| it.address == "w7" && it.worker == 7 && it.rows == 5 && !it.last));
    // Without a change, the version stays the same.
    assert_eq!(dispatcher.reader_reply(&trainer.sync(LATER)).expect("open").version, reply.version);
}

#[test]
fn an_older_message_changes_nothing() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let (mut worker, mut trainer) = (worker(7, "w7", 1_000), trainer("f", 1));
    let (old, new) = (trainer.sync(0), trainer.sync(0));
    dispatcher.reader_sync(&ReaderSync { at: window(3), ..new }, LATER).expect("admitted");
    dispatcher.reader_sync(&old, LATER).expect("admitted");
    assert_eq!(dispatcher.status(LATER).feeds[0].readers[0].at, window(3));
    let old = worker.sync();
    exchange(&mut dispatcher, &mut worker, LATER);
    exchange(&mut dispatcher, &mut worker, LATER);
    let before = dispatcher.worker_reply(7, LATER);
    dispatcher.worker_sync(&WorkerSync { draining: true, ..old }, LATER).expect("its own address");
    assert_eq!(dispatcher.worker_reply(7, LATER), before);
}

#[test]
fn a_worker_is_refused_when_another_takes_its_address() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let (mut old, mut new, mut trainer) = (worker(7, "w", 1_000), worker(8, "w", 1_000), trainer("f", 1));
    ask(&mut dispatcher, &mut trainer, LATER);
    exchange(&mut dispatcher, &mut old, LATER);
    exchange(&mut dispatcher, &mut old, LATER);
    assert_eq!(windows(&exchange(&mut dispatcher, &mut new, LATER)), [0, 1]);
    let sent_away = dispatcher.worker_sync(&old.sync(), LATER);
    assert_eq!(sent_away, Err(Replaced { address: "w".into() }));
    assert_eq!(dispatcher.worker_reply(7, LATER), None);
    exchange(&mut dispatcher, &mut new, LATER);
    assert!(ask(&mut dispatcher, &mut trainer, LATER).routes.iter().all(|route| route.worker == 8));
}

#[test]
fn workers_that_take_an_address_from_each_other_are_not_counted_against_a_window() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let mut trainer = trainer("f", 1);
    ask(&mut dispatcher, &mut trainer, LATER);
    let mut workers: Vec<_> = (7..40).map(|id| worker(id, "w", 1_000)).collect();
    for index in 0..workers.len() {
        dispatcher.worker_sync(&workers[index].sync(), LATER).expect("its own address");
        dispatcher.worker_reply(7 + index as u64, LATER).expect("known");
        if let Some(replaced) = index.checked_sub(1) {
            dispatcher.worker_sync(&workers[replaced].sync(), LATER).expect_err("it was replaced");
        }
    }
    assert_eq!(dispatcher.failures().count(), 0);
}

#[test]
fn a_young_dispatcher_keeps_the_windows_of_feeds_that_are_not_open_yet() {
    let (mut worker, mut trainer) = (worker(7, "w7", 1_000), trainer("f", 1));
    let mut before = dispatcher(1, &["f"]);
    ask(&mut before, &mut trainer, LATER);
    exchange(&mut before, &mut worker, LATER);
    let leases = exchange(&mut before, &mut worker, LATER);

    let mut young = Dispatcher::new(DispatcherSettings::default(), 2, 0);
    assert_eq!(exchange(&mut young, &mut worker, 0).len(), leases.len());
    let told = young.worker_reply(7, 1).expect("known");
    assert!(!told.leases.changed.is_empty());
    assert!(told.leases.changed.iter().all(|(_, granted)| granted.is_some_and(|it| it.shares == f64::MAX)));
    young.open(&"f".into(), SixWindows, 100);
    let reply = ask(&mut young, &mut trainer, 100);
    let routes: Vec<_> = reply.routes.iter().map(|route| (route.window.index, route.lease)).collect();
    assert_eq!(routes, leases, "they can be read at once");

    // Without a reader, the windows are released when the dispatcher is no longer young.
    let mut young = Dispatcher::new(DispatcherSettings::default(), 3, 0);
    young.open(&"f".into(), SixWindows, 0);
    exchange(&mut young, &mut worker, 0);
    for now in (0..5_000).step_by(500) {
        assert!(!exchange(&mut young, &mut worker, now).is_empty());
    }
    assert!(exchange(&mut young, &mut worker, 5_000).is_empty());
}

#[test]
fn a_worker_keeps_windows_that_a_new_dispatcher_has_not_heard_of() {
    let dropped = |rule| {
        break_rule(rule);
        let (mut worker, mut trainer) = (worker(7, "w7", 1_000), trainer("f", 1));
        let mut before = dispatcher(1, &["f"]);
        ask(&mut before, &mut trainer, LATER);
        exchange(&mut before, &mut worker, LATER);
        exchange(&mut before, &mut worker, LATER);
        // The message holds only what the earlier dispatcher did not know.
        let mut after = dispatcher(2, &["f"]);
        ask(&mut after, &mut trainer, LATER);
        after.worker_sync(&worker.sync(), LATER).expect("its own address");
        let actions = worker.reply(&after.worker_reply(7, LATER).expect("known"));
        break_rule(None);
        actions.iter().filter(|action| matches!(action, crate::WorkerAction::Drop(_))).count()
    };
    assert_eq!((dropped(None), dropped(Some(Rule::UnnamedWindowsAreNotRevoked))), (0, 2));
}

#[test]
fn a_window_that_is_ready_is_not_computed_again_by_a_worker_that_joined_first() {
    let (mut first, mut second, mut trainer) = (worker(7, "w7", 1_000), worker(8, "w8", 1_000), trainer("f", 1));
    let mut before = dispatcher(1, &["f"]);
    ask(&mut before, &mut trainer, LATER);
    exchange(&mut before, &mut second, LATER);
    exchange(&mut before, &mut second, LATER);

    let mut after = dispatcher(2, &["f"]);
    ask(&mut after, &mut trainer, LATER);
    after.worker_sync(&first.sync(), LATER).expect("its own address");
    exchange(&mut after, &mut second, LATER);
    assert!(ask(&mut after, &mut trainer, LATER).routes.iter().all(|route| route.worker == 8));
    let leases = exchange(&mut after, &mut first, LATER);
    assert!(!windows(&leases).contains(&0), "{leases:?}");
}

#[test]
fn a_reader_gets_the_reason_if_every_worker_refuses_its_feed() {
    let mut dispatcher = dispatcher(1, &["f", "g"]);
    let (mut worker, mut trainer) = (worker(7, "w7", 1_000), trainer("f", 1));
    worker.refuse("f".into(), report("an older build"));
    ask(&mut dispatcher, &mut trainer, LATER);
    assert!(exchange(&mut dispatcher, &mut worker, LATER).is_empty());
    let reply = ask(&mut dispatcher, &mut trainer, LATER);
    assert_eq!((reply.failed, reply.workers), (Some((window(0), report("an older build"))), 0));
    // Another worker may still reach a young dispatcher.
    let mut young = Dispatcher::new(DispatcherSettings::default(), 2, 0);
    young.open(&"f".into(), SixWindows, 0);
    exchange(&mut young, &mut worker, 0);
    assert_eq!(ask(&mut young, &mut trainer, 0).failed, None);
}

#[test]
fn a_failure_is_reported_at_its_window_and_retried_for_a_new_reader() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let (mut worker, mut first, mut again) = (worker(7, "w7", 1_000), trainer("f", 1), trainer("f", 2));
    ask(&mut dispatcher, &mut first, LATER);
    exchange(&mut dispatcher, &mut worker, LATER);
    worker.report(&("f".into(), window(1)), HeldState::Failed(report("bad row")), false);
    exchange(&mut dispatcher, &mut worker, LATER);
    let reply = ask(&mut dispatcher, &mut first, LATER);
    assert_eq!((reply.routes.len(), reply.failed), (1, Some((window(1), report("bad row")))));
    assert_eq!(ask(&mut dispatcher, &mut again, LATER).failed, None);
    assert!(windows(&exchange(&mut dispatcher, &mut worker, LATER)).contains(&1));
}

#[test]
fn a_window_that_was_given_up_is_retried_for_a_ranks_first_claim_and_not_for_its_next() {
    let fails = |rule, is_first, fail: &dyn Fn(&mut Dispatcher<SixWindows>)| {
        break_rule(rule);
        let mut dispatcher = dispatcher(1, &["f"]);
        ask(&mut dispatcher, &mut trainer("f", 1).of_claim(4, true), LATER);
        fail(&mut dispatcher);
        let failed = ask(&mut dispatcher, &mut trainer("f", 2).of_claim(8, is_first), LATER).failed.is_some();
        break_rule(None);
        failed
    };
    let loses_workers = |dispatcher: &mut Dispatcher<SixWindows>| lose_workers(dispatcher, 1..22);
    let lost_earlier = |dispatcher: &mut Dispatcher<SixWindows>| {
        (0..5).for_each(|losses| dispatcher.remember_loss("f", vec![window(0)], losses >= 3));
    };
    let has_bad_row = |dispatcher: &mut Dispatcher<SixWindows>| {
        let mut worker = worker(7, "w", 1_000);
        exchange(dispatcher, &mut worker, LATER);
        worker.report(&("f".into(), window(1)), HeldState::Failed(report("bad row")), false);
        exchange(dispatcher, &mut worker, LATER);
        assert_eq!(dispatcher.failures().count(), 1);
    };
    for given_up in [&loses_workers as &dyn Fn(&mut Dispatcher<SixWindows>), &lost_earlier] {
        assert!(fails(None, false, given_up) && !fails(None, true, given_up));
        assert!(!fails(Some(Rule::LossesOutlastClaims), false, given_up), "the broken rule has an effect");
    }
    assert!(!fails(None, false, &has_bad_row));
}

#[test]
fn a_window_whose_row_count_changes_fails_with_a_reason() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let (mut one, mut other, mut trainer) = (worker(7, "w7", 0), worker(8, "w8", 0), trainer("f", 1));
    ask(&mut dispatcher, &mut trainer, LATER);
    exchange(&mut dispatcher, &mut one, LATER);
    exchange(&mut dispatcher, &mut one, LATER);
    let leaving = WorkerSync { leaving: true, ..one.sync() };
    dispatcher.worker_sync(&leaving, LATER).expect("its own address");
    exchange(&mut dispatcher, &mut other, LATER);
    other.report(&("f".into(), window(0)), HeldState::Counted { rows: 6, bytes: 10 }, false);
    exchange(&mut dispatcher, &mut other, LATER);
    let (at, report) = ask(&mut dispatcher, &mut trainer, LATER).failed.expect("failed");
    assert_eq!((at, report.kind), (window(0), ErrorKind::Internal));
    assert!(report.message.contains("has 6 samples, but had 5"), "{}", report.message);
}

#[test]
fn feeds_share_the_memory_of_a_worker() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let (mut worker, mut trainers) = (worker(7, "w7", 80), [trainer("f", 1), trainer("g", 2)]);
    let held = |dispatcher: &mut Dispatcher<SixWindows>, worker: &mut crate::Worker, feed: &str| {
        for _ in 0..10 {
            exchange(dispatcher, worker, LATER);
        }
        worker.leases().iter().filter(|lease| &*lease.key.0 == feed).count()
    };
    ask(&mut dispatcher, &mut trainers[0], LATER);
    assert_eq!(held(&mut dispatcher, &mut worker, "f"), 6);
    dispatcher.open(&"g".into(), SixWindows, LATER);
    ask(&mut dispatcher, &mut trainers[1], LATER);
    assert_eq!(held(&mut dispatcher, &mut worker, "g"), 4);
    // Windows that the first feed had before are kept until they are passed.
    assert_eq!(held(&mut dispatcher, &mut worker, "f"), 6);
}

#[test]
fn a_worker_that_computes_a_window_alone_computes_nothing_of_other_feeds() {
    let leased = |rule| {
        break_rule(rule);
        let mut dispatcher = dispatcher(1, &["f", "g"]);
        ask(&mut dispatcher, &mut trainer("f", 1), LATER);
        ask(&mut dispatcher, &mut trainer("g", 2), LATER);
        (0..3).for_each(|_| dispatcher.remember_loss("g", vec![window(0)], false));
        let mut worker = worker(7, "w", 1_000);
        let of_feeds = |worker: &crate::Worker| -> Vec<String> {
            worker.leases().iter().map(|it| format!("{}{}", it.key.0, it.key.1.index)).collect()
        };
        exchange(&mut dispatcher, &mut worker, LATER);
        let first = of_feeds(&worker);
        // The window is ready, so the worker is free again.
        exchange(&mut dispatcher, &mut worker, LATER);
        break_rule(None);
        (first, of_feeds(&worker))
    };
    let (first, then) = leased(None);
    assert_eq!(first, ["g0"]);
    assert_eq!(then, ["f0", "g0", "f1", "g1", "g2"]);
    assert_eq!(leased(Some(Rule::AloneIsAmongAllFeeds)).0, ["f0", "g0", "f1"]);
}

#[test]
fn a_silent_worker_is_lost_unless_the_dispatcher_was_paused() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let (mut worker, mut trainer) = (worker(7, "w7", 1_000), trainer("f", 1));
    ask(&mut dispatcher, &mut trainer, LATER);
    exchange(&mut dispatcher, &mut worker, LATER);
    dispatcher.tick(LATER + 60_000);
    let status = dispatcher.status(LATER + 60_000);
    assert_eq!((status.workers.len(), status.feeds[0].readers.len()), (1, 1));
    for now in (60_000..=62_500).step_by(500) {
        dispatcher.tick(LATER + now);
    }
    let status = dispatcher.status(LATER + 62_500);
    assert_eq!((status.workers.len(), status.feeds[0].readers.len()), (0, 1));
    for now in (62_500..=70_500).step_by(500) {
        dispatcher.tick(LATER + now);
    }
    assert!(!dispatcher.has_feed("f"), "the trainer is gone, and nobody read for a minute");
}

#[test]
fn a_worker_that_a_reader_cannot_reach_gets_no_new_window() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let (mut bad, mut good, mut trainer) = (worker(7, "w7", 0), worker(8, "w8", 1_000), trainer("f", 1));
    ask(&mut dispatcher, &mut trainer, LATER);
    let leases = exchange(&mut dispatcher, &mut bad, LATER);
    assert_eq!(windows(&leases), [0, 1]);
    exchange(&mut dispatcher, &mut bad, LATER);
    let broken = BrokenLease { window: window(0), lease: leases[0].1, worker: 7, missing: false };
    let sync = ReaderSync { broken: vec![broken], ..trainer.sync(LATER) };
    exchange(&mut dispatcher, &mut good, LATER);
    dispatcher.reader_sync(&sync, LATER).expect("admitted");
    for _ in 0..10 {
        exchange(&mut dispatcher, &mut good, LATER);
    }
    // The suspected worker's window was leased a second time at once, and the route names the second worker.
    let route = ask(&mut dispatcher, &mut trainer, LATER).routes[0].clone();
    assert_eq!((route.window, route.worker), (window(0), 8));
    dispatcher.reader_sync(&ReaderSync { at: window(1), ..trainer.sync(LATER) }, LATER).expect("admitted");
    assert_eq!(exchange(&mut dispatcher, &mut bad, LATER).len(), 1);
}

#[test]
fn windows_are_timed_once_from_their_grant_until_they_are_ready() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let (mut worker, mut trainer) = (worker(7, "w7", 0), trainer("f", 1));
    ask(&mut dispatcher, &mut trainer, LATER);
    exchange(&mut dispatcher, &mut worker, LATER);
    exchange(&mut dispatcher, &mut worker, LATER + 400);
    let timed = dispatcher.status(LATER + 400).feeds[0].window_ms;
    assert!(timed > 100, "{timed}");
    for now in 401..450 {
        exchange(&mut dispatcher, &mut worker, LATER + now);
    }
    assert_eq!(dispatcher.status(LATER + 450).feeds[0].window_ms, timed);
}

#[test]
fn a_worker_that_has_nothing_to_do_takes_windows_that_are_late() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let (mut slow, mut fast, mut trainer) = (worker(7, "w7", 1_000), worker(8, "w8", 1_000), trainer("f", 1));
    ask(&mut dispatcher, &mut trainer, LATER);
    // It begins two windows, and finishes none.
    let sync = slow.sync();
    dispatcher.worker_sync(&sync, LATER).expect("its own address");
    slow.reply(&dispatcher.worker_reply(7, LATER).expect("known"));
    let late = LATER + DispatcherSettings::default().stall_ms / 2;
    for now in [LATER, LATER, LATER, late - 1] {
        assert!(windows(&exchange(&mut dispatcher, &mut fast, now)).iter().all(|index| *index >= 2));
    }
    exchange(&mut dispatcher, &mut fast, late);
    dispatcher.tick(late + TICK_MS);
    exchange(&mut dispatcher, &mut fast, late + TICK_MS);
    assert_eq!(windows(&exchange(&mut dispatcher, &mut fast, late + TICK_MS)), [0, 2, 3, 4, 5]);
    dispatcher.tick(late + 2 * TICK_MS);
    exchange(&mut dispatcher, &mut fast, late + 2 * TICK_MS);
    assert_eq!(windows(&exchange(&mut dispatcher, &mut fast, late + 2 * TICK_MS)), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_reader_does_not_wait_long_for_a_window_that_was_leased_long_ago() {
    let is_leased_again_after = |age: Millis| {
        let mut dispatcher = dispatcher(1, &["f"]);
        let (mut slow, mut busy, mut trainer) = (worker(7, "w7", 1_000), worker(8, "w8", 1_000), trainer("f", 1));
        ask(&mut dispatcher, &mut trainer, LATER);
        for (worker, id) in [(&mut slow, 7), (&mut busy, 8)] {
            dispatcher.worker_sync(&worker.sync(), LATER).expect("its own address");
            worker.reply(&dispatcher.worker_reply(id, LATER).expect("known"));
        }
        // Without it, the dispatcher would take itself for paused.
        dispatcher.tick(LATER + age / 2);
        let now = LATER + age;
        let sync = ReaderSync { waiting: Some((window(0), 1)), ..trainer.sync(now) };
        dispatcher.reader_sync(&sync, now).expect("admitted");
        dispatcher.worker_reply(8, now);
        dispatcher.leases(8).iter().any(|(_, leased)| *leased == window(0))
    };
    let stall_ms = DispatcherSettings::default().stall_ms;
    assert!(!is_leased_again_after(stall_ms - 1));
    assert!(is_leased_again_after(stall_ms));
}

#[test]
fn late_windows_respect_the_memory_of_idle_workers() {
    let mut dispatcher = dispatcher(1, &["f"]);
    // The fast worker has memory for three windows.
    let (mut slow, mut fast, mut trainer) = (worker(7, "w7", 1_000), worker(8, "w8", 30), trainer("f", 1));
    ask(&mut dispatcher, &mut trainer, LATER);
    dispatcher.worker_sync(&slow.sync(), LATER).expect("its own address");
    slow.reply(&dispatcher.worker_reply(7, LATER).expect("known"));
    for step in 0..40 {
        let now = LATER + step * TICK_MS;
        dispatcher.tick(now);
        dispatcher.worker_sync(&slow.sync(), now).expect("its own address");
        assert!(exchange(&mut dispatcher, &mut fast, now).len() <= 3);
    }
    assert!(windows(&exchange(&mut dispatcher, &mut fast, LATER + 40 * TICK_MS)).contains(&0));
}

#[test]
fn a_worker_that_lost_a_leased_window_is_leased_it_again() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let (mut worker, mut trainer) = (worker(7, "w7", 0), trainer("f", 1));
    ask(&mut dispatcher, &mut trainer, LATER);
    let before = exchange(&mut dispatcher, &mut worker, LATER);
    exchange(&mut dispatcher, &mut worker, LATER);
    let mut sync = worker.sync();
    sync.held.changed = vec![(("f".into(), window(0)), None)];
    dispatcher.worker_sync(&sync, LATER).expect("its own address");
    let after = exchange(&mut dispatcher, &mut worker, LATER);
    assert_eq!(after[0].0, before[0].0);
    assert_ne!(after[0].1, before[0].1);
}

/// Returns rank `rank` of two of job `j`, as a process that started at `session`.
fn rank(rank: u64, session: u64) -> crate::Claimer {
    let settings = ReadSettings { batch_size: 1, epochs: 1, drop_last: false, rank, world_size: 2 };
    crate::Claimer::new("f".into(), "j".into(), session << 16, settings, crate::Claim::default(), None).expect("new")
}

/// Sends a rank's message, takes its answer, and returns the number of claims that it then holds.
fn claim(dispatcher: &mut Dispatcher<SixWindows>, rank: &mut crate::Claimer) -> Result<usize, Unanswered> {
    let message = rank.sync();
    dispatcher.claim_sync(&message, LATER)?;
    let answer = dispatcher.claim_answer(&message, LATER)?;
    let granted = answer.reply.granted.len();
    rank.reply(answer);
    Ok(granted)
}

#[test]
fn of_two_processes_of_a_rank_the_older_is_refused_at_once() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let (mut old, mut other, mut new) = (rank(0, 5), rank(1, 6), rank(0, 9));
    let mut worker = worker(7, "w7", 1_000);
    for _ in 0..6 {
        let _ = (claim(&mut dispatcher, &mut old), claim(&mut dispatcher, &mut other));
        exchange(&mut dispatcher, &mut worker, LATER);
    }
    assert_eq!(claim(&mut dispatcher, &mut old), Ok(2));
    // The waiting call ends as soon as the newer process has sent a message.
    let waiting = old.sync();
    dispatcher.claim_sync(&waiting, LATER).expect("still the newest");
    claim(&mut dispatcher, &mut new).expect("the newest");
    let replaced = Unanswered::Replaced { rank: 0, job: "j".to_owned() };
    assert_eq!(dispatcher.claim_answer(&waiting, LATER), Err(replaced.clone()));
    assert_eq!(claim(&mut dispatcher, &mut old), Err(replaced.clone()));
    assert!(replaced.report().message.contains("rank 0 of job \"j\""), "{:?}", replaced.report());
    for _ in 0..6 {
        let _ = (claim(&mut dispatcher, &mut new), claim(&mut dispatcher, &mut other));
    }
    // The newer process has delivered nothing, so it is granted the claims that the older one held.
    assert_eq!(claim(&mut dispatcher, &mut new), Ok(2));
    assert_eq!(claim(&mut dispatcher, &mut old), Err(replaced));
}

#[test]
fn an_older_process_is_recognized_by_the_tokens_of_other_ranks() {
    // The second dispatcher knows only the old process, until another rank that resumed from a token reaches it.
    let meets = || {
        let (mut first, mut second) = (dispatcher(1, &["f"]), dispatcher(2, &["f"]));
        let (mut old, mut new, mut other) = (rank(0, 5), rank(0, 9), rank(1, 6));
        for _ in 0..2 {
            let _ = (claim(&mut first, &mut new), claim(&mut first, &mut other));
        }
        let (token, begin) = (other.token(), crate::Claim::default());
        let settings = ReadSettings { batch_size: 1, epochs: 1, drop_last: false, rank: 1, world_size: 2 };
        let marks = token.claims.as_deref();
        let resumed = crate::Claimer::new("f".into(), "j".into(), 7 << 16, settings, begin, marks);
        claim(&mut second, &mut old).expect("alone");
        claim(&mut second, &mut resumed.expect("its own token")).expect("the newest of its rank");
        claim(&mut second, &mut old)
    };
    assert!(matches!(meets(), Err(Unanswered::Replaced { rank: 0, .. })));
    break_rule(Some(Rule::TokensNameTheNewestProcesses));
    let planted = meets();
    break_rule(None);
    assert!(planted.is_ok(), "{planted:?}");
}

/// Delivers all claims that a rank holds, and returns them.
fn deliver(rank: &mut crate::Claimer) -> Vec<u64> {
    let mut delivered = Vec::new();
    while let Some((granted, _)) = rank.take() {
        rank.delivered(granted.claim, granted.end);
        delivered.push(granted.claim.run);
    }
    delivered
}

/// Lets a rank read on its own until it ends, and returns the claims that it delivered.
fn finish(dispatcher: &mut Dispatcher<SixWindows>, rank: &mut crate::Claimer, worker: &mut crate::Worker) -> Vec<u64> {
    let mut delivered = Vec::new();
    for _ in 0..40 {
        claim(dispatcher, rank).expect("the newest");
        exchange(dispatcher, worker, LATER);
        delivered.extend(deliver(rank));
    }
    assert!(rank.has_ended(), "{:?}", rank.latest());
    delivered
}

#[test]
fn a_rank_that_has_ended_is_not_awaited_when_another_resumes() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let (mut zero, mut one, mut worker) = (rank(0, 5), rank(1, 6), worker(7, "w7", 1_000));
    for _ in 0..8 {
        let _ = (claim(&mut dispatcher, &mut zero), claim(&mut dispatcher, &mut one));
        exchange(&mut dispatcher, &mut worker, LATER);
    }
    // Rank 1 delivers one batch, and is killed. Rank 0 reads to its end.
    let (first, _) = one.take().expect("granted");
    one.delivered(first.claim, first.claim.run * 4 + 1);
    let (token, begin) = (one.token(), crate::Claim::default());
    let mut delivered = finish(&mut dispatcher, &mut zero, &mut worker);
    let mut resumed = resume(1, &token, 20);
    let mut rest = finish(&mut dispatcher, &mut resumed, &mut worker);
    rest.extend(delivered.iter());
    delivered.clone_from(&rest);
    delivered.sort_unstable();
    assert_eq!(delivered, (0..delivered.len() as u64).collect::<Vec<_>>(), "each claim once");
    // All is delivered. A token from after the end of rank 0 says so to a dispatcher that knows nothing.
    let mut another = self::dispatcher(2, &["f"]);
    let mut again = resume(1, &resumed.token(), 30);
    assert!(finish(&mut another, &mut again, &mut worker).is_empty());
    // The tokens of the ranks that are left say all for another number of ranks.
    let alone = ReadSettings { batch_size: 1, epochs: 1, drop_last: false, rank: 0, world_size: 1 };
    let marks = again.token();
    let mut alone =
        crate::Claimer::new("f".into(), "j".into(), 40 << 16, alone, begin, marks.claims.as_deref()).expect("whole");
    assert!(finish(&mut another, &mut alone, &mut worker).is_empty());
}

#[test]
fn a_dispatcher_that_has_just_started_takes_the_end_of_a_rank_from_its_last_message() {
    let mut first = dispatcher(1, &["f"]);
    let (mut zero, mut one, mut worker) = (rank(0, 5), rank(1, 6), worker(7, "w7", 1_000));
    for _ in 0..8 {
        let _ = (claim(&mut first, &mut zero), claim(&mut first, &mut one));
        exchange(&mut first, &mut worker, LATER);
    }
    finish(&mut first, &mut one, &mut worker);
    // Rank 0 has not heard of the end, and the dispatcher that has restarts.
    let mut second = dispatcher(2, &["f"]);
    second.claim_sync(&one.leave(), LATER).expect("the newest");
    zero.turn();
    assert_eq!(finish(&mut second, &mut zero, &mut worker).len(), 2);
}

#[test]
fn a_rank_resumes_from_before_claims_of_a_rank_that_has_ended() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let (mut zero, mut one, mut worker) = (rank(0, 5), rank(1, 6), worker(7, "w7", 1_000));
    for _ in 0..8 {
        let _ = (claim(&mut dispatcher, &mut zero), claim(&mut dispatcher, &mut one));
        exchange(&mut dispatcher, &mut worker, LATER);
    }
    finish(&mut dispatcher, &mut one, &mut worker);
    // Rank 0 hears of the end before it saves a token. Then all claims are done, and the first are added up.
    claim(&mut dispatcher, &mut zero).expect("the newest");
    let (first, _) = zero.take().expect("granted");
    zero.delivered(first.claim, first.claim.run * 4 + 1);
    let token = zero.token();
    zero.delivered(first.claim, first.end);
    let mut delivered = finish(&mut dispatcher, &mut zero, &mut worker);
    delivered.push(first.claim.run);
    assert!(zero.latest().is_some_and(|reply| reply.base.passed > 0));
    // All ranks resume, and rank 1 has not come yet. The token knows what the dispatcher has added up.
    let mut again = finish(&mut dispatcher, &mut resume(0, &token, 20), &mut worker);
    again.sort_unstable();
    delivered.sort_unstable();
    assert_eq!(again, delivered);
}

/// Resumes a rank of two of job `j` from its token.
fn resume(rank: u64, token: &crate::Token, session: u64) -> crate::Claimer {
    let settings = ReadSettings { batch_size: 1, epochs: 1, drop_last: false, rank, world_size: 2 };
    let token: crate::Token = token.to_string().parse().expect("own text");
    let claims = token.claims.as_deref();
    crate::Claimer::new("f".into(), "j".into(), session << 16, settings, crate::Claim::default(), claims)
        .expect("its own token")
}

#[test]
fn the_end_of_an_old_process_is_not_trusted_when_any_dispatcher_knows_of_a_newer_one() {
    let resumed = |rule| {
        let (mut here, mut there) = (dispatcher(1, &["f"]), dispatcher(2, &["f"]));
        let (mut zero, mut one, mut worker) = (rank(0, 5), rank(1, 6), worker(7, "w7", 1_000));
        for _ in 0..8 {
            let _ = (claim(&mut here, &mut zero), claim(&mut here, &mut one));
            exchange(&mut here, &mut worker, LATER);
        }
        // Rank 1 saves a token after one batch. Its process is replaced, does not know that, and reads to its end.
        let (first, _) = one.take().expect("granted");
        one.delivered(first.claim, first.claim.run * 4 + 1);
        let early = one.token();
        one.delivered(first.claim, first.end);
        finish(&mut here, &mut one, &mut worker);
        let mut newer = resume(1, &early, 20);
        claim(&mut there, &mut newer).expect("the newest");
        // Rank 0 hears of the end before it saves a token, and restarts.
        claim(&mut here, &mut zero).expect("the newest");
        let (first, _) = zero.take().expect("granted");
        zero.delivered(first.claim, first.claim.run * 4 + 1);
        let mut again = resume(0, &zero.token(), 30);
        // Only the other dispatcher knows of the newer process, and says so to whoever announces itself there.
        let announced = again.announce();
        there.claim_sync(&announced, LATER).expect("the newest");
        break_rule(rule);
        again.reply(there.claim_answer(&announced, LATER).expect("the newest"));
        break_rule(None);
        let mut delivered = Vec::new();
        for _ in 0..20 {
            claim(&mut here, &mut again).expect("the newest");
            exchange(&mut here, &mut worker, LATER);
            delivered.extend(deliver(&mut again));
        }
        let awaited = again.latest().map(|reply| reply.awaited.clone()).unwrap_or_default();
        (again.has_ended(), awaited, here, again, newer, worker, delivered)
    };
    let (has_ended, awaited, ..) = resumed(Some(Rule::AnyDispatcherNamesTheNewest));
    assert!(has_ended && awaited.is_empty(), "it ends without the claims that only the old process had");
    let (has_ended, awaited, mut here, mut zero, mut one, mut worker, mut delivered) = resumed(None);
    assert_eq!((has_ended, awaited), (false, vec![1]));
    one.turn();
    for _ in 0..40 {
        let _ = (claim(&mut here, &mut zero), claim(&mut here, &mut one));
        exchange(&mut here, &mut worker, LATER);
        delivered.extend(deliver(&mut zero));
        delivered.extend(deliver(&mut one));
    }
    assert!(zero.has_ended() && one.has_ended());
    delivered.sort_unstable();
    assert_eq!(delivered, (0..8).collect::<Vec<_>>(), "each claim once");
}

#[test]
fn status_names_the_awaited_ranks() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let mut here = rank(0, 5);
    claim(&mut dispatcher, &mut here).expect("new");
    claim(&mut dispatcher, &mut here).expect("here");
    let job = |now| dispatcher.status(now).feeds[0].jobs[0].clone();
    assert_eq!((job(LATER + 900).awaited, job(LATER + 900).awaiting_ms), (vec![1], 900));
    assert_eq!(job(LATER + 9_000).awaiting_ms, 0, "no rank asks any more");
}

/// Otherwise workers and ranks, which look for each other at the next dispatcher, may miss each other for ever.
#[test]
fn workers_stay_where_ranks_wait_for_others() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let mut worker = worker(7, "w7", 1_000);
    let mut is_waiting = |dispatcher: &mut Dispatcher<_>, now| {
        dispatcher.worker_sync(&worker.sync(), now).expect("one worker");
        dispatcher.worker_reply(7, now).expect("known").has_waiting_ranks
    };
    assert!(!is_waiting(&mut dispatcher, LATER));
    let (mut zero, mut one) = (rank(0, 5), rank(1, 6));
    claim(&mut dispatcher, &mut zero).expect("new");
    assert!(is_waiting(&mut dispatcher, LATER));
    let later = (1..20).map(|step| is_waiting(&mut dispatcher, LATER + 500 * step)).collect::<Vec<_>>();
    assert!(later[0] && !later[18], "the rank has turned away: {later:?}");
    let mut dispatcher = self::dispatcher(2, &["f"]);
    for _ in 0..4 {
        let _ = (claim(&mut dispatcher, &mut zero), claim(&mut dispatcher, &mut one));
    }
    assert!(!is_waiting(&mut dispatcher, LATER), "all ranks are here");
}

/// Prints the cost of a message with 32 workers and different numbers of ranks, including the calls that it wakes. Run
/// by hand: `cargo test -p forebay-delivery cost_of_a_message -- --ignored --nocapture`.
#[test]
#[ignore = "it prints figures and checks nothing"]
#[allow(clippy::print_stdout, reason = "figures")]
fn cost_of_a_message() {
    struct Long;
    impl Plan for Long {
        fn windows(&self, _: u64) -> u32 {
            1_000
        }

        fn bytes(&self, _: WindowId) -> u64 {
            10
        }
    }
    const WINDOWS: u32 = 8;
    for ranks in [10, 100, 1_000] {
        let mut dispatcher = Dispatcher::new(DispatcherSettings::default(), 1, 0);
        dispatcher.tick(LATER);
        dispatcher.open(&"f".into(), Long, LATER);
        let mut workers: Vec<_> = (0..32).map(|id| worker(id, &format!("w{id}"), 60)).collect();
        let sync = |rank: u64, seq: u64, at: u32| ReaderSync {
            session: rank,
            seq,
            feed: "f".into(),
            rank,
            world_size: ranks,
            member: None,
            at: window(at),
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
        };
        let (mut messages, mut woken) = (0_u64, 0_u64);
        let began = std::time::Instant::now();
        for at in 0..WINDOWS {
            for rank in 0..ranks {
                let before = revision(&dispatcher);
                let message = sync(rank, u64::from(at) + 1, at);
                dispatcher.reader_sync(&message, LATER).expect("admitted");
                messages += 1;
                dispatcher.reader_reply(&message).expect("known");
                if revision(&dispatcher) != before {
                    woken += wake(&mut dispatcher, (0..ranks).map(|rank| sync(rank, 0, 0)));
                }
            }
            for worker in &mut workers {
                let before = revision(&dispatcher);
                let message = worker.sync();
                dispatcher.worker_sync(&message, LATER).expect("its own address");
                let reply = dispatcher.worker_reply(message.worker, LATER).expect("known");
                for action in worker.reply(&reply) {
                    if let crate::WorkerAction::Start(key) = action {
                        worker.report(&key, HeldState::Ready { rows: 5, bytes: 10 }, false);
                    }
                }
                messages += 1;
                if revision(&dispatcher) != before {
                    woken += wake(&mut dispatcher, (0..ranks).map(|rank| sync(rank, 0, 0)));
                }
            }
        }
        let each = began.elapsed() / messages as u32;
        println!(
            "{ranks} ranks: {messages} messages, {each:?} each, {:.1} calls woken by one",
            woken as f64 / messages as f64
        );
    }
}

fn wake<P: Plan>(dispatcher: &mut Dispatcher<P>, ranks: impl Iterator<Item = ReaderSync>) -> u64 {
    let ranks = ranks.map(|rank| dispatcher.reader_reply(&rank)).count() as u64;
    (0..32).for_each(|id| drop(dispatcher.worker_reply(id, LATER)));
    ranks + 32
}

fn revision<P: Plan>(dispatcher: &Dispatcher<P>) -> u64 {
    dispatcher.revision()
}

/// Starts workers, of which each but the last is lost before it reports any lease.
fn lose_workers(dispatcher: &mut Dispatcher<SixWindows>, ids: std::ops::Range<WorkerId>) {
    for id in ids {
        // Each worker takes the address of the one before, which is lost.
        let sync = worker(id, "grpc://10.0.0.1:1", 1_000).sync();
        dispatcher.worker_sync(&sync, LATER).expect("its own address");
        dispatcher.worker_reply(id, LATER).expect("known");
    }
}

#[test]
fn the_error_of_a_given_up_window_names_its_pipeline() {
    let mut dispatcher = dispatcher(1, &["f"]);
    dispatcher.describe("f", " of pipeline \"p\", which calls resize,".to_owned());
    let mut trainer = trainer("f", 1);
    dispatcher.reader_sync(&trainer.sync(LATER), LATER).expect("admitted");
    lose_workers(&mut dispatcher, 1..22);
    let (_, window, why) = dispatcher.failures().next().expect("a failed window");
    assert_eq!(window.index, 0);
    let message = "window 0 of epoch 0 of pipeline \"p\", which calls resize, was given up: every worker that \
                   computed it was lost";
    assert_eq!(why.message, message);
}

#[test]
fn a_feed_has_a_limited_number_of_jobs_and_a_message_of_claims_and_broken_leases() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let mut message = rank(0, 5).sync();
    let mut named = |dispatcher: &mut Dispatcher<SixWindows>, job: usize| {
        message.claims.job = format!("job {job}");
        dispatcher.claim_sync(&message, LATER)
    };
    let taken = (0..100).take_while(|&job| named(&mut dispatcher, job).is_ok()).count();
    assert_eq!((taken, dispatcher.groups()), (claiming::JOBS_MAX, claiming::JOBS_MAX));
    assert_eq!(named(&mut dispatcher, taken), Err(Unanswered::TooManyJobs));
    assert_eq!(named(&mut dispatcher, 0), Ok(()));
    // They are forgotten when they are silent.
    let much_later = LATER + 2 * DispatcherSettings::default().idle_feed_ms;
    let mut trainer = trainer("f", 1);
    for now in (LATER..=much_later).step_by(900) {
        ask(&mut dispatcher, &mut trainer, now);
    }
    assert_eq!(dispatcher.groups(), 0);

    let mut message = rank(0, 5).sync();
    let granted = crate::Granted { claim: (0, 0).into(), end: 1, window: window(0), window_offset: 0 };
    message.claims.held = vec![granted; 1_000];
    assert!(matches!(dispatcher.claim_sync(&message, much_later), Err(Unanswered::Invalid(_))));

    let broken = |index| BrokenLease { window: window(index), lease: 1, worker: 1, missing: false };
    let before = dispatcher.status(much_later).feeds[0].readers[0].at;
    for broken in [vec![broken(0); 1_000], vec![broken(6)]] {
        let lie = ReaderSync { broken, at: window(3), ..trainer.sync(much_later) };
        dispatcher.reader_sync(&lie, much_later).expect("ignored");
    }
    assert_eq!(dispatcher.status(much_later).feeds[0].readers[0].at, before);
}

#[test]
fn an_answer_names_the_first_of_many_awaited_ranks() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let mut message = rank(0, 5).sync();
    message.world_size = 60_000;
    dispatcher.claim_sync(&message, LATER).expect("valid");
    let awaited = dispatcher.claim_answer(&message, LATER).expect("known").reply.awaited;
    assert_eq!(awaited, (0..crate::trouble::AWAITED_MAX as u64).collect::<Vec<_>>());
}

#[test]
fn a_feed_has_a_limited_number_of_readers() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let mut join = |session| dispatcher.reader_sync(&trainer("f", session).sync(LATER), LATER);
    assert!((1..=256).all(|session| join(session).is_ok()));
    let why = join(257).expect_err("too many");
    assert_eq!((why.kind, why.retry), (ErrorKind::Exhausted, true));
    join(1).expect("it has joined");
}
