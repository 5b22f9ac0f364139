//! The only map from the engine's errors to gRPC codes: no other file of this crate makes a status of an error.

use std::borrow::Cow;

use arrow::error::ArrowError;
use forebay_diagnostics::shortened;
use forebay_engine::{Error, ErrorKind};
use tonic::{Code, Status};

/// The most bytes of an encoded message.
const MESSAGE_BYTES_MAX: usize = 8 << 10;

/// The status that a client receives. Its message ends with the hint, if there is one, after a line break.
pub(crate) fn status(error: &Error) -> Status {
    let code = match error.kind() {
        ErrorKind::Invalid => Code::InvalidArgument,
        ErrorKind::NotFound => Code::NotFound,
        // gRPC's code for a conflict after which the caller should ask again.
        ErrorKind::Conflict if error.may_pass() => Code::Aborted,
        ErrorKind::Conflict => Code::FailedPrecondition,
        ErrorKind::Denied => Code::Unauthenticated,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::Exhausted => Code::ResourceExhausted,
        ErrorKind::Data => Code::DataLoss,
        ErrorKind::Unsupported => Code::Unimplemented,
        ErrorKind::Internal => Code::Internal,
    };
    Status::new(code, sendable(&error.to_string()))
}

/// The message in a form that fits into the trailers of a response, which vanish above 16 KiB.
fn sendable(message: &str) -> Cow<'_, str> {
    // gRPC sends each byte that is not printable ASCII as three.
    let is_plain = |byte: &u8| (b' '..=b'~').contains(byte) && *byte != b'%';
    let encoded = |text: &str| text.bytes().map(|byte| if is_plain(&byte) { 1 } else { 3 }).sum::<usize>();
    let mut sent = Cow::Borrowed(message);
    let mut chars = MESSAGE_BYTES_MAX;
    while encoded(&sent) > MESSAGE_BYTES_MAX {
        sent = shortened(message, chars);
        chars /= 2;
    }
    sent
}

/// The status of a caller with a valid token but without permission. A trainer that gets it for its ticket asks for a
/// new one; it could not do anything about its token.
pub(crate) fn forbidden(error: &Error) -> Status {
    match error.kind() {
        ErrorKind::Denied => Status::new(Code::PermissionDenied, sendable(&error.to_string())),
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
    use tonic::codegen::http::{HeaderMap, HeaderValue};

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

    #[test]
    fn a_conflict_that_may_pass_has_a_code_of_its_own() {
        let error = Error::new(ErrorKind::Conflict, "no").that_may_pass();
        assert_eq!(status(&error).code(), Code::Aborted);
    }

    #[test]
    fn a_long_message_fits_into_trailers_and_keeps_its_hint() {
        for (cell, length) in [("x", 100_000), ("ü", 100_000), ("%", 5_000), ("x", 100)] {
            let error = Error::new(ErrorKind::Data, format!("cannot read \"{}\"", cell.repeat(length)));
            let status = status(&error.with_hint("give numbers"));
            let mut headers = HeaderMap::new();
            status.add_header(&mut headers).unwrap();
            let sent: usize = headers.values().map(HeaderValue::len).sum();
            assert!(sent < 9 << 10, "{sent} bytes");
            assert!(status.message().starts_with("cannot read \"") && status.message().ends_with("hint: give numbers"));
            assert_eq!(status.message().contains('…'), length > 100);
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
