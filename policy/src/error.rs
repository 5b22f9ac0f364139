//! The error of invalid input: prices, settings, measurements.

use std::fmt;

/// The error of invalid input. Its message says what is wrong and where, its hint what to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What is wrong.
    pub message: String,
    /// How to fix it.
    pub hint: String,
}

impl Error {
    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nhint: {}", self.message, self.hint)
    }
}

impl std::error::Error for Error {}

/// Fails unless the value is a finite number of at least `least`.
pub(crate) fn at_least(least: f64, name: &str, value: f64) -> Result<f64, Error> {
    match value.is_finite() && value >= least {
        true => Ok(value),
        false => Err(Error::new(
            format!("\"{name}\" must be a finite number of at least {least}, got {value}"),
            format!("give \"{name}\" as measured, in the unit that its documentation names"),
        )),
    }
}
