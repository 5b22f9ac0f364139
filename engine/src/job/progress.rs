//! The progress of a job, for a progress bar.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_storage::artifact::Part;

/// Counts of what a job has written, this time and before.
#[derive(Debug, Default)]
pub struct JobProgress {
    files: AtomicU64,
    source_rows: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
    waits: AtomicBool,
}

impl JobProgress {
    /// Complete files.
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Source rows of the windows that are written.
    pub fn source_rows(&self) -> u64 {
        self.source_rows.load(Ordering::Relaxed)
    }

    /// Samples written.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Bytes written.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether the job waits for another process that writes the same files.
    pub fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    pub(super) fn set_waits(&self, waits: bool) {
        self.waits.store(waits, Ordering::Relaxed);
    }

    pub(super) fn add_file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a file that an earlier run has written.
    pub(super) fn add_part(&self, source_rows: u64, part: &Part) {
        let rows = part.files.iter().map(|file| file.rows).sum();
        let bytes = part.files.iter().map(|file| file.bytes).sum();
        self.add(source_rows, rows, bytes);
        self.add_file();
    }

    pub(super) fn add(&self, source_rows: u64, rows: u64, bytes: u64) {
        self.source_rows.fetch_add(source_rows, Ordering::Relaxed);
        self.rows.fetch_add(rows, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
