//! A committed artifact.

use std::collections::HashMap;

use super::generations::{self, Generation, Latest};
use super::layout::{Attempt, Folder, Kind};
use super::manifest::Manifest;
use super::sweep::sweep;
use crate::{Error, Result, Stores};

/// A committed artifact: its folder and its manifest.
#[derive(Clone, Debug)]
pub struct Artifact {
    pub(super) stores: Stores,
    pub(super) folder: Folder,
    generation: u64,
    manifest: Manifest,
}

impl Artifact {
    pub(super) fn new(stores: &Stores, folder: Folder, generation: u64, manifest: Manifest) -> Self {
        Self { stores: stores.clone(), folder, generation, manifest }
    }

    /// Opens the artifact in the folder `url`.
    ///
    /// # Errors
    /// `NotFound` if there is none, and those of [`find`](Self::find).
    pub async fn open(stores: &Stores, url: &str) -> Result<Self> {
        let found = Self::find(stores, url).await?;
        found.ok_or_else(|| Error::not_found(format!("\"{url}\" holds no artifact")))
    }

    /// The artifact in the folder `url`. `None` if no job has written there.
    ///
    /// # Errors
    /// `Invalid` if its job was never finished, and for a manifest of a later version. `NotFound` if it was removed.
    /// `Data` if its manifest is damaged.
    pub async fn find(stores: &Stores, url: &str) -> Result<Option<Self>> {
        let folder = Folder::new(stores, url)?;
        if stores.folders(&folder.own()).await?.is_empty() {
            return Ok(None);
        }
        let latest = Latest::of(stores, &folder).await?;
        let unfinished = || {
            Error::invalid(format!("\"{}\" is being written by a job, or its job was never finished", folder.url()))
                .with_hint("run the job again to finish it")
        };
        match latest.generation {
            Some(Generation::Committed(manifest)) => Ok(Some(Self::new(stores, folder, latest.number, manifest))),
            _ if has_attempt(stores, &folder, latest.number).await? => Err(unfinished()),
            Some(_) => Err(Error::not_found(format!("the artifact in \"{}\" was removed", folder.url()))
                .with_hint("run its job again")),
            None => Ok(None),
        }
    }

    /// The folder, as an absolute path or URL.
    pub fn url(&self) -> &str {
        self.folder.url()
    }

    /// What it consists of and comes from.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The number of its commit among all commits and removals of the folder.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The name of a data file that is not there, or not with its size.
    pub async fn missing_file(&self) -> Result<Option<String>> {
        let objects = self.stores.list(self.folder.url()).await?;
        let sizes: HashMap<&str, u64> = objects.iter().map(|object| (object.name.as_str(), object.bytes)).collect();
        let mut files = self.manifest.files.iter();
        Ok(files.find(|file| sizes.get(file.name.as_str()) != Some(&file.bytes)).map(|file| file.name.clone()))
    }

    /// Declares that the artifact is no more, so that its job writes it again. Returns whether the folder now says so,
    /// and not something newer. The files stay until then, or until garbage is collected.
    pub async fn retire(&self) -> Result<bool> {
        generations::write(&self.stores, &self.folder, self.generation + 1, &Generation::Removed).await
    }

    pub(super) fn attempt(&self) -> Attempt {
        Attempt { job: self.manifest.job.clone(), generation: self.generation }
    }

    /// Does what is left to do after the commit.
    pub(super) async fn complete(&self) -> Result<()> {
        self.publish_index().await?;
        sweep(self).await;
        Ok(())
    }

    /// Refuses another job's artifact.
    pub(super) fn of_job(self, id: &str) -> Result<Self> {
        match self.manifest.job == id {
            true => Ok(self),
            false => Err(Error::conflict(format!(
                "\"{}\" holds the artifact of the job {}, and this is job {id}",
                self.url(),
                self.manifest.job
            ))
            .with_hint("write to another folder, or remove this one")),
        }
    }
}

/// Whether a job has begun to write a generation after `number`.
async fn has_attempt(stores: &Stores, folder: &Folder, number: u64) -> Result<bool> {
    let jobs = folder.jobs();
    let prefix = jobs[folder.object("").len()..].to_owned();
    let objects = stores.list(&jobs).await?;
    Ok(objects.iter().any(|object| match Kind::of(&format!("{prefix}/{}", object.name)) {
        Kind::OfAttempt(attempt) => attempt.generation > number,
        _ => false,
    }))
}
