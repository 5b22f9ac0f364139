//! The files of a job: how the first epoch of a feed is divided and encoded.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_protocol::OnError;
use forebay_storage::artifact::Part;
use forebay_storage::writers::OutputFormat;
use parking_lot::Mutex;

use super::partitions::Partitions;
use super::plan::JobPlan;
use crate::feed::{Feed, FeedCosts};

/// All that a process needs to write some files of a job.
pub(super) struct JobFiles {
    pub(super) feed: Feed,
    pub(super) format: OutputFormat,
    pub(super) partitions: Arc<Partitions>,
    pub(super) plan: JobPlan,
    /// The job's id.
    pub(super) id: String,
    /// The feed's costs that are in the record of a file, or were there before.
    recorded: Mutex<FeedCosts>,
}

impl JobFiles {
    pub(super) fn new(feed: Feed, format: OutputFormat, partitions: Partitions, plan: JobPlan, id: String) -> Self {
        let recorded = Mutex::new(feed.meter().costs());
        Self { feed, format, partitions: Arc::new(partitions), plan, id, recorded }
    }

    /// What the feed has cost since the last call. Files are written at the same time, so a file's record has the costs
    /// of others too; the sum over all files is right.
    pub(super) fn new_costs(&self) -> FeedCosts {
        let mut recorded = self.recorded.lock();
        let now = self.feed.meter().costs();
        let new = now.since(&recorded);
        *recorded = now;
        new
    }

    /// The numbers of the files that are not among `parts`.
    pub(super) fn missing(&self, parts: &BTreeMap<u64, Part>) -> Vec<u64> {
        (0..self.plan.files()).map(u64::from).filter(|number| !parts.contains_key(number)).collect()
    }

    pub(super) fn source_rows_of(&self, file: u64) -> u64 {
        let windows = self.plan.windows_of(u32::try_from(file).unwrap_or(u32::MAX));
        let epoch = self.feed.core().plan.epoch(0);
        epoch.rows_before(windows.end) - epoch.rows_before(windows.start)
    }

    /// The folder of the bad rows, if the feed records them.
    pub(super) fn quarantine(&self) -> Option<String> {
        let is_kept = self.feed.settings().on_error == OnError::Quarantine;
        is_kept.then(|| format!("{}/job-{}", self.feed.quarantine_url(), self.id))
    }
}
