//! What a plan is compared with: the best of all configurations by simulation, and policies that decide one thing each,
//! as their papers describe them. Each measures by running the simulation.

use std::collections::HashMap;

use forebay_policy::{Configuration, Job, Place, Prices};

use crate::training::{Run, Training};

/// Simulations of one job, each run once.
pub(crate) struct Lab<'a> {
    pub(crate) training: Training<'a>,
    pub(crate) prices: Prices,
    runs: HashMap<String, Run>,
    pub(crate) simulated: usize,
}

impl<'a> Lab<'a> {
    pub(crate) fn new(training: Training<'a>, prices: Prices) -> Self {
        Self { training, prices, runs: HashMap::new(), simulated: 0 }
    }

    pub(crate) fn run(&mut self, configuration: &Configuration, workers: u32) -> Run {
        let Configuration { order, cut, share, finish_at, local_cores, .. } = configuration;
        let key = format!("{order} {cut:?} {share} {finish_at:?} {local_cores} {workers}");
        if let Some(run) = self.runs.get(&key) {
            return *run;
        }
        self.simulated += 1;
        let run = self.training.run(configuration, workers);
        self.runs.insert(key, run);
        run
    }

    /// Seconds of a step in a later epoch.
    fn step(&mut self, configuration: &Configuration, workers: u32) -> f64 {
        let job = self.training.job;
        self.run(configuration, workers).later * job.samples_per_step / job.workload.samples
    }

    fn passes(&self) -> f64 {
        let workload = &self.training.job.workload;
        f64::from(workload.epochs_to_come) * f64::from(1 + workload.other_jobs)
    }

    /// What a second costs with what is kept, without workers.
    fn standing(&self, configuration: &Configuration) -> f64 {
        let job = self.training.job;
        let order = job.orders.iter().find(|order| order.name == configuration.order).expect("an order");
        let bytes = configuration
            .cut
            .as_ref()
            .map_or(0.0, |name| order.cuts.iter().find(|cut| cut.name == *name).expect("a cut").bytes_per_sample);
        let kept = bytes * configuration.share * job.workload.samples;
        let month = 30.0 * 24.0 * 3600.0;
        self.prices.trainer_per_second.expect("a price") * f64::from(job.workload.trainers)
            + self.prices.storage_per_gb_month.expect("a price") * kept / 1e9 / month
    }

    fn worker(&self) -> f64 {
        self.prices.worker_per_second.expect("a price")
    }

    /// What all passes cost.
    pub(crate) fn money(&mut self, configuration: &Configuration) -> f64 {
        let (standing, worker, passes) = (self.standing(configuration), self.worker(), self.passes());
        let first = self.run(configuration, configuration.first_workers).first;
        let later = self.run(configuration, configuration.workers).later;
        first * (standing + worker * f64::from(configuration.first_workers))
            + (passes - 1.0) * later * (standing + worker * f64::from(configuration.workers))
    }

    /// Seconds of all passes.
    pub(crate) fn seconds(&mut self, configuration: &Configuration) -> f64 {
        let first = self.run(configuration, configuration.first_workers).first;
        first + (self.passes() - 1.0) * self.run(configuration, configuration.workers).later
    }

    /// The cheapest configuration of all, but for those that cannot be: trainers never run faster than they can.
    pub(crate) fn cheapest(&mut self, shares: &[f64]) -> (f64, Configuration) {
        let job = self.training.job;
        let ideal = job.workload.samples / job.workload.trainers_samples_per_second;
        let (worker, passes) = (self.worker(), self.passes());
        let mut best: Option<(f64, Configuration)> = None;
        for configuration in all(job, shares) {
            let standing = self.standing(&configuration);
            let least = if configuration.local_cores == 0 { job.workers.least.max(1) } else { job.workers.least };
            let second = |workers: u32| standing + worker * f64::from(workers);
            let (mut first, mut later) = ((f64::INFINITY, least), (f64::INFINITY, least));
            for workers in least..=job.workers.most {
                // Nothing that follows can cost less than what was found.
                let bound = 0.995 * ideal * second(workers);
                let whole = bound.min(first.0) + (passes - 1.0) * bound.min(later.0);
                if (bound >= first.0 && bound >= later.0) || best.as_ref().is_some_and(|best| whole >= best.0) {
                    break;
                }
                let run = self.run(&configuration, workers);
                if run.first * second(workers) < first.0 {
                    first = (run.first * second(workers), workers);
                }
                if run.later * second(workers) < later.0 {
                    later = (run.later * second(workers), workers);
                }
            }
            let money = first.0 + (passes - 1.0) * later.0;
            if best.as_ref().is_none_or(|best| money < best.0) {
                best = Some((money, Configuration { first_workers: first.1, workers: later.1, ..configuration }));
            }
        }
        best.expect("a configuration")
    }

    /// Cachew's scaling (POLICIES.md 2.3): one more worker while a step gets shorter by more than 3 %.
    fn scaled(&mut self, configuration: &Configuration, is_first: bool) -> u32 {
        let job = self.training.job;
        let mut workers = job.workers.least.max(1);
        while workers < job.workers.most {
            let (now, more) = (self.run(configuration, workers), self.run(configuration, workers + 1));
            let (now, more) = if is_first { (now.first, more.first) } else { (now.later, more.later) };
            if 1.0 - more / now <= 0.03 {
                break;
            }
            workers += 1;
        }
        workers
    }

    /// Workers alone: nothing is kept, nothing runs beside trainers.
    pub(crate) fn workers_only(&mut self) -> Configuration {
        let plain = plain(self.training.job);
        let workers = self.scaled(&plain, false);
        Configuration { first_workers: workers, workers, ..plain }
    }

    /// Cachew's choice of a cache (POLICIES.md 2.4), by what one worker would take, and then its scaling.
    pub(crate) fn cachew(&mut self) -> Configuration {
        let job = self.training.job;
        let plain = plain(job);
        let cuts = &job.orders[0].cuts;
        let (samples, cores) = (job.workload.samples, job.workload.cores_per_worker);
        let read = |store: &forebay_policy::Store, bytes: f64| {
            bytes / store.bytes_per_second + bytes / store.bytes_per_request * store.seconds_per_request
        };
        let source = read(&job.source, samples * cuts[0].bytes_per_sample);
        let whole = source + samples * cuts[cuts.len() - 1].compute_seconds_per_sample / cores;
        let cached = cuts
            .iter()
            .filter(|cut| !cut.never_kept && samples * cut.bytes_per_sample <= job.limit_bytes)
            .map(|cut| {
                let saved = source + samples * cut.compute_seconds_per_sample / cores;
                (read(&job.cache, samples * cut.bytes_per_sample) + whole - saved, &cut.name)
            })
            .min_by(|a, b| a.0.total_cmp(&b.0));
        let kept = match cached {
            Some((seconds, name)) if seconds < 0.97 * whole => {
                Configuration { cut: Some(name.clone()), share: 1.0, ..plain }
            }
            _ => plain,
        };
        let (first_workers, workers) = (self.scaled(&kept, true), self.scaled(&kept, false));
        Configuration { first_workers, workers, ..kept }
    }

    /// Pecan's placement (POLICIES.md 2.6), from Cachew's number of workers.
    pub(crate) fn pecan(&mut self) -> Configuration {
        let job = self.training.job;
        let (trainers, worker) = (self.standing(&plain(job)), self.worker());
        let mut at = self.workers_only();
        let converged = self.step(&at, at.workers);
        loop {
            let before = (at.local_cores, at.workers);
            while f64::from(at.local_cores) < job.host.host_cores.floor() {
                let more = Configuration { local_cores: at.local_cores + 1, ..at.clone() };
                if self.step(&more, at.workers) > 1.03 * converged {
                    break;
                }
                at = more;
            }
            let least = if at.local_cores == 0 { job.workers.least.max(1) } else { job.workers.least };
            while at.workers > least {
                let cost = |step: f64, workers: u32| step * (trainers + worker * f64::from(workers));
                let fewer = at.workers - 1;
                if cost(self.step(&at, fewer), fewer) > cost(self.step(&at, at.workers), at.workers) {
                    break;
                }
                at.workers = fewer;
            }
            if before == (at.local_cores, at.workers) {
                return Configuration { first_workers: at.workers, ..at };
            }
        }
    }
}

/// Nothing is kept, and nothing decided.
pub(crate) fn plain(job: &Job) -> Configuration {
    Configuration {
        order: job.orders[0].name.clone(),
        cut: None,
        share: 0.0,
        finish_at: Place::Worker,
        local_cores: 0,
        first_workers: 0,
        workers: 0,
    }
}

/// All configurations but for the number of workers, with these shares of what fits the limit.
pub(crate) fn all(job: &Job, shares: &[f64]) -> Vec<Configuration> {
    let mut all = Vec::new();
    let places: &[Place] = if job.finish.is_some() { &[Place::Worker, Place::Trainer] } else { &[Place::Worker] };
    for order in &job.orders {
        let mut kept = vec![(None, 0.0)];
        for cut in order.cuts.iter().filter(|cut| !cut.never_kept) {
            let most = (job.limit_bytes / (cut.bytes_per_sample * job.workload.samples)).min(1.0);
            kept.extend(shares.iter().map(|share| (Some(cut.name.clone()), share * most)));
        }
        for (cut, share) in kept {
            for finish_at in places {
                for local_cores in 0..=job.host.host_cores as u32 {
                    all.push(Configuration {
                        order: order.name.clone(),
                        cut: cut.clone(),
                        share,
                        finish_at: *finish_at,
                        local_cores,
                        ..plain(job)
                    });
                }
            }
        }
    }
    all
}
