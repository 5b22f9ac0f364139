//! Time, which the state machines take as an argument.

/// Milliseconds of a monotonic clock.
pub type Millis = u64;
