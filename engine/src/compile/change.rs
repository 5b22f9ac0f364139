//! The operators of a query that change the set of rows of a window.

use datafusion::error::Result;
use datafusion::logical_expr as plan;

use super::lookup::Join;
use super::table_call::TableCall;
use super::unnest::Unnest;

/// An operator that makes rows.
pub(crate) enum Change {
    /// A row for each item of a list.
    Unnest(Unnest),
    /// Rows with the rows found for them in a table that is held in memory.
    Join(Box<Join>),
    /// The rows that a table operator makes.
    Call(TableCall),
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
            Self::Call(call) => call.name(),
        }
    }

    /// The columns of the input that the operator needs to make the columns `made`.
    pub(crate) fn needs(&self, made: &[usize]) -> Vec<usize> {
        match self {
            Self::Unnest(unnest) => unnest.needs(made),
            Self::Join(join) => join.needs(made),
            Self::Call(call) => call.needs(made),
        }
    }
}
