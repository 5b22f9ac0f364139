//! A pipeline: a named query, checked and compiled when it is created, with its settings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use forebay_protocol::{Boundaries, FeedOptions, ReadDefaults, check_global_batch_size};
use forebay_sql::{OptionValue, PipelineDefinition, PipelineOption};
use forebay_storage::Dataset;
use futures::FutureExt;

use crate::compile::{self, Audience, Lengths, Stage};
use crate::error::{Error, ErrorKind, Result};
use forebay_protocol::parse_bytes;

/// A compiled pipeline.
pub struct Pipeline {
    name: String,
    table: String,
    statement: String,
    base: PathBuf,
    fingerprint: String,
    operators: BTreeMap<String, u32>,
    options: Vec<(String, String)>,
    pub(crate) feed_options: FeedOptions,
    pub(crate) read_defaults: ReadDefaults,
    pub(crate) dataset: Dataset,
    /// How many of the dataset's first rows are read, if not all.
    pub(crate) limit: Option<u64>,
    pub(crate) stage: Arc<Stage>,
    pub(crate) audience: Audience,
    /// As it was checked and resolved, for what only some feeds need of it.
    plan: LogicalPlan,
}

/// The names that `WITH` takes.
const OPTIONS: [&str; 11] = [
    "seed",
    "shuffle",
    "window_bytes",
    "window_rows",
    "on_error",
    "bucket_by_length",
    "bucket_boundaries",
    "global_batch_size",
    "batch_size",
    "epochs",
    "drop_last",
];

impl Pipeline {
    /// Checks and compiles `definition` over those of `tables` that it reads. Paths of files that it calls operators
    /// with begin at `base`.
    pub(crate) async fn compile(
        definition: &PipelineDefinition,
        audience: Audience,
        tables: &BTreeMap<String, Dataset>,
        base: &Path,
        state: &SessionState,
    ) -> Result<Self, Refusal> {
        let (feed_options, read_defaults) = options(&definition.options)?;
        let plan = forebay_sql::plan(definition, base, state).await.map_err(Refusal::Placed)?;
        // Of the plan, not the text: the same query made in another way has the same samples.
        let fingerprint = compile::fingerprint(&plan).map_err(crate::Error::from)?;
        let plan = compile::resolved(plan, state)?;
        let table = compile::driving_table(&plan)?;
        let dataset = tables.get(&table).expect("the planner found the table in the same catalog").clone();
        let stage = compile::compile(&plan, None, true, audience, tables, state).await?;
        if let Some(option) = definition.options.iter().find(|option| option.name == "bucket_by_length") {
            compile::check_length(&stage.schema(), &text(&option.value))
                .map_err(|error| hinted(refusal(option, error.message()), error.hint()))?;
        }
        let limit = compile::limit(&plan)?;
        let operators = compile::operator_versions(&plan).map_err(crate::Error::from)?;
        Ok(Self {
            name: definition.name.clone(),
            table,
            statement: definition.statement.clone(),
            base: base.to_owned(),
            fingerprint,
            operators,
            options: definition.options.iter().map(|option| (option.name.clone(), text(&option.value))).collect(),
            feed_options,
            read_defaults,
            dataset,
            limit,
            stage: Arc::new(stage),
            audience,
            plan,
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

    /// The text of its `CREATE PIPELINE`.
    pub fn statement(&self) -> &str {
        &self.statement
    }

    /// Where paths of files that it calls operators with begin.
    pub(crate) fn base(&self) -> &Path {
        &self.base
    }

    /// The table whose rows it reads, then those that it joins.
    pub(crate) fn datasets(&self) -> impl Iterator<Item = &Dataset> {
        std::iter::once(&self.dataset).chain(self.stage.lookups().map(|lookup| &lookup.dataset))
    }

    /// How long the rows of its output `column` are.
    pub(crate) fn lengths(&self, column: &str, state: &SessionState) -> Result<Lengths> {
        compile::check_length(&self.schema(), column)?;
        compile::lengths(&self.plan, column, self.dataset.schema(), state)
    }

    /// The stage that gives only these columns of the samples; with `reads_all`, of the rows that all columns are read
    /// of.
    pub(crate) fn stage_of(&self, columns: &[String], reads_all: bool, state: &SessionState) -> Result<Stage> {
        let schema = self.schema();
        let place = |name: &String| {
            let known = || schema.fields().iter().map(|field| field.name().as_str());
            let unknown =
                || Error::new(ErrorKind::Invalid, format!("there is no column \"{name}\" in \"{}\"", self.name));
            known().position(|column| column == name).ok_or_else(|| {
                unknown().with_hint(format!("its columns are {}", known().collect::<Vec<_>>().join(", ")))
            })
        };
        let only = columns.iter().map(place).collect::<Result<Vec<_>>>()?;
        let lookups = self.stage.lookups().map(|lookup| (lookup.table.clone(), lookup.dataset.clone()));
        let tables = lookups.chain([(self.table.clone(), self.dataset.clone())]).collect();
        // As with lengths: planning has nothing to wait for.
        let planned =
            compile::compile(&self.plan, Some(&only), reads_all, Audience::User, &tables, state).now_or_never();
        planned.ok_or_else(|| Error::new(ErrorKind::Internal, "planning waits for something"))?
    }

    pub(crate) fn uncacheable_calls(&self) -> Vec<String> {
        compile::uncacheable_calls(&self.plan).unwrap_or_default()
    }

    pub(crate) fn unversioned_functions(&self) -> Vec<String> {
        let functions = compile::function_versions(&self.plan).unwrap_or_default();
        functions.into_iter().filter(|(_, version)| version.is_none()).map(|(name, _)| name).collect()
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
            "bucket_by_length" => feed.bucket_by_length = Some(text(&option.value)),
            "bucket_boundaries" => {
                let bounds = text(&option.value).parse::<Boundaries>();
                feed.bucket_boundaries =
                    Some(bounds.map_err(|error| hinted(refusal(option, error.message()), error.hint()))?);
            }
            "global_batch_size" => {
                let size = positive(option)?;
                check_global_batch_size(size).map_err(|error| refuse(option, error.message()))?;
                feed.global_batch_size = Some(size);
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
    let batch_size = given.iter().find(|option| option.name == "batch_size");
    if let (Some(option), Some(size)) = (batch_size, feed.global_batch_size) {
        let error = refusal(option, format!("\"batch_size\" follows from the global batch size of {size}"));
        return Err(hinted(error, Some("leave it out: it is the global batch size divided by the world size")));
    }
    Ok((feed, read))
}

fn refuse(option: &PipelineOption, message: impl Into<String>) -> Refusal {
    Refusal::Placed(refusal(option, message))
}

fn refusal(option: &PipelineOption, message: impl Into<String>) -> forebay_sql::Error {
    forebay_sql::Error::new(message).with_place(option.value_place)
}

fn hinted(error: forebay_sql::Error, hint: Option<&str>) -> Refusal {
    Refusal::Placed(match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    })
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
