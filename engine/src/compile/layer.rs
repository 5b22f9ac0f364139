//! One operator that makes rows, planned with what lies below it.
//!
//! It runs when a window is prepared, since only then the window's rows, and so its offsets, are known. The rows it makes
//! are kept in the window; they have ids of their own, random keys that follow from the row they come from and their
//! place in it, and they remember the row of the driving table, which is what messages about bad rows name.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch, RecordBatchOptions, UInt64Array};
use arrow::compute::concat_batches;
use arrow::datatypes::{SchemaRef, UInt64Type};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlanBuilder};
use forebay_storage::Dataset;

use super::change::Change;
use super::conjuncts;
use super::hidden::{self, SAMPLE_ID, WovenLayer};
use super::lookup::{Lookup, LookupPlan};
use super::source_rows::{DerivedRows, SourceRows, slice_bytes};
use super::stage::{BadRow, LeafPlan, Select, Stage, ascending};
use super::table_call::TableCall;
use crate::error::{Error, ErrorKind, Result};

/// The most that the rows made in one window may take.
const MADE_BYTES_MAX: u64 = 1 << 30;
/// Ids of made rows begin here, above those of any table.
const MADE_IDS: u64 = 1 << 63;

/// An operator that makes rows, ready to run over any rows of the layer or table below.
pub(crate) struct Layer {
    /// Its input's rows that pass the filters below it: the columns that it needs, then the sample id.
    below: Select,
    /// The columns that this reads of the layer or table below, ascending.
    columns: Vec<usize>,
    change: Change,
    /// What a join looks its rows up in.
    lookup: Option<LookupPlan>,
    /// The columns that are read of what it makes, ascending.
    made: Vec<usize>,
    schema: SchemaRef,
}

/// Rows that reached an operator, in order, and those that could not.
pub(crate) struct Passed {
    pub(crate) rows: SourceRows,
    pub(crate) bad: Vec<BadRow>,
}

/// What was made in a window so far.
#[derive(Default)]
pub(crate) struct MadeSoFar {
    rows: u64,
    bytes: u64,
}

impl MadeSoFar {
    /// How many more bytes of rows the window may hold.
    fn room(&self) -> u64 {
        MADE_BYTES_MAX.saturating_sub(self.bytes)
    }
}

impl Layer {
    /// Plans a layer of which the columns `made` are read, over what has the columns of `source`. `tables` are those that
    /// joins may look rows up in.
    pub(crate) async fn plan(
        woven: WovenLayer,
        made: Vec<usize>,
        source: &SchemaRef,
        tables: &BTreeMap<String, Dataset>,
        state: &SessionState,
    ) -> Result<Self> {
        let WovenLayer { input, change, made: schema } = woven;
        let id = Expr::Column(hidden::hidden_column(&input, SAMPLE_ID)?);
        let needed =
            change.needs(&made).into_iter().map(|column| Expr::Column(input.schema().columns()[column].clone()));
        let exprs: Vec<Expr> = needed.chain([id]).collect();
        let conjuncts = conjuncts(&input, source, state).await?;
        let below = LogicalPlanBuilder::from(input).project(exprs)?.build()?;
        let whole = LeafPlan::new(state.create_physical_plan(&below).await?, source)?;
        let below = Select { whole, conjuncts };
        let lookup = match &change {
            Change::Join(join) => {
                let dataset = tables.get(&join.right.table).cloned();
                let dataset = dataset.ok_or_else(|| Error::internal("a join reads a table that is not there"))?;
                Some(join.lookup(&made, dataset, state).await?)
            }
            _ => None,
        };
        let schema =
            schema.project(&made).map_err(|error| Error::internal(format!("a layer lacks a column: {error}")))?;
        Ok(Self { columns: ascending(below.columns()), below, change, lookup, made, schema: Arc::new(schema) })
    }

    /// The columns that are to be read of the layer or table below, ascending.
    pub(crate) fn columns(&self) -> &[usize] {
        &self.columns
    }

    pub(crate) fn display(&self) -> String {
        let lookup = self.lookup.as_ref().map(LookupPlan::display).unwrap_or_default();
        format!("{}:\n{}{lookup}", self.change.name(), self.below.whole.display())
    }

    /// What it looks its rows up in, if it does.
    pub(crate) fn lookup(&self) -> Option<&LookupPlan> {
        self.lookup.as_ref()
    }

    fn call(&self) -> Option<&TableCall> {
        match &self.change {
            Change::Call(call) => Some(call),
            Change::Unnest(_) | Change::Join(_) => None,
        }
    }

    /// Whether it makes one row of each row of the layer or table below.
    pub(crate) fn is_one_to_one(&self) -> bool {
        self.call().is_some_and(TableCall::is_one_to_one) && self.below.conjuncts.is_empty()
    }

    /// Whether its rows have the columns of others beside their own.
    pub(crate) fn has_partners(&self) -> bool {
        self.call().is_some_and(TableCall::has_partners)
    }

    /// Whether it needs all rows of a window before it makes any.
    pub(crate) fn is_of_window(&self) -> bool {
        self.call().is_some_and(TableCall::is_of_window)
    }

    /// The rows made of `passed`, or of all that passed in a window. `order` says where a row with some random key comes;
    /// `lookup` is what [`lookup`](Self::lookup) plans, once it was read.
    pub(crate) fn make(
        &self,
        passed: &[SourceRows],
        order: impl Fn(u64) -> u64 + Sync,
        lookup: Option<&Lookup>,
        so_far: &mut MadeSoFar,
    ) -> Result<Vec<SourceRows>> {
        match &self.change {
            Change::Unnest(unnest) => {
                let make = |rows: &SourceRows| {
                    let made = unnest.make(&rows.batch, &self.made, so_far.room())?;
                    self.identified(made.of(rows), so_far)
                };
                passed.iter().map(make).collect()
            }
            Change::Join(join) => {
                let lookup = lookup.ok_or_else(|| Error::internal("a join's table was not read"))?;
                let make = |rows: &SourceRows| {
                    let made = join.make(lookup, &rows.batch, &self.made, so_far.room())?;
                    self.identified(made.of(rows), so_far)
                };
                passed.iter().map(make).collect()
            }
            Change::Call(call) => {
                let mut all = Vec::new();
                let groups = if call.is_of_window() { passed.len().max(1) } else { 1 };
                for group in passed.chunks(groups) {
                    let room = so_far.room();
                    call.make(group, &self.made, &order, room, &|| self.too_large(), |derived| {
                        all.push(self.identified(derived, so_far)?);
                        Ok(so_far.room())
                    })?;
                }
                Ok(all)
            }
        }
    }

    /// Gives rows that were made their ids.
    fn identified(&self, rows: DerivedRows, so_far: &mut MadeSoFar) -> Result<SourceRows> {
        let DerivedRows { columns, random_keys: keys, origins } = rows;
        let options = RecordBatchOptions::new().with_row_count(Some(keys.len()));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
            .map_err(|error| Error::internal(format!("rows made do not fit the plan: {error}")))?;
        let first = MADE_IDS + so_far.rows;
        so_far.rows += keys.len() as u64;
        so_far.bytes += batch.columns().iter().map(slice_bytes).sum::<u64>();
        if so_far.bytes > MADE_BYTES_MAX {
            return Err(self.too_large());
        }
        Ok(SourceRows {
            batch,
            sample_ids: UInt64Array::from_iter_values(first..first + keys.len() as u64),
            random_keys: keys.into(),
            origins: Some(origins.into()),
            step_lengths: None,
        })
    }

    fn too_large(&self) -> Error {
        let what = self.change.name().to_uppercase();
        let message = format!("{what} makes more than {} MiB of rows in one window", MADE_BYTES_MAX >> 20);
        Error::new(ErrorKind::Exhausted, message)
            .with_hint("lower window_rows or window_bytes, or select fewer columns")
    }
}

impl Stage {
    /// The rows of `rows` that reach the operator of `layer`, with the columns that it needs.
    pub(crate) async fn rise(&self, layer: &Layer, rows: &SourceRows) -> Result<Passed> {
        let passed = self.passed(&layer.below, &layer.columns, rows).await?;
        let batch = concat_batches(&layer.below.whole.plan.schema(), &passed.batches)
            .map_err(|error| Error::internal(format!("cannot join rows: {error}")))?;
        let (id_column, width) = (batch.num_columns() - 1, batch.num_columns());
        let ids = batch.column(id_column).as_primitive::<UInt64Type>();
        // Rows pass in order, so one walk finds each id's row.
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
}
