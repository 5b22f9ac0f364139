//! Messages between the processes of a cluster, which are JSON.

use std::sync::Arc;

use forebay_delivery::{ClaimAnswer, Dispatcher, Millis, Plan, ReaderSessions, Status, WindowId};
use forebay_protocol::wire::{
    BatchMetadata, ClaimCall, FeedMetadata, PieceMetadata, ReaderAnswer, ReaderCall, SnapshotCall, TraceCall,
    WindowRequest, WorkerAnswer, WorkerCall,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A feed of three windows in each epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreeWindows;

impl Plan for ThreeWindows {
    fn windows(&self, _: u64) -> u32 {
        3
    }

    fn bytes(&self, _: WindowId) -> u64 {
        1 << 20
    }
}

/// The feeds that the dispatcher has open.
const FEEDS: [&str; 2] = ["f", "g"];

/// Gives a dispatcher the messages of its callers, one a line. A line's first letter is the type of message:
///
/// | letter | message |
/// |---|---|
/// | `w`, `r`, `c` | of a worker, a reader, a rank about its claims |
/// | `W`, `R`, `C`, `S` | the answers to these; a cluster's status |
/// | `q`, `s`, `t` | requests of a window, a snapshot, a trace |
/// | `b`, `f`, `p` | metadata of a batch, a feed, a piece |
/// | `+` | a number of milliseconds that pass |
///
/// A message that can be read must be written as a text that says the same. No message may stop the dispatcher, and its
/// answers must be readable.
pub fn message(data: &[u8]) -> bool {
    let mut cluster = Cluster::new();
    let lines = data.split(|&byte| byte == b'\n').filter_map(|line| line.split_first());
    let read = lines.map(|(&letter, json)| cluster.hear(letter, json)).fold(true, |all, read| all & read);
    cluster.look();
    read
}

/// Reads a message, writes it, and reads it again.
fn round_trip<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(json: &[u8]) -> Option<T> {
    let message = serde_json::from_slice::<T>(json).ok()?;
    let text = serde_json::to_string(&message).expect("plain data becomes JSON");
    let again = serde_json::from_str::<T>(&text).expect("its own JSON can be read");
    assert_eq!(again, message, "{text}");
    Some(message)
}

/// Shares of leases are fractions, which may lose a digit.
fn worker_answer(json: &[u8]) -> bool {
    let Ok(mut answer) = serde_json::from_slice::<WorkerAnswer>(json) else { return false };
    answer.reply.leases.changed.iter_mut().flat_map(|(_, granted)| granted).for_each(|granted| granted.shares = 1.0);
    round_trip::<WorkerAnswer>(&serde_json::to_vec(&answer).expect("plain data becomes JSON")).is_some()
}

/// A dispatcher, as the service of `flight-server` drives it.
struct Cluster {
    dispatcher: Dispatcher<ThreeWindows>,
    sessions: ReaderSessions,
    now: Millis,
}

impl Cluster {
    fn new() -> Self {
        let mut dispatcher = Dispatcher::new(Default::default(), 1, 0);
        for feed in FEEDS {
            dispatcher.open(&Arc::from(feed), ThreeWindows, 0);
        }
        Self { dispatcher, sessions: ReaderSessions::default(), now: 0 }
    }

    /// Takes one line. Returns whether it can be read.
    fn hear(&mut self, letter: u8, json: &[u8]) -> bool {
        match letter {
            b'w' => round_trip(json).map(|call| self.worker(&call)).is_some(),
            b'r' => round_trip(json).map(|call| self.reader(&call)).is_some(),
            b'c' => round_trip(json).map(|call| self.rank(&call)).is_some(),
            b'W' => worker_answer(json),
            b'R' => round_trip::<ReaderAnswer>(json).is_some(),
            b'C' => round_trip::<ClaimAnswer>(json).is_some(),
            b'S' => serde_json::from_slice::<Status>(json).is_ok(),
            b'q' => round_trip::<WindowRequest>(json).is_some(),
            b's' => round_trip::<SnapshotCall>(json).is_some(),
            b't' => round_trip::<TraceCall>(json).is_some(),
            b'b' => round_trip::<BatchMetadata>(json).is_some(),
            // Its inputs of a hash are any JSON, whose fractions may lose a digit.
            b'f' => serde_json::from_slice::<FeedMetadata>(json).is_ok(),
            b'p' => round_trip::<PieceMetadata>(json).is_some(),
            b'+' => serde_json::from_slice(json).map(|millis| self.wait(millis)).is_ok(),
            _ => false,
        }
    }

    fn worker(&mut self, call: &WorkerCall) {
        if self.dispatcher.worker_sync(&call.sync, self.now).is_ok()
            && let Some(reply) = self.dispatcher.worker_reply(call.sync.worker, self.now)
        {
            let _ = reply.is_urgent(&call.sync);
            readable(&reply);
        }
        self.wait(10);
    }

    /// Sessions follow from secrets by a hash, which the input need not guess: each session may be its sender's.
    fn reader(&mut self, call: &ReaderCall) {
        let _ = self.sessions.admit(&call.sync, &call.secret_key);
        let admitted = self.dispatcher.reader_sync(&call.sync, self.now);
        if let Ok(reply) = admitted.and_then(|()| self.dispatcher.reader_reply(&call.sync)) {
            readable(&reply);
        }
        self.wait(10);
    }

    fn rank(&mut self, call: &ClaimCall) {
        if let Err(why) = self.dispatcher.claim_sync(&call.message, self.now) {
            let _ = why.report();
            return;
        }
        match self.dispatcher.claim_answer(&call.message, self.now) {
            Ok(answer) => readable(&answer),
            Err(why) => drop(why.report()),
        }
        self.wait(10);
    }

    fn wait(&mut self, millis: u32) {
        self.now += Millis::from(millis);
        self.dispatcher.tick(self.now);
    }

    fn look(&self) {
        readable(&self.dispatcher.status(self.now));
        let _ = (self.dispatcher.failures().count(), self.dispatcher.revision());
    }
}

fn readable<T: Serialize + DeserializeOwned>(answer: &T) {
    let text = serde_json::to_string(answer).expect("plain data becomes JSON");
    assert!(serde_json::from_str::<T>(&text).is_ok(), "{text}");
}
