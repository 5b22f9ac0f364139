//! What changes the set of rows inside a window: one value for each such operator of a query.
//!
//! A change says which columns of its input it needs for the columns that are read of it, and makes rows of rows. It
//! knows nothing of identity and randomness: it says of each row it makes which row it comes from and where in it, and
//! [`Layer`](super::Layer) derives the rest from that.

use arrow::array::ArrayRef;
use datafusion::error::Result;
use datafusion::logical_expr as plan;
use forebay_operators::near_duplicates;
use forebay_operators::pack::Pack;

use super::lookup::Join;
use super::near_duplicates::NearDuplicates;
use super::pair::Pair;
use super::unnest::Unnest;

/// An operator that makes rows.
pub(crate) enum Change {
    Unnest(Unnest),
    /// Rows with what is found for them in a table that is held in memory.
    Join(Box<Join>),
    /// Of documents as lists of int32, tokens and bounds of sequences.
    Pack(Pack),
    /// Rows with the columns of another, for a call of this name.
    Pair(&'static str, Pair),
    /// Rows without those that are similar to one before them.
    NearDuplicates(NearDuplicates),
}

/// Rows made of others.
pub(crate) struct Made {
    pub(crate) columns: Vec<ArrayRef>,
    /// The row of the input that each comes from.
    pub(crate) parents: Vec<u32>,
    /// Which of the rows made of its parent each is; with the parent it tells all rows of a window apart. `None` for one
    /// that is its parent, with other columns.
    pub(crate) ordinals: Vec<Option<u64>>,
}

impl Change {
    pub(crate) fn unnest(node: &plan::Unnest) -> Result<Self> {
        Unnest::new(node).map(Self::Unnest)
    }

    /// Its name, for names of tables and for `EXPLAIN`.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Unnest(_) => "unnest",
            Self::Join(_) => "join",
            Self::Pack(_) => "pack",
            Self::Pair(name, _) => name,
            Self::NearDuplicates(_) => near_duplicates::DESCRIPTOR.name,
        }
    }

    /// Whether it needs all rows of a window before it makes any.
    pub(crate) fn is_of_window(&self) -> bool {
        matches!(self, Self::Pack(_) | Self::Pair(..) | Self::NearDuplicates(_))
    }

    /// The columns of the input that it needs to make the columns `made`.
    pub(crate) fn needs(&self, made: &[usize]) -> Vec<usize> {
        match self {
            Self::Unnest(unnest) => unnest.needs(made),
            Self::Join(join) => join.needs(made),
            Self::Pack(_) => vec![0],
            Self::Pair(_, pair) => pair.needs(made),
            Self::NearDuplicates(distinct) => distinct.needs(made),
        }
    }
}
