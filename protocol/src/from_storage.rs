//! Converts errors of the storage crate to errors of a feed.

use forebay_diagnostics::unwrapped;

use crate::error::{Error, ErrorKind};

impl From<forebay_storage::Error> for Error {
    fn from(error: forebay_storage::Error) -> Self {
        let kind = match error.kind() {
            forebay_storage::ErrorKind::Invalid => ErrorKind::Invalid,
            forebay_storage::ErrorKind::NotFound => ErrorKind::NotFound,
            forebay_storage::ErrorKind::Conflict => ErrorKind::Conflict,
            forebay_storage::ErrorKind::Denied => ErrorKind::Denied,
            forebay_storage::ErrorKind::Unavailable => ErrorKind::Unavailable,
            forebay_storage::ErrorKind::Data => ErrorKind::Data,
            forebay_storage::ErrorKind::Internal => ErrorKind::Internal,
        };
        let (message, hint) = (unwrapped(&error.to_string()), error.hint().map(str::to_owned));
        let caused = Self::caused_by(kind, message, error);
        match hint {
            Some(hint) => caused.with_hint(hint),
            None => caused,
        }
    }
}
