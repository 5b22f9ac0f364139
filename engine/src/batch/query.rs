//! A query, and its rows.

use std::any::Any;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::compute::cast;
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::source_as_provider;
use datafusion::error::{DataFusionError, Result as PlanResult};
use datafusion::execution::{SessionState, TaskContext};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::physical_plan::execute_stream;
use forebay_arrays::without_views;
use futures::{Stream, StreamExt};
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::coded::coded;
use super::{BatchLimits, BatchTable, suspects};
use crate::compile::{self, PlanValue, fused};
use crate::error::{Error, Result};
use crate::executor::{Executor, Task};
use crate::function;

/// The rows of a batch if they are small, as in DataFusion, and about the bytes of one of source rows that are not.
const ROWS_MAX: usize = 8192;
const BATCH_BYTES: u64 = 4 << 20;
/// With each retry, a batch has fewer rows.
const ROWS_DIVISOR: usize = 8;
/// Batches that wait for their reader.
const BATCHES_READY: usize = 2;
/// How often a query that runs out of memory is planned again, with half of the parallel parts each time, and with
/// joins that spill.
const RETRIES_MAX: u32 = 2;

/// A query over whole tables. It is checked, and runs when its rows are read.
#[derive(Clone)]
pub struct Query {
    text: String,
    plan: LogicalPlan,
    schema: SchemaRef,
    planner: SessionState,
    limits: BatchLimits,
    executor: Arc<Executor>,
}

/// The rows of a [`Query`], as they are computed. Dropping it stops the query.
pub struct QueryRows {
    batches: mpsc::Receiver<Result<RecordBatch>>,
    /// `Some` until the end.
    task: Option<Task<()>>,
    /// What the query has spilled. Dropped after the task.
    _spill: TempDir,
}

impl Query {
    /// The query of a checked `plan` over [`BatchTable`](super::BatchTable)s of `planner`.
    pub(crate) fn new(
        text: String,
        plan: LogicalPlan,
        planner: SessionState,
        limits: BatchLimits,
        executor: Arc<Executor>,
    ) -> Self {
        let plain = |field: &Arc<Field>| {
            let data_type = without_views(field.data_type(), true);
            field.as_ref().clone().with_data_type(data_type).with_nullable(true)
        };
        let schema = plan.schema().as_arrow();
        let fields: Vec<Field> = schema.fields().iter().map(plain).collect();
        let schema = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
        Self { text, plan, schema, planner, limits, executor }
    }

    /// The text of the query.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The columns of its rows.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Runs the query.
    ///
    /// # Errors
    /// `Invalid` for a folder in which nothing can be spilled.
    pub fn rows(&self) -> Result<QueryRows> {
        let spill = self.limits.spill()?;
        let spill_folder = spill.path().to_owned();
        let (sender, batches) = mpsc::channel(BATCHES_READY);
        let mut query = self.clone();
        // The time of this run, for calls such as now().
        let config = Arc::clone(query.planner.config_options());
        query.planner.execution_props_mut().mark_start_execution(config);
        let task = self.executor.spawn(async move {
            let run = async {
                // Held until the end.
                let _fitted = Box::pin(query.fit()).await?;
                query.run(&spill_folder, &sender).await
            };
            if let Err(error) = run.await {
                let _ = sender.send(Err(error)).await;
            }
        });
        Ok(QueryRows { batches, task: Some(task), _spill: spill })
    }

    /// Runs the fits of the plan, one after the other, and puts their constants into it. Their lists live as long as
    /// the returned values.
    async fn fit(&mut self) -> Result<Vec<(Arc<LogicalPlan>, PlanValue)>> {
        let mut values = Vec::new();
        for plan in compile::fits(&self.plan)? {
            let (text, planner, limits) = (self.text.clone(), self.planner.clone(), self.limits.clone());
            let fit = Self::new(text, plan.as_ref().clone(), planner, limits, Arc::clone(&self.executor));
            let mut rows = fit.rows()?;
            let mut row = None;
            while let Some(batch) = rows.next().await {
                row = Some(batch?).filter(|batch| batch.num_rows() > 0).or(row);
            }
            let row = row.ok_or_else(|| Error::internal("a fit has no row"))?;
            values.push((plan, PlanValue::of(&row)?));
        }
        if !values.is_empty() {
            let value_of = |plan: &Arc<LogicalPlan>| {
                let found = values.iter().find(|(fit, _)| fit == plan);
                Ok(found.map(|(_, value)| Expr::Literal(value.scalar.clone(), None)))
            };
            self.plan = compile::with_fits(self.plan.clone(), value_of)?;
        }
        Ok(values)
    }

    async fn run(&self, spill_folder: &Path, sender: &mpsc::Sender<Result<RecordBatch>>) -> Result<()> {
        // Rows of one table that are only chosen and computed come in the order of its files: from one partition. For
        // others, DataFusion plans joins that spill if there are two at least.
        let (mut partitions, fewest) = match is_row_by_row(&self.plan) {
            true => (1, 1),
            false => (self.limits.partitions(self.executor.threads()), 2),
        };
        let mut retries = 0;
        loop {
            let mut has_begun = false;
            let error = match self.attempt(partitions, retries, spill_folder, sender, &mut has_begun).await {
                Ok(()) => return Ok(()),
                Err(error) if is_out_of_memory(&error) => error,
                Err(error) => return Err(suspects::named(of_query(error), &self.plan)),
            };
            let error = Error::from(error);
            if has_begun || retries == RETRIES_MAX {
                return Err(error.with_hint("raise the option \"batch_memory_limit\", or compute fewer rows at a time"));
            }
            (partitions, retries) = ((partitions / 2).max(fewest), retries + 1);
            tracing::info!(partitions, error = error.message(), "planning the query again, with less at a time");
        }
    }

    async fn attempt(
        &self,
        partitions: usize,
        retries: u32,
        spill_folder: &Path,
        sender: &mpsc::Sender<Result<RecordBatch>>,
        has_begun: &mut bool,
    ) -> PlanResult<()> {
        let plan = self.planner.optimize(&self.plan)?;
        // A merge needs two batches of each file that was spilled.
        let rows = (batch_rows(&plan) / ROWS_DIVISOR.pow(retries)).max(1);
        let state = self.limits.state(self.planner.clone(), partitions, rows, retries > 0, spill_folder)?;
        let plan = state.query_planner().create_physical_plan(&plan, &state).await?;
        let plan = if retries == 0 && self.limits.fits_dictionaries(partitions) { coded(plan)? } else { plan };
        let plan = fused(plan).map_err(|error| DataFusionError::External(Box::new(error)))?;
        let mut batches = execute_stream(plan, Arc::new(TaskContext::from(&state)))?;
        while let Some(batch) = batches.next().await {
            // It has no views.
            let batch = of_schema(&batch?, &self.schema);
            *has_begun = true;
            if sender.send(batch).await.is_err() {
                break;
            }
        }
        Ok(())
    }
}

impl QueryRows {
    /// The next rows, or `None` at the end.
    ///
    /// # Errors
    /// Errors of reading and computing. After one, there are no more rows.
    pub async fn next(&mut self) -> Option<Result<RecordBatch>> {
        match self.batches.recv().await {
            Some(batch) => Some(batch),
            // The query has ended, or it panicked.
            None => self.task.take()?.join().await.err().map(Err),
        }
    }

    /// The rows as a stream.
    pub fn into_stream(self) -> impl Stream<Item = Result<RecordBatch>> + Send {
        futures::stream::unfold(self, |mut rows| async move { Some((rows.next().await?, rows)) })
    }
}

/// The batch with the types of `schema`.
pub(super) fn of_schema(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| match column.data_type() == field.data_type() {
        true => Ok(Arc::clone(column)),
        false => cast(column, field.data_type()),
    });
    let unfit = |error| Error::internal(format!("rows do not fit their query: {error}"));
    let columns = columns.collect::<std::result::Result<_, _>>().map_err(unfit)?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options).map_err(unfit)
}

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Query").field("text", &self.text).finish_non_exhaustive()
    }
}

/// Queries of one text are equal.
impl PartialEq for Query {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Query {}

/// Whether DataFusion's pool of memory has no more. Functions and disks have limits too, which less at a time does not
/// change.
fn is_out_of_memory(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(why) if why.contains("memory pool"))
}

/// The error of reading or computing, which may have passed through DataFusion.
fn of_query(error: DataFusionError) -> Error {
    if let Some(by) = function::stopped(&error) {
        return Error::of_stop(by);
    }
    match error.find_root() {
        DataFusionError::External(external) if let Some(error) = external.downcast_ref::<Error>() => error.clone(),
        _ => error.into(),
    }
}

/// The rows of a batch: fewer if rows are large, since what DataFusion joins to batches is in no memory limit.
fn batch_rows(plan: &LogicalPlan) -> usize {
    let mut most = ROWS_MAX;
    let _ = plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && let Ok(provider) = source_as_provider(&scan.source)
            && let Some(table) = (provider.as_ref() as &dyn Any).downcast_ref::<BatchTable>()
        {
            let bytes = table.bytes_per_row(scan.projection.as_deref());
            most = most.min(usize::try_from(BATCH_BYTES / bytes.max(1)).unwrap_or(usize::MAX));
        }
        Ok(TreeNodeRecursion::Continue)
    });
    most.max(1)
}

/// Whether each row of a plan follows from one row of its table.
fn is_row_by_row(plan: &LogicalPlan) -> bool {
    let mut is_row_by_row = true;
    let visited = plan.apply_with_subqueries(|node| {
        is_row_by_row &= matches!(
            node,
            LogicalPlan::Projection(_)
                | LogicalPlan::Filter(_)
                | LogicalPlan::SubqueryAlias(_)
                | LogicalPlan::TableScan(_)
                | LogicalPlan::Limit(_)
                | LogicalPlan::Unnest(_)
        );
        Ok(if is_row_by_row { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    });
    is_row_by_row && visited.is_ok()
}
