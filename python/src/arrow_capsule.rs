//! Imports and exports Arrow data through the PyCapsule interface.
//!
//! <https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html>
#![expect(unsafe_code, reason = "the interface hands C structures over by address")]

use std::ffi::CStr;
use std::sync::Arc;

use arrow::array::MutableArrayData;
use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, RecordBatchReader, StructArray};
use arrow::datatypes::{Field, Schema};
use arrow::error::ArrowError;
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi};
use arrow::ffi_stream::{ArrowArrayStreamReader, FFI_ArrowArrayStream};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyTuple};

const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";
const STREAM: &CStr = c"arrow_array_stream";

/// Exports `schema` as the capsule that `__arrow_c_schema__` returns.
pub(crate) fn schema_capsule<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new_with_value(py, FFI_ArrowSchema::try_from(schema).map_err(arrow_error)?, SCHEMA)
}

/// Exports `batch` as the capsules that `__arrow_c_array__` returns: a struct array, without a copy.
pub(crate) fn batch_capsules<'py>(py: Python<'py>, batch: &RecordBatch) -> PyResult<Bound<'py, PyTuple>> {
    let schema = schema_capsule(py, batch.schema_ref())?;
    let array = FFI_ArrowArray::new(&StructArray::from(batch.clone()).into_data());
    let array = PyCapsule::new_with_value(py, array, ARRAY)?;
    PyTuple::new(py, [schema, array])
}

/// Copies the rows of any object with `__arrow_c_stream__` or `__arrow_c_array__`: a table or frame of pyarrow, Polars,
/// pandas, DuckDB and others.
pub(crate) fn import(data: &Bound<'_, PyAny>) -> PyResult<(Arc<Schema>, Vec<RecordBatch>)> {
    if data.hasattr("__arrow_c_stream__")? {
        let capsule = data.call_method0("__arrow_c_stream__")?.cast_into::<PyCapsule>()?;
        let pointer = capsule.pointer_checked(Some(STREAM))?;
        // SAFETY: a capsule with this name holds a stream. The stream is moved out of it, as the interface requires.
        let stream = unsafe { FFI_ArrowArrayStream::from_raw(pointer.cast().as_ptr()) };
        let reader = ArrowArrayStreamReader::try_new(stream).map_err(arrow_error)?;
        let schema = reader.schema();
        let batches = reader.map(|batch| owned_rows(&batch.map_err(arrow_error)?)).collect::<PyResult<Vec<_>>>()?;
        return Ok((schema, batches));
    }
    if data.hasattr("__arrow_c_array__")? {
        let batch = import_batch(data)?;
        return Ok((batch.schema(), vec![owned_rows(&batch)?]));
    }
    let name = data.get_type().name()?;
    Err(PyTypeError::new_err(format!("a {name} has neither __arrow_c_stream__ nor __arrow_c_array__")))
}

fn import_batch(data: &Bound<'_, PyAny>) -> PyResult<RecordBatch> {
    let (field, array) = import_array(data)?;
    let Some(rows) = array.as_any().downcast_ref::<StructArray>() else {
        return Err(PyTypeError::new_err(format!("expected rows, got an array of {}", field.data_type())));
    };
    Ok(RecordBatch::from(rows))
}

/// Imports any object with `__arrow_c_array__` as an array, with its field.
pub(crate) fn import_array(data: &Bound<'_, PyAny>) -> PyResult<(Field, ArrayRef)> {
    let (schema, array): (Bound<'_, PyCapsule>, Bound<'_, PyCapsule>) =
        data.call_method0("__arrow_c_array__")?.extract()?;
    let (schema, array) = (schema.pointer_checked(Some(SCHEMA))?, array.pointer_checked(Some(ARRAY))?);
    // SAFETY: capsules with these names hold these structures. The array is moved out; the capsule keeps the schema.
    let (schema, array) = unsafe {
        (schema.cast::<FFI_ArrowSchema>().as_ref(), FFI_ArrowArray::from_raw(array.cast::<FFI_ArrowArray>().as_ptr()))
    };
    let field = Field::try_from(schema).map_err(arrow_error)?;
    // SAFETY: the two came from one call, so the schema describes the array.
    let data = unsafe { from_ffi(array, schema) }.map_err(arrow_error)?;
    Ok((field, arrow::array::make_array(data)))
}

/// Imports the field of any object with `__arrow_c_schema__`.
pub(crate) fn import_field(field: &Bound<'_, PyAny>) -> PyResult<Field> {
    let capsule = field.call_method0("__arrow_c_schema__")?.cast_into::<PyCapsule>()?;
    let pointer = capsule.pointer_checked(Some(SCHEMA))?;
    // SAFETY: a capsule with this name holds this structure, and keeps it.
    Field::try_from(unsafe { pointer.cast::<FFI_ArrowSchema>().as_ref() }).map_err(arrow_error)
}

/// An array that Python takes over.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct ArrowArray(ArrayRef);

impl ArrowArray {
    pub(crate) fn new(array: ArrayRef) -> Self {
        Self(array)
    }
}

#[pymethods]
impl ArrowArray {
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let _ = requested_schema;
        let schema = FFI_ArrowSchema::try_from(self.0.data_type()).map_err(arrow_error)?;
        let schema = PyCapsule::new_with_value(py, schema, SCHEMA)?;
        let array = PyCapsule::new_with_value(py, FFI_ArrowArray::new(&self.0.to_data()), ARRAY)?;
        PyTuple::new(py, [schema, array])
    }
}

/// Copies the values into memory owned by Arrow. Another library may change memory that it lends, and releasing such
/// memory may need the GIL while a lock is held.
pub(crate) fn owned(array: &ArrayRef) -> PyResult<ArrayRef> {
    let data = array.to_data();
    let mut copy = MutableArrayData::new(vec![&data], false, data.len());
    copy.try_extend(0, 0, data.len()).map_err(arrow_error)?;
    Ok(arrow::array::make_array(copy.freeze()))
}

fn owned_rows(batch: &RecordBatch) -> PyResult<RecordBatch> {
    let columns = batch.columns().iter().map(owned).collect::<PyResult<_>>()?;
    let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(batch.schema(), columns, &rows).map_err(arrow_error)
}

pub(crate) fn arrow_error(error: ArrowError) -> PyErr {
    PyValueError::new_err(error.to_string())
}
