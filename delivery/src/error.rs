//! Kinds of errors, and the error of invalid input.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What the caller should do about an error.
///
/// This kind reaches the wire, as snake case in JSON. A kind that only a newer process knows is read as `Internal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// Fix the request.
    Invalid,
    /// Name something that exists.
    NotFound,
    /// The state has changed: reload and retry.
    Conflict,
    /// Authenticate: a token, a ticket or a certificate was missing or wrong.
    Denied,
    /// Retry later.
    Unavailable,
    /// Lower the load.
    Exhausted,
    /// The stored bytes are wrong.
    Data,
    /// Call something else: the called function does not exist here.
    Unsupported,
    /// A bug in Forebay.
    #[serde(other)]
    Internal,
}

impl ErrorKind {
    /// Returns whether a worker's error may pass: another worker, or a later attempt, may succeed. Such an error says
    /// nothing about the data.
    pub fn may_pass(self) -> bool {
        matches!(self, Self::Unavailable | Self::Exhausted | Self::Internal)
    }
}

/// The error of invalid input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What is wrong.
    pub message: String,
    /// How to fix it.
    pub hint: Option<&'static str>,
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    pub(crate) fn with_hint(self, hint: &'static str) -> Self {
        Self { hint: Some(hint), ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_words_on_the_wire_and_unknown_ones_are_internal() {
        let kinds = [
            (ErrorKind::Invalid, "invalid"),
            (ErrorKind::NotFound, "not_found"),
            (ErrorKind::Conflict, "conflict"),
            (ErrorKind::Denied, "denied"),
            (ErrorKind::Unavailable, "unavailable"),
            (ErrorKind::Exhausted, "exhausted"),
            (ErrorKind::Data, "data"),
            (ErrorKind::Unsupported, "unsupported"),
            (ErrorKind::Internal, "internal"),
        ];
        for (kind, word) in kinds {
            let text = serde_json::to_string(&kind).expect("plain data");
            assert_eq!(text, format!("\"{word}\""));
            assert_eq!(serde_json::from_str::<ErrorKind>(&text).expect("own text"), kind);
        }
        let unknown = serde_json::from_str::<ErrorKind>("\"of_another_time\"");
        assert_eq!(unknown.expect("any word"), ErrorKind::Internal);
    }
}
