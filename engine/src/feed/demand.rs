//! How fast trainers take samples: measured by the time that readers spend outside of reading.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Fewer batches say little: a reader fills its buffers first.
const BATCHES_LEAST: u64 = 20;

/// What the readers of a feed in this process take.
#[derive(Debug, Default)]
pub(super) struct Demand {
    readers: AtomicU64,
    batches: AtomicU64,
    samples: AtomicU64,
    nanoseconds: AtomicU64,
}

/// One reader's part of it.
#[derive(Debug, Default)]
pub(super) struct Taking {
    /// When the reader last returned a batch.
    returned: Option<Instant>,
    is_counted: bool,
}

impl Demand {
    /// Samples per second that the trainers would take if they never waited; `None` if too few batches were taken.
    pub(super) fn samples_per_second(&self) -> Option<f64> {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        if count(&self.batches) < BATCHES_LEAST {
            return None;
        }
        let outside = Duration::from_nanos(count(&self.nanoseconds)).as_secs_f64().max(1e-9);
        Some(count(&self.samples) as f64 / outside * count(&self.readers) as f64)
    }
}

impl Taking {
    /// A reader asks for its next batch: it has used the time since the last one.
    pub(super) fn asks(&mut self, demand: &Demand) {
        if let Some(returned) = self.returned.take() {
            demand.nanoseconds.fetch_add(returned.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        if !std::mem::replace(&mut self.is_counted, true) {
            demand.readers.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The reader returns a batch.
    pub(super) fn returns(&mut self, demand: &Demand, samples: u64) {
        self.returned = Some(Instant::now());
        demand.batches.fetch_add(1, Ordering::Relaxed);
        demand.samples.fetch_add(samples, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_is_what_readers_take_while_they_do_not_wait() {
        let demand = Demand::default();
        let mut takings = [Taking::default(), Taking::default()];
        for _ in 0..BATCHES_LEAST / 2 {
            assert_eq!(demand.samples_per_second(), None);
            for taking in &mut takings {
                taking.asks(&demand);
                taking.returns(&demand, 8);
            }
        }
        assert_eq!(demand.readers.load(Ordering::Relaxed), 2);
        demand.nanoseconds.store(4_000_000_000, Ordering::Relaxed);
        assert_eq!(demand.samples_per_second(), Some(80.0), "two readers, each in half of the time");
    }
}
