//! What a call of a table operator runs over, and the rows it makes.
//!
//! Rows of a window arrive in parts. A new row is described by its *parent*, the input row that it derives from, and by
//! its *ordinal*, its index among the rows that derive from the same parent. Both together are the row's identity: its
//! random key follows from them, so they must not depend on how the window is divided into parts, nor on the order in
//! which its rows arrive.

use std::fmt::{self, Debug};

use arrow::array::{ArrayRef, UInt64Array};
use datafusion::common::{DataFusionError, Result};

/// One call of a table operator, ready to run.
pub trait MakeRows: Debug + Send + Sync {
    /// The rows made of `window`, or of some of its rows if the operator's scope is one row.
    ///
    /// # Errors
    /// [`WindowTooLarge`] if the rows of the window are too many for the operator.
    fn make<'a>(&'a self, window: &'a InputRows<'a>) -> Result<MadeRows<'a>>;
}

/// Rows that were made, in parts of a moderate size.
pub type MadeRows<'a> = Box<dyn Iterator<Item = Result<Made>> + 'a>;

/// What rows are made of.
pub struct InputRows<'a> {
    /// The rows, as they arrived.
    pub parts: Vec<InputPart<'a>>,
    /// Of the columns that the operator makes itself, those that are read of the result, ascending.
    pub wanted: &'a [usize],
    /// Where a row with some random key comes in the window's order: all rows are equal where the feed is not shuffled.
    pub order: &'a (dyn Fn(u64) -> u64 + Sync),
    /// The index of the call among those of the query, for draws that no other call repeats.
    pub call: u64,
    /// How many more bytes of rows the window may hold.
    pub bytes_max: u64,
}

/// Some rows of a window.
pub struct InputPart<'a> {
    /// What the plan reads of them.
    pub reads: &'a [ArrayRef],
    /// Their random keys.
    pub random_keys: &'a UInt64Array,
    /// Of each the row of the pipeline's table that it derives from.
    pub origins: &'a UInt64Array,
    /// Their ids. With the origins they order the rows of a window as its table does.
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

/// Rows made of others.
#[derive(Clone, Debug, Default)]
pub struct Made {
    /// The input row that each row derives from.
    pub parents: Vec<RowAt>,
    /// The index of each row among those of its parent, or `None` for a row that is its parent: it keeps the random
    /// key.
    pub ordinals: Vec<Option<u64>>,
    /// A second input row for each row, if the plan has [partners](crate::row_operator::RowPlan::has_partners).
    pub partners: Vec<RowAt>,
    /// The columns that are [wanted](InputRows::wanted), in that order.
    pub columns: Vec<ArrayRef>,
}

impl InputRows<'_> {
    /// The number of rows.
    pub fn len(&self) -> usize {
        self.parts.iter().map(InputPart::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The positions of all rows, part by part.
    pub fn positions(&self) -> impl Iterator<Item = RowAt> {
        let rows = |(part, rows): (usize, &InputPart<'_>)| {
            (0..rows.len()).map(move |row| RowAt { part: part as u32, row: row as u32 })
        };
        self.parts.iter().enumerate().flat_map(rows)
    }

    /// The part that a row is in, and the row's index there.
    pub fn at(&self, row: RowAt) -> (&InputPart<'_>, usize) {
        (&self.parts[row.part as usize], row.row as usize)
    }

    /// A row's random key.
    pub fn random_key(&self, row: RowAt) -> u64 {
        let (part, row) = self.at(row);
        part.random_keys.value(row)
    }

    /// Where a row comes in its table: no two rows of a window have the same place.
    pub fn place(&self, row: RowAt) -> (u64, u64) {
        let (part, row) = self.at(row);
        (part.origins.value(row), part.ids.value(row))
    }
}

impl InputPart<'_> {
    /// The number of rows.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Made {
    /// Input rows that stay as they are.
    pub fn kept(parents: Vec<RowAt>) -> Self {
        Self { ordinals: vec![None; parents.len()], parents, ..Self::default() }
    }
}

/// A window has too many rows for a table operator.
#[derive(Clone, Debug)]
pub struct WindowTooLarge {
    /// What is too much.
    pub message: String,
    /// What to do about it.
    pub hint: String,
}

impl WindowTooLarge {
    /// The problem that `error` reports, if it is this one.
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
