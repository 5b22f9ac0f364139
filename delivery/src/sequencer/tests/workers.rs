//! Tests of workers that join, drain, leave or cannot be reached.

use super::*;
use crate::rules::break_rule;
use crate::sequencer::blame::{LOSSES_ALONE_MAX, LOSSES_MAX};

/// The number of workers that are lost over a window until it is given up.
const LOST_MAX: u64 = (LOSSES_MAX + LOSSES_ALONE_MAX) as u64;

/// Loses a worker whose connection broke.
fn lose(sequencer: &mut Sequencer<Even>, worker: WorkerId) {
    sequencer.handle(Event::WorkerSuspected { worker }).expect("deterministic");
    sequencer.handle(Event::WorkerLost { worker, is_shared: false }).expect("deterministic");
}

fn begin(sequencer: &mut Sequencer<Even>, worker: WorkerId, index: u32) {
    let lease = lease(sequencer, worker, index);
    let event = Event::WindowAtWork { window: window(index), lease, at_work: true };
    sequencer.handle(event).expect("deterministic");
}

#[test]
fn a_lost_workers_windows_are_leased_to_others() {
    let mut sequencer = sequencer(4, 2, 1_000);
    read(&mut sequencer, 1, 0);
    finish_all(&mut sequencer, 1);
    finish_all(&mut sequencer, 2);
    sequencer.handle(Event::WorkerLeft { worker: 1 }).expect("deterministic");
    assert!(held(&sequencer, 1).is_empty());
    finish_all(&mut sequencer, 2);
    assert_eq!(held(&sequencer, 2), [0, 1, 2, 3]);
}

#[test]
fn a_window_that_keeps_losing_its_workers_is_given_up() {
    let mut sequencer = sequencer(1, 0, 1_000);
    read(&mut sequencer, 1, 0);
    for worker in 1..=LOST_MAX {
        assert!(!sequencer.has_failed(window(0)));
        join(&mut sequencer, worker, 1_000);
        assert_eq!(held(&sequencer, worker), [0]);
        begin(&mut sequencer, worker, 0);
        lose(&mut sequencer, worker);
    }
    assert!(sequencer.has_failed(window(0)));
    join(&mut sequencer, 99, 1_000);
    assert!(held(&sequencer, 99).is_empty());
}

#[test]
fn a_window_that_loses_its_workers_after_counting_is_given_up() {
    let mut sequencer = sequencer(1, 0, 1_000);
    read(&mut sequencer, 1, 0);
    for worker in 1..=LOST_MAX {
        assert!(!sequencer.has_failed(window(0)));
        join(&mut sequencer, worker, 1_000);
        count(&mut sequencer, worker, 0);
        begin(&mut sequencer, worker, 0);
        lose(&mut sequencer, worker);
    }
    assert!(sequencer.has_failed(window(0)));
}

#[test]
fn workers_lost_after_a_window_was_ready_are_not_attempts() {
    let mut sequencer = sequencer(1, 0, 1_000);
    read(&mut sequencer, 1, 0);
    for worker in 1..=3 * LOST_MAX {
        join(&mut sequencer, worker, 1_000);
        finish(&mut sequencer, worker, 0);
        lose(&mut sequencer, worker);
    }
    assert!(!sequencer.has_failed(window(0)));
}

#[test]
fn a_window_that_ends_its_workers_before_they_report_it_is_given_up() {
    let mut sequencer = sequencer(2, 0, 1_000);
    read(&mut sequencer, 1, 0);
    let lost = (1..100).take_while(|&worker| {
        join(&mut sequencer, worker, 1_000);
        lose(&mut sequencer, worker);
        !sequencer.has_failed(window(0))
    });
    assert_eq!(lost.count(), 19);
}

#[test]
fn a_worker_that_is_only_silent_blames_no_window() {
    let mut sequencer = sequencer(1, 0, 1_000);
    read(&mut sequencer, 1, 0);
    for worker in 1..100 {
        join(&mut sequencer, worker, 1_000);
        begin(&mut sequencer, worker, 0);
        sequencer.handle(Event::WorkerLost { worker, is_shared: false }).expect("deterministic");
    }
    assert!(!sequencer.is_suspicious(window(0)));
}

#[test]
fn a_window_that_waits_is_not_blamed() {
    let lost_over_the_last = |rule| {
        break_rule(rule);
        let mut sequencer = sequencer(4, 0, 1_000);
        read(&mut sequencer, 1, 0);
        for worker in 1..=3 * LOST_MAX {
            join(&mut sequencer, worker, 1_000);
            // All windows are counted, but no row of the last has been computed.
            (0..4).for_each(|index| count(&mut sequencer, worker, index));
            begin(&mut sequencer, worker, 0);
            lose(&mut sequencer, worker);
            if sequencer.is_suspicious(window(0)) {
                break;
            }
        }
        let is_suspicious = sequencer.is_suspicious(window(3));
        break_rule(None);
        is_suspicious
    };
    assert!(!lost_over_the_last(None));
    assert!(lost_over_the_last(Some(Rule::OnlyWindowsAtWorkAreBlamed)));
}

#[test]
fn a_suspicious_window_is_leased_alone_before_it_is_given_up() {
    let mut sequencer = sequencer(4, 0, 1_000);
    read(&mut sequencer, 1, 0);
    for worker in 1..=LOSSES_MAX as u64 {
        join(&mut sequencer, worker, 1_000);
        assert_eq!(held(&sequencer, worker), [0, 1]);
        begin(&mut sequencer, worker, 1);
        lose(&mut sequencer, worker);
    }
    // Both windows lost three workers: the first may have begun since the workers' last messages.
    join(&mut sequencer, 11, 1_000);
    assert_eq!(held(&sequencer, 11), [0]);
    join(&mut sequencer, 12, 1_000);
    assert_eq!((held(&sequencer, 11), held(&sequencer, 12)), (vec![0], vec![1]));
    // The first window was innocent. Its worker takes others again.
    finish(&mut sequencer, 11, 0);
    assert_eq!(held(&sequencer, 11), [0, 2, 3]);
    begin(&mut sequencer, 12, 1);
    lose(&mut sequencer, 12);
    assert_eq!(held(&sequencer, 11), [0, 2, 3], "it is not leased ahead to a worker that is busy");
    finish(&mut sequencer, 11, 2);
    advance(&mut sequencer, 1, 1);
    assert_eq!(held(&sequencer, 11), [1, 2], "its reader waits, so the worker drops what is not ready");
    begin(&mut sequencer, 11, 1);
    assert!(!sequencer.has_failed(window(1)));
    lose(&mut sequencer, 11);
    assert!(sequencer.has_failed(window(1)));
    assert_eq!(sequencer.failed().count(), 1);
    join(&mut sequencer, 13, 1_000);
    assert_eq!(held(&sequencer, 13), [2, 3]);
}

#[test]
fn a_lost_worker_that_is_heard_again_does_not_count() {
    let mut sequencer = sequencer(1, 0, 1_000);
    read(&mut sequencer, 1, 0);
    let lives = |sequencer: &mut Sequencer<Even>, worker| {
        sequencer.handle(Event::WorkerLives { worker }).expect("deterministic");
    };
    // Each worker comes back after the next was lost. At most two are lost at a time.
    for worker in 1..=3 * LOST_MAX {
        join(&mut sequencer, worker, 1_000);
        begin(&mut sequencer, worker, 0);
        lose(&mut sequencer, worker);
        match worker % 2 {
            0 => join(&mut sequencer, worker - 1, 1_000),
            _ => lives(&mut sequencer, worker - 1),
        }
        sequencer.handle(Event::WorkerLeft { worker: worker - 1 }).expect("deterministic");
        assert!(!sequencer.is_suspicious(window(0)));
    }
    // Workers that stay away count.
    for worker in 101..=100 + LOSSES_MAX as u64 {
        join(&mut sequencer, worker, 1_000);
        begin(&mut sequencer, worker, 0);
        lose(&mut sequencer, worker);
    }
    assert!(sequencer.is_suspicious(window(0)));
}

#[test]
fn a_draining_worker_keeps_readable_windows_and_begins_none() {
    let mut sequencer = sequencer(4, 2, 1_000);
    read(&mut sequencer, 1, 0);
    finish(&mut sequencer, 1, 0);
    sequencer.handle(Event::WorkerDraining { worker: 1 }).expect("deterministic");
    join(&mut sequencer, 1, 1_000);
    finish_all(&mut sequencer, 2);
    assert_eq!((held(&sequencer, 1), held(&sequencer, 2)), (vec![0], vec![1, 2, 3]));
    advance(&mut sequencer, 1, 1);
    assert!(held(&sequencer, 1).is_empty());
}

#[test]
fn a_stalled_window_is_leased_a_second_time_and_the_first_ready_copy_is_kept() {
    let mut sequencer = sequencer(1, 2, 1_000);
    read(&mut sequencer, 1, 0);
    for _ in 0..3 {
        sequencer.handle(Event::ReaderStalled { window: window(0) }).expect("deterministic");
        assert_eq!((held(&sequencer, 1), held(&sequencer, 2)), (vec![0], vec![0]));
    }
    count(&mut sequencer, 1, 0);
    finish(&mut sequencer, 2, 0);
    assert_eq!((held(&sequencer, 1), held(&sequencer, 2)), (vec![], vec![0]));
    sequencer.handle(Event::ReaderStalled { window: window(0) }).expect("deterministic");
    assert!(held(&sequencer, 1).is_empty(), "a window that is ready is not leased again");
}

#[test]
fn a_window_whose_worker_cannot_be_reached_is_leased_a_second_time() {
    let mut sequencer = sequencer(1, 2, 1_000);
    read(&mut sequencer, 1, 0);
    finish(&mut sequencer, 1, 0);
    sequencer.handle(Event::WorkerSuspected { worker: 1 }).expect("deterministic");
    sequencer.handle(Event::ReaderStalled { window: window(0) }).expect("deterministic");
    finish(&mut sequencer, 2, 0);
    let copies: BTreeSet<_> = sequencer.copies(window(0)).map(|copy| copy.worker).collect();
    assert_eq!(copies, BTreeSet::from([1, 2]));
}

#[test]
fn a_suspected_worker_gets_no_new_window_until_it_joins_again() {
    let mut sequencer = sequencer(9, 1, 20);
    read(&mut sequencer, 1, 0);
    sequencer.handle(Event::WorkerSuspected { worker: 1 }).expect("deterministic");
    advance(&mut sequencer, 1, 5);
    assert!(held(&sequencer, 1).is_empty());
    join(&mut sequencer, 1, 20);
    assert_eq!(held(&sequencer, 1), [5, 6]);
}

#[test]
fn a_missing_window_is_leased_to_another_worker_if_there_is_one() {
    let mut sequencer = sequencer(1, 2, 1_000);
    read(&mut sequencer, 1, 0);
    finish(&mut sequencer, 1, 0);
    let missing = lease(&sequencer, 1, 0);
    sequencer.handle(Event::WindowMissing { window: window(0), lease: missing }).expect("deterministic");
    assert_eq!((held(&sequencer, 1), held(&sequencer, 2)), (vec![], vec![0]));
    sequencer.handle(Event::WorkerLeft { worker: 1 }).expect("deterministic");
    let missing = lease(&sequencer, 2, 0);
    sequencer.handle(Event::WindowMissing { window: window(0), lease: missing }).expect("deterministic");
    assert_ne!(lease(&sequencer, 2, 0), missing);
}

#[test]
fn windows_of_an_earlier_dispatcher_are_adopted_while_all_are_kept() {
    let mut sequencer = sequencer(9, 3, 10);
    sequencer.set_keeps_all(true);
    sequencer.adopt(1, window(3), 7, true);
    sequencer.adopt(9, window(4), 8, true);
    assert_eq!(sequencer.leases(1), [(window(3), 7)]);
    assert!(held(&sequencer, 9).is_empty(), "the worker has not joined");
    // Worker 1 holds the same window, so worker 2's is not adopted until it is computed.
    sequencer.adopt(2, window(3), 9, false);
    assert!(held(&sequencer, 2).is_empty());
    sequencer.adopt(2, window(3), 9, true);
    finish(&mut sequencer, 2, 3);
    assert_eq!((held(&sequencer, 1), sequencer.leases(2)), (vec![], vec![(window(3), 9)]));
    sequencer.adopt(3, window(3), 10, true);
    assert!(held(&sequencer, 3).is_empty());
    read(&mut sequencer, 1, 3);
    sequencer.set_keeps_all(false);
    assert!(held(&sequencer, 2).contains(&3));
    advance(&mut sequencer, 1, 4);
    assert!(!held(&sequencer, 2).contains(&3));
}

#[test]
fn a_worker_may_hold_a_few_windows_whatever_their_size() {
    let mut sequencer = sequencer(99, 0, 0);
    let limits = WorkerLimits { memory_bytes: 10, computing: 2, windows_at_least: 2 };
    for worker in 1..=2 {
        sequencer.handle(Event::WorkerJoined { worker, limits }).expect("deterministic");
    }
    sequencer.set_keeps_all(true);
    sequencer.adopt(2, window(50), 7, true);
    finish(&mut sequencer, 2, 50);
    read(&mut sequencer, 1, 0);
    for worker in 1..=2 {
        finish_all(&mut sequencer, worker);
    }
    assert_eq!((held(&sequencer, 1), held(&sequencer, 2)), (vec![0, 2], vec![1, 50]));
}

#[test]
fn a_window_that_no_reader_needs_is_not_adopted() {
    let mut sequencer = sequencer(9, 1, 10);
    sequencer.adopt(1, window(3), 7, true);
    read(&mut sequencer, 1, 4);
    sequencer.adopt(1, window(3), 7, true);
    assert_eq!(held(&sequencer, 1), [4]);
}

#[test]
fn windows_of_a_suspected_worker_are_leased_again_at_once_and_it_may_still_finish_first() {
    let mut sequencer = sequencer(4, 2, 1_000);
    read(&mut sequencer, 1, 0);
    let (first, others) = (held(&sequencer, 1), held(&sequencer, 2));
    sequencer.handle(Event::WorkerSuspected { worker: 1 }).expect("deterministic");
    finish_all(&mut sequencer, 2);
    assert_eq!(held(&sequencer, 2), [0, 1, 2, 3]);
    assert_eq!(sequencer.speculative(), first.len() as u64);
    assert!(first.iter().all(|index| !others.contains(index)));
    // The worker was cut off only for a moment. The windows that it has ready are used.
    let mut sequencer = self::sequencer(4, 2, 1_000);
    read(&mut sequencer, 1, 0);
    sequencer.handle(Event::WorkerSuspected { worker: 1 }).expect("deterministic");
    join(&mut sequencer, 1, 1_000);
    finish(&mut sequencer, 1, first[0]);
    assert!(!held(&sequencer, 2).contains(&first[0]));
    assert_eq!(sequencer.copies(window(first[0])).map(|copy| copy.worker).collect::<Vec<_>>(), [1]);
}
