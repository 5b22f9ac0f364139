//! Removes what lies in a committed artifact's folder and is no part of it.

use std::collections::HashSet;

use super::layout::{Attempt, Kind, blocks_name};
use super::open::Artifact;
use crate::Result;

/// Deletes what other attempts wrote, which will never be committed now, and files of the committed one that are no
/// part of it. Whoever opens the job again, or collects garbage, does so too, so a failure is only noted.
pub(super) async fn sweep(artifact: &Artifact) {
    if let Err(error) = try_sweep(artifact).await {
        tracing::debug!(artifact = artifact.url(), %error, "not all that is no part of it could be removed");
    }
}

async fn try_sweep(artifact: &Artifact) -> Result<()> {
    let objects = artifact.stores.list(artifact.url()).await?;
    let names: Vec<&str> = objects.iter().map(|object| object.name.as_str()).collect();
    let committed = artifact.attempt();
    let attempts = names.iter().filter_map(|name| match Kind::of(name) {
        Kind::OfAttempt(attempt) if attempt.generation <= committed.generation => Some(attempt.tag()),
        _ => None,
    });
    let tags: HashSet<String> = attempts.chain([committed.tag()]).collect();
    for name in beside(artifact, &names, |tag| tags.contains(tag)) {
        artifact.stores.delete(&artifact.folder.object(name)).await?;
    }
    artifact.stores.tidy(artifact.url(), Some(&format!("-{}.", committed.tag()))).await
}

/// The names among these of objects that are no part of the artifact: of attempts that are over, and of files whose
/// tags are theirs. The records of the artifact's own parts stay, with all that they say of its files.
pub(super) fn beside<'a>(artifact: &Artifact, names: &[&'a str], is_over: impl Fn(&str) -> bool) -> Vec<&'a str> {
    let committed = artifact.attempt();
    let files = artifact.manifest().files.iter();
    let own: HashSet<String> = files.flat_map(|file| [file.name.clone(), blocks_name(&file.name)]).collect();
    let is_past = |attempt: &Attempt| attempt.generation <= committed.generation && *attempt != committed;
    let is_beside = |name: &&&str| match Kind::of(name) {
        Kind::OfAttempt(attempt) => is_past(&attempt),
        Kind::Tagged(tag) => is_over(&tag) && !own.contains(**name),
        Kind::Index => !artifact.manifest().index.contains_key(**name),
        Kind::Generation(_) | Kind::Other => false,
    };
    names.iter().filter(is_beside).copied().collect()
}
