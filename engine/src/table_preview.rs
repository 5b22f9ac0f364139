//! The first rows of a table or pipeline, for SQL clients.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use forebay_protocol::{FeedOptions, OnError};

use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::Pipeline;
use crate::session::Session;

/// Maximum number of rows in a preview. Clients that need more open a feed.
const ROWS_MAX: u64 = 10_000;
/// Stop adding rows after this many bytes.
const BYTES_MAX: usize = 64 << 20;

/// A checked query, and the number of rows to return.
pub struct TablePreview {
    pipeline: Arc<Pipeline>,
    rows: u64,
}

impl TablePreview {
    /// The rows' schema.
    pub fn schema(&self) -> SchemaRef {
        self.pipeline.schema()
    }
}

impl Session {
    /// Checks a query for a preview. It must be `SELECT * FROM name [LIMIT n]` over a table, or over a pipeline, whose
    /// samples are returned. If a table and a pipeline share a name, qualify it: `pipelines.name` or `tables.name`. All
    /// other queries are refused, because a client with only read access must not be able to run computations.
    ///
    /// # Errors
    /// `Invalid` for another query, `NotFound` for an unknown name.
    pub async fn table_preview(&self, query: &str) -> Result<TablePreview> {
        let (query, rows) = without_limit(query);
        let rows = rows.unwrap_or(ROWS_MAX).min(ROWS_MAX);
        let pipeline = match all_of(query) {
            Some((Some(Namespace::Pipelines), name)) => self.pipeline(&name)?,
            Some((None, name)) if self.pipelines().contains(&name) => self.pipeline(&name)?,
            Some((_, name)) => {
                let query = format!("SELECT * FROM \"{}\"", name.replace('"', "\"\""));
                Arc::new(self.compile_query("query", &query).await?)
            }
            None => {
                return Err(Error::new(ErrorKind::Invalid, "only whole tables and pipelines can be previewed")
                    .with_hint("write SELECT * FROM name [LIMIT n]; put other queries into a pipeline"));
            }
        };
        Ok(TablePreview { pipeline, rows })
    }

    /// The first rows of a preview, in the files' order if its pipeline does not shuffle. Bad rows are omitted.
    ///
    /// # Errors
    /// Errors of reading.
    pub async fn preview_rows(&self, preview: &TablePreview) -> Result<RecordBatch> {
        let options = FeedOptions { on_error: Some(OnError::Skip), ..FeedOptions::default() };
        let feed = self.open_pipeline(Arc::clone(&preview.pipeline), &options)?;
        feed.first_rows(preview.rows, BYTES_MAX).await.map(|(rows, _)| rows)
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
