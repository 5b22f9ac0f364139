//! What the windows of a feed cost, by step and by call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_operators::{CallCost, CallCosts};
use serde::{Deserialize, Serialize};

/// What a feed has cost in this process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FeedCosts {
    /// Windows that were prepared.
    pub windows: u64,
    /// Rows of which samples were computed, or tried. Windows that are computed again count again.
    #[serde(default)]
    pub transformed: u64,
    /// Seconds until row ranges were read and decoded, including the time that stores took. Ranges are read at the
    /// same time, so the sum may exceed the time that passed.
    pub reading: f64,
    /// The same, with each read's time divided by the number of reads that may be under way.
    #[serde(default)]
    pub reading_together: f64,
    /// Seconds of filtering, deriving and ordering rows.
    pub preparing: f64,
    /// Seconds of computing samples.
    pub transforming: f64,
    /// Seconds of encoding samples as files.
    pub encoding: f64,
    /// Seconds of waiting until a store took files, or what the feed keeps.
    pub storing: f64,
    /// What calls cost while windows were prepared and samples computed, in the order in which they run.
    pub calls: Vec<CallCosts>,
}

impl FeedCosts {
    /// Seconds that a process with `threads` threads needs all of them for, summed over the threads. Reading takes
    /// threads or the store's time: several ranges are read at once, as many as reads may be under way.
    pub fn thread_seconds(&self, threads: usize) -> f64 {
        (self.preparing + self.transforming).max(self.reading_together * threads as f64)
    }

    /// What was spent since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let calls = self.calls.iter().enumerate().map(|(at, call)| match earlier.calls.get(at) {
            Some(before) => CallCosts {
                seconds: call.seconds - before.seconds,
                rows: call.rows - before.rows,
                bytes_in: call.bytes_in - before.bytes_in,
                bytes_out: call.bytes_out - before.bytes_out,
                ..call.clone()
            },
            None => call.clone(),
        });
        Self {
            windows: self.windows - earlier.windows,
            transformed: self.transformed - earlier.transformed,
            reading: self.reading - earlier.reading,
            reading_together: self.reading_together - earlier.reading_together,
            preparing: self.preparing - earlier.preparing,
            transforming: self.transforming - earlier.transforming,
            encoding: self.encoding - earlier.encoding,
            storing: self.storing - earlier.storing,
            calls: calls.collect(),
        }
    }

    /// Adds what was spent elsewhere on the same feed.
    pub(crate) fn add(&mut self, other: Self) {
        self.windows += other.windows;
        self.transformed += other.transformed;
        self.reading += other.reading;
        self.reading_together += other.reading_together;
        self.preparing += other.preparing;
        self.transforming += other.transforming;
        self.encoding += other.encoding;
        self.storing += other.storing;
        for (at, call) in other.calls.into_iter().enumerate() {
            match self.calls.get_mut(at).filter(|known| known.call == call.call) {
                Some(known) => {
                    known.seconds += call.seconds;
                    known.rows += call.rows;
                    known.bytes_in += call.bytes_in;
                    known.bytes_out += call.bytes_out;
                }
                None => self.calls.push(call),
            }
        }
    }
}

/// Counts what a feed costs. A clone counts the same.
#[derive(Clone, Debug)]
pub struct CostMeter {
    steps: Arc<Steps>,
    /// What the feed has chosen to keep, and why.
    keeps: Arc<OnceLock<String>>,
    calls: Arc<[Arc<CallCost>]>,
}

/// Nanoseconds by step.
#[derive(Debug, Default)]
struct Steps {
    windows: AtomicU64,
    transformed: AtomicU64,
    reads: AtomicU64,
    reading_together: AtomicU64,
    nanoseconds: [AtomicU64; 5],
}

/// A step of computing a window.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Reading,
    Preparing,
    Transforming,
    Encoding,
    Storing,
}

impl CostMeter {
    /// A meter of a stage with these calls.
    pub(crate) fn new(calls: &[Arc<CallCost>]) -> Self {
        Self { steps: Arc::default(), keeps: Arc::default(), calls: calls.into() }
    }

    /// Counts the time since `begun`.
    pub(crate) fn count(&self, step: Step, begun: Instant) {
        self.steps.nanoseconds[step as usize].fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// Counts a read of a row range that took so long, while so many reads might be under way. Returns the seconds of a
    /// thread that computing the rows of a range has taken so far, on average.
    pub(super) fn count_read(&self, took: Duration, under_way: usize) -> f64 {
        let reads = self.steps.reads.fetch_add(1, Ordering::Relaxed) + 1;
        let took = took.as_nanos() as u64;
        self.steps.nanoseconds[Step::Reading as usize].fetch_add(took, Ordering::Relaxed);
        self.steps.reading_together.fetch_add(took / under_way as u64, Ordering::Relaxed);
        let of = |step: Step| self.steps.nanoseconds[step as usize].load(Ordering::Relaxed) as f64 / 1e9;
        (of(Step::Preparing) + of(Step::Transforming)) / reads as f64
    }

    /// The feed has chosen what to keep, for this reason.
    pub(super) fn set_keeps(&self, reason: &str) {
        let _ = self.keeps.set(reason.to_owned());
    }

    /// What the feed has chosen to keep of its samples, and why.
    pub fn keeps(&self) -> Option<&str> {
        self.keeps.get().map(String::as_str)
    }

    pub(super) fn count_window(&self) {
        self.steps.windows.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_rows(&self, rows: usize) {
        self.steps.transformed.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// The costs until now. Calls count those of all feeds of the pipeline in this process.
    pub fn costs(&self) -> FeedCosts {
        let nanoseconds = |of: &AtomicU64| of.load(Ordering::Relaxed) as f64 / 1e9;
        let seconds = |step: Step| nanoseconds(&self.steps.nanoseconds[step as usize]);
        FeedCosts {
            windows: self.steps.windows.load(Ordering::Relaxed),
            transformed: self.steps.transformed.load(Ordering::Relaxed),
            reading: seconds(Step::Reading),
            reading_together: nanoseconds(&self.steps.reading_together),
            preparing: seconds(Step::Preparing),
            transforming: seconds(Step::Transforming),
            encoding: seconds(Step::Encoding),
            storing: seconds(Step::Storing),
            calls: self.calls.iter().map(|call| call.costs()).collect(),
        }
    }
}
