//! A query over whole tables, and its rows.

use std::sync::Arc;

use arrow::array::StructArray;
use arrow::compute::concat_batches;
use forebay_engine::{Error, Preview};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::arrow_capsule::{ArrowArray, schema_capsule};
use crate::error::OrRaise;
use crate::runtime::{OfProcess, Runtime};
use crate::session::aligned;

/// A checked query. It runs each time that its rows are asked for.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Query {
    pub(crate) query: OfProcess<forebay_engine::Query>,
    pub(crate) runtime: Runtime,
}

#[pymethods]
impl Query {
    /// The schema of its rows, as the capsule that `__arrow_c_schema__` returns.
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.query.schema())
    }

    /// The text of the query.
    #[getter]
    fn text(&self) -> &str {
        self.query.text()
    }

    /// Runs the query.
    fn rows(&self, py: Python<'_>) -> PyResult<QueryRows> {
        self.runtime.check_process(py)?;
        let rows = self.query.rows().or_raise(py)?;
        Ok(QueryRows { rows: OfProcess::new(Mutex::new(Some(rows))), runtime: self.runtime.clone() })
    }

    /// Runs the query, and returns the first rows as a table and as HTML, their number, and 0.
    fn preview(&self, py: Python<'_>, rows: usize) -> PyResult<(String, String, usize, u64)> {
        let first = async {
            let (mut all, mut batches, mut left) = (self.query.rows()?, Vec::new(), rows);
            while left > 0
                && let Some(batch) = all.next().await.transpose()?
            {
                let taken = batch.slice(0, left.min(batch.num_rows()));
                left -= taken.num_rows();
                batches.push(taken);
            }
            concat_batches(&self.query.schema(), &batches).map_err(|error| Error::internal(error.to_string()))
        };
        let preview = Preview::of(self.runtime.wait(py, first)?.or_raise(py)?);
        let table = aligned(&preview.table().or_raise(py)?);
        Ok((table, preview.html().or_raise(py)?, preview.num_rows(), 0))
    }
}

/// The rows of a query, as they are computed.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct QueryRows {
    rows: OfProcess<Mutex<Option<forebay_engine::QueryRows>>>,
    runtime: Runtime,
}

#[pymethods]
impl QueryRows {
    /// The next rows, as an array of structs, or `None` at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<ArrowArray>> {
        self.runtime.check_process(py)?;
        // Taken, so that no lock is held while Python waits.
        let Some(mut rows) = self.rows.lock().take() else { return Ok(None) };
        let batch = self.runtime.wait(py, rows.next())?.transpose().or_raise(py)?;
        if batch.is_some() {
            *self.rows.lock() = Some(rows);
        }
        Ok(batch.map(|batch| ArrowArray::new(Arc::new(StructArray::from(batch)))))
    }

    /// Stops the query.
    fn close(&self) {
        if !self.rows.is_forked() {
            self.rows.lock().take();
        }
    }
}
