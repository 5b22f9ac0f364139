//! LIMIT and TABLESAMPLE, where a feed supports them.
//!
//! Over a table they are functions of a row's number, so each window can select its rows independently. Over any other
//! input, LIMIT would have to count the rows of all earlier windows.

use datafusion::sql::sqlparser::ast::{
    Expr, LimitClause, Query, SetExpr, TableFactor, TableSample, TableSampleKind, TableSampleMethod,
    TableSampleModifier, TableSampleUnit, Value,
};
use datafusion::sql::sqlparser::tokenizer::Span;

use super::search::{SAMPLE_HINT, Search};
use super::unnest;
use crate::Place;
use crate::sample::{sample_percent, sample_seed};

/// Whether a query is `SELECT … FROM table LIMIT n`.
pub(super) fn limits_a_table(query: &Query) -> bool {
    let Some(LimitClause::LimitOffset { limit: Some(Expr::Value(limit)), offset: None, limit_by }) =
        &query.limit_clause
    else {
        return false;
    };
    let is_positive = matches!(&limit.value, Value::Number(number, _) if number.parse::<u64>().is_ok_and(|n| n > 0));
    let SetExpr::Select(select) = query.body.as_ref() else { return false };
    let is_table = match &select.from[..] {
        [from] if from.joins.is_empty() => {
            matches!(&from.relation, TableFactor::Table { args: None, sample: None, .. })
        }
        _ => false,
    };
    is_positive && limit_by.is_empty() && is_table && select.selection.is_none() && !unnest::unnests(select)
}

impl Search<'_> {
    /// Refuses a sample that is not `TABLESAMPLE [BERNOULLI] (percent) [REPEATABLE (seed)]`.
    pub(super) fn table_sample(&mut self, sample: &TableSampleKind, span: Span) {
        let (TableSampleKind::BeforeTableAlias(sample) | TableSampleKind::AfterTableAlias(sample)) = sample;
        let TableSample { modifier, name, quantity, seed, bucket, offset } = sample.as_ref();
        let is_bernoulli = matches!(name, None | Some(TableSampleMethod::Bernoulli));
        let is_percent = quantity.as_ref().is_some_and(|of| !matches!(of.unit, Some(TableSampleUnit::Rows)));
        let is_plain = bucket.is_none() && offset.is_none() && matches!(modifier, TableSampleModifier::TableSample);
        if !(is_bernoulli && is_percent && is_plain) {
            self.sample(span, "a sample selects each row of a table independently");
        } else if sample_percent(sample).is_none() {
            self.sample(span, "TABLESAMPLE takes a percentage above 0 and up to 100");
        } else if seed.is_some() && sample_seed(sample).is_none() {
            self.sample(span, "REPEATABLE takes a non-negative integer");
        }
    }

    /// Refuses a sample, at its keyword.
    pub(super) fn sample(&mut self, span: Span, message: &str) {
        let from = Place::of(span.end).unwrap_or(self.here);
        let word = if self.tokens.next(from, &["TABLESAMPLE"]).is_some() { "TABLESAMPLE" } else { "SAMPLE" };
        self.refuse(span, &[word], message, SAMPLE_HINT);
    }
}
