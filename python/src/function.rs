//! Python functions that queries call (`forebay.udf`).

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::Field;
use forebay_engine::Function;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::arrow_capsule::{ArrowArray, import_array, import_field};

/// Reads a function from its Python half, a `forebay.Udf`.
pub(crate) fn read(udf: &Bound<'_, PyAny>) -> PyResult<Function> {
    let inputs: Vec<Bound<'_, PyAny>> = udf.getattr("inputs")?.extract()?;
    let inputs = inputs.iter().map(|field| Ok(import_field(field)?.data_type().clone()));
    let output: Field = import_field(&udf.getattr("output")?)?;
    let name: String = udf.getattr("name")?.extract()?;
    let version: Option<String> = udf.getattr("version")?.extract()?;
    let (inputs, output) = (inputs.collect::<PyResult<Vec<_>>>()?, Arc::new(output));
    let udf = udf.clone().unbind();
    let call = move |arrays: &[ArrayRef]| {
        Python::attach(|py| {
            let made = call(py, &udf, arrays);
            made.map_err(|error| {
                let value = error.value(py);
                let class = value.get_type().name().map_or_else(|_| "error".to_owned(), |name| name.to_string());
                format!("{class}: {value}")
            })
        })
    };
    Ok(Function { name, version, inputs, output, call: Arc::new(call) })
}

fn call(py: Python<'_>, udf: &Py<PyAny>, arrays: &[ArrayRef]) -> PyResult<ArrayRef> {
    let arguments = PyList::empty(py);
    for array in arrays {
        arguments.append(ArrowArray::new(Arc::clone(array)))?;
    }
    let result = udf.bind(py).call_method1("_call", (arguments,))?;
    Ok(import_array(&result)?.1)
}
