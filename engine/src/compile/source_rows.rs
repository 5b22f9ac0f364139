//! Rows of a window with what identifies them, and rows that derive from them.

use arrow::array::{ArrayRef, RecordBatch, UInt64Array};
use forebay_operators::random_key;

/// Splits the hash space of the keys of derived rows from that of others.
const DERIVED_DOMAIN: u64 = 0x6d61_6465_0000;

/// Rows of the driving table, or rows derived from them, with their hidden columns. `batch` has the columns that are to
/// be read.
#[derive(Clone)]
pub(crate) struct SourceRows {
    pub(crate) batch: RecordBatch,
    pub(crate) sample_ids: UInt64Array,
    pub(crate) random_keys: UInt64Array,
    /// The rows of the driving table that they derive from; `None` if they are these.
    pub(crate) origins: Option<UInt64Array>,
    /// The longest length of rows in the same global step, once rows are grouped by length; 0 in feeds without groups.
    pub(crate) step_lengths: Option<UInt64Array>,
}

impl SourceRows {
    /// The row of the driving table that each row is, or derives from.
    pub(crate) fn origins(&self) -> &UInt64Array {
        self.origins.as_ref().unwrap_or(&self.sample_ids)
    }

    /// The row of the driving table that row `at` is, or derives from.
    pub(crate) fn origin(&self, at: usize) -> u64 {
        self.origins().value(at)
    }

    /// Some of them, not copied.
    pub(crate) fn slice(&self, from: usize, rows: usize) -> Self {
        let slice = |array: &UInt64Array| array.slice(from, rows);
        Self {
            batch: self.batch.slice(from, rows),
            sample_ids: slice(&self.sample_ids),
            random_keys: slice(&self.random_keys),
            origins: self.origins.as_ref().map(slice),
            step_lengths: self.step_lengths.as_ref().map(slice),
        }
    }
}

/// Rows that each derive from one row of a batch.
pub(crate) struct Expansion {
    pub(crate) columns: Vec<ArrayRef>,
    /// The row of the batch that each derives from.
    pub(crate) parents: Vec<u32>,
    /// The index of each among the rows of its parent; `None` for a row that is its parent, with other columns.
    pub(crate) ordinals: Vec<Option<u64>>,
}

/// Rows that derive from others, without ids.
pub(crate) struct DerivedRows {
    pub(crate) columns: Vec<ArrayRef>,
    pub(crate) random_keys: Vec<u64>,
    pub(crate) origins: Vec<u64>,
}

impl Expansion {
    /// These rows with the identities that they derive from `rows`.
    pub(crate) fn of(self, rows: &SourceRows) -> DerivedRows {
        let Self { columns, parents, ordinals } = self;
        let key =
            |(&parent, ordinal): (&u32, Option<u64>)| derived_key(rows.random_keys.value(parent as usize), ordinal);
        let origin = |&parent: &u32| rows.origin(parent as usize);
        let random_keys = parents.iter().zip(ordinals).map(key).collect();
        DerivedRows { columns, random_keys, origins: parents.iter().map(origin).collect() }
    }
}

/// The random key of a row: a hash of its parent's and of its ordinal there, or its parent's if it is that row.
pub(crate) fn derived_key(parent: u64, ordinal: Option<u64>) -> u64 {
    ordinal.map_or(parent, |ordinal| random_key(parent, DERIVED_DOMAIN, ordinal))
}
