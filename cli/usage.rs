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
    let peak = peak_of_program().unwrap_or_else(|| usage.max_rss().unsigned_abs() * unit);
    (seconds(usage.user_time()) + seconds(usage.system_time()), peak)
}

/// The most memory since this program began, in bytes. `getrusage` of Linux also counts the memory of the process that
/// started it.
fn peak_of_program() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    peak.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
