//! Removes what no process can find or finish: artifacts under a root without an entry in its catalog, what jobs that
//! are over left there, entries without an artifact, and objects that measured the store.
//!
//! Nothing is removed because of its age. Before anything of an unfinished job is deleted, its generation is written as
//! aborted, so that the job cannot be committed any more, however late its writes arrive. Whether a job lives is asked
//! by looking twice: a living one gives signs in between. To give up a living one by mistake costs its work, and never
//! gives wrong rows. Before an artifact is deleted, its removal is written as the next generation.
//!
//! A job claims its folder before it writes there, and removes no claim of its own. So a file that was there at the
//! first look, and whose job has no claim at the second, belongs to a job that is over. What Forebay has not written
//! stays.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;

use super::catalog::{Catalog, Entry};
use super::claim::{SILENCE, Wait};
use super::generations::{self, Generation, Latest, Past, is_generation};
use super::layout::{Attempt, Folder, Kind};
use super::manifest::ArtifactIndex;
use super::open::Artifact;
use super::sweep::{Over, beside};
use crate::objects::Object;
use crate::store_rates::{is_of_trial, trial_folder};
use crate::{Error, ErrorKind, Result, Stores};

/// Objects to delete at a time.
const DELETES_AT_ONCE: usize = 16;

/// What was removed, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Garbage {
    /// The folders of artifacts without an entry.
    pub artifacts: Vec<String>,
    /// The folders of jobs that were not finished.
    pub jobs: Vec<String>,
    /// Folders of artifacts whose entries are removed, because the artifacts are gone.
    pub entries: Vec<String>,
    /// Objects that measured the store, for a process that was killed.
    pub trials: Vec<String>,
    /// The number of objects that are deleted, without entries.
    pub objects: u64,
    /// Their size in bytes.
    pub bytes: u64,
    /// The number of artifacts and jobs that stay.
    pub kept: u64,
    /// What could not be judged, and stays: folders with damaged manifests, or those of a later version.
    pub problems: Vec<String>,
}

/// Removes what the catalog under `root` does not name from `<root>/artifacts`, and entries without an artifact. If
/// `dry_run`, only says what would be removed. Objects outside of the root are never touched.
///
/// # Errors
/// Those of the store. `Data` for a damaged entry: what it names is unknown.
pub async fn gc(stores: &Stores, root: &str, dry_run: bool, wait: Wait<'_>) -> Result<Garbage> {
    let catalog = Catalog::new(stores, root)?;
    let artifacts = catalog.root.object("artifacts");
    let mut garbage = Garbage::default();
    let mut looks = BTreeMap::new();
    let trials = trial_folder(root);
    let is_ours = |object: &Object| is_of_trial(&object.name);
    let measuring: BTreeSet<Object> = stores.list(&trials).await?.into_iter().filter(is_ours).collect();
    let mut must_wait = !measuring.is_empty();
    for id in stores.folders(&artifacts).await? {
        let folder = Folder::new(stores, &catalog.kept(&id))?;
        let objects = stores.list(folder.url()).await?;
        match Latest::of(stores, &folder).await {
            Ok(Latest { generation: Some(Generation::Committed(_)), .. }) => {}
            Ok(_) => must_wait |= objects.iter().any(|object| !is_generation(&object.name)),
            // It is judged below.
            Err(_) => {}
        }
        looks.insert(id, (folder, objects));
    }
    if must_wait {
        wait(SILENCE).await;
    }
    let mut judged = Vec::new();
    for (folder, first) in looks.into_values() {
        let second = stores.list(folder.url()).await?;
        // What was listed before this is of this generation's time, or earlier.
        match Latest::of(stores, &folder).await {
            Ok(latest) => judged.push(Judged { folder, first, second, latest }),
            Err(error) => garbage.problem(error)?,
        }
    }
    let mut measured = stores.list(&trials).await?;
    // A process that lives deletes its objects soon, and writes others.
    measured.retain(|object| measuring.contains(object));
    garbage.objects += measured.len() as u64;
    garbage.bytes += measured.iter().map(|object| object.bytes).sum::<u64>();
    garbage.trials = measured.iter().map(|object| format!("{trials}/{}", object.name)).collect();
    if !dry_run {
        delete(stores, garbage.trials.clone()).await?;
    }
    // A job writes its entry before its commit, so the entries are read after the commits.
    let entries = catalog.entries().await?;
    for artifact in judged {
        if let Err(error) = collect(stores, artifact, &entries, dry_run, &mut garbage).await {
            garbage.problem(error)?;
        }
    }
    for entry in entries {
        if !is_gone(stores, &entry).await? {
            continue;
        }
        if !dry_run {
            catalog.remove(&entry).await?;
            if !is_gone(stores, &entry).await? {
                // A job has begun meanwhile, and may have written its entry already.
                catalog.record(&entry.fingerprint, &entry.url).await?;
                continue;
            }
        }
        garbage.entries.push(entry.url);
    }
    Ok(garbage)
}

impl Garbage {
    /// Notes what cannot be judged. Other errors end the collection.
    fn problem(&mut self, error: Error) -> Result<()> {
        match error.kind() {
            ErrorKind::Data | ErrorKind::Invalid | ErrorKind::NotFound => {
                self.problems.push(error.to_string());
                Ok(())
            }
            _ => Err(error),
        }
    }
}

/// The folder of an artifact, as seen twice.
struct Judged {
    folder: Folder,
    first: Vec<Object>,
    second: Vec<Object>,
    latest: Latest,
}

/// What to do with a folder.
struct Verdict<'a> {
    dead: Vec<&'a Object>,
    /// All attempts up to this generation are over.
    over: u64,
    /// Whether no process writes there.
    is_quiet: bool,
}

async fn collect(
    stores: &Stores,
    judged: Judged,
    entries: &[Entry],
    dry_run: bool,
    garbage: &mut Garbage,
) -> Result<()> {
    let Judged { folder, first, second, latest } = judged;
    let number = latest.number;
    let mut past = Past::before(number, stores, &folder, &second).await?;
    latest.generation.iter().for_each(|generation| past.add(number, generation));
    let first: BTreeSet<Object> = first.into_iter().collect();
    let is_ours = |object: &&Object| match Kind::of(&object.name) {
        Kind::OfAttempt(_) | Kind::Tagged(_) => true,
        Kind::Other => past.index.contains(&object.name),
        Kind::Generation(_) => false,
    };
    let ours = second.iter().filter(is_ours);
    let verdict = match latest.generation {
        Some(Generation::Committed(manifest)) => {
            let url = folder.url();
            let names_it = |entry: &Entry| entry.url == url && entry.fingerprint == manifest.fingerprint;
            if entries.iter().any(names_it) {
                garbage.kept += 1;
                let artifact = Artifact::new(stores, folder.clone(), number, manifest);
                let is_there = |file: &ArtifactIndex| second.iter().any(|object| object.name == file.name);
                if !dry_run && !artifact.manifest().index.iter().all(is_there) {
                    // Its committer was killed.
                    artifact.publish_index().await?;
                }
                Verdict { dead: beside(&artifact, &past, &second, |_| true), over: number, is_quiet: true }
            } else if dry_run || generations::write(stores, &folder, number + 1, &Generation::Removed).await? {
                garbage.artifacts.push(url.to_owned());
                Verdict { dead: ours.collect(), over: number + 1, is_quiet: true }
            } else {
                return Ok(());
            }
        }
        before => {
            let living = Living::of(&second, number);
            let seen_twice = ours.filter(|object| first.contains(*object));
            if living.attempts.is_empty() {
                // A job leaves at least a claim or a generation.
                let is_foreign = before.is_none();
                Verdict { dead: seen_twice.filter(|_| !is_foreign).collect(), over: number, is_quiet: !is_foreign }
            } else if living.gave_a_sign(&first, &second) {
                garbage.kept += 1;
                let dead = seen_twice.filter(|object| living.is_over(object)).collect();
                Verdict { dead, over: number, is_quiet: false }
            } else {
                let jobs = living.attempts.iter().map(|attempt| attempt.job.clone()).collect();
                if !dry_run && !generations::write(stores, &folder, number + 1, &Generation::Aborted { jobs }).await? {
                    // The job was committed at the last moment.
                    return Ok(());
                }
                garbage.jobs.push(folder.url().to_owned());
                Verdict { dead: seen_twice.collect(), over: number + 1, is_quiet: true }
            }
        }
    };
    let Verdict { dead, over, is_quiet } = verdict;
    garbage.objects += dead.len() as u64;
    garbage.bytes += dead.iter().map(|object| object.bytes).sum::<u64>();
    if dry_run {
        return Ok(());
    }
    delete(stores, dead.iter().map(|object| folder.object(&object.name)).collect()).await?;
    let over = Over::until(over, &past, &second);
    stores.tidy(folder.url(), move |name| over.has(name), is_quiet).await
}

async fn delete(stores: &Stores, places: Vec<String>) -> Result<()> {
    let deleted = stream::iter(places).map(|place| async move { stores.delete(&place).await });
    deleted.buffer_unordered(DELETES_AT_ONCE).try_collect().await
}

/// The attempts in a folder that may still be committed.
struct Living {
    after: u64,
    attempts: BTreeSet<Attempt>,
    tags: HashSet<String>,
}

impl Living {
    /// The attempts at generations after `number` with objects among these.
    fn of(objects: &[Object], number: u64) -> Self {
        let attempts: BTreeSet<Attempt> = objects
            .iter()
            .filter_map(|object| match Kind::of(&object.name) {
                Kind::OfAttempt(attempt) if attempt.generation > number => Some(attempt),
                _ => None,
            })
            .collect();
        let tags = attempts.iter().map(Attempt::tag).collect();
        Self { after: number, attempts, tags }
    }

    fn gave_a_sign(&self, first: &BTreeSet<Object>, second: &[Object]) -> bool {
        let is_theirs = |object: &&Object| match Kind::of(&object.name) {
            Kind::OfAttempt(attempt) => attempt.generation > self.after,
            Kind::Tagged(tag) => self.tags.contains(&tag),
            Kind::Generation(_) | Kind::Other => false,
        };
        !second.iter().filter(is_theirs).eq(first.iter().filter(is_theirs))
    }

    /// Whether an object is of an attempt that is over.
    fn is_over(&self, object: &Object) -> bool {
        match Kind::of(&object.name) {
            Kind::OfAttempt(attempt) => attempt.generation <= self.after,
            Kind::Tagged(tag) => !self.tags.contains(&tag),
            Kind::Generation(_) | Kind::Other => false,
        }
    }
}

/// Whether the artifact of an entry is gone, with no job that may still commit it.
async fn is_gone(stores: &Stores, entry: &Entry) -> Result<bool> {
    match Artifact::find(stores, &entry.url).await {
        Ok(artifact) => Ok(artifact.is_none_or(|artifact| artifact.manifest().fingerprint != entry.fingerprint)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) if error.kind() == ErrorKind::Unavailable => Err(error),
        // It is unfinished, damaged or of a later version.
        Err(_) => Ok(false),
    }
}
