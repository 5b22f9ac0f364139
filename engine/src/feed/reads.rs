//! How many row ranges a feed reads at a time: more from a store that answers slowly.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_policy::reads_under_way;
use futures::stream::{self, FuturesOrdered};
use futures::{Stream, StreamExt};
use parking_lot::Mutex;

/// Row ranges of one window that are read at a time at least, and at most.
pub(super) const READS_LEAST: usize = 16;
const READS_MOST: usize = 256;
/// Windows that are prepared at a time at least, and at most.
pub(super) const WINDOWS_LEAST: usize = 2;
const WINDOWS_MOST: usize = 8;
/// The time of the fastest of so many reads counts. Others have waited for a thread as well.
const READS_COMPARED: u32 = 16;
/// The weight of what was seen before.
const MEMORY: f64 = 0.7;

/// The number of reads under way, which follows from how long they take.
#[derive(Debug)]
pub(super) struct Reads {
    threads: usize,
    now: AtomicUsize,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Reads since the last comparison, and the time of the fastest.
    reads: u32,
    fastest: Duration,
    /// Seconds of a read that nothing delays.
    latency: Option<f64>,
}

impl Reads {
    pub(super) fn new(threads: usize) -> Self {
        Self { threads, now: AtomicUsize::new(READS_LEAST), seen: Mutex::default() }
    }

    /// Row ranges of one window to read at a time.
    pub(super) fn now(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    /// The results of `all`, in their order, with so many reads under way as there should be at each moment: a window
    /// that has begun gets more when the store turns out to be slow.
    pub(super) fn in_order<F: Future>(&self, all: impl Iterator<Item = F>) -> impl Stream<Item = F::Output> {
        stream::unfold((FuturesOrdered::new(), all.fuse()), move |(mut under_way, mut all)| async move {
            while under_way.len() < self.now()
                && let Some(read) = all.next()
            {
                under_way.push_back(read);
            }
            under_way.next().await.map(|read| (read, (under_way, all)))
        })
    }

    /// Windows of so many row ranges to prepare at a time.
    pub(super) fn windows(&self, ranges: usize) -> usize {
        self.now().div_ceil(ranges.max(1)).clamp(WINDOWS_LEAST, WINDOWS_MOST)
    }

    /// Learns how long a read took, and that computing the rows of one takes so many seconds of a thread.
    pub(super) fn learn(&self, took: Duration, computing: f64) {
        let mut seen = self.seen.lock();
        seen.fastest = if seen.reads == 0 { took } else { seen.fastest.min(took) };
        seen.reads += 1;
        if seen.reads < READS_COMPARED {
            return;
        }
        seen.reads = 0;
        let latency = seen.fastest.as_secs_f64();
        let latency = seen.latency.map_or(latency, |before| before * MEMORY + latency * (1.0 - MEMORY));
        seen.latency = Some(latency);
        let reads = reads_under_way(latency, computing, self.threads, READS_LEAST, READS_MOST);
        self.now.store(reads, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_window_that_has_begun_gets_more_reads() {
        let (reads, begun) = (Reads::new(2), AtomicUsize::new(0));
        let read = |number| {
            begun.fetch_add(1, Ordering::Relaxed);
            std::future::ready(number)
        };
        let mut all = Box::pin(reads.in_order((0..1_000).map(read)));
        assert_eq!((all.next().await, begun.load(Ordering::Relaxed)), (Some(0), READS_LEAST));
        (0..READS_COMPARED).for_each(|_| reads.learn(Duration::from_millis(300), 0.001));
        assert_eq!((all.next().await, begun.load(Ordering::Relaxed)), (Some(1), 1 + READS_MOST));
        assert_eq!(all.collect::<Vec<_>>().await, (2..1_000).collect::<Vec<_>>());
    }

    #[test]
    fn reads_follow_the_latency_of_the_store() {
        let reads = Reads::new(2);
        let learn = |milliseconds: u64, times: u32| {
            (0..times).for_each(|_| reads.learn(Duration::from_millis(milliseconds), 0.001));
        };
        assert_eq!((reads.now(), reads.windows(16)), (READS_LEAST, WINDOWS_LEAST));
        learn(50, READS_COMPARED - 1);
        assert_eq!(reads.now(), READS_LEAST, "a few reads say little");
        learn(90, 1);
        assert_eq!((reads.now(), reads.windows(300), reads.windows(40)), (150, WINDOWS_LEAST, 4));
        learn(0, READS_COMPARED * 20);
        assert_eq!(reads.now(), READS_LEAST, "the store has become fast");
        learn(10_000, READS_COMPARED * 20);
        assert_eq!((reads.now(), reads.windows(1)), (READS_MOST, WINDOWS_MOST));
    }
}
