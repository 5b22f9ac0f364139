//! A planned feed stage, and running it over rows with bad rows found by bisection.
//!
//! When a plan fails over some rows, it is run over each half, down to the single rows that fail. So any function names
//! its bad rows, DataFusion's own casts and divisions too, without knowing that rows have names; and the cost, about
//! twice the batch's for one bad row and two runs for each of many, is paid only where rows are bad.

use std::any::Any;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, UInt64Array};
use arrow::datatypes::{DataType, SchemaRef, UInt64Type};
use datafusion::common::tree_node::{Transformed as Rewritten, TransformedResult, TreeNode};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use forebay_operators::image_chain::fuse;
use futures::FutureExt;

use super::deferred::defer_last_steps;
use super::distinct;
use super::hidden::{RANDOM_KEY, SAMPLE_ID, STEP_LENGTH};
use super::layer::Layer;
use super::lookup::LookupPlan;
use super::source_rows::SourceRows;
use super::window_exec::{WindowExec, bind};
use crate::error::{Error, ErrorKind, Result};
use crate::executor::panic_text;
use crate::function;

/// A feed stage that is ready to run over any rows of its table.
pub(crate) struct Stage {
    /// What makes the rows that the rest reads, from the table upwards.
    layers: Vec<Layer>,
    select: Option<Select>,
    transform: LeafPlan,
    columns: Vec<usize>,
    /// Of these, texts that are read as dictionaries: see [`distinct`].
    categories: Vec<usize>,
    context: Arc<TaskContext>,
}

/// Which rows pass the filters.
pub(crate) struct Select {
    /// All conditions at once, as the optimizer ordered them: whether a row fails may depend on that order.
    pub(crate) whole: LeafPlan,
    /// Each condition by itself, for rows that fail.
    pub(crate) conjuncts: Vec<LeafPlan>,
}

/// What became of some rows: those that went through, in order, and those that could not.
pub(crate) struct Transformed {
    pub(crate) batches: Vec<RecordBatch>,
    pub(crate) bad: Vec<BadRow>,
}

/// A row that could not be processed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadRow {
    pub(crate) sample_id: u64,
    /// The row of the driving table that it was made of, or is.
    pub(crate) origin: u64,
    pub(crate) reason: String,
}

impl Select {
    /// The columns of its leaf that it reads.
    pub(crate) fn columns(&self) -> impl Iterator<Item = usize> {
        self.conjuncts.iter().chain([&self.whole]).flat_map(LeafPlan::columns)
    }
}

/// Ascending, each once.
pub(crate) fn ascending(columns: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut columns: Vec<usize> = columns.collect();
    columns.sort_unstable();
    columns.dedup();
    columns
}

impl Stage {
    pub(crate) fn new(select: Option<Select>, transform: LeafPlan, context: Arc<TaskContext>) -> Self {
        let columns = ascending(select.iter().flat_map(Select::columns).chain(transform.columns()));
        Self { layers: Vec::new(), select, transform, columns, categories: Vec::new(), context }
    }

    /// The same stage with samples of fewer columns. It reads as much as before.
    pub(crate) fn giving(self, transform: LeafPlan) -> Self {
        Self { transform, ..self }
    }

    /// Puts a layer below all others.
    pub(crate) fn push_below(&mut self, layer: Layer) {
        self.layers.insert(0, layer);
    }

    /// What makes rows, from the table upwards.
    pub(crate) fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The tables that joins look rows up in, from the table upwards.
    pub(crate) fn lookups(&self) -> impl Iterator<Item = &LookupPlan> {
        self.layers.iter().filter_map(Layer::lookup)
    }

    /// The output's schema.
    pub(crate) fn schema(&self) -> SchemaRef {
        self.transform.unfinished.clone().unwrap_or_else(|| self.transform.plan.schema())
    }

    /// The columns of the driving table that are to be read, ascending.
    pub(crate) fn read_columns(&self) -> &[usize] {
        self.layers.first().map_or(&self.columns, Layer::columns)
    }

    /// Of the columns that are to be read, those to be read as dictionaries.
    pub(crate) fn read_categories(&self) -> &[usize] {
        &self.categories
    }

    /// The same stage, with dictionaries in place of texts of which only its transform makes numbers.
    pub(crate) fn with_categories(mut self) -> Result<Self> {
        if !self.layers.is_empty() {
            return Ok(self);
        }
        let selected: Vec<usize> = self.select.iter().flat_map(Select::columns).collect();
        let mut categories = distinct::categories(&self.transform.plan);
        categories.retain(|&at| self.transform.inputs[at].column().is_some_and(|column| !selected.contains(&column)));
        if !categories.is_empty() {
            self.categories = ascending(categories.iter().filter_map(|&at| self.transform.inputs[at].column()));
            let (plan, leaf_schema) = distinct::over_dictionaries(Arc::clone(&self.transform.plan), &categories)?;
            self.transform = LeafPlan { plan, leaf_schema, ..self.transform };
        }
        Ok(self)
    }

    /// The columns of the topmost layer, or of the driving table, that select and transform need, ascending.
    pub(crate) fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// Whether each source row gives one sample, so that offsets are known before anything is read.
    pub(crate) fn is_one_to_one(&self) -> bool {
        self.select.is_none() && self.layers.iter().all(Layer::is_one_to_one)
    }

    /// The ids of the rows that pass the filters, as `None` if there are none to pass.
    pub(crate) async fn select(&self, rows: &SourceRows) -> Result<Option<(UInt64Array, Vec<BadRow>)>> {
        let Some(select) = &self.select else { return Ok(None) };
        let selected = self.passed(select, &self.columns, rows).await?;
        let ids = selected.batches.iter().flat_map(|batch| batch.column(0).as_primitive::<UInt64Type>().values());
        Ok(Some((UInt64Array::from_iter_values(ids.copied()), selected.bad)))
    }

    /// What `select` gives for `rows`, which have the columns `read`.
    pub(crate) async fn passed(&self, select: &Select, read: &[usize], rows: &SourceRows) -> Result<Transformed> {
        let mut passed = self.run(&select.whole, read, rows, false).await?;
        let mut bad = Vec::with_capacity(passed.bad.len());
        for row in passed.bad {
            // `a AND b` may run as `b AND a`: a row that `a` excludes is not bad because `b` fails on it.
            if !self.is_excluded(select, read, rows, row.sample_id).await? {
                bad.push(row);
            }
        }
        passed.bad = bad;
        Ok(passed)
    }

    /// Whether a condition by itself keeps the row out.
    async fn is_excluded(&self, select: &Select, read: &[usize], rows: &SourceRows, sample_id: u64) -> Result<bool> {
        let at = rows.sample_ids.values().iter().position(|&id| id == sample_id).expect("a bad row is one of the rows");
        for conjunct in &select.conjuncts {
            match self.run_range(conjunct, read, rows, at, 1).await {
                Ok(kept) if kept.iter().all(|batch| batch.num_rows() == 0) => return Ok(true),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Data => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// The samples that `rows` become. With `stop_at_bad`, what comes after the first bad row is not computed.
    pub(crate) async fn transform(&self, rows: &SourceRows, stop_at_bad: bool) -> Result<Transformed> {
        let mut done = self.run(&self.transform, &self.columns, rows, stop_at_bad).await?;
        if let Some(schema) = &self.transform.unfinished {
            for batch in &mut done.batches {
                let said = batch.clone().with_schema(Arc::clone(schema));
                *batch = said.map_err(|error| Error::internal(format!("samples do not fit their schema: {error}")))?;
            }
        }
        Ok(done)
    }

    /// Runs `plan` over `rows`, which have the columns `read` of the table.
    pub(crate) async fn run(
        &self,
        plan: &LeafPlan,
        read: &[usize],
        rows: &SourceRows,
        stop_at_bad: bool,
    ) -> Result<Transformed> {
        let mut done = Transformed { batches: Vec::new(), bad: Vec::new() };
        let mut todo: Vec<Range<usize>> = Vec::new();
        todo.push(0..rows.sample_ids.len());
        while let Some(range) = todo.pop() {
            match self.run_range(plan, read, rows, range.start, range.len()).await {
                Ok(batches) => done.batches.extend(batches.into_iter().filter(|batch| batch.num_rows() > 0)),
                Err(error) if error.stopped().is_some() => return Err(error),
                Err(error) if range.len() > 1 => {
                    let middle = range.start + range.len() / 2;
                    todo.push(middle..range.end);
                    todo.push(range.start..middle);
                    tracing::debug!(rows = range.len(), %error, "bisecting rows that failed");
                }
                Err(error) if error.kind() == ErrorKind::Data => {
                    let mut reason = error.message().trim_end().to_owned();
                    if self.layers.last().is_some_and(Layer::has_partners) {
                        reason += " (in this row, or in the one that it is mixed with)";
                    }
                    let (sample_id, origin) = (rows.sample_ids.value(range.start), rows.origin(range.start));
                    done.bad.push(BadRow { sample_id, origin, reason });
                    if stop_at_bad {
                        break;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    async fn run_range(
        &self,
        plan: &LeafPlan,
        read: &[usize],
        rows: &SourceRows,
        start: usize,
        len: usize,
    ) -> Result<Vec<RecordBatch>> {
        let bound = bind(&plan.plan, plan.leaf_rows(rows, read, start, len)?)?;
        // A decoder that panics on hostile bytes must cost a row, not the feed.
        match AssertUnwindSafe(collect(bound, Arc::clone(&self.context))).catch_unwind().await {
            Ok(Err(error)) if let Some(by) = function::stopped(&error) => Err(Error::of_stop(by)),
            Ok(Err(error)) => match Error::from(error) {
                error if error.kind() == ErrorKind::Exhausted => Err(error),
                // The plan was good when it was made and its rows are in memory: whatever a function calls its failure,
                // it is about these rows.
                error => Err(Error::new(ErrorKind::Data, error.message())),
            },
            Ok(batches) => Ok(batches?),
            Err(panic) => Err(Error::new(ErrorKind::Data, format!("panicked: {}", panic_text(panic.as_ref())))),
        }
    }

    /// The physical plans, for `EXPLAIN PIPELINE`.
    pub(crate) fn display(&self) -> String {
        let mut text: String = self.layers.iter().map(Layer::display).collect();
        if let Some(select) = &self.select {
            text += &format!("select:\n{}", select.whole.display());
        }
        text + &format!("transform:\n{}", self.transform.display())
    }
}

/// A physical plan over a [`WindowExec`], and what each column of that leaf is.
pub(crate) struct LeafPlan {
    pub(crate) plan: Arc<dyn ExecutionPlan>,
    /// The schema of its rows that says what is left to be done with them, if anything is.
    unfinished: Option<SchemaRef>,
    leaf_schema: SchemaRef,
    inputs: Vec<Input>,
}

enum Input {
    Column(usize),
    SampleId,
    RandomKey,
    StepLength,
}

impl Input {
    /// The column of the table or layer that it is.
    fn column(&self) -> Option<usize> {
        match self {
            Self::Column(column) => Some(*column),
            Self::SampleId | Self::RandomKey | Self::StepLength => None,
        }
    }
}

impl LeafPlan {
    pub(crate) fn new(plan: Arc<dyn ExecutionPlan>, source: &SchemaRef) -> Result<Self> {
        Self::of(plan, None, source)
    }

    /// The same plan without what its reader can do.
    pub(crate) fn sending(plan: Arc<dyn ExecutionPlan>, source: &SchemaRef) -> Result<Self> {
        match defer_last_steps(&plan)? {
            Some((plan, schema)) => Self::of(plan, Some(schema), source),
            None => Self::of(plan, None, source),
        }
    }

    fn of(plan: Arc<dyn ExecutionPlan>, unfinished: Option<SchemaRef>, source: &SchemaRef) -> Result<Self> {
        let plan = fused(plan)?;
        let mut leaf = &plan;
        while let [child] = leaf.children()[..] {
            leaf = child;
        }
        if !leaf.is::<WindowExec>() {
            // An optimiser that proves a filter false leaves a plan without a leaf.
            return Err(Error::invalid("no row of the table can pass this query's filters"));
        }
        let leaf_schema = leaf.schema();
        let inputs = leaf_schema
            .fields()
            .iter()
            .map(|field| match field.name().as_str() {
                SAMPLE_ID => Ok(Input::SampleId),
                RANDOM_KEY => Ok(Input::RandomKey),
                STEP_LENGTH => Ok(Input::StepLength),
                name => source.index_of(name).map(Input::Column),
            })
            .collect::<std::result::Result<_, _>>()
            .map_err(|error| Error::internal(format!("a planned column is not in the table: {error}")))?;
        Ok(Self { plan, unfinished, leaf_schema, inputs })
    }

    pub(crate) fn display(&self) -> String {
        displayable(self.plan.as_ref()).indent(false).to_string()
    }

    /// The columns of its leaf that it reads.
    pub(crate) fn columns(&self) -> impl Iterator<Item = usize> {
        self.inputs.iter().filter_map(Input::column)
    }

    fn leaf_rows(&self, rows: &SourceRows, read: &[usize], start: usize, len: usize) -> Result<RecordBatch> {
        let columns = self.inputs.iter().map(|input| -> ArrayRef {
            match input {
                Input::Column(index) => {
                    let at = read.binary_search(index).expect("a stage reads every column of its plans");
                    rows.batch.column(at).slice(start, len)
                }
                Input::SampleId => Arc::new(rows.sample_ids.slice(start, len)),
                Input::RandomKey => Arc::new(rows.random_keys.slice(start, len)),
                Input::StepLength => Arc::new(match &rows.step_lengths {
                    Some(lengths) => lengths.slice(start, len),
                    None => UInt64Array::from_value(0, len),
                }),
            }
        });
        // What is read as a dictionary for one plan may be plain text to another.
        let columns = columns.zip(self.leaf_schema.fields()).map(|(column, field)| match field.data_type() {
            DataType::Utf8 => distinct::plain(&column),
            _ => Ok(column),
        });
        RecordBatch::try_new_with_options(
            Arc::clone(&self.leaf_schema),
            columns.collect::<std::result::Result<_, _>>().map_err(|error| Error::internal(error.to_string()))?,
            &RecordBatchOptions::new().with_row_count(Some(len)),
        )
        .map_err(|error| Error::internal(format!("rows read do not fit the plan: {error}")))
    }
}

/// The plan with each chain of image operators as one call. This comes last, so that what several chains share is computed
/// once, as the optimizer arranged it.
fn fused(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let fused = plan.transform_up(|node| {
        let Some(projection) = (node.as_ref() as &dyn Any).downcast_ref::<ProjectionExec>() else {
            return Ok(Rewritten::no(node));
        };
        let input = projection.input();
        let exprs = projection.expr().iter().map(|output| {
            let expr = fuse(Arc::clone(&output.expr), &input.schema())?;
            Ok(ProjectionExpr { expr, alias: output.alias.clone() })
        });
        let exprs = exprs.collect::<datafusion::error::Result<Vec<_>>>()?;
        let fused = ProjectionExec::try_new_with_schema_metadata(exprs, Arc::clone(input), &projection.schema())?;
        Ok(Rewritten::yes(Arc::new(fused) as Arc<dyn ExecutionPlan>))
    });
    Ok(fused.data()?)
}
