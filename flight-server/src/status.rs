//! The only map from the engine's errors to gRPC codes: no other file of this crate makes a status of an error.

use arrow::error::ArrowError;
use forebay_engine::{Error, ErrorKind};
use tonic::{Code, Status};

/// The status that a client receives. Its message ends with the hint, if there is one, after a line break.
pub(crate) fn status(error: &Error) -> Status {
    let code = match error.kind() {
        ErrorKind::Invalid => Code::InvalidArgument,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::Conflict => Code::FailedPrecondition,
        ErrorKind::Denied => Code::Unauthenticated,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::Exhausted => Code::ResourceExhausted,
        ErrorKind::Data => Code::DataLoss,
        ErrorKind::Unsupported => Code::Unimplemented,
        ErrorKind::Internal => Code::Internal,
    };
    Status::new(code, error.to_string())
}

/// The status of a caller with a valid token but without permission. A trainer that gets it for its ticket asks for a
/// new one; it could not do anything about its token.
pub(crate) fn forbidden(error: &Error) -> Status {
    match error.kind() {
        ErrorKind::Denied => Status::new(Code::PermissionDenied, error.to_string()),
        _ => status(error),
    }
}

/// A status of a new error.
pub(crate) fn failure(kind: ErrorKind, message: impl Into<String>) -> Status {
    status(&Error::new(kind, message))
}

/// The error for a schema that cannot be encoded.
pub(crate) fn unsendable_schema(error: &ArrowError) -> Status {
    failure(ErrorKind::Internal, format!("cannot encode the schema: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_code_of_its_own() {
        let kinds = [
            (ErrorKind::Invalid, Code::InvalidArgument),
            (ErrorKind::NotFound, Code::NotFound),
            (ErrorKind::Conflict, Code::FailedPrecondition),
            (ErrorKind::Denied, Code::Unauthenticated),
            (ErrorKind::Unavailable, Code::Unavailable),
            (ErrorKind::Exhausted, Code::ResourceExhausted),
            (ErrorKind::Data, Code::DataLoss),
            (ErrorKind::Unsupported, Code::Unimplemented),
            (ErrorKind::Internal, Code::Internal),
        ];
        for (kind, code) in kinds {
            let error = Error::new(kind, "no").with_hint("yes");
            assert_eq!((status(&error).code(), status(&error).message()), (code, "no\nhint: yes"));
            let forbidden = forbidden(&error).code();
            assert_eq!(forbidden, if kind == ErrorKind::Denied { Code::PermissionDenied } else { code });
        }
    }

    /// The sources of this crate without their tests.
    fn sources() -> Vec<(String, String)> {
        let mut folders = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
        let mut sources = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let text = text.split("#[cfg(test)]").next().unwrap_or_default().to_owned();
                    sources.push((path.display().to_string(), text));
                }
            }
        }
        sources
    }

    #[test]
    fn no_other_file_makes_a_status_of_an_error() {
        let makers = ["invalid_argument", "not_found", "failed_precondition", "unauthenticated", "permission_denied"];
        let others =
            ["unavailable", "resource_exhausted", "data_loss", "unimplemented", "internal", "unknown", "aborted"];
        let bypasses: Vec<_> = sources()
            .into_iter()
            .filter(|(_, text)| makers.iter().chain(&others).any(|maker| text.contains(&format!("Status::{maker}("))))
            .map(|(path, _)| path)
            .collect();
        assert_eq!(bypasses, [""; 0]);
    }
}
