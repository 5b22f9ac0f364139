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
    /// Credentials or a permission are missing.
    Denied,
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

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
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
        if let Some(error) = StoreAnswer::of(&source).map(|answer| answer.error(place)) {
            return error.with_source(source);
        }
        let (kind, message) = match &source {
            StoreError::NotFound { .. } => (ErrorKind::NotFound, format!("\"{place}\" does not exist")),
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
                (ErrorKind::Denied, format!("\"{place}\" may not be accessed: {}", innermost(&source)))
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
                    (ErrorKind::Denied, format!("\"{place}\" may not be accessed: {}", innermost(&source)))
                }
                Some(std::io::ErrorKind::NotADirectory) => (ErrorKind::NotFound, format!("\"{place}\" does not exist")),
                Some(std::io::ErrorKind::IsADirectory) => {
                    (ErrorKind::Invalid, format!("\"{place}\" is a folder, not a file"))
                }
                _ if innermost(&source).contains("no AWS credentials") => {
                    (ErrorKind::Denied, format!("\"{place}\" cannot be accessed: {}", innermost(&source)))
                }
                _ if is_of_settings(&source) => {
                    (ErrorKind::Invalid, format!("\"{place}\" cannot be accessed: {}", innermost(&source)))
                }
                // The store has already retried all other failures: timeouts, throttling, broken connections.
                _ => (ErrorKind::Unavailable, format!("the store of \"{place}\" failed: {}", innermost(&source))),
            },
        };
        Self::new(kind, message).with_source(source)
    }
}

/// Whether no retry helps before a setting changes.
fn is_of_settings(error: &StoreError) -> bool {
    let text = innermost(error);
    ["set AWS_ALLOW_HTTP", "no secure connection"].iter().any(|phrase| text.contains(phrase))
}

/// The text of the last error in the chain. object_store wraps it in three sentences without information.
pub(crate) fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut last = error;
    while let Some(next) = last.source() {
        last = next;
    }
    last.to_string()
}

/// What a store answered with, if it refused a request.
struct StoreAnswer {
    /// Such as `404 Not Found`.
    status: String,
    /// S3's word for the error, such as `NoSuchKey`.
    code: String,
    /// S3's sentence.
    message: String,
}

impl StoreAnswer {
    /// Finds the answer in the text of the error: its type is not public. An answer without S3's XML is not one.
    fn of(error: &StoreError) -> Option<Self> {
        let text = innermost(error);
        let (status, body) = text.split_once("status code: ")?.1.split_once(": ")?;
        let element = |name: &str| {
            let (_, rest) = body.split_once(&format!("<{name}>"))?;
            let (value, _) = rest.split_once(&format!("</{name}>"))?;
            let value = value.replace("&quot;", "\"").replace("&apos;", "'").replace("&lt;", "<").replace("&gt;", ">");
            Some(value.replace("&amp;", "&"))
        };
        let code = element("Code")?;
        Some(Self { status: status.to_owned(), code, message: element("Message").unwrap_or_default() })
    }

    fn error(&self, place: &str) -> Error {
        let Self { status, code, message } = self;
        let message = message.trim().trim_end_matches('.');
        let answered = match message.is_empty() {
            true => format!("the store answered {code} ({status})"),
            false => format!("the store answered {code} ({status}): {message}"),
        };
        let of = |kind, what: &str| Error::new(kind, format!("\"{place}\" {what}: {answered}"));
        match &**code {
            "NoSuchBucket" => {
                let message = format!("the bucket of \"{place}\" does not exist");
                Error::not_found(message).with_hint("check the bucket's name, AWS_REGION and AWS_ENDPOINT_URL")
            }
            "NoSuchKey" => Error::not_found(format!("\"{place}\" does not exist")),
            "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "ExpiredToken" | "InvalidToken" => {
                of(ErrorKind::Denied, "may not be accessed")
                    .with_hint("check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN")
            }
            "PermanentRedirect" | "AuthorizationHeaderMalformed" => {
                of(ErrorKind::Invalid, "is in another region").with_hint("set AWS_REGION to the bucket's region")
            }
            _ => match status.get(..3).and_then(|status| status.parse().ok()) {
                Some(401 | 403) => of(ErrorKind::Denied, "may not be accessed")
                    .with_hint("give these credentials the permissions s3:GetObject and s3:ListBucket"),
                Some(404) => Error::not_found(format!("\"{place}\" does not exist")),
                Some(409) => of(ErrorKind::Conflict, "is being changed"),
                Some(412) => Error::conflict(format!("\"{place}\" was changed by another writer")),
                Some(408 | 429) => of(ErrorKind::Unavailable, "cannot be accessed now"),
                Some(400..=499) => of(ErrorKind::Invalid, "cannot be accessed"),
                _ => of(ErrorKind::Unavailable, "cannot be accessed now"),
            },
        }
    }
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
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert_eq!(error.to_string(), "\"/data/a.parquet\" may not be accessed: permission denied");
    }

    #[test]
    fn an_answer_of_s3_becomes_a_sentence() {
        let check = |status: &str, code: &str, expected: &str, kind| {
            let body =
                format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>It's &quot;x&quot;.</Message>");
            let text = format!("Server returned non-2xx status code: {status}: {body}</Error>");
            let store = StoreError::Generic { store: "S3", source: text.into() };
            let error = Error::from_store("s3://b/a", store);
            assert_eq!((error.to_string().as_str(), error.kind()), (expected, kind));
        };
        check("404 Not Found", "NoSuchBucket", "the bucket of \"s3://b/a\" does not exist", ErrorKind::NotFound);
        check("404 Not Found", "NoSuchKey", "\"s3://b/a\" does not exist", ErrorKind::NotFound);
        let answered = "the store answered AccessDenied (403 Forbidden): It's \"x\"";
        let denied = format!("\"s3://b/a\" may not be accessed: {answered}");
        check("403 Forbidden", "AccessDenied", &denied, ErrorKind::Denied);
        let busy = "\"s3://b/a\" cannot be accessed now: the store answered SlowDown (503 Busy): It's \"x\"";
        check("503 Busy", "SlowDown", busy, ErrorKind::Unavailable);
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
