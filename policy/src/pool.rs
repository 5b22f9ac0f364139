//! What some number of workers would do: the capacity of a pool against its load, and the number that a goal asks for.

use serde::{Deserialize, Serialize};

use crate::rates::Rates;
use crate::{Error, Prices, wait_share};

/// What the number of workers is chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum WorkerGoal {
    /// The fewest workers with which trainers wait for at most this share of their time.
    Wait {
        /// Between 0 and 1, both exclusive. 0.01 by default.
        at_most: f64,
    },
    /// The number with which an epoch costs least. An epoch takes longer the more its trainers wait, and both trainers
    /// and workers are paid for as long as it takes.
    Money {
        /// Of trainers and workers, both of which are needed.
        prices: Prices,
    },
}

impl Default for WorkerGoal {
    fn default() -> Self {
        Self::Wait { at_most: 0.01 }
    }
}

/// Demand and supply, in slots of a usual worker: a load of 3.5 keeps three and a half slots busy.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    /// What workers have whose number is not decided here.
    pub(crate) others: f64,
    /// What the best of the live workers have together: at index 2, the best three.
    pub(crate) together: Vec<f64>,
    /// What a worker has that is started now.
    pub(crate) usual: f64,
    pub(crate) load: f64,
    /// Half the width of the 95 % interval of the load, relative to it.
    pub(crate) error: f64,
    /// The squared coefficients of variation of a window's computing time, and of the trainers' time for it.
    pub(crate) variances: (f64, f64),
    /// Windows that may be ready for each slot.
    pub(crate) ahead: f64,
    pub(crate) readers: f64,
    /// Samples per second that trainers would take.
    pub(crate) demand: f64,
    /// Seconds that a window takes, of the feed with the longest.
    pub(crate) window_seconds: f64,
    /// Whether some feed's rates have not been measured at all.
    pub(crate) has_unknown: bool,
}

impl Pool {
    /// The pool of live workers, whose `capacities` come largest first, beside what `others` have, under the feeds that
    /// are read.
    pub(crate) fn new(
        rates: &Rates,
        (capacities, others): (&[f64], f64),
        usual: f64,
        ahead: f64,
        idle_seconds: f64,
    ) -> Self {
        let mut pool = Self {
            others,
            together: cumulative(capacities),
            usual,
            load: 0.0,
            error: 0.0,
            variances: (0.0, 0.0),
            ahead,
            readers: 0.0,
            demand: 0.0,
            window_seconds: 0.0,
            has_unknown: false,
        };
        for feed in rates.active(idle_seconds) {
            pool.readers += f64::from(feed.readers);
            let (Some(demand), Some(supply)) = (feed.demand(), feed.supply()) else {
                pool.has_unknown = true;
                continue;
            };
            let load = demand.per_second / supply.per_second;
            pool.load += load;
            pool.demand += demand.per_second;
            pool.window_seconds = pool.window_seconds.max(feed.samples_per_window / supply.per_second);
            pool.error += load * demand.error.hypot(supply.error);
            // A coefficient of variation above 2 is an outlier that slipped in.
            let squared = |dispersion: f64| (dispersion / feed.samples_per_window).min(4.0);
            pool.variances.0 += load * squared(supply.dispersion);
            pool.variances.1 += load * squared(demand.dispersion);
        }
        if pool.load > 0.0 {
            pool.error /= pool.load;
            pool.variances = (pool.variances.0 / pool.load, pool.variances.1 / pool.load);
        }
        pool
    }

    /// The pool if its load were this many times as large.
    pub(crate) fn scaled(&self, factor: f64) -> Self {
        Self { load: self.load * factor.max(0.0), ..self.clone() }
    }

    /// The pool if windows or steps varied by so much more, as a squared coefficient of variation.
    pub(crate) fn with_more_variance(&self, more: f64) -> Self {
        Self { variances: (self.variances.0, self.variances.1 + more), ..self.clone() }
    }

    /// The number that is most likely wanted. Where the load is not sure, it is rounded and not rounded up: half a
    /// worker is left to the next decision, which knows more.
    pub(crate) fn likely(&self, goal: &WorkerGoal, min: u32, max: u32) -> u32 {
        let half = (0.5 * self.usual / self.load.max(f64::MIN_POSITIVE)).min(self.error);
        self.scaled(1.0 - half.min(1.0)).workers(goal, min, max, 1.0)
    }

    /// What the best `workers` of the live ones have together, usual ones in the place of those that are missing, and
    /// the others.
    pub(crate) fn capacity(&self, workers: u32) -> f64 {
        let live = self.together.len().min(usize::try_from(workers).unwrap_or(usize::MAX));
        let best = live.checked_sub(1).map_or(0.0, |last| self.together[last]);
        self.others + best + (f64::from(workers) - live as f64) * self.usual
    }

    /// The share of their time that trainers would wait.
    pub(crate) fn wait(&self, workers: u32) -> f64 {
        if self.load <= 0.0 {
            return 0.0;
        }
        let capacity = self.capacity(workers);
        let surplus = capacity / self.load - 1.0;
        // Workers with much more capacity than the load stand still most of the time, and add no variance then.
        let variance = self.variances.0 * (1.0 + surplus.min(1.0)) + self.variances.1;
        wait_share(surplus, variance, self.ahead * capacity)
    }

    /// The number from `min` to `max` that the goal asks for. With `strictness` 2 the bound of waits is halved.
    pub(crate) fn workers(&self, goal: &WorkerGoal, min: u32, max: u32, strictness: f64) -> u32 {
        match goal {
            WorkerGoal::Wait { at_most } => self.fewest(at_most / strictness, min, max),
            WorkerGoal::Money { prices } => {
                let trainers = prices.trainer().unwrap_or_default() * self.readers;
                let worker = prices.worker().unwrap_or_default();
                // What one second of training costs, which takes 1 / (1 − wait) seconds.
                let cost = |workers| (trainers + worker * f64::from(workers)) / (1.0 - self.wait(workers)).max(1e-9);
                // More than these only cost: no trainer waits any more.
                let most = self.fewest(1e-6, min, max);
                (min..=most).min_by(|a, b| cost(*a).total_cmp(&cost(*b))).unwrap_or(most)
            }
        }
    }

    /// The fewest workers with which trainers wait for at most this share of their time.
    fn fewest(&self, at_most: f64, min: u32, max: u32) -> u32 {
        // More workers never make trainers wait longer, so halving finds the boundary.
        let (mut too_few, mut enough) = (min, max);
        while too_few < enough {
            let middle = too_few + (enough - too_few) / 2;
            match self.wait(middle) <= at_most {
                true => enough = middle,
                false => too_few = middle + 1,
            }
        }
        enough
    }
}

fn cumulative(capacities: &[f64]) -> Vec<f64> {
    let sum = |sum: &mut f64, capacity: &f64| {
        *sum += capacity;
        Some(*sum)
    };
    capacities.iter().scan(0.0, sum).collect()
}

impl WorkerGoal {
    /// The share of time that trainers may wait without anybody looking for a reason.
    pub(crate) fn wait_bound(&self) -> f64 {
        match self {
            Self::Wait { at_most } => *at_most,
            Self::Money { .. } => 0.01,
        }
    }

    /// Fails if the goal cannot be pursued.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self {
            Self::Wait { at_most } if at_most.is_finite() && *at_most > 0.0 && *at_most < 1.0 => Ok(()),
            Self::Wait { at_most } => Err(Error::new(
                format!("the share of time that trainers may wait must lie between 0 and 1, got {at_most}"),
                "write 0.01 for one percent",
            )),
            Self::Money { prices } => prices.worker().and(prices.trainer()).map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(load: f64, variance: f64) -> Pool {
        Pool {
            others: 0.0,
            together: Vec::new(),
            usual: 1.0,
            load,
            error: 0.0,
            variances: (variance, 0.0),
            ahead: 1.0,
            readers: 1.0,
            demand: load,
            window_seconds: 1.0,
            has_unknown: false,
        }
    }

    #[test]
    fn the_fewest_workers_that_hold_the_bound_are_found() {
        let goal = WorkerGoal::default();
        for (load, variance, expected) in [(2.0, 0.0, 2), (16.0, 0.0, 16), (505.0, 0.0, 500), (2.0, 0.2, 3)] {
            assert_eq!(pool(load, variance).workers(&goal, 0, 1000, 1.0), expected, "{load} {variance}");
        }
        assert_eq!(pool(50.0, 0.0).workers(&goal, 0, 8, 1.0), 8, "the maximum");
        assert_eq!(pool(0.0, 0.0).workers(&goal, 3, 8, 1.0), 3, "the minimum");
    }

    #[test]
    fn many_workers_keep_trainers_from_waiting_whatever_the_variance() {
        for variance in [0.1, 1.0, 4.0, 64.0] {
            assert!(pool(0.23, variance).wait(64) < 1e-4, "{variance}");
        }
        assert!(pool(0.23, 4.0).workers(&WorkerGoal::default(), 0, 1000, 1.0) <= 3);
    }

    #[test]
    fn a_slow_worker_counts_with_its_own_speed() {
        let slow = Pool { together: cumulative(&[1.0, 1.0, 0.1]), ..pool(3.0, 0.0) };
        assert_eq!(slow.workers(&WorkerGoal::default(), 0, 100, 1.0), 4);
    }

    #[test]
    fn what_others_compute_is_not_asked_for() {
        let goal = WorkerGoal::default();
        for (others, expected) in [(1.0, 2), (2.5, 1), (3.0, 0), (50.0, 0)] {
            let pool = Pool { others, ..pool(3.0, 0.0) };
            assert_eq!(pool.workers(&goal, 0, 100, 1.0), expected, "{others}");
        }
    }

    #[test]
    fn money_weighs_trainers_against_workers() {
        let goal = |prices: &str| WorkerGoal::Money { prices: prices.parse().unwrap() };
        // An expensive trainer is kept busy; a cheap one waits for a single worker.
        assert_eq!(pool(4.0, 0.0).workers(&goal("worker=0.31/h,trainer=8/h"), 0, 100, 1.0), 4);
        assert_eq!(pool(4.0, 0.0).workers(&goal("worker=1/h,trainer=0/h"), 1, 100, 1.0), 1);
        assert!(goal("trainer=8/h").check().unwrap_err().to_string().contains("write worker=0.31/h"));
    }
}
