//! Names of processes that hold claims, which say where a process runs, so that others there can see that it ended.
//!
//! A name is `<host>/<process id>/<start>/<random>`. The host is the name of the machine, the id of its boot, and the
//! space of process ids, since containers with one host name do not see each other's processes. The start of a process
//! tells it from a later one with the same id. On systems that do not say this, a name is only random.

use std::fs;

use crate::{Error, Result};

/// A new name for this process, as the holder of a [claim](super::Job::claim).
///
/// # Errors
/// `Internal` if the operating system gives no random numbers.
pub fn holder() -> Result<String> {
    let mut random = [0; 8];
    getrandom::fill(&mut random)
        .map_err(|error| Error::internal(format!("the operating system gives no random numbers: {error}")))?;
    let random = format!("{:016x}", u64::from_le_bytes(random));
    let id = std::process::id();
    Ok(match (host(), Process::with_id(&id.to_string())) {
        (Some(host), Some(Process { start, .. })) => format!("{host}/{id}/{start}/{random}"),
        _ => random,
    })
}

/// Whether a holder is a process of this host that has ended. To be wrong only costs a living one's work.
pub(super) fn has_ended(holder: &str) -> bool {
    let parts: Vec<&str> = holder.split('/').collect();
    let [its_host, id, start, _] = parts[..] else { return false };
    if host().is_none_or(|host| host != its_host) || id.parse::<u32>().is_err() {
        return false;
    }
    match Process::with_id(id) {
        Some(process) => process.has_ended || process.start != start,
        // Some systems hide the processes of others, and then the first one too.
        None => fs::exists("/proc/1").unwrap_or(false),
    }
}

/// Where this process runs, if the system says so.
fn host() -> Option<String> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let (name, boot) = (read("/proc/sys/kernel/hostname")?, read("/proc/sys/kernel/random/boot_id")?);
    let space = fs::read_link("/proc/self/ns/pid").ok()?;
    let host = format!("{}:{}:{}", name.trim(), boot.trim(), space.to_str()?);
    (!host.contains('/')).then_some(host)
}

/// A process of this host.
#[derive(Debug, PartialEq, Eq)]
struct Process {
    /// When it began, by the host's clock.
    start: String,
    /// Whether only its exit code is left.
    has_ended: bool,
}

impl Process {
    fn with_id(id: &str) -> Option<Self> {
        Self::of(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
    }

    /// The process of such a line: its id, its name in parentheses, its state, and 18 numbers before its start.
    fn of(line: &str) -> Option<Self> {
        // The name may hold spaces and parentheses.
        let (_, rest) = line.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let has_ended = matches!(fields.next()?, "Z" | "X");
        Some(Self { start: fields.nth(18)?.to_owned(), has_ended })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_never_the_same() {
        assert_ne!(holder().unwrap(), holder().unwrap());
    }

    #[test]
    fn a_line_says_when_a_process_began() {
        let rest = "1 1 1 0 -1 4194304 101 0 0 0 0 0 0 0 20 0 1 0 2043121 3133440 410";
        for (line, has_ended) in [(format!("7 (a) R (b) S {rest}"), false), (format!("7 (a) Z {rest}"), true)] {
            assert_eq!(Process::of(&line), Some(Process { start: "2043121".to_owned(), has_ended }));
        }
        assert_eq!(Process::of("7 (a) S 1 2"), None);
        assert_eq!(Process::of(""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn only_a_process_of_this_host_is_seen_to_end() {
        let name_of = |id: u32| {
            let start = Process::with_id(&id.to_string()).unwrap().start;
            format!("{}/{id}/{start}/0", host().unwrap())
        };
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let name = name_of(child.id());
        assert!(!has_ended(&holder().unwrap()) && !has_ended(&name));
        let [host, id, start, random] = name.split('/').collect::<Vec<_>>()[..] else { panic!("{name}") };
        assert!(has_ended(&format!("{host}/{id}/{start}1/{random}")), "another process had this id");

        child.kill().unwrap();
        // Until it is waited for, its exit code is left.
        while !has_ended(&name) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(has_ended(&name));
        for other in [format!("x{name}"), format!("{name}/0"), format!("{host}/../{start}/0"), random.to_owned()] {
            assert!(!has_ended(&other), "{other}");
        }
    }
}
