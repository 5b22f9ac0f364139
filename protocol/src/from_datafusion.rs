//! Converts errors of DataFusion to errors of a feed.

use std::io;

use datafusion::arrow::error::ArrowError;
use datafusion::error::DataFusionError;
use forebay_diagnostics::{lower_first, plain_message, unwrapped};

use crate::error::{Error, ErrorKind};

impl From<DataFusionError> for Error {
    fn from(error: DataFusionError) -> Self {
        // The message of this check is the whole plan.
        if matches!(&error, DataFusionError::Context(rule, _) if rule == "SanityCheckPlan") {
            let message = "DataFusion made a plan of this query that fails its own check, which is a fault";
            return Self::caused_by(ErrorKind::Internal, message, error)
                .with_hint("report it with the query; until it is fixed, write the query in another way");
        }
        let kind = match error.find_root() {
            DataFusionError::ResourcesExhausted(_) => ErrorKind::Exhausted,
            DataFusionError::Plan(_)
            | DataFusionError::SchemaError(..)
            | DataFusionError::NotImplemented(_)
            | DataFusionError::Configuration(_)
            | DataFusionError::SQL(..) => ErrorKind::Invalid,
            DataFusionError::Internal(_) => ErrorKind::Internal,
            DataFusionError::IoError(error) => kind_of_io(error),
            // Rows that are spilled are written as Arrow IPC.
            DataFusionError::ArrowError(error, _) if let ArrowError::IoError(_, error) = error.as_ref() => {
                kind_of_io(error)
            }
            DataFusionError::External(error) if let Some(error) = error.downcast_ref() => kind_of_io(error),
            // Plans run over rows already in memory, so any other failure is caused by the rows' values.
            _ => ErrorKind::Data,
        };
        let message = datafusion_message(&error);
        Self::caused_by(kind, message, error)
    }
}

/// The kind of an operating system's error. It depends on the state of the machine and never on the values of rows.
fn kind_of_io(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Exhausted,
        _ => ErrorKind::Unavailable,
    }
}

/// The innermost message, in our form.
fn datafusion_message(error: &DataFusionError) -> String {
    match error.find_root() {
        // Operators and functions of the embedding program word these.
        DataFusionError::Execution(text) | DataFusionError::ResourcesExhausted(text) => worded(text),
        // Of operators, or of a library that DataFusion uses.
        DataFusionError::External(external) if !external.is::<ArrowError>() => worded(&external.to_string()),
        other => plain_message(&other.strip_backtrace()),
    }
}

/// A message that may be in our form already.
fn worded(text: &str) -> String {
    let text = unwrapped(text);
    // The name of an exception stays, as in `ValueError: …`.
    match text.split(' ').next().is_some_and(|first| first.ends_with(':')) {
        true => text,
        false => lower_first(text.trim_end_matches('.')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_from_outside_have_our_form() {
        let check = |error: DataFusionError, expect: &str| assert_eq!(Error::from(error).message(), expect);
        let external = |text: &str| DataFusionError::External(text.into());
        check(external("External error: Parquet error: EOF: The file is short."), "the file is short");
        let nested = DataFusionError::External(Box::new(external("Io error: No such device (os error 19)")));
        check(nested.context("while computing"), "no such device (os error 19)");
        let io = io::Error::other("tokenize: \"vocab\" \"a.json\" is gone");
        check(DataFusionError::External(Box::new(io)), "tokenize: \"vocab\" \"a.json\" is gone");
        check(external("ValueError: Odd."), "ValueError: Odd.");
        check(DataFusionError::Execution("It is odd.".to_owned()), "it is odd");
        check(external("Odd.\nThis issue was likely caused by a bug in DataFusion's code"), "odd");
    }

    #[test]
    fn a_plan_that_fails_its_check_is_not_shown() {
        let refused = DataFusionError::Plan("Plan: [\"SortPreservingMergeExec\"] does not satisfy …".to_owned());
        let error = Error::from(refused.context("SanityCheckPlan"));
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert!(!error.message().contains("SortPreservingMergeExec"), "{error}");
    }

    #[test]
    fn errors_of_the_machine_are_not_errors_of_rows() {
        let check = |error: DataFusionError, kind: ErrorKind| assert_eq!(Error::from(error).kind(), kind);
        let external = |kind: io::ErrorKind| DataFusionError::External(Box::new(io::Error::new(kind, "why")));
        check(external(io::ErrorKind::StorageFull), ErrorKind::Exhausted);
        check(external(io::ErrorKind::NotFound).context("while computing"), ErrorKind::Unavailable);
        check(DataFusionError::IoError(io::Error::from_raw_os_error(24)), ErrorKind::Unavailable);
        let full = ArrowError::IoError("no space".to_owned(), io::ErrorKind::StorageFull.into());
        check(full.into(), ErrorKind::Exhausted);
        check(DataFusionError::Execution("a row".to_owned()), ErrorKind::Data);
        check(DataFusionError::External("a row".into()), ErrorKind::Data);
    }
}
