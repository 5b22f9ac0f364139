//! CPU time and memory of this process.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};

/// Returns the CPU time of all threads, and the peak memory in bytes.
pub(crate) fn of_this_process() -> (Duration, u64) {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return (Duration::ZERO, 0) };
    let seconds = |time: nix::sys::time::TimeVal| {
        Duration::from_secs(time.tv_sec().unsigned_abs())
            + Duration::from_micros(u64::try_from(time.tv_usec()).unwrap_or(0))
    };
    // Linux counts kibibytes, macOS bytes.
    let unit = if cfg!(target_os = "macos") { 1 } else { 1024 };
    (seconds(usage.user_time()) + seconds(usage.system_time()), usage.max_rss().unsigned_abs() * unit)
}
