//! A pipeline: a named query, checked and compiled when it is created, with its settings.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::execution::SessionState;
use forebay_sql::{OptionValue, PipelineDefinition, PipelineOption};
use forebay_storage::Dataset;

use crate::compile::{self, Stage};
use crate::error::{ErrorKind, Result};
use crate::feed::{FeedOptions, ReadDefaults};
use crate::size::parse_bytes;

/// A compiled pipeline.
pub struct Pipeline {
    name: String,
    table: String,
    fingerprint: String,
    operators: BTreeMap<String, u32>,
    options: Vec<(String, String)>,
    pub(crate) feed_options: FeedOptions,
    pub(crate) read_defaults: ReadDefaults,
    pub(crate) dataset: Dataset,
    pub(crate) stage: Arc<Stage>,
}

/// The names that `WITH` takes.
const OPTIONS: [&str; 8] =
    ["seed", "shuffle", "window_bytes", "window_rows", "on_error", "batch_size", "epochs", "drop_last"];

impl Pipeline {
    /// Checks and compiles `definition` over the one of `tables` that it reads.
    pub(crate) async fn compile(
        definition: &PipelineDefinition,
        tables: &BTreeMap<String, Dataset>,
        state: &SessionState,
    ) -> Result<Self, Refusal> {
        let (feed_options, read_defaults) = options(&definition.options)?;
        let plan = forebay_sql::plan(definition, state).await.map_err(Refusal::Placed)?;
        let table = compile::driving_table(&plan)?;
        let dataset = tables.get(&table).expect("the planner found the table in the same catalog").clone();
        let stage = compile::compile(&plan, dataset.schema(), state).await?;
        let operators = compile::operator_versions(&plan).map_err(crate::Error::from)?;
        Ok(Self {
            name: definition.name.clone(),
            table,
            // Of the plan, not the text: the same query made in another way has the same samples.
            fingerprint: compile::fingerprint(&plan).map_err(crate::Error::from)?,
            operators,
            options: definition.options.iter().map(|option| (option.name.clone(), text(&option.value))).collect(),
            feed_options,
            read_defaults,
            dataset,
            stage: Arc::new(stage),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The table whose rows it reads.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// The schema of its samples.
    pub fn schema(&self) -> SchemaRef {
        self.stage.schema()
    }

    /// Operators that it calls, with their versions.
    pub fn operators(&self) -> &BTreeMap<String, u32> {
        &self.operators
    }

    /// What its `WITH` says.
    pub fn options(&self) -> &[(String, String)] {
        &self.options
    }

    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

/// Why a pipeline was not created: with a place in its text, or as a whole.
pub(crate) enum Refusal {
    Placed(forebay_sql::Error),
    Whole(crate::Error),
}

impl From<crate::Error> for Refusal {
    fn from(error: crate::Error) -> Self {
        // Nothing has been read yet: a constant that cannot be computed is the query's fault, not the data's.
        match error.kind() {
            ErrorKind::Data => Self::Whole(crate::Error::new(ErrorKind::Invalid, error.message())),
            _ => Self::Whole(error),
        }
    }
}

fn options(given: &[PipelineOption]) -> Result<(FeedOptions, ReadDefaults), Refusal> {
    let (mut feed, mut read) = (FeedOptions::default(), ReadDefaults::default());
    for option in given {
        match option.name.as_str() {
            "seed" => feed.seed = Some(integer(option)?),
            "shuffle" => feed.shuffle = Some(boolean(option)?),
            "window_bytes" => feed.window_bytes = Some(bytes(option)?),
            "window_rows" => feed.window_rows = Some(positive(option)?),
            "on_error" => {
                feed.on_error =
                    Some(text(&option.value).parse().map_err(|error: crate::Error| refuse(option, error.message()))?)
            }
            "batch_size" => read.batch_size = Some(positive(option)?),
            "epochs" => read.epochs = Some(positive(option)?),
            "drop_last" => read.drop_last = Some(boolean(option)?),
            unknown => {
                let error =
                    forebay_sql::Error::new(format!("unknown pipeline option \"{unknown}\"")).with_place(option.place);
                return Err(Refusal::Placed(error.with_hint(match forebay_sql::nearest(unknown, OPTIONS) {
                    Some(nearest) => format!("did you mean \"{nearest}\"?"),
                    None => format!("options: {}", OPTIONS.join(", ")),
                })));
            }
        }
    }
    Ok((feed, read))
}

fn refuse(option: &PipelineOption, message: impl Into<String>) -> Refusal {
    Refusal::Placed(forebay_sql::Error::new(message).with_place(option.value_place))
}

fn integer(option: &PipelineOption) -> Result<u64, Refusal> {
    let text = text(&option.value);
    text.parse()
        .map_err(|_| refuse(option, format!("\"{}\" must be an integer from 0 to 2^64 - 1, got {text}", option.name)))
}

fn positive(option: &PipelineOption) -> Result<u64, Refusal> {
    match integer(option) {
        Ok(value) if value > 0 => Ok(value),
        _ => {
            Err(refuse(option, format!("\"{}\" must be a positive integer, got {}", option.name, text(&option.value))))
        }
    }
}

fn boolean(option: &PipelineOption) -> Result<bool, Refusal> {
    match &option.value {
        OptionValue::Boolean(value) => Ok(*value),
        other => Err(refuse(
            option,
            format!("\"{}\" must be true or false without quotes, got '{}'", option.name, text(other)),
        )),
    }
}

fn bytes(option: &PipelineOption) -> Result<u64, Refusal> {
    match parse_bytes(&text(&option.value)) {
        Ok(value) if value > 0 => Ok(value),
        _ => Err(refuse(
            option,
            format!("\"{}\" must be a size such as '64MiB', got {}", option.name, text(&option.value)),
        )),
    }
}

fn text(value: &OptionValue) -> String {
    match value {
        OptionValue::Text(text) | OptionValue::Number(text) => text.clone(),
        OptionValue::Boolean(value) => value.to_string(),
    }
}
