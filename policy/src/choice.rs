//! One way to run a job, and what it would do.

use serde::{Deserialize, Serialize};

use crate::costs::Pass;
use crate::placement::{Flow, Work};
use crate::prices::SECONDS_PER_MONTH;
use crate::{Bottleneck, Error, Job, Place, Prices};

/// One way to run a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// The order of the operators.
    pub order: String,
    /// The cut whose rows are kept. `None` keeps nothing.
    pub cut: Option<String>,
    /// The share of the samples that is kept.
    pub share: f64,
    /// Where the last step runs, if the job has a [`Finish`](crate::Finish). Rows kept at the last cut are finished
    /// before they are kept.
    pub finish_at: Place,
    /// Cores that compute beside each trainer.
    pub local_cores: u32,
    /// Workers in the first epoch, which fills the cache.
    pub first_workers: u32,
    /// Workers in each later epoch.
    pub workers: u32,
}

/// A configuration, and what it would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// What would run.
    pub configuration: Configuration,
    /// Seconds of a step in a later epoch.
    pub seconds_per_step: f64,
    /// The share of their time that trainers lose in a later epoch: they wait, or their steps take longer because
    /// others use their cores.
    pub waited: f64,
    /// The share of samples that local cores compute in a later epoch.
    pub local_share: f64,
    /// Core-seconds of all workers in a later epoch.
    pub worker_cpu_seconds: f64,
    /// Core-seconds of all trainers' hosts in a later epoch, without those of the trainers themselves.
    pub host_cpu_seconds: f64,
    /// Bytes that a later epoch reads of the source.
    pub source_bytes: f64,
    /// Bytes that a later epoch reads of the cache.
    pub cache_bytes: f64,
    /// Bytes from workers to trainers in a later epoch.
    pub wire_bytes: f64,
    /// Bytes kept.
    pub kept_bytes: f64,
    /// Seconds of the first epoch.
    pub first_epoch_seconds: f64,
    /// Seconds of each later epoch. Without later epochs, all that is said of them is said of the first.
    pub epoch_seconds: f64,
    /// Seconds of all passes of all jobs.
    pub total_seconds: f64,
    /// Seconds of all workers over all passes, each counted for as long as it is there.
    pub worker_seconds: f64,
    /// What all passes cost, if prices were given: trainers, workers, and what is kept, for as long as each is there.
    pub money: Option<f64>,
    /// What keeps a later epoch from being shorter.
    pub bottleneck: Bottleneck,
}

impl Job {
    /// What a configuration would do. Money counts only with `prices`, all three of them.
    ///
    /// # Errors
    ///
    /// The job or a price is invalid, or the configuration names what the job does not have.
    pub fn estimate(&self, configuration: &Configuration, prices: Option<&Prices>) -> Result<Choice, Error> {
        self.check()?;
        let space = Space::new(self, prices)?;
        let order = self.orders.iter().position(|order| order.name == configuration.order);
        let unknown =
            |what: &str, name: &str| Error::new(format!("unknown {what} \"{name}\""), "use a name of the job");
        let order = order.ok_or_else(|| unknown("order", &configuration.order))?;
        let cut = |name: &String| {
            let at = self.orders[order].cuts.iter().position(|cut| cut.name == *name);
            at.ok_or_else(|| unknown("cut", name))
        };
        let cut = configuration.cut.as_ref().map(cut).transpose()?;
        let Configuration { share, finish_at, local_cores, first_workers, workers, .. } = *configuration;
        if !(0.0..=1.0).contains(&share) {
            return Err(Error::new(
                format!("the share must lie between 0 and 1, got {share}"),
                "write 1 for all samples",
            ));
        }
        if local_cores == 0 && (first_workers == 0 || workers == 0) {
            return Err(Error::new("nothing computes: no workers and no local cores", "give one of the two"));
        }
        let kept = Kept { order, cut, share: if cut.is_some() { share } else { 0.0 }, finish_at };
        let (first, later) = space.works(&kept);
        let flows = (first.flow(self, local_cores, first_workers), later.flow(self, local_cores, workers));
        Ok(space.candidate(kept, local_cores, flows).choice(&space))
    }
}

/// What is kept, and what else decides the work of a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) order: usize,
    pub(crate) cut: Option<usize>,
    pub(crate) share: f64,
    pub(crate) finish_at: Place,
}

/// A job that was checked, with its prices.
pub(crate) struct Space<'a> {
    pub(crate) job: &'a Job,
    pub(crate) prices: Option<Paid>,
    pub(crate) passes: f64,
}

/// Prices for a second: of all trainers, of one worker, and of keeping a byte.
#[derive(Clone, Copy)]
pub(crate) struct Paid {
    pub(crate) trainers: f64,
    pub(crate) worker: f64,
    pub(crate) byte: f64,
}

/// A configuration by its numbers in the job, with what decides between configurations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) kept: Kept,
    pub(crate) local_cores: u32,
    pub(crate) first: Flow,
    pub(crate) later: Flow,
    pub(crate) kept_bytes: f64,
    pub(crate) first_seconds: f64,
    /// Of all passes.
    pub(crate) seconds: f64,
    pub(crate) worker_seconds: f64,
    pub(crate) money: Option<f64>,
}

impl<'a> Space<'a> {
    pub(crate) fn new(job: &'a Job, prices: Option<&Prices>) -> Result<Self, Error> {
        let paid = |prices: &Prices| -> Result<Paid, Error> {
            Ok(Paid {
                worker: prices.worker()?,
                trainers: prices.trainer()? * f64::from(job.workload.trainers),
                byte: prices.storage()? / 1e9 / SECONDS_PER_MONTH,
            })
        };
        Ok(Self { job, prices: prices.map(paid).transpose()?, passes: job.workload.passes() })
    }

    fn amounts(&self, kept: &Kept) -> (Pass, Pass) {
        let cuts = &self.job.orders[kept.order].cuts;
        Pass::first_and_later(cuts, self.job.workload.samples, kept.cut.map(|at| &cuts[at]), kept.share)
    }

    /// The work of the first pass, and of each later one.
    pub(crate) fn works(&self, kept: &Kept) -> (Work, Work) {
        let (first, later) = self.amounts(kept);
        let is_last = kept.cut.is_some_and(|at| at + 1 == self.job.orders[kept.order].cuts.len());
        let finished = match kept.finish_at {
            Place::Worker => 1.0,
            Place::Trainer if is_last => kept.share,
            Place::Trainer => 0.0,
        };
        let work = |pass| Work::new(self.job, kept.order, pass, finished);
        (work(&first), work(&later))
    }

    pub(crate) fn kept_bytes(&self, kept: &Kept) -> f64 {
        let bytes = kept.cut.map_or(0.0, |at| self.job.orders[kept.order].cuts[at].bytes_per_sample);
        kept.share * bytes * self.job.workload.samples
    }

    /// What a second costs, without workers.
    pub(crate) fn standing(&self, paid: &Paid, kept: &Kept) -> f64 {
        paid.trainers + paid.byte * self.kept_bytes(kept)
    }

    /// Seconds until trainers have the samples of their first step, each trainer's computed by one core.
    fn start(&self, kept: &Kept) -> f64 {
        let work = self.works(kept).0;
        self.job.samples_per_step / f64::from(self.job.workload.trainers) * (work.compute + work.finish)
    }

    pub(crate) fn candidate(&self, kept: Kept, local_cores: u32, (first, later): (Flow, Flow)) -> Candidate {
        let later = if self.passes > 1.0 { later } else { first };
        let seconds = |flow: &Flow| self.job.workload.samples / flow.rate.max(1e-15);
        let first_seconds = seconds(&first) + self.start(&kept);
        let rest = (self.passes - 1.0) * seconds(&later);
        let total = first_seconds + rest;
        let worker_seconds = f64::from(first.workers) * first_seconds + f64::from(later.workers) * rest;
        let money = |paid: &Paid| self.standing(paid, &kept) * total + paid.worker * worker_seconds;
        Candidate {
            kept,
            local_cores,
            first,
            later,
            kept_bytes: self.kept_bytes(&kept),
            first_seconds,
            seconds: total,
            worker_seconds,
            money: self.prices.as_ref().map(money),
        }
    }
}

impl Candidate {
    pub(crate) fn waited(&self, job: &Job) -> f64 {
        (1.0 - self.later.rate / job.workload.trainers_samples_per_second).clamp(0.0, 1.0)
    }

    pub(crate) fn choice(&self, space: &Space) -> Choice {
        let (job, kept, flow) = (space.job, &self.kept, &self.later);
        let samples = job.workload.samples;
        let order = &job.orders[kept.order];
        let (amounts, work) = match space.passes > 1.0 {
            true => (space.amounts(kept).1, space.works(kept).1),
            false => (space.amounts(kept).0, space.works(kept).0),
        };
        let remote = samples * (1.0 - flow.local_share);
        Choice {
            configuration: Configuration {
                order: order.name.clone(),
                cut: kept.cut.map(|at| order.cuts[at].name.clone()),
                share: kept.share,
                finish_at: kept.finish_at,
                local_cores: self.local_cores,
                first_workers: self.first.workers,
                workers: flow.workers,
            },
            seconds_per_step: job.samples_per_step / flow.rate.max(1e-15),
            waited: self.waited(job),
            local_share: flow.local_share,
            worker_cpu_seconds: remote * work.at_worker(job),
            host_cpu_seconds: samples * work.at_host(job, flow.local_share),
            source_bytes: amounts.source_bytes,
            cache_bytes: amounts.cache_bytes,
            wire_bytes: remote * work.wire_bytes,
            kept_bytes: self.kept_bytes,
            first_epoch_seconds: self.first_seconds,
            epoch_seconds: samples / flow.rate.max(1e-15),
            total_seconds: self.seconds,
            worker_seconds: self.worker_seconds,
            money: self.money,
            bottleneck: flow.bottleneck,
        }
    }
}
