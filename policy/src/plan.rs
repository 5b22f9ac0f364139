//! Before a job runs: how many workers, how many local cores, what is kept, in which order, and where the last step
//! runs, decided together.
//!
//! One at a time, these decisions are wrong for each other: a cache is worth less where idle cores compute for nothing,
//! and workers are too many where a cache will do their work from the second epoch on. Cachew (ATC 2022) decides what
//! is kept and then counts workers; Pecan (ATC 2024) counts workers and then moves them, and keeps nothing.

use serde::{Deserialize, Serialize};

use crate::choice::{Candidate, Paid, Space};
use crate::placement::Flow;
use crate::search::Kinds;
use crate::{Choice, Error, Job, Prices, Sureness};

/// What a job should do, and what it was compared with. It displays as one line of plain English.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The best. With prices it costs least money over all passes. Without, trainers lose at most the bound of their
    /// time in a later epoch, with the fewest workers, then the least kept, then the fewest local cores; where the
    /// bound cannot be met, all passes take the least time.
    pub chosen: Choice,
    /// The best of another kind: what differs in the order, in the cut, or in whether local cores compute.
    pub runner_up: Option<Choice>,
    /// Samples per second that trainers take when they never wait.
    pub demand: f64,
    /// Samples per second of one worker in a later epoch.
    pub per_worker: f64,
    /// What would change the decision.
    pub changes: Changes,
    /// The fewest and the most workers in a later epoch that the times of operators ask for, if their error is given.
    pub workers_range: Option<(u32, u32)>,
    /// How well those times are known, as the job says.
    pub sureness: Option<Sureness>,
}

/// What would change a decision, with all else as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Changes {
    /// Another worker is needed if the trainers' steps take less than this, in seconds.
    pub more_workers_below_step_seconds: Option<f64>,
    /// One worker less is enough if the trainers' steps take more than this, in seconds.
    pub fewer_workers_above_step_seconds: Option<f64>,
    /// The runner-up costs as much at this price of a worker for a second, if prices were given.
    pub runner_up_at_worker_price: Option<f64>,
    /// The runner-up costs as much with so many epochs to come, if prices were given.
    pub runner_up_at_epochs: Option<f64>,
}

/// Decides how a job should run.
///
/// Money counts only with `prices`, all three of them.
///
/// ```
/// use forebay_policy::{Job, plan};
///
/// // A sample takes 8 ms of a core to decode, and trainers take 1,900 of them a second.
/// let job: Job = serde_json::from_str(r#"{
///     "orders": [{"name": "exact", "cuts": [
///         {"name": "source", "compute_seconds_per_sample": 0, "bytes_per_sample": 110e3, "never_kept": false},
///         {"name": "decode", "compute_seconds_per_sample": 7e-3, "bytes_per_sample": 150e3, "never_kept": false},
///         {"name": "crop", "compute_seconds_per_sample": 8e-3, "bytes_per_sample": 150e3, "never_kept": true}
///     ]}],
///     "source": {"bytes_per_second": 1e9, "written_bytes_per_second": 1e9,
///                "seconds_per_request": 1e-3, "bytes_per_request": 8e6},
///     "cache": {"bytes_per_second": 2e9, "written_bytes_per_second": 1e9,
///               "seconds_per_request": 0, "bytes_per_request": 8e6},
///     "workload": {"samples": 1.28e6, "epochs_to_come": 90, "other_jobs": 0,
///                  "trainers_samples_per_second": 1900, "trainers": 1, "cores_per_worker": 4},
///     "samples_per_step": 256,
///     "limit_bytes": 0,
///     "host": {"host_cores": 12, "trainer_cores": 8},
///     "wire": {"bytes_per_second": 1.2e9, "sending_seconds_per_byte": 2e-10, "receiving_seconds_per_byte": 2e-10},
///     "workers": {"least": 0, "most": 32}
/// }"#).expect("a job");
/// let alone = plan(&job, None)?;
/// assert_eq!((alone.chosen.configuration.workers, alone.chosen.configuration.local_cores), (3, 4));
/// // With room for what was decoded, idle cores are enough from the second epoch on.
/// let with_cache = plan(&Job { limit_bytes: 300e9, ..job }, None)?;
/// assert_eq!(with_cache.chosen.configuration.workers, 0);
/// # Ok::<(), forebay_policy::Error>(())
/// ```
///
/// # Errors
///
/// A value is no finite number of its range, nothing could compute, or a price is missing.
pub fn plan(job: &Job, prices: Option<&Prices>) -> Result<Plan, Error> {
    job.check()?;
    let space = Space::new(job, prices)?;
    let Some((chosen, runner_up)) = Kinds::search(&space).chosen() else {
        return Err(Error::new("no configuration can be computed", "allow workers, or local cores"));
    };
    let work = if space.passes > 1.0 { space.works(&chosen.kept).1 } else { space.works(&chosen.kept).0 };
    let with_error = |sureness: Sureness| {
        let workers = |factor: f64| wanted(&space, &chosen, 1.0, factor);
        let error = sureness.error.min(0.99);
        (workers(1.0 - error).min(chosen.later.workers), workers(1.0 + error).max(chosen.later.workers))
    };
    Ok(Plan {
        chosen: chosen.choice(&space),
        runner_up: runner_up.map(|other| other.choice(&space)),
        demand: job.workload.trainers_samples_per_second,
        per_worker: work.worker_rate(job),
        changes: changes(&space, &chosen, runner_up.as_ref()),
        workers_range: job.sureness.map(with_error),
        sureness: job.sureness,
    })
}

/// The workers that a later epoch of a candidate would have if trainers were `faster` times as fast, and all operators
/// took `longer` times as long.
fn wanted(space: &Space, candidate: &Candidate, faster: f64, longer: f64) -> u32 {
    let mut job = space.job.clone();
    job.workload.trainers_samples_per_second *= faster;
    for cut in job.orders.iter_mut().flat_map(|order| &mut order.cuts) {
        cut.compute_seconds_per_sample *= longer;
    }
    if let Some(finish) = &mut job.finish {
        finish.seconds_per_sample *= longer;
    }
    let space = Space { job: &job, prices: space.prices, passes: space.passes };
    space.best_workers(candidate.kept, candidate.local_cores).map_or(0, |candidate| candidate.later.workers)
}

fn changes(space: &Space, chosen: &Candidate, runner_up: Option<&Candidate>) -> Changes {
    let job = space.job;
    let step_seconds = job.samples_per_step / job.workload.trainers_samples_per_second;
    let workers = chosen.later.workers;
    // Between a hundredth and a hundred times the speed.
    let boundary = |changes: &dyn Fn(u32) -> bool, mut yes: f64| {
        let mut no: f64 = 1.0;
        let holds = |faster: f64| changes(wanted(space, chosen, faster, 1.0));
        if !holds(yes) {
            return None;
        }
        for _ in 0..20 {
            let middle = (no * yes).sqrt();
            if holds(middle) { yes = middle } else { no = middle }
        }
        Some(step_seconds / yes)
    };
    let mut changes = Changes {
        more_workers_below_step_seconds: boundary(&|wanted| wanted > workers, 100.0),
        fewer_workers_above_step_seconds: boundary(&|wanted| wanted < workers, 0.01),
        ..Changes::default()
    };
    if let (Some(other), Some(paid)) = (runner_up, &space.prices) {
        changes.runner_up_at_epochs = epochs_of_equality(space, paid, chosen, other);
        // Both sums of money are straight lines in the price.
        let without = |one: &Candidate| space.standing(paid, &one.kept) * one.seconds;
        let price = (without(other) - without(chosen)) / (chosen.worker_seconds - other.worker_seconds);
        changes.runner_up_at_worker_price = Some(price).filter(|price| price.is_finite() && *price >= 0.0);
    }
    changes
}

/// The number of epochs of this job at which two candidates cost the same.
fn epochs_of_equality(space: &Space, paid: &Paid, chosen: &Candidate, other: &Candidate) -> Option<f64> {
    let costs = |one: &Candidate| {
        let second = |flow: &Flow| space.standing(paid, &one.kept) + paid.worker * f64::from(flow.workers);
        let later = second(&one.later) * space.job.workload.samples / one.later.rate.max(1e-15);
        (second(&one.first) * one.first_seconds, later)
    };
    let ((first, later), (other_first, other_later)) = (costs(chosen), costs(other));
    let passes = 1.0 + (other_first - first) / (later - other_later);
    let epochs = passes / (1.0 + f64::from(space.job.workload.other_jobs));
    Some(epochs).filter(|epochs| epochs.is_finite() && *epochs >= 1.0 && *epochs < 1e6)
}
