//! Writes one file of a job: computes the samples of its windows, encodes them and uploads the bytes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatch;
use forebay_storage::artifact::{self, Part};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::Value;

use super::JobProgress;
use super::files::JobFiles;
use super::output_file::OpenFile;
use super::window_samples::WindowSamples;
use crate::error::Result;
use crate::feed::{FeedCosts, Step};

/// The most different reasons of bad rows that a part's record lists, and the most characters of one.
const REASONS_MAX: usize = 16;
const REASON_CHARS_MAX: usize = 200;

/// The sum of the costs of all parts.
pub(super) fn total_costs<'a>(parts: impl Iterator<Item = &'a Value>) -> Value {
    let mut total = FeedCosts::default();
    parts.filter_map(|costs| FeedCosts::deserialize(costs).ok()).for_each(|costs| total.add(costs));
    serde_json::to_value(total).expect("plain data becomes JSON")
}

impl JobFiles {
    /// Writes and records file `number`. A file without samples is left out. Boxed, because every crate above
    /// would check the whole future for `Send` again.
    pub(super) fn write_part<'a>(
        &'a self,
        job: &'a artifact::Job,
        number: u64,
        progress: &'a JobProgress,
    ) -> BoxFuture<'a, Result<Part>> {
        self.written_part(job, number, progress).boxed()
    }

    async fn written_part(&self, job: &artifact::Job, number: u64, progress: &JobProgress) -> Result<Part> {
        let mut open = BTreeMap::new();
        match self.write_samples(job, number, progress, &mut open).await {
            Ok(part) => Ok(job.record(number, part).await?),
            Err(error) => {
                for open in open.into_values() {
                    open.abort().await;
                }
                Err(error)
            }
        }
    }

    async fn write_samples(
        &self,
        job: &artifact::Job,
        number: u64,
        progress: &JobProgress,
        open: &mut BTreeMap<String, OpenFile>,
    ) -> Result<Part> {
        let core = self.feed.core();
        let windows = self.plan.windows_of(u32::try_from(number).unwrap_or(u32::MAX));
        let mut samples = WindowSamples::new(core.clone(), windows, core.executor.threads());
        let mut bad = Vec::new();
        let mut source_rows = 0;
        loop {
            let Some(next) = samples.next().await? else { break };
            bad.extend(next.bad);
            let rows = rows_of(&next.batches);
            let mut bytes = 0;
            if rows > 0 {
                let partitions = Arc::clone(&self.partitions);
                let mut task = core.executor.spawn(async move { partitions.divided(next.batches) });
                for (folder, batches) in task.join().await?? {
                    let file = match open.entry(folder) {
                        Entry::Occupied(file) => file.into_mut(),
                        Entry::Vacant(file) => {
                            let begun = self.begin(job, number, file.key())?;
                            file.insert(begun)
                        }
                    };
                    bytes += file.write(&core.executor, self.feed.meter(), batches, false).await?;
                }
                self.partitions.check_count(open.len())?;
            }
            let done = samples.source_rows();
            progress.add(done - source_rows, rows, bytes);
            source_rows = done;
        }
        progress.add(samples.source_rows() - source_rows, 0, 0);
        if let (Some(folder), false) = (self.quarantine(), bad.is_empty()) {
            core.quarantine_in(&folder, &bad, 0, &format!("file-{number:06}")).await?;
        }
        let (bad_rows, bad_reasons) = (bad.len() as u64, reasons(bad.iter().map(|bad| bad.reason.as_str())));
        let (mut files, mut facts) = (Vec::new(), Value::Null);
        while let Some(mut entry) = open.first_entry() {
            let file = entry.get_mut();
            progress.add(0, 0, file.write(&core.executor, self.feed.meter(), Vec::new(), true).await?);
            // Formats with facts have one file.
            facts = file.facts();
            let file = entry.remove();
            let begun = Instant::now();
            files.push(file.complete(job, number).await?);
            core.meter.count(Step::Storing, begun);
        }
        let rows_in = files.iter().map(|file| file.rows).sum::<u64>() + bad_rows;
        let costs = serde_json::to_value(self.new_costs()).expect("plain data becomes JSON");
        Ok(Part { files, rows_in, bad_rows, bad_reasons, costs, facts })
    }

    /// Begins a file of rows of part `number` in a folder.
    fn begin(&self, job: &artifact::Job, number: u64, folder: &str) -> Result<OpenFile> {
        let writer = self.format.writer(&self.partitions.file_schema, &format!("{number:06}-"))?;
        let file = job.create(&format!("{folder}part-{number:06}"), self.format.extension())?;
        Ok(OpenFile::new(writer, file))
    }
}

fn rows_of(batches: &[RecordBatch]) -> u64 {
    batches.iter().map(|batch| batch.num_rows() as u64).sum()
}

/// How many rows were bad for which reason, the most frequent ones.
pub(crate) fn reasons<'a>(bad: impl Iterator<Item = &'a str>) -> BTreeMap<String, u64> {
    let mut counted: BTreeMap<String, u64> = BTreeMap::new();
    for reason in bad {
        *counted.entry(forebay_diagnostics::shortened(reason, REASON_CHARS_MAX).into_owned()).or_default() += 1;
    }
    let mut counted: Vec<_> = counted.into_iter().collect();
    counted.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    counted.truncate(REASONS_MAX);
    counted.into_iter().collect()
}
