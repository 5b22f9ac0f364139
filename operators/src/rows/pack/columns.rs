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
    /// The tokens of a document as int32. A null is an empty document; a null token is an error.
    Document,
    /// The labels of a document that has its own, as many as its tokens.
    DocumentLabels,
    /// The tokens with padding.
    InputIds,
    /// The labels, except the first of each document and the padding. Computed from labels, or tokens, and bounds.
    Labels,
    /// Each token's index in its document. Computed from bounds.
    PositionIds,
    /// The number of tokens. Computed from bounds.
    Tokens,
    /// Each token's document, from 1; 0 for padding. Computed from bounds.
    SegmentIds,
    /// The number of tokens of the longest document. Computed from bounds.
    MaxSeqLen,
}

/// The fields of a document that has its own labels.
pub(super) const DOCUMENT_FIELDS: [&str; 2] = ["input_ids", "labels"];

impl PackedColumn {
    /// Returns the column's name in a query.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Document => "document",
            Self::DocumentLabels => "document_labels",
            Self::InputIds => "input_ids",
            Self::Labels => "labels",
            Self::PositionIds => "position_ids",
            Self::Tokens => "tokens",
            Self::SegmentIds => "segment_ids",
            Self::MaxSeqLen => "max_seq_len",
        }
    }

    /// Returns the column's type in a query.
    pub(super) fn field(self, pack: &Pack) -> FieldRef {
        match self {
            Self::Document | Self::DocumentLabels => list_field(self.name()),
            Self::Tokens | Self::MaxSeqLen => Arc::new(Field::new(self.name(), DataType::Int32, false)),
            Self::InputIds | Self::Labels | Self::PositionIds | Self::SegmentIds => {
                let sequence = FixedShapeTensor::new(self.value_type(pack), vec![pack.length]);
                Arc::new(sequence.field(self.name(), false).expect("LENGTH_MAX fits into a list"))
            }
        }
    }

    /// Returns the type of a sequence's values.
    fn value_type(self, pack: &Pack) -> DataType {
        if pack.wide && self != Self::SegmentIds { DataType::Int64 } else { DataType::Int32 }
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
        match self {
            Self::Document => return document(first, DOCUMENT_FIELDS[0]),
            Self::DocumentLabels => return document(first, DOCUMENT_FIELDS[1]),
            _ => {}
        }
        let lists = Lists::of(first);
        let numbers = |number: &dyn Fn(&[i32]) -> Option<i32>| -> Result<ArrayRef> {
            let numbers = (0..first.len()).map(|row| number(lists.row(row)).unwrap_or(0));
            Ok(Arc::new(Int32Array::from_iter_values(numbers)))
        };
        match self {
            Self::Tokens => return numbers(&|bounds| bounds.last().copied()),
            Self::MaxSeqLen => return numbers(&|bounds| bounds.windows(2).map(|run| run[1] - run[0]).max()),
            _ => {}
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
        let values: ArrayRef = Arc::new(Int32Array::new(values, None));
        let value = self.value_type(pack);
        let values = if value == DataType::Int32 { values } else { cast(&values, &value)? };
        Ok(Arc::new(FixedSizeListArray::try_new_with_length(
            item(value),
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
                Self::SegmentIds => {
                    for (run, segment) in lists.row(row).windows(2).zip(1..) {
                        values.extend(std::iter::repeat_n(segment, (run[1] - run[0]) as usize));
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

/// Returns the tokens of documents, or the `field` of documents that are structs. An error fails all rows; the engine
/// finds the bad one.
fn document(documents: &ArrayRef, field: &str) -> Result<ArrayRef> {
    let Some(rows) = documents.as_struct_opt() else { return tokens(documents) };
    let lists = DOCUMENT_FIELDS.map(|name| {
        let Some(list) = rows.column_by_name(name) else { return internal_err!("pack: a document without {name}") };
        // A document that is null has no tokens, whatever its fields hold.
        let list = match rows.nulls() {
            Some(nulls) => arrow::compute::nullif(list, &arrow::array::BooleanArray::new(!nulls.inner(), None))?,
            None => Arc::clone(list),
        };
        tokens(&list)
    });
    let [ids, labels] = lists;
    let (ids, labels) = (ids?, labels?);
    let lengths = |list: &ArrayRef| list.as_list::<i32>().offsets().lengths().collect::<Vec<_>>();
    if let Some((ids, labels)) = lengths(&ids).into_iter().zip(lengths(&labels)).find(|(ids, labels)| ids != labels) {
        return exec_err!("pack: a document has {ids} tokens and {labels} labels, which must be as many");
    }
    Ok(if field == DOCUMENT_FIELDS[0] { ids } else { labels })
}

/// Converts lists of any integers to lists of int32.
fn tokens(lists: &ArrayRef) -> Result<ArrayRef> {
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
    use arrow::array::{Int64Array, LargeListArray, StructArray};
    use arrow::buffer::{NullBuffer, OffsetBuffer};
    use arrow::datatypes::Int64Type;

    use super::super::layout::{PackLayout, PackStrategy};
    use super::*;

    #[test]
    fn columns_restart_with_each_document_and_ignore_padding() {
        let pack = Pack {
            length: 6,
            strategy: PackStrategy::Concat,
            separator: Some(9),
            pad_id: -1,
            ignore_index: -100,
            wide: false,
        };
        let documents: [&[i32]; 3] = [&[1, 2, 3], &[4], &[5, 6, 7, 8, 10, 11, 12]];
        let layout = PackLayout::new(&pack, documents.iter().map(|document| document.len()));
        let all = 0..layout.len();
        let (tokens, bounds) = (layout.tokens(&pack, |at| documents[at], all.clone()), layout.bounds(all));
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
            expect(
                column(PackedColumn::SegmentIds, &[&bounds]),
                [[1, 1, 1, 1, 2, 2], [1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0]],
            );
            let longest = column(PackedColumn::MaxSeqLen, &[&bounds]);
            assert_eq!(longest.as_primitive::<Int32Type>().values()[..], [4, 6, 2][taken.clone()]);
            let wide = Pack { wide: true, ..pack };
            let labels = PackedColumn::Labels.compute(&wide, &[Arc::clone(&tokens), Arc::clone(&bounds)]).unwrap();
            assert_eq!(labels.data_type(), PackedColumn::Labels.field(&wide).data_type());
            let labels = labels.as_fixed_size_list().values().as_primitive::<Int64Type>().values().to_vec();
            let expected = [[-100, 2, 3, 9, -100, 9], [-100, 6, 7, 8, 10, 11], [-100, 9, -100, -100, -100, -100]];
            assert_eq!(labels, expected[taken.clone()].concat());
            let used = column(PackedColumn::Tokens, &[&bounds]);
            assert_eq!(used.as_primitive::<Int32Type>().values()[..], [6, 6, 2][taken.clone()]);
        }
    }

    #[test]
    fn documents_may_have_labels_of_their_own() {
        let lists = |rows: Vec<Vec<i64>>| {
            let rows = rows.into_iter().map(|row| Some(row.into_iter().map(Some).collect::<Vec<_>>()));
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(rows)) as ArrayRef
        };
        let documents = |ids: Vec<Vec<i64>>, labels: Vec<Vec<i64>>, valid: Vec<bool>| {
            let columns = vec![lists(ids), lists(labels)];
            let fields = DOCUMENT_FIELDS.iter().zip(&columns);
            let fields: Vec<_> = fields.map(|(name, list)| Field::new(*name, list.data_type().clone(), true)).collect();
            Arc::new(StructArray::new(fields.into(), columns, Some(NullBuffer::from(valid)))) as ArrayRef
        };
        let rows = |made: ArrayRef| {
            let lists = Lists::of(&made);
            (0..made.len()).map(|row| lists.row(row).to_vec()).collect::<Vec<_>>()
        };
        let both = documents(
            vec![vec![1, 2, 3], vec![7], vec![], vec![4]],
            vec![vec![-100, 2, 3], vec![7, 8, 9], vec![], vec![4]],
            vec![true, false, true, true],
        );
        assert_eq!(rows(document(&both, "input_ids").unwrap()), [vec![1, 2, 3], vec![], vec![], vec![4]]);
        assert_eq!(rows(document(&both, "labels").unwrap()), [vec![-100, 2, 3], vec![], vec![], vec![4]]);
        let uneven = documents(vec![vec![1, 2]], vec![vec![1]], vec![true]);
        let error = document(&uneven, "input_ids").unwrap_err().strip_backtrace();
        assert!(error.ends_with("pack: a document has 2 tokens and 1 labels, which must be as many"), "{error}");
    }

    #[test]
    fn documents_are_lists_of_any_integers() {
        let expect = |lists: ArrayRef, expected: &[Vec<i32>]| {
            let made = tokens(&lists).unwrap();
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
            assert!(tokens(&lists).is_err());
        }
    }
}
