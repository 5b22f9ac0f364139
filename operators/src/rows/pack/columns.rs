//! The columns of packed sequences that a trainer receives: functions of one row, computed for the requested rows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, Int32Array, ListArray};
use arrow::buffer::ScalarBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Int32Type};
use datafusion::common::{Result, exec_err, internal_err};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use forebay_arrays::{FixedShapeTensor, item};

use super::layout::{Pack, list_field};

/// A function of a packed sequence, or of a document before it is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PackedColumn {
    /// The tokens of a document's list as int32. A null is an empty document; a null token is an error.
    Document,
    /// The tokens with padding.
    InputIds,
    /// The tokens, except the first of each document and the padding. Computed from tokens and bounds.
    Labels,
    /// Each token's index in its document. Computed from bounds.
    PositionIds,
    /// The number of tokens. Computed from bounds.
    Tokens,
}

impl PackedColumn {
    /// Returns the column's name in a query.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Document => "document",
            Self::InputIds => "input_ids",
            Self::Labels => "labels",
            Self::PositionIds => "position_ids",
            Self::Tokens => "tokens",
        }
    }

    /// Returns the column's type in a query.
    pub(super) fn field(self, pack: &Pack) -> FieldRef {
        match self {
            Self::Document => list_field(self.name()),
            Self::Tokens => Arc::new(Field::new(self.name(), DataType::Int32, false)),
            Self::InputIds | Self::Labels | Self::PositionIds => {
                let sequence = FixedShapeTensor::new(DataType::Int32, vec![pack.length]);
                Arc::new(sequence.field(self.name(), false).expect("LENGTH_MAX fits into a list"))
            }
        }
    }

    /// Returns the column as a function.
    pub(super) fn function(self, pack: &Pack) -> ScalarUDF {
        let arguments = if self == Self::Labels { 2 } else { 1 };
        ScalarUDF::from(PackFunction {
            name: format!("pack_{}", self.name()),
            column: self,
            pack: *pack,
            signature: Signature::any(arguments, Volatility::Immutable),
        })
    }

    fn compute(self, pack: &Pack, arrays: &[ArrayRef]) -> Result<ArrayRef> {
        let Some(first) = arrays.first() else { return internal_err!("a column of packed rows has no argument") };
        if self == Self::Document {
            return document(first);
        }
        let lists = Lists::of(first);
        if self == Self::Tokens {
            let used = (0..first.len()).map(|row| lists.row(row).last().copied().unwrap_or(0));
            return Ok(Arc::new(Int32Array::from_iter_values(used)));
        }
        let fill = match self {
            Self::InputIds => pack.pad_id,
            Self::Labels => pack.ignore_index,
            _ => 0,
        };
        let values = match lists.all() {
            // No sequence needs padding, so the tokens are already laid out as wanted.
            all if self == Self::InputIds && all.len() == first.len() * pack.length => all,
            _ => ScalarBuffer::from(self.values(pack, arrays, fill)),
        };
        let values = Arc::new(Int32Array::new(values, None));
        Ok(Arc::new(FixedSizeListArray::try_new_with_length(
            item(DataType::Int32),
            pack.length as i32,
            values,
            None,
            first.len(),
        )?))
    }

    /// Returns the values of whole sequences.
    fn values(self, pack: &Pack, arrays: &[ArrayRef], fill: i32) -> Vec<i32> {
        let (rows, lists) = (arrays[0].len(), Lists::of(&arrays[0]));
        let mut values = Vec::with_capacity(rows * pack.length);
        for row in 0..rows {
            let end = (row + 1) * pack.length;
            match self {
                Self::PositionIds => {
                    for run in lists.row(row).windows(2) {
                        values.extend(0..run[1] - run[0]);
                    }
                }
                _ => values.extend_from_slice(lists.row(row)),
            }
            values.resize(end, fill);
            if self == Self::Labels {
                let bounds = Lists::of(&arrays[1]);
                for &start in bounds.row(row) {
                    // The last bound is the end of the tokens, which may be the end of the sequence.
                    if let Some(label) = values[end - pack.length..].get_mut(start as usize) {
                        *label = pack.ignore_index;
                    }
                }
            }
        }
        values
    }
}

/// The rows of a column of lists of int32 without nulls.
struct Lists<'a> {
    offsets: &'a [i32],
    values: &'a ScalarBuffer<i32>,
}

impl<'a> Lists<'a> {
    fn of(array: &'a ArrayRef) -> Self {
        let list = array.as_list::<i32>();
        Self { offsets: list.value_offsets(), values: list.values().as_primitive::<Int32Type>().values() }
    }

    /// Returns the values of all rows, concatenated.
    fn all(&self) -> ScalarBuffer<i32> {
        let (first, last) = (self.offsets[0] as usize, self.offsets[self.offsets.len() - 1] as usize);
        self.values.slice(first, last - first)
    }

    fn row(&self, row: usize) -> &'a [i32] {
        &self.values[self.offsets[row] as usize..self.offsets[row + 1] as usize]
    }
}

/// Converts lists of any integers to lists of int32. An error fails all rows; the engine finds the bad one.
fn document(lists: &ArrayRef) -> Result<ArrayRef> {
    let as_list = DataType::List(Arc::new(Field::new_list_field(DataType::Int64, true)));
    let lists = match lists.data_type() {
        DataType::List(_) => Arc::clone(lists),
        _ => cast(lists, &as_list)?,
    };
    let list = lists.as_list::<i32>();
    // Use only values in lists. Values at null positions are not tokens.
    let mut lengths = Vec::with_capacity(list.len());
    let mut runs = Vec::new();
    for row in 0..list.len() {
        let (start, end) = (list.value_offsets()[row] as usize, list.value_offsets()[row + 1] as usize);
        let len = if list.is_null(row) { 0 } else { end - start };
        lengths.push(len);
        runs.push(start..start + len);
    }
    let mut tokens: Vec<i32> = Vec::with_capacity(lengths.iter().sum());
    for run in runs {
        let items = list.values().slice(run.start, run.len());
        if items.null_count() > 0 {
            return exec_err!("pack: a list of tokens holds a null");
        }
        match items.data_type() {
            DataType::Int32 => tokens.extend_from_slice(items.as_primitive::<Int32Type>().values()),
            data_type if data_type.is_integer() => {
                let narrow = cast(&items, &DataType::Int32)?;
                if narrow.null_count() > 0 {
                    return exec_err!("pack: a token is no 32-bit integer");
                }
                tokens.extend_from_slice(narrow.as_primitive::<Int32Type>().values());
            }
            other => return internal_err!("pack: a list of {other} was not refused"),
        }
    }
    let offsets = arrow::buffer::OffsetBuffer::from_lengths(lengths);
    Ok(Arc::new(ListArray::try_new(item(DataType::Int32), offsets, Arc::new(Int32Array::from(tokens)), None)?))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct PackFunction {
    name: String,
    column: PackedColumn,
    pack: Pack,
    signature: Signature,
}

impl ScalarUDFImpl for PackFunction {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.column.field(&self.pack).data_type().clone())
    }

    fn return_field_from_args(&self, _: ReturnFieldArgs) -> Result<FieldRef> {
        Ok(self.column.field(&self.pack))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        Ok(ColumnarValue::Array(self.column.compute(&self.pack, &arrays)?))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, LargeListArray};
    use arrow::buffer::{NullBuffer, OffsetBuffer};
    use arrow::datatypes::Int64Type;

    use super::super::layout::{PackLayout, PackStrategy};
    use super::*;

    #[test]
    fn columns_restart_with_each_document_and_ignore_padding() {
        let pack =
            Pack { length: 6, strategy: PackStrategy::Concat, separator: Some(9), pad_id: -1, ignore_index: -100 };
        let documents: [&[i32]; 3] = [&[1, 2, 3], &[4], &[5, 6, 7, 8, 10, 11, 12]];
        let layout = PackLayout::new(&pack, documents.iter().map(|document| document.len()));
        let all = 0..layout.len();
        let (tokens, bounds) = (layout.tokens(&pack, &documents, all.clone()), layout.bounds(all));
        for taken in [0..3, 0..2, 1..2, 1..3, 2..3] {
            let slice = |array: &ArrayRef| array.slice(taken.start, taken.len());
            let (tokens, bounds) = (slice(&tokens), slice(&bounds));
            let column = |column: PackedColumn, arrays: &[&ArrayRef]| {
                let arrays: Vec<ArrayRef> = arrays.iter().map(|array| Arc::clone(array)).collect();
                let made = column.compute(&pack, &arrays).unwrap();
                assert_eq!(made.data_type(), column.field(&pack).data_type());
                made
            };
            let rows =
                |array: ArrayRef| array.as_fixed_size_list().values().as_primitive::<Int32Type>().values().to_vec();
            let expect =
                |array: ArrayRef, expected: [[i32; 6]; 3]| assert_eq!(rows(array), expected[taken.clone()].concat());
            expect(
                column(PackedColumn::InputIds, &[&tokens]),
                [[1, 2, 3, 9, 4, 9], [5, 6, 7, 8, 10, 11], [12, 9, -1, -1, -1, -1]],
            );
            expect(
                column(PackedColumn::Labels, &[&tokens, &bounds]),
                [[-100, 2, 3, 9, -100, 9], [-100, 6, 7, 8, 10, 11], [-100, 9, -100, -100, -100, -100]],
            );
            expect(
                column(PackedColumn::PositionIds, &[&bounds]),
                [[0, 1, 2, 3, 0, 1], [0, 1, 2, 3, 4, 5], [0, 1, 0, 0, 0, 0]],
            );
            let used = column(PackedColumn::Tokens, &[&bounds]);
            assert_eq!(used.as_primitive::<Int32Type>().values()[..], [6, 6, 2][taken.clone()]);
        }
    }

    #[test]
    fn documents_are_lists_of_any_integers() {
        let expect = |lists: ArrayRef, expected: &[Vec<i32>]| {
            let made = document(&lists).unwrap();
            assert_eq!(made.data_type(), list_field("").data_type());
            let lists = Lists::of(&made);
            assert_eq!((0..made.len()).map(|row| lists.row(row).to_vec()).collect::<Vec<_>>(), expected);
        };
        let rows = [Some(vec![Some(1), Some(-2)]), None, Some(vec![]), Some(vec![Some(3)])];
        let large: ArrayRef = Arc::new(LargeListArray::from_iter_primitive::<Int64Type, _, _>(rows));
        expect(Arc::clone(&large), &[vec![1, -2], vec![], vec![], vec![3]]);
        expect(large.slice(1, 3), &[vec![], vec![], vec![3]]);
        let field = Arc::new(Field::new_list_field(DataType::Int64, true));
        let hidden = ListArray::new(
            field,
            OffsetBuffer::from_lengths([2, 2]),
            Arc::new(Int64Array::from(vec![Some(1), Some(2), None, Some(i64::MAX)])),
            Some(NullBuffer::from(vec![true, false])),
        );
        expect(Arc::new(hidden), &[vec![1, 2], vec![]]);
        for bad in [vec![None], vec![Some(1 << 40)]] {
            let lists: ArrayRef = Arc::new(LargeListArray::from_iter_primitive::<Int64Type, _, _>([Some(bad)]));
            assert!(document(&lists).is_err());
        }
    }
}
