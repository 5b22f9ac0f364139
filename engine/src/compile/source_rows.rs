//! Rows of a window with their identities, and rows that derive from them.

use arrow::array::{ArrayRef, RecordBatch, UInt64Array};
use forebay_operators::random_key;

/// Separates the hash space of derived rows' keys from that of other rows.
const DERIVED_DOMAIN: u64 = 0x6d61_6465_0000;

/// Rows of the driving table, or rows derived from them, with their hidden columns. `batch` has only the columns to
/// read.
#[derive(Clone)]
pub(crate) struct SourceRows {
    pub(crate) batch: RecordBatch,
    pub(crate) sample_ids: UInt64Array,
    pub(crate) random_keys: UInt64Array,
    /// The rows of the driving table that they derive from; `None` if these are rows of the driving table.
    pub(crate) origins: Option<UInt64Array>,
    /// The longest length of rows in the same global step, once rows are grouped by length. 0 in feeds without groups.
    pub(crate) step_lengths: Option<UInt64Array>,
}

impl SourceRows {
    /// The row of the driving table that each row is or derives from.
    pub(crate) fn origins(&self) -> &UInt64Array {
        self.origins.as_ref().unwrap_or(&self.sample_ids)
    }

    /// The row of the driving table that row `at` is or derives from.
    pub(crate) fn origin(&self, at: usize) -> u64 {
        self.origins().value(at)
    }

    /// A slice of the rows, without copying.
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
    /// Each row's parent in the batch.
    pub(crate) parents: Vec<u32>,
    /// Each row's index among the rows of its parent. `None` for a row that is its parent, with other columns.
    pub(crate) ordinals: Vec<Option<u64>>,
}

/// Rows that derive from others, without ids.
pub(crate) struct DerivedRows {
    pub(crate) columns: Vec<ArrayRef>,
    pub(crate) random_keys: Vec<u64>,
    pub(crate) origins: Vec<u64>,
}

impl Expansion {
    /// Assigns the identities that these rows derive from `rows`.
    pub(crate) fn of(self, rows: &SourceRows) -> DerivedRows {
        let Self { columns, parents, ordinals } = self;
        let key =
            |(&parent, ordinal): (&u32, Option<u64>)| derived_key(rows.random_keys.value(parent as usize), ordinal);
        let origin = |&parent: &u32| rows.origin(parent as usize);
        let random_keys = parents.iter().zip(ordinals).map(key).collect();
        DerivedRows { columns, random_keys, origins: parents.iter().map(origin).collect() }
    }
}

/// A row's random key: a hash of its parent's key and its ordinal there. A row that is its parent keeps the parent's
/// key.
pub(crate) fn derived_key(parent: u64, ordinal: Option<u64>) -> u64 {
    ordinal.map_or(parent, |ordinal| random_key(parent, DERIVED_DOMAIN, ordinal))
}
