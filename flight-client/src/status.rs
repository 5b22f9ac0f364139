//! The only map from gRPC statuses and broken connections to the engine's errors.

use forebay_delivery::messages::Report;
use forebay_protocol::{Error, ErrorKind};
use tonic::{Code, Status};

use crate::connect::is_tls;

/// The connection to the server broke while in use.
pub(crate) fn lost(uri: &str, cause: &str) -> Error {
    if let Some(error) = mistaken(uri, cause) {
        return error;
    }
    Error::new(ErrorKind::Unavailable, format!("lost the server at {uri}: {cause}"))
        .with_hint("check that it runs, then read again")
}

/// A server answers at `uri`, but not as Forebay does.
pub(crate) fn not_forebay(uri: &str, cause: &str) -> Error {
    if let Some(error) = mistaken(uri, cause) {
        return error;
    }
    let hint = "check host and port: `forebay serve` says where it listens";
    foreign(ErrorKind::Unavailable, uri, cause).with_hint(if is_tls(uri) {
        hint.to_owned()
    } else {
        format!("{hint}; if it serves TLS, write grpc+tls://")
    })
}

/// The error for a server at `uri` that is not Forebay's.
pub(crate) fn foreign(kind: ErrorKind, uri: &str, cause: &str) -> Error {
    Error::new(kind, format!("{uri} does not answer as a Forebay server does: {cause}"))
}

/// The engine's error that the server sent, or the result of `broken` for a broken connection.
pub(crate) fn error_of(uri: &str, status: &Status, broken: impl Fn(&str) -> Error) -> Error {
    sent_error(uri, status).unwrap_or_else(|cause| broken(&cause))
}

/// The engine's error that the server sent.
///
/// # Errors
/// Returns the cause if the connection broke.
pub(crate) fn sent_error(uri: &str, status: &Status) -> Result<Error, String> {
    let sent = std::error::Error::source(status).is_none();
    let kind = match status.code() {
        // The server's own limit on the size of requests is gRPC's OUT_OF_RANGE.
        Code::InvalidArgument | Code::OutOfRange => ErrorKind::Invalid,
        Code::Unauthenticated | Code::PermissionDenied => ErrorKind::Denied,
        Code::NotFound => ErrorKind::NotFound,
        Code::FailedPrecondition | Code::Aborted => ErrorKind::Conflict,
        Code::ResourceExhausted => ErrorKind::Exhausted,
        Code::DataLoss => ErrorKind::Data,
        // Another service, or another version of Forebay. Retrying does not help.
        Code::Unimplemented => {
            let hint = "check host and port, and that the same version of forebay runs there";
            return Ok(foreign(ErrorKind::Invalid, uri, status.message()).with_hint(hint));
        }
        Code::Unavailable if sent => ErrorKind::Unavailable,
        Code::Internal if sent => ErrorKind::Internal,
        // A broken connection surfaces as Unknown, Internal or Cancelled with a transport error inside.
        _ => return Err(std::error::Error::source(status).map_or_else(|| status.message().to_owned(), root_cause)),
    };
    let (message, hint) = match status.message().split_once("\nhint: ") {
        Some((message, hint)) => (message, Some(hint.to_owned())),
        None => (status.message(), None),
    };
    let retry = kind.may_pass() || status.code() == Code::Aborted;
    Ok(Error::from(&Report { kind, message: message.to_owned(), hint, retry }))
}

/// The innermost error's message.
pub(crate) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// A connection that can never be established: only one side speaks TLS, or it does not trust the other.
fn mistaken(uri: &str, cause: &str) -> Option<Error> {
    // HTTP/2 decodes a TLS alert, or an HTTP/1 answer, as a frame of several megabytes.
    if !is_tls(uri) && cause.contains("frame with invalid size") {
        let hint =
            "if it serves TLS, write grpc+tls://; else check host and port: `forebay serve` says where it listens";
        return Some(foreign(ErrorKind::Denied, uri, "it does not speak HTTP/2 in plain text").with_hint(hint));
    }
    tls_failure(uri, cause)
}

/// Turns a rustls error into a message with a fix. Matches on text, since HTTP/2 passes on nothing else.
pub(crate) fn tls_failure(uri: &str, cause: &str) -> Option<Error> {
    let has = |text: &str| cause.contains(text);
    let (message, hint) = if has("invalid peer certificate") {
        if has("UnknownIssuer") {
            (
                "its certificate is not signed by a CA that is trusted here",
                "give the CA's certificate with the option \"tls.ca\"",
            )
        } else if has("NotValidForName") || has("not valid for name") {
            (
                "its certificate is for another name",
                "connect to a name in the certificate, or give that name with the option \"tls.server_name\"",
            )
        } else if has("xpired") {
            ("its certificate has expired", "give the server a new certificate, and check this machine's clock")
        } else if has("CaUsedAsEndEntity") {
            (
                "its certificate is a CA certificate, not a server certificate",
                "give the server a certificate that the CA signed, with its option \"tls.cert\"",
            )
        } else {
            (cause, "check the server's certificate, and the option \"tls.ca\" here")
        }
    } else if has("received corrupt message") {
        ("it does not speak TLS", "write grpc:// if the server is meant to speak plain text")
    } else if has("handshake eof") {
        ("it hung up during the TLS handshake", "write grpc:// if the server is meant to speak plain text")
    } else if has("fatal alert: CertificateRequired") {
        ("it asks for a client certificate", "give yours with the option \"tls.cert\" and the option \"tls.key\"")
    } else if has("received fatal alert") {
        let hint = "check that the server's option \"tls.client_ca\" names the CA that signed your certificate";
        return Some(denied(uri, &format!("it refused the TLS connection: {cause}"), hint));
    } else {
        return None;
    };
    Some(denied(uri, message, hint))
}

fn denied(uri: &str, message: &str, hint: &str) -> Error {
    Error::new(ErrorKind::Denied, format!("no secure connection to {uri}: {message}")).with_hint(hint)
}
