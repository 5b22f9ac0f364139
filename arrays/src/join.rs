//! Joins batches, if one batch can hold their rows.

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;

/// The most values or bytes that 32-bit offsets address.
const VALUES_MAX: u64 = i32::MAX as u64;

/// Joins the rows of batches with this schema.
///
/// # Errors
/// Batches with other columns, and those of [`JoinedSize::add`].
pub fn joined(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<RecordBatch, ArrowError> {
    let mut size = JoinedSize::default();
    batches.iter().try_for_each(|batch| size.add(batch))?;
    concat_batches(schema, batches)
}

/// The size of batches that will be joined, as far as 32-bit offsets bound it. Arrow panics if one batch cannot hold
/// their rows.
#[derive(Clone, Debug, Default)]
pub struct JoinedSize {
    /// The totals of each column, in the order of its type's parts.
    columns: Vec<Vec<u64>>,
}

impl JoinedSize {
    /// Adds a batch, which has the columns of the batches before it.
    ///
    /// # Errors
    /// Texts, bytes or lists of a column that 32-bit offsets do not address. The message names the column.
    pub fn add(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        self.columns.resize(batch.num_columns(), Vec::new());
        let fields = batch.schema();
        for ((totals, column), field) in self.columns.iter_mut().zip(batch.columns()).zip(fields.fields()) {
            add(column, totals, &mut 0);
            if let Some(values) = totals.iter().find(|values| **values > VALUES_MAX) {
                let message = format!(
                    "column \"{}\" has {values} values or bytes in one batch, over the limit of {VALUES_MAX}",
                    field.name()
                );
                return Err(ArrowError::InvalidArgumentError(message));
            }
        }
        Ok(())
    }
}

/// Adds the number of values of each array with 32-bit offsets inside a column to the totals, which are in the order of
/// the type's parts. `at` is the next of them.
fn add(column: &ArrayRef, totals: &mut Vec<u64>, at: &mut usize) {
    match column.data_type() {
        DataType::Utf8 => count(column.as_string::<i32>().value_offsets(), totals, at),
        DataType::Binary => count(column.as_binary::<i32>().value_offsets(), totals, at),
        DataType::List(_) => {
            let list = column.as_list::<i32>();
            count(list.value_offsets(), totals, at);
            add(&part(list.values(), list.value_offsets()), totals, at);
        }
        DataType::LargeList(_) => {
            let list = column.as_list::<i64>();
            add(&part(list.values(), list.value_offsets()), totals, at);
        }
        DataType::Map(..) => {
            let map = column.as_map();
            count(map.value_offsets(), totals, at);
            map.entries().columns().iter().for_each(|entries| add(&part(entries, map.value_offsets()), totals, at));
        }
        DataType::FixedSizeList(_, width) => {
            let list = column.as_fixed_size_list();
            let first = list.value_offset(0) as usize;
            add(&list.values().slice(first, list.len() * *width as usize), totals, at);
        }
        DataType::Struct(_) => column.as_struct().columns().iter().for_each(|child| add(child, totals, at)),
        _ => {}
    }
}

fn count(offsets: &[i32], totals: &mut Vec<u64>, at: &mut usize) {
    if totals.len() == *at {
        totals.push(0);
    }
    totals[*at] += (offsets[offsets.len() - 1] - offsets[0]) as u64;
    *at += 1;
}

fn part<O: OffsetSizeTrait>(values: &ArrayRef, offsets: &[O]) -> ArrayRef {
    let (first, last) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
    values.slice(first, last - first)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ListArray, StringArray, StructArray, UInt8Array};
    use arrow::buffer::{OffsetBuffer, ScalarBuffer};
    use arrow::datatypes::Field;

    use super::*;

    /// A batch of an image of this many bytes, within a struct after a text. The bytes' memory is never touched.
    fn image(bytes: usize) -> RecordBatch {
        let values: ArrayRef = Arc::new(UInt8Array::new(ScalarBuffer::from(vec![0_u8; bytes]), None));
        let item = Arc::new(Field::new("item", DataType::UInt8, false));
        let list: ArrayRef = Arc::new(ListArray::new(item, OffsetBuffer::from_lengths([bytes]), values, None));
        let data = Arc::new(Field::new("data", list.data_type().clone(), false));
        let rows: ArrayRef = Arc::new(StructArray::from(vec![(data, list)]));
        let text: ArrayRef = Arc::new(StringArray::from(vec!["text"]));
        RecordBatch::try_from_iter([("text", text), ("image", rows)]).unwrap()
    }

    #[test]
    fn rows_that_one_batch_cannot_hold_are_an_error() {
        let large = image(1 << 30);
        let rows = [large.clone(), large.slice(0, 0), large];
        let expect = "Invalid argument error: column \"image\" has 2147483648 values or bytes in one batch, over the \
                      limit of 2147483647";
        assert_eq!(joined(&rows[0].schema(), &rows).unwrap_err().to_string(), expect);
        let mut size = JoinedSize::default();
        assert!(rows[..2].iter().all(|batch| size.add(batch).is_ok()));
        assert_eq!(size.add(&rows[2]).unwrap_err().to_string(), expect);
        assert_eq!(joined(&rows[0].schema(), &[image(2), image(3)]).unwrap().num_rows(), 2);
    }
}
