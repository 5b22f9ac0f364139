//! Token ids with their labels: what `mask_tokens` and `corrupt_spans` return.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, Int64Builder, ListArray, StructArray};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Fields, Int64Type};
use datafusion::common::Result;

use super::offset;

/// The label of a token that no loss counts, as in PyTorch.
pub(super) const IGNORED: i64 = -100;

/// The rows of a column of lists of integers.
pub(super) struct Tokens {
    list: ListArray,
    ids: Int64Array,
}

impl Tokens {
    pub(super) fn try_new(array: &ArrayRef) -> Result<Self> {
        let list = cast(array, &list_type())?.as_list::<i32>().clone();
        let ids = list.values().as_primitive::<Int64Type>().clone();
        Ok(Self { list, ids })
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// The number of tokens of all rows.
    pub(super) fn count(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn is_valid(&self, row: usize) -> bool {
        self.list.is_valid(row)
    }

    pub(super) fn nulls(&self) -> Option<&NullBuffer> {
        self.list.nulls()
    }

    /// The number of tokens of a row.
    pub(super) fn length(&self, row: usize) -> usize {
        self.list.value_length(row) as usize
    }

    /// A token of a row.
    pub(super) fn get(&self, row: usize, at: usize) -> Option<i64> {
        let at = self.list.value_offsets()[row] as usize + at;
        self.ids.is_valid(at).then(|| self.ids.value(at))
    }

    pub(super) fn row(&self, row: usize) -> impl Iterator<Item = Option<i64>> {
        (0..self.length(row)).map(move |at| self.get(row, at))
    }
}

/// Builds the result: a struct of two lists.
pub(super) struct TokenPairs {
    operator: &'static str,
    input_ids: Int64Builder,
    labels: Int64Builder,
    input_ends: Vec<i32>,
    label_ends: Vec<i32>,
}

impl TokenPairs {
    pub(super) fn new(operator: &'static str, expected: usize) -> Self {
        let ids = || Int64Builder::with_capacity(expected);
        Self { operator, input_ids: ids(), labels: ids(), input_ends: vec![0], label_ends: vec![0] }
    }

    pub(super) fn input(&mut self, id: Option<i64>) {
        self.input_ids.append_option(id);
    }

    pub(super) fn label(&mut self, id: Option<i64>) {
        self.labels.append_option(id);
    }

    pub(super) fn end_row(&mut self) -> Result<()> {
        use arrow::array::ArrayBuilder as _;
        self.input_ends.push(offset(self.operator, self.input_ids.len())?);
        self.label_ends.push(offset(self.operator, self.labels.len())?);
        Ok(())
    }

    pub(super) fn finish(mut self, nulls: Option<&NullBuffer>) -> Result<StructArray> {
        let list = |ends: Vec<i32>, ids: Int64Array| -> Result<ArrayRef> {
            let item = Arc::new(Field::new_list_field(DataType::Int64, true));
            Ok(Arc::new(ListArray::try_new(item, OffsetBuffer::new(ends.into()), Arc::new(ids), None)?))
        };
        let columns =
            vec![list(self.input_ends, self.input_ids.finish())?, list(self.label_ends, self.labels.finish())?];
        Ok(StructArray::try_new(fields(), columns, nulls.cloned())?)
    }
}

/// The field of a result.
pub(super) fn field(name: &str, nullable: bool) -> Field {
    Field::new(name, DataType::Struct(fields()), nullable)
}

fn fields() -> Fields {
    Fields::from(["input_ids", "labels"].map(|name| Field::new(name, list_type(), true)).to_vec())
}

fn list_type() -> DataType {
    DataType::new_list(DataType::Int64, true)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::testing::{Column, column};

    /// Makes a column of lists.
    pub(in super::super) fn rows(name: &str, lists: &[Vec<i64>]) -> Column {
        let lists = lists.iter().map(|list| Some(list.iter().map(|id| Some(*id))));
        column(name, ListArray::from_iter_primitive::<Int64Type, _, _>(lists))
    }

    /// Returns the two lists of each row.
    pub(in super::super) fn pairs_of((_, array): &Column) -> Vec<(Vec<i64>, Vec<i64>)> {
        let list = |column: usize, row: usize| {
            let list = array.as_struct().column(column).as_list::<i32>().value(row);
            list.as_primitive::<Int64Type>().values().to_vec()
        };
        (0..array.len()).map(|row| (list(0, row), list(1, row))).collect()
    }
}
