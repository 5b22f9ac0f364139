//! A call of a table operator: the columns carried past the operator, and the derived rows that receive each value.
//!
//! The operator only reports each derived row's input row. This module does the rest for all operators. The columns
//! that the operator's plan reads come first in the layer's input. The columns that the query reads from the result
//! follow. They are copied for each derived row from its parent, and from its partner if the plan has partners.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, UInt32Array, UInt64Array};
use arrow::compute::{interleave, take};
use arrow::error::ArrowError;
use forebay_arrays::column_bytes;
use forebay_operators::{
    InputPart, InputRows, Made, MakeRows, RowAt, RowOperator, RowPlan, RowScope, Rows, WindowTooLarge,
};

use super::source_rows::{DerivedRows, SourceRows, derived_key};
use crate::error::{Error, ErrorKind, Result};

/// A call of a table operator, as a layer runs it.
pub(crate) struct TableCall {
    operator: &'static dyn RowOperator,
    rows: Arc<dyn MakeRows>,
    /// The number of columns of the layer's input that the call reads. They come first.
    reads: usize,
    /// The number of columns of the layer's input that may be copied to derived rows. They follow.
    carried: usize,
    has_partners: bool,
    /// Whether it computes columns itself.
    makes_columns: bool,
    /// The index of the call's layer in the query.
    index: u64,
}

/// The source of a column of the derived rows.
enum MadeColumn {
    /// A carried column of the row's parent.
    Parent(usize),
    /// A carried column of the row's partner.
    Partner(usize),
    /// The random key of the row's partner.
    PartnerKey,
    /// A column that the operator computes.
    Made(usize),
}

impl TableCall {
    /// The call that `plan` plans for `operator`, as layer `index`. The layer's input has `carried` columns besides the
    /// columns that the call reads. Derived rows have the carried columns; then, if the plan has partners, the
    /// partners' columns and their random key; then the columns that the operator computes.
    pub(crate) fn new(operator: &'static dyn RowOperator, plan: &RowPlan, carried: usize, index: usize) -> Self {
        Self {
            operator,
            rows: Arc::clone(&plan.rows),
            reads: plan.reads.len(),
            carried,
            has_partners: plan.has_partners(),
            makes_columns: !plan.made.is_empty(),
            index: index as u64,
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.operator.descriptor().name
    }

    /// Whether it needs all rows of a window before it derives any.
    pub(crate) fn is_of_window(&self) -> bool {
        self.operator.scope() == RowScope::Window
    }

    /// Whether each input row derives exactly one row.
    pub(crate) fn is_one_to_one(&self) -> bool {
        self.operator.descriptor().rows == Rows::OneToOne
    }

    /// Whether the rows that it makes, or their columns, are others in each epoch. A column that is a function of the
    /// row's random key does not count: it shows by itself where it is used.
    pub(crate) fn draws(&self) -> bool {
        self.operator.descriptor().determinism.varies_by_epoch() && (!self.is_one_to_one() || self.makes_columns)
    }

    /// Whether its rows also carry the columns of a partner row.
    pub(crate) fn has_partners(&self) -> bool {
        self.has_partners
    }

    fn column(&self, made: usize) -> MadeColumn {
        let partners = if self.has_partners { self.carried + 1 } else { 0 };
        match made {
            at if at < self.carried => MadeColumn::Parent(at),
            at if at >= self.carried + partners => MadeColumn::Made(at - self.carried - partners),
            at if at == 2 * self.carried => MadeColumn::PartnerKey,
            at => MadeColumn::Partner(at - self.carried),
        }
    }

    /// The input columns needed to produce the columns `made`: the columns that the call reads, then the carried
    /// columns, ascending.
    pub(crate) fn needs(&self, made: &[usize]) -> Vec<usize> {
        (0..self.reads).chain(self.copied(made).into_iter().map(|column| self.reads + column)).collect()
    }

    /// The carried columns that are actually copied, ascending.
    fn copied(&self, made: &[usize]) -> Vec<usize> {
        let carried = made.iter().filter_map(|&at| match self.column(at) {
            MadeColumn::Parent(column) | MadeColumn::Partner(column) => Some(column),
            MadeColumn::PartnerKey | MadeColumn::Made(_) => None,
        });
        let mut carried: Vec<usize> = carried.collect();
        carried.sort_unstable();
        carried.dedup();
        carried
    }

    fn part<'a>(&self, rows: &'a SourceRows) -> InputPart<'a> {
        InputPart {
            reads: &rows.batch.columns()[..self.reads],
            random_keys: &rows.random_keys,
            origins: rows.origins(),
            ids: &rows.sample_ids,
        }
    }

    /// Derives rows from `passed` with the columns `made`, and passes them to `each` part by part. `each` returns the
    /// number of bytes that the window may still hold; before the first part it is `room`.
    pub(crate) fn make(
        &self,
        passed: &[SourceRows],
        made: &[usize],
        order: &(dyn Fn(u64) -> u64 + Sync),
        room: u64,
        too_large: &dyn Fn() -> Error,
        mut each: impl FnMut(DerivedRows) -> Result<u64>,
    ) -> Result<()> {
        let wanted: Vec<usize> = made
            .iter()
            .filter_map(|&at| match self.column(at) {
                MadeColumn::Made(column) => Some(column),
                MadeColumn::Parent(_) | MadeColumn::Partner(_) | MadeColumn::PartnerKey => None,
            })
            .collect();
        let parts = passed.iter().map(|rows| self.part(rows)).collect();
        let window = InputRows { parts, wanted: &wanted, order, call: self.index, bytes_max: room };
        let carried = Carried { call: self, passed, made, copied: self.copied(made) };
        let (row_bytes, input_rows) = (carried.row_bytes(), window.len());
        let mut room = room;
        for rows in self.rows.make(&window).map_err(of_call)? {
            let rows = rows.map_err(of_call)?;
            // Output no larger than its input is counted after it is derived.
            let grows = self.has_partners || rows.parents.len() > input_rows;
            if grows && (rows.parents.len() as u64).saturating_mul(row_bytes) > room {
                return Err(too_large());
            }
            room = each(carried.beside(rows)?)?;
        }
        Ok(())
    }
}

fn of_call(error: datafusion::error::DataFusionError) -> Error {
    match WindowTooLarge::of(&error) {
        Some(problem) => Error::new(ErrorKind::Exhausted, &problem.message).with_hint(&problem.hint),
        None => Error::from(error),
    }
}

/// The columns carried past a call.
struct Carried<'a> {
    call: &'a TableCall,
    passed: &'a [SourceRows],
    made: &'a [usize],
    copied: Vec<usize>,
}

impl Carried<'_> {
    /// The average bytes of the copied columns per derived row.
    fn row_bytes(&self) -> u64 {
        let columns = self.passed.iter().flat_map(|rows| &rows.batch.columns()[self.call.reads..]);
        let bytes = columns.map(column_bytes).fold(0, u64::saturating_add);
        let rows: usize = self.passed.iter().map(|rows| rows.sample_ids.len()).sum();
        let copies = if self.call.has_partners { 2 } else { 1 };
        bytes.saturating_mul(copies) / rows.max(1) as u64
    }

    /// Assembles all columns of the rows, and their identities.
    fn beside(&self, rows: Made) -> Result<DerivedRows> {
        let partners = if self.call.has_partners { rows.parents.len() } else { 0 };
        if rows.ordinals.len() != rows.parents.len() || rows.partners.len() != partners {
            return Err(Error::internal(format!("{} made rows of different lengths", self.call.name())));
        }
        let mut own = rows.columns.into_iter();
        let columns = self.made.iter().map(|&at| match self.call.column(at) {
            MadeColumn::Parent(column) => self.gather(column, &rows.parents),
            MadeColumn::Partner(column) => self.gather(column, &rows.partners),
            MadeColumn::PartnerKey => {
                let keys = rows.partners.iter().map(|row| self.random_key(*row));
                Ok(Arc::new(UInt64Array::from_iter_values(keys)) as ArrayRef)
            }
            MadeColumn::Made(_) => {
                own.next().ok_or_else(|| Error::internal(format!("{} lacks a column", self.call.name())))
            }
        });
        let columns = columns.collect::<Result<_>>()?;
        let keys = rows.parents.iter().zip(&rows.ordinals);
        Ok(DerivedRows {
            columns,
            random_keys: keys.map(|(parent, ordinal)| derived_key(self.random_key(*parent), *ordinal)).collect(),
            origins: rows.parents.iter().map(|row| self.part(*row).origin(row.row as usize)).collect(),
        })
    }

    fn part(&self, row: RowAt) -> &SourceRows {
        &self.passed[row.part as usize]
    }

    fn random_key(&self, row: RowAt) -> u64 {
        self.part(row).random_keys.value(row.row as usize)
    }

    /// A carried column's values in these rows.
    fn gather(&self, column: usize, rows: &[RowAt]) -> Result<ArrayRef> {
        let at = self.copied.binary_search(&column).map_err(|_| Error::internal("a table operator lacks a column"))?;
        let of_part = |rows: &SourceRows| Arc::clone(rows.batch.column(self.call.reads + at));
        let columns: Vec<ArrayRef> = self.passed.iter().map(of_part).collect();
        gathered(&columns, rows)
            .map_err(|error| Error::internal(format!("{} cannot copy rows: {error}", self.call.name())))
    }
}

/// The values of a chunked column at these rows. Adjacent rows are not copied.
fn gathered(parts: &[ArrayRef], rows: &[RowAt]) -> Result<ArrayRef, ArrowError> {
    let Some(first) = rows.first() else {
        return match parts.first() {
            Some(part) => Ok(part.slice(0, 0)),
            None => Err(ArrowError::ComputeError("a column has no part".to_owned())),
        };
    };
    if rows.iter().any(|row| row.part != first.part) {
        let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
        let indices: Vec<(usize, usize)> = rows.iter().map(|row| (row.part as usize, row.row as usize)).collect();
        return interleave(&parts, &indices);
    }
    let part = &parts[first.part as usize];
    if rows.iter().zip(first.row..).all(|(row, next)| row.row == next) {
        return Ok(part.slice(first.row as usize, rows.len()));
    }
    take(part, &UInt32Array::from_iter_values(rows.iter().map(|row| row.row)), None)
}
