//! The rows that a stage leaves out: those that cannot be read, if its pipeline's `WITH` has `on_error`.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use forebay_protocol::OnError;
use forebay_storage::{BadRead, Snapshot};
use parking_lot::Mutex;

use crate::error::{Error, ErrorKind, Result};
use crate::feed::quarantine::{QuarantinedRow, records};
use crate::job::reasons;

/// More rows than this are an error: all of them are held in memory.
const ROWS_MAX: usize = 100_000;

/// The rows that have been left out. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct LeftOut {
    pub(super) on_error: OnError,
    /// The reasons, by file and row. A row that is read twice is one, and has the first reason in their order.
    rows: Arc<Mutex<BTreeMap<(String, u64), String>>>,
}

impl LeftOut {
    /// `None` if a bad row is an error.
    pub(super) fn new(on_error: OnError) -> Option<Self> {
        (on_error != OnError::Raise).then(|| Self { on_error, rows: Arc::default() })
    }

    /// Leaves out bad rows of a table.
    ///
    /// # Errors
    /// `Data` if there are too many.
    pub(super) fn add(&self, snapshot: &Snapshot, bad: Vec<BadRead>) -> Result<()> {
        let mut rows = self.rows.lock();
        for BadRead { sample_id, reason } in bad {
            let (file, row) = snapshot.locate(sample_id);
            let known = rows.entry((snapshot.files()[file].path.clone(), row)).or_insert_with(|| reason.clone());
            if reason < *known {
                *known = reason;
            }
        }
        match rows.first_key_value() {
            Some(((file, row), reason)) if rows.len() > ROWS_MAX => Err(Error::new(
                ErrorKind::Data,
                format!("more than {ROWS_MAX} rows cannot be read, such as \"{file}\", row {row}: {reason}"),
            )
            .with_hint("declare the columns as they are in the files")),
            _ => Ok(()),
        }
    }

    /// What has been left out so far.
    pub(super) fn so_far(&self) -> BadRows {
        BadRows(self.rows.lock().clone())
    }
}

/// Rows with their reasons.
pub(super) struct BadRows(BTreeMap<(String, u64), String>);

impl BadRows {
    pub(super) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// How many rows are bad for which reason, the most frequent ones.
    pub(super) fn reasons(&self) -> BTreeMap<String, u64> {
        reasons(self.0.values().map(String::as_str))
    }

    /// The rows as [quarantined rows](crate::feed::quarantine) of the stage with this fingerprint.
    pub(super) fn records(&self, stage: &str) -> Result<RecordBatch> {
        let rows = self.0.iter().map(|((file, row), reason)| QuarantinedRow { file, row: *row, reason });
        records(stage, 0, &rows.collect::<Vec<_>>())
    }
}
