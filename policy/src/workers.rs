//! How many workers a cluster should have: a state machine over observations.
//!
//! The number follows from a model and is reached in one step: the load, in slots of a usual worker, is each feed's
//! demand divided by what a slot computes of it, summed over feeds, and [`wait_share`](crate::wait_share) says how
//! much more than that keeps trainers from waiting. tf.data service (2023) divides rates too, without variances, and
//! takes the largest feed instead of the sum; Cachew (ATC 2022) adds one worker at a time, so that 500 take 500 steps.
//!
//! What keeps the number still:
//!
//! - It grows when even the low end of the measured load asks for more: by itself if that load exceeds the capacity,
//!   and otherwise, where only variance asks for it, if measured waits may exceed the bound. It shrinks when the high
//!   end asks for less at half the bound of waits, in several observations in a row. Between the two is a band in which
//!   it stays.
//! - Nothing is decided while workers start, nor within a settling time after they came. If they do not come, the
//!   policy decides with those that are there.
//! - The wanted number does not depend on how many workers are lost: the program that starts workers replaces them.
//!
//! Workers that come and go by themselves, such as those beside trainers, are not counted. What they compute is taken
//! off what is needed.
//!
//! Where trainers wait although the model sees enough workers, the model is wrong: a slow network, windows that come
//! out of order. Then measured waits raise the number, unless that turns out not to help.

use serde::{Deserialize, Serialize};

use crate::correction::Correction;
use crate::decision::{Decision, Evidence, Reason, Why};
use crate::pool::{Pool, WorkerGoal};
use crate::rates::{Interval, Rates};
use crate::{Error, Observation, WorkerSeen};

/// Settings of a [`WorkerPolicy`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkerSettings {
    /// What the number is chosen for.
    pub goal: WorkerGoal,
    /// The fewest workers. With 0, nothing runs while no trainer reads.
    pub min: u32,
    /// The most workers.
    pub max: u32,
    /// Windows that may be ready for each slot, beyond the one that it computes.
    pub windows_ahead: f64,
    /// How long nothing is decided after a change, in seconds, counted from when its workers came.
    pub settle_seconds: f64,
    /// How long workers that were asked for are waited for.
    pub patience_seconds: f64,
    /// How long workers are kept for trainers that have stopped reading.
    pub idle_seconds: f64,
    /// How many observations in a row must ask for fewer workers.
    pub calm_observations: u32,
}

impl Default for WorkerSettings {
    fn default() -> Self {
        Self {
            goal: WorkerGoal::default(),
            min: 0,
            max: 8,
            windows_ahead: 1.0,
            settle_seconds: 30.0,
            patience_seconds: 120.0,
            idle_seconds: 600.0,
            calm_observations: 5,
        }
    }
}

/// A load that is known worse than this asks for no change.
const ERROR_MAX: f64 = 0.3;
/// Up to here the low end of the load is known well enough to ask for all workers, if it needs them.
const ERROR_MAX_FOR_ALL: f64 = 0.9;
/// Nothing is urgent about having fewer workers, so the load must be known this well, or the answer stay the same for
/// ten times as long.
const ERROR_MAX_FOR_FEWER: f64 = 0.05;

/// Files that a worker writes at a time.
const FILES_PER_WORKER: u32 = 2;

/// Decides the number of workers. It has no clock: time is what observations say.
///
/// ```
/// use forebay_policy::{Observation, WorkerPolicy, WorkerSettings};
///
/// let mut policy = WorkerPolicy::new(WorkerSettings::default())?;
/// let decision = policy.observe(&Observation::default());
/// assert_eq!(decision.workers, 0);
/// assert_eq!(decision.reason.to_string(), "0 workers: no trainer reads; this changes when one does");
/// # Ok::<(), forebay_policy::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct WorkerPolicy {
    settings: WorkerSettings,
    rates: Rates,
    /// The number that is wanted. Nothing before the first observation.
    target: Option<u32>,
    /// When the target changed.
    changed_at: f64,
    /// When as many workers as wanted were there for the first time since.
    arrived_at: Option<f64>,
    /// When as many workers as wanted were there for the last time.
    met_at: f64,
    /// How many observations in a row asked for fewer workers, and the most of what they asked for.
    calm: (u32, u32),
    /// What a worker has that is started now, in slots of a usual worker.
    usual: f64,
    correction: Correction,
    /// Whether the load was ever known. Before that, workers that come are welcome: they may have been there before
    /// this policy was.
    has_measured: bool,
    /// The workers that the files of jobs keep busy. The work costs the same on any number, and ends sooner on more.
    for_jobs: u32,
}

impl WorkerPolicy {
    /// Starts a policy.
    ///
    /// # Errors
    ///
    /// The settings contradict themselves, or the goal needs a price that is missing.
    pub fn new(settings: WorkerSettings) -> Result<Self, Error> {
        settings.goal.check()?;
        if settings.min > settings.max || settings.max == 0 {
            let WorkerSettings { min, max, .. } = settings;
            return Err(Error::new(format!("workers must be a range such as 0..8, got {min}..{max}"), "write 0..8"));
        }
        for (name, value) in [
            ("windows_ahead", settings.windows_ahead),
            ("settle_seconds", settings.settle_seconds),
            ("patience_seconds", settings.patience_seconds),
            ("idle_seconds", settings.idle_seconds),
        ] {
            crate::error::at_least(0.0, name, value)?;
        }
        Ok(Self {
            settings,
            rates: Rates::default(),
            target: None,
            changed_at: 0.0,
            arrived_at: None,
            met_at: 0.0,
            calm: (0, 0),
            usual: 1.0,
            correction: Correction::default(),
            has_measured: false,
            for_jobs: 0,
        })
    }

    /// Learns from an observation, and decides.
    pub fn observe(&mut self, seen: &Observation) -> Decision {
        let interval = self.rates.observe(seen);
        let now = self.rates.now();
        let names = self.live(seen);
        let capacities: Vec<f64> = names.iter().map(|(capacity, _)| *capacity).collect();
        let others: Vec<f64> = self.others(seen).collect();
        let live = u32::try_from(names.len()).unwrap_or(u32::MAX);
        let settings = self.settings;
        let here = live.clamp(settings.min, settings.max);
        let target = match self.target {
            Some(target) if self.has_measured => target,
            target => target.unwrap_or(here).max(here),
        };
        self.target = Some(target);
        if live >= target {
            self.met_at = now;
            self.arrived_at.get_or_insert(now);
        }
        // The median: one slow worker says little of the next one.
        self.usual = capacities.get(capacities.len() / 2).copied().unwrap_or(self.usual);
        let capacities = (&*capacities, others.iter().sum());
        let pool = Pool::new(&self.rates, capacities, self.usual, settings.windows_ahead, settings.idle_seconds);
        self.correction.forget_another_load(pool.load);
        let pool = pool.with_more_variance(self.correction.variance());
        // Until a job has ended, so that no worker is drained that writes the last files.
        self.for_jobs = match seen.files_left {
            0 => 0,
            files => files.div_ceil(FILES_PER_WORKER).min(settings.max).max(self.for_jobs),
        };
        let (wanted, why) = match self.choose(&pool, target, live, interval) {
            (wanted, _) if self.for_jobs > 0 && self.for_jobs >= wanted => (self.for_jobs, Why::Jobs),
            chosen => chosen,
        };
        if wanted != target {
            self.target = Some(wanted);
            (self.changed_at, self.arrived_at, self.calm) = (now, None, (0, 0));
            self.correction.restart();
        }
        let missing_for = now - self.met_at.max(self.changed_at);
        let is_short = live < wanted && wanted == target && missing_for >= settings.patience_seconds;
        let evidence = (!matches!(why, Why::Idle | Why::Jobs)).then(|| self.evidence(&pool, wanted)).flatten();
        let others = u32::try_from(others.len()).unwrap_or(u32::MAX);
        let reason = Reason { why, workers: wanted, live, others, is_short, evidence };
        let kept = usize::try_from(wanted).unwrap_or(usize::MAX);
        let drain = names.iter().skip(kept).rev().map(|(_, name)| (*name).to_owned()).collect();
        Decision { workers: wanted, drain, reason }
    }

    /// The wanted number and what decided it.
    fn choose(&mut self, pool: &Pool, target: u32, live: u32, interval: Option<Interval>) -> (u32, Why) {
        let WorkerSettings {
            goal, min, max, settle_seconds, patience_seconds, idle_seconds, calm_observations, ..
        } = self.settings;
        let now = self.rates.now();
        if pool.readers == 0.0 {
            // Trainers that were there before this policy was have time to come back, too.
            self.has_measured |= now >= idle_seconds;
            return (if self.has_measured { min } else { target }, Why::Idle);
        }
        let min = least(min, pool);
        if target < min {
            return (pool.likely(&goal, min, max), if pool.load > 0.0 { Why::Rates } else { Why::Measuring });
        }
        match self.arrived_at {
            None if now - self.changed_at < patience_seconds => return (target, Why::Starting),
            Some(arrived) if arrived > self.changed_at && now - arrived < settle_seconds => {
                return (target, Why::Settling);
            }
            _ => {}
        }
        if pool.error > ERROR_MAX || pool.load == 0.0 {
            // Where trainers could take many times what there can be, even the low end needs all of it.
            let needs_all = pool.error < ERROR_MAX_FOR_ALL
                && pool.load > 0.0
                && pool.scaled(1.0 - pool.error).workers(&goal, min, max, 1.0) == max;
            return if needs_all { (max, Why::Rates) } else { (target, Why::Measuring) };
        }
        self.has_measured = true;
        // Waits count when all workers are there and have computed a window ahead.
        let filled_at = self.arrived_at.unwrap_or(self.changed_at + patience_seconds)
            + settle_seconds.max(2.0 * pool.window_seconds);
        if let Some(interval) = interval.filter(|_| live >= target && now >= filled_at) {
            self.correction.add(interval);
        }
        if self.asks_for_more(&pool.scaled(1.0 - pool.error), target) {
            return (pool.likely(&goal, min, max), Why::Rates);
        }
        let bound = goal.wait_bound().max(pool.wait(target));
        if self.correction.learn(pool, target, bound) {
            let pool = pool.with_more_variance(self.correction.variance());
            // Nothing says yet that more help, so twice as many are enough for now.
            let (more, most) = (target.saturating_add(1).min(max), target.saturating_mul(2).min(max));
            return (pool.workers(&goal, more, most, 1.0), Why::Waits);
        }
        let fewer = pool.scaled(1.0 + pool.error).workers(&goal, min, max, 2.0);
        self.calm = match fewer < target && !pool.has_unknown {
            true => (self.calm.0 + 1, self.calm.1.max(fewer)),
            false => (0, 0),
        };
        let patience = if pool.error <= ERROR_MAX_FOR_FEWER { 1 } else { 10 };
        match self.calm {
            (observations, most) if observations >= calm_observations.max(1).saturating_mul(patience) => {
                (most, Why::Rates)
            }
            _ => (target, Why::Rates),
        }
    }

    /// Whether this load, the low end of what was measured, asks for more than `workers`. Where it fits into them, only
    /// variance does, and measured waits have to agree: a buffer that fills is a burst too, and no trainer waits for
    /// it.
    fn asks_for_more(&self, low: &Pool, workers: u32) -> bool {
        let WorkerSettings { goal, min, max, .. } = self.settings;
        let fits = low.load <= low.capacity(workers);
        (!fits || self.correction.may_wait(goal.wait_bound()))
            && low.workers(&goal, least(min, low), max, 1.0) > workers
    }

    /// Workers that are counted and not draining, the fastest first, and what each has in slots of a usual worker.
    fn live<'a>(&self, seen: &'a Observation) -> Vec<(f64, &'a str)> {
        let live = seen.workers.iter().filter(|worker| worker.managed && !worker.draining);
        let mut live: Vec<(f64, &str)> = live.map(|worker| (self.capacity(worker), worker.worker.as_str())).collect();
        live.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
        live
    }

    /// What each worker has that comes and goes by itself, in slots of a usual worker.
    fn others(&self, seen: &Observation) -> impl Iterator<Item = f64> {
        seen.workers.iter().filter(|worker| !worker.managed && !worker.draining).map(|worker| self.capacity(worker))
    }

    fn capacity(&self, worker: &WorkerSeen) -> f64 {
        f64::from(worker.slots.max(1)) * self.rates.speed(&worker.worker)
    }

    /// What the reason of a decision shows.
    fn evidence(&self, pool: &Pool, workers: u32) -> Option<Evidence> {
        if pool.load <= 0.0 {
            return None;
        }
        let WorkerSettings { goal, min, max, .. } = self.settings;
        let min = least(min, pool);
        let error = Some(pool.error).filter(|error| error.is_finite());
        let sure = error.unwrap_or(1.0).min(ERROR_MAX);
        // Where the wanted number changes: between a thousandth and a thousand times the demand.
        let boundary = |changes: &dyn Fn(f64) -> bool, (mut no, mut yes): (f64, f64)| {
            if !changes(yes) {
                return None;
            }
            for _ in 0..24 {
                let middle = (no * yes).sqrt();
                if changes(middle) { yes = middle } else { no = middle }
            }
            Some(pool.demand * yes)
        };
        let more = |factor: f64| self.asks_for_more(&pool.scaled(factor * (1.0 - sure)), workers);
        let fewer = |factor: f64| pool.scaled(factor * (1.0 + sure)).workers(&goal, min, max, 2.0) < workers;
        Some(Evidence {
            demand: pool.demand,
            per_worker: pool.demand / pool.load * self.usual,
            error,
            wait: pool.wait(workers),
            more_above: boundary(&more, (1e-3, 1e3)),
            fewer_below: boundary(&fewer, (1e3, 1e-3)),
        })
    }
}

/// The fewest workers while trainers read: rates are only measured where something is computed.
fn least(min: u32, pool: &Pool) -> u32 {
    min.max(u32::from(pool.others == 0.0))
}
