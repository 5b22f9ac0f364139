//! Time as the state machines take it: an argument.

/// Milliseconds of a clock that only goes forward.
pub type Millis = u64;
