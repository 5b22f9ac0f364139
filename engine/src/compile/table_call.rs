//! A call of a table operator: which columns travel past the operator, and which of its rows each value goes to.
//!
//! The operator says which input row a new row derives from. Everything else is done here for all operators alike: the
//! columns that its plan reads come first in the layer's input, the columns that the query reads of the result follow,
//! and are copied for each new row from its parent, and from its partner if the plan has partners.

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
    /// How many columns of the layer's input the call reads. They come first.
    reads: usize,
    /// How many columns of the layer's input may be copied for the rows that are made. They follow.
    carried: usize,
    has_partners: bool,
    /// The index of the call among the layers of the query.
    index: u64,
}

/// What a column of the rows that are made holds.
enum MadeColumn {
    /// A column that is carried, of the row's parent.
    Parent(usize),
    /// A column that is carried, of the row's partner.
    Partner(usize),
    /// The random key of the row's partner.
    PartnerKey,
    /// One of the columns that the operator computes.
    Made(usize),
}

impl TableCall {
    /// The call of `operator` that `plan` plans, as layer `index`, with `carried` columns of its input beside those it
    /// reads. What is made has these columns, then those of partners and their random key if the plan has partners,
    /// then those that the operator computes.
    pub(crate) fn new(operator: &'static dyn RowOperator, plan: &RowPlan, carried: usize, index: usize) -> Self {
        Self {
            operator,
            rows: Arc::clone(&plan.rows),
            reads: plan.reads.len(),
            carried,
            has_partners: plan.has_partners(),
            index: index as u64,
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.operator.descriptor().name
    }

    /// Whether it needs all rows of a window before it makes any.
    pub(crate) fn is_of_window(&self) -> bool {
        self.operator.scope() == RowScope::Window
    }

    /// Whether it makes one row of each row.
    pub(crate) fn is_one_to_one(&self) -> bool {
        self.operator.descriptor().rows == Rows::OneToOne
    }

    /// Whether its rows have the columns of others beside their own.
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

    /// The columns of the input that it needs to make the columns `made`: what it reads, then what is carried,
    /// ascending.
    pub(crate) fn needs(&self, made: &[usize]) -> Vec<usize> {
        (0..self.reads).chain(self.copied(made).into_iter().map(|column| self.reads + column)).collect()
    }

    /// Of the columns that may be carried those that are, ascending.
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

    /// The rows made of `passed`, with the columns `made`, handed to `each` part by part. `each` returns how many more
    /// bytes the window may hold; before the first part these are `room`.
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
            // What does not grow is counted once it is made.
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

/// The columns that travel past a call.
struct Carried<'a> {
    call: &'a TableCall,
    passed: &'a [SourceRows],
    made: &'a [usize],
    copied: Vec<usize>,
}

impl Carried<'_> {
    /// What the columns of a made row take on average that are copied.
    fn row_bytes(&self) -> u64 {
        let columns = self.passed.iter().flat_map(|rows| &rows.batch.columns()[self.call.reads..]);
        let bytes = columns.map(column_bytes).fold(0, u64::saturating_add);
        let rows: usize = self.passed.iter().map(|rows| rows.sample_ids.len()).sum();
        let copies = if self.call.has_partners { 2 } else { 1 };
        bytes.saturating_mul(copies) / rows.max(1) as u64
    }

    /// The rows with all their columns, and what identifies them.
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

/// The values of these rows, of a column in parts. Rows that lie together are not copied.
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
