//! An operator that derives rows, planned with the part of the query below it.
//!
//! A layer runs when a window is prepared, because the number of derived rows determines the window's offsets. The
//! window keeps these rows, which have their own ids. A row's random key is a hash of its parent's key and its index
//! among its parent's rows. Each row refers to a row of the driving table, for error messages about bad rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions, UInt64Array};
use arrow::datatypes::SchemaRef;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlanBuilder};
use forebay_arrays::batch_bytes;
use forebay_operators::CallCost;
use forebay_storage::Dataset;

use super::change::Change;
use super::filters::conjuncts;
use super::hidden::WovenLayer;
use super::hidden_columns::{SAMPLE_ID, hidden_column};
use super::identity;
use super::leaf_plan::{LeafPlan, Select, ascending};
use super::lookup::{Lookup, LookupPlan};
use super::source_rows::{DerivedRows, SourceRows};
use super::table_call::TableCall;
use crate::error::{Error, ErrorKind, Result};

/// Maximum bytes of the derived rows of one window.
const MADE_BYTES_MAX: u64 = 1 << 30;
/// The first id of a derived row, above the ids of any table.
const MADE_IDS: u64 = 1 << 63;

/// An operator that derives rows, ready to run over any rows of the layer or table below.
pub(crate) struct Layer {
    /// The input rows that pass the filters below the operator: the columns it needs, then the sample id.
    below: Select,
    /// The columns of the layer or table below that this layer reads, ascending.
    columns: Vec<usize>,
    change: Change,
    /// The lookup table, if the layer is a join.
    lookup: Option<LookupPlan>,
    /// The columns of the derived rows that are read, ascending.
    made: Vec<usize>,
    schema: SchemaRef,
    /// What identifies the query below the operator.
    fingerprint: String,
}

/// The rows derived so far in a window.
#[derive(Default)]
pub(crate) struct MadeSoFar {
    rows: u64,
    bytes: u64,
}

impl MadeSoFar {
    /// The number of bytes that the window may still hold.
    fn room(&self) -> u64 {
        MADE_BYTES_MAX.saturating_sub(self.bytes)
    }
}

impl Layer {
    /// Plans a layer whose columns `made` are read, over a table or layer with the columns of `source`. Joins look up
    /// rows in `tables`.
    pub(crate) async fn plan(
        woven: WovenLayer,
        made: Vec<usize>,
        source: &SchemaRef,
        tables: &BTreeMap<String, Dataset>,
        state: &SessionState,
    ) -> Result<Self> {
        let WovenLayer { input, change, made: schema } = woven;
        let id = Expr::Column(hidden_column(&input, SAMPLE_ID)?);
        let needed =
            change.needs(&made).into_iter().map(|column| Expr::Column(input.schema().columns()[column].clone()));
        let exprs: Vec<Expr> = needed.chain([id]).collect();
        let conjuncts = conjuncts(&input, source, state).await?;
        let below = LogicalPlanBuilder::from(input).project(exprs)?.build()?;
        let versions = (identity::operator_versions(&below)?, identity::function_versions(&below)?);
        let fingerprint = format!("{} {versions:?}", identity::fingerprint(&below)?);
        let whole = LeafPlan::new(state.create_physical_plan(&below).await?, source)?;
        let below = Select { whole, conjuncts };
        let lookup = match &change {
            Change::Join(join) => {
                let dataset = tables.get(&join.right.table).cloned();
                let dataset = dataset.ok_or_else(|| Error::internal("a join reads a missing table"))?;
                Some(join.lookup(&made, dataset, state).await?)
            }
            _ => None,
        };
        let schema =
            schema.project(&made).map_err(|error| Error::internal(format!("a layer lacks a column: {error}")))?;
        Ok(Self {
            columns: ascending(below.columns()),
            below,
            change,
            lookup,
            made,
            schema: Arc::new(schema),
            fingerprint,
        })
    }

    /// What identifies the query below the operator, and the operators that it calls. Over equal tables, equal ones
    /// give the same input rows, if they have the same random keys or [draw nothing](Select::is_random).
    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The schema of its input rows.
    pub(crate) fn input_schema(&self) -> SchemaRef {
        let schema = self.below.whole.plan.schema();
        let columns: Vec<usize> = (0..schema.fields().len() - 1).collect();
        Arc::new(schema.project(&columns).expect("all columns but the last"))
    }

    /// The columns of the layer or table below to read, ascending.
    pub(crate) fn columns(&self) -> &[usize] {
        &self.columns
    }

    pub(crate) fn display(&self) -> String {
        let lookup = self.lookup.as_ref().map(LookupPlan::display).unwrap_or_default();
        format!("{}:\n{}{lookup}", self.change.name(), self.below.whole.display())
    }

    /// The lookup table, if the layer is a join.
    pub(crate) fn lookup(&self) -> Option<&LookupPlan> {
        self.lookup.as_ref()
    }

    /// The same layer, the calls below whose operator count what they cost.
    pub(super) fn measured(self, costs: &mut Vec<Arc<CallCost>>) -> Result<Self> {
        Ok(Self { below: self.below.measured(costs)?, ..self })
    }

    /// The input rows that pass the filters below the operator.
    pub(crate) fn below(&self) -> &Select {
        &self.below
    }

    fn call(&self) -> Option<&TableCall> {
        match &self.change {
            Change::Call(call) => Some(call),
            Change::Unnest(_) | Change::Join(_) | Change::Keep => None,
        }
    }

    /// Whether each row of the layer or table below derives exactly one row.
    pub(crate) fn is_one_to_one(&self) -> bool {
        let keeps_rows = matches!(self.change, Change::Keep) || self.call().is_some_and(TableCall::is_one_to_one);
        keeps_rows && self.below.conjuncts.is_empty()
    }

    /// Whether the same rows below derive the same number of rows in every epoch, and conditions on these hold for the
    /// same ones.
    pub(crate) fn has_equal_epochs(&self) -> bool {
        let draws = self.call().is_some_and(TableCall::draws);
        !self.below.is_random() && !draws && (self.is_one_to_one() || !self.is_of_window())
    }

    /// Whether its rows also carry the columns of a partner row.
    pub(crate) fn has_partners(&self) -> bool {
        self.call().is_some_and(TableCall::has_partners)
    }

    /// Whether it needs all rows of a window before it derives any.
    pub(crate) fn is_of_window(&self) -> bool {
        self.call().is_some_and(TableCall::is_of_window)
    }

    /// Derives rows from `passed`: some rows of a window, or all of them if the operator [needs
    /// all](Self::is_of_window). `order` maps a row's random key to its place in the window. `lookup` is the lookup
    /// table of a [join](Self::lookup).
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
            Change::Keep => Ok(passed.to_vec()),
        }
    }

    /// Assigns ids to derived rows.
    fn identified(&self, rows: DerivedRows, so_far: &mut MadeSoFar) -> Result<SourceRows> {
        let DerivedRows { columns, random_keys: keys, origins } = rows;
        let options = RecordBatchOptions::new().with_row_count(Some(keys.len()));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
            .map_err(|error| Error::internal(format!("rows made do not fit the plan: {error}")))?;
        let first = MADE_IDS + so_far.rows;
        so_far.rows += keys.len() as u64;
        so_far.bytes += batch_bytes(&batch);
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
