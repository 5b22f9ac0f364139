//! How a reader's loop waits for its background tasks, and how long it tolerates trouble.

use std::time::Duration;

use forebay_delivery::{Millis, Token, WindowId};
use forebay_protocol::{Error, ErrorKind};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Default time that trouble may last before it becomes an error. The maximum is some decades.
const PATIENCE: Duration = Duration::from_secs(30);
const PATIENCE_MS_MAX: Millis = 1 << 40;
/// Time limit for the last message to the dispatcher.
pub(crate) const FAREWELL: Duration = Duration::from_secs(1);

/// A loop that has waited for longer is reported.
const LONG_MS: Millis = 30_000;

/// The loop's waits for samples. Each long wait is reported once.
#[derive(Debug, Default)]
pub(crate) struct LongWaits {
    is_told: bool,
}

impl LongWaits {
    /// Returns the loop's wait, if it should be reported now: the window, and the milliseconds so far.
    pub(crate) fn newly_long(&mut self, waiting: Option<(WindowId, Millis)>) -> Option<(WindowId, Millis)> {
        let long = waiting.filter(|(_, waited)| *waited >= LONG_MS);
        let was_told = std::mem::replace(&mut self.is_told, long.is_some());
        long.filter(|_| !was_told)
    }
}

/// How long trouble may last before it becomes an error.
pub(crate) fn patience_ms(said: Option<Duration>) -> Millis {
    Millis::try_from(said.unwrap_or(PATIENCE).as_millis()).unwrap_or(Millis::MAX).min(PATIENCE_MS_MAX)
}

/// Waits until the loop may have something to do, or the driver has ended. Returns `false` if the deadline passes
/// first.
pub(crate) async fn moved(moved: &Notify, driver: &mut JoinSet<()>, deadline: Option<Instant>) -> bool {
    tokio::select! {
        () = moved.notified() => true,
        Some(_) = driver.join_next() => true,
        () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => false,
    }
}

/// The error for a driver that ended without reporting why.
pub(crate) fn gone() -> Error {
    Error::new(ErrorKind::Internal, "the task that talks to the dispatcher has stopped")
}

/// Adds a resume hint to an error that may pass.
pub(crate) fn with_resume_hint(error: Error, last: Option<&Token>) -> Error {
    match last {
        Some(token) if error.kind() == ErrorKind::Unavailable => {
            let hint = error.hint().unwrap_or("wait until it is back").to_owned();
            error.with_hint(format!("{hint}; resume from {token}"))
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_long_wait_is_told_once() {
        let window = |index| WindowId { epoch: 0, index };
        let mut waits = LongWaits::default();
        let mut told = |wait| waits.newly_long(wait);
        assert_eq!(told(None), None);
        assert_eq!(told(Some((window(0), LONG_MS - 1))), None);
        assert_eq!(told(Some((window(0), LONG_MS))), Some((window(0), LONG_MS)));
        // The window that it needs may turn out to be another one.
        assert_eq!(told(Some((window(1), 2 * LONG_MS))), None);
        assert_eq!(told(Some((window(2), 10))), None);
        assert_eq!(told(Some((window(2), LONG_MS + 1))), Some((window(2), LONG_MS + 1)));
        assert_eq!([told(None), told(Some((window(3), LONG_MS)))], [None, Some((window(3), LONG_MS))]);
    }
}
