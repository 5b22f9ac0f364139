//! `chunk`: splits a long list into a list of short ones.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, GenericListArray, ListArray, OffsetSizeTrait, UInt64Array};
use arrow::buffer::OffsetBuffer;
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, internal_err};

use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};
use crate::text::offset;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "chunk",
    version: 1,
    category: "list",
    summary: "Splits lists into pieces of one length, which may overlap",
    parameters: &[
        Parameter::input("list", TypeClass::NumberList, "The lists, such as token ids"),
        Parameter::constant("size", ConstantKind::PositiveInteger, "The number of values in a piece"),
        Parameter::constant(
            "overlap",
            ConstantKind::Integer,
            "The number of values that a piece repeats from the previous one",
        )
        .or("0"),
        Parameter::constant("drop_last", ConstantKind::Boolean, "Whether to drop a last piece that is shorter")
            .or("false"),
    ],
    returns: "a list of lists of the values' type",
    docs: "A piece begins every size - overlap values, until one reaches the end. overlap must be from 0 to size - 1. \
           An empty list has no pieces. A row stays one row, with its pieces in a list. Null values stay null. Null \
           in, null out.",
    source: "the sliding windows of Hugging Face's `stride`, without special tokens",
    examples: &[
        Example { sql: "chunk([1, 2, 3, 4, 5], size => 2)", result: "[[1, 2], [3, 4], [5]]" },
        Example { sql: "chunk([1, 2, 3, 4, 5], size => 3, overlap => 1)", result: "[[1, 2, 3], [3, 4, 5]]" },
    ],
    ..Descriptor::BASE
};

/// The operator `chunk`.
#[derive(Debug)]
pub(crate) struct ChunkList;

impl Operator for ChunkList {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        Splitter::read(arguments)?;
        let field = arguments.field("list")?;
        let (DataType::List(item) | DataType::LargeList(item)) = field.data_type() else {
            return internal_err!("chunk got {}, which its type class refuses", field.data_type());
        };
        let pieces = DataType::new_list(DataType::List(Arc::clone(item)), true);
        Ok(Field::new("pieces", pieces, field.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let splitter = Splitter::read(arguments)?;
        let array = arguments.array("list")?;
        match array.data_type() {
            DataType::List(item) => splitter.all(array.as_list::<i32>(), item),
            DataType::LargeList(item) => splitter.all(array.as_list::<i64>(), item),
            other => internal_err!("chunk got {other}, which its type class refuses"),
        }
    }
}

/// The lengths into which a row is split, for lists and for texts.
pub(crate) struct Splitter {
    size: usize,
    step: usize,
    drop_last: bool,
}

impl Splitter {
    pub(crate) fn read(arguments: &Arguments) -> Result<Self> {
        let (size, overlap) = (arguments.positive("size")?, arguments.integer("overlap")?);
        if !(0..size as i64).contains(&overlap) {
            return arguments.refuse("overlap", format_args!("must be from 0 to {}, got {overlap}", size - 1));
        }
        Ok(Self { size, step: size - overlap as usize, drop_last: arguments.flag("drop_last")? })
    }

    /// Returns the start and end of each piece of a row of this length.
    pub(crate) fn pieces(&self, length: usize) -> impl Iterator<Item = (usize, usize)> {
        // The last piece is the first one that reaches the end.
        let count = if length == 0 { 0 } else { length.saturating_sub(self.size).div_ceil(self.step) + 1 };
        let all = (0..count).map(move |i| (i * self.step, (i * self.step + self.size).min(length)));
        all.filter(|(first, last)| !self.drop_last || last - first == self.size)
    }

    fn all<O: OffsetSizeTrait>(&self, list: &GenericListArray<O>, item: &FieldRef) -> Result<ArrayRef> {
        let (mut rows, mut pieces, mut indices) = (vec![0], vec![0], Vec::new());
        for row in 0..list.len() {
            let length = if list.is_null(row) { 0 } else { list.value_length(row).as_usize() };
            let start = list.value_offsets()[row].as_usize();
            for (first, last) in self.pieces(length) {
                indices.extend((start + first..start + last).map(|at| at as u64));
                pieces.push(offset(DESCRIPTOR.name, indices.len())?);
            }
            rows.push(offset(DESCRIPTOR.name, pieces.len() - 1)?);
        }
        let values = take(list.values(), &UInt64Array::from(indices), None)?;
        let pieces = ListArray::try_new(Arc::clone(item), OffsetBuffer::new(pieces.into()), values, None)?;
        let outer = Arc::new(Field::new_list_field(pieces.data_type().clone(), true));
        let rows = OffsetBuffer::new(rows.into());
        Ok(Arc::new(ListArray::try_new(outer, rows, Arc::new(pieces), list.nulls().cloned())?))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{LargeListArray, ListArray};
    use arrow::datatypes::Int32Type;
    use arrow::util::display::array_value_to_string;

    use super::*;
    use crate::testing::{Column, column, sql};

    fn check(arguments: &str, column: Column, expect: &[&str]) {
        let (_, got) = sql(&format!("chunk(x, {arguments})"), vec![column]).unwrap();
        let text = |row| if got.is_null(row) { "NULL".to_owned() } else { array_value_to_string(&got, row).unwrap() };
        assert_eq!((0..got.len()).map(text).collect::<Vec<_>>(), expect, "{arguments}");
    }

    fn lists() -> ListArray {
        let lists = [Some(vec![9; 9]), Some((1..6).collect()), Some(vec![]), None, Some(vec![7]), Some(vec![1, 2])];
        let lists = lists.map(|list| list.map(|list| list.into_iter().map(Some).collect::<Vec<Option<i32>>>()));
        ListArray::from_iter_primitive::<Int32Type, _, _>(lists).slice(1, 5)
    }

    #[test]
    fn pieces_cover_a_list_and_overlap() {
        let x = || column("x", lists());
        check("2", x(), &["[[1, 2], [3, 4], [5]]", "[]", "NULL", "[[7]]", "[[1, 2]]"]);
        check("3, 1", x(), &["[[1, 2, 3], [3, 4, 5]]", "[]", "NULL", "[[7]]", "[[1, 2]]"]);
        check("3, 2", x(), &["[[1, 2, 3], [2, 3, 4], [3, 4, 5]]", "[]", "NULL", "[[7]]", "[[1, 2]]"]);
        check("2, 0, true", x(), &["[[1, 2], [3, 4]]", "[]", "NULL", "[]", "[[1, 2]]"]);
        check("5", x(), &["[[1, 2, 3, 4, 5]]", "[]", "NULL", "[[7]]", "[[1, 2]]"]);
        let nulls = LargeListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1), None, Some(3)])]);
        check("2", column("x", nulls), &["[[1, ], [3]]"]);
    }

    #[test]
    fn an_overlap_leaves_something_new() {
        let check = |arguments: &str, expect: &str| {
            let got = sql(&format!("chunk(x, {arguments})"), vec![column("x", lists())]).unwrap_err();
            assert_eq!(got, expect);
        };
        check("3, 3", "chunk: \"overlap\" must be from 0 to 2, got 3");
        check("3, -1", "chunk: \"overlap\" must be from 0 to 2, got -1");
    }
}
