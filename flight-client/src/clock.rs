//! The clock of a reader, in the milliseconds that the state machines take.

use std::time::Duration;

use forebay_delivery::Millis;
use tokio::time::Instant;

/// Milliseconds since the reader started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> Millis {
        self.0.elapsed().as_millis() as Millis
    }

    pub(crate) fn instant(self, at: Millis) -> Instant {
        self.0 + Duration::from_millis(at)
    }
}
