//! The rows of a table or pipeline, for SQL clients.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use forebay_protocol::{FeedOptions, OnError};
use futures::Stream;
use tokio::sync::OwnedSemaphorePermit;

use crate::batch::{Query, QueryRows};
use crate::error::{Error, ErrorKind, Result};
use crate::feed::Reader;
use crate::pipeline::Pipeline;
use crate::session::Session;

/// A checked query, and the number of rows to return.
pub struct TablePreview {
    of: Previewed,
    /// The LIMIT of a preview.
    limit: Option<u64>,
}

enum Previewed {
    Pipeline(Arc<Pipeline>),
    Query(Box<Query>),
}

/// The rows of a [`TablePreview`], as they are read.
pub struct TableRows {
    source: Source,
    /// The rows to return at most, and whether the query asks for no more.
    left: u64,
    is_asked_limit: bool,
    rows_max: u64,
}

enum Source {
    Feed(Box<Reader>),
    Query { rows: QueryRows, _permit: OwnedSemaphorePermit },
}

impl Source {
    async fn next(&mut self) -> Option<Result<RecordBatch>> {
        match self {
            Self::Feed(reader) => Some(reader.next().await?.map(|batch| batch.records)),
            Self::Query { rows, .. } => rows.next().await,
        }
    }
}

impl TableRows {
    /// The next rows, or `None` at the end.
    ///
    /// # Errors
    /// Errors of reading; `Exhausted` after the most rows of a statement, if there are more.
    pub async fn next(&mut self) -> Option<Result<RecordBatch>> {
        if self.left == 0 && self.is_asked_limit {
            return None;
        }
        // After the last row that may be returned, one more shows whether the result is complete.
        loop {
            let rows = match self.source.next().await? {
                Ok(rows) => rows,
                Err(error) => return Some(Err(error)),
            };
            if rows.num_rows() == 0 {
                continue;
            }
            if self.left == 0 {
                self.is_asked_limit = true;
                let (most, message) = (self.rows_max, "the result has more rows than one statement returns");
                return Some(Err(Error::new(ErrorKind::Exhausted, format!("{message}: {most}")).with_hint(format!(
                    "write LIMIT {most} or less, read the pipeline as a feed, or raise the server's \"sql_rows_limit\""
                ))));
            }
            let taken = self.left.min(rows.num_rows() as u64);
            self.left -= taken;
            return Some(Ok(rows.slice(0, taken as usize)));
        }
    }

    /// The rows as a stream.
    pub fn into_stream(self) -> impl Stream<Item = Result<RecordBatch>> + Send {
        futures::stream::unfold(self, |mut rows| async move { Some((rows.next().await?, rows)) })
    }
}

impl TablePreview {
    /// The rows' schema.
    pub fn schema(&self) -> SchemaRef {
        match &self.of {
            Previewed::Pipeline(pipeline) => pipeline.schema(),
            Previewed::Query(query) => query.schema(),
        }
    }
}

impl Session {
    /// Checks a query for a preview. It must be `SELECT * FROM name [LIMIT n]` over a table, or over a pipeline, whose
    /// samples are returned. If a table and a pipeline share a name, qualify it: `pipelines.name` or `tables.name`. All
    /// other queries are refused, because a client with only read access must not be able to run computations, unless
    /// the session's option `sql_queries` lets it.
    ///
    /// # Errors
    /// `Invalid` for another query, `NotFound` for an unknown name.
    pub async fn table_preview(&self, query: &str) -> Result<TablePreview> {
        let (name, limit) = without_limit(query);
        let pipeline = match all_of(name) {
            Some((Some(Namespace::Pipelines), name)) => self.pipeline(&name)?,
            Some((None, name)) if self.pipelines().contains(&name) => self.pipeline(&name)?,
            Some((_, name)) => {
                let query = format!("SELECT * FROM \"{}\"", name.replace('"', "\"\""));
                Arc::new(self.compile_query("query", &query).await?)
            }
            None if self.sql_queries.is_some() => {
                return Ok(TablePreview { of: Previewed::Query(Box::new(self.query(query).await?)), limit: None });
            }
            None => {
                let hint = "write SELECT * FROM name [LIMIT n], or serve with the option \"sql_queries\"";
                return Err(Error::invalid("only whole tables and pipelines can be previewed").with_hint(hint));
            }
        };
        Ok(TablePreview { of: Previewed::Pipeline(pipeline), limit })
    }

    /// The rows of a preview, in the files' order if its pipeline does not shuffle. Bad rows are omitted. A query runs
    /// until the rows are dropped.
    ///
    /// # Errors
    /// Errors of opening the feed; `Exhausted` if as many queries run as may.
    pub fn preview_rows(&self, preview: &TablePreview) -> Result<TableRows> {
        let rows_max = self.sql_rows_max;
        let left = preview.limit.map_or(rows_max, |limit| limit.min(rows_max));
        let is_asked_limit = preview.limit.is_some_and(|limit| limit <= rows_max);
        let source = match &preview.of {
            Previewed::Pipeline(pipeline) => {
                let options = FeedOptions { on_error: Some(OnError::Skip), ..FeedOptions::default() };
                Source::Feed(Box::new(self.open_pipeline(Arc::clone(pipeline), &options)?.looked_at(left)?))
            }
            Previewed::Query(query) => {
                let _permit = self.permit_of_query()?;
                Source::Query { rows: query.rows()?, _permit }
            }
        };
        Ok(TableRows { source, left, is_asked_limit, rows_max })
    }

    fn permit_of_query(&self) -> Result<OwnedSemaphorePermit> {
        let permit = self.sql_queries.as_ref().and_then(|queries| Arc::clone(queries).try_acquire_owned().ok());
        permit.ok_or_else(|| {
            Error::new(ErrorKind::Exhausted, "other queries are running, and the server runs no more at a time")
                .with_hint("send the query again when one of them has ended")
        })
    }
}

/// The namespaces of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespace {
    Pipelines,
    Tables,
}

/// Splits a query into the part before a trailing `LIMIT` and the limit's number.
fn without_limit(query: &str) -> (&str, Option<u64>) {
    let query = query.trim().trim_end_matches(';').trim_end();
    let Some((rest, number)) = query.rsplit_once(char::is_whitespace) else { return (query, None) };
    let Ok(limit) = number.parse() else { return (query, None) };
    let rest = rest.trim_end();
    match rest.len().checked_sub(5).and_then(|at| rest.split_at_checked(at)) {
        Some((head, word)) if word.eq_ignore_ascii_case("limit") && head.ends_with(char::is_whitespace) => {
            (head.trim_end(), Some(limit))
        }
        _ => (query, None),
    }
}

/// The name in `SELECT * FROM [namespace.]name`.
fn all_of(query: &str) -> Option<(Option<Namespace>, String)> {
    let mut words = query.split_whitespace();
    let is = |word: Option<&str>, expected: &str| word.is_some_and(|word| word.eq_ignore_ascii_case(expected));
    if !(is(words.next(), "select") && is(words.next(), "*") && is(words.next(), "from")) {
        return None;
    }
    let (name, None) = (words.next()?, words.next()) else { return None };
    let (namespace, name) = match name.split_once('.') {
        Some((namespace, name)) if namespace.trim_matches('"').eq_ignore_ascii_case("pipelines") => {
            (Some(Namespace::Pipelines), name)
        }
        Some((namespace, name)) if namespace.trim_matches('"').eq_ignore_ascii_case("tables") => {
            (Some(Namespace::Tables), name)
        }
        _ => (None, name),
    };
    match name.strip_prefix('"').and_then(|name| name.strip_suffix('"')) {
        Some(quoted) => Some((namespace, quoted.replace("\"\"", "\""))),
        None => Some((namespace, name.to_lowercase()))
            .filter(|(_, name)| name.chars().all(|c| c.is_alphanumeric() || c == '_')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_at_the_end_is_taken_off() {
        assert_eq!(without_limit("SELECT * FROM t LIMIT 5"), ("SELECT * FROM t", Some(5)));
        assert_eq!(without_limit(" select * from t\n limit  7 ; "), ("select * from t", Some(7)));
        assert_eq!(without_limit("SELECT 1 AS nolimit 5"), ("SELECT 1 AS nolimit 5", None));
        assert_eq!(without_limit("SELECT x FROM t"), ("SELECT x FROM t", None));
        assert_eq!(without_limit("é limit 3"), ("é", Some(3)));
        assert_eq!(without_limit("ééé 3"), ("ééé 3", None));
    }

    #[test]
    fn all_of_a_name_is_told_from_other_queries() {
        let name = |query| all_of(query);
        assert_eq!(name("SELECT * FROM photos"), Some((None, "photos".to_owned())));
        assert_eq!(name("select * from Pipelines.Photos"), Some((Some(Namespace::Pipelines), "photos".to_owned())));
        assert_eq!(name("SELECT * FROM \"tables\".\"A\"\"b\""), Some((Some(Namespace::Tables), "A\"b".to_owned())));
        assert_eq!(name("SELECT * FROM photos WHERE x"), None);
        assert_eq!(name("SELECT x FROM photos"), None);
        assert_eq!(name("SELECT * FROM pack((SELECT"), None);
    }
}
