//! A window in memory: its source rows, filtered and ordered, ready to be transformed piece by piece.
//!
//! Preparing a window reads and filters it. This is cheap, and determines its row count and therefore every offset. The
//! expensive transforms run later in [`Window::transform`], only for the rows that a reader is about to receive.

mod builder;

use std::collections::HashMap;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, UInt64Array};
use arrow::compute::{concat, interleave};
use arrow::datatypes::SchemaRef;
use forebay_delivery::WindowId;
use forebay_storage::RangeRows;
use futures::TryStreamExt;
use futures::future::try_join_all;

use self::builder::Builder;
use super::copy_out::copied_out;
use super::costs::{CostMeter, Step};
use super::feed_core::FeedCore;
use super::memo::{Made, Memo, Wanted};
use super::rows_read::limited;
use super::shared_texts;
use crate::compile::{BadRow, Lookup, SourceRows, Stage, TransformedRows};
use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::sealed::Sealed;

/// Small reads (a media file is one row) are concatenated up to this size, to keep the number of arrays low.
const GROUP_BYTES: usize = 1 << 20;
const GROUP_ROWS: usize = 4096;
/// What is computed to be kept is written when it is this large, so that little of it is in memory twice.
const KEPT_AT_ONCE_BYTES: usize = 32 << 20;
/// Adjacent rows are concatenated rather than taken one by one if their runs average at least this many rows.
const RUN_ROWS: usize = 16;
/// In a [`Row`], marks a bad row: `row` is then an index into `Window::bad`.
const BAD: u32 = u32::MAX;
/// In a [`Row`], marks a gap: a position without a row.
const GAP: Row = Row { source: u32::MAX - 1, row: 0 };

/// A prepared window. A clone shares its rows.
#[derive(Clone)]
pub(crate) struct Window {
    stage: Sealed<Stage>,
    executor: Arc<Executor>,
    meter: CostMeter,
    sources: Vec<SourceRows>,
    order: Vec<Row>,
    bad: Vec<BadRow>,
    groups: Option<Groups>,
    /// Whether samples may share memory with adjacent source rows: see [`Window::sharing`].
    is_shared: bool,
    bytes: u64,
}

/// The grouping of a window's positions by length.
#[derive(Clone)]
struct Groups {
    /// Positions per group.
    size: u64,
    /// The maximum length of each group's rows.
    lengths: Vec<u64>,
    has_gaps: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Row {
    source: u32,
    row: u32,
}

impl Window {
    /// Reads, filters and orders the rows of window `id`.
    pub(crate) async fn prepare(core: &Arc<FeedCore>, id: WindowId) -> Result<Self> {
        match Self::read(core, id).await {
            Err(error) => Err(core.after_failed_read(error).await),
            window => window,
        }
    }

    async fn read(core: &Arc<FeedCore>, id: WindowId) -> Result<Self> {
        if let Some(memo) = core.memo()
            && let Some(wanted) = memo.wanted(core, id).await
        {
            return Self::prepare_keeping(core, memo, id, wanted).await;
        }
        let mut window = Builder::new(core, &core.stage, core.lookups().await?, id.epoch);
        let reads = core.plan.ranges(id).into_iter().map(|range| {
            let reader = Arc::clone(core);
            let mut task = core.executor.spawn(async move {
                let begun = Instant::now();
                let (columns, categories) = (reader.stage.read_columns(), reader.stage.read_categories());
                let parts = reader.stage.possible(&reader.dataset, range).await?;
                let read = parts.iter().map(|part| reader.dataset.read_with_dictionaries(part, columns, categories));
                let read = try_join_all(read).await?;
                reader.read_in(begun.elapsed());
                Ok::<_, Error>(read)
            });
            async move { task.join().await? }
        });
        let mut reads = pin!(core.reads.in_order(reads));
        let (mut group, mut rows, mut bytes) = (Vec::new(), 0, 0);
        while let Some(read) = reads.try_next().await? {
            for read in read {
                let read = limited(read, core.limit);
                rows += read.batch.num_rows();
                bytes += read.batch.get_array_memory_size();
                group.push(read);
            }
            if rows >= GROUP_ROWS || bytes >= GROUP_BYTES {
                window.add(std::mem::take(&mut group)).await?;
                (rows, bytes) = (0, 0);
            }
        }
        window.add(group).await?;
        window.make_of_window().await?;
        window.finish()
    }

    /// Prepares a window of the keeping stage: see [`memo`](super::memo).
    async fn prepare_keeping(
        core: &Arc<FeedCore>,
        memo: &Arc<Memo>,
        id: WindowId,
        wanted: Vec<Wanted>,
    ) -> Result<Self> {
        let mut window = Builder::new(core, &memo.stage, keeping_lookups(core).await?, id.epoch);
        let epoch = core.drawing_epoch(id.epoch);
        let gets = wanted.into_iter().map(|wanted| {
            let (core, memo) = (Arc::clone(core), Arc::clone(memo));
            let executor = Arc::clone(&core.executor);
            let mut task = executor.spawn(async move { memo.get(&core, wanted, epoch).await });
            async move { task.join().await? }
        });
        let mut gets = pin!(core.reads.in_order(gets));
        let (mut group, mut rows, mut bytes) = (Vec::new(), 0, 0);
        let (mut new, mut new_bytes) = (Vec::new(), 0);
        while let Some(Made { ids, rows: made, is_new }) = gets.try_next().await? {
            rows += made.batch.num_rows();
            let made_bytes = made.batch.get_array_memory_size();
            bytes += made_bytes;
            if is_new {
                new_bytes += made_bytes;
                new.push((ids, made.clone()));
            }
            group.push(made);
            if new_bytes >= KEPT_AT_ONCE_BYTES {
                memo.keep(std::mem::take(&mut new), &core.meter).await;
                new_bytes = 0;
            }
            if rows >= GROUP_ROWS || bytes >= GROUP_BYTES {
                window.add_risen(std::mem::take(&mut group)).await?;
                (rows, bytes) = (0, 0);
            }
        }
        window.add_risen(group).await?;
        memo.keep(new, &core.meter).await;
        window.make_of_window().await?;
        window.finish()
    }

    /// A window of the first epoch with these source rows.
    pub(super) async fn of_source(core: &Arc<FeedCore>, rows: RangeRows) -> Result<Self> {
        let mut window = Builder::new(core, &core.stage, core.lookups().await?, 0).uncounted();
        window.add(vec![rows]).await?;
        window.make_of_window().await?;
        window.finish()
    }

    /// A window of the first epoch with these rows that the keeping stage made.
    pub(super) async fn of_made(core: &Arc<FeedCore>, memo: &Memo, rows: RangeRows) -> Result<Self> {
        let mut window = Builder::new(core, &memo.stage, keeping_lookups(core).await?, 0).uncounted();
        window.add_risen(vec![rows]).await?;
        window.make_of_window().await?;
        window.finish()
    }

    /// The number of positions: samples, bad rows (which keep their offsets), and gaps.
    pub(crate) fn len(&self) -> u64 {
        self.order.len() as u64
    }

    /// The schema of its samples.
    pub(crate) fn schema(&self) -> SchemaRef {
        self.stage.schema()
    }

    /// Bytes of the rows in memory, before they are transformed.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of gaps: see [`buckets`](super::buckets).
    pub(crate) fn gaps(&self, range: &Range<u64>) -> u64 {
        if !self.has_gaps() {
            return 0;
        }
        self.order[range.start as usize..range.end as usize].iter().filter(|row| **row == GAP).count() as u64
    }

    fn has_gaps(&self) -> bool {
        self.groups.as_ref().is_some_and(|groups| groups.has_gaps)
    }

    /// Computes the samples at `ranges` of the window. With `stop_at_bad`, stops at the first bad one.
    pub(crate) async fn transform(&self, ranges: &[Range<u64>], stop_at_bad: bool) -> Result<TransformedRows> {
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        let mut step_lengths = Vec::new();
        for at in ranges.iter().flat_map(Clone::clone) {
            let row = self.order[at as usize];
            match row.source {
                BAD => bad.push(self.bad[row.row as usize].clone()),
                _ if row == GAP => {}
                _ => {
                    good.push(row);
                    step_lengths.extend(self.groups.as_ref().map(|groups| groups.lengths[(at / groups.size) as usize]));
                }
            }
            if stop_at_bad && !bad.is_empty() {
                break;
            }
        }
        if good.is_empty() {
            return Ok(TransformedRows { batches: Vec::new(), bad });
        }
        let begun = Instant::now();
        let run = self.run(&good);
        let is_copied = run.is_none();
        let mut rows = run.map_or_else(|| self.gather(&good), Ok)?;
        rows.step_lengths = self.groups.is_some().then(|| step_lengths.into());
        let mut transformed = self.executor.piece(self.stage.transform(&rows, stop_at_bad)).await?;
        if !is_copied && !self.is_shared {
            transformed.batches = copied_out(transformed.batches, &rows.batch)?;
        }
        self.meter.count(Step::Transforming, begun);
        self.meter.count_rows(good.len());
        if !stop_at_bad || transformed.bad.is_empty() {
            transformed.bad.extend(bad);
        }
        Ok(transformed)
    }

    /// Assigns each bad row to its range.
    pub(crate) fn split_bad(&self, ranges: &[Range<u64>], bad: Vec<BadRow>) -> Vec<Vec<BadRow>> {
        if bad.is_empty() {
            return ranges.iter().map(|_| Vec::new()).collect();
        }
        let mut bad: HashMap<u64, BadRow> = bad.into_iter().map(|bad| (bad.sample_id, bad)).collect();
        let rows = |range: &Range<u64>| &self.order[range.start as usize..range.end as usize];
        ranges
            .iter()
            .map(|range| rows(range).iter().filter_map(|row| bad.remove(&self.sample_id(row)?)).collect())
            .collect()
    }

    /// The positions of the bad rows in `range`, ascending.
    pub(crate) fn place_bad(&self, range: &Range<u64>, bad: Vec<BadRow>) -> Vec<(u64, BadRow)> {
        let mut bad: HashMap<u64, BadRow> = bad.into_iter().map(|bad| (bad.sample_id, bad)).collect();
        let rows = range.clone().zip(&self.order[range.start as usize..range.end as usize]);
        rows.filter_map(|(at, row)| Some((at, bad.remove(&self.sample_id(row)?)?))).collect()
    }

    /// The gaps in `range`, ascending.
    pub(crate) fn place_gaps(&self, range: &Range<u64>) -> Vec<u64> {
        match self.has_gaps() {
            true => range.clone().filter(|&at| self.order[at as usize] == GAP).collect(),
            false => Vec::new(),
        }
    }

    /// The source row at a position (the first if there are several); `None` for a gap.
    pub(crate) fn origin_at(&self, at: u64) -> Option<u64> {
        let row = &self.order[at as usize];
        match row.source {
            BAD => Some(self.bad[row.row as usize].origin),
            _ if *row == GAP => None,
            source => Some(self.sources[source as usize].origin(row.row as usize)),
        }
    }

    fn sample_id(&self, row: &Row) -> Option<u64> {
        match row.source {
            BAD => Some(self.bad[row.row as usize].sample_id),
            _ if *row == GAP => None,
            source => Some(self.sources[source as usize].sample_ids.value(row.row as usize)),
        }
    }

    /// The same window, whose samples may share its sources' memory. Use this for callers that count samples by their
    /// own size and drop them soon. It has no effect if the filters removed most source rows, since samples would keep
    /// them alive.
    pub(crate) fn sharing(mut self) -> Self {
        let source_rows: usize = self.sources.iter().map(|rows| rows.batch.num_rows()).sum();
        self.is_shared = self.order.len() >= source_rows / 2;
        self
    }

    #[cfg(test)]
    pub(crate) fn shares_sources(&self, other: &Self) -> bool {
        let columns =
            |window: &Self| window.sources.iter().flat_map(|rows| rows.batch.columns().to_vec()).collect::<Vec<_>>();
        columns(self).iter().zip(&columns(other)).all(|(one, other)| Arc::ptr_eq(one, other))
    }

    /// The same window without its source rows, for callers that already hold its samples, `sample_bytes` in total.
    pub(crate) fn without_sources(&self, sample_bytes: u64) -> Self {
        let (order, bytes) = (self.order.clone(), sample_bytes + (self.order.len() * size_of::<Row>()) as u64);
        let (stage, executor) = (self.stage.clone(), Arc::clone(&self.executor));
        let (meter, groups) = (self.meter.clone(), self.groups.clone());
        Self { stage, executor, meter, sources: Vec::new(), order, bad: Vec::new(), groups, is_shared: false, bytes }
    }

    /// `rows` as a slice, if they are adjacent in one source.
    fn run(&self, rows: &[Row]) -> Option<SourceRows> {
        let first = rows[0];
        let is_next = |(row, after): (&Row, u32)| row.source == first.source && row.row == after;
        if !rows.iter().zip(first.row..).all(is_next) {
            return None;
        }
        Some(self.sources[first.source as usize].slice(first.row as usize, rows.len()))
    }

    /// `rows` as runs of adjacent rows, if the runs are long: concatenating a few runs is much cheaper than taking
    /// rows.
    fn runs(&self, rows: &[Row]) -> Option<Vec<SourceRows>> {
        let most = rows.len() / RUN_ROWS;
        let mut runs: Vec<(Row, usize)> = Vec::new();
        for row in rows {
            let follows =
                |(first, len): &(Row, usize)| first.source == row.source && first.row + *len as u32 == row.row;
            match runs.last_mut().filter(|run| follows(run)) {
                Some((_, len)) => *len += 1,
                None => runs.push((*row, 1)),
            }
            if runs.len() > most {
                return None;
            }
        }
        let slice = |(first, len): (Row, usize)| self.sources[first.source as usize].slice(first.row as usize, len);
        Some(runs.into_iter().map(slice).collect())
    }

    /// Copies `rows`, in order, into one batch.
    fn gather(&self, rows: &[Row]) -> Result<SourceRows> {
        if let Some(runs) = self.runs(rows) {
            return joined(&runs);
        }
        let mut used: Vec<u32> = rows.iter().map(|row| row.source).collect();
        used.sort_unstable();
        used.dedup();
        let at = |row: &Row| {
            let source = used.binary_search(&row.source).expect("collected from the same rows");
            (source, row.row as usize)
        };
        let indices: Vec<(usize, usize)> = rows.iter().map(at).collect();
        let sources: Vec<&SourceRows> = used.iter().map(|&source| &self.sources[source as usize]).collect();
        let pick = |column: &dyn Fn(&SourceRows) -> ArrayRef| -> Result<ArrayRef> {
            let arrays: Vec<ArrayRef> = sources.iter().map(|source| column(source)).collect();
            let picked = shared_texts::by_numbers(&arrays, |arrays| interleave(arrays, &indices));
            picked.map_err(|error| Error::internal(format!("cannot gather rows: {error}")))
        };
        let schema = sources[0].batch.schema();
        let columns = (0..schema.fields().len())
            .map(|index| pick(&|rows| Arc::clone(rows.batch.column(index))))
            .collect::<Result<_>>()?;
        let count = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let ids = |of: fn(&SourceRows) -> &UInt64Array| {
            UInt64Array::from_iter_values(indices.iter().map(|&(source, row)| of(sources[source]).value(row)))
        };
        Ok(SourceRows {
            batch: RecordBatch::try_new_with_options(schema, columns, &count)
                .map_err(|error| Error::internal(format!("cannot gather rows: {error}")))?,
            sample_ids: ids(|rows| &rows.sample_ids),
            random_keys: ids(|rows| &rows.random_keys),
            origins: sources[0]
                .origins
                .is_some()
                .then(|| ids(|rows| rows.origins.as_ref().unwrap_or(&rows.sample_ids))),
            step_lengths: None,
        })
    }
}

/// The lookup tables of a keeping stage. A layer that only keeps rows joins nothing.
async fn keeping_lookups(core: &Arc<FeedCore>) -> Result<&[Option<Lookup>]> {
    match core.stage.layers().is_empty() {
        true => Ok(&[None]),
        false => core.lookups().await,
    }
}

/// Concatenates rows by copying.
fn joined(parts: &[SourceRows]) -> Result<SourceRows> {
    let cannot = |error| Error::internal(format!("cannot join rows: {error}"));
    let ids = |of: &dyn Fn(&SourceRows) -> UInt64Array| -> Result<UInt64Array> {
        let parts: Vec<UInt64Array> = parts.iter().map(of).collect();
        let parts: Vec<&dyn Array> = parts.iter().map(|ids| ids as &dyn Array).collect();
        Ok(concat(&parts).map_err(cannot)?.to_data().into())
    };
    let has_origins = parts.iter().any(|part| part.origins.is_some());
    let schema = parts[0].batch.schema();
    let columns = (0..schema.fields().len()).map(|index| {
        let columns: Vec<ArrayRef> = parts.iter().map(|part| Arc::clone(part.batch.column(index))).collect();
        shared_texts::by_numbers(&columns, concat)
    });
    let columns = columns.collect::<std::result::Result<_, _>>().map_err(cannot)?;
    let rows = parts.iter().map(|part| part.batch.num_rows()).sum();
    let count = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(SourceRows {
        batch: RecordBatch::try_new_with_options(schema, columns, &count).map_err(cannot)?,
        sample_ids: ids(&|part| part.sample_ids.clone())?,
        random_keys: ids(&|part| part.random_keys.clone())?,
        origins: match has_origins {
            true => Some(ids(&|part| part.origins.as_ref().unwrap_or(&part.sample_ids).clone())?),
            false => None,
        },
        step_lengths: None,
    })
}
