//! What a job would write, for a dry run.

use arrow::array::RecordBatch;
use forebay_protocol::JobEstimate;
use forebay_storage::artifact::JobState;

use super::Job;
use crate::error::Result;

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
            format: self.files.format.descriptor().name.to_owned(),
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
