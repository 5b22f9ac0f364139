//! Storage errors, classified by what the caller should do.

use std::error::Error as StdError;

use object_store::Error as StoreError;

/// The result of this crate's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error whose message says what failed, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// What the caller should do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Fix the request: a location, a format, a schema, permissions.
    Invalid,
    /// Nothing exists at the location.
    NotFound,
    /// The stored files differ from the snapshot: take a new one.
    Conflict,
    /// The store is temporarily unavailable: retry later.
    Unavailable,
    /// The stored bytes are wrong.
    Data,
    /// A bug in Forebay.
    Internal,
}

impl Error {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// How to fix it, if known and not part of the message.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Conflict, message)
    }

    pub(crate) fn data(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Data, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, source: None }
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Converts a store's error about `place`, a path or URL in the user's notation.
    pub(crate) fn from_store(place: &str, source: StoreError) -> Self {
        let (kind, message) = match &source {
            StoreError::NotFound { .. } => (ErrorKind::NotFound, format!("\"{place}\" does not exist")),
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
                (ErrorKind::Invalid, format!("\"{place}\" may not be accessed: {}", innermost(&source)))
            }
            // This error names the file below the place; the error inside it does not.
            StoreError::InvalidPath { source: path } => (
                ErrorKind::Invalid,
                format!("\"{place}\" cannot be used: {path}; rename or move that file").replace('\n', " "),
            ),
            StoreError::NotSupported { .. }
            | StoreError::NotImplemented { .. }
            | StoreError::UnknownConfigurationKey { .. } => {
                (ErrorKind::Invalid, format!("\"{place}\" cannot be used: {}", innermost(&source)))
            }
            StoreError::AlreadyExists { .. } => (ErrorKind::Conflict, format!("\"{place}\" exists already")),
            StoreError::Precondition { .. } | StoreError::NotModified { .. } => {
                (ErrorKind::Conflict, format!("\"{place}\" was changed by another writer"))
            }
            StoreError::JoinError { .. } => (ErrorKind::Internal, format!("reading \"{place}\" was interrupted")),
            _ => match io_kind(&source) {
                Some(std::io::ErrorKind::PermissionDenied) => {
                    (ErrorKind::Invalid, format!("\"{place}\" may not be accessed: {}", innermost(&source)))
                }
                Some(std::io::ErrorKind::NotADirectory) => (ErrorKind::NotFound, format!("\"{place}\" does not exist")),
                Some(std::io::ErrorKind::IsADirectory) => {
                    (ErrorKind::Invalid, format!("\"{place}\" is a folder, not a file"))
                }
                // The store has already retried all other failures: timeouts, throttling, broken connections.
                _ => (ErrorKind::Unavailable, format!("the store of \"{place}\" failed: {}", innermost(&source))),
            },
        };
        Self::new(kind, message).with_source(source)
    }
}

/// The text of the last error in the chain. object_store wraps it in three sentences without information.
fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut last = error;
    while let Some(next) = last.source() {
        last = next;
    }
    last.to_string()
}

fn io_kind(error: &(dyn StdError + 'static)) -> Option<std::io::ErrorKind> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return Some(io.kind());
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_file_is_the_callers_to_fix() {
        let io = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let store = StoreError::Generic { store: "LocalFileSystem", source: Box::new(io) };
        let error = Error::from_store("/data/a.parquet", store);
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(error.to_string(), "\"/data/a.parquet\" may not be accessed: permission denied");
    }

    #[test]
    fn a_failure_of_the_store_can_be_retried() {
        let store = StoreError::Generic { store: "S3", source: "connection reset".into() };
        let error = Error::from_store("s3://b/a", store);
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.to_string(), "the store of \"s3://b/a\" failed: connection reset");
        assert!(error.source().is_some());
    }
}
