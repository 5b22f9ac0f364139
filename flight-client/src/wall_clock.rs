//! The wall clock, which only tickets and certificates need.

/// Seconds since 1970.
pub fn now_unix_seconds() -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "tickets and certificates expire by the wall clock; everything else takes its time as an argument"
    )]
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
