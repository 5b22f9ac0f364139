//! Kinds of errors, and the error of a text or a number that makes no sense.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What the caller should do about an error. This is the kind that reaches the wire, as snake case in JSON; a kind that
/// a newer process sends and this one does not know is read as `Internal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// Fix the request.
    Invalid,
    /// Name something that exists.
    NotFound,
    /// Something changed underneath: reload and retry.
    Conflict,
    /// Show that you may: a token, a ticket or a certificate was missing or wrong.
    Denied,
    /// Retry later.
    Unavailable,
    /// Lower the load.
    Exhausted,
    /// Stored bytes are wrong.
    Data,
    /// Call something else: what was called does not exist here.
    Unsupported,
    /// Our bug.
    #[serde(other)]
    Internal,
}

/// What is wrong, and how to fix it where we know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What is wrong.
    pub message: String,
    /// What to do.
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
    fn a_kind_is_a_word_on_the_wire_and_an_unknown_one_is_internal() {
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
