//! A job that is planned before it runs: what was measured of it, and what may be decided.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::error::at_least;
use crate::stores::check_cuts;
use crate::{Cut, Error, Store, Workload};

/// All that a [`Plan`](crate::Plan) rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Orders of the query's operators to choose from: the exact one first, then those that the user allows.
    pub orders: Vec<Order>,
    /// The store that the source is read from.
    pub source: Store,
    /// The store that would keep rows.
    pub cache: Store,
    /// The work to come.
    pub workload: Workload,
    /// Samples of a step of all trainers together.
    pub samples_per_step: f64,
    /// The most bytes that may be kept.
    pub limit_bytes: f64,
    /// The machine beside each trainer.
    pub host: TrainerHost,
    /// What lies between workers and a trainer.
    pub wire: Wire,
    /// The last step of the query, if it may run at the trainers too.
    #[serde(default)]
    pub finish: Option<Finish>,
    /// How many workers there may be.
    pub workers: WorkerLimits,
    /// The share of their time that trainers may lose, between 0 and 1: what the number of workers is chosen for if
    /// there are no prices.
    #[serde(default = "one_percent")]
    pub wait_at_most: f64,
    /// How well the times of the operators are known, if that was measured.
    #[serde(default)]
    pub sureness: Option<Sureness>,
}

/// One order of a query's operators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// A name for messages: "exact".
    pub name: String,
    /// Where rows may be kept: the source first, the whole query last. The bytes of the last are those that cross the
    /// wire, unless there is a [`Finish`].
    pub cuts: Vec<Cut>,
}

/// The part of a host that one trainer has: half of it where two trainers share one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainerHost {
    /// All cores, those that the trainer needs included.
    pub host_cores: f64,
    /// Cores that the trainer itself keeps busy while it never waits. The rest is idle and costs nothing; with fewer
    /// than these, its steps take longer in proportion.
    pub trainer_cores: f64,
}

/// The way from workers to one trainer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wire {
    /// Bytes per second that reach one trainer.
    pub bytes_per_second: f64,
    /// Core-seconds of a worker for each byte sent.
    pub sending_seconds_per_byte: f64,
    /// Core-seconds of a trainer's host for each byte received.
    pub receiving_seconds_per_byte: f64,
}

/// The last step of a query, such as normalising, after which samples have more bytes. Its seconds are part of those of
/// the last cut.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finish {
    /// Core-seconds for a sample.
    pub seconds_per_sample: f64,
    /// Bytes of a sample before it, which cross the wire if it runs at the trainer.
    pub bytes_before: f64,
    /// Bytes of a sample after it.
    pub bytes_after: f64,
}

/// How many workers there may be, each with the workload's `cores_per_worker`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerLimits {
    /// The fewest.
    pub least: u32,
    /// The most. With 0, local cores compute everything.
    pub most: u32,
}

/// How well the operators' times are known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sureness {
    /// Samples that were measured.
    pub samples: f64,
    /// Half the width of the 95 % interval of the core-seconds of a sample, relative to them. Choices that differ by
    /// less than the smaller of this and 3 % count as equal.
    pub error: f64,
}

fn one_percent() -> f64 {
    0.01
}

impl Job {
    /// Fails unless all values are valid and something may compute.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.orders.is_empty() {
            return Err(Error::new("there are no orders", "give the query's cuts as the order \"exact\""));
        }
        let mut names = BTreeSet::new();
        for order in &self.orders {
            if !names.insert(&order.name) {
                let message = format!("two orders have the name \"{}\"", order.name);
                return Err(Error::new(message, "give each order a name of its own"));
            }
            check_cuts(&order.cuts)?;
        }
        self.source.check()?;
        self.cache.check()?;
        self.workload.check()?;
        at_least(1e-6, "samples_per_step", self.samples_per_step)?;
        at_least(0.0, "limit_bytes", self.limit_bytes)?;
        at_least(1.0, "wire.bytes_per_second", self.wire.bytes_per_second)?;
        at_least(0.0, "sending_seconds_per_byte", self.wire.sending_seconds_per_byte)?;
        at_least(0.0, "receiving_seconds_per_byte", self.wire.receiving_seconds_per_byte)?;
        if let Some(sureness) = &self.sureness {
            at_least(0.0, "sureness.samples", sureness.samples)?;
            at_least(0.0, "sureness.error", sureness.error)?;
        }
        if !(self.wait_at_most > 0.0 && self.wait_at_most < 1.0) {
            return Err(Error::new(
                format!("the share of time that trainers may wait must lie between 0 and 1, got {}", self.wait_at_most),
                "write 0.01 for one percent",
            ));
        }
        self.check_machines()?;
        self.finish.iter().try_for_each(|finish| self.check_finish(finish))
    }

    fn check_machines(&self) -> Result<(), Error> {
        let TrainerHost { host_cores, trainer_cores } = self.host;
        let WorkerLimits { least, most } = self.workers;
        at_least(1e-3, "host_cores", host_cores)?;
        at_least(0.0, "trainer_cores", trainer_cores)?;
        if self.workload.trainers == 0 {
            return Err(Error::new("there are no trainers", "give \"trainers\" as the number of processes that train"));
        }
        if trainer_cores > host_cores {
            return Err(Error::new(
                format!("a trainer needs {trainer_cores} cores, but its host has {host_cores}"),
                "give \"host_cores\" as all cores of the host, those of the trainer included",
            ));
        }
        if least > most {
            return Err(Error::new(format!("workers must be a range such as 0..8, got {least}..{most}"), "write 0..8"));
        }
        if most == 0 && self.local_cores_most() == 0 {
            return Err(Error::new(
                "there is nothing to compute with: no workers and no local cores",
                "allow workers with \"most\", or give the cores of the trainers' hosts as \"host_cores\"",
            ));
        }
        Ok(())
    }

    fn check_finish(&self, finish: &Finish) -> Result<(), Error> {
        at_least(0.0, "finish.seconds_per_sample", finish.seconds_per_sample)?;
        at_least(0.0, "bytes_before", finish.bytes_before)?;
        at_least(0.0, "bytes_after", finish.bytes_after)?;
        for order in &self.orders {
            let mut seconds = order.cuts.iter().rev().map(|cut| cut.compute_seconds_per_sample);
            let whole = seconds.next().unwrap_or_default();
            let last = whole - seconds.next().unwrap_or_default();
            if finish.seconds_per_sample > last * (1.0 + 1e-9) {
                let seconds = finish.seconds_per_sample;
                return Err(Error::new(
                    format!("finishing takes {seconds} s, but the last cut of \"{}\" only {last} s", order.name),
                    "give a cut before the finish, and one after it whose time includes it",
                ));
            }
        }
        Ok(())
    }

    /// The most local cores beside one trainer.
    pub(crate) fn local_cores_most(&self) -> u32 {
        // The search tries each number, and no host has more.
        self.host.host_cores.min(1_024.0) as u32
    }
}
