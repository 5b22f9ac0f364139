//! What a choice of a cache rests on: measured stores, the cuts of a query, and the work to come.

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::error::at_least;

/// A store as it was measured, with as many requests at a time as the feed makes.
///
/// Cachew fits one curve for one kind of store, once; here the caller measures the store that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Store {
    /// Bytes read per second while a request runs.
    pub bytes_per_second: f64,
    /// Bytes written per second. Unused for the source.
    pub written_bytes_per_second: f64,
    /// Seconds that each request adds, beyond its bytes: latency by the number of requests at a time.
    pub seconds_per_request: f64,
    /// Bytes that one request brings.
    pub bytes_per_request: f64,
}

impl Store {
    /// Seconds to read so many bytes.
    pub(crate) fn reading(&self, bytes: f64) -> f64 {
        bytes / self.bytes_per_second + bytes / self.bytes_per_request * self.seconds_per_request
    }

    /// Seconds to write so many bytes.
    pub(crate) fn writing(&self, bytes: f64) -> f64 {
        bytes / self.written_bytes_per_second + bytes / self.bytes_per_request * self.seconds_per_request
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        at_least(1.0, "bytes_per_second", self.bytes_per_second)?;
        at_least(1.0, "written_bytes_per_second", self.written_bytes_per_second)?;
        at_least(0.0, "seconds_per_request", self.seconds_per_request)?;
        at_least(1.0, "bytes_per_request", self.bytes_per_request).map(drop)
    }
}

/// A place in a query where its rows may be kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cut {
    /// The operator whose output is kept, or "source".
    pub name: String,
    /// Core-seconds to compute a sample from the source up to here.
    pub compute_seconds_per_sample: f64,
    /// Bytes of a sample as it is kept here.
    pub bytes_per_sample: f64,
    /// Whether rows are never kept here: what is random would be the same in every epoch, and a local file is as near
    /// as a copy of it.
    pub never_kept: bool,
}

/// The work for which something may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Samples of an epoch.
    pub samples: f64,
    /// Epochs that this job will still read, the first of which fills the cache.
    pub epochs_to_come: u32,
    /// Other jobs that read the same prefix as often, after it was kept.
    pub other_jobs: u32,
    /// Samples per second that the trainers take when they never wait.
    pub trainers_samples_per_second: f64,
    /// Trainers that wait for the samples, each with its own price.
    pub trainers: u32,
    /// Cores that compute the feed. A [`Job`](crate::Job) does without: they are what its plan decides.
    #[serde(default)]
    pub cores: f64,
    /// Cores of one worker, which has the price of a worker.
    pub cores_per_worker: f64,
}

impl Workload {
    /// How often an epoch is read in all.
    pub(crate) fn passes(&self) -> f64 {
        f64::from(self.epochs_to_come.max(1)) * (1.0 + f64::from(self.other_jobs))
    }

    /// Fails unless all but the cores are valid.
    pub(crate) fn check(&self) -> Result<(), Error> {
        at_least(1.0, "samples", self.samples)?;
        at_least(1e-6, "trainers_samples_per_second", self.trainers_samples_per_second)?;
        at_least(1e-3, "cores_per_worker", self.cores_per_worker).map(drop)
    }
}

/// All that a choice of a cache rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Where rows may be kept: the source first, the whole query last.
    pub cuts: Vec<Cut>,
    /// The store that the source is read from.
    pub source: Store,
    /// The store that would keep rows.
    pub cache: Store,
    /// The work to come.
    pub workload: Workload,
    /// The most bytes that may be kept.
    pub limit_bytes: f64,
}

impl Measured {
    pub(crate) fn check(&self) -> Result<(), Error> {
        check_cuts(&self.cuts)?;
        self.source.check()?;
        self.cache.check()?;
        self.workload.check()?;
        at_least(1e-3, "cores", self.workload.cores)?;
        at_least(0.0, "limit_bytes", self.limit_bytes).map(drop)
    }
}

/// Fails unless the cuts begin with the source and each later one takes as long or longer to reach.
pub(crate) fn check_cuts(cuts: &[Cut]) -> Result<(), Error> {
    if cuts.is_empty() {
        return Err(Error::new("there are no cuts", "give the source as the first and the whole query as the last"));
    }
    for cut in cuts {
        at_least(0.0, "compute_seconds_per_sample", cut.compute_seconds_per_sample)?;
        at_least(0.0, "bytes_per_sample", cut.bytes_per_sample)?;
    }
    let wrong = cuts.windows(2).find(|pair| pair[1].compute_seconds_per_sample < pair[0].compute_seconds_per_sample);
    match wrong.and_then(|pair| Some((pair.first()?, pair.last()?))) {
        Some((before, after)) => Err(Error::new(
            format!("cut \"{}\" takes less time to reach than \"{}\" before it", after.name, before.name),
            "give the cuts in the order of the query, with their times from the source",
        )),
        None => Ok(()),
    }
}
