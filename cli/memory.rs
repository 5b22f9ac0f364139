//! The default of a process's memory limits: a share of what its container or unit may use.
//!
//! Linux kills a process that exceeds the limit of its control group, so a default that does not know the limit would
//! be wrong in every small container. Docker, Kubernetes (`resources.limits.memory`) and systemd (`MemoryMax=`) all set
//! this limit.

use std::path::{Path, PathBuf};

/// The default of the memory for windows where nothing limits the process.
const WINDOWS_BYTES: u64 = 1 << 30;
/// The default of the memory for joined tables.
const LOOKUP_BYTES: u64 = 1 << 30;
/// Version 1 writes about 2^63 where there is no limit.
const UNLIMITED_BYTES: u64 = 1 << 60;

/// How much memory windows and joined tables may take, if no flag says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryDefaults {
    /// The limit of the control group, if it has one.
    pub(crate) group_bytes: Option<u64>,
    pub(crate) windows_bytes: u64,
    pub(crate) lookup_bytes: u64,
}

impl MemoryDefaults {
    /// Half of the control group's limit for windows, and at most a quarter for joined tables. The rest is for the
    /// batches being computed, connections and the program.
    pub(crate) fn of_this_process() -> Self {
        Self::of(group_limit(Path::new("/")).map(|limit| limit.min(machine_bytes(Path::new("/")).unwrap_or(limit))))
    }

    fn of(group_bytes: Option<u64>) -> Self {
        let windows_bytes = group_bytes.map_or(WINDOWS_BYTES, |limit| (limit / 2).max(1));
        let lookup_bytes = group_bytes.map_or(LOOKUP_BYTES, |limit| (limit / 4).clamp(1, LOOKUP_BYTES));
        Self { group_bytes, windows_bytes, lookup_bytes }
    }
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
}
