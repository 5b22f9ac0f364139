//! The rows of a window in groups of equal values.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use arrow::row::{RowConverter, SortField};
use datafusion::common::Result;

use crate::keyed::Draws;
use crate::made_rows::{InputRows, RowAt};

/// The rows of a window, with rows of an equal value side by side.
///
/// The order depends on values and places alone, and not on the order in which rows arrived, so a drawn position is the
/// same row on every worker.
pub(super) struct Groups {
    rows: Vec<RowAt>,
    /// The positions of each row's group. A row without a value is in no group.
    groups: HashMap<RowAt, Range<usize>>,
}

impl Groups {
    /// Groups the rows by their first read value.
    pub(super) fn by_value(window: &InputRows<'_>) -> Result<Self> {
        let Some(first) = window.parts.first() else { return Ok(Self::new(Vec::new())) };
        let converter = RowConverter::new(vec![SortField::new(first.reads[0].data_type().clone())])?;
        let values = window.parts.iter().map(|part| converter.convert_columns(&[canonical(&part.reads[0])]));
        let values = values.collect::<std::result::Result<Vec<_>, _>>()?;
        let has_value = |row: &RowAt| window.parts[row.part as usize].reads[0].is_valid(row.row as usize);
        let mut rows: Vec<_> = (window.positions().filter(has_value))
            .map(|row| (values[row.part as usize].row(row.row as usize), window.place(row), row))
            .collect();
        rows.sort_unstable_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        let chunks = rows.chunk_by(|a, b| a.0 == b.0);
        Ok(Self::new(chunks.map(|group| group.iter().map(|(.., row)| *row).collect()).collect()))
    }

    /// Puts all rows in one group.
    pub(super) fn one(window: &InputRows<'_>) -> Self {
        let mut rows: Vec<_> = window.positions().collect();
        rows.sort_unstable_by_key(|row| window.place(*row));
        Self::new(vec![rows])
    }

    fn new(groups: Vec<Vec<RowAt>>) -> Self {
        let (mut rows, mut ranges) = (Vec::new(), HashMap::new());
        for group in groups {
            let range = rows.len()..rows.len() + group.len();
            ranges.extend(group.iter().map(|row| (*row, range.clone())));
            rows.extend(group);
        }
        Self { rows, groups: ranges }
    }

    /// Returns whether a row has a value.
    pub(super) fn holds(&self, row: RowAt) -> bool {
        self.groups.contains_key(&row)
    }

    /// Draws a row of another value, each equally likely. All rows differ from a row without a value.
    pub(super) fn another_value(&self, row: RowAt, draws: &mut Draws) -> Option<RowAt> {
        let own = self.groups.get(&row).cloned().unwrap_or(0..0);
        let drawn = below(draws, self.rows.len() - own.len())?;
        Some(self.rows[if drawn < own.start { drawn } else { drawn + own.len() }])
    }

    /// Draws another row of the same value, each equally likely.
    pub(super) fn same_value(&self, row: RowAt, draws: &mut Draws) -> Option<RowAt> {
        let own = &self.rows[self.groups.get(&row)?.clone()];
        let drawn = below(draws, own.len() - 1)?;
        // The last row takes the place of the row itself.
        Some(if own[drawn] == row { own[own.len() - 1] } else { own[drawn] })
    }
}

/// Makes zeros of one sign, and NaNs of one kind, since these are equal values.
fn canonical(values: &ArrayRef) -> ArrayRef {
    match values.data_type() {
        DataType::Float32 => {
            let one = |x: f32| if x.is_nan() { f32::NAN } else { x + 0.0 };
            Arc::new(values.as_primitive::<Float32Type>().unary::<_, Float32Type>(one))
        }
        DataType::Float64 => {
            let one = |x: f64| if x.is_nan() { f64::NAN } else { x + 0.0 };
            Arc::new(values.as_primitive::<Float64Type>().unary::<_, Float64Type>(one))
        }
        _ => Arc::clone(values),
    }
}

fn below(draws: &mut Draws, rows: usize) -> Option<usize> {
    (rows > 0).then(|| draws.below(rows as u64) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(row: u32) -> RowAt {
        RowAt { part: 0, row }
    }

    /// Counts how often a row draws each of six rows, of which the last has no value.
    fn counts(draw: impl Fn(&Groups, &mut Draws) -> Option<RowAt>) -> [usize; 6] {
        let groups = Groups::new(vec![vec![at(3), at(0)], vec![at(1)], vec![at(4), at(2)]]);
        let mut draws = Draws::new(17, 0);
        let mut counts = [0; 6];
        for _ in 0..6_000 {
            if let Some(row) = draw(&groups, &mut draws) {
                counts[row.row as usize] += 1;
            }
        }
        counts
    }

    #[test]
    fn rows_that_fit_are_drawn_equally_often() {
        let check = |draw: &dyn Fn(&Groups, &mut Draws) -> Option<RowAt>, expect: [usize; 6]| {
            let got = counts(draw);
            let is_near = |(got, expect): (&usize, usize)| got.abs_diff(expect) <= if expect == 0 { 0 } else { 150 };
            assert!(got.iter().zip(expect).all(is_near), "{got:?} is not {expect:?}");
        };
        check(&|groups, draws| groups.another_value(at(0), draws), [0, 2_000, 2_000, 0, 2_000, 0]);
        check(&|groups, draws| groups.another_value(at(1), draws), [1_500, 0, 1_500, 1_500, 1_500, 0]);
        check(&|groups, draws| groups.another_value(at(4), draws), [2_000, 2_000, 0, 2_000, 0, 0]);
        check(&|groups, draws| groups.another_value(at(5), draws), [1_200, 1_200, 1_200, 1_200, 1_200, 0]);
        check(&|groups, draws| groups.same_value(at(0), draws), [0, 0, 0, 6_000, 0, 0]);
        check(&|groups, draws| groups.same_value(at(1), draws), [0; 6]);
        check(&|groups, draws| groups.same_value(at(5), draws), [0; 6]);
    }

    #[test]
    fn equal_floats_are_one_value() {
        let values: ArrayRef = Arc::new(arrow::array::Float64Array::from(vec![0.0, -0.0, f64::NAN, -f64::NAN, 1.0]));
        let bits: Vec<u64> =
            canonical(&values).as_primitive::<Float64Type>().values().iter().map(|x| x.to_bits()).collect();
        assert_eq!((bits[0], bits[2]), (bits[1], bits[3]));
        assert_ne!(bits[0], bits[4]);
    }

    #[test]
    fn a_window_of_one_value_has_no_other() {
        let groups = Groups::new(vec![vec![at(0), at(1)]]);
        assert_eq!(groups.another_value(at(0), &mut Draws::new(1, 2)), None);
    }
}
