//! UNNEST: one row for each item of a list.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::DataType;
use datafusion::common::{NullHandling, internal_err};
use datafusion::logical_expr as plan;

use super::source_rows::Expansion;
use crate::error::{Error, ErrorKind, Result};

/// An UNNEST: the items replace the list column of the input.
pub(crate) struct Unnest {
    list: usize,
}

/// The reason that a feed cannot run this UNNEST, or `None`.
pub(crate) fn refusal(node: &plan::logical_plan::Unnest) -> Option<Error> {
    if let Some(&column) = node.struct_type_columns.first() {
        let name = node.input.schema().field(column).data_type();
        let error = Error::invalid(format!("UNNEST expands a list, and this is {name}"));
        return Some(error.with_hint("take the fields of a struct by name: `column['field']`"));
    }
    match &node.list_type_columns[..] {
        [(_, column)] if column.depth == 1 => {}
        [_] => {
            let error = Error::invalid("nested UNNEST calls are not supported in one SELECT");
            return Some(error.with_hint(TWICE));
        }
        _ => return Some(Error::invalid("a SELECT can unnest only one list").with_hint(TWICE)),
    }
    (node.options.null_handling != NullHandling::Drop)
        .then(|| Error::invalid("UNNEST that keeps rows without items is not supported"))
}

const TWICE: &str = "unnest one list in a subquery, and the other in the outer query";

impl Unnest {
    pub(crate) fn new(node: &plan::logical_plan::Unnest) -> datafusion::error::Result<Self> {
        let [(list, _)] = node.list_type_columns[..] else { return internal_err!("an UNNEST was not checked") };
        Ok(Self { list })
    }

    /// The list first, then the others in order.
    pub(crate) fn needs(&self, made: &[usize]) -> Vec<usize> {
        std::iter::once(self.list).chain(made.iter().copied().filter(|&column| column != self.list)).collect()
    }

    pub(crate) fn make(&self, input: &RecordBatch, made: &[usize], bytes_max: u64) -> Result<Expansion> {
        let list = input.column(0);
        let (mut parents, mut ordinals) = (Vec::new(), Vec::new());
        let mut runs: Vec<Range<usize>> = Vec::new();
        for row in 0..list.len() {
            let items = items(list, row)?;
            if parents.len() + items.len() > ROWS_MAX {
                return Err(too_large(bytes_max));
            }
            parents.extend(std::iter::repeat_n(row as u32, items.len()));
            ordinals.extend((0..items.len() as u64).map(Some));
            match runs.last_mut() {
                Some(last) if last.end == items.start => last.end = items.end,
                _ if items.is_empty() => {}
                _ => runs.push(items),
            }
        }
        let cannot = |error| Error::internal(format!("cannot unnest: {error}"));
        // A column beside a long list may hold images, which would be copied for each item.
        let beside: usize = input.columns()[1..].iter().map(|column| column.get_array_memory_size()).sum();
        if (beside / list.len().max(1)).saturating_mul(parents.len()) as u64 > bytes_max {
            return Err(too_large(bytes_max));
        }
        let indices = UInt32Array::from(parents.clone());
        let mut others = input.columns()[1..].iter();
        let columns = made.iter().map(|&column| {
            if column == self.list {
                let values = values(list)?;
                return match &runs[..] {
                    [] => Ok(values.slice(0, 0)),
                    [run] => Ok(values.slice(run.start, run.len())),
                    runs => {
                        let indices = runs.iter().cloned().flatten().map(|at| at as u32).collect::<Vec<_>>();
                        take(&values, &UInt32Array::from(indices), None).map_err(cannot)
                    }
                };
            }
            let other = others.next().ok_or_else(|| Error::internal("an UNNEST lacks a column"))?;
            take(other, &indices, None).map_err(cannot)
        });
        Ok(Expansion { columns: columns.collect::<Result<_>>()?, parents, ordinals })
    }
}

/// Maximum number of rows. Counts have 32 bits; this leaves a margin.
const ROWS_MAX: usize = 1 << 31;

/// The error for a window that would be too large.
pub(crate) fn too_large(bytes_max: u64) -> Error {
    Error::new(ErrorKind::Exhausted, format!("UNNEST makes more than {} MiB of rows in one window", bytes_max >> 20))
        .with_hint("lower window_rows or window_bytes, or select fewer columns beside the list")
}

fn values(list: &ArrayRef) -> Result<ArrayRef> {
    Ok(match list.data_type() {
        DataType::List(_) => list.as_list::<i32>().values().clone(),
        DataType::LargeList(_) => list.as_list::<i64>().values().clone(),
        DataType::FixedSizeList(..) => list.as_fixed_size_list().values().clone(),
        other => return Err(Error::internal(format!("UNNEST of {other} was not refused"))),
    })
}

/// The range of a row's items among all items. It is empty for a null, even if the null slot has values.
fn items(list: &ArrayRef, row: usize) -> Result<Range<usize>> {
    if list.is_null(row) {
        return Ok(0..0);
    }
    Ok(match list.data_type() {
        DataType::List(_) => {
            let offsets = list.as_list::<i32>().value_offsets();
            offsets[row] as usize..offsets[row + 1] as usize
        }
        DataType::LargeList(_) => {
            let offsets = list.as_list::<i64>().value_offsets();
            offsets[row] as usize..offsets[row + 1] as usize
        }
        DataType::FixedSizeList(_, size) => {
            let first = list.as_fixed_size_list().value_offset(row) as usize;
            first..first + *size as usize
        }
        other => return Err(Error::internal(format!("UNNEST of {other} was not refused"))),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{FixedSizeListArray, Int64Array, LargeListArray, ListArray, StringArray};
    use arrow::buffer::{NullBuffer, OffsetBuffer};
    use arrow::datatypes::{Field, Int64Type};

    use super::*;

    fn texts(array: &ArrayRef) -> Vec<String> {
        let text = |row| arrow::util::display::array_value_to_string(array, row).expect("a value");
        (0..array.len()).map(text).collect()
    }

    #[track_caller]
    fn expect(list: ArrayRef, expected: &[(&str, &str)]) {
        let names: ArrayRef = Arc::new(StringArray::from_iter_values(["a", "b", "c", "d"]));
        let input = RecordBatch::try_from_iter_with_nullable([("l", list, true), ("n", names, true)]).expect("a batch");
        let unnest = Unnest { list: 1 };
        assert_eq!(unnest.needs(&[0, 1]), [1, 0]);
        for input in [input.clone(), input.slice(1, 3)] {
            let made = unnest.make(&input, &[0, 1], 1 << 20).expect("rows");
            let rows: Vec<_> = texts(&made.columns[0]).into_iter().zip(texts(&made.columns[1])).collect();
            let first = if input.num_rows() == 4 { "a" } else { "b" };
            let expected = expected.iter().filter(|(name, _)| *name >= first);
            let pair = |(name, item): &(&str, &str)| ((*name).to_owned(), (*item).to_owned());
            assert_eq!(rows, expected.map(pair).collect::<Vec<_>>());
            let parent = |at: usize| ["a", "b", "c", "d"][4 - input.num_rows() + made.parents[at] as usize];
            assert!((0..rows.len()).all(|at| parent(at) == rows[at].0));
            assert!(
                (1..rows.len()).all(|at| (made.ordinals[at] == Some(0)) == (made.parents[at] != made.parents[at - 1]))
            );
        }
    }

    #[test]
    fn each_item_is_a_row_and_lists_without_items_have_none() {
        let lists = || [Some(vec![Some(1), None]), None, Some(vec![]), Some(vec![Some(2)])];
        let expected = [("a", "1"), ("a", ""), ("d", "2")];
        expect(Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists())), &expected);
        expect(Arc::new(LargeListArray::from_iter_primitive::<Int64Type, _, _>(lists())), &expected);
        let pairs = [Some(vec![Some(1), None]), None, Some(vec![Some(3), Some(4)]), None];
        expect(
            Arc::new(FixedSizeListArray::from_iter_primitive::<Int64Type, _, _>(pairs, 2)),
            &[("a", "1"), ("a", ""), ("c", "3"), ("c", "4")],
        );
    }

    #[test]
    fn what_lies_under_a_null_is_no_item() {
        let field = Arc::new(Field::new_list_field(DataType::Int64, true));
        let items = Arc::new(Int64Array::from_iter_values(0..8));
        let nulls = NullBuffer::from(vec![true, false, true, true]);
        let list = ListArray::new(field, OffsetBuffer::from_lengths([2, 3, 1, 2]), items, Some(nulls));
        expect(Arc::new(list), &[("a", "0"), ("a", "1"), ("c", "5"), ("d", "6"), ("d", "7")]);
    }

    #[test]
    fn a_window_is_not_made_larger_than_its_bound() {
        let wide: ArrayRef = Arc::new(StringArray::from_iter_values(["x".repeat(1 << 16)]));
        let list: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1); 100])]));
        let input = RecordBatch::try_from_iter([("l", list), ("n", wide)]).expect("a batch");
        let made = Unnest { list: 0 }.make(&input, &[0, 1], 1 << 20);
        assert_eq!(made.err().map(|error| error.kind()), Some(ErrorKind::Exhausted));
    }
}
