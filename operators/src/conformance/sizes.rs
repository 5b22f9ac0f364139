//! Checks that results have the declared sizes.

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray};
use arrow::compute::filter;
use arrow::datatypes::DataType;

use crate::descriptor::{Descriptor, SizeRatio};

/// Compares the bytes of `result` with the bytes of the only input.
pub(super) fn check(descriptor: &Descriptor, inputs: &[&ArrayRef], result: &ArrayRef) -> Result<(), String> {
    let SizeRatio { least, most } = descriptor.size_ratio;
    if descriptor.size_ratio == SizeRatio::UNKNOWN {
        return Ok(());
    }
    let [input] = inputs else { return Err(format!("a size ratio of {} inputs", inputs.len())) };
    let valid: BooleanArray = (0..result.len()).map(|row| Some(input.is_valid(row) && result.is_valid(row))).collect();
    let bytes = |array: &ArrayRef| -> Result<f64, String> {
        Ok(value_bytes(&filter(array, &valid).map_err(|error| error.to_string())?) as f64)
    };
    let (before, after) = (bytes(input)?, bytes(result)?);
    ensure!(
        before * least <= after && after <= before * most,
        "{before} bytes became {after}, and the size ratio is {least} to {most}"
    );
    Ok(())
}

/// Returns the bytes of an array's values, without nulls, offsets and the shapes of tensors.
fn value_bytes(array: &ArrayRef) -> usize {
    match array.data_type() {
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            (0..list.len()).map(|row| value_bytes(&list.value(row))).sum()
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            (0..list.len()).map(|row| value_bytes(&list.value(row))).sum()
        }
        DataType::FixedSizeList(..) => {
            let list = array.as_fixed_size_list();
            (0..list.len()).map(|row| value_bytes(&list.value(row))).sum()
        }
        DataType::Struct(fields) => {
            let parts = fields.iter().zip(array.as_struct().columns());
            parts.filter(|(field, _)| field.name() != "shape").map(|(_, part)| value_bytes(part)).sum()
        }
        DataType::Utf8 => array.as_string::<i32>().iter().flatten().map(str::len).sum(),
        DataType::LargeUtf8 => array.as_string::<i64>().iter().flatten().map(str::len).sum(),
        DataType::Utf8View => array.as_string_view().iter().flatten().map(str::len).sum(),
        DataType::Binary => array.as_binary::<i32>().iter().flatten().map(<[u8]>::len).sum(),
        DataType::LargeBinary => array.as_binary::<i64>().iter().flatten().map(<[u8]>::len).sum(),
        DataType::BinaryView => array.as_binary_view().iter().flatten().map(<[u8]>::len).sum(),
        DataType::Boolean => array.len(),
        other => array.len() * other.primitive_width().unwrap_or(0),
    }
}
