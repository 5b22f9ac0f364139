//! The wall clock, which only tickets need.

/// Seconds since 1970.
pub(crate) fn now_unix_seconds() -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "tickets expire by the wall clock; everything else takes its time as an argument"
    )]
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
