//! What a reader sees of a dispatcher's status: its own pipelines, and nothing that names another reader's job.
//!
//! Who knows a job's name can replace the job's ranks, so readers see a hash in its place. The server cannot tell which
//! sessions are the caller's own, so it shows none: each is 0.

use std::collections::HashSet;
use std::sync::Arc;

use forebay_delivery::Status;

/// Hides the names of jobs from readers. Two servers give one name two hashes, so that no table of likely names helps.
pub(crate) struct NameHash([u8; 32]);

impl NameHash {
    pub(crate) fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    fn of(&self, name: &str) -> String {
        blake3::keyed_hash(&self.0, name.as_bytes()).to_hex()[..16].to_owned()
    }
}

/// Returns the part of a status that a reader of these feeds sees; `None` stands for all feeds.
pub(crate) fn redacted(mut status: Status, readable: Option<&HashSet<Arc<str>>>, names: &NameHash) -> Status {
    let is_readable = |feed: &str| readable.is_none_or(|feeds| feeds.contains(feed));
    status.feeds.retain(|feed| is_readable(&feed.feed));
    for feed in &mut status.feeds {
        feed.readers.iter_mut().for_each(|reader| reader.session = 0);
        feed.jobs.iter_mut().for_each(|job| job.job = names.of(&job.job));
    }
    for worker in &mut status.workers {
        worker.refused.retain(|(feed, _)| is_readable(feed));
        // The object may be a file of any pipeline.
        if let (Some(_), Some(wait)) = (readable, &mut worker.store_wait) {
            wait.object.clear();
        }
    }
    if readable.is_some() {
        status.store_wait.iter_mut().for_each(|wait| wait.object.clear());
        // Its rates are those of all pipelines.
        status.scaling = None;
        status.feeds.iter_mut().for_each(|feed| feed.keeps = None);
        // An error of a script quotes its text, which may hold any pipeline.
        status.scripts_failed.clear();
    }
    status
}
