//! The error type of all parts of a feed: what failed and where, a kind that tells the caller what to do, and often a
//! hint.
//!
//! The conversions from errors of DataFusion and of the storage crate are features of this crate, because Rust requires
//! them beside the type. Only the engine enables them, so a trainer's build has neither dependency.

use std::fmt;
use std::sync::Arc;

use forebay_arrays::ColumnError;
pub use forebay_delivery::ErrorKind;
use forebay_delivery::ReadSettings;
use forebay_delivery::messages::Report;
use forebay_diagnostics::shortened;

/// The most characters of a message between the parts of a cluster.
const REPORT_CHARS_MAX: usize = 4 << 10;
/// The most characters of its hint.
const REPORT_HINT_CHARS_MAX: usize = 1 << 10;

/// The cure of [`Error::empty_epoch`].
const EMPTY_EPOCH_HINT: &str = "use a smaller batch size, or check the query and its files";

/// A specialised result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a feed. Cheap to clone, since one failed window may have several readers.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    stopped: Option<Arc<dyn std::error::Error + Send + Sync>>,
    /// Whether it may pass although others of its kind do not.
    is_passing: bool,
}

impl Error {
    /// An error of `kind` with `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self(Arc::new(Inner { kind, message, hint: None, source: None, stopped: None, is_passing: false }))
    }

    /// An error of `kind` with `message`, caused by `source`.
    pub fn caused_by(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        let (message, source) = (message.into(), Some(Box::new(source) as _));
        Self(Arc::new(Inner { kind, message, hint: None, source, stopped: None, is_passing: false }))
    }

    /// An error in the request, which the caller must fix.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// The error of a feed without a batch for any rank. A reader would read its empty epochs one after another.
    pub fn empty_epoch(settings: &ReadSettings) -> Self {
        let message = format!(
            "an epoch has no batch: the query leaves too few samples, and {} in a global step",
            settings.global_batch()
        );
        Self::invalid(message).with_hint(EMPTY_EPOCH_HINT)
    }

    /// A bug in Forebay.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// The error of a feed whose function ended the program with the exception `by`.
    pub fn of_stop(by: Arc<dyn std::error::Error + Send + Sync>) -> Self {
        let message = format!("a function ended the program: {by}");
        let (kind, stopped) = (ErrorKind::Unavailable, Some(by));
        Self(Arc::new(Inner { kind, message, hint: None, source: None, stopped, is_passing: false }))
    }

    /// The exception with which a function ended the program, if that is the cause.
    pub fn stopped(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        self.0.stopped.as_deref()
    }

    /// The error in the form sent between the parts of a cluster: long texts lose their middle.
    pub fn report(&self) -> Report {
        let sent = |text, chars_max| shortened(text, chars_max).into_owned();
        let (message, hint) = (self.message(), self.hint());
        Report {
            kind: self.kind(),
            message: sent(message, REPORT_CHARS_MAX),
            hint: hint.map(|hint| sent(hint, REPORT_HINT_CHARS_MAX)),
            retry: self.may_pass(),
        }
    }

    /// The same error with a hint.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        let hint = Some(hint.into());
        self.changed(|inner| inner.hint = hint)
    }

    /// The same error with another message, such as one that also says where it happened.
    #[must_use]
    pub fn with_message(self, message: impl Into<String>) -> Self {
        let message = message.into();
        self.changed(|inner| inner.message = message)
    }

    /// The same error, which may pass although others of its kind do not.
    #[must_use]
    pub fn that_may_pass(self) -> Self {
        self.changed(|inner| inner.is_passing = true)
    }

    /// A changed copy, caused by this error.
    fn changed(self, change: impl FnOnce(&mut Inner)) -> Self {
        let Inner { kind, ref message, ref hint, ref stopped, is_passing, .. } = *self.0;
        let (message, hint, stopped) = (message.clone(), hint.clone(), stopped.clone());
        let mut inner = Inner { kind, message, hint, source: None, stopped, is_passing };
        change(&mut inner);
        inner.source = Some(Box::new(self));
        Self(Arc::new(inner))
    }

    /// Whether a later attempt, or one elsewhere, may succeed.
    pub fn may_pass(&self) -> bool {
        self.0.is_passing || self.kind().may_pass()
    }

    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What failed and where.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// How to fix it, if known.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        match &self.0.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| source.as_ref() as _)
    }
}

impl From<&Report> for Error {
    fn from(report: &Report) -> Self {
        let mut error = Self::new(report.kind, &report.message);
        if report.retry && !report.kind.may_pass() {
            error = error.that_may_pass();
        }
        match &report.hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }
}

impl From<forebay_delivery::Error> for Error {
    fn from(error: forebay_delivery::Error) -> Self {
        let invalid = Self::invalid(error.message);
        match error.hint {
            Some(hint) => invalid.with_hint(hint),
            None => invalid,
        }
    }
}

impl From<ColumnError> for Error {
    fn from(error: ColumnError) -> Self {
        let kind = match error {
            ColumnError::Exhausted(_) => ErrorKind::Exhausted,
            ColumnError::Damaged(_) => ErrorKind::Data,
            ColumnError::Internal(_) => ErrorKind::Internal,
        };
        Self::new(kind, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_may_pass_is_sent_as_one() {
        for (error, may_pass) in [
            (Error::new(ErrorKind::Conflict, "taken"), false),
            (Error::new(ErrorKind::Conflict, "taken").that_may_pass().with_hint("ask again"), true),
            (Error::new(ErrorKind::Unavailable, "away"), true),
        ] {
            assert_eq!((error.may_pass(), error.report().retry), (may_pass, may_pass));
            assert_eq!(Error::from(&error.report()).may_pass(), may_pass);
        }
    }

    #[test]
    fn a_long_error_is_sent_without_its_middle() {
        let short = Error::new(ErrorKind::Data, "no").with_hint("yes");
        assert_eq!((&*short.report().message, short.report().hint.as_deref()), ("no", Some("yes")));
        let long = Error::new(ErrorKind::Data, "ä".repeat(100_000)).with_hint("x".repeat(100_000)).report();
        assert_eq!(long.message.chars().count(), REPORT_CHARS_MAX);
        assert_eq!(long.hint.map(|hint| hint.len()), Some(REPORT_HINT_CHARS_MAX - 1 + "…".len()));
    }
}
