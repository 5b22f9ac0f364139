//! Tests of the trainer.

use super::stream::RETRY_MS;
use super::*;

const LIMIT: u64 = 1_000;

/// Returns rank 0 of one, with batches of four, from the beginning.
fn trainer(epochs: u64, drop_last: bool, buffer_limit_bytes: u64) -> Trainer<Vec<u64>> {
    let settings = ReadSettings { batch_size: 4, epochs, drop_last, rank: 0, world_size: 1 };
    let begin = Origin { window: at(0, 0), window_offset: 0, offset: 0 };
    Trainer::new("f".into(), 1, settings, begin, ReceiveLimits::of_bytes(buffer_limit_bytes))
}

fn at(epoch: u64, index: u32) -> WindowId {
    WindowId { epoch, index }
}

fn route(window: WindowId, rows: u64, last: bool, lease: LeaseId) -> Route {
    Route { window, rows, last, ready: true, lease, worker: 10 + lease, address: format!("w{lease}") }
}

fn reply(trainer: &mut Trainer<Vec<u64>>, routes: Vec<Route>, failed: Option<(WindowId, Report)>) {
    let seq = trainer.sync(0).seq;
    trainer.reply(ReaderReply { version: seq, seq, routes, failed, workers: 1, refused: false });
}

/// Returns routes to epochs of windows of six and three rows.
fn routes(epochs: Range<u64>) -> Vec<Route> {
    let of = |epoch| [route(at(epoch, 0), 6, false, 1), route(at(epoch, 1), 3, true, 2)];
    epochs.flat_map(of).collect()
}

fn rows(rows: Range<u64>) -> Fragment<Vec<u64>> {
    Fragment { rows: rows.clone(), bytes: rows.end - rows.start, records: rows.collect() }
}

fn report(message: &str) -> Report {
    Report { kind: crate::ErrorKind::Data, message: message.into(), hint: None, retry: false }
}

/// Opens all streams that can be opened, and receives all their rows.
fn bring(trainer: &mut Trainer<Vec<u64>>) {
    for open in trainer.opens(0) {
        for run in open.slice.runs(open.from_row) {
            assert!(trainer.received(open.window, open.lease, rows(run), 0));
        }
        trainer.ended(open.window, open.lease, Ended::Complete, 0);
    }
}

fn delivered(trainer: &mut Trainer<Vec<u64>>) -> (u64, Range<u64>) {
    match trainer.next(0) {
        Next::Deliver(delivery) => (delivery.epoch, delivery.offsets),
        other => panic!("no batch: {other:?}"),
    }
}

#[test]
fn batches_span_windows_and_epochs_do_not_mix() {
    let mut trainer = trainer(2, false, LIMIT);
    assert_eq!(trainer.next(0), Next::Wait);
    reply(&mut trainer, routes(0..2), None);
    bring(&mut trainer);
    let Next::Deliver(first) = trainer.next(0) else { panic!("all rows are received") };
    assert_eq!((first.step, first.records.concat()), (0, vec![0, 1, 2, 3]));
    assert_eq!(first.token, Token { feed: "f".into(), epoch: 0, offset: 4, window: 0, window_offset: 0, claims: None });
    let Next::Deliver(second) = trainer.next(0) else { panic!("all rows are received") };
    assert_eq!((second.step, second.records.concat()), (1, vec![4, 5, 0, 1]));
    assert_eq!(delivered(&mut trainer), (0, 8..9));
    bring(&mut trainer);
    assert_eq!(delivered(&mut trainer), (1, 0..4));
    assert_eq!(delivered(&mut trainer), (1, 4..8));
    assert_eq!(delivered(&mut trainer), (1, 8..9));
    assert_eq!((trainer.next(0), trainer.buffered_bytes()), (Next::End, 0));
    assert!(trainer.leave(0).leaving);
}

#[test]
fn rows_that_drop_last_leaves_out_are_freed() {
    let mut trainer = trainer(2, true, LIMIT);
    reply(&mut trainer, routes(0..2), None);
    bring(&mut trainer);
    assert_eq!((delivered(&mut trainer), delivered(&mut trainer)), ((0, 0..4), (0, 4..8)));
    bring(&mut trainer);
    assert_eq!((delivered(&mut trainer), delivered(&mut trainer)), ((1, 0..4), (1, 4..8)));
    assert_eq!((trainer.next(0), trainer.buffered_bytes()), (Next::End, 1));
}

#[test]
fn a_batch_larger_than_the_buffer_is_delivered() {
    for drop_last in [false, true] {
        let mut trainer = trainer(1, drop_last, 1);
        reply(&mut trainer, routes(0..1), None);
        let mut got = Vec::new();
        let mut open: BTreeMap<WindowId, (LeaseId, VecDeque<Range<u64>>)> = BTreeMap::new();
        while let next @ (Next::Deliver(_) | Next::Wait) = trainer.next(0) {
            if let Next::Deliver(delivery) = next {
                got.push(delivery.offsets);
            }
            assert!(trainer.buffered_bytes() <= 8);
            let opens = trainer.opens(0).into_iter();
            open.extend(opens.map(|it| (it.window, (it.lease, it.slice.runs(it.from_row).collect()))));
            let wanted = open.iter_mut().find(|(window, (_, runs))| trainer.wants(**window) && !runs.is_empty());
            if let Some((&window, (lease, runs))) = wanted {
                let run = runs.pop_front().expect("not empty");
                assert!(trainer.received(window, *lease, rows(run), 0));
            }
        }
        assert_eq!(got, if drop_last { vec![0..4, 4..8] } else { vec![0..4, 4..8, 8..9] });
    }
}

#[test]
fn while_the_loop_computes_the_buffer_limits_receiving() {
    let mut trainer = trainer(1, false, 4);
    reply(&mut trainer, routes(0..1), None);
    trainer.opens(0);
    assert!(trainer.wants(at(0, 0)) && trainer.received(at(0, 0), 1, rows(0..4), 0));
    assert!(!trainer.wants(at(0, 0)));
    assert_eq!(delivered(&mut trainer), (0, 0..4));
    assert!(trainer.wants(at(0, 0)) && trainer.wants(at(0, 1)));
}

#[test]
fn what_the_loop_waits_for_comes_over_the_limit_piece_by_piece() {
    let mut trainer = trainer(1, false, 1);
    reply(&mut trainer, routes(0..1), None);
    trainer.opens(0);
    for row in 0..3 {
        assert!(matches!(trainer.next(0), Next::Wait));
        assert!(trainer.wants(at(0, 0)), "the batch lacks rows");
        assert!(trainer.received(at(0, 0), 1, rows(row..row + 1), 0));
        assert!(!trainer.wants(at(0, 0)), "the loop has not taken them yet");
    }
}

#[test]
fn only_the_next_row_is_accepted() {
    let mut trainer = trainer(1, false, LIMIT);
    reply(&mut trainer, routes(0..1), None);
    trainer.opens(0);
    assert!(trainer.received(at(0, 0), 1, rows(0..2), 0));
    assert!(!trainer.received(at(0, 0), 9, rows(2..4), 0), "the lease is not open");
    // The window is opened again, after a pause, at the missing row.
    assert!(!trainer.received(at(0, 0), 1, rows(3..4), 0));
    assert!(!trainer.received(at(0, 0), 1, rows(2..4), 0), "the stream is closed");
    assert_eq!(trainer.opens(0), []);
    assert_eq!(trainer.retry_at(), Some(RETRY_MS.0));
    let again = trainer.opens(RETRY_MS.0);
    assert_eq!((again.len(), again[0].window, again[0].from_row), (1, at(0, 0), 2));
    assert!(!trainer.received(at(0, 0), 1, rows(2..5), 0), "the rows end beyond the batch");
}

#[test]
fn a_stream_whose_window_moved_is_opened_elsewhere_at_the_next_row() {
    let mut trainer = trainer(1, false, LIMIT);
    reply(&mut trainer, routes(0..1), None);
    trainer.opens(0);
    assert!(trainer.received(at(0, 0), 1, rows(0..3), 0));
    reply(&mut trainer, vec![route(at(0, 0), 6, false, 5)], None);
    let opens = trainer.opens(0);
    assert_eq!((opens.len(), opens[0].address.as_str(), opens[0].from_row), (1, "w5", 3));
    trainer.ended(at(0, 0), 1, Ended::Lost, 0);
    assert!(trainer.received(at(0, 0), 5, rows(3..4), 0), "the end of the old stream changes nothing");
}

#[test]
fn a_broken_stream_is_reported_until_acknowledged_and_opened_again_with_backoff() {
    let mut trainer = trainer(1, false, LIMIT);
    reply(&mut trainer, routes(0..1), None);
    trainer.opens(0);
    let sync = trainer.sync(0);
    assert!(sync.broken.is_empty());
    trainer.ended(at(0, 0), 1, Ended::Lost, 0);
    assert!(trainer.has_news());
    // The answer to an earlier message does not acknowledge the broken stream.
    let version = sync.seq;
    trainer.reply(ReaderReply {
        version,
        seq: sync.seq,
        routes: routes(0..1),
        failed: None,
        workers: 1,
        refused: false,
    });
    let broken = BrokenLease { window: at(0, 0), lease: 1, worker: 11, missing: false };
    assert_eq!(trainer.sync(0).broken, [broken]);
    assert_eq!(trainer.sync(0).broken, [broken]);
    reply(&mut trainer, routes(0..1), None);
    assert_eq!(trainer.sync(0).broken, []);
    let mut now = 0;
    let waits = [(); 7].map(|()| {
        let at_first = std::mem::replace(&mut now, trainer.retry_at().expect("closed"));
        assert_eq!(trainer.opens(now - 1).len() + trainer.opens(now).len(), 1);
        trainer.ended(at(0, 0), 1, Ended::Missing, now);
        now - at_first
    });
    assert_eq!(waits, [50, 100, 200, 400, 800, 1_000, 1_000]);
    // Without a route, there is no stream to open again.
    reply(&mut trainer, Vec::new(), None);
    assert_eq!(trainer.retry_at(), None);
}

#[test]
fn an_answer_to_an_older_message_changes_nothing() {
    let mut trainer = trainer(1, false, LIMIT);
    let old = trainer.sync(0).seq;
    reply(&mut trainer, routes(0..1), None);
    trainer.reply(ReaderReply { version: 77, seq: old, routes: Vec::new(), failed: None, workers: 0, refused: false });
    assert_eq!((trainer.opens(0).len(), trainer.workers()), (2, 1));
}

#[test]
fn an_error_in_the_data_is_raised_after_the_batches_before_it() {
    let mut trainer = trainer(1, false, LIMIT);
    reply(&mut trainer, routes(0..1), None);
    trainer.opens(0);
    trainer.ended(at(0, 1), 2, Ended::Failed(report("bad row")), 0);
    assert!(trainer.received(at(0, 0), 1, rows(0..4), 0) && trainer.received(at(0, 0), 1, rows(4..6), 0));
    // The dispatcher may release the windows.
    assert_eq!(trainer.sync(0).at, at(1, 0));
    assert_eq!(delivered(&mut trainer), (0, 0..4));
    assert_eq!(trainer.next(0), Next::Fail(report("bad row")));
}

#[test]
fn a_window_that_cannot_be_computed_is_an_error_when_the_loop_needs_it() {
    let mut trainer = trainer(1, false, LIMIT);
    reply(&mut trainer, routes(0..1)[..1].to_vec(), Some((at(0, 1), report("gone"))));
    bring(&mut trainer);
    assert_eq!(delivered(&mut trainer), (0, 0..4));
    assert_eq!(trainer.next(0), Next::Fail(report("gone")));
}

#[test]
fn a_broken_window_that_cannot_be_computed_again_is_an_error() {
    // Once with only this window known, and once with the next one, too.
    for known in [1, 2] {
        let mut trainer = trainer(1, false, LIMIT);
        reply(&mut trainer, routes(0..1)[..known].to_vec(), None);
        trainer.opens(0);
        assert!(trainer.received(at(0, 0), 1, rows(0..4), 0));
        reply(&mut trainer, Vec::new(), Some((at(0, 0), report("gone"))));
        assert_eq!(delivered(&mut trainer), (0, 0..4));
        assert_eq!(trainer.next(0), Next::Wait, "the worker may still send the rows");
        trainer.ended(at(0, 0), 1, Ended::Lost, 0);
        assert_eq!(trainer.next(0), Next::Fail(report("gone")));
    }
}

#[test]
fn its_position_is_the_first_window_with_missing_rows() {
    let mut trainer = trainer(1, false, LIMIT);
    reply(&mut trainer, routes(0..1), None);
    trainer.opens(0);
    assert!(trainer.received(at(0, 1), 2, rows(0..2), 0) && trainer.received(at(0, 1), 2, rows(2..3), 0));
    assert_eq!(trainer.sync(0).at, at(0, 0));
    assert!(trainer.received(at(0, 0), 1, rows(0..4), 0) && trainer.received(at(0, 0), 1, rows(4..6), 0));
    assert_eq!(trainer.sync(0).at, at(1, 0));
}

#[test]
fn it_reports_the_window_that_its_loop_waits_for_and_how_long() {
    let mut trainer = trainer(1, false, LIMIT);
    assert_eq!(trainer.sync(5).waiting, None);
    assert_eq!(trainer.next(10), Next::Wait);
    assert_eq!(trainer.next(20), Next::Wait);
    let sync = trainer.sync(30);
    assert_eq!((sync.waiting, sync.stalled_ms), (Some((at(0, 0), 20)), 20));
    reply(&mut trainer, routes(0..1), None);
    bring(&mut trainer);
    trainer.next(40);
    let sync = trainer.sync(50);
    assert_eq!((sync.waiting, sync.stalled_ms, sync.samples), (None, 30, 4));
}

#[test]
fn a_broken_stream_is_opened_elsewhere_at_once() {
    let mut trainer = trainer(1, false, LIMIT);
    reply(&mut trainer, routes(0..1), None);
    trainer.opens(0);
    for _ in 0..4 {
        let now = trainer.retry_at().unwrap_or(0);
        trainer.opens(now);
        trainer.ended(at(0, 0), 1, Ended::Lost, now);
    }
    let now = trainer.retry_at().expect("closed") - 300;
    assert_eq!(trainer.opens(now), []);
    reply(&mut trainer, vec![route(at(0, 0), 6, false, 5)], None);
    assert_eq!(trainer.opens(now).len(), 1);
}

#[test]
fn a_silent_stream_is_asked_for_again_and_a_lasting_wait_is_an_error() {
    let mut trainer = trainer(1, false, LIMIT);
    reply(&mut trainer, routes(0..1), None);
    assert_eq!(trainer.opens(0).len(), 2);
    assert_eq!((trainer.retry_at(), trainer.gives_up_at()), (None, None), "the loop does not wait");
    assert_eq!(trainer.next(10), Next::Wait);
    // Rows of another window change nothing.
    assert!(trainer.received(at(0, 1), 2, rows(0..2), 20_000));
    assert_eq!(trainer.retry_at(), Some(10 + SILENCE_MS));
    assert!(trainer.opens(9 + SILENCE_MS).is_empty() && trainer.sync(0).broken.is_empty());
    assert!(trainer.received(at(0, 0), 1, rows(0..2), 10_000));
    assert_eq!(trainer.next(10_000), Next::Wait);
    assert_eq!(trainer.retry_at(), Some(10_000 + SILENCE_MS), "rows came");
    // The stream is closed, reported, and opened again elsewhere at the next row.
    let now = 10_000 + SILENCE_MS;
    assert!(trainer.opens(now).is_empty());
    assert_eq!(trainer.sync(now).broken, [BrokenLease { window: at(0, 0), lease: 1, worker: 11, missing: false }]);
    reply(&mut trainer, vec![route(at(0, 0), 6, false, 5)], None);
    let again = trainer.opens(now);
    assert_eq!((again[0].address.as_str(), again[0].from_row), ("w5", 2));
    assert_eq!((trainer.next(now), trainer.gives_up_at()), (Next::Wait, Some(now + PATIENCE_MS)));
    let Next::Fail(report) = trainer.next(now + PATIENCE_MS) else { panic!("patience is over") };
    let message = "no rows of window 0 of epoch 0 came from the worker at w1, nor from the worker at w5 for 60 s, \
                   although the window is computed";
    assert_eq!((report.kind, report.message.as_str()), (ErrorKind::Unavailable, message));
}

#[test]
fn a_window_that_is_being_computed_may_take_any_time() {
    let mut trainer = trainer(1, false, LIMIT);
    let computing = |mut route: Route| {
        route.ready = false;
        route
    };
    reply(&mut trainer, routes(0..1).into_iter().map(computing).collect(), None);
    trainer.opens(0);
    assert_eq!(trainer.next(0), Next::Wait);
    assert!(trainer.retry_at().is_none() && trainer.opens(1 << 40).is_empty());
    assert!(trainer.sync(0).broken.is_empty() && trainer.next(1 << 40) == Next::Wait);
    // The window failed since, so no other worker will send it.
    reply(&mut trainer, Vec::new(), Some((at(0, 0), report("gone"))));
    assert!(trainer.opens(SILENCE_MS).is_empty());
    assert_eq!(trainer.next(SILENCE_MS), Next::Fail(report("gone")));
}

#[test]
fn a_stream_of_a_computed_window_is_silent_even_before_its_first_rows() {
    let mut trainer = trainer(1, false, LIMIT);
    reply(&mut trainer, routes(0..1), None);
    trainer.opens(0);
    assert_eq!(trainer.next(0), Next::Wait);
    reply(&mut trainer, routes(0..1), None);
    assert_eq!(trainer.retry_at(), Some(SILENCE_MS));
}

#[test]
fn a_long_pause_of_the_loop_is_no_silence() {
    let mut trainer = trainer(1, false, 4);
    reply(&mut trainer, routes(0..1), None);
    trainer.opens(0);
    assert!(trainer.received(at(0, 0), 1, rows(0..4), 0));
    assert_eq!(delivered(&mut trainer), (0, 0..4));
    // The streams were not read while the loop computed for an hour.
    let now = 3_600_000;
    assert_eq!(trainer.next(now), Next::Wait);
    assert!(trainer.opens(now).is_empty() && trainer.sync(now).broken.is_empty());
    assert_eq!(trainer.retry_at(), Some(now + SILENCE_MS));
}
