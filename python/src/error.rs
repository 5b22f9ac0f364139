//! Converts the engine's errors to `forebay`'s exceptions, whose classes are in Python (`forebay/_errors.py`).

use std::fmt;

use forebay_engine::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// An exception of a Python function that ends the program, such as `SystemExit`, on its way to the loop.
#[derive(Debug)]
pub(crate) struct Raised(pub(crate) PyErr);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Raised {}

/// Returns the exception for `error`. An exception that ends the program is returned as it was raised.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    if let Some(raised) = error.stopped().and_then(|stopped| stopped.downcast_ref::<Raised>()) {
        return raised.0.clone_ref(py);
    }
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let kind = match error.kind() {
        // A server that does not know a call answers `Unsupported`; for the client its call is invalid.
        ErrorKind::Invalid | ErrorKind::Unsupported => "invalid",
        ErrorKind::NotFound => "not_found",
        ErrorKind::Conflict => "conflict",
        ErrorKind::Denied => "denied",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::Exhausted => "exhausted",
        ErrorKind::Data => "data",
        ErrorKind::Internal => "internal",
    };
    let made = MAKE
        .import(py, "forebay._errors", "error_of")
        .and_then(|make| make.call1((kind, error.message(), error.hint())));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(failed) => failed,
    }
}

/// Enables `?` on the engine's results while Python is attached.
pub(crate) trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for forebay_engine::Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| exception(py, &error))
    }
}

/// Returns the exception for wrong options, from a mistake in the Python half or a direct call of the native half.
pub(crate) fn invalid(py: Python<'_>, message: impl Into<String>) -> PyErr {
    exception(py, &Error::new(ErrorKind::Invalid, message))
}
