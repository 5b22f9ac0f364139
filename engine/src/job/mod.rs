//! Jobs: the samples of a feed's first epoch, written to files once.
//!
//! [`plan`] divides the epoch into files of whole windows, by a sample of the first window. [`window_samples`] computes
//! the samples of some windows, and [`write`] encodes and uploads them as one file. Files are written independently: as
//! many at a time as there are threads, or by the workers of a cluster ([`shared`]). `forebay_storage::artifact`
//! records each complete file and commits the job. The files in the target are the job's whole state, so that any
//! process can resume it.

mod claimed;
mod estimate;
mod files;
mod materialized;
mod output_file;
mod partitions;
mod plan;
mod progress;
mod shared;
mod window_samples;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use forebay_protocol::{JobOptions, OptionSet};
use forebay_storage::Stores;
use forebay_storage::artifact;
use forebay_storage::artifact::{Artifact, Catalog, JobState, Lineage, Part};
use forebay_storage::writers::{DataFile, OutputFormat};
use futures::{StreamExt, TryStreamExt, stream};

pub(crate) use claimed::{Claimed, claim};
pub use materialized::Materialized;
pub(crate) use output_file::OpenFile;
pub use progress::JobProgress;
pub use shared::{FilePlan, JobSpec, SharedJob};
pub(crate) use window_samples::WindowSamples;
pub(crate) use write::reasons;

use crate::error::{Error, Result};
use crate::feed::{Feed, FeedCore};
use files::JobFiles;
use partitions::Partitions;
use plan::{JobPlan, Sample};

/// Raise this when the same feed and options give other files.
const FILES_VERSION: u32 = 2;
/// Windows that are in memory for each file that is being written: see [`window_samples`].
const WINDOWS_PER_FILE_WRITER: u64 = 2;

/// A job that writes a feed's samples to files in a folder.
pub struct Job {
    files: JobFiles,
    options: JobOptions,
    sample: Sample,
    state: JobState,
    /// What the files mean: see [`fingerprint`].
    fingerprint: String,
    /// Files to write at a time.
    writers: usize,
}

impl Job {
    /// Finds out what the folder `url` holds of the job that writes `feed` there.
    ///
    /// # Errors
    /// `Conflict` if the folder holds anything else, `Invalid` if the query calls functions without a version, if the
    /// format cannot hold a column, and for unknown options; errors of reading the first window.
    pub(crate) async fn open(feed: Feed, url: &str, options: &JobOptions, memory_limit_bytes: u64) -> Result<Self> {
        let unversioned = feed.unversioned_functions();
        if !unversioned.is_empty() {
            let message =
                format!("the results of {} must not be stored, since it has no version", unversioned.join(", "));
            return Err(Error::invalid(message).with_hint("declare the function with a version"));
        }
        let format = output_format(options)?;
        let partitions = Partitions::new(&feed.schema(), options.partition_by.as_deref(), &format)?;
        format.check(&partitions.file_schema)?;
        let file_size = options.or(&JobOptions::defaults()).file_size;
        let core = feed.core();
        let sample = Sample::take(core).await?;
        let plan = JobPlan::new(core, &sample, file_size.unwrap_or(1));
        let fingerprint = fingerprint(&feed, &format, &partitions.names());
        let id = job_id(&fingerprint, &plan);
        let state = artifact::Job::open(&core.stores, url, &id).await?;
        let most = usize::try_from(memory_limit_bytes / file_memory_bytes(core)).unwrap_or(usize::MAX);
        let writers = core.executor.threads().min(most).max(1);
        let files = JobFiles::new(feed, format, partitions, plan, id);
        Ok(Self { files, options: options.clone(), sample, state, fingerprint, writers })
    }

    /// The job's id: a hash of feed, format and division into files.
    pub fn id(&self) -> &str {
        &self.files.id
    }

    /// The number of files that it writes. Files without samples are left out.
    pub fn files(&self) -> u32 {
        self.files.plan.files()
    }

    /// The number of source rows that it reads.
    pub fn source_rows(&self) -> u64 {
        self.files.feed.core().plan.epoch(0).rows()
    }

    /// Writes the files that are missing, and commits. If another process works on the job, waits until that has
    /// finished or is silent for 30 seconds. If the job is done and a file has been lost since, writes all files again.
    ///
    /// # Errors
    /// Errors of reading, computing and writing. What is written stays, and the next run resumes from it.
    pub async fn run(&self, progress: &JobProgress) -> Result<Materialized> {
        let again = match &self.state {
            JobState::Committed(artifact) => match artifact.missing_file().await? {
                Some(file) => {
                    let url = artifact.url();
                    tracing::warn!(url, file, "a file of these samples is lost: all are written again");
                    artifact.retire().await?;
                    Some(artifact::Job::open(self.stores(), url, self.id()).await?)
                }
                None => None,
            },
            JobState::Open(_) => None,
        };
        let state = again.as_ref().unwrap_or(&self.state);
        let (job, held) = match claim(self.stores(), state, self.id(), |waits| progress.set_waits(waits)).await? {
            Claimed::Found(artifact) => return self.found(&artifact).await,
            Claimed::Held(job, held) => (job, held),
        };
        let write = |number: u64| async move {
            let part = self.files.write_part(job, number, progress).await?;
            progress.add_file();
            Ok::<_, Error>((number, part))
        };
        let work = async {
            let mut parts = job.parts().await?;
            for (number, part) in &parts {
                progress.add_part(self.files.source_rows_of(*number), part);
            }
            let missing = self.files.missing(&parts);
            let written = stream::iter(missing.into_iter().map(write)).buffer_unordered(self.writers);
            parts.extend(written.try_collect::<Vec<_>>().await?);
            self.commit(job, &parts).await
        };
        held.while_alive(work).await
    }

    async fn commit(&self, job: &artifact::Job, parts: &BTreeMap<u64, Part>) -> Result<Materialized> {
        let manifest = job.manifest(parts, self.lineage(parts))?;
        self.catalog()?.record(&self.fingerprint, job.url()).await?;
        let artifact = job.commit(manifest, self.index(parts)?).await?;
        Ok(Materialized::new(&artifact, false, self.files.quarantine()))
    }

    /// The result of an earlier run. Its entry in the catalog may have been removed, or is of another root.
    async fn found(&self, artifact: &Artifact) -> Result<Materialized> {
        self.catalog()?.record(&self.fingerprint, artifact.url()).await?;
        Ok(Materialized::new(artifact, true, self.files.quarantine()))
    }

    fn stores(&self) -> &Stores {
        &self.files.feed.core().stores
    }

    fn catalog(&self) -> Result<Catalog> {
        Ok(Catalog::new(self.stores(), &self.files.feed.core().root)?)
    }

    /// The files that readers of the format look for beside the data files.
    fn index(&self, parts: &BTreeMap<u64, Part>) -> Result<Vec<(String, Bytes)>> {
        let files = parts.values().flat_map(|part| part.files.iter().map(move |file| (file, &part.facts)));
        let files: Vec<DataFile> = files
            .map(|(file, facts)| DataFile { name: file.name.clone(), rows: file.rows, facts: facts.clone() })
            .collect();
        Ok(self.files.format.index(&files)?.into_iter().map(|file| (file.name.to_owned(), file.bytes)).collect())
    }

    fn lineage(&self, parts: &BTreeMap<u64, Part>) -> Lineage {
        let mut sources = BTreeMap::from([
            ("feed".to_owned(), self.files.feed.identity().to_string()),
            ("statement".to_owned(), self.files.feed.statement().to_owned()),
            ("source_rows".to_owned(), self.source_rows().to_string()),
            ("forebay".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ]);
        sources.extend(self.files.feed.tables().map(|(name, dataset)| {
            let snapshot = dataset.snapshot();
            let text =
                format!("{} rows in {} files, snapshot {}", snapshot.rows(), snapshot.files().len(), snapshot.id());
            (format!("table {name}"), text)
        }));
        Lineage {
            fingerprint: self.fingerprint.clone(),
            schema: Arc::clone(&self.files.partitions.file_schema),
            folders: Arc::clone(&self.files.partitions.folder_schema),
            sources,
            costs: write::total_costs(parts.values().map(|part| &part.costs)),
        }
    }
}

/// The most bytes of windows that are in memory while a file is written.
fn file_memory_bytes(core: &FeedCore) -> u64 {
    core.settings.window_bytes.max(1) * WINDOWS_PER_FILE_WRITER
}

/// The format that these options name.
pub(crate) fn output_format(options: &JobOptions) -> Result<OutputFormat> {
    let JobOptions { format, compression, .. } = options.or(&JobOptions::defaults());
    let given: Vec<_> = compression.map(|compression| ("compression".to_owned(), compression)).into_iter().collect();
    Ok(OutputFormat::new(&format.unwrap_or_default(), &given)?)
}

/// A hash of what files of a feed's samples mean. Files with the same fingerprint may stand for each other.
pub(crate) fn fingerprint(feed: &Feed, format: &OutputFormat, partition_by: &[String]) -> String {
    let format = serde_json::to_string(format).expect("plain data becomes JSON");
    let folders: String = partition_by.iter().map(|name| format!("\0{name}")).collect();
    short_hash(&format!("{FILES_VERSION}\0{}\0{format}{folders}", feed.id()))
}

/// The id of the job that divides samples into files in this way.
fn job_id(fingerprint: &str, plan: &JobPlan) -> String {
    short_hash(&format!("{fingerprint}\0{}", plan.windows_per_file))
}

fn short_hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
}
