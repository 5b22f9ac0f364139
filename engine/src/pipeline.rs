//! A pipeline: a named query, checked and compiled when it is created, with its settings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::scalar::ScalarValue;
use forebay_protocol::{CallOrder, FeedOptions, OptionKind, OptionSet, OptionSpec, ReadDefaults, Scope};
use forebay_sql::{OptionValue, PipelineDefinition, PipelineOption, Place};
use forebay_storage::Dataset;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::compile::{
    self, Audience, Cut, Joins, Keeping, Lengths, PlanValue, PrefixCut, Stage, StagePlan, StageUse, Unrunnable,
};
use crate::error::{Error, ErrorKind, Result};
use crate::sealed::Sealed;

/// A compiled pipeline.
#[derive(Clone)]
pub struct Pipeline {
    name: String,
    table: String,
    statement: String,
    base: PathBuf,
    fingerprint: String,
    operators: BTreeMap<String, u32>,
    files: BTreeMap<String, String>,
    options: Vec<(String, String)>,
    pub(crate) feed_options: FeedOptions,
    pub(crate) read_defaults: ReadDefaults,
    pub(crate) dataset: Dataset,
    /// The number of leading rows of the dataset to read, or `None` for all.
    pub(crate) limit: Option<u64>,
    pub(crate) stage: Sealed<Stage>,
    pub(crate) audience: Audience,
    /// The checked and resolved plan of the feed, for parts that only some feeds need.
    plan: Sealed<LogicalPlan>,
    cut: Sealed<Cut>,
    /// The tables that the query reads, and those of its stages.
    tables: BTreeMap<String, Dataset>,
    /// The results of its stages; `None` until they are known.
    results: Option<StageResults>,
}

/// The results of a pipeline's stages, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct StageResults {
    /// Tables.
    pub(crate) tables: BTreeMap<String, Dataset>,
    pub(crate) values: BTreeMap<String, StageValue>,
    /// The folders of the artifacts, and the numbers of their commits.
    pub(crate) artifacts: Vec<(String, u64)>,
    /// The rows that the stages have left out.
    pub(crate) bad_rows: u64,
}

/// The value of a stage.
#[derive(Clone, Debug)]
pub(crate) struct StageValue {
    /// A column of one row.
    pub(crate) row: RecordBatch,
    /// The table that holds it, if it is known.
    pub(crate) table: Option<Dataset>,
    value: PlanValue,
}

impl StageResults {
    /// Adds the value of stage `name`, a column of one row, which `table` may hold.
    ///
    /// # Errors
    /// `Data` for a fit to rows that have no value.
    pub(crate) fn add_value(&mut self, name: String, row: RecordBatch, table: Option<Dataset>) -> Result<()> {
        let value = PlanValue::of(&row)?;
        self.values.insert(name, StageValue { row, table, value });
        Ok(())
    }

    /// The value of stage `name`.
    fn value(&self, name: &str) -> Option<ScalarValue> {
        self.values.get(name).map(|of_stage| of_stage.value.scalar.clone())
    }
}

impl Pipeline {
    /// Checks and compiles `definition` over the `tables` that it reads. Relative file paths in calls are relative to
    /// `base`. A pipeline with stages cannot be opened without their results. Boxed like the future
    /// of a statement.
    pub(crate) fn compile<'a>(
        definition: &'a PipelineDefinition,
        audience: Audience,
        tables: &'a BTreeMap<String, Dataset>,
        results: Option<&'a StageResults>,
        base: &'a Path,
        state: &'a SessionState,
    ) -> BoxFuture<'a, Result<Self, Refusal>> {
        Self::compiled_over(definition, audience, tables, results, base, state).boxed()
    }

    async fn compiled_over(
        definition: &PipelineDefinition,
        audience: Audience,
        tables: &BTreeMap<String, Dataset>,
        results: Option<&StageResults>,
        base: &Path,
        state: &SessionState,
    ) -> Result<Self, Refusal> {
        let (feed_options, read_defaults, joins) = options(&definition.options)?;
        let plan = forebay_sql::plan(definition, base, state).await.map_err(Refusal::Placed)?;
        let misplaced = |unrunnable| misplaced(&definition.text, definition.place, unrunnable);
        compile::check_planned(&plan).map_err(misplaced)?;
        let planned = plan.clone();
        let analyzed = compile::analyzed(plan, state)?;
        compile::check_analyzed(&planned, &analyzed, state).map_err(misplaced)?;
        let resolved = compile::resolved(analyzed)?;
        let operators = compile::operator_versions(&resolved).map_err(crate::Error::from)?;
        let cut = compile::cut(resolved, joins).map_err(misplaced)?;
        let read = compile::tables(&planned).map_err(crate::Error::from)?;
        let mut tables: BTreeMap<String, Dataset> = tables
            .iter()
            .filter(|(name, _)| read.contains(*name))
            .map(|(name, it)| (name.clone(), it.clone()))
            .collect();
        for stage in cut.stages.iter().filter(|stage| !stage.is_value) {
            // Planning needs the columns only.
            tables.insert(stage.name.clone(), no_rows(stage)?);
        }
        let is_of_stage = |name: &String| cut.stages.iter().any(|stage| stage.name == *name && !stage.is_value);
        let of_stages = results.into_iter().flat_map(|results| &results.tables).filter(|(name, _)| is_of_stage(name));
        tables.extend(of_stages.map(|(name, dataset)| (name.clone(), dataset.clone())));
        let value_of = |name: &str| results.and_then(|results| results.value(name));
        let plan = cut.with_values(&value_of).map_err(crate::Error::from)?;
        let table = compile::driving_table(&plan)?;
        let dataset = tables.get(&table).expect("the planner found the table in the same catalog").clone();
        let stage = compile::compile(&plan, StageUse::plain(audience), &tables, state).await?;
        if let Some(option) = definition.options.iter().find(|option| option.name == "bucket_by_length") {
            compile::check_length(&stage.schema(), &text(&option.value))
                .map_err(|error| hinted(refusal(option, error.message()), error.hint()))?;
        }
        let limit = compile::limit(&plan)?;
        // Hash the plan, not the text, because the same query written differently has the same samples. Hash it before
        // it is resolved, because resolving numbers subqueries in its own order. Hash it last, because its errors have
        // no place in the text, unlike the errors of the checks above.
        // And without the values of stages, which are not known everywhere.
        let feed = cut.with_values(&|_| None).map_err(crate::Error::from)?;
        let fingerprint = compile::query_fingerprint(&planned, &feed)?;
        let files = compile::files(&planned).map_err(crate::Error::from)?;
        Ok(Self {
            name: definition.name.clone(),
            table,
            statement: definition.statement.clone(),
            base: base.to_owned(),
            fingerprint,
            operators,
            files,
            options: definition.options.iter().map(|option| (option.name.clone(), text(&option.value))).collect(),
            feed_options,
            read_defaults,
            dataset,
            limit,
            stage: stage.into(),
            audience,
            plan: plan.into(),
            cut: cut.into(),
            tables,
            results: results.cloned(),
        })
    }

    /// The same pipeline with the results of its stages, so that it can be opened.
    pub(crate) fn with_results(&self, results: StageResults, state: &SessionState) -> Result<Self> {
        let plan = self.cut.with_values(&|name| results.value(name))?;
        let mut tables = self.tables.clone();
        tables.extend(results.tables.clone());
        let dataset = tables[&self.table].clone();
        let stage = compiled(&plan, StageUse::plain(self.audience), &tables, state)?;
        Ok(Self { dataset, stage: stage.into(), plan: plan.into(), tables, results: Some(results), ..self.clone() })
    }

    /// The parts of the query that run once, before a feed is opened.
    pub(crate) fn stages(&self) -> &[StagePlan] {
        &self.cut.stages
    }

    /// Whether all that it needs of its stages is known.
    pub(crate) fn is_ready(&self) -> bool {
        self.cut.stages.is_empty() || self.results.is_some()
    }

    /// The tables that the query reads, and those of its stages.
    pub(crate) fn tables(&self) -> &BTreeMap<String, Dataset> {
        &self.tables
    }

    /// The artifacts of its stages, if it is ready.
    pub(crate) fn artifacts(&self) -> Option<&Vec<(String, u64)>> {
        self.results.as_ref().map(|results| &results.artifacts)
    }

    /// The results of its stages, if it is ready.
    pub(crate) fn results(&self) -> Option<&StageResults> {
        self.results.as_ref()
    }

    /// The values of its stages, by name.
    pub(crate) fn values(&self) -> impl Iterator<Item = (&String, &StageValue)> {
        self.results.iter().flat_map(|results| &results.values)
    }

    /// The pipeline's name.
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

    /// The operators that it calls, with their versions.
    pub fn operators(&self) -> &BTreeMap<String, u32> {
        &self.operators
    }

    /// The options in its `WITH`.
    pub fn options(&self) -> &[(String, String)] {
        &self.options
    }

    /// The text of its `CREATE PIPELINE`.
    pub fn statement(&self) -> &str {
        &self.statement
    }

    /// The base folder of relative file paths in its calls.
    pub(crate) fn base(&self) -> &Path {
        &self.base
    }

    /// The driving table, then the joined tables, then those of values.
    pub(crate) fn datasets(&self) -> impl Iterator<Item = &Dataset> {
        let of_values = self.values().filter_map(|(_, value)| value.table.as_ref());
        std::iter::once(&self.dataset).chain(self.stage.lookups().map(|lookup| &lookup.dataset)).chain(of_values)
    }

    /// The plan of the lengths of its output `column`.
    pub(crate) fn lengths(&self, column: &str, order: CallOrder, state: &SessionState) -> Result<Lengths> {
        compile::check_length(&self.schema(), column)?;
        compile::lengths(&self.plan, column, order, self.dataset.schema(), state)
    }

    /// The stage of a feed whose calls run in this order.
    pub(crate) fn stage_in(&self, order: CallOrder, state: &SessionState) -> Result<Sealed<Stage>> {
        match order {
            CallOrder::Exact => Ok(self.stage.clone()),
            CallOrder::Relaxed => {
                Ok(self.compiled(StageUse { order, ..StageUse::plain(self.audience) }, state)?.into())
            }
        }
    }

    /// The stage that computes only these columns of the samples. With `reads_all` it still reads all columns.
    pub(crate) fn stage_of(
        &self,
        columns: &[String],
        reads_all: bool,
        order: CallOrder,
        state: &SessionState,
    ) -> Result<Stage> {
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
        self.compiled(StageUse { only: Some(&only), reads_all, order, ..StageUse::plain(Audience::User) }, state)
    }

    /// The stage that keeps what is the same in every epoch, or all if random calls draw the same in every epoch.
    pub(crate) fn keeping_stage(&self, keeping: Keeping, order: CallOrder, state: &SessionState) -> Result<Stage> {
        self.compiled(StageUse { keeping, order, ..StageUse::plain(self.audience) }, state)
    }

    /// The places where its samples may be kept.
    pub(crate) fn cuts(&self, order: CallOrder) -> Result<Vec<PrefixCut>> {
        compile::prefix_cuts(&self.plan, order)
    }

    fn compiled(&self, use_of: StageUse<'_>, state: &SessionState) -> Result<Stage> {
        compiled(&self.plan, use_of, &self.tables, state)
    }

    /// The options of its feeds that its `WITH` sets.
    pub fn feed_options(&self) -> &FeedOptions {
        &self.feed_options
    }

    /// Calls whose results must not be stored: see [`Feed::uncacheable_calls`](crate::Feed::uncacheable_calls).
    pub(crate) fn uncacheable_calls(&self) -> Vec<String> {
        compile::uncacheable_calls(&self.plan).unwrap_or_default()
    }

    /// The functions of the embedding program that it calls, with their versions.
    pub(crate) fn function_versions(&self) -> BTreeMap<String, Option<String>> {
        compile::function_versions(&self.plan).unwrap_or_default()
    }

    pub(crate) fn unversioned_functions(&self) -> Vec<String> {
        self.function_versions().into_iter().filter(|(_, version)| version.is_none()).map(|(name, _)| name).collect()
    }

    /// A hash that identifies its query.
    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The files named in its calls, with the digests of their contents.
    pub(crate) fn files(&self) -> &BTreeMap<String, String> {
        &self.files
    }
}

fn compiled(
    plan: &LogicalPlan,
    use_of: StageUse<'_>,
    tables: &BTreeMap<String, Dataset>,
    state: &SessionState,
) -> Result<Stage> {
    // As for lengths, planning never waits.
    let compiling = compile::compile(plan, use_of, tables, state);
    compiling.now_or_never().ok_or_else(|| Error::new(ErrorKind::Internal, "planning did not complete at once"))?
}

/// A table of a stage's columns, until its rows are known.
fn no_rows(stage: &StagePlan) -> Result<Dataset> {
    Ok(Dataset::in_memory(&stage.name, Arc::clone(&stage.schema), Vec::new(), "not known yet")?)
}

/// The error of a query that cannot run, at the word in its text that is the reason. The text begins at `start`.
pub(crate) fn misplaced(text: &str, start: Place, Unrunnable { word, error }: Unrunnable) -> Refusal {
    match word.and_then(|word| forebay_sql::place_of(&word, text, start)) {
        None => Refusal::Whole(error),
        Some(place) => hinted(forebay_sql::Error::new(error.message()).with_place(place), error.hint()),
    }
}

/// Why a pipeline was not created, with or without a place in its text.
pub(crate) enum Refusal {
    Placed(forebay_sql::Error),
    Whole(crate::Error),
}

impl From<crate::Error> for Refusal {
    fn from(error: crate::Error) -> Self {
        // Nothing has been read yet, so a constant that cannot be computed is an error in the query, not in the data.
        match error.kind() {
            ErrorKind::Data => Self::Whole(crate::Error::new(ErrorKind::Invalid, error.message())),
            _ => Self::Whole(error),
        }
    }
}

/// The option that says how joins run. It is a part of the query, and so only of `CREATE PIPELINE`.
pub(crate) const JOIN: &str = "join";

fn options(given: &[PipelineOption]) -> Result<(FeedOptions, ReadDefaults, Joins), Refusal> {
    let (mut of_feed, mut of_reading, mut joins) = (Vec::new(), Vec::new(), Joins::default());
    for option in given {
        if option.name == JOIN {
            let word = text(&option.value);
            let message = || {
                let words: Vec<String> = Joins::WORDS.iter().map(|word| format!("'{word}'")).collect();
                format!("\"{JOIN}\" must be {}, got '{word}'", words.join(" or "))
            };
            joins = Joins::of(&word).ok_or_else(|| Refusal::Placed(refusal(option, message())))?;
            continue;
        }
        let table = || FeedOptions::TABLE.iter().chain(ReadDefaults::TABLE);
        let spec = find(option, "pipeline option", &[JOIN], table)?;
        let values = if spec.scope == Scope::Feed { &mut of_feed } else { &mut of_reading };
        values.push((spec.name, value(spec, option)?));
    }
    let (feed, read) = (FeedOptions::of(of_feed)?, ReadDefaults::of(of_reading)?);
    let batch_size = given.iter().find(|option| option.name == "batch_size");
    if let (Some(option), Some(size)) = (batch_size, feed.global_batch_size) {
        let error = refusal(option, format!("\"batch_size\" follows from the global batch size of {size}"));
        return Err(hinted(error, Some("leave it out: it is the global batch size divided by the world size")));
    }
    Ok((feed, read, joins))
}

/// The description of the named option in `table`, whose options are of this `kind`. A hint also names `others`.
pub(crate) fn find<T: Iterator<Item = &'static OptionSpec>>(
    option: &PipelineOption,
    kind: &str,
    others: &[&'static str],
    table: impl Fn() -> T,
) -> Result<&'static OptionSpec, Refusal> {
    table().find(|spec| spec.name == option.name).ok_or_else(|| {
        let names: Vec<&str> = table().map(|spec| spec.name).chain(others.iter().copied()).collect();
        let unknown = forebay_sql::Error::new(format!("unknown {kind} \"{}\"", option.name));
        Refusal::Placed(unknown.with_place(option.place).with_hint(
            match forebay_diagnostics::nearest(&option.name, names.iter().copied()) {
                Some(nearest) => format!("did you mean \"{nearest}\"?"),
                None => format!("options: {}", names.join(", ")),
            },
        ))
    })
}

/// The option's value.
pub(crate) fn value(spec: &OptionSpec, option: &PipelineOption) -> Result<serde_json::Value, Refusal> {
    let text = text(&option.value);
    match (spec.kind, &option.value) {
        (OptionKind::Boolean | OptionKind::Switch, OptionValue::Boolean(value)) => Ok((*value).into()),
        (OptionKind::Boolean | OptionKind::Switch, _) => {
            let message = format!("\"{}\" must be true or false without quotes, got '{text}'", option.name);
            Err(Refusal::Placed(refusal(option, message)))
        }
        _ => spec.parse_in_query(&text).map_err(|error| hinted(refusal(option, error.message()), error.hint())),
    }
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

fn text(value: &OptionValue) -> String {
    match value {
        OptionValue::Text(text) | OptionValue::Number(text) => text.clone(),
        OptionValue::Boolean(value) => value.to_string(),
    }
}
