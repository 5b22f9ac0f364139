//! The leaf of a query over whole tables: reads the row ranges of a table.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use datafusion::common::Statistics;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties, ReplaceChildrenOptions,
};
use forebay_storage::{Dataset, RangeBatches, RangeRows, RowRange, dictionary_of_texts, retyped};
use futures::{StreamExt, TryStreamExt, stream};

use super::left_out::LeftOut;
use super::table::ROW;
use crate::compile::Pruning;
use crate::error::{Error, ErrorKind};

/// Bytes of a row range in memory. Reading several at a time must take little of a query's memory.
const RANGE_BYTES: u64 = 4 << 20;
/// The most of them with dictionaries. Each range reads the dictionaries of its row group again.
pub(super) const CODED_RANGE_BYTES: u64 = 16 << 20;
/// Ranges that are read at a time from a store that is not the local disk.
const READS_OF_STORE: usize = 16;

/// Reads a table's row ranges in several partitions. With n of them, each reads every n-th range.
#[derive(Debug)]
pub(super) struct ScanExec {
    table: String,
    reading: Arc<Reading>,
    ranges: Vec<RowRange>,
    /// Ranges of a partition that are read at a time.
    at_once: usize,
    properties: Arc<PlanProperties>,
}

/// What is read of each row range.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) dataset: Dataset,
    /// The schema of the columns and the rows' numbers.
    pub(super) schema: SchemaRef,
    pub(super) columns: Vec<usize>,
    /// The columns of the dataset whose texts are read as dictionaries.
    pub(super) dictionaries: Vec<usize>,
    /// Where the rows' numbers are in the schema, if they are wanted.
    pub(super) row: Option<usize>,
    /// Ranges that this excludes are left out.
    pub(super) pruning: Vec<Pruning>,
    /// Takes rows that cannot be read. Without it, one ends the query.
    pub(super) left_out: Option<LeftOut>,
}

impl ScanExec {
    /// Reads on so many threads, in so many partitions at most. With a `limit`, the first rows come first.
    pub(super) fn new(table: &str, reading: Reading, limit: Option<usize>, partitions: usize, threads: usize) -> Self {
        let mut ranges = reading.dataset.row_ranges(RANGE_BYTES);
        if !reading.dictionaries.is_empty() {
            let bytes: u64 = ranges.iter().map(|range| range.bytes).sum();
            let of_partition = bytes / (partitions as u64).max(1);
            ranges = reading.dataset.row_ranges(of_partition.clamp(RANGE_BYTES, CODED_RANGE_BYTES));
        }
        let mut partitions = partitions;
        if let (Some(limit), true) = (limit, reading.has_all_rows()) {
            partitions = 1;
            let mut before = 0;
            ranges.retain(|range| {
                let is_needed = before < limit as u64;
                before += range.rows;
                is_needed
            });
        }
        let partitions = partitions.min(ranges.len()).max(1);
        // A thread that has read finds the next range ready. A store answers after a while.
        let at_once = if reading.dataset.is_local() { threads } else { threads.max(READS_OF_STORE) };
        let at_once = at_once.div_ceil(partitions) + 1;
        let properties = Arc::new(PlanProperties::new(
            reading.order(),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        ));
        Self { table: table.to_owned(), reading: Arc::new(reading), ranges, at_once, properties }
    }

    /// The same rows, with texts of these of its columns as dictionaries, if they are cheaper to read so. Each batch
    /// has all rows of a range, and its own dictionaries.
    pub(super) fn with_dictionaries(&self, columns: &BTreeSet<usize>) -> Option<Self> {
        let Reading { dataset, schema, columns: read, row, pruning, left_out, .. } = self.reading.as_ref();
        if columns.is_empty() || !dataset.has_dictionaries() || !pruning.is_empty() {
            return None;
        }
        let of_dataset = |at: &usize| read[*at - usize::from(row.is_some_and(|row| row < *at))];
        let reading = Reading {
            dataset: dataset.clone(),
            schema: retyped(schema, |at| columns.contains(&at).then(dictionary_of_texts)),
            columns: read.clone(),
            dictionaries: columns.iter().map(of_dataset).collect(),
            row: *row,
            pruning: Vec::new(),
            left_out: left_out.clone(),
        };
        let scan = Self::new(&self.table, reading, None, self.partitions(), 1);
        Some(Self { at_once: self.at_once, ..scan })
    }

    fn partitions(&self) -> usize {
        self.properties.output_partitioning().partition_count()
    }

    fn of_partition(&self, partition: usize) -> impl Iterator<Item = &RowRange> {
        self.ranges.iter().skip(partition).step_by(self.partitions())
    }
}

impl Reading {
    /// Whether all rows of the table are read, as far as it is known beforehand.
    fn has_all_rows(&self) -> bool {
        self.pruning.is_empty() && (self.left_out.is_none() || self.columns.is_empty())
    }

    /// The order of the rows of each partition: that of their numbers. So DataFusion merges them instead of sorting.
    fn order(&self) -> EquivalenceProperties {
        let schema = Arc::clone(&self.schema);
        match self.row {
            Some(at) => {
                let number = PhysicalSortExpr::new_default(Arc::new(Column::new(ROW, at)));
                EquivalenceProperties::new_with_orderings(schema, [[number]])
            }
            None => EquivalenceProperties::new(schema),
        }
    }

    /// Reads a row range in batches of about `batch_rows`.
    async fn read(&self, range: RowRange, batch_rows: usize) -> Result<Vec<RecordBatch>> {
        let mut parts = vec![range];
        for condition in &self.pruning {
            let mut possible = Vec::new();
            for part in &parts {
                possible.extend(condition.possible(&self.dataset, part).await.map_err(external)?);
            }
            parts = possible;
        }
        let mut batches = Vec::new();
        for part in parts {
            let RangeBatches { batches: read, bad } = self.rows(&part, batch_rows).await.map_err(external)?;
            let snapshot = self.dataset.snapshot();
            if let (Some(left_out), false) = (&self.left_out, bad.is_empty()) {
                left_out.add(snapshot, bad).map_err(external)?;
            } else if let Some(bad) = bad.first() {
                let (file, row) = snapshot.locate(bad.sample_id);
                let path = &snapshot.files()[file].path;
                let message = format!("\"{path}\", row {row}: {}", bad.reason);
                let hint = "fix the file, or read the column as text, and convert it with TRY_CAST; a pipeline can \
                            leave such rows out, with on_error in its WITH";
                return Err(external(Error::new(ErrorKind::Data, message).with_hint(hint)));
            }
            for (batch, sample_ids) in read {
                let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
                let mut columns = batch.columns().to_vec();
                if let Some(at) = self.row {
                    columns.insert(at, Arc::new(sample_ids));
                }
                let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &rows)?;
                if !self.dictionaries.is_empty() {
                    batches.push(batch);
                    continue;
                }
                for first in (0..batch.num_rows()).step_by(batch_rows) {
                    batches.push(own(&batch, first, batch_rows.min(batch.num_rows() - first))?);
                }
            }
        }
        Ok(batches)
    }

    async fn rows(&self, range: &RowRange, batch_rows: usize) -> forebay_storage::Result<RangeBatches> {
        let Self { dataset, columns, dictionaries, .. } = self;
        if dictionaries.is_empty() {
            return dataset.read_in_batches(range, columns, batch_rows as u64).await;
        }
        let RangeRows { batch, sample_ids, bad } = dataset.read_with_dictionaries(range, columns, dictionaries).await?;
        Ok(RangeBatches { batches: vec![(batch, sample_ids)], bad })
    }
}

/// Some rows of a batch. They do not share its memory: DataFusion would count all of it for each slice.
fn own(batch: &RecordBatch, first: usize, rows: usize) -> Result<RecordBatch> {
    if rows == batch.num_rows() {
        return Ok(batch.clone());
    }
    // Concatenating a single slice would return it without a copy.
    let half = rows / 2;
    Ok(concat_batches(&batch.schema(), [&batch.slice(first, half), &batch.slice(first + half, rows - half)])?)
}

/// The error with its kind and hint, for the query.
fn external(error: impl Into<Error>) -> DataFusionError {
    DataFusionError::External(Box::new(error.into()))
}

impl DisplayAs for ScanExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: Vec<_> = self.schema().fields().iter().map(|field| field.name().clone()).collect();
        let (ranges, columns) = (self.ranges.len(), columns.join(", "));
        write!(f, "ScanExec: table={}, ranges={ranges}, columns=[{columns}]", self.table)
    }
}

impl ExecutionPlan for ScanExec {
    fn name(&self) -> &'static str {
        "ScanExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let batch_rows = context.session_config().batch_size();
        let reading = Arc::clone(&self.reading);
        let ranges: Vec<RowRange> = self.of_partition(partition).copied().collect();
        let read = stream::iter(ranges).map(move |range| {
            let reading = Arc::clone(&reading);
            let task = SpawnedTask::spawn(async move { reading.read(range, batch_rows).await });
            async move { task.join_unwind().await.map_err(|error| DataFusionError::External(Box::new(error)))? }
        });
        let batches =
            read.buffered(self.at_once).map_ok(|batches| stream::iter(batches.into_iter().map(Ok))).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches)))
    }

    fn partition_statistics(&self, partition: Option<usize>) -> Result<Arc<Statistics>> {
        let rows: u64 = match partition {
            Some(partition) => self.of_partition(partition).map(|range| range.rows).sum(),
            None => self.ranges.iter().map(|range| range.rows).sum(),
        };
        let rows = usize::try_from(rows).unwrap_or(usize::MAX);
        let num_rows = if self.reading.has_all_rows() { Precision::Exact(rows) } else { Precision::Inexact(rows) };
        Ok(Arc::new(Statistics { num_rows, ..Statistics::new_unknown(&self.schema()) }))
    }
}
