//! The right side of a join: planned with the pipeline, read once per feed, and shared by all windows.
//!
//! Its rows stay in the snapshot's order, including rows with equal keys. The index holds the hashes of the keys in
//! ascending order. A directory maps each value of a hash's leading bits to the position of the first such hash. The
//! index takes about 30 bytes per row, and all threads read it without a lock. DataFusion's hash join would rebuild its
//! table for each window.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow::buffer::NullBuffer;
use arrow::compute::{concat_batches, take};
use arrow::datatypes::DataType;
use arrow::row::{Row, RowConverter, Rows, SortField};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use forebay_arrays::{batch_bytes, column_bytes};
use forebay_storage::Dataset;
use xxhash_rust::xxh3::xxh3_64;

use super::leaf_plan::{LeafPlan, ascending};
use super::source_rows::Expansion;
use crate::error::{Error, ErrorKind, Result};

/// The kind of a join: which rows it derives from a left row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JoinKind {
    /// One row per match.
    Inner,
    /// One row per match, or one row with nulls if there is no match.
    Left,
    /// The left row, if it has a match.
    Semi,
    /// The left row, if it has no match.
    Anti,
    /// The left row, if its key certainly differs from all keys of the right side. The right side may hold nulls.
    NotIn,
}

/// A join that looks up rows.
pub(crate) struct Join {
    pub(crate) kind: JoinKind,
    /// The number of columns of the left side. The keys follow them.
    pub(crate) left: usize,
    pub(crate) keys: usize,
    pub(crate) right: Right,
}

/// The right side, woven but not planned.
pub(crate) struct Right {
    pub(crate) table: String,
    pub(crate) plan: LogicalPlan,
    pub(crate) keys: Vec<Expr>,
    pub(crate) columns: Vec<Expr>,
    pub(crate) limit: Option<u64>,
}

/// The right side, planned: its keys, then the columns that are read.
pub(crate) struct LookupPlan {
    pub(crate) table: String,
    pub(crate) dataset: Dataset,
    /// The number of leading rows of the table to read, or `None` for all.
    pub(crate) limit: Option<u64>,
    pub(crate) plan: LeafPlan,
    /// The table columns to read, ascending.
    pub(crate) read: Vec<usize>,
    keys: usize,
}

/// Whether values of this type can be join keys.
pub(crate) fn can_be_key(data_type: &DataType) -> bool {
    RowConverter::supports_fields(&[SortField::new(data_type.clone())]) && !data_type.is_null()
}

impl Join {
    /// The keys first, then the columns of the left side in order.
    pub(crate) fn needs(&self, made: &[usize]) -> Vec<usize> {
        let keys = self.left..self.left + self.keys;
        keys.chain(made.iter().copied().filter(|&column| column < self.left)).collect()
    }

    /// Plans the right side. `made` lists the columns of the join that are read.
    pub(crate) async fn lookup(&self, made: &[usize], dataset: Dataset, state: &SessionState) -> Result<LookupPlan> {
        let Right { table, plan, keys, columns, limit } = &self.right;
        let columns = made.iter().filter_map(|&column| columns.get(column.checked_sub(self.left)?).cloned());
        let exprs: Vec<Expr> = keys.iter().cloned().chain(columns).collect();
        let plan = LogicalPlanBuilder::from(plan.clone()).project(exprs)?.build()?;
        let plan = LeafPlan::new(state.create_physical_plan(&plan).await?, dataset.schema()).map_err(|error| {
            match error.kind() {
                ErrorKind::Invalid => {
                    Error::invalid(format!("no row of \"{table}\" can be found by this join's conditions"))
                        .with_hint("its conditions are never true: remove the join")
                }
                _ => error,
            }
        })?;
        let read = ascending(plan.columns());
        Ok(LookupPlan { table: table.clone(), dataset, limit: *limit, plan, read, keys: keys.len() })
    }

    /// Looks up the rows of `input` in `lookup`. The first columns of `input` are the keys.
    pub(crate) fn make(
        &self,
        lookup: &Lookup,
        input: &RecordBatch,
        made: &[usize],
        bytes_max: u64,
    ) -> Result<Expansion> {
        let left = &input.columns()[self.keys..];
        let beside = left.iter().map(column_bytes).sum::<u64>() as usize;
        let row_bytes = (beside / input.num_rows().max(1) + lookup.row_bytes + MADE_ROW_BYTES) as u64;
        let found = lookup.find(self.kind, &input.columns()[..self.keys], bytes_max / row_bytes)?;
        let cannot = |error| Error::internal(format!("cannot look rows up: {error}"));
        let parents = UInt32Array::from(found.parents.clone());
        let is_all = found.parents.iter().copied().eq(0..input.num_rows() as u32);
        let mut left = left.iter();
        let mut right = lookup.columns.iter();
        let columns = made.iter().map(|&column| {
            let is_left = column < self.left;
            let values = if is_left { left.next() } else { right.next() };
            let values = values.ok_or_else(|| Error::internal("a join lacks a column"))?;
            match is_left {
                // Most joins find one match per row. The left columns, such as images, are then not copied.
                true if is_all => Ok(Arc::clone(values)),
                true => take(values, &parents, None).map_err(cannot),
                false => take(values, &found.rows, None).map_err(cannot),
            }
        });
        Ok(Expansion { columns: columns.collect::<Result<_>>()?, parents: found.parents, ordinals: found.ordinals })
    }
}

/// Bytes of a derived row besides its columns: its id, key and origin, and its indices into both sides.
const MADE_ROW_BYTES: usize = 48;
/// Bytes of a right row in the index besides its key: a hash, a row number, a directory entry, and the offset of its
/// key.
const INDEX_ROW_BYTES: usize = 24;

/// The rows of the right side in memory, indexed by key.
pub(crate) struct Lookup {
    converter: RowConverter,
    keys: Rows,
    /// The hashes of the keys without nulls, ascending.
    hashes: Vec<u64>,
    /// The row of each hash. Rows with equal hashes ascend.
    rows: Vec<u32>,
    /// For each value of a hash's leading bits, the position of the first such hash; then the number of hashes.
    directory: Vec<u32>,
    has_nulls: bool,
    columns: Vec<ArrayRef>,
    /// Average bytes of a row's columns.
    row_bytes: usize,
}

/// The matches of left rows, in order.
struct Found {
    parents: Vec<u32>,
    ordinals: Vec<Option<u64>>,
    /// Null for a left row that is kept without a match.
    rows: UInt32Array,
}

impl LookupPlan {
    pub(crate) fn display(&self) -> String {
        format!("lookup in {}:\n{}", self.table, self.plan.display())
    }

    /// The memory of some of its rows, including their index.
    pub(crate) fn bytes(&self, rows: &[RecordBatch]) -> u64 {
        let of_rows = |batch: &RecordBatch| {
            let keys: u64 = batch.columns()[..self.keys].iter().map(column_bytes).sum();
            batch_bytes(batch) + keys + (batch.num_rows() * INDEX_ROW_BYTES) as u64
        };
        rows.iter().map(of_rows).sum()
    }

    /// Indexes the plan's results for the table's rows, in order.
    pub(crate) fn index(&self, batches: &[RecordBatch]) -> Result<Lookup> {
        let cannot = |error| {
            let message = format!("the rows of \"{}\" cannot be kept for a join: {error}", self.table);
            Error::new(ErrorKind::Exhausted, message)
        };
        let rows = concat_batches(&self.plan.plan.schema(), batches).map_err(cannot)?;
        let (keys, columns) = rows.columns().split_at(self.keys);
        Lookup::new(keys, columns.to_vec()).map_err(cannot)
    }
}

impl Lookup {
    fn new(keys: &[ArrayRef], columns: Vec<ArrayRef>) -> std::result::Result<Self, arrow::error::ArrowError> {
        let fields = keys.iter().map(|key| SortField::new(key.data_type().clone())).collect();
        let converter = RowConverter::new(fields)?;
        let nulls = nulls(keys);
        let keys = converter.convert_columns(keys)?;
        let count = u32::try_from(keys.num_rows())
            .map_err(|_| arrow::error::ArrowError::ComputeError("it has 2^32 rows or more".to_owned()))?;
        let is_null = |row: u32| nulls.as_ref().is_some_and(|nulls| nulls.is_null(row as usize));
        let mut index: Vec<(u64, u32)> = (0..count)
            .filter(|&row| !is_null(row))
            .map(|row| (xxh3_64(keys.row(row as usize).as_ref()), row))
            .collect();
        index.sort_unstable();
        let (hashes, rows): (Vec<u64>, Vec<u32>) = index.into_iter().unzip();
        // About one row per entry.
        let bits = usize::BITS - hashes.len().leading_zeros();
        let mut directory: Vec<u32> = Vec::with_capacity((1 << bits) + 1);
        let mut at = 0;
        for first in 0..1u64 << bits {
            while hashes.get(at).is_some_and(|&hash| first_bits(hash, bits) < first) {
                at += 1;
            }
            directory.push(at as u32);
        }
        directory.push(hashes.len() as u32);
        let bytes: usize = columns.iter().map(|column| column.get_array_memory_size()).sum();
        let row_bytes = bytes / (count as usize).max(1);
        let has_nulls = nulls.is_some_and(|nulls| nulls.null_count() > 0);
        Ok(Self { converter, keys, hashes, rows, directory, has_nulls, columns, row_bytes })
    }

    /// The right rows whose key is `key`, ascending.
    fn matches(&self, key: Row<'_>) -> impl Iterator<Item = u32> {
        let hash = xxh3_64(key.as_ref());
        let bits = (self.directory.len() - 1).trailing_zeros();
        let entry = first_bits(hash, bits) as usize;
        let Range { start, end } = self.directory[entry] as usize..self.directory[entry + 1] as usize;
        // All rows with equal keys share an entry, so its length has no bound.
        let start = start + self.hashes[start..end].partition_point(|&other| other < hash);
        let equal = self.hashes[start..end].iter().take_while(move |&&other| other == hash);
        let rows = self.rows[start..end].iter().zip(equal).map(|(&row, _)| row);
        rows.filter(move |&row| self.keys.row(row as usize) == key)
    }

    /// Finds at most `rows_max` matches for `keys`.
    fn find(&self, kind: JoinKind, keys: &[ArrayRef], rows_max: u64) -> Result<Found> {
        let nulls = nulls(keys);
        let cannot = |error| Error::internal(format!("cannot look keys up: {error}"));
        let keys = self.converter.convert_columns(keys).map_err(cannot)?;
        let (mut parents, mut ordinals) = (Vec::with_capacity(keys.num_rows()), Vec::with_capacity(keys.num_rows()));
        let mut rows: Vec<Option<u32>> = Vec::with_capacity(keys.num_rows());
        for (parent, key) in keys.iter().enumerate() {
            let is_null = nulls.as_ref().is_some_and(|nulls| nulls.is_null(parent));
            let mut matches = (!is_null).then(|| self.matches(key)).into_iter().flatten();
            let first = matches.next();
            let mut add = |row, ordinal| {
                parents.push(parent as u32);
                rows.push(row);
                ordinals.push(ordinal);
            };
            match (kind, first) {
                (JoinKind::Inner | JoinKind::Left, Some(first)) => match matches.next() {
                    // A row with a single match stays the same sample, so random operators draw as they would without
                    // the join.
                    None => add(Some(first), None),
                    Some(second) => {
                        for (row, ordinal) in [first, second].into_iter().chain(matches).zip(0..) {
                            add(Some(row), Some(ordinal));
                            if ordinal >= rows_max {
                                break;
                            }
                        }
                    }
                },
                (JoinKind::Left | JoinKind::Anti, None) | (JoinKind::Semi, Some(_)) => add(None, None),
                (JoinKind::NotIn, None) if self.keys.num_rows() == 0 || !(is_null || self.has_nulls) => add(None, None),
                (JoinKind::Inner | JoinKind::Semi | JoinKind::NotIn, None)
                | (JoinKind::Anti | JoinKind::NotIn, Some(_)) => {}
            }
            if parents.len() as u64 > rows_max.min(u64::from(u32::MAX)) {
                return Err(Error::new(ErrorKind::Exhausted, "a JOIN makes too many rows in one window").with_hint(
                    "lower window_rows or window_bytes, select fewer columns, or join with fewer rows of each key",
                ));
            }
        }
        Ok(Found { parents, ordinals, rows: rows.into() })
    }
}

fn first_bits(hash: u64, bits: u32) -> u64 {
    hash.checked_shr(u64::BITS - bits).unwrap_or(0)
}

/// Marks the rows that have a null in any of `keys`.
fn nulls(keys: &[ArrayRef]) -> Option<NullBuffer> {
    keys.iter().fold(None, |nulls, key| NullBuffer::union(nulls.as_ref(), key.logical_nulls().as_ref()))
}
