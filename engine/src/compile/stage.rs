//! A planned feed stage, which finds bad rows by bisection.
//!
//! When a plan fails over some rows, it runs again over each half, down to the single rows that fail. This finds the
//! bad rows of any function, including DataFusion's own casts and divisions, and functions need not know row ids. One
//! bad row costs about as much as its batch again, and many bad rows cost two runs each. Good rows cost nothing.

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};

use arrow::array::{AsArray, RecordBatch, UInt64Array};
use arrow::compute::concat_batches;
use arrow::datatypes::{SchemaRef, UInt64Type};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::collect;
use forebay_arrays::batch_bytes;
use forebay_diagnostics::shortened;
use forebay_operators::CallCost;
use forebay_storage::{Dataset, RowRange};
use futures::FutureExt;

use super::dictionary;
use super::layer::Layer;
use super::leaf_plan::{LeafPlan, Select, ascending};
use super::lookup::LookupPlan;
use super::pruning::Pruning;
use super::source_rows::SourceRows;
use super::window_exec::bind;
use crate::error::{Error, ErrorKind, Result};
use crate::executor::panicked;
use crate::function;

/// A feed stage that is ready to run over any rows of its table.
pub(crate) struct Stage {
    /// The layers that derive the rows for the other plans, from the table upwards.
    layers: Vec<Layer>,
    select: Option<Select>,
    transform: LeafPlan,
    columns: Vec<usize>,
    /// The text columns that are read as dictionaries: see [`dictionary`].
    categories: Vec<usize>,
    /// The conditions on the driving table that bounds can refute.
    pruning: OnceLock<Vec<Pruning>>,
    /// The calls that run in another order than written, in words.
    moves: Vec<String>,
    /// What its calls cost.
    costs: Vec<Arc<CallCost>>,
    context: Arc<TaskContext>,
}

/// The input rows of an operator, in order, and bad rows.
pub(crate) struct Passed {
    pub(crate) rows: SourceRows,
    pub(crate) bad: Vec<BadRow>,
}

/// The results of some rows, in order, and bad rows.
pub(crate) struct Transformed {
    pub(crate) batches: Vec<RecordBatch>,
    pub(crate) bad: Vec<BadRow>,
}

/// The most bytes of results of rows whose results do not fit into one array, such as images of gigabytes.
const SPLIT_RESULT_BYTES_MAX: u64 = 4 << 30;

/// The most parts of a row range that are read while those between them are skipped.
const PARTS_MAX: usize = 16;

/// The most characters of a bad row's reason.
const REASON_CHARS_MAX: usize = 2000;

/// A row that could not be processed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadRow {
    pub(crate) sample_id: u64,
    /// The row of the driving table that it is or derives from.
    pub(crate) origin: u64,
    pub(crate) reason: String,
}

impl BadRow {
    /// A bad row, with its reason in a bounded form: reasons quote values, which may be of any length.
    pub(crate) fn new(sample_id: u64, origin: u64, reason: &str) -> Self {
        Self { sample_id, origin, reason: shortened(reason, REASON_CHARS_MAX).into_owned() }
    }
}

impl Stage {
    pub(crate) fn new(select: Option<Select>, transform: LeafPlan, context: Arc<TaskContext>) -> Self {
        let columns = ascending(select.iter().flat_map(Select::columns).chain(transform.columns()));
        let (layers, categories, pruning, costs) = (Vec::new(), Vec::new(), OnceLock::new(), Vec::new());
        Self { layers, select, transform, columns, categories, pruning, moves: Vec::new(), costs, context }
    }

    /// The same stage with fewer sample columns. It still reads the same columns.
    pub(crate) fn giving(self, transform: LeafPlan) -> Self {
        Self { transform, ..self }
    }

    /// The same stage, with the calls that run in another order than written.
    pub(crate) fn with_moves(self, moves: Vec<String>) -> Self {
        Self { moves, ..self }
    }

    /// The calls that run in another order than written, in words.
    pub(crate) fn moves(&self) -> &[String] {
        &self.moves
    }

    /// The same stage, whose calls count what they cost. Nothing may rewrite its plans afterwards.
    pub(crate) fn measured(self) -> Result<Self> {
        let mut costs = Vec::new();
        let layers = self.layers.into_iter().map(|layer| layer.measured(&mut costs)).collect::<Result<_>>()?;
        let select = self.select.map(|select| select.measured(&mut costs)).transpose()?;
        let transform = self.transform.measured(&mut costs)?;
        Ok(Self { layers, select, transform, costs, ..self })
    }

    /// What its calls cost, in the order in which they run. All feeds of the stage count.
    pub(crate) fn costs(&self) -> &[Arc<CallCost>] {
        &self.costs
    }

    /// Puts a layer below all others.
    pub(crate) fn push_below(&mut self, layer: Layer) {
        self.layers.insert(0, layer);
    }

    /// The layers, from the table upwards.
    pub(crate) fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The lookup tables of its joins, from the table upwards.
    pub(crate) fn lookups(&self) -> impl Iterator<Item = &LookupPlan> {
        self.layers.iter().filter_map(Layer::lookup)
    }

    /// The output's schema.
    pub(crate) fn schema(&self) -> SchemaRef {
        self.transform.unfinished.clone().unwrap_or_else(|| self.transform.plan.schema())
    }

    /// The columns of the driving table to read, ascending.
    pub(crate) fn read_columns(&self) -> &[usize] {
        self.layers.first().map_or(&self.columns, Layer::columns)
    }

    /// The columns among them to read as dictionaries.
    pub(crate) fn read_categories(&self) -> &[usize] {
        &self.categories
    }

    /// The parts of a range of the driving table whose rows may pass the filters directly above it.
    pub(crate) async fn possible(&self, dataset: &Dataset, range: RowRange) -> Result<Vec<RowRange>> {
        let lowest = self.layers.first().map(Layer::below).or(self.select.as_ref());
        let pruning = self
            .pruning
            .get_or_init(|| lowest.into_iter().flat_map(|select| &select.conjuncts).filter_map(Pruning::of).collect());
        let mut parts = vec![range];
        for condition in pruning {
            parts = common(&parts, &condition.possible(dataset, &range).await?);
            if parts.is_empty() {
                return Ok(parts);
            }
        }
        let most = if dataset.reads_parts(&range) { PARTS_MAX } else { 1 };
        Ok(joined(parts, most))
    }

    /// Reads text columns as dictionaries where only the transform uses them, and only to compute numbers.
    pub(crate) fn with_categories(mut self) -> Result<Self> {
        if !self.layers.is_empty() {
            return Ok(self);
        }
        let selected: Vec<usize> = self.select.iter().flat_map(Select::columns).collect();
        let mut categories = dictionary::categories(&self.transform.plan);
        categories.retain(|&at| self.transform.inputs[at].column().is_some_and(|column| !selected.contains(&column)));
        if !categories.is_empty() {
            self.categories = ascending(categories.iter().filter_map(|&at| self.transform.inputs[at].column()));
            let (plan, leaf_schema) = dictionary::over_dictionaries(Arc::clone(&self.transform.plan), &categories)?;
            self.transform = LeafPlan { plan, leaf_schema, ..self.transform };
        }
        Ok(self)
    }

    /// The columns of the topmost layer, or of the driving table, that select and transform read, ascending.
    pub(crate) fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// Whether each source row becomes one sample. If so, offsets are known before reading.
    pub(crate) fn is_one_to_one(&self) -> bool {
        self.select.is_none() && self.layers.iter().all(Layer::is_one_to_one)
    }

    /// Whether the same source rows become the same number of samples in every epoch.
    pub(crate) fn has_equal_epochs(&self) -> bool {
        let is_random = self.select.as_ref().is_some_and(Select::is_random);
        !is_random && self.layers.iter().all(Layer::has_equal_epochs)
    }

    /// The ids of the rows that pass the filters, or `None` for a query without filters.
    pub(crate) async fn select(&self, rows: &SourceRows) -> Result<Option<(UInt64Array, Vec<BadRow>)>> {
        let Some(select) = &self.select else { return Ok(None) };
        let selected = self.passed(select, &self.columns, rows).await?;
        let ids = selected.batches.iter().flat_map(|batch| batch.column(0).as_primitive::<UInt64Type>().values());
        Ok(Some((UInt64Array::from_iter_values(ids.copied()), selected.bad)))
    }

    /// Runs `select` over `rows`, which have the columns `read`.
    pub(crate) async fn passed(&self, select: &Select, read: &[usize], rows: &SourceRows) -> Result<Transformed> {
        let mut passed = self.run(&select.whole, read, rows, false).await?;
        let mut bad = Vec::with_capacity(passed.bad.len());
        for row in passed.bad {
            // `a AND b` may run as `b AND a`: a row that `a` excludes is not bad if `b` fails on it.
            if !self.is_excluded(select, read, rows, row.sample_id).await? {
                bad.push(row);
            }
        }
        passed.bad = bad;
        Ok(passed)
    }

    /// Whether a single condition excludes the row.
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

    /// Returns the rows of `rows` that reach the operator of `layer`, with the columns it needs.
    pub(crate) async fn rise(&self, layer: &Layer, rows: &SourceRows) -> Result<Passed> {
        let passed = self.passed(layer.below(), layer.columns(), rows).await?;
        let batch = concat_batches(&layer.below().whole.plan.schema(), &passed.batches)
            .map_err(|error| Error::internal(format!("cannot join rows: {error}")))?;
        let (id_column, width) = (batch.num_columns() - 1, batch.num_columns());
        let ids = batch.column(id_column).as_primitive::<UInt64Type>();
        // Rows pass in order, so one pass finds each id's row.
        let mut at = 0;
        let mut found = Vec::with_capacity(ids.len());
        for id in ids.values() {
            while rows.sample_ids.value(at) != *id {
                at += 1;
            }
            found.push(at);
        }
        let of = |values: &UInt64Array| UInt64Array::from_iter_values(found.iter().map(|&at| values.value(at)));
        let columns: Vec<usize> = (0..width - 1).collect();
        let rows = SourceRows {
            sample_ids: ids.clone(),
            random_keys: of(&rows.random_keys),
            origins: rows.origins.as_ref().map(of),
            step_lengths: None,
            batch: batch.project(&columns).map_err(|error| Error::internal(format!("cannot project rows: {error}")))?,
        };
        Ok(Passed { rows, bad: passed.bad })
    }

    /// Computes the samples of `rows`. With `stop_at_bad`, stops at the first bad row.
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
        // Why the rows were split, if their results were too large, and the bytes of the results since then. Results
        // may share buffers with each other, so only their own rows count.
        let (mut too_large, mut bytes) = (None, 0);
        while let Some(range) = todo.pop() {
            match self.run_range(plan, read, rows, range.start, range.len()).await {
                Ok(batches) => {
                    if too_large.is_some() {
                        bytes += batches.iter().map(batch_bytes).sum::<u64>();
                    }
                    done.batches.extend(batches.into_iter().filter(|batch| batch.num_rows() > 0));
                    if let Some(error) = too_large.take_if(|_| bytes > SPLIT_RESULT_BYTES_MAX) {
                        return Err(error);
                    }
                }
                Err(error) if error.stopped().is_some() => return Err(error),
                Err(error) if range.len() > 1 => {
                    let middle = range.start + range.len() / 2;
                    todo.push(middle..range.end);
                    todo.push(range.start..middle);
                    tracing::debug!(rows = range.len(), %error, "bisecting rows that failed");
                    if error.kind() == ErrorKind::Exhausted {
                        too_large.get_or_insert(error);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Data => {
                    let mut reason = error.message().trim_end().to_owned();
                    if self.layers.last().is_some_and(Layer::has_partners) {
                        reason += " (in this row, or in its mixing partner)";
                    }
                    let (sample_id, origin) = (rows.sample_ids.value(range.start), rows.origin(range.start));
                    done.bad.push(BadRow::new(sample_id, origin, &reason));
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
                // The state of the machine is not the rows' fault: which rows it hits depends on load.
                error if matches!(error.kind(), ErrorKind::Exhausted | ErrorKind::Unavailable) => Err(error),
                // Planning succeeded and the rows are in memory, so any other failure concerns these rows.
                error => Err(Error::new(ErrorKind::Data, error.message())),
            },
            Ok(batches) => Ok(batches?),
            Err(panic) => Err(panicked(ErrorKind::Data, "panicked", panic.as_ref())),
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

/// The rows of a range that are in both lists of its parts, which ascend.
fn common(these: &[RowRange], those: &[RowRange]) -> Vec<RowRange> {
    let end = |part: &RowRange| part.first_row + part.rows;
    let (mut at, mut other, mut found) = (0, 0, Vec::new());
    while let (Some(this), Some(that)) = (these.get(at), those.get(other)) {
        let (first_row, last) = (this.first_row.max(that.first_row), end(this).min(end(that)));
        if first_row < last {
            let smaller = if this.rows < that.rows { this } else { that };
            let bytes = u128::from(smaller.bytes) * u128::from(last - first_row) / u128::from(smaller.rows.max(1));
            found.push(RowRange { first_row, rows: last - first_row, bytes: bytes as u64, ..*this });
        }
        match end(this) <= end(that) {
            true => at += 1,
            false => other += 1,
        }
    }
    found
}

/// At most `most` parts, joined across the smallest gaps.
fn joined(mut parts: Vec<RowRange>, most: usize) -> Vec<RowRange> {
    let gap = |pair: &[RowRange]| pair[1].first_row - (pair[0].first_row + pair[0].rows);
    let mut gaps: Vec<u64> = parts.windows(2).map(gap).filter(|gap| *gap > 0).collect();
    gaps.sort_unstable_by(|a, b| b.cmp(a));
    // A gap as large as the last that stays may be closed, too.
    let closed = gaps.get(most - 1).copied().unwrap_or(0);
    parts.dedup_by(|next, part| {
        let gap = next.first_row - (part.first_row + part.rows);
        let joins = gap <= closed;
        if joins {
            let read = part.rows + next.rows;
            let bytes = u128::from(part.bytes + next.bytes) * u128::from(read + gap) / u128::from(read.max(1));
            (part.rows, part.bytes) = (read + gap, bytes as u64);
        }
        joins
    });
    parts
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, BinaryArray, Int64Array};
    use arrow::buffer::{OffsetBuffer, ScalarBuffer};
    use arrow::datatypes::{DataType, Field};
    use forebay_protocol::{FeedOptions, ReadOptions};

    use super::*;
    use crate::function::{CallError, Function};
    use crate::session::Session;

    fn parts(rows: &[(u64, u64)]) -> Vec<RowRange> {
        let part = |&(first_row, rows): &(u64, u64)| RowRange { file: 0, group: 0, first_row, rows, bytes: 10 * rows };
        rows.iter().map(part).collect()
    }

    #[test]
    fn conditions_keep_the_rows_that_all_of_them_keep() {
        assert_eq!(common(&parts(&[(0, 10), (20, 10)]), &parts(&[(5, 20)])), parts(&[(5, 5), (20, 5)]));
        assert_eq!(common(&parts(&[(0, 100)]), &parts(&[(5, 1), (7, 2)])), parts(&[(5, 1), (7, 2)]));
        assert_eq!(common(&parts(&[(0, 5)]), &parts(&[(5, 5)])), []);
    }

    #[test]
    fn parts_are_joined_across_small_gaps() {
        let scattered = parts(&[(0, 10), (10, 5), (16, 4), (30, 1), (33, 1)]);
        let rows = |most| joined(scattered.clone(), most).iter().map(|it| (it.first_row, it.rows)).collect::<Vec<_>>();
        assert_eq!(rows(16), [(0, 15), (16, 4), (30, 1), (33, 1)]);
        assert_eq!(rows(3), [(0, 20), (30, 1), (33, 1)]);
        assert_eq!(rows(2), [(0, 20), (30, 4)]);
        assert_eq!(rows(1), [(0, 34)]);
    }

    #[tokio::test]
    async fn results_that_share_a_buffer_count_once() {
        // A byte for each row, in front of a gigabyte that is never touched.
        let shared = BinaryArray::new(OffsetBuffer::from_lengths([1; 64]), vec![0_u8; 1 << 30].into(), None);
        let function = Function {
            name: "part".to_owned(),
            version: None,
            inputs: vec![Arc::new(Field::new("", DataType::Int64, true))],
            draws: false,
            output: Arc::new(Field::new("part", DataType::Binary, true)),
            call: Arc::new(move |columns| match columns[0].len() {
                len @ 0..4 => Ok(Arc::new(shared.slice(0, len))),
                _ => Err(CallError::Exhausted("too many rows".to_owned())),
            }),
        };
        let session = Session::builder().threads(1).root("memory:///root").build().expect("a session");
        session.add_function(function).expect("a function");
        let numbers: ArrayRef = Arc::new(Int64Array::new(ScalarBuffer::from_iter(0..64), None));
        let batch = RecordBatch::try_from_iter([("id", numbers)]).expect("a batch");
        session.register(Some("t"), batch.schema(), vec![batch]).await.expect("a table");
        session.define("p", "SELECT part(id) AS part FROM t").await.expect("a pipeline");
        let feed = session.open("p", &FeedOptions::default()).expect("a feed");
        let mut reader = feed.read(&ReadOptions { batch_size: Some(64), ..ReadOptions::default() }).expect("a reader");
        let batch = reader.next().await.expect("a batch").expect("the rows are split");
        assert_eq!(batch.records.num_rows(), 64);
    }
}
