//! Memory limits, and their defaults: a share of what the process's container or unit may use.
//!
//! Linux kills a process that exceeds the limit of its control group, so a default that does not know the limit would
//! be wrong in every small container. Docker, Kubernetes (`resources.limits.memory`) and systemd (`MemoryMax=`) all set
//! this limit.

use std::path::{Path, PathBuf};

use forebay_protocol::{OptionSet, SessionOptions};

/// The memory for windows of a process that computes for others, where nothing limits the process.
const WINDOWS_BYTES: u64 = 1 << 30;
/// The most bytes of results that pieces may have beyond those of one per thread.
const WAITING_BYTES: u64 = 128 << 20;
/// Version 1 writes about 2^63 where there is no limit.
const UNLIMITED_BYTES: u64 = 1 << 60;

/// The memory that one feed may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FeedMemory {
    /// Windows held ahead of the reader.
    pub(crate) windows_bytes: u64,
    /// All tables that it joins.
    pub(crate) lookup_bytes: u64,
    /// Results of pieces beyond one per thread.
    pub(crate) waiting_bytes: u64,
}

impl FeedMemory {
    /// The given limits. Those that are not given are shares of the memory limit. Without a memory limit, they are
    /// shares of half of what the process may use, and at most the defaults.
    pub(crate) fn of(memory_limit: Option<u64>, windows_bytes: Option<u64>, lookup_bytes: Option<u64>) -> Self {
        Self::within(memory_limit, process_limit(), windows_bytes, lookup_bytes)
    }

    fn within(
        memory_limit: Option<u64>,
        process_bytes: Option<u64>,
        windows_bytes: Option<u64>,
        lookup_bytes: Option<u64>,
    ) -> Self {
        let defaults = SessionOptions::defaults();
        let share = |of: u64, default: Option<u64>| match (memory_limit, process_bytes) {
            (Some(limit), _) => limit / of,
            (None, process) => default.unwrap_or(u64::MAX).min(process.map_or(u64::MAX, |bytes| bytes / 2 / of)),
        };
        Self {
            windows_bytes: windows_bytes.unwrap_or_else(|| share(2, defaults.window_memory_limit)),
            lookup_bytes: lookup_bytes.unwrap_or_else(|| share(4, defaults.lookup_memory_limit).max(1)),
            waiting_bytes: share(8, Some(WAITING_BYTES)).min(WAITING_BYTES),
        }
    }
}

/// The memory that a process which computes for others takes for windows and joined tables, if nothing else is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryDefaults {
    /// The limit of the control group, if it has one.
    pub group_bytes: Option<u64>,
    /// Windows of all feeds.
    pub windows_bytes: u64,
    /// All tables that one feed joins.
    pub lookup_bytes: u64,
}

impl MemoryDefaults {
    /// Half of the control group's limit for windows, and at most a quarter for joined tables. The rest is for the
    /// batches being computed, connections and the program.
    pub fn of_this_process() -> Self {
        Self::of(process_limit())
    }

    fn of(group_bytes: Option<u64>) -> Self {
        let lookup_bytes = SessionOptions::defaults().lookup_memory_limit.unwrap_or(u64::MAX);
        Self {
            group_bytes,
            windows_bytes: group_bytes.map_or(WINDOWS_BYTES, |limit| (limit / 2).max(1)),
            lookup_bytes: group_bytes.map_or(lookup_bytes, |limit| (limit / 4).clamp(1, lookup_bytes)),
        }
    }
}

/// The memory that a query over whole tables may take, if none is given: half of what the process may use.
pub(crate) fn batch_memory_bytes() -> u64 {
    let bytes = process_limit().or_else(|| machine_bytes(Path::new("/")));
    bytes.map_or(WINDOWS_BYTES, |bytes| (bytes / 2).max(1))
}

/// What the control group of this process may use, if that is limited.
fn process_limit() -> Option<u64> {
    let root = Path::new("/");
    group_limit(root).map(|limit| limit.min(machine_bytes(root).unwrap_or(limit)))
}

/// The memory of the machine. A limit above it limits nothing.
fn machine_bytes(root: &Path) -> Option<u64> {
    let memory = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let total = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// The least limit of this process's control group and of those above it, of either version. `root` is the folder that
/// has `proc` and `sys`.
fn group_limit(root: &Path) -> Option<u64> {
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    groups.lines().filter_map(|line| limit_of(root, line)).min()
}

/// The limit of a line of `/proc/self/cgroup`: a hierarchy, its controllers and the path of the group.
fn limit_of(root: &Path, line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':');
    let (hierarchy, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let (mount, file) = match hierarchy == "0" && controllers.is_empty() {
        true => ("sys/fs/cgroup", "memory.max"),
        false if controllers.split(',').any(|name| name == "memory") => {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        false => return None,
    };
    let mount = root.join(mount);
    // In a container, the path may be the host's while the mount begins at the container's own group. The folders that
    // do not exist have no limit, and the mount itself is always looked at.
    let group: PathBuf = mount.join(path.trim_start_matches('/'));
    let above = group.ancestors().take_while(|folder| folder.starts_with(&mount));
    above.filter_map(|folder| limit_in(&folder.join(file))).min()
}

/// The limit in a file; `None` for `max`.
fn limit_in(file: &Path) -> Option<u64> {
    let limit = std::fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (limit < UNLIMITED_BYTES).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit where `proc/self/cgroup` has this text, and these files have these limits.
    fn limit(groups: &str, files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().expect("a temporary folder");
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        };
        write("proc/self/cgroup", groups);
        files.iter().for_each(|(name, text)| write(&format!("sys/fs/cgroup/{name}"), text));
        group_limit(root.path())
    }

    #[test]
    fn the_least_limit_of_a_group_and_those_above_counts() {
        let unit = "0::/system.slice/forebay.service\n";
        let of_unit = "system.slice/forebay.service/memory.max";
        let of_slice = "system.slice/memory.max";
        assert_eq!(limit(unit, &[(of_unit, "4294967296\n"), (of_slice, "max\n")]), Some(4 << 30));
        assert_eq!(limit(unit, &[(of_unit, "max\n"), (of_slice, "1073741824\n")]), Some(1 << 30));
        assert_eq!(limit(unit, &[(of_unit, "max\n"), (of_slice, "max\n")]), None);
        assert_eq!(limit(unit, &[]), None);
        // A container with a namespace of its own sees its group as the root.
        assert_eq!(limit("0::/\n", &[("memory.max", "2147483648\n")]), Some(2 << 30));
    }

    #[test]
    fn version_1_has_limits_too() {
        let groups = "12:cpu,cpuacct:/docker/ab\n4:memory:/docker/ab\n0::/docker/ab\n";
        let own = "memory/docker/ab/memory.limit_in_bytes";
        assert_eq!(limit(groups, &[(own, "1073741824\n")]), Some(1 << 30));
        assert_eq!(limit(groups, &[(own, "9223372036854771712\n")]), None);
        // A container without a namespace of its own: the path is the host's, and the mount is the container's.
        assert_eq!(limit(groups, &[("memory/memory.limit_in_bytes", "536870912\n")]), Some(512 << 20));
        // Another controller's files do not count.
        assert_eq!(limit("4:memory:/a\n", &[("cpu/a/memory.limit_in_bytes", "1024\n")]), None);
    }

    #[test]
    fn the_memory_of_the_machine_is_known() {
        let root = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(machine_bytes(root.path()), None);
        std::fs::create_dir(root.path().join("proc")).expect("a folder");
        std::fs::write(root.path().join("proc/meminfo"), "MemFree: 7 kB\nMemTotal:       24569452 kB\n")
            .expect("a file");
        assert_eq!(machine_bytes(root.path()), Some(24_569_452 * 1024));
    }

    #[test]
    fn a_machine_without_control_groups_has_no_limit() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(group_limit(folder.path()), None);
        assert_eq!(limit("gibberish\n:\n", &[("memory.max", "7\n")]), None);
    }

    #[test]
    fn windows_get_half_and_joined_tables_a_quarter() {
        let of = |limit| {
            let of = MemoryDefaults::of(limit);
            (of.windows_bytes, of.lookup_bytes)
        };
        assert_eq!(of(None), (1 << 30, 1 << 30));
        assert_eq!(of(Some(512 << 20)), (256 << 20, 128 << 20));
        assert_eq!(of(Some(64 << 30)), (32 << 30, 1 << 30));
        assert_eq!(of(Some(0)), (1, 1));
    }

    #[test]
    fn a_feed_takes_shares_of_the_limit_and_what_is_given() {
        let of = |limit, process, windows, lookup| {
            let FeedMemory { windows_bytes, lookup_bytes, waiting_bytes } =
                FeedMemory::within(limit, process, windows, lookup);
            [windows_bytes, lookup_bytes, waiting_bytes]
        };
        let defaults = [128 << 20, 1 << 30, 128 << 20];
        assert_eq!(of(None, None, None, None), defaults);
        assert_eq!(of(None, Some(64 << 30), None, None), defaults);
        assert_eq!(of(None, Some(256 << 20), None, None), [64 << 20, 32 << 20, 16 << 20]);
        assert_eq!(of(Some(4 << 30), Some(256 << 20), None, None), [2 << 30, 1 << 30, 128 << 20]);
        assert_eq!(of(Some(64 << 20), None, None, None), [32 << 20, 16 << 20, 8 << 20]);
        assert_eq!(of(Some(64 << 20), None, Some(0), Some(7)), [0, 7, 8 << 20]);
        assert_eq!(of(Some(1), None, None, None), [0, 1, 0]);
    }
}
