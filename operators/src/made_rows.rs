//! The input rows of a table operator's call, and the rows that it makes.
//!
//! The rows of a window arrive in parts. A new row is identified by its *parent*, the input row from which it derives,
//! and its *ordinal*, its index among the rows with the same parent. The row's random key is computed from both, so
//! they must not depend on the division of the window into parts or on the order in which rows arrive.

use std::fmt::{self, Debug};

use arrow::array::{ArrayRef, UInt64Array};
use datafusion::common::{DataFusionError, Result};

/// One call of a table operator, ready to run.
pub trait MakeRows: Debug + Send + Sync {
    /// Makes rows from `window`, or from some of its rows if the operator's scope is one row.
    ///
    /// # Errors
    /// Returns [`WindowTooLarge`] if the window has too many rows for the operator.
    fn make<'a>(&'a self, window: &'a InputRows<'a>) -> Result<MadeRows<'a>>;
}

/// New rows, in parts of a moderate size.
pub type MadeRows<'a> = Box<dyn Iterator<Item = Result<Made>> + 'a>;

/// The input from which rows are made.
pub struct InputRows<'a> {
    /// The rows, as they arrived.
    pub parts: Vec<InputPart<'a>>,
    /// The indices of the operator's own columns that the result uses, ascending.
    pub wanted: &'a [usize],
    /// A function from a row's random key to its rank in the window's order. All ranks are equal if the feed is not
    /// shuffled.
    pub order: &'a (dyn Fn(u64) -> u64 + Sync),
    /// The index of the call among those of the query, for draws that no other call repeats.
    pub call: u64,
    /// The number of further bytes that the window may hold.
    pub bytes_max: u64,
}

/// Some rows of a window.
pub struct InputPart<'a> {
    /// The values that the plan reads.
    pub reads: &'a [ArrayRef],
    /// Their random keys.
    pub random_keys: &'a UInt64Array,
    /// The row of the pipeline's table from which each row derives.
    pub origins: &'a UInt64Array,
    /// The rows' ids. Origins and ids together order the rows of a window like its table.
    pub ids: &'a UInt64Array,
}

/// The position of an input row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowAt {
    /// The part's index.
    pub part: u32,
    /// The row's index in the part.
    pub row: u32,
}

/// Rows made from other rows.
#[derive(Clone, Debug, Default)]
pub struct Made {
    /// The input row from which each row derives.
    pub parents: Vec<RowAt>,
    /// The index of each row among those of its parent, or `None` for a row that is its parent. Such a row keeps its
    /// random key.
    pub ordinals: Vec<Option<u64>>,
    /// A second input row for each row, if the plan has [partners](crate::row_operator::RowPlan::has_partners).
    pub partners: Vec<RowAt>,
    /// The [wanted](InputRows::wanted) columns, in that order.
    pub columns: Vec<ArrayRef>,
}

impl InputRows<'_> {
    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.parts.iter().map(InputPart::len).sum()
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the positions of all rows, part by part.
    pub fn positions(&self) -> impl Iterator<Item = RowAt> {
        let rows = |(part, rows): (usize, &InputPart<'_>)| {
            (0..rows.len()).map(move |row| RowAt { part: part as u32, row: row as u32 })
        };
        self.parts.iter().enumerate().flat_map(rows)
    }

    /// Returns the part of a row, and the row's index in it.
    pub fn at(&self, row: RowAt) -> (&InputPart<'_>, usize) {
        (&self.parts[row.part as usize], row.row as usize)
    }

    /// Returns a row's random key.
    pub fn random_key(&self, row: RowAt) -> u64 {
        let (part, row) = self.at(row);
        part.random_keys.value(row)
    }

    /// Returns a row's position in its table. No two rows of a window have the same position.
    pub fn place(&self, row: RowAt) -> (u64, u64) {
        let (part, row) = self.at(row);
        (part.origins.value(row), part.ids.value(row))
    }
}

impl InputPart<'_> {
    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Made {
    /// Makes rows from input rows that stay unchanged.
    pub fn kept(parents: Vec<RowAt>) -> Self {
        Self { ordinals: vec![None; parents.len()], parents, ..Self::default() }
    }
}

/// A window has too many rows for a table operator.
#[derive(Clone, Debug)]
pub struct WindowTooLarge {
    /// The limit that the window exceeds.
    pub message: String,
    /// The advice to the user.
    pub hint: String,
}

impl WindowTooLarge {
    /// Returns the problem if `error` reports this one.
    pub fn of(error: &DataFusionError) -> Option<&Self> {
        match error.find_root() {
            DataFusionError::External(error) => error.downcast_ref(),
            _ => None,
        }
    }
}

impl fmt::Display for WindowTooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for WindowTooLarge {}

impl From<WindowTooLarge> for DataFusionError {
    fn from(error: WindowTooLarge) -> Self {
        Self::External(Box::new(error))
    }
}
