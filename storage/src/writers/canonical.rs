//! One layout for each array of values, for formats that store arrays as they lie in memory.
//!
//! What an array holds under a null, and in the bits after its last value, is arbitrary, and depends on how it was
//! computed. In the canonical layout these bits and bytes are zero, lists and texts under a null are empty, and an
//! array without nulls has no null buffer.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, GenericByteArray, GenericListArray,
    MapArray, OffsetSizeTrait, RecordBatch, RecordBatchOptions, StructArray, make_array,
};
use arrow::buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::filter;
use arrow::datatypes::{ArrowNativeType, ByteArrayType, DataType};
use arrow::error::ArrowError;

use crate::{Error, Result};

/// Rows with plain types in the canonical layout.
pub(super) fn canonical_rows(rows: &RecordBatch) -> Result<RecordBatch> {
    let columns = rows.columns().iter().map(|column| canonical(column, None)).collect::<Result<_, _>>();
    let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    columns
        .and_then(|columns| RecordBatch::try_new_with_options(rows.schema(), columns, &options))
        .map_err(|error| Error::internal(format!("rows have no canonical layout: {error}")).with_source(error))
}

/// The array in the canonical layout. Of values that are not `kept`, nothing is: they lie under a null.
fn canonical(array: &ArrayRef, kept: Option<&BooleanBuffer>) -> Result<ArrayRef, ArrowError> {
    let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
    let len = array.len();
    // The rows with a value, if not all have one.
    let values = match (nulls, kept) {
        (None, None) => None,
        (Some(nulls), None) => Some(bits(len, |row| nulls.is_valid(row))),
        (None, Some(kept)) => Some(kept.clone()),
        (Some(nulls), Some(kept)) => Some(bits(len, |row| kept.value(row) && nulls.is_valid(row))),
    };
    let nulls = nulls.map(|nulls| bits(len, |row| nulls.is_valid(row) || kept.is_some_and(|kept| !kept.value(row))));
    let nulls = nulls.map(NullBuffer::new).filter(|nulls| nulls.null_count() > 0);
    let values = values.as_ref();
    Ok(match array.data_type() {
        DataType::Boolean => {
            let own = array.as_boolean().values();
            let bit = |row| own.value(row) && values.is_none_or(|values| values.value(row));
            Arc::new(BooleanArray::new(bits(len, bit), nulls))
        }
        DataType::Utf8 => bytes(array.as_string::<i32>(), values, nulls)?,
        DataType::LargeUtf8 => bytes(array.as_string::<i64>(), values, nulls)?,
        DataType::Binary => bytes(array.as_binary::<i32>(), values, nulls)?,
        DataType::LargeBinary => bytes(array.as_binary::<i64>(), values, nulls)?,
        DataType::List(_) => list(array.as_list::<i32>(), values, nulls)?,
        DataType::LargeList(_) => list(array.as_list::<i64>(), values, nulls)?,
        DataType::Map(field, ordered) => {
            let map = array.as_map();
            let entries: ArrayRef = Arc::new(map.entries().clone());
            let (offsets, entries) = items(map.offsets(), &entries, values)?;
            let entries = entries.as_struct().clone();
            Arc::new(MapArray::try_new(Arc::clone(field), offsets, entries, nulls, *ordered)?)
        }
        DataType::FixedSizeList(item, size) => {
            let width = *size as usize;
            let of_items = values.map(|values| bits(len * width, |at| values.value(at / width)));
            let items = canonical(array.as_fixed_size_list().values(), of_items.as_ref())?;
            Arc::new(FixedSizeListArray::try_new_with_length(Arc::clone(item), *size, items, nulls, len)?)
        }
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns().iter().map(|column| canonical(column, values));
            let columns = columns.collect::<Result<_, _>>()?;
            Arc::new(StructArray::try_new_with_length(fields.clone(), columns, nulls, len)?)
        }
        other => match other.primitive_width().or(fixed_width(other)) {
            // Nothing is arbitrary in values without nulls.
            Some(_) if values.is_none() && array.nulls().is_none() => Arc::clone(array),
            Some(width) => make_array(fixed(&array.to_data(), width, values, nulls)?),
            None => Arc::clone(array),
        },
    })
}

fn fixed_width(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::FixedSizeBinary(width) => usize::try_from(*width).ok(),
        _ => None,
    }
}

/// Bits whose last byte ends with zeros.
fn bits(len: usize, bit: impl FnMut(usize) -> bool) -> BooleanBuffer {
    BooleanBuffer::collect_bool(len, bit)
}

fn fixed(
    data: &ArrayData,
    width: usize,
    values: Option<&BooleanBuffer>,
    nulls: Option<NullBuffer>,
) -> Result<ArrayData, ArrowError> {
    let own = data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width);
    let buffer = match values {
        None => own,
        Some(values) => {
            let mut zeroed = MutableBuffer::from_len_zeroed(own.len());
            for (from, to) in values.set_slices() {
                zeroed[from * width..to * width].copy_from_slice(&own[from * width..to * width]);
            }
            zeroed.into()
        }
    };
    ArrayData::builder(data.data_type().clone()).len(data.len()).add_buffer(buffer).nulls(nulls).build()
}

fn bytes<T: ByteArrayType>(
    array: &GenericByteArray<T>,
    values: Option<&BooleanBuffer>,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef, ArrowError> {
    let Some(values) = values else {
        return match array.nulls() {
            None => Ok(Arc::new(array.clone())),
            Some(_) => {
                let (offsets, values, _) = array.clone().into_parts();
                Ok(Arc::new(GenericByteArray::<T>::try_new(offsets, values, None)?))
            }
        };
    };
    let of = |row| if values.value(row) { array.value_length(row).as_usize() } else { 0 };
    let lengths = (0..array.len()).map(of);
    let mut all = MutableBuffer::with_capacity(lengths.clone().sum());
    for (from, to) in values.set_slices() {
        let (from, to) = (array.value_offsets()[from].as_usize(), array.value_offsets()[to].as_usize());
        all.extend_from_slice(&array.value_data()[from..to]);
    }
    let offsets = OffsetBuffer::<T::Offset>::from_lengths(lengths);
    Ok(Arc::new(GenericByteArray::<T>::try_new(offsets, Buffer::from(all), nulls)?))
}

fn list<O: OffsetSizeTrait>(
    array: &GenericListArray<O>,
    values: Option<&BooleanBuffer>,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef, ArrowError> {
    let (DataType::List(item) | DataType::LargeList(item)) = array.data_type() else {
        unreachable!("the array is a list")
    };
    let (offsets, items) = items(array.offsets(), array.values(), values)?;
    Ok(Arc::new(GenericListArray::<O>::try_new(Arc::clone(item), offsets, items, nulls)?))
}

/// The items of lists with values, and where each list ends among them.
fn items<O: OffsetSizeTrait>(
    offsets: &OffsetBuffer<O>,
    items: &ArrayRef,
    values: Option<&BooleanBuffer>,
) -> Result<(OffsetBuffer<O>, ArrayRef), ArrowError> {
    let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
    let own = items.slice(first.as_usize(), (last - first).as_usize());
    let begins: ScalarBuffer<O> = offsets.iter().map(|offset| *offset - first).collect();
    let Some(values) = values else {
        return Ok((OffsetBuffer::new(begins), canonical(&own, None)?));
    };
    let length = |row: usize| (begins[row + 1] - begins[row]).as_usize();
    let rows = 0..values.len();
    let lengths = rows.clone().map(|row| if values.value(row) { length(row) } else { 0 });
    let offsets = OffsetBuffer::from_lengths(lengths);
    if rows.clone().all(|row| values.value(row) || length(row) == 0) {
        return Ok((offsets, canonical(&own, None)?));
    }
    let mut is_kept = Vec::with_capacity(own.len());
    rows.for_each(|row| is_kept.extend(std::iter::repeat_n(values.value(row), length(row))));
    Ok((offsets, canonical(&filter(&own, &BooleanArray::from(is_kept))?, None)?))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int32Array, StringArray};
    use arrow::datatypes::{Field, Int32Type};

    use super::*;

    /// Arrays of the same values in two layouts.
    fn check(one: ArrayRef, other: ArrayRef) {
        assert_eq!(&one, &other);
        let [one, other] = [one, other].map(|array| canonical(&array, None).unwrap());
        assert_eq!(&one, &other);
        let shown = |array: &ArrayRef| format!("{:?}", layout(&array.to_data()));
        assert_eq!(shown(&one), shown(&other));
    }

    fn layout(data: &ArrayData) -> (Vec<Vec<u8>>, Option<Vec<u8>>, Vec<String>) {
        (
            data.buffers().iter().map(|buffer| buffer.to_vec()).collect(),
            data.nulls().map(|nulls| nulls.buffer().to_vec()),
            data.child_data().iter().map(|child| format!("{:?}", layout(child))).collect(),
        )
    }

    fn under_null(values: ArrayRef, nulls: &[bool]) -> ArrayRef {
        let data = values.to_data().into_builder().nulls(Some(NullBuffer::from(nulls.to_vec()))).build().unwrap();
        make_array(data)
    }

    #[test]
    fn what_lies_under_nulls_does_not_count() {
        let is_valid = [true, false, true];
        check(
            under_null(Arc::new(Int32Array::from(vec![1, 77, 3])), &is_valid),
            Arc::new(Int32Array::from(vec![Some(1), None, Some(3)])),
        );
        check(
            under_null(Arc::new(StringArray::from(vec!["a", "garbage", "c"])), &is_valid),
            Arc::new(StringArray::from(vec![Some("a"), None, Some("c")])),
        );
        check(
            under_null(Arc::new(BooleanArray::from(vec![true, true, false])), &is_valid),
            Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])),
        );
        let lists = |second: Option<Vec<Option<i32>>>| -> ArrayRef {
            let lists = [Some(vec![Some(1), None]), second, Some(vec![Some(4)])];
            Arc::new(arrow::array::ListArray::from_iter_primitive::<Int32Type, _, _>(lists))
        };
        check(under_null(lists(Some(vec![Some(7)])), &is_valid), lists(None));
        let fixed = |middle: [i32; 2]| -> ArrayRef {
            let items: ArrayRef = Arc::new(Int32Array::from([[1, 2], middle, [5, 6]].concat()));
            let item = Arc::new(Field::new("item", DataType::Int32, false));
            let nulls = Some(NullBuffer::from(is_valid.to_vec()));
            Arc::new(FixedSizeListArray::new(item, 2, items, nulls))
        };
        let [one, other] = [fixed([8, 8]), fixed([9, 9])].map(|array| canonical(&array, None).unwrap());
        assert_eq!(layout(&one.to_data()), layout(&other.to_data()));
    }

    #[test]
    fn a_slice_has_the_layout_of_its_values() {
        let all = BooleanArray::from(vec![Some(true), None, Some(true), Some(true), Some(true)]);
        check(Arc::new(all.slice(2, 3)), Arc::new(BooleanArray::from(vec![true, true, true])));
        let all = Int32Array::from(vec![Some(1), None, Some(3)]);
        check(Arc::new(all.slice(2, 1)), Arc::new(Int32Array::from(vec![3])));
    }
}
