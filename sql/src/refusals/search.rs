//! The search for refusals: its state, how it refuses, and the messages that several refusals share.

use datafusion::execution::SessionState;
use datafusion::sql::sqlparser::tokenizer::Span;

use crate::tokens::Tokens;
use crate::{Error, Place};

pub(super) const BEFOREHAND: &str = "compute it beforehand, write it to files, and create a table over them";

/// A use of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Samples of a feed. It computes each row separately, and what needs whole tables beforehand.
    Feed,
    /// Rows that are computed once, from whole tables.
    Rows,
}

/// A search through a query, and its refusals so far.
pub(super) struct Search<'a> {
    pub(super) purpose: Purpose,
    pub(super) state: &'a SessionState,
    pub(super) tokens: &'a Tokens,
    pub(super) errors: Vec<Error>,
    /// Whether a part of the query depends on more rows of a table than one, and no lookup gives them.
    pub(super) needs_tables: bool,
    /// Whether the outermost query was visited.
    pub(super) has_begun: bool,
    /// The number of joins of each FROM, and the place of the first that a feed would not look up.
    pub(super) joins: Vec<(usize, Place)>,
    /// The last place visited, for nodes without a place.
    pub(super) here: Place,
    /// The calls of UNNEST in supported positions.
    pub(super) unnests: Vec<Place>,
    /// The subqueries passed to table operators.
    pub(super) packed: Vec<Place>,
    /// The subqueries that are conditions of a SELECT, alone or combined with AND.
    pub(super) memberships: Vec<Place>,
    /// All subqueries in conditions of a SELECT.
    pub(super) conditions: Vec<Place>,
}

impl Search<'_> {
    pub(super) fn is_feed(&self) -> bool {
        self.purpose == Purpose::Feed
    }

    /// Advances to a span.
    pub(super) fn pass(&mut self, span: Span) {
        self.here = Place::start(span).unwrap_or(self.here);
    }

    pub(super) fn refuse_at(&mut self, place: Place, message: &str, hint: &str) {
        self.errors.push(Error::new(message).with_place(place).with_hint(hint));
    }

    /// Refuses at the first of the keywords at or after the end of a span.
    pub(super) fn refuse(&mut self, after: Span, words: &[&str], message: &str, hint: &str) {
        let from = Place::of(after.end).unwrap_or(self.here);
        let place = self.tokens.next(from, words).unwrap_or(self.here);
        self.refuse_at(place, message, hint);
    }

    /// Refuses at the last of the keywords before a span.
    pub(super) fn refuse_before(&mut self, span: Span, words: &[&str], message: &str, hint: &str) {
        let until = Place::start(span).unwrap_or(self.here);
        let place = self.tokens.last(until, words).unwrap_or(until);
        self.refuse_at(place, message, hint);
    }
}

pub(super) const OF_A_PIPELINE: &str = "create a pipeline of the query, and look at its samples with `forebay preview`";
pub(super) const LATERAL_HINT: &str =
    "write a subquery that is a value, `(SELECT max(x) FROM other WHERE other.id = table.id)`, or a join";
pub(super) const UNNEST_HINT: &str = "write `SELECT unnest(list) AS item, … FROM table`";
pub(super) const JOIN_HINT: &str = "join beforehand, write the result to files, and create a table over them";
pub(super) const SAMPLE: &str = "TABLESAMPLE would be silently ignored";
pub(super) const SAMPLE_HINT: &str =
    "sample a table: `FROM table TABLESAMPLE BERNOULLI (10)` keeps about a tenth of its rows";
