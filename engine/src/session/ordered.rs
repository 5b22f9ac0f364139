//! Pipelines whose samples a job writes in an order of its own: `sort_by` and `global_shuffle`.

use forebay_protocol::{FeedOptions, JobOptions};
use forebay_sql::{PipelineDefinition, Statement};

use super::Session;
use crate::compile::Audience;
use crate::error::{Error, Result};
use crate::pipeline::{Pipeline, Refusal};

/// A column of the rows' numbers, which no query has.
const NUMBER: &str = "forebay row";

/// The order in which a job writes a pipeline's samples: the parts of a query around the pipeline's.
pub(super) struct Order {
    before: String,
    after: String,
    /// The verb of its errors.
    done: String,
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
        let order = match (&options.sort_by, is_shuffled) {
            (None, false) => return Ok(None),
            _ if let [one, other, ..] = &given[..] => {
                return Err(Error::invalid(format!("\"{one}\" and \"{other}\" exclude each other"))
                    .with_hint("leave one out, here or in the pipeline"));
            }
            (Some(columns), _) => Self::sorted(keys(pipeline, columns)?),
            (None, true) => Self::shuffled(pipeline, settings.seed.unwrap_or_default()),
        };
        Ok(Some((order, FeedOptions { shuffle: Some(false), ..feed.clone() })))
    }

    fn sorted(keys: String) -> Self {
        Self {
            before: "SELECT * FROM (".to_owned(),
            done: format!("sorted by {keys}"),
            after: format!(") ORDER BY {keys}"),
        }
    }

    /// Sorted by a hash of the row's number.
    fn shuffled(pipeline: &Pipeline, seed: u64) -> Self {
        let columns: Vec<String> = pipeline.schema().fields().iter().map(|field| quoted(field.name())).collect();
        let (most, seed) = (i64::MAX, seed % i64::MAX as u64);
        Self {
            before: format!(
                "SELECT {} FROM (SELECT *, row_number() OVER () AS \"{NUMBER}\" FROM (",
                columns.join(", ")
            ),
            after: format!(")) ORDER BY hash_bucket(\"{NUMBER}\", buckets => {most}, seed => {seed})"),
            done: "shuffled".to_owned(),
        }
    }

    /// The definition of a pipeline with this statement, in this order.
    fn definition(&self, statement: &str) -> Result<PipelineDefinition> {
        let PipelineDefinition { text, statement, .. } = parsed(statement)?;
        let Some(start) = statement.strip_suffix(&text) else {
            return Err(Error::internal("a statement does not end with its query"));
        };
        // The query may end with a comment.
        parsed(&format!("{start}{}\n{text}\n{}", self.before, self.after))
    }
}

impl Session {
    /// The pipeline that has the samples of `pipeline` in this order, which a stage gives them.
    ///
    /// # Errors
    /// `Invalid` for a column that has no order, and for a query that no stage can compute.
    pub(super) async fn ordered(&self, pipeline: &Pipeline, order: &Order) -> Result<Pipeline> {
        let definition = order.definition(pipeline.statement())?;
        let is_read = |name: &String| !pipeline.stages().iter().any(|stage| stage.name == *name);
        let tables = pipeline.tables().iter().filter(|(name, _)| is_read(name));
        let tables = tables.map(|(name, dataset)| (name.clone(), dataset.clone())).collect();
        let state = self.catalog.state_over(&tables, &[])?;
        let compiled = Pipeline::compile(&definition, Audience::User, &tables, None, pipeline.base(), &state).await;
        let checked = compiled.and_then(|ordered| {
            self.table_stages(&ordered)?;
            Ok(ordered)
        });
        checked.map_err(|refusal| {
            let (message, hint) = match &refusal {
                Refusal::Placed(error) => (error.message(), error.hint()),
                Refusal::Whole(error) => (error.message(), error.hint()),
            };
            let error = Error::invalid(format!("the samples cannot be {}: {message}", order.done));
            match hint {
                Some(hint) => error.with_hint(hint),
                None => error,
            }
        })
    }
}

/// The keys of ORDER BY.
fn keys(pipeline: &Pipeline, columns: &str) -> Result<String> {
    let schema = pipeline.schema();
    let keys = columns.split(',').map(|key| {
        let key = key.trim();
        let (name, direction) = match key.rsplit_once(char::is_whitespace) {
            Some((name, word)) if word.eq_ignore_ascii_case("asc") => (name.trim_end(), ""),
            Some((name, word)) if word.eq_ignore_ascii_case("desc") => (name.trim_end(), " DESC"),
            _ => (key, ""),
        };
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        if !names.contains(&name) {
            let unknown = Error::invalid(format!("\"sort_by\" names the column \"{name}\", which is not there"));
            return Err(unknown.with_hint(match forebay_diagnostics::nearest(name, names.iter().copied()) {
                Some(nearest) => format!("did you mean \"{nearest}\"?"),
                None => format!("its columns are {}", names.join(", ")),
            }));
        }
        Ok(format!("{}{direction}", quoted(name)))
    });
    Ok(keys.collect::<Result<Vec<_>>>()?.join(", "))
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn parsed(statement: &str) -> Result<PipelineDefinition> {
    let mut statements = forebay_sql::parse(statement).map_err(|error| Error::internal(error.message()))?;
    match (statements.pop(), statements.is_empty()) {
        (Some(Statement::CreatePipeline(definition)), true) => Ok(definition),
        _ => Err(Error::internal("a pipeline's statement is not its CREATE PIPELINE")),
    }
}
