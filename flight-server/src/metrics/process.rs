//! The metrics that every process has, under the names that Prometheus' own clients use.

use std::fmt;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};

use super::page::Page;

/// Writes the metrics. Omits values that the system does not provide.
pub(super) fn write(page: &mut Page<'_>, started_unix_seconds: u64) -> fmt::Result {
    let cpu = getrusage(UsageWho::RUSAGE_SELF).ok().map(|usage| {
        let [user, system] = [usage.user_time(), usage.system_time()];
        (user.tv_sec() + system.tv_sec()) as f64 + (user.tv_usec() + system.tv_usec()) as f64 / 1e6
    });
    page.total("process_cpu_seconds", "Processor time spent by this process, of user and system", cpu)?;
    let started = started_unix_seconds as f64;
    page.single("process_start_time_seconds", "When this process began, in seconds since 1970", started)?;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = kibibytes(&status, "VmRSS:").map(|kibibytes| kibibytes * 1024.0);
    page.single("process_resident_memory_bytes", "Memory of this process that is in RAM", resident)?;
    let virtual_memory = kibibytes(&status, "VmSize:").map(|kibibytes| kibibytes * 1024.0);
    page.single("process_virtual_memory_bytes", "Address space of this process", virtual_memory)?;
    let files = std::fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as f64);
    page.single("process_open_fds", "Files and sockets that this process has open", files)?;
    let files_max = getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft as f64);
    page.single("process_max_fds", "Files and sockets that this process may have open", files_max)
}

/// Reads a number from `/proc/self/status`.
fn kibibytes(status: &str, key: &str) -> Option<f64> {
    status.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_suffix(" kB")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_status_is_read() {
        let status = "Name:\tforebay\nVmSize:\t  123456 kB\nVmRSS:\t    2048 kB\nThreads:\t7\n";
        assert_eq!((kibibytes(status, "VmRSS:"), kibibytes(status, "VmSize:")), (Some(2048.0), Some(123_456.0)));
        assert_eq!(kibibytes(status, "VmSwap:"), None);
        assert_eq!(kibibytes(status, "Threads:"), None);
    }
}
