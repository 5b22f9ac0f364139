//! The result of a job.

use forebay_protocol::wire::JobResult;
use forebay_storage::artifact::{Artifact, ArtifactFile, Manifest};

/// Samples that a job has written.
#[derive(Clone, Debug)]
pub struct Materialized {
    url: String,
    manifest: Manifest,
    found: bool,
    quarantine: Option<String>,
}

impl Materialized {
    pub(crate) fn new(artifact: &Artifact, found: bool, quarantine: Option<String>) -> Self {
        let manifest = artifact.manifest().clone();
        Self { url: artifact.url().to_owned(), manifest, found, quarantine }
    }

    /// The folder, as an absolute path or URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The id of the job.
    pub fn job(&self) -> &str {
        &self.manifest.job
    }

    /// Whether an earlier run wrote them.
    pub fn found(&self) -> bool {
        self.found
    }

    /// The files, in the order of the samples, with the numbers of their samples and bytes.
    pub fn files(&self) -> &[ArtifactFile] {
        &self.manifest.files
    }

    /// Samples in all files.
    pub fn rows(&self) -> u64 {
        self.manifest.rows_out
    }

    /// Rows that could not be computed, and are left out.
    pub fn bad_rows(&self) -> u64 {
        self.manifest.bad_rows
    }

    /// Source rows that were read, including those that the query's filters left out.
    pub fn source_rows(&self) -> u64 {
        self.manifest.lineage.get("source_rows").and_then(|rows| rows.parse().ok()).unwrap_or(0)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.manifest.files.iter().map(|file| file.bytes).sum()
    }

    /// The numbers, for a user.
    pub fn result(&self) -> JobResult {
        JobResult {
            url: self.url.clone(),
            job: self.job().to_owned(),
            found: self.found,
            files: self.files().len(),
            source_rows: self.source_rows(),
            rows: self.rows(),
            bad_rows: self.bad_rows(),
            bytes: self.bytes(),
            quarantine: self.quarantine().map(str::to_owned),
        }
    }

    /// The folder of the record of bad rows, if there are any and the feed keeps one.
    pub fn quarantine(&self) -> Option<&str> {
        self.quarantine.as_deref().filter(|_| self.bad_rows() > 0)
    }
}
