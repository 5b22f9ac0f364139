//! Operators on tensors of any fixed shape, and their shared parts: shapes in a field's metadata, and values as bytes.

pub(crate) mod arithmetic;
pub(crate) mod join;
pub(crate) mod reshape;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, FixedSizeListArray, make_array};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, exec_err, internal_err};
use forebay_arrays::FixedShapeTensor;

/// Returns the field of a column of these tensors.
pub(crate) fn field(tensor: &FixedShapeTensor, name: &str, nullable: bool) -> Result<Field> {
    match tensor.field(name, nullable) {
        Some(field) => Ok(field),
        None => internal_err!("no list of fixed size holds {tensor}"),
    }
}

/// Returns the number of values in a tensor of this shape, or `None` if it overflows.
pub(crate) fn len(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1_usize, |product, side| product.checked_mul(*side))
}

/// Returns a column's tensors, or an error if one of them contains a null value. A fixed-size list may contain them.
pub(crate) fn whole<'a>(operator: &str, array: &'a dyn Array) -> Result<&'a FixedSizeListArray> {
    let Some(list) = array.as_fixed_size_list_opt() else {
        return internal_err!("{operator} got {}, which its type class refuses", array.data_type());
    };
    let size = list.value_length() as usize;
    let has_null = |nulls: &NullBuffer| {
        nulls.null_count() > 0
            && (0..list.len()).any(|row| list.is_valid(row) && nulls.slice(row * size, size).null_count() > 0)
    };
    match list.values().nulls().is_some_and(has_null) {
        true => exec_err!("{operator}: a list has a null in it"),
        false => Ok(list),
    }
}

/// Returns values as bytes, and the bytes per value.
pub(crate) fn bytes(values: &dyn Array) -> Result<(Buffer, usize)> {
    let data = values.to_data();
    match data.data_type().primitive_width() {
        Some(width) => Ok((data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width), width)),
        None => internal_err!("{} has no width, and its type class refuses it", data.data_type()),
    }
}

/// Returns an array of the values in bytes.
pub(crate) fn values(data_type: &DataType, bytes: Buffer, width: usize) -> Result<ArrayRef> {
    let data = ArrayData::builder(data_type.clone()).len(bytes.len() / width).add_buffer(bytes).build()?;
    Ok(make_array(data))
}
