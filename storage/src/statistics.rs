//! Bounds on the values of a range's rows, known without reading them.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, UInt64Array, new_null_array};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field};

use crate::source_file::RowRange;

/// What to give statistics of. Those of pages take a further read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Whole row groups.
    Groups,
    /// Pages, where a format has such.
    Pages,
}

/// Consecutive parts of a row range, with bounds on the values of some columns.
#[derive(Clone, Debug)]
pub struct RangeStatistics {
    /// The parts, which together are the range.
    pub parts: Vec<RowRange>,
    /// The bounds of each requested column.
    pub columns: Vec<ColumnStatistics>,
}

/// Bounds on a column's values in each part. A null is an unknown bound, and no value is outside the bounds.
#[derive(Clone, Debug)]
pub struct ColumnStatistics {
    /// The lower bounds, of the column's type.
    pub min: ArrayRef,
    /// The upper bounds, of the column's type.
    pub max: ArrayRef,
    /// The numbers of nulls.
    pub nulls: UInt64Array,
}

impl RangeStatistics {
    /// One part, about which nothing is known.
    pub(crate) fn unknown<'a>(range: &RowRange, fields: impl Iterator<Item = &'a Field>) -> Self {
        let columns = fields.map(|field| ColumnStatistics::unknown(field.data_type(), 1)).collect();
        Self { parts: vec![*range], columns }
    }
}

impl ColumnStatistics {
    pub(crate) fn unknown(data_type: &DataType, parts: usize) -> Self {
        let none = new_null_array(data_type, parts);
        Self { min: Arc::clone(&none), max: none, nulls: UInt64Array::new_null(parts) }
    }

    /// The statistics of a column with one value in all rows of all parts.
    pub(crate) fn of_value(value: &ArrayRef, rows: &[RowRange]) -> Self {
        let nulls = |part: &RowRange| if value.is_null(0) { part.rows } else { 0 };
        let values: Vec<&dyn Array> = rows.iter().map(|_| value.as_ref()).collect();
        let values = concat(&values).unwrap_or_else(|_| new_null_array(value.data_type(), rows.len()));
        Self { min: Arc::clone(&values), max: values, nulls: UInt64Array::from_iter_values(rows.iter().map(nulls)) }
    }
}
