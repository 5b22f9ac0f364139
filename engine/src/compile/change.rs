//! The operators of a query that change a window's set of rows.

use datafusion::error::Result;
use datafusion::logical_expr as plan;

use super::lookup::Join;
use super::table_call::TableCall;
use super::unnest::Unnest;

/// An operator that derives rows.
pub(crate) enum Change {
    /// One row for each item of a list.
    Unnest(Unnest),
    /// Rows joined with their matches in a lookup table held in memory.
    Join(Box<Join>),
    /// The rows that a table operator derives.
    Call(TableCall),
    /// The rows as they are. What lies below is kept.
    Keep,
}

impl Change {
    pub(crate) fn unnest(node: &plan::Unnest) -> Result<Self> {
        Unnest::new(node).map(Self::Unnest)
    }

    /// The operator's name, used in table names and in `EXPLAIN`.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Unnest(_) => "unnest",
            Self::Join(_) => "join",
            Self::Call(call) => call.name(),
            Self::Keep => "prefix",
        }
    }

    /// The input columns that the operator needs to produce the columns `made`.
    pub(crate) fn needs(&self, made: &[usize]) -> Vec<usize> {
        match self {
            Self::Unnest(unnest) => unnest.needs(made),
            Self::Join(join) => join.needs(made),
            Self::Call(call) => call.needs(made),
            Self::Keep => made.to_vec(),
        }
    }
}
