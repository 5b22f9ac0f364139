//! Removes what lies in a committed artifact's folder and is no part of it.

use std::collections::HashSet;

use super::generations::{Generation, Past};
use super::layout::{Attempt, Kind, blocks_name};
use super::manifest::Manifest;
use super::open::Artifact;
use crate::Result;
use crate::objects::Object;

/// Deletes what other attempts wrote, which will never be committed now, and files of the committed one that are no
/// part of it. Opening the job again, and collecting garbage, do so too, so a failure is only noted.
pub(super) async fn sweep(artifact: &Artifact) {
    if let Err(error) = try_sweep(artifact).await {
        tracing::debug!(artifact = artifact.url(), %error, "not all that is no part of it could be removed");
    }
}

async fn try_sweep(artifact: &Artifact) -> Result<()> {
    let objects = artifact.stores.list(artifact.url()).await?;
    let committed = artifact.attempt();
    let mut past = Past::before(committed.generation, &artifact.stores, &artifact.folder, &objects).await?;
    past.add(committed.generation, &Generation::Committed(artifact.manifest().clone()));
    let over = Over::until(committed.generation, &past, &objects);
    for object in beside(artifact, &past, &objects, |tag| over.tags.contains(tag)) {
        artifact.stores.delete(&artifact.folder.object(&object.name)).await?;
    }
    artifact.stores.tidy(artifact.url(), move |name| over.has(name), false).await
}

/// What is known to be over.
pub(super) struct Over {
    generation: u64,
    tags: HashSet<String>,
}

impl Over {
    /// All attempts until this generation are over: earlier ones, and those of which there are objects.
    pub(super) fn until(generation: u64, past: &Past, objects: &[Object]) -> Self {
        let attempts = objects.iter().filter_map(|object| match Kind::of(&object.name) {
            Kind::OfAttempt(attempt) if attempt.generation <= generation => Some(attempt),
            _ => None,
        });
        let tags = attempts.chain(past.attempts.iter().cloned()).map(|attempt| attempt.tag()).collect();
        Self { generation, tags }
    }

    /// Whether an object with this name is of such an attempt.
    pub(super) fn has(&self, name: &str) -> bool {
        match Kind::of(name) {
            Kind::OfAttempt(attempt) => attempt.generation <= self.generation,
            Kind::Tagged(tag) => self.tags.contains(&tag),
            Kind::Generation(_) | Kind::Other => false,
        }
    }
}

/// The objects among these that are no part of the artifact: of attempts that are over, files whose tags are theirs,
/// and index files of earlier generations. The records of the artifact's own parts stay, with all that they say of its
/// files.
pub(super) fn beside<'a>(
    artifact: &Artifact,
    past: &Past,
    objects: &'a [Object],
    is_over: impl Fn(&str) -> bool,
) -> Vec<&'a Object> {
    let committed = artifact.attempt();
    let Manifest { files, index, .. } = artifact.manifest();
    let data = files.iter().flat_map(|file| [file.name.clone(), blocks_name(&file.name)]);
    let own: HashSet<String> = data.chain(index.iter().map(|file| file.name.clone())).collect();
    let is_past = |attempt: &Attempt| attempt.generation <= committed.generation && *attempt != committed;
    let is_beside = |object: &&Object| match Kind::of(&object.name) {
        Kind::OfAttempt(attempt) => is_past(&attempt),
        Kind::Tagged(tag) => is_over(&tag) && !own.contains(&object.name),
        Kind::Other => past.index.contains(&object.name) && !own.contains(&object.name),
        Kind::Generation(_) => false,
    };
    objects.iter().filter(is_beside).collect()
}
