//! Python functions that queries call (`forebay.udf`).

use std::sync::Arc;
use std::time::Duration;

use arrow::array::ArrayRef;
use arrow::datatypes::Field;
use forebay_engine::{CallError, Function};
use parking_lot::{Condvar, Mutex};
use pyo3::exceptions::{PyException, PyMemoryError, PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::arrow_capsule::{ArrowArray, import_array, import_field, owned};
use crate::error::Raised;

/// How long Python waits for running calls when it ends.
const END_WITHIN: Duration = Duration::from_secs(30);

/// Makes a function of its Python half, a `forebay.Udf`.
pub(crate) fn read(udf: &Bound<'_, PyAny>) -> PyResult<Function> {
    let inputs: Vec<Bound<'_, PyAny>> = udf.getattr("inputs")?.extract()?;
    let inputs = inputs.iter().map(|field| Ok(Arc::new(import_field(field)?)));
    let output: Field = import_field(&udf.getattr("output")?)?;
    let name: String = udf.getattr("name")?.extract()?;
    let version: Option<String> = udf.getattr("version")?.extract()?;
    let draws = udf.getattr("rng")?.extract()?;
    let (inputs, output) = (inputs.collect::<PyResult<Vec<_>>>()?, Arc::new(output));
    let udf = udf.clone().unbind();
    let call = move |arrays: &[ArrayRef]| {
        let Some(_running) = CallGuard::begin() else {
            let ends: Box<dyn std::error::Error + Send + Sync> = "Python is shutting down".into();
            return Err(CallError::Stop(ends.into()));
        };
        Python::attach(|py| {
            let made = call(py, &udf, arrays);
            made.map_err(|error| {
                // As in Python, an exception outside `Exception` concerns the program, not a row.
                if !error.is_instance_of::<PyException>(py) {
                    return CallError::Stop(Arc::new(Raised(error)));
                }
                let value = error.value(py);
                let class = value.get_type().name().map_or_else(|_| "error".to_owned(), |name| name.to_string());
                match is_exhaustion(py, &error) {
                    true => CallError::Exhausted(format!("{class}: {value}")),
                    false => CallError::Rows(format!("{class}: {value}")),
                }
            })
        })
    };
    Ok(Function { name, version, inputs, draws, output, call: Arc::new(call) })
}

/// Whether an exception says that the machine ran out of memory, disk space, files or threads. Such an exception
/// depends on load, so it must never make a row a bad row.
fn is_exhaustion(py: Python<'_>, error: &PyErr) -> bool {
    const CODES: [i32; 6] = [libc::ENOMEM, libc::ENOSPC, libc::EDQUOT, libc::EMFILE, libc::ENFILE, libc::EAGAIN];
    let value = error.value(py);
    let code = || value.getattr("errno").and_then(|code| code.extract::<i32>());
    error.is_instance_of::<PyMemoryError>(py)
        || (error.is_instance_of::<PyOSError>(py) && code().is_ok_and(|code| CODES.contains(&code)))
        // Python's only sign that a thread could not be created.
        || (error.is_instance_of::<PyRuntimeError>(py) && value.to_string().starts_with("can't start new thread"))
}

/// The number of running calls, and whether new ones are refused. Entering Python from a thread during Python's
/// shutdown would crash the process.
static CALLS: Mutex<RunningCalls> = Mutex::new(RunningCalls { running: 0, ended: false });
static NONE_RUNNING: Condvar = Condvar::new();

struct RunningCalls {
    running: usize,
    ended: bool,
}

struct CallGuard;

impl CallGuard {
    fn begin() -> Option<Self> {
        let mut calls = CALLS.lock();
        if calls.ended {
            return None;
        }
        calls.running += 1;
        Some(Self)
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        let mut calls = CALLS.lock();
        calls.running -= 1;
        if calls.running == 0 {
            NONE_RUNNING.notify_all();
        }
    }
}

/// Refuses new calls and waits up to [`END_WITHIN`] for running ones. For Python's `atexit`.
#[pyfunction]
pub(crate) fn end_functions(py: Python<'_>) {
    py.detach(|| {
        let mut calls = CALLS.lock();
        calls.ended = true;
        NONE_RUNNING.wait_while_for(&mut calls, |calls| calls.running > 0, END_WITHIN);
    });
}

fn call(py: Python<'_>, udf: &Py<PyAny>, arrays: &[ArrayRef]) -> PyResult<ArrayRef> {
    let arguments = PyList::empty(py);
    for array in arrays {
        arguments.append(ArrowArray::new(Arc::clone(array)))?;
    }
    let result = udf.bind(py).call_method1("_call", (arguments,))?;
    owned(&import_array(&result)?.1)
}
