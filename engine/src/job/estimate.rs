//! What a job would write, for a dry run.

use std::fmt;

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
    /// Files to write.
    pub files: u32,
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
        let core = self.feed.core();
        let mut writer = self.format.writer(&self.feed.schema(), "")?;
        let mut encoded = 0;
        for batch in &self.sample.batches {
            writer.write(batch)?;
        }
        writer.finish()?;
        while let Some(bytes) = writer.take()? {
            encoded += bytes.len() as u64;
        }
        let rows = self.sample.rows_of(self.source_rows());
        let bytes = (encoded as f64 * rows as f64 / self.sample.rows().max(1) as f64) as u64;
        let (files_written, is_complete) = match &self.state {
            JobState::Committed(artifact) => (artifact.manifest().files.len() as u64, true),
            JobState::Open(job) => (job.parts().await?.len() as u64, false),
        };
        Ok(JobEstimate {
            feed: self.feed.id().to_owned(),
            job: self.id.clone(),
            format: self.format.descriptor().name,
            source_rows: self.source_rows(),
            windows: self.plan.windows,
            files: self.files(),
            files_written,
            is_complete,
            sampled_rows: self.sample.rows(),
            sampled_bad_rows: self.sample.bad,
            rows,
            bytes: if self.sample.rows() == 0 { 0 } else { bytes },
            plan: core.stage.display(),
        })
    }
}

impl fmt::Display for JobEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "feed       {}", self.feed)?;
        writeln!(f, "job        {}", self.job)?;
        writeln!(f, "reads      {} source rows in {} windows", self.source_rows, self.windows)?;
        writeln!(
            f,
            "writes     about {} samples and {:.1} MB in {} {} files",
            self.rows,
            self.bytes as f64 / 1e6,
            self.files,
            self.format
        )?;
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
