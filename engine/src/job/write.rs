//! Writes one file of a job: computes the samples of its windows, encodes them and uploads the bytes.

use std::collections::BTreeMap;
use std::time::Instant;

use bytes::Bytes;
use forebay_storage::artifact::{self, DataFile, Part};
use forebay_storage::writers::FileWriter;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::window_samples::WindowSamples;
use super::{Job, JobProgress};
use crate::compile::BadRow;
use crate::error::{Error, Result};

/// The most different reasons of bad rows that a part's record lists, and the most characters of one.
const REASONS_MAX: usize = 16;
const REASON_CHARS_MAX: usize = 200;

/// Seconds that the steps of writing took. Steps of several files overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Costs {
    /// Waiting for samples to be read and computed.
    computing: f64,
    encoding: f64,
    /// Waiting for the store.
    storing: f64,
}

/// The sum of the costs of all parts.
pub(super) fn total_costs<'a>(parts: impl Iterator<Item = &'a Value>) -> Value {
    let total = parts.filter_map(|costs| Costs::deserialize(costs).ok()).fold(Costs::default(), |sum, costs| Costs {
        computing: sum.computing + costs.computing,
        encoding: sum.encoding + costs.encoding,
        storing: sum.storing + costs.storing,
    });
    serde_json::to_value(total).expect("plain data becomes JSON")
}

/// A file that has rows.
struct Open {
    writer: Box<dyn FileWriter>,
    file: DataFile,
    rows: u64,
}

impl Job {
    /// Writes and records file `number`. A file without samples is left out.
    pub(super) async fn write_part(&self, job: &artifact::Job, number: u64, progress: &JobProgress) -> Result<Part> {
        let mut open = None;
        match self.write_samples(job, number, progress, &mut open).await {
            Ok(part) => Ok(job.record(number, part).await?),
            Err(error) => {
                if let Some(Open { file, .. }) = open
                    && let Err(error) = file.abort().await
                {
                    tracing::debug!(job = %self.id, number, %error, "an unfinished file could not be given up");
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
        open: &mut Option<Open>,
    ) -> Result<Part> {
        let core = self.feed.core();
        let windows = self.plan.windows_of(u32::try_from(number).unwrap_or(u32::MAX));
        let mut samples = WindowSamples::new(core.clone(), windows, core.executor.threads());
        let (mut bad, mut costs) = (Vec::new(), Costs::default());
        let mut source_rows = 0;
        loop {
            let begun = Instant::now();
            let Some(next) = samples.next().await? else { break };
            costs.computing += begun.elapsed().as_secs_f64();
            bad.extend(next.bad);
            let rows: u64 = next.batches.iter().map(|batch| batch.num_rows() as u64).sum();
            let mut bytes = 0;
            if rows > 0 {
                let mut file = match open.take() {
                    Some(file) => file,
                    None => self.begin(job, number)?,
                };
                file.rows += rows;
                let (file, encoded) = self.encode(file, next.batches, &mut costs).await?;
                let file = open.insert(file);
                let begun = Instant::now();
                for encoded in encoded {
                    bytes += encoded.len() as u64;
                    file.file.write(encoded).await?;
                }
                costs.storing += begun.elapsed().as_secs_f64();
            }
            let done = samples.source_rows();
            progress.add(done - source_rows, rows, bytes);
            source_rows = done;
        }
        progress.add(samples.source_rows() - source_rows, 0, 0);
        if let (Some(folder), false) = (self.quarantine(), bad.is_empty()) {
            core.quarantine_in(&folder, &bad, 0, &format!("file-{number:06}")).await?;
        }
        let (bad_rows, bad_reasons) = (bad.len() as u64, reasons(&bad));
        let (file, facts) = match open.take() {
            Some(file) => self.finish(file, &mut costs, progress).await?,
            None => (None, Value::Null),
        };
        let rows_in = file.as_ref().map_or(0, |file| file.rows) + bad_rows;
        let costs = serde_json::to_value(costs).expect("plain data becomes JSON");
        Ok(Part { files: file.into_iter().collect(), rows_in, bad_rows, bad_reasons, costs, facts })
    }

    fn begin(&self, job: &artifact::Job, number: u64) -> Result<Open> {
        let writer = self.format.writer(&self.feed.schema(), &format!("{number:06}-"))?;
        let file = job.create(&format!("part-{number:06}"), self.format.extension())?;
        Ok(Open { writer, file, rows: 0 })
    }

    /// Encodes rows on the session's threads. Returns the bytes that can be stored.
    async fn encode(
        &self,
        Open { mut writer, file, rows }: Open,
        batches: Vec<arrow::array::RecordBatch>,
        costs: &mut Costs,
    ) -> Result<(Open, Vec<Bytes>)> {
        let mut task = self.feed.core().executor.spawn(async move {
            let begun = Instant::now();
            let mut encoded = Vec::new();
            for batch in &batches {
                writer.write(batch)?;
                while let Some(bytes) = writer.take()? {
                    encoded.push(bytes);
                }
            }
            Ok::<_, Error>((writer, encoded, begun.elapsed()))
        });
        let (writer, encoded, taken) = task.join().await??;
        costs.encoding += taken.as_secs_f64();
        Ok((Open { writer, file, rows }, encoded))
    }

    /// Writes the end of a file. Returns it, and what its format wants to know about it.
    async fn finish(
        &self,
        Open { mut writer, mut file, rows }: Open,
        costs: &mut Costs,
        progress: &JobProgress,
    ) -> Result<(Option<artifact::ArtifactFile>, Value)> {
        let begun = Instant::now();
        writer.finish()?;
        while let Some(bytes) = writer.take()? {
            progress.add(0, 0, bytes.len() as u64);
            file.write(bytes).await?;
        }
        let facts = writer.facts();
        let file = file.finish(rows).await?;
        costs.storing += begun.elapsed().as_secs_f64();
        Ok((Some(file), facts))
    }
}

/// How many rows were bad for which reason, the most frequent ones.
fn reasons(bad: &[BadRow]) -> BTreeMap<String, u64> {
    let mut counted: BTreeMap<String, u64> = BTreeMap::new();
    for bad in bad {
        *counted.entry(forebay_diagnostics::shortened(&bad.reason, REASON_CHARS_MAX).into_owned()).or_default() += 1;
    }
    let mut counted: Vec<_> = counted.into_iter().collect();
    counted.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    counted.truncate(REASONS_MAX);
    counted.into_iter().collect()
}
