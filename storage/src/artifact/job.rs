//! A job that writes an artifact: its parts and its commit.

use std::collections::{BTreeMap, HashSet};

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::Value;

use super::generations::{self, Generation, Latest, Past};
use super::layout::{Attempt, Folder, Kind, check_job, is_data};
use super::manifest::{ArtifactFile, Manifest};
use super::open::Artifact;
use super::part::{DataFile, Part};
use super::sealed::{seal, unseal};
use crate::objects::Object;
use crate::{Error, ErrorKind, Result, Stores};

/// Records of parts to read at a time.
const PARTS_AT_ONCE: usize = 32;

/// What is in the folder that a job should write to.
#[derive(Debug)]
pub enum JobState {
    /// The job's artifact. Nothing is left to do.
    Committed(Artifact),
    /// None of the job's parts, some or all.
    Open(Job),
}

/// A job that writes an artifact.
///
/// Nothing but objects in the folder is the state of a job: any process may open it and continue. Processes that write
/// the same part at the same time write the same bytes.
#[derive(Clone, Debug)]
pub struct Job {
    pub(super) stores: Stores,
    pub(super) folder: Folder,
    pub(super) attempt: Attempt,
}

/// What a manifest says beside the parts.
#[derive(Clone, Debug)]
pub struct Lineage {
    /// What the rows mean: the same for all artifacts that may stand for each other.
    pub fingerprint: String,
    /// The columns that a reader of the files finds in them.
    pub schema: SchemaRef,
    /// The columns whose values are the names of the files' folders, outermost first.
    pub folders: SchemaRef,
    /// Where the rows come from, such as the query, the versions of operators and the snapshots.
    pub sources: BTreeMap<String, String>,
    /// What the job cost, in the terms of its crate.
    pub costs: Value,
}

impl Job {
    /// Finds out what the folder `url` holds of the job `id`. The id says what is written: a job with the same id gives
    /// the same files. It has letters, digits and `-`.
    ///
    /// # Errors
    /// `Conflict` if the folder holds anything else, `Invalid` for an id that cannot be a file's name.
    pub async fn open(stores: &Stores, url: &str, id: &str) -> Result<JobState> {
        check_job(id)?;
        let folder = Folder::new(stores, url)?;
        let latest = Latest::of(stores, &folder).await?;
        if let Some(Generation::Committed(manifest)) = latest.generation {
            let artifact = Artifact::new(stores, folder, latest.number, manifest);
            let artifact = artifact.of_job(id)?;
            artifact.complete().await?;
            return Ok(JobState::Committed(artifact));
        }
        let attempt = Attempt { job: id.to_owned(), generation: latest.number + 1 };
        let job = Self { stores: stores.clone(), folder, attempt };
        job.check_folder().await?;
        Ok(JobState::Open(job))
    }

    /// The job `id` in the folder `url` that another process has [claimed](Self::claim) and found with this
    /// [generation](Self::generation).
    ///
    /// # Errors
    /// `Invalid` for an id that cannot be a file's name, and if the folder has no claim of the job: then this machine
    /// has another folder of that name.
    pub async fn attach(stores: &Stores, url: &str, id: &str, generation: u64) -> Result<Self> {
        check_job(id)?;
        let attempt = Attempt { job: id.to_owned(), generation };
        let job = Self { stores: stores.clone(), folder: Folder::new(stores, url)?, attempt };
        if job.last_claim().await?.is_none() {
            return Err(Error::invalid(format!(
                "\"{}\" is not the folder of the process that began the job {id}, which left no claim here",
                job.url()
            ))
            .with_hint("write to an object store, or to a folder that all machines mount at the same path"));
        }
        Ok(job)
    }

    /// The folder, as an absolute path or URL.
    pub fn url(&self) -> &str {
        self.folder.url()
    }

    /// The number that its commit will have among all commits and removals of the folder.
    pub fn generation(&self) -> u64 {
        self.attempt.generation
    }

    /// Refuses a folder that holds files of others.
    async fn check_folder(&self) -> Result<()> {
        let (url, id) = (self.url(), &self.attempt.job);
        let objects = self.stores.list(url).await?;
        let past = Past::before(self.generation(), &self.stores, &self.folder, &objects).await?;
        let mut known: HashSet<String> = past.attempts.iter().chain([&self.attempt]).map(Attempt::tag).collect();
        for object in &objects {
            let Kind::OfAttempt(attempt) = Kind::of(&object.name) else { continue };
            if attempt.generation >= self.generation() && attempt.job != *id {
                return Err(Error::conflict(format!(
                    "\"{url}\" is being written by the job {}, or that job was never finished; this is job {id}",
                    attempt.job
                ))
                .with_hint("write to another folder, finish that job, or remove the folder"));
            }
            known.insert(attempt.tag());
        }
        let is_foreign = |object: &&Object| match Kind::of(&object.name) {
            Kind::Tagged(tag) => !known.contains(&tag),
            Kind::Other => !past.index.contains(&object.name),
            Kind::Generation(_) | Kind::OfAttempt(_) => false,
        };
        match objects.iter().find(is_foreign) {
            None => Ok(()),
            Some(Object { name, .. }) => {
                Err(Error::conflict(format!("\"{url}\" holds \"{name}\", which the job {id} has not written"))
                    .with_hint("write to an empty folder"))
            }
        }
    }

    /// Begins the data file `<stem>-<tag>.<extension>`, in which the stem is a path below the folder, such as
    /// `part-000003`. A complete file of that name is the job's own, and is replaced.
    ///
    /// # Errors
    /// `Invalid` for a path with names that begin with `.` or `_`.
    pub fn create(&self, stem: &str, extension: &str) -> Result<DataFile> {
        let name = format!("{stem}-{}.{extension}", self.attempt.tag());
        if !is_data(&name) {
            return Err(Error::invalid(format!("\"{name}\" is not a name for a data file")));
        }
        let upload = self.stores.upload(&self.folder.object(&name))?;
        let (stores, folder) = (self.stores.clone(), self.folder.clone());
        Ok(DataFile { stores, folder, name, upload, hasher: Default::default() })
    }

    /// Completes a data file of the part `number` with its `rows` rows. If the part is recorded, the file that is there
    /// stays, and [`record`](Self::record) compares the two.
    pub async fn complete(&self, number: u64, file: DataFile, rows: u64) -> Result<ArtifactFile> {
        match self.recorded(number).await? {
            None => file.finish(rows).await,
            Some(_) => file.digest(rows).await,
        }
    }

    /// The record of a part, if it is complete.
    async fn recorded(&self, number: u64) -> Result<Option<Part>> {
        let place = self.folder.part(&self.attempt, number);
        match self.stores.get(&place).await {
            Ok(bytes) => unseal(&place, &bytes).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Records a part whose files are complete. If it was recorded before, by whomever, that record counts, and is
    /// returned.
    ///
    /// # Errors
    /// `Internal` if the recorded files have the same names and other content: a job must give the same bytes again.
    pub async fn record(&self, number: u64, part: Part) -> Result<Part> {
        let place = self.folder.part(&self.attempt, number);
        if self.stores.put_new(&place, seal(&part)).await? {
            return Ok(part);
        }
        let recorded: Part = unseal(&place, &self.stores.get(&place).await?)?;
        for file in &part.files {
            if let Some(other) = recorded.files.iter().find(|other| other.name == file.name)
                && other != file
            {
                return Err(Error::internal(format!(
                    "\"{}\" was written twice with different content, so the job {} does not give the same rows again",
                    self.folder.object(&file.name),
                    self.attempt.job
                )));
            }
        }
        Ok(recorded)
    }

    /// The parts that are complete, by number.
    pub async fn parts(&self) -> Result<BTreeMap<u64, Part>> {
        let listed = self.stores.list(&self.folder.parts(&self.attempt)).await?;
        let numbers: Vec<u64> = listed.iter().filter_map(|object| object.name.parse().ok()).collect();
        let read = |number| async move {
            let place = self.folder.part(&self.attempt, number);
            Ok((number, unseal(&place, &self.stores.get(&place).await?)?))
        };
        stream::iter(numbers.into_iter().map(read)).buffered(PARTS_AT_ONCE).try_collect().await
    }

    /// The manifest of these parts.
    ///
    /// # Errors
    /// `Internal` if the numbers of rows do not add up, or two files have one name.
    pub fn manifest(&self, parts: &BTreeMap<u64, Part>, lineage: Lineage) -> Result<Manifest> {
        let mut files: Vec<ArtifactFile> = parts.values().flat_map(|part| part.files.iter().cloned()).collect();
        files.sort_by(|a, b| a.name.cmp(&b.name));
        let mut bad_reasons = BTreeMap::new();
        for (reason, rows) in parts.values().flat_map(|part| &part.bad_reasons) {
            *bad_reasons.entry(reason.clone()).or_default() += rows;
        }
        let manifest = Manifest {
            job: self.attempt.job.clone(),
            fingerprint: lineage.fingerprint,
            schema: lineage.schema,
            folders: lineage.folders,
            rows_in: parts.values().map(|part| part.rows_in).sum(),
            rows_out: files.iter().map(|file| file.rows).sum(),
            bad_rows: parts.values().map(|part| part.bad_rows).sum(),
            files,
            index: Vec::new(),
            bad_reasons,
            lineage: lineage.sources,
            costs: lineage.costs,
        };
        match manifest.misfit() {
            None => Ok(manifest),
            Some(why) => Err(Error::internal(format!("the job {} cannot be committed: {why}", self.attempt.job))),
        }
    }

    /// Commits the artifact by one write, with index files of these names and contents. Then removes what is not part
    /// of it. If another process has committed the job, its artifact is returned.
    ///
    /// An index, such as `index.json`, is there under its name once the artifact is committed.
    ///
    /// # Errors
    /// `Conflict` if the job was given up meanwhile, or another job was committed. `Unavailable` if the outcome is
    /// unknown, or an index could not be written after the commit: nothing is removed then, and opening the job again
    /// resolves it. `Invalid` for an index with the name of a data file, or of one that is hidden.
    pub async fn commit(&self, manifest: Manifest, index: Vec<(String, Bytes)>) -> Result<Artifact> {
        let (number, id) = (self.generation(), &self.attempt.job);
        let manifest = Manifest { index: self.keep_index(index).await?, ..manifest };
        if let Some(why) = manifest.misfit() {
            return Err(Error::invalid(format!("the job {id} cannot be committed: {why}")));
        }
        let generation = Generation::Committed(manifest);
        let is_ours = generations::write(&self.stores, &self.folder, number, &generation).await?;
        let there = match is_ours {
            true => generation,
            false => generations::read(&self.stores, &self.folder, number).await?,
        };
        let Generation::Committed(manifest) = there else {
            return Err(self.given_up());
        };
        let artifact = Artifact::new(&self.stores, self.folder.clone(), number, manifest).of_job(id)?;
        artifact.complete().await?;
        Ok(artifact)
    }

    pub(super) fn given_up(&self) -> Error {
        let (id, url) = (&self.attempt.job, self.url());
        Error::conflict(format!("the job {id} was given up before it was committed to \"{url}\""))
            .with_hint("run it again")
    }
}
