//! Tests of the dispatcher: messages and answers.

mod cost;
mod ranks;

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
fn a_feed_has_a_limited_number_of_readers() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let mut join = |session| dispatcher.reader_sync(&trainer("f", session).sync(LATER), LATER);
    assert!((1..=256).all(|session| join(session).is_ok()));
    let why = join(257).expect_err("too many");
    assert_eq!((why.kind, why.retry), (ErrorKind::Exhausted, true));
    join(1).expect("it has joined");
}
