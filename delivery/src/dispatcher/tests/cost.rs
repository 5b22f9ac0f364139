//! The cost of messages of many ranks.

use super::*;

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
