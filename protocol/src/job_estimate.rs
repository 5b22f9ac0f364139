//! The estimate of a job, for a dry run.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a job would write, estimated from a sample of the first window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobEstimate {
    /// The feed's id.
    pub feed: String,
    /// The job's id.
    pub job: String,
    /// The files' format.
    pub format: String,
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

impl fmt::Display for JobEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "feed       {}", self.feed)?;
        writeln!(f, "job        {}", self.job)?;
        writeln!(f, "reads      {} source rows in {} windows", self.source_rows, self.windows)?;
        let (files, format) = (self.files, &self.format);
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
