//! Where a pass is computed, and how fast it goes: workers and local cores share the samples, trainers' hosts receive
//! and finish them, and the slowest resource decides.
//!
//! Whoever is free takes the next samples, so workers and local cores share them in proportion to what each could
//! compute. A trainer's host is one pool of cores: the trainer, local cores, receiving and finishing draw on it, and
//! what they ask for beyond its cores stretches the trainer's steps. Pecan (ATC 2024) finds the same by trial, one
//! worker at a time, each for 500 batches.

use serde::{Deserialize, Serialize};

use crate::Job;
use crate::costs::Pass;

/// What keeps an epoch from being shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    /// Trainers: nothing could be better.
    Trainers,
    /// Workers, with local cores if there are any.
    Workers,
    /// Local cores, without workers.
    LocalCores,
    /// The way from workers to a trainer.
    Wire,
    /// The cores of trainers' hosts, for which the trainers' own steps compete.
    TrainerHosts,
    /// The store of the source.
    Source,
    /// The store that keeps rows.
    Cache,
}

/// Where the last step of a query runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// With all other steps.
    Worker,
    /// At the trainer, after the wire.
    Trainer,
}

/// What a sample asks for, on average over a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// Core-seconds of a worker or of a local core.
    pub(crate) compute: f64,
    /// Core-seconds of finishing at the trainer.
    pub(crate) finish: f64,
    /// Bytes that cross the wire if a worker computes the sample.
    pub(crate) wire_bytes: f64,
    /// Samples per second that the source gives, and the cache.
    pub(crate) stores: (f64, f64),
}

/// How a pass goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) workers: u32,
    /// Samples per second of all trainers.
    pub(crate) rate: f64,
    /// The share of samples that local cores compute.
    pub(crate) local_share: f64,
    pub(crate) bottleneck: Bottleneck,
}

impl Work {
    /// The work of a pass in which `finished` is the share of samples that are finished where they are computed.
    pub(crate) fn new(job: &Job, order: usize, pass: &Pass, finished: f64) -> Self {
        let samples = job.workload.samples;
        let compute = pass.cpu_seconds / samples;
        let per_second = |seconds: f64| if seconds > 0.0 { samples / seconds } else { f64::INFINITY };
        let stores = (per_second(pass.source_seconds(&job.source)), per_second(pass.cache_seconds(&job.cache)));
        let (finish, wire_bytes) = match &job.finish {
            Some(finish) => (
                (1.0 - finished) * finish.seconds_per_sample,
                finished * finish.bytes_after + (1.0 - finished) * finish.bytes_before,
            ),
            None => (0.0, job.orders[order].cuts.last().map_or(0.0, |cut| cut.bytes_per_sample)),
        };
        let compute = (compute - finish).max(0.0);
        Self { compute, finish, wire_bytes, stores }
    }

    /// Core-seconds of a worker for a sample that it computes and sends.
    pub(crate) fn at_worker(&self, job: &Job) -> f64 {
        self.compute + self.wire_bytes * job.wire.sending_seconds_per_byte
    }

    /// Core-seconds of a trainer's host for a sample, beside those of the trainer.
    pub(crate) fn at_host(&self, job: &Job, local_share: f64) -> f64 {
        let received = self.wire_bytes * job.wire.receiving_seconds_per_byte;
        local_share * self.compute + (1.0 - local_share) * received + self.finish
    }

    /// Samples per second of one worker.
    pub(crate) fn worker_rate(&self, job: &Job) -> f64 {
        job.workload.cores_per_worker / self.at_worker(job).max(1e-15)
    }

    /// How the pass goes with so many workers, and so many local cores beside each trainer.
    pub(crate) fn flow(&self, job: &Job, local_cores: u32, workers: u32) -> Flow {
        let trainers = f64::from(job.workload.trainers);
        let demand = job.workload.trainers_samples_per_second;
        let computed = f64::from(workers) * self.worker_rate(job);
        let carried = if workers == 0 { 0.0 } else { trainers * job.wire.bytes_per_second / self.wire_bytes.max(1e-9) };
        let remote = computed.min(carried);
        let local = trainers * f64::from(local_cores) / self.compute.max(1e-15);
        let share = |local: f64| if local > 0.0 { local / (local + remote) } else { 0.0 };
        let beside = |local_share| Host::new(job, self, local_cores, local_share);
        // While trainers step on a crowded host, its local cores are slower too, and leave more to workers.
        let crowded = beside(share(local)).stretch(demand, demand);
        let local_share = share(local / crowded);
        let host = beside(local_share);
        let slowed = local * (host.stretch(demand, demand.min(local + remote)) - 1.0) / demand;
        let makers = match workers {
            0 => Bottleneck::LocalCores,
            _ if carried < computed => Bottleneck::Wire,
            _ => Bottleneck::Workers,
        };
        let (rate, bottleneck) = [
            (self.stores.0, Bottleneck::Source),
            (self.stores.1, Bottleneck::Cache),
            ((remote + local) / (1.0 + slowed), makers),
            (demand / host.stretch(demand, demand), Bottleneck::TrainerHosts),
        ]
        .into_iter()
        .fold((demand, Bottleneck::Trainers), |least, next| if next.0 < least.0 { next } else { least });
        // What costs a thousandth limits nothing.
        let bottleneck = if rate < 0.999 * demand { bottleneck } else { Bottleneck::Trainers };
        Flow { workers, rate, local_share, bottleneck }
    }

    /// The fewest workers with which the pass goes as fast as this, or as fast as any number lets it.
    pub(crate) fn fewest(&self, job: &Job, local_cores: u32, rate: f64) -> Flow {
        let flow = |workers| self.flow(job, local_cores, workers);
        let enough = rate.min(flow(job.workers.most).rate) * (1.0 - 1e-12);
        flow(first_with(job, local_cores, |workers| flow(workers).rate >= enough).unwrap_or(job.workers.most))
    }

    /// The number of workers with which the pass costs least, if a second of it costs `standing`, and each worker
    /// `worker` more.
    pub(crate) fn cheapest(&self, job: &Job, local_cores: u32, standing: f64, worker: f64) -> Flow {
        let flow = |workers| self.flow(job, local_cores, workers);
        let cost = |flow: &Flow| (standing + worker * f64::from(flow.workers)) / flow.rate.max(1e-15);
        let is_no_better = |workers: u32| cost(&flow(workers)) <= cost(&flow(workers.saturating_add(1)));
        // The rate is concave in the number of workers, so that once one more is no better, none after it is.
        let turn = first_with(job, local_cores, is_no_better).unwrap_or(job.workers.most);
        let fastest = self.fewest(job, local_cores, f64::INFINITY);
        let least = least(job, local_cores);
        (turn.saturating_sub(1).max(least)..=turn.saturating_add(1).min(job.workers.most))
            .map(flow)
            .chain([fastest])
            .min_by(|a, b| cost(a).total_cmp(&cost(b)).then(a.workers.cmp(&b.workers)))
            .unwrap_or(fastest)
    }
}

/// The cores of one trainer's host, and what asks for them beside the trainer.
struct Host {
    cores: f64,
    trainer: f64,
    /// Local cores that may be busy.
    local: f64,
    local_share: f64,
    /// By how many deviations the most crowded of all hosts lies above the mean: all trainers wait for it.
    slowest: f64,
    /// Core-seconds for a sample of all trainers: of computing, and of receiving and finishing.
    seconds: (f64, f64),
}

impl Host {
    fn new(job: &Job, work: &Work, local_cores: u32, local_share: f64) -> Self {
        let trainers = f64::from(job.workload.trainers);
        let computing = local_share * work.compute;
        let receiving = work.at_host(job, local_share) - computing;
        Self {
            cores: job.host.host_cores,
            trainer: job.host.trainer_cores,
            local: f64::from(local_cores),
            local_share,
            slowest: LOGISTIC * ((trainers - 0.375) / 0.625).ln(),
            seconds: (computing / trainers, receiving / trainers),
        }
    }

    /// How many times as long a step takes if trainers would take samples at the rate of `demand`, and receive them at
    /// the rate of `arriving`. What runs beside a longer step is longer there too, so that as much of it runs at a time
    /// as if neither were slowed.
    ///
    /// How many are busy varies from moment to moment, each local core on its own, and so does what arrives: a step is
    /// longer whenever they are more than the idle cores, even if they are fewer in the mean.
    fn stretch(&self, demand: f64, arriving: f64) -> f64 {
        let busy = (demand * self.seconds.0).min(self.local);
        let received = arriving * self.seconds.1;
        let idle = self.cores - self.trainer;
        // Steps come regularly, so that of tasks that follow each other one more or less runs at a time. Who computes a
        // batch is chance, by which hosts differ.
        let regular = |mean: f64| mean.min(0.25);
        let free = if self.local > 0.0 { (1.0 - busy / self.local).max(0.0) } else { 0.0 };
        let chance = free * busy * (1.0 - self.local_share);
        let computing = chance + free * regular(busy);
        let receiving = received * self.local_share + regular(received);
        if self.local + received + 3.0 * receiving.sqrt() <= idle {
            return 1.0;
        }
        let mean = busy + received - idle + self.slowest * chance.sqrt();
        1.0 + mean_excess(mean, (computing + receiving).sqrt()) / self.cores
    }
}

/// The scale of the logistic distribution that lies closest to the normal one of deviation 1.
const LOGISTIC: f64 = 0.588;

/// The mean of the positive part of a normal variable.
fn mean_excess(mean: f64, deviation: f64) -> f64 {
    let scale = deviation * LOGISTIC;
    match mean / scale.max(1e-12) {
        far if far > 30.0 => mean,
        far if far < -30.0 => 0.0,
        far => scale * far.exp().ln_1p(),
    }
}

/// The fewest workers that can be tried: something has to compute.
fn least(job: &Job, local_cores: u32) -> u32 {
    job.workers.least.max(u32::from(local_cores == 0)).min(job.workers.most)
}

/// The first number of workers for which this holds, if it holds for all above it.
fn first_with(job: &Job, local_cores: u32, holds: impl Fn(u32) -> bool) -> Option<u32> {
    let (mut low, mut high) = (least(job, local_cores), job.workers.most);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) { high = middle } else { low = middle + 1 }
    }
    holds(low).then_some(low)
}
