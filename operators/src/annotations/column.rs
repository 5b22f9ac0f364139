//! Columns of boxes and of points: lists of four, or of two or three, float32.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, Float32Array, ListArray};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, FieldRef, Float32Type};
use datafusion::common::{Result, internal_err};

use crate::text::offset;

/// The rows of a column of lists of `width` numbers.
pub(super) struct Groups<'a> {
    list: &'a ListArray,
    items: &'a FixedSizeListArray,
    numbers: &'a Float32Array,
    width: usize,
}

impl<'a> Groups<'a> {
    pub(super) fn try_new(array: &'a dyn Array) -> Result<Self> {
        let wrong = || internal_err!("{} is no list of boxes or points", array.data_type());
        let Some(list) = array.as_list_opt::<i32>() else { return wrong() };
        let Some(items) = list.values().as_fixed_size_list_opt() else { return wrong() };
        let Some(numbers) = items.values().as_primitive_opt::<Float32Type>() else { return wrong() };
        Ok(Self { list, items, numbers, width: items.value_length() as usize })
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn nulls(&self) -> Option<&NullBuffer> {
        self.list.nulls()
    }

    /// The numbers in all rows.
    pub(super) fn values(&self) -> usize {
        let offsets = self.list.value_offsets();
        (offsets[self.len()] - offsets[0]) as usize * self.width
    }

    /// The groups of a row. A group that is null or has a null in it is `None`.
    pub(super) fn row(&self, row: usize) -> impl Iterator<Item = Option<&'a [f32]>> {
        let (items, numbers, width) = (self.items, self.numbers, self.width);
        let offsets = self.list.value_offsets();
        (offsets[row] as usize..offsets[row + 1] as usize).map(move |at| {
            let start = items.value_offset(at) as usize;
            let is_null =
                items.is_null(at) || (numbers.null_count() > 0 && (start..start + width).any(|at| numbers.is_null(at)));
            (!is_null).then(|| &numbers.values()[start..start + width])
        })
    }
}

/// Builds a column of groups.
pub(super) struct GroupsBuilder {
    operator: &'static str,
    width: usize,
    numbers: Vec<f32>,
    ends: Vec<i32>,
}

impl GroupsBuilder {
    pub(super) fn new(operator: &'static str, width: usize, rows: usize, values: usize) -> Self {
        let mut ends = Vec::with_capacity(rows + 1);
        ends.push(0);
        Self { operator, width, numbers: Vec::with_capacity(values), ends }
    }

    pub(super) fn push(&mut self, group: &[f32]) {
        debug_assert_eq!(group.len(), self.width);
        self.numbers.extend_from_slice(group);
    }

    pub(super) fn end_row(&mut self) -> Result<()> {
        self.ends.push(offset(self.operator, self.numbers.len() / self.width)?);
        Ok(())
    }

    pub(super) fn finish(self, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        let item = |data_type: DataType| -> FieldRef { Arc::new(Field::new_list_field(data_type, true)) };
        let numbers = Arc::new(Float32Array::from(self.numbers));
        let groups = FixedSizeListArray::try_new(item(DataType::Float32), self.width as i32, numbers, None)?;
        let list = item(groups.data_type().clone());
        Ok(Arc::new(ListArray::try_new(list, OffsetBuffer::new(self.ends.into()), Arc::new(groups), nulls)?))
    }
}
