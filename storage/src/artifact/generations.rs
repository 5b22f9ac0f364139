//! The generations of a folder: what it holds, has held, or will never hold.
//!
//! A generation is written once and stays. Commit, abort and removal of the same state write the same name, so one of
//! them happens. Numbers are never used again, so a late write of an old one cannot succeed.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::layout::{Attempt, Folder, Kind};
use super::manifest::Manifest;
use super::sealed::{seal, unseal};
use crate::objects::Object;
use crate::{Error, Result, Stores};

/// The content of a generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Generation {
    /// The folder holds an artifact.
    Committed(Manifest),
    /// These jobs will not be committed as this generation.
    Aborted { jobs: Vec<String> },
    /// The artifact of the generation before is no more.
    Removed,
}

/// The highest generation of a folder.
#[derive(Clone, Debug)]
pub(super) struct Latest {
    /// Its number. 0 if there is none, since numbers begin at 1.
    pub(super) number: u64,
    pub(super) generation: Option<Generation>,
}

impl Latest {
    pub(super) async fn of(stores: &Stores, folder: &Folder) -> Result<Self> {
        match last_number(stores, folder).await? {
            0 => Ok(Self { number: 0, generation: None }),
            number => Ok(Self { number, generation: Some(read(stores, folder, number).await?) }),
        }
    }
}

/// The number of the highest generation, or 0.
pub(super) async fn last_number(stores: &Stores, folder: &Folder) -> Result<u64> {
    let objects = stores.list(&folder.generations()).await?;
    Ok(objects.iter().filter_map(|object| object.name.parse().ok()).max().unwrap_or(0))
}

/// What earlier generations of a folder may have left there, or may still write late.
#[derive(Clone, Debug, Default)]
pub(super) struct Past {
    pub(super) attempts: Vec<Attempt>,
    /// The names of their index files.
    pub(super) index: HashSet<String>,
}

impl Past {
    /// Of the generations before `end` among these objects of the folder.
    pub(super) async fn before(end: u64, stores: &Stores, folder: &Folder, objects: &[Object]) -> Result<Self> {
        let mut past = Self::default();
        let numbers = objects.iter().filter_map(|object| match Kind::of(&object.name) {
            Kind::Generation(number) if number < end => Some(number),
            _ => None,
        });
        for number in numbers {
            past.add(number, &read(stores, folder, number).await?);
        }
        Ok(past)
    }

    pub(super) fn add(&mut self, number: u64, generation: &Generation) {
        let mut add = |job: &String| self.attempts.push(Attempt { job: job.clone(), generation: number });
        match generation {
            Generation::Committed(manifest) => {
                add(&manifest.job);
                self.index.extend(manifest.index.iter().map(|file| file.name.clone()));
            }
            Generation::Aborted { jobs } => jobs.iter().for_each(add),
            Generation::Removed => {}
        }
    }
}

/// The content of a generation that exists.
pub(super) async fn read(stores: &Stores, folder: &Folder, number: u64) -> Result<Generation> {
    let place = folder.generation(number);
    let generation: Generation = unseal(&place, &stores.get(&place).await?)?;
    if let Generation::Committed(manifest) = &generation
        && let Some(why) = manifest.misfit()
    {
        return Err(Error::data(format!("\"{place}\" cannot be the manifest of an artifact: {why}")));
    }
    Ok(generation)
}

/// Writes a generation unless there is one with this number. Returns whether it is there now.
pub(super) async fn write(stores: &Stores, folder: &Folder, number: u64, generation: &Generation) -> Result<bool> {
    stores.put_new(&folder.generation(number), seal(generation)).await
}

/// Whether a name below an artifact's folder is of a generation.
pub(super) fn is_generation(name: &str) -> bool {
    matches!(Kind::of(name), Kind::Generation(_))
}
