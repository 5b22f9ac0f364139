//! Tests of the sequencer: events and leases.

use std::collections::BTreeSet;

use super::*;

mod workers;

/// Epochs of `windows` windows of 10 bytes each.
struct Even {
    windows: u32,
}

impl Plan for Even {
    fn windows(&self, _: u64) -> u32 {
        self.windows
    }

    fn bytes(&self, _: WindowId) -> u64 {
        10
    }
}

fn window(index: u32) -> WindowId {
    WindowId { epoch: 0, index }
}

/// Returns a sequencer with workers from 1, each of which can take `memory_bytes` and computes two windows at a time.
fn sequencer(windows: u32, workers: u64, memory_bytes: u64) -> Sequencer<Even> {
    let mut sequencer = Sequencer::new(Even { windows }, 100);
    for worker in 1..=workers {
        join(&mut sequencer, worker, memory_bytes);
    }
    sequencer
}

fn join(sequencer: &mut Sequencer<Even>, worker: WorkerId, memory_bytes: u64) {
    let limits = WorkerLimits { memory_bytes, computing: 2, windows_at_least: 1 };
    sequencer.handle(Event::WorkerJoined { worker, limits }).expect("deterministic");
}

fn read(sequencer: &mut Sequencer<Even>, reader: ReaderId, from: u32) {
    let event = Event::ReaderJoined { reader, at: window(from), until_epoch: 1, share: 1.0 };
    sequencer.handle(event).expect("deterministic");
}

fn advance(sequencer: &mut Sequencer<Even>, reader: ReaderId, to: u32) {
    sequencer.handle(Event::ReaderAdvanced { reader, to: window(to) }).expect("deterministic");
}

fn held(sequencer: &Sequencer<Even>, worker: WorkerId) -> Vec<u32> {
    sequencer.leases(worker).into_iter().map(|(window, _)| window.index).collect()
}

fn lease(sequencer: &Sequencer<Even>, worker: WorkerId, index: u32) -> LeaseId {
    let leases = sequencer.leases(worker);
    leases.into_iter().find(|(at, _)| *at == window(index)).expect("leased to this worker").1
}

fn count(sequencer: &mut Sequencer<Even>, worker: WorkerId, index: u32) {
    let lease = lease(sequencer, worker, index);
    let event = Event::WindowCounted { window: window(index), lease, rows: 5, bytes: 10 };
    sequencer.handle(event).expect("deterministic");
}

fn finish(sequencer: &mut Sequencer<Even>, worker: WorkerId, index: u32) {
    count(sequencer, worker, index);
    let lease = lease(sequencer, worker, index);
    sequencer.handle(Event::WindowReady { window: window(index), lease }).expect("deterministic");
}

fn fail(sequencer: &mut Sequencer<Even>, worker: WorkerId, index: u32, retry: bool) {
    let lease = lease(sequencer, worker, index);
    sequencer.handle(Event::WindowFailed { window: window(index), lease, retry }).expect("deterministic");
}

/// Computes all leased windows, including those that are leased meanwhile.
fn finish_all(sequencer: &mut Sequencer<Even>, worker: WorkerId) {
    while let Some((window, _)) =
        sequencer.leases(worker).into_iter().find(|&(window, lease)| !sequencer.is_ready(window, lease))
    {
        count(sequencer, worker, window.index);
        // Counting the window may have evicted it for another.
        if held(sequencer, worker).contains(&window.index) {
            finish(sequencer, worker, window.index);
        }
    }
}

#[test]
fn a_current_window_is_leased_even_over_the_limit() {
    let mut sequencer = sequencer(5, 1, 0);
    read(&mut sequencer, 1, 2);
    assert_eq!(held(&sequencer, 1), [2]);
    finish(&mut sequencer, 1, 2);
    assert_eq!(held(&sequencer, 1), [2]);
    advance(&mut sequencer, 1, 3);
    assert_eq!(held(&sequencer, 1), [3]);
}

#[test]
fn windows_ahead_are_leased_in_order_while_memory_lasts() {
    let mut sequencer = sequencer(9, 1, 35);
    read(&mut sequencer, 1, 0);
    assert_eq!(held(&sequencer, 1), [0, 1]);
    finish(&mut sequencer, 1, 0);
    assert_eq!(held(&sequencer, 1), [0, 1, 2]);
    finish(&mut sequencer, 1, 1);
    assert_eq!(held(&sequencer, 1), [0, 1, 2]);
    advance(&mut sequencer, 1, 1);
    assert_eq!(held(&sequencer, 1), [1, 2, 3]);
}

#[test]
fn windows_ahead_go_to_the_worker_with_the_least_to_do() {
    let mut sequencer = sequencer(9, 3, 1_000);
    read(&mut sequencer, 1, 0);
    let mut all: Vec<u32> = (1..=3).flat_map(|worker| held(&sequencer, worker)).collect();
    assert!((1..=3).all(|worker| held(&sequencer, worker).len() == 2));
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_reader_that_falls_behind_has_its_windows_computed_again() {
    let mut sequencer = sequencer(50, 1, 30);
    read(&mut sequencer, 1, 0);
    read(&mut sequencer, 2, 0);
    finish_all(&mut sequencer, 1);
    for index in 1..20 {
        advance(&mut sequencer, 1, index);
        finish_all(&mut sequencer, 1);
        let held: BTreeSet<_> = held(&sequencer, 1).into_iter().collect();
        assert!(held.contains(&index) && held.contains(&0));
        assert!(held.len() <= 3, "the limit holds three windows, got {held:?}");
    }
    assert_eq!(sequencer.recomputed(), 0);
    for index in 1..20 {
        advance(&mut sequencer, 2, index);
        finish_all(&mut sequencer, 1);
        assert!(held(&sequencer, 1).contains(&index));
    }
    assert!(sequencer.recomputed() > 0);
}

#[test]
fn no_window_is_leased_past_the_last_epoch_or_kept_after_the_last_reader() {
    let mut sequencer = sequencer(3, 1, 1_000);
    read(&mut sequencer, 7, 2);
    assert_eq!(held(&sequencer, 1), [2]);
    sequencer.handle(Event::ReaderLeft { reader: 7 }).expect("deterministic");
    assert!(held(&sequencer, 1).is_empty() && !sequencer.is_read());
}

#[test]
fn a_failed_window_is_retried_for_a_reader_that_joins() {
    let mut sequencer = sequencer(9, 1, 25);
    read(&mut sequencer, 1, 0);
    finish(&mut sequencer, 1, 0);
    fail(&mut sequencer, 1, 1, false);
    assert!(sequencer.has_failed(window(1)) && !held(&sequencer, 1).contains(&1));
    read(&mut sequencer, 2, 1);
    assert!(!sequencer.has_failed(window(1)) && held(&sequencer, 1).contains(&1));
    // A reader that was there all the time waits for the retry as well.
    advance(&mut sequencer, 1, 1);
    assert!(held(&sequencer, 1).contains(&1));
}

#[test]
fn late_and_duplicate_reports_change_nothing() {
    let mut sequencer = sequencer(3, 1, 10);
    read(&mut sequencer, 1, 0);
    let old = lease(&sequencer, 1, 0);
    fail(&mut sequencer, 1, 0, true);
    let new = lease(&sequencer, 1, 0);
    assert_ne!(old, new);
    let before = sequencer.leases(1);
    let (here, elsewhere) = (window(0), window(2));
    for (window, lease) in [(here, old), (elsewhere, new)] {
        for event in [
            Event::WindowCounted { window, lease, rows: 5, bytes: 99 },
            Event::WindowReady { window, lease },
            Event::WindowFailed { window, lease, retry: false },
            Event::WindowMissing { window, lease },
        ] {
            sequencer.handle(event).expect("deterministic");
            assert_eq!(sequencer.leases(1), before);
        }
        assert!(sequencer.rows(window).is_none() && !sequencer.has_failed(window));
    }
    finish(&mut sequencer, 1, 0);
    finish(&mut sequencer, 1, 0);
    assert_eq!((sequencer.held_bytes(1), sequencer.census()), (10, [0, 0, 1, 0]));
}

#[test]
fn a_late_message_does_not_move_a_reader_back() {
    let mut sequencer = sequencer(9, 1, 10);
    read(&mut sequencer, 1, 0);
    advance(&mut sequencer, 1, 4);
    advance(&mut sequencer, 1, 2);
    assert_eq!(sequencer.position(1), Some(window(4)));
    assert_eq!(held(&sequencer, 1), [4]);
}

#[test]
fn kept_windows_are_not_evicted_for_windows_ahead() {
    let mut sequencer = sequencer(99, 1, 40);
    sequencer.set_keeps_all(true);
    for index in 50..54 {
        sequencer.adopt(1, window(index), index.into(), true);
        finish(&mut sequencer, 1, index);
    }
    read(&mut sequencer, 1, 0);
    finish_all(&mut sequencer, 1);
    // The reader's current window is always leased. The windows ahead wait.
    assert_eq!(held(&sequencer, 1), [0, 50, 51, 52]);
    sequencer.set_keeps_all(false);
    advance(&mut sequencer, 1, 1);
    finish_all(&mut sequencer, 1);
    assert_eq!(held(&sequencer, 1), [1, 2, 3, 4]);
}

#[test]
fn a_window_whose_row_count_changes_is_an_error() {
    let mut sequencer = sequencer(1, 1, 10);
    read(&mut sequencer, 1, 0);
    count(&mut sequencer, 1, 0);
    let lease = lease(&sequencer, 1, 0);
    let event = Event::WindowCounted { window: window(0), lease, rows: 6, bytes: 10 };
    assert_eq!(sequencer.handle(event), Err(NonDeterministicWindow { window: window(0), rows: (5, 6) }));
    assert_eq!(sequencer.rows(window(0)), Some(5));
}

#[test]
fn shares_add_up_the_readers_that_still_need_a_window() {
    let mut sequencer = sequencer(9, 1, 10);
    read(&mut sequencer, 1, 0);
    let rank = Event::ReaderJoined { reader: 2, at: window(2), until_epoch: 1, share: 0.25 };
    sequencer.handle(rank).expect("deterministic");
    assert_eq!((sequencer.shares(window(1)), sequencer.shares(window(2))), (1.0, 1.25));
}

#[test]
fn known_events_change_nothing_and_ranks_at_one_place_count_once() {
    let mut sequencer = sequencer(50, 2, 1_000);
    for rank in 0..100 {
        let event = Event::ReaderJoined { reader: rank, at: window(0), until_epoch: 1, share: 0.01 };
        sequencer.handle(event).expect("deterministic");
    }
    finish_all(&mut sequencer, 1);
    finish_all(&mut sequencer, 2);
    let before = sequencer.revision();
    let lease = sequencer.leases(1)[0];
    join(&mut sequencer, 1, 1_000);
    let (rows, bytes) = (5, 10);
    for rank in 0..99 {
        sequencer.handle(Event::ReaderAdvanced { reader: rank, to: window(0) }).expect("deterministic");
        sequencer.handle(Event::WindowCounted { window: lease.0, lease: lease.1, rows, bytes }).expect("deterministic");
    }
    assert_eq!(sequencer.revision(), before);
    (0..100).for_each(|rank| advance(&mut sequencer, rank, 1));
    // The first reader creates a place, and the last one leaves its old place empty.
    assert_eq!(sequencer.revision(), before + 2);
    assert!((sequencer.shares(window(1)) - 1.0).abs() < 1e-9);
}

#[test]
fn a_rerun_is_not_computed_again() {
    let mut sequencer = sequencer(5, 1, 30);
    for reader in 1..=2 {
        read(&mut sequencer, reader, 0);
        for index in 1..5 {
            finish_all(&mut sequencer, 1);
            advance(&mut sequencer, reader, index);
        }
        sequencer.handle(Event::ReaderLeft { reader }).expect("deterministic");
    }
    assert_eq!((sequencer.granted(), sequencer.recomputed()), (10, 0));
}

/// Returns how many windows in `from..to` worker 1 holds.
fn held_between(sequencer: &Sequencer<Even>, from: u32, to: u32) -> usize {
    held(sequencer, 1).into_iter().filter(|index| (from..to).contains(index)).count()
}

#[test]
fn a_reader_that_stands_still_does_not_block_the_windows_ahead_of_another() {
    let mut sequencer = sequencer(1_000, 1, 200);
    read(&mut sequencer, 1, 500);
    read(&mut sequencer, 2, 0);
    for index in 500..600 {
        advance(&mut sequencer, 1, index);
        finish_all(&mut sequencer, 1);
        assert_eq!((held_between(&sequencer, index, 1_000), held_between(&sequencer, 0, 500)), (10, 10));
    }
    assert_eq!(sequencer.recomputed(), 0);
}

#[test]
fn passed_windows_are_kept_for_a_near_reader() {
    let mut sequencer = sequencer(1_000, 1, 200);
    read(&mut sequencer, 1, 0);
    read(&mut sequencer, 2, 0);
    for index in 1..=12 {
        finish_all(&mut sequencer, 1);
        advance(&mut sequencer, 1, index);
    }
    // Both readers advance together. Windows ahead of the first evict none that the second needs.
    for index in 1..100 {
        finish_all(&mut sequencer, 1);
        assert_eq!(held_between(&sequencer, index - 1, index + 12), 13);
        advance(&mut sequencer, 2, index);
        advance(&mut sequencer, 1, index + 12);
    }
    assert_eq!(sequencer.recomputed(), 0);
}

#[test]
fn distances_reach_across_epochs() {
    let mut sequencer = sequencer(5, 1, 40);
    let event = Event::ReaderJoined { reader: 1, at: window(3), until_epoch: 2, share: 1.0 };
    sequencer.handle(event).expect("deterministic");
    assert_eq!(sequencer.distance(WindowId { epoch: 1, index: 1 }), Some(3));
    assert_eq!(sequencer.distance(WindowId { epoch: 2, index: 0 }), None);
}

#[test]
fn rows_of_finished_epochs_are_forgotten() {
    let mut sequencer = sequencer(3, 1, 40);
    let at = |epoch, index| WindowId { epoch, index };
    let reader = |reader, until_epoch| Event::ReaderJoined { reader, at: at(0, 0), until_epoch, share: 1.0 };
    sequencer.handle(reader(1, 1_000)).expect("deterministic");
    // Another reader stays in the first epoch.
    sequencer.handle(reader(2, 1)).expect("deterministic");
    let mut most = 0;
    for epoch in 0..1_000 {
        for index in 0..3 {
            for (window, lease) in sequencer.leases(1) {
                let counted = Event::WindowCounted { window, lease, rows: 5, bytes: 10 };
                sequencer.handle(counted).expect("deterministic");
                sequencer.handle(Event::WindowReady { window, lease }).expect("deterministic");
            }
            assert_eq!(sequencer.rows(at(epoch, index)), Some(5), "the window that the reader is in");
            most = most.max(sequencer.rows.len());
            let to = sequencer.plan().after(at(epoch, index));
            sequencer.handle(Event::ReaderAdvanced { reader: 1, to }).expect("deterministic");
        }
    }
    // Two epochs of three windows, and the four windows that the worker has room for.
    assert!(most <= 3 + 3 + 4 + 3, "{most} windows");
    assert!(sequencer.windows.len() <= 3 + 4 && sequencer.evicted.len() <= 3);
}

#[test]
fn losses_of_an_earlier_life_count_until_a_reader_begins_again() {
    let mut sequencer = sequencer(3, 1, 1_000);
    for losses in 1..=3 {
        sequencer.remember_loss([window(0), window(1)], false);
        assert_eq!(sequencer.is_suspicious(window(0)), losses == 3);
    }
    sequencer.remember_loss([window(0)], true);
    assert!(!sequencer.has_failed(window(0)));
    sequencer.remember_loss([window(0)], true);
    // A window that ended too many is leased to no worker, and a suspicious one alone.
    read(&mut sequencer, 1, 0);
    assert!(sequencer.has_failed(window(0)) && !sequencer.has_failed(window(1)));
    assert!(!held(&sequencer, 1).contains(&0));
    sequencer.forget_losses(window(0));
    assert!(!sequencer.has_failed(window(0)));
    sequencer.handle(Event::ReaderLeft { reader: 1 }).expect("deterministic");
    read(&mut sequencer, 2, 0);
    assert!(held(&sequencer, 1).contains(&0));
}

#[test]
fn a_worker_is_at_work_on_nothing_beside_a_window_alone() {
    let mut sequencer = sequencer(3, 1, 1_000);
    for _ in 0..3 {
        sequencer.remember_loss([window(2)], false);
    }
    read(&mut sequencer, 1, 0);
    read(&mut sequencer, 2, 0);
    assert_eq!(held(&sequencer, 1), [0, 1]);
    // A worker whose memory is full computes rows of a ready window when there is room.
    let lease = lease(&sequencer, 1, 1);
    sequencer.handle(Event::WindowAtWork { window: window(1), lease, at_work: true }).expect("deterministic");
    finish(&mut sequencer, 1, 0);
    finish(&mut sequencer, 1, 1);
    assert_eq!(held(&sequencer, 1), [0, 1], "ahead of the readers it waits for an idle worker");
    advance(&mut sequencer, 1, 2);
    assert_eq!(held(&sequencer, 1), [0, 2], "a reader needs it");
    finish_all(&mut sequencer, 1);
    assert_eq!(held(&sequencer, 1), [0, 2, 1]);
}
