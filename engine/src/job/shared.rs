//! Jobs whose files the workers of a cluster write.
//!
//! The dispatcher's process claims and commits the job like any other process. Workers get a [`JobSpec`] beside the
//! feed's spec, and write the files that are leased to them.

use forebay_delivery::{Plan, WindowId};
use forebay_protocol::JobOptions;
use forebay_storage::artifact::{self, JobState};
use serde::{Deserialize, Serialize};

use super::files::JobFiles;
use super::partitions::Partitions;
use super::plan::JobPlan;
use super::{Claimed, Job, JobProgress, Materialized, claim, file_memory_bytes, output_format, short_hash};
use crate::error::{Error, ErrorKind, Result};
use crate::feed::{CostMeter, Feed};

/// What a worker needs to write files of a job, beside the feed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    id: String,
    url: String,
    generation: u64,
    options: JobOptions,
    windows_per_file: u32,
}

/// The files of a job as the windows of a feed's first epoch, for a dispatcher that leases them.
#[derive(Clone, Copy, Debug)]
pub struct FilePlan {
    files: u32,
    memory_bytes: u64,
}

impl Plan for FilePlan {
    fn windows(&self, _: u64) -> u32 {
        self.files
    }

    fn bytes(&self, _: WindowId) -> u64 {
        self.memory_bytes
    }
}

impl Job {
    /// The job's name among the feeds of a dispatcher: the same for the same files at the same place.
    pub fn name(&self) -> String {
        format!("job-{}-{}", self.id(), short_hash(self.url()))
    }

    /// The folder that it writes to, as an absolute path or URL.
    pub fn url(&self) -> &str {
        match &self.state {
            JobState::Committed(artifact) => artifact.url(),
            JobState::Open(job) => job.url(),
        }
    }

    /// The files, for a dispatcher.
    pub fn file_plan(&self) -> FilePlan {
        FilePlan { files: self.files(), memory_bytes: file_memory_bytes(self.files.feed.core()) }
    }

    /// The feed whose samples it writes.
    pub fn feed(&self) -> &Feed {
        &self.files.feed
    }

    /// Has `write` write the files, and commits them. `write` gets what workers need, and the numbers of the files that
    /// are there. If another process works on the job, waits until that has finished or is silent for 30 seconds.
    ///
    /// # Errors
    /// Those of [`run`](Self::run) and of `write`; `Data` if the job is done and a file has been lost since; `Internal`
    /// if files are missing when `write` has returned.
    pub async fn run_elsewhere<Written>(
        &self,
        progress: &JobProgress,
        write: impl FnOnce(JobSpec, Vec<u32>) -> Written,
    ) -> Result<Materialized>
    where
        Written: Future<Output = Result<()>>,
    {
        let (job, held) = match claim(self.stores(), &self.state, self.id(), |waits| progress.set_waits(waits)).await? {
            Claimed::Found(artifact) => {
                return match artifact.missing_file().await? {
                    None => self.found(&artifact).await,
                    Some(file) => Err(Error::new(
                        ErrorKind::Data,
                        format!(
                            "\"{}\" holds the samples of this job, and its file \"{file}\" is lost",
                            artifact.url()
                        ),
                    )
                    .with_hint("remove the folder, or run the job in one process, which writes all files again")),
                };
            }
            Claimed::Held(job, held) => (job, held),
        };
        let work = async {
            let parts = job.parts().await?;
            if self.files.missing(&parts).is_empty() {
                return self.commit(job, &parts).await;
            }
            let spec = JobSpec {
                id: self.id().to_owned(),
                url: job.url().to_owned(),
                generation: job.generation(),
                options: self.options.clone(),
                windows_per_file: self.files.plan.windows_per_file,
            };
            write(spec, parts.into_keys().filter_map(|number| u32::try_from(number).ok()).collect()).await?;
            let parts = job.parts().await?;
            match self.files.missing(&parts)[..] {
                [] => self.commit(job, &parts).await,
                [first, ..] => {
                    let url = job.url();
                    Err(Error::internal(format!(
                        "file {first} was reported as stored, and \"{url}\" has no record of it"
                    )))
                }
            }
        };
        held.while_alive(work).await
    }
}

/// A job on a worker.
pub struct SharedJob {
    files: JobFiles,
    job: artifact::Job,
}

impl SharedJob {
    /// Opens a job that a dispatcher has begun.
    ///
    /// # Errors
    /// `Invalid` for a format that this build does not have, and for a folder that it does not share with the
    /// dispatcher.
    pub async fn open(feed: Feed, spec: &JobSpec) -> Result<Self> {
        let format = output_format(&spec.options)?;
        let partitions = Partitions::new(&feed.schema(), spec.options.partition_by.as_deref(), &format)?;
        let core = feed.core();
        let plan = JobPlan::of_files(core, spec.windows_per_file);
        let job = artifact::Job::attach(&core.stores, &spec.url, &spec.id, spec.generation).await?;
        Ok(Self { files: JobFiles::new(feed, format, partitions, plan, spec.id.clone()), job })
    }

    /// What counts its costs in this process.
    pub fn meter(&self) -> &CostMeter {
        self.files.feed.meter()
    }

    /// The pipeline whose samples it writes.
    pub fn pipeline(&self) -> &str {
        self.files.feed.pipeline()
    }

    /// Writes and records a file. Returns its numbers of samples and bytes.
    ///
    /// # Errors
    /// Errors of reading, computing and writing.
    pub async fn write(&self, file: u32) -> Result<(u64, u64)> {
        let part = self.files.write_part(&self.job, u64::from(file), &JobProgress::default()).await?;
        Ok(part.files.iter().fold((0, 0), |(rows, bytes), file| (rows + file.rows, bytes + file.bytes)))
    }
}
