//! The one map from the engine's errors to gRPC codes.

use forebay_engine::{Error, ErrorKind};
use tonic::{Code, Status};

/// The status that a client sees; its message holds the hint, if there is one, after a line break.
pub(crate) fn status(error: &Error) -> Status {
    let code = match error.kind() {
        ErrorKind::Invalid => Code::InvalidArgument,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::Conflict => Code::FailedPrecondition,
        ErrorKind::Denied => Code::Unauthenticated,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::Exhausted => Code::ResourceExhausted,
        ErrorKind::Data => Code::DataLoss,
        ErrorKind::Internal => Code::Internal,
    };
    Status::new(code, error.to_string())
}
