//! Converts a batch's columns for Python: to tensors where that is free, and to lists of objects otherwise.
//!
//! | Arrow | Python |
//! |---|---|
//! | numbers, booleans | a tensor `[rows]` |
//! | fixed-size lists, `arrow.fixed_shape_tensor` | a tensor `[rows, …]` |
//! | `arrow.variable_shape_tensor` | a list of tensors |
//! | lists of numbers, or of fixed-size lists of numbers | a [`Ragged`]: all values, and the offset of each row |
//! | dates, timestamps, durations | a tensor of integers with a unit |
//! | structs | a dict of columns |
//! | text, bytes, decimals, times of day, maps, other lists | a list of `str`, `bytes`, `Decimal`, `time`, lists of
//! pairs, lists |

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float16Array, Float32Array, Float64Array};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Field, Float16Type, Float32Type, Float64Type, Int32Type, Int64Type, Time64MicrosecondType, TimeUnit,
};
use arrow::util::display::array_value_to_string;
use forebay_arrays::{BFLOAT16, DTYPE_KEY, TensorType, VariableShapeTensor};
use forebay_engine::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::arrow_capsule::arrow_error;
use crate::dlpack::{DType, Tensor};
use crate::error::exception;

/// Rows of different lengths: row `i` is `values[offsets[i]:offsets[i + 1]]`.
#[pyclass(frozen, get_all, module = "forebay._native")]
pub(crate) struct Ragged {
    values: Py<PyAny>,
    offsets: Py<Tensor>,
}

/// Converts the columns of one batch for Python.
pub(crate) struct Converter {
    /// The start addresses of exported tensors. Two columns may share memory, but writing to one column must not change
    /// the other.
    exported: HashSet<usize>,
}

impl Converter {
    pub(crate) fn new() -> Self {
        Self { exported: HashSet::new() }
    }

    /// Converts `array` to the object that Python receives.
    pub(crate) fn column(&mut self, py: Python<'_>, field: &Field, array: &ArrayRef) -> PyResult<Py<PyAny>> {
        match TensorType::parse(field).map_err(|malformed| unreadable(py, field, malformed.0))? {
            Some(TensorType::Fixed(tensor)) => {
                let shape: Vec<i64> = tensor.shape.iter().map(|&side| side as i64).collect();
                return self.tensor(py, field, array, &shape, &tensor.permutation.unwrap_or_default());
            }
            Some(TensorType::Variable(tensor)) => return self.variable_shape(py, field, array, &tensor),
            None => {}
        }
        match array.data_type() {
            DataType::FixedSizeList(item, width) if dtype(item).is_some() => {
                self.tensor(py, field, array, &[i64::from(*width)], &[])
            }
            DataType::List(item) if let Some(item) = numbers(item) => {
                let list = array.as_list::<i32>();
                let list = (list.offsets().clone(), list.values(), list.nulls());
                self.ragged(py, field, item, list)
            }
            DataType::LargeList(item) if let Some(item) = numbers(item) => {
                let list = array.as_list::<i64>();
                let list = (list.offsets().clone(), list.values(), list.nulls());
                self.ragged(py, field, item, list)
            }
            DataType::Struct(fields) => {
                no_nulls(py, field, array)?;
                let columns = PyDict::new(py);
                for (field, column) in fields.iter().zip(array.as_struct().columns()) {
                    columns.set_item(field.name(), self.column(py, field, column)?)?;
                }
                Ok(columns.into_any().unbind())
            }
            _ if let Some(plain) = plain(array.data_type()) => {
                let array = cast(array, &plain).map_err(arrow_error)?;
                self.column(py, &field.clone().with_data_type(plain), &array)
            }
            _ if dtype(field).is_some() => self.tensor(py, field, array, &[], &[]),
            _ => Ok(objects(py, array)?.into_any().unbind()),
        }
    }

    fn variable_shape(
        &mut self,
        py: Python<'_>,
        field: &Field,
        array: &ArrayRef,
        tensor: &VariableShapeTensor,
    ) -> PyResult<Py<PyAny>> {
        no_nulls(py, field, array)?;
        let parts = array.as_struct();
        let (Some(data), Some(shapes)) = (parts.column_by_name("data"), parts.column_by_name("shape")) else {
            return Err(unreadable(py, field, "it has no data or no shapes"));
        };
        let data = data.as_list::<i32>();
        let item = Field::new_list_field(tensor.value.clone(), false);
        let dtype = dtype(&item).ok_or_else(|| unreadable(py, field, "its elements are not numbers"))?;
        let (values, unit) = self.values(py, field, dtype, data.values())?;
        let order = tensor.permutation.clone().unwrap_or_default();
        let shapes = shapes.as_fixed_size_list();
        let tensors = (0..array.len()).map(|row| {
            let shape = shapes.value(row);
            let shape: Vec<i64> = shape.as_primitive::<Int32Type>().values().iter().map(|&side| side.into()).collect();
            debug_assert_eq!(shape.len(), tensor.rank);
            let (start, end) = (data.value_offsets()[row] as usize, data.value_offsets()[row + 1] as usize);
            if elements(&shape) != Some((end - start) as i64) {
                return Err(unreadable(py, field, "a shape does not match its row"));
            }
            let bytes = values.slice_with_length(start * dtype.bytes(), (end - start) * dtype.bytes());
            let tensor = Tensor::new(bytes, dtype, shape).of(unit);
            if order.is_empty() { tensor } else { tensor.permuted(&order) }.into_pyobject(py)
        });
        let tensors = tensors.collect::<PyResult<Vec<_>>>()?;
        Ok(PyList::new(py, tensors)?.into_any().unbind())
    }

    /// Makes a tensor of `array`, whose rows have the shape `row`. `order`, if given, permutes the rows' dimensions.
    fn tensor(
        &mut self,
        py: Python<'_>,
        field: &Field,
        array: &ArrayRef,
        row: &[i64],
        order: &[usize],
    ) -> PyResult<Py<PyAny>> {
        let rows = array.len();
        let mut shape = vec![rows as i64];
        shape.extend(row);
        let width = elements(row).ok_or_else(|| unreadable(py, field, "its shape does not match its rows"))?;
        let (item, elements) = match array.data_type() {
            DataType::FixedSizeList(item, size) => {
                if i64::from(*size) != width {
                    return Err(unreadable(py, field, "its shape does not match its rows"));
                }
                no_nulls(py, field, array)?;
                let list = array.as_fixed_size_list();
                let (first, width) = (list.value_offset(0) as usize, width as usize);
                (Some(item), list.values().slice(first, rows * width))
            }
            _ => (None, Arc::clone(array)),
        };
        let dtype = tensor_dtype(field, item.map(Arc::as_ref))
            .ok_or_else(|| unreadable(py, field, "its elements are not numbers"))?;
        let (values, unit) = self.values(py, field, dtype, &elements)?;
        let mut tensor = Tensor::new(values, dtype, shape).of(unit);
        if !order.is_empty() {
            let rows_first: Vec<usize> = std::iter::once(0).chain(order.iter().map(|at| at + 1)).collect();
            tensor = tensor.permuted(&rows_first);
        }
        Ok(tensor.into_pyobject(py)?.into_any().unbind())
    }

    fn ragged<O: arrow::array::OffsetSizeTrait>(
        &mut self,
        py: Python<'_>,
        field: &Field,
        (item, width): (&Field, Option<i64>),
        (offsets, values, nulls): (OffsetBuffer<O>, &ArrayRef, Option<&NullBuffer>),
    ) -> PyResult<Py<PyAny>> {
        if nulls.is_some_and(|nulls| nulls.null_count() > 0) {
            return Err(has_nulls(py, field));
        }
        let dtype =
            tensor_dtype(field, Some(item)).ok_or_else(|| unreadable(py, field, "its elements are not numbers"))?;
        let (first, last) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
        let mut values = values.slice(first, last - first);
        if width.is_some() {
            no_nulls(py, field, &values)?;
            values = Arc::clone(values.as_fixed_size_list().values());
        }
        let (values, unit) = self.values(py, field, dtype, &values)?;
        let shape = [(last - first) as i64].into_iter().chain(width).collect();
        let values = Tensor::new(values, dtype, shape).of(unit);
        let offsets: Vec<i64> = offsets.iter().map(|offset| (offset.as_usize() - first) as i64).collect();
        let shape = vec![offsets.len() as i64];
        let offsets = Tensor::new(Buffer::from_vec(offsets), DType::Int(64), shape);
        let ragged = Ragged {
            values: values.into_pyobject(py)?.into_any().unbind(),
            offsets: offsets.into_pyobject(py)?.unbind(),
        };
        Ok(ragged.into_pyobject(py)?.into_any().unbind())
    }

    /// Returns the elements of a flat array as bytes, and their unit if they are times. Copies only booleans, floats
    /// with nulls (which become NaN), dates, and memory that another column uses.
    fn values(
        &mut self,
        py: Python<'_>,
        field: &Field,
        dtype: DType,
        array: &ArrayRef,
    ) -> PyResult<(Buffer, Option<&'static str>)> {
        let nulls = array.null_count() > 0;
        let buffer = match array.data_type() {
            DataType::Float16 if nulls => floats!(array, Float16Type, Float16Array, half_nan()),
            DataType::Float32 if nulls => floats!(array, Float32Type, Float32Array, f32::NAN),
            DataType::Float64 if nulls => floats!(array, Float64Type, Float64Array, f64::NAN),
            _ if nulls => return Err(has_nulls(py, field)),
            DataType::Boolean => {
                Buffer::from_vec(array.as_boolean().values().iter().map(u8::from).collect::<Vec<u8>>())
            }
            DataType::Date32 => {
                let days = array.as_primitive::<arrow::datatypes::Date32Type>().values();
                Buffer::from_vec(days.iter().map(|&day| i64::from(day)).collect::<Vec<i64>>())
            }
            _ => {
                let data = array.to_data();
                let start = data.offset() * dtype.bytes();
                data.buffers()[0].slice_with_length(start, data.len() * dtype.bytes())
            }
        };
        let is_first = self.exported.insert(buffer.as_ptr() as usize) || buffer.is_empty();
        let buffer = if is_first { buffer } else { Buffer::from(buffer.as_slice()) };
        Ok((buffer, unit(array.data_type())))
    }
}

/// Returns the number of elements of a shape, or `None` if it is negative or overflows.
fn elements(shape: &[i64]) -> Option<i64> {
    shape.iter().try_fold(1_i64, |product, &side| product.checked_mul(side).filter(|_| side >= 0))
}

/// Replaces nulls by NaN.
macro_rules! floats {
    ($array:expr, $type:ty, $made:ty, $nan:expr) => {{
        let filled = $array.as_primitive::<$type>().iter().map(|value| value.unwrap_or($nan));
        <$made>::from_iter_values(filled).into_data().buffers()[0].clone()
    }};
}
use floats;

fn half_nan() -> <Float16Type as arrow::datatypes::ArrowPrimitiveType>::Native {
    <Float16Type as arrow::datatypes::ArrowPrimitiveType>::Native::NAN
}

/// Returns the element type of a column with one element per row, or `None` if a tensor cannot hold it.
fn dtype(field: &Field) -> Option<DType> {
    tensor_dtype(field, None)
}

fn tensor_dtype(field: &Field, item: Option<&Field>) -> Option<DType> {
    let field_of_type = item.unwrap_or(field);
    let is_bfloat16 = [Some(field), item]
        .into_iter()
        .flatten()
        .any(|field| field.metadata().get(DTYPE_KEY).is_some_and(|dtype| dtype == BFLOAT16));
    Some(match field_of_type.data_type() {
        DataType::UInt16 if is_bfloat16 => DType::BFloat16,
        DataType::Boolean => DType::Bool,
        DataType::Int8 => DType::Int(8),
        DataType::Int16 => DType::Int(16),
        DataType::Int32 => DType::Int(32),
        DataType::Int64 => DType::Int(64),
        DataType::UInt8 => DType::UInt(8),
        DataType::UInt16 => DType::UInt(16),
        DataType::UInt32 => DType::UInt(32),
        DataType::UInt64 => DType::UInt(64),
        DataType::Float16 => DType::Float(16),
        DataType::Float32 => DType::Float(32),
        DataType::Float64 => DType::Float(64),
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => DType::Int(64),
        DataType::Duration(_) => DType::Int(64),
        _ => return None,
    })
}

/// Returns the numbers in the items of a list: the items themselves, or those of a fixed-size list and its length.
fn numbers(item: &Field) -> Option<(&Field, Option<i64>)> {
    match item.data_type() {
        _ if dtype(item).is_some() => Some((item, None)),
        DataType::FixedSizeList(number, width @ 1..) if dtype(number).is_some() => {
            Some((number, Some(i64::from(*width))))
        }
        _ => None,
    }
}

/// Returns NumPy's type for such times.
fn unit(data_type: &DataType) -> Option<&'static str> {
    Some(match data_type {
        DataType::Date32 => "M8[D]",
        DataType::Date64 => "M8[ms]",
        DataType::Timestamp(TimeUnit::Second, _) => "M8[s]",
        DataType::Timestamp(TimeUnit::Millisecond, _) => "M8[ms]",
        DataType::Timestamp(TimeUnit::Microsecond, _) => "M8[us]",
        DataType::Timestamp(TimeUnit::Nanosecond, _) => "M8[ns]",
        DataType::Duration(TimeUnit::Second) => "m8[s]",
        DataType::Duration(TimeUnit::Millisecond) => "m8[ms]",
        DataType::Duration(TimeUnit::Microsecond) => "m8[us]",
        DataType::Duration(TimeUnit::Nanosecond) => "m8[ns]",
        _ => return None,
    })
}

/// Returns the plain type of these values, if `data_type` is one of Arrow's other encodings of it.
fn plain(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Dictionary(_, value) => Some(value.as_ref().clone()),
        DataType::RunEndEncoded(_, values) => Some(values.data_type().clone()),
        DataType::ListView(item) => Some(DataType::List(Arc::clone(item))),
        DataType::LargeListView(item) => Some(DataType::LargeList(Arc::clone(item))),
        _ => None,
    }
}

/// Returns the values of `array` as Python objects, with `None` for nulls.
fn objects<'py>(py: Python<'py>, array: &ArrayRef) -> PyResult<Bound<'py, PyList>> {
    if let Some(plain) = plain(array.data_type()) {
        return objects(py, &cast(array, &plain).map_err(arrow_error)?);
    }
    let list = PyList::empty(py);
    for row in 0..array.len() {
        list.append(object(py, array, row)?)?;
    }
    Ok(list)
}

/// Returns one value of `array`, or `None` for a null.
fn object<'py>(py: Python<'py>, array: &ArrayRef, row: usize) -> PyResult<Bound<'py, PyAny>> {
    let text = |text: &str| PyString::new(py, text).into_any();
    let bytes = |bytes: &[u8]| PyBytes::new(py, bytes).into_any();
    if let Some(plain) = plain(array.data_type()) {
        return object(py, &cast(&array.slice(row, 1), &plain).map_err(arrow_error)?, 0);
    }
    Ok(match array.data_type() {
        // Arrow's null type has no validity bitmap.
        DataType::Null => py.None().into_bound(py),
        _ if array.is_null(row) => py.None().into_bound(py),
        DataType::Utf8 => text(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => text(array.as_string::<i64>().value(row)),
        DataType::Utf8View => text(array.as_string_view().value(row)),
        DataType::Binary => bytes(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => bytes(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => bytes(array.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => bytes(array.as_fixed_size_binary().value(row)),
        DataType::Boolean => array.as_boolean().value(row).into_pyobject(py)?.to_owned().into_any(),
        DataType::List(_) => objects(py, &array.as_list::<i32>().value(row))?.into_any(),
        DataType::LargeList(_) => objects(py, &array.as_list::<i64>().value(row))?.into_any(),
        DataType::FixedSizeList(..) => objects(py, &array.as_fixed_size_list().value(row))?.into_any(),
        DataType::Struct(fields) => {
            let dict = PyDict::new(py);
            for (field, column) in fields.iter().zip(array.as_struct().columns()) {
                dict.set_item(field.name(), object(py, column, row)?)?;
            }
            dict.into_any()
        }
        DataType::Map(..) => {
            let entries = array.as_map().value(row);
            let pairs = PyList::empty(py);
            let (keys, values) = (objects(py, entries.column(0))?, objects(py, entries.column(1))?);
            for (key, value) in keys.iter().zip(values.iter()) {
                pairs.append((key, value))?;
            }
            pairs.into_any()
        }
        DataType::Time32(_) | DataType::Time64(_) => {
            let micros = cast(&array.slice(row, 1), &DataType::Time64(TimeUnit::Microsecond)).map_err(arrow_error)?;
            time_of_day(py, micros.as_primitive::<Time64MicrosecondType>().value(0))?
        }
        data_type if data_type.is_integer() => {
            let wide = cast(&array.slice(row, 1), &DataType::Int64);
            match wide {
                Ok(wide) if !wide.is_null(0) => wide.as_primitive::<Int64Type>().value(0).into_pyobject(py)?.into_any(),
                // The value is above i64::MAX.
                _ => number(py, "int", &array_value_to_string(array, row).map_err(arrow_error)?)?,
            }
        }
        data_type if data_type.is_floating() => {
            let wide = cast(&array.slice(row, 1), &DataType::Float64).map_err(arrow_error)?;
            wide.as_primitive::<Float64Type>().value(0).into_pyobject(py)?.into_any()
        }
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Decimal256(..) => {
            decimal(py, &array_value_to_string(array, row).map_err(arrow_error)?)?
        }
        _ => text(&array_value_to_string(array, row).map_err(arrow_error)?),
    })
}

fn number<'py>(py: Python<'py>, class: &str, text: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("builtins")?.getattr(class)?.call1((text,))
}

fn decimal<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    static DECIMAL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    DECIMAL.import(py, "decimal", "Decimal")?.call1((text,))
}

fn time_of_day(py: Python<'_>, micros: i64) -> PyResult<Bound<'_, PyAny>> {
    static TIME: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    TIME.import(py, "datetime", "time")?.call1((seconds / 3600, seconds / 60 % 60, seconds % 60, micros))
}

fn no_nulls(py: Python<'_>, field: &Field, array: &ArrayRef) -> PyResult<()> {
    if array.null_count() > 0 { Err(has_nulls(py, field)) } else { Ok(()) }
}

fn has_nulls(py: Python<'_>, field: &Field) -> PyErr {
    let message = format!("column \"{}\" has nulls, which a tensor of {} cannot hold", field.name(), field.data_type());
    let hint = "replace them in the query with coalesce(column, value), leave such rows out with WHERE column IS NOT \
                NULL, or read with format=\"arrow\"";
    exception(py, &Error::new(ErrorKind::Data, message).with_hint(hint))
}

fn unreadable(py: Python<'_>, field: &Field, why: &str) -> PyErr {
    exception(py, &Error::new(ErrorKind::Data, format!("column \"{}\" is not a tensor: {why}", field.name())))
}
