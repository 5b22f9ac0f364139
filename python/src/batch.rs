//! A finished batch, as a Python object.

use arrow::array::RecordBatch;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};

use crate::arrow_capsule::{batch_capsules, schema_capsule};
use crate::column::Converter;

/// One batch: its position, its columns, and the Arrow data behind them.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Batch {
    #[pyo3(get)]
    epoch: u64,
    #[pyo3(get)]
    step: u64,
    #[pyo3(get)]
    offset: u64,
    #[pyo3(get)]
    bad_rows: u64,
    /// The token that resumes after this batch's global step.
    #[pyo3(get)]
    token: String,
    /// The first offset of the next global step.
    #[pyo3(get)]
    next_offset: u64,
    records: RecordBatch,
}

impl Batch {
    pub(crate) fn new(batch: forebay_engine::Batch) -> Self {
        let bad_rows = batch.bad_rows();
        let forebay_engine::Batch { epoch, step, offset, records, token, .. } = batch;
        Self { epoch, step, offset, bad_rows, token: token.to_string(), next_offset: token.offset, records }
    }
}

#[pymethods]
impl Batch {
    /// Returns the columns by name, in order: those in `names`, or all.
    #[pyo3(signature = (names = None))]
    fn columns<'py>(&self, py: Python<'py>, names: Option<Vec<String>>) -> PyResult<Bound<'py, PyDict>> {
        let columns = PyDict::new(py);
        let mut converter = Converter::new();
        for (field, array) in self.records.schema_ref().fields().iter().zip(self.records.columns()) {
            if names.as_ref().is_none_or(|names| names.contains(field.name())) {
                columns.set_item(field.name(), converter.column(py, field, array)?)?;
            }
        }
        Ok(columns)
    }

    /// Returns the BLAKE3 digest of schema and values, in hexadecimal. It does not depend on where and how the batch
    /// was computed.
    fn digest(&self, py: Python<'_>) -> String {
        py.detach(|| forebay_engine::digest(&self.records))
    }

    #[getter]
    fn num_rows(&self) -> usize {
        self.records.num_rows()
    }

    fn __len__(&self) -> usize {
        self.records.num_rows()
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        // The interface allows a producer to ignore a requested schema.
        let _ = requested_schema;
        batch_capsules(py, &self.records)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, self.records.schema_ref())
    }
}
