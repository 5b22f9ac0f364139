//! How a loop waits for the tasks behind it, and how long for trouble to pass.

use std::time::Duration;

use forebay_delivery::{Millis, Token};
use forebay_protocol::{Error, ErrorKind};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// How long trouble may last before it is an error, if nothing is said; and at most, which is some decades.
const PATIENCE: Duration = Duration::from_secs(30);
const PATIENCE_MS_MAX: Millis = 1 << 40;
/// How long the last message may take.
pub(crate) const FAREWELL: Duration = Duration::from_secs(1);

/// How long trouble may last before it is an error.
pub(crate) fn patience_ms(said: Option<Duration>) -> Millis {
    Millis::try_from(said.unwrap_or(PATIENCE).as_millis()).unwrap_or(Millis::MAX).min(PATIENCE_MS_MAX)
}

/// Waits until there may be something for the loop, or there never will be because the driver is gone. `false` if
/// neither happens before the deadline.
pub(crate) async fn moved(moved: &Notify, driver: &mut JoinSet<()>, deadline: Option<Instant>) -> bool {
    tokio::select! {
        () = moved.notified() => true,
        Some(_) = driver.join_next() => true,
        () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => false,
    }
}

/// A driver ends only when it is told to, or has said why.
pub(crate) fn gone() -> Error {
    Error::new(ErrorKind::Internal, "the task that talks to the dispatcher is gone")
}

/// An error that may pass later says where to resume then.
pub(crate) fn with_resume_hint(error: Error, last: Option<&Token>) -> Error {
    match last {
        Some(token) if error.kind() == ErrorKind::Unavailable => {
            error.with_hint(format!("once the server is back, resume from {token}"))
        }
        _ => error,
    }
}
