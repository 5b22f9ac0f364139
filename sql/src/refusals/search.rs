//! The search for refusals: its state, how it refuses, and the messages that several refusals share.

use datafusion::execution::SessionState;
use datafusion::sql::sqlparser::tokenizer::Span;

use crate::tokens::Tokens;
use crate::{Error, Place};

pub(super) const ALL_ROWS: &str = "needs the whole dataset, and a feed computes one window at a time";
pub(super) const BEFOREHAND: &str = "compute it beforehand, write it to files, and create a table over them";

/// A use of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Samples of a feed, which computes each row separately, window by window.
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
    /// The last place visited, for nodes without a place.
    pub(super) here: Place,
    /// The calls of UNNEST in supported positions.
    pub(super) unnests: Vec<Place>,
    /// The subqueries passed to table operators.
    pub(super) packed: Vec<Place>,
    /// The subqueries that are conditions of a SELECT.
    pub(super) memberships: Vec<Place>,
}

impl Search<'_> {
    pub(super) fn is_feed(&self) -> bool {
        self.purpose == Purpose::Feed
    }

    pub(super) fn limit_hint(&self) -> &'static str {
        if self.is_feed() { LIMIT_HINT } else { "write LIMIT" }
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
pub(super) const UNNEST_HINT: &str = "write `SELECT unnest(list) AS item, … FROM table`";
pub(super) const ORDER_HINT: &str =
    "a feed's order comes from shuffle => false (file order) or from its seed; in Python, order_by sorts a small table";
pub(super) const LIMIT_HINT: &str =
    "take the first rows of a table: `FROM (SELECT * FROM table LIMIT 1000)`, and the rest around it";
pub(super) const AGGREGATE_HINT: &str =
    "compute it beforehand and store it as a column, or write the result as a constant";
pub(super) const JOIN_HINT: &str = "join beforehand, write the result to files, and create a table over them";
pub(super) const SUBQUERY_HINT: &str =
    "join the table, `FROM table JOIN other ON table.id = other.id`, or write the value itself";
pub(super) const SET_HINT: &str = "put the files under one LOCATION and create one table over them";
pub(super) const SAMPLE: &str = "TABLESAMPLE would be silently ignored";
pub(super) const SAMPLE_HINT: &str =
    "sample a table: `FROM table TABLESAMPLE BERNOULLI (10)` keeps about a tenth of its rows";

pub(super) fn window(word: &str) -> String {
    format!("{word} reads other rows, and a feed computes each row separately")
}

pub(super) fn second_table(word: &str) -> String {
    format!("{word} reads a second table for each row")
}

pub(super) fn set_operation(word: &str) -> String {
    format!("{word} needs a second query, and a feed reads one table")
}

pub(super) fn more_rows(word: &str) -> String {
    format!("{word} derives several rows from one, and a row of a feed is one row of its table")
}
