//! Pipelines whose samples a job writes in an order of its own: `sort_by` and `global_shuffle`.

use datafusion::sql::sqlparser::ast::Expr as SqlExpr;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Token;
use forebay_protocol::{FeedOptions, JobOptions, OnError};
use forebay_sql::{PipelineDefinition, Statement};

use super::Session;
use crate::compile::Audience;
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::{Pipeline, Refusal};

/// The order in which a job writes a pipeline's samples: the parts of a query around the pipeline's.
pub(super) struct Order {
    before: String,
    after: String,
    /// The verb of its errors.
    done: String,
    /// What its stage does with rows that cannot be read.
    on_error: Option<OnError>,
}

impl Order {
    /// The order that a job's options ask for, and the options of its feed. `None` for the order of the feed.
    ///
    /// # Errors
    /// `Invalid` for an unknown column, and for a second order.
    pub(super) fn of(
        options: &JobOptions,
        feed: &FeedOptions,
        pipeline: &Pipeline,
    ) -> Result<Option<(Self, FeedOptions)>> {
        let settings = feed.or(pipeline.feed_options());
        let is_shuffled = options.global_shuffle == Some(true);
        let orders = [
            ("sort_by", options.sort_by.is_some()),
            ("global_shuffle", is_shuffled),
            ("shuffle", feed.shuffle == Some(true)),
            ("bucket_by_length", settings.bucket_by_length.is_some()),
        ];
        let given: Vec<&str> = orders.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name).collect();
        if let ([one, other, ..], true) = (&given[..], options.sort_by.is_some() || is_shuffled) {
            return Err(Error::invalid(format!("\"{one}\" and \"{other}\" exclude each other"))
                .with_hint("leave one out, here or in the pipeline"));
        }
        let (before, after, done) = match &options.sort_by {
            Some(columns) => {
                let keys = keys(pipeline, columns)?;
                ("SELECT * FROM (".to_owned(), format!(") ORDER BY {keys}"), format!("sorted by {keys}"))
            }
            None if is_shuffled => {
                let (before, after) = shuffled(pipeline, settings.seed.unwrap_or_default());
                (before, after, "shuffled".to_owned())
            }
            None => return Ok(None),
        };
        let order = Self { before, after, done, on_error: settings.on_error };
        Ok(Some((order, FeedOptions { shuffle: Some(false), ..feed.clone() })))
    }

    /// The definition of a pipeline with this statement, in this order.
    fn definition(&self, statement: &str) -> Result<PipelineDefinition> {
        let PipelineDefinition { text, .. } = parsed(statement).map_err(|error| Error::internal(error.message()))?;
        let Some(start) = statement.strip_suffix(&text) else {
            return Err(Error::internal("a statement does not end with its query"));
        };
        // The query may end with a comment.
        let text = format!("{start}{}\n{text}\n{}", self.before, self.after);
        parsed(&text).map_err(|error| self.failed(Refusal::Placed(error)))
    }

    /// Why a pipeline has no such order.
    fn failed(&self, refusal: Refusal) -> Error {
        let error = match refusal {
            Refusal::Whole(error) => error,
            Refusal::Placed(error) => {
                let kind = if error.is_shortage() { ErrorKind::Exhausted } else { ErrorKind::Invalid };
                let placed = Error::new(kind, error.message());
                match error.hint() {
                    Some(hint) => placed.with_hint(hint),
                    None => placed,
                }
            }
        };
        let message = format!("the samples cannot be {}: {}", self.done, error.message());
        error.with_message(message)
    }
}

impl Session {
    /// The pipeline that has the samples of `pipeline` in this order, which a stage gives them.
    ///
    /// # Errors
    /// `Invalid` for a column that has no order, and for a query that no stage can compute. `Conflict` if a file that
    /// its calls name has changed.
    pub(super) async fn ordered(&self, pipeline: &Pipeline, order: &Order) -> Result<Pipeline> {
        let definition = order.definition(pipeline.statement())?;
        let is_read = |name: &String| !pipeline.stages().iter().any(|stage| stage.name == *name);
        let tables = pipeline.tables().iter().filter(|(name, _)| is_read(name));
        let tables = tables.map(|(name, dataset)| (name.clone(), dataset.clone())).collect();
        let state = self.catalog.state_over(&tables, &[])?;
        let compiled = Pipeline::compile(&definition, Audience::User, &tables, None, pipeline.base(), &state).await;
        let mut ordered = compiled.map_err(|refusal| order.failed(refusal))?;
        if ordered.files() != pipeline.files() {
            let message = format!("a file in the calls of \"{}\" has changed since it was created", pipeline.name());
            return Err(Error::new(ErrorKind::Conflict, message).with_hint("create the pipeline again"));
        }
        ordered.feed_options.on_error = order.on_error;
        // Refuses what must not be kept.
        self.table_stages(&ordered).map_err(|error| order.failed(Refusal::Whole(error)))?;
        Ok(ordered)
    }
}

/// The parts of a query that sorts a pipeline's by a hash of the row's number.
fn shuffled(pipeline: &Pipeline, seed: u64) -> (String, String) {
    let schema = pipeline.schema();
    let mut number = "row".to_owned();
    while schema.fields().iter().any(|field| field.name().eq_ignore_ascii_case(&number)) {
        number.push('_');
    }
    let columns: Vec<String> = schema.fields().iter().map(|field| quoted(field.name())).collect();
    let columns = columns.join(", ");
    // SQL has no literal of the least integer.
    let (most, seed) = (i64::MAX, (seed as i64).max(-i64::MAX));
    let before = format!("SELECT {columns} FROM (SELECT *, row_number() OVER () AS \"{number}\" FROM (");
    (before, format!(")) ORDER BY hash_bucket(\"{number}\", buckets => {most}, seed => {seed})"))
}

/// The keys of ORDER BY, with quoted names. Each is written as there, or is the exact name of a column.
fn keys(pipeline: &Pipeline, columns: &str) -> Result<String> {
    let schema = pipeline.schema();
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let exact: Option<Vec<String>> =
        columns.split(',').map(|name| names.contains(&name.trim()).then(|| quoted(name.trim()))).collect();
    if let Some(keys) = exact {
        return Ok(keys.join(", "));
    }
    let unreadable = |why: &str| {
        Error::invalid(format!("\"sort_by\" cannot be \"{columns}\": {why}"))
            .with_hint("write columns as in ORDER BY: label, \"a name\" DESC NULLS LAST")
    };
    let keys = Parser::new(&GenericDialect).try_with_sql(columns).and_then(|mut parser| {
        let keys = parser.parse_comma_separated(Parser::parse_order_by_expr)?;
        parser.expect_token(&Token::EOF).map(|_| keys)
    });
    let keys = keys.map_err(|error| unreadable(&forebay_diagnostics::plain_message(&error.to_string())))?;
    let keys = keys.into_iter().map(|key| {
        let (SqlExpr::Identifier(written), None) = (&key.expr, &key.with_fill) else {
            return Err(unreadable(&format!("{key} is no column")));
        };
        let is_it = |name: &&&str| **name == written.value;
        let is_like = |name: &&&str| written.quote_style.is_none() && name.eq_ignore_ascii_case(&written.value);
        let Some(name) = names.iter().find(is_it).or_else(|| names.iter().find(is_like)) else {
            let unknown = format!("\"sort_by\" names the column \"{}\", which is not there", written.value);
            return Err(Error::invalid(unknown).with_hint(
                match forebay_diagnostics::nearest(&written.value, names.iter().copied()) {
                    Some(nearest) => format!("did you mean \"{nearest}\"?"),
                    None => format!("its columns are {}", names.join(", ")),
                },
            ));
        };
        Ok(format!("{}{}", quoted(name), key.options))
    });
    Ok(keys.collect::<Result<Vec<_>>>()?.join(", "))
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn parsed(statement: &str) -> std::result::Result<PipelineDefinition, forebay_sql::Error> {
    match forebay_sql::parse(statement)?.pop() {
        Some(Statement::CreatePipeline(definition)) => Ok(definition),
        _ => Err(forebay_sql::Error::new("it is not the text of a pipeline")),
    }
}
