//! Converts errors of DataFusion to errors of a feed.

use datafusion::error::DataFusionError;

use crate::error::{Error, ErrorKind};

impl From<DataFusionError> for Error {
    fn from(error: DataFusionError) -> Self {
        let kind = match error.find_root() {
            DataFusionError::ResourcesExhausted(_) => ErrorKind::Exhausted,
            DataFusionError::Plan(_)
            | DataFusionError::SchemaError(..)
            | DataFusionError::NotImplemented(_)
            | DataFusionError::Configuration(_)
            | DataFusionError::SQL(..) => ErrorKind::Invalid,
            DataFusionError::Internal(_) => ErrorKind::Internal,
            // Plans run over rows already in memory, so any other failure is caused by the rows' values.
            _ => ErrorKind::Data,
        };
        let message = datafusion_message(&error);
        Self::caused_by(kind, message, error)
    }
}

/// The innermost message, without DataFusion's prefixes ("Execution error: ").
fn datafusion_message(error: &DataFusionError) -> String {
    match error.find_root() {
        DataFusionError::Execution(text)
        | DataFusionError::Plan(text)
        | DataFusionError::NotImplemented(text)
        | DataFusionError::ResourcesExhausted(text)
        | DataFusionError::Internal(text) => text.clone(),
        DataFusionError::ArrowError(arrow, _) => arrow.to_string(),
        DataFusionError::External(external) => external.to_string(),
        other => other.strip_backtrace(),
    }
}
