//! What measured waits say that measured rates do not.
//!
//! Windows that come out of order, slow ones among them, lost workers and a crowded network make trainers wait longer
//! than the queue of `queue.rs` explains. All of them act like more variance, so that is what is learnt: as much
//! variance as makes the model wait as long as the trainers do. It changes the number once and stays, until the load
//! becomes another.

use crate::pool::Pool;
use crate::rates::Interval;

/// A load that differs by more than this makes what was learnt worthless.
const SAME_LOAD: f64 = 0.25;
/// The fewest intervals from which anything is learnt.
const INTERVALS_MIN: f64 = 12.0;
/// So many intervals count; with more, all before count half.
const INTERVALS_MAX: f64 = 120.0;
/// More variance than this is no variance: more workers would not help.
const VARIANCE_MAX: f64 = 64.0;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Correction {
    variance: f64,
    /// The load at which it was learnt.
    at_load: f64,
    /// The share of time waited before it was raised for the last time.
    before: Option<f64>,
    /// Whether more workers did not help.
    is_futile: bool,
    waits: Waits,
}

/// The share of time waited, over intervals in which all workers were there.
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    intervals: f64,
    share: f64,
    square: f64,
}

impl Correction {
    /// The variance to add to what was measured.
    pub(crate) fn variance(&self) -> f64 {
        self.variance
    }

    /// Forgets what was learnt at another load.
    pub(crate) fn forget_another_load(&mut self, load: f64) {
        if (load - self.at_load).abs() > SAME_LOAD * self.at_load {
            *self = Self { at_load: load, ..Self::default() };
        }
    }

    /// Forgets waits with another number of workers.
    pub(crate) fn restart(&mut self) {
        self.waits = Waits::default();
    }

    /// Counts an interval with all of the workers there.
    pub(crate) fn add(&mut self, interval: Interval) {
        if interval.reading_seconds > 0.0 {
            self.waits.add((interval.waited_seconds / interval.reading_seconds).min(1.0));
        }
    }

    /// Whether enough was measured, and does not rule out that trainers wait for longer than `bound` of their time.
    pub(crate) fn may_wait(&self, bound: f64) -> bool {
        self.waits.estimate().is_some_and(|(share, error)| share + error > bound)
    }

    /// Learns from the intervals with all of the `workers` there. Returns whether trainers surely wait for longer than
    /// `bound` of their time, in which case there is more variance now.
    pub(crate) fn learn(&mut self, pool: &Pool, workers: u32, bound: f64) -> bool {
        let Some((share, error)) = self.waits.estimate() else { return false };
        if self.is_futile || share - error <= bound {
            return false;
        }
        self.restart();
        // The last step did not help, so it is taken back, and no other is tried at this load.
        self.is_futile = self.before.is_some_and(|before| share - error > 0.8 * before);
        if self.is_futile {
            self.variance = 0.0;
            return false;
        }
        self.before = Some(share);
        let (mut less, mut more) = (0.0, VARIANCE_MAX);
        for _ in 0..40 {
            let middle = f64::midpoint(less, more);
            match pool.with_more_variance(middle).wait(workers) < share - 0.7 * error {
                true => less = middle,
                false => more = middle,
            }
        }
        self.variance += more;
        true
    }
}

impl Waits {
    fn add(&mut self, share: f64) {
        if self.intervals >= INTERVALS_MAX {
            *self = Self { intervals: self.intervals / 2.0, share: self.share / 2.0, square: self.square / 2.0 };
        }
        self.intervals += 1.0;
        self.share += share;
        self.square += share * share;
    }

    /// The mean share, and half the width of its 95 % interval.
    fn estimate(&self) -> Option<(f64, f64)> {
        let mean = self.share / self.intervals;
        let variance = (self.square / self.intervals - mean * mean).max(0.0);
        (self.intervals >= INTERVALS_MIN).then(|| (mean, 2.0 * (variance / (self.intervals - 1.0)).sqrt()))
    }
}
