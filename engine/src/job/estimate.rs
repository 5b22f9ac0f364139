//! What a job would write, for a dry run.

use std::fmt;

use arrow::array::RecordBatch;
use forebay_storage::artifact::JobState;
use serde::Serialize;

use super::Job;
use crate::error::Result;

/// What a job would write, estimated from a sample of the first window.
#[derive(Clone, Debug, Serialize)]
pub struct JobEstimate {
    /// The feed's id.
    pub feed: String,
    /// The job's id.
    pub job: String,
    /// The files' format.
    pub format: &'static str,
    /// Source rows to read.
    pub source_rows: u64,
    /// Windows to compute.
    pub windows: u32,
    /// Files to write, or parts of the job with a file in each of some folders.
    pub files: u32,
    /// The columns whose values are names of folders.
    pub partition_by: Vec<String>,
    /// Files that an earlier run has written.
    pub files_written: u64,
    /// Whether an earlier run has finished the job.
    pub is_complete: bool,
    /// Samples in the sample.
    pub sampled_rows: u64,
    /// Bad rows in the sample.
    pub sampled_bad_rows: u64,
    /// The estimated number of samples.
    pub rows: u64,
    /// The estimated bytes of all files.
    pub bytes: u64,
    /// The plan that computes the samples.
    pub plan: String,
}

impl Job {
    /// Estimates what the job would write. Encodes the sample, and writes nothing.
    ///
    /// # Errors
    /// Errors of encoding, and of listing the target.
    pub async fn estimate(&self) -> Result<JobEstimate> {
        let core = self.files.feed.core();
        let rows = self.sample.rows_of(self.source_rows());
        let bytes = self.estimated_bytes(rows)?;
        let (files_written, is_complete) = match &self.state {
            JobState::Committed(artifact) => (artifact.manifest().files.len() as u64, true),
            JobState::Open(job) => (job.parts().await?.len() as u64, false),
        };
        Ok(JobEstimate {
            feed: self.files.feed.id().to_owned(),
            job: self.files.id.clone(),
            format: self.files.format.descriptor().name,
            source_rows: self.source_rows(),
            windows: self.files.plan.windows,
            files: self.files(),
            partition_by: self.files.partitions.names(),
            files_written,
            is_complete,
            sampled_rows: self.sample.rows(),
            sampled_bad_rows: self.sample.bad,
            rows,
            bytes,
            plan: core.stage.display(),
        })
    }

    /// The estimated bytes of all files if they have `rows` rows together. One row of the sample, encoded alone, shows
    /// how much of a file does not grow with its rows.
    fn estimated_bytes(&self, rows: u64) -> Result<u64> {
        let batches = &self.sample.batches;
        let Some(first) = batches.iter().find(|batch| batch.num_rows() > 0) else { return Ok(0) };
        let (one, all) = (self.encoded_bytes(&[first.slice(0, 1)])?, self.encoded_bytes(batches)?);
        let sampled = self.sample.rows();
        let per_row = if sampled > 1 { (all - one).max(0.0) / (sampled - 1) as f64 } else { one };
        Ok((per_row * rows as f64 + (one - per_row).max(0.0) * f64::from(self.files())) as u64)
    }

    /// The bytes of a file with these rows.
    fn encoded_bytes(&self, batches: &[RecordBatch]) -> Result<f64> {
        let partitions = &self.files.partitions;
        let mut writer = self.files.format.writer(&partitions.file_schema, "")?;
        for batch in batches {
            writer.write(&partitions.in_files(batch)?)?;
        }
        writer.finish()?;
        let mut encoded = 0;
        while let Some(bytes) = writer.take()? {
            encoded += bytes.len();
        }
        Ok(encoded as f64)
    }
}

impl fmt::Display for JobEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "feed       {}", self.feed)?;
        writeln!(f, "job        {}", self.job)?;
        writeln!(f, "reads      {} source rows in {} windows", self.source_rows, self.windows)?;
        let (files, format) = (self.files, self.format);
        let files = match self.partition_by.is_empty() {
            true => format!("{files} {format} files"),
            false => format!("{files} parts of {format} files by {}", self.partition_by.join(", ")),
        };
        writeln!(f, "writes     about {} samples and {:.1} MB in {files}", self.rows, self.bytes as f64 / 1e6)?;
        match (self.is_complete, self.files_written) {
            (true, _) => writeln!(f, "           an earlier run has written all of it")?,
            (false, 0) => {}
            (false, files) => writeln!(f, "           an earlier run has written {files} of these files")?,
        }
        writeln!(
            f,
            "estimated  from {} samples of the first window, and {} bad rows there",
            self.sampled_rows, self.sampled_bad_rows
        )?;
        write!(f, "plan\n{}", self.plan.trim_end())
    }
}
