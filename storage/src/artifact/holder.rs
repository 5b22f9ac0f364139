//! The name of a process that works on a job.
//!
//! It tells processes of the same machine whether the holder still runs, so that they need not wait for its silence.

use std::fs;

/// The name of this process as the holder of a claim, with a number that it uses for one claim only:
/// `<machine>/<pid>/<start>/<number>`. Without procfs, only the number is known.
pub fn holder_name(number: u64) -> String {
    let pid = std::process::id();
    match machine().zip(start_of(pid)) {
        Some((machine, start)) => format!("{machine}/{pid}/{start}/{number:016x}"),
        None => format!("{number:016x}"),
    }
}

/// Whether the holder was a process of this machine that has ended. `false` if that is unknown.
pub(super) fn has_ended(holder: &str) -> bool {
    let mut parts = holder.split('/');
    let (Some(at), Some(pid), Some(start), Some(_)) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let Ok(pid) = pid.parse() else { return false };
    machine().is_some_and(|machine| machine == at) && start_of(pid).map_or_else(sees_all_processes, |now| now != start)
}

/// Whether procfs shows the processes of other users. If it hides them, it hides the first one too.
fn sees_all_processes() -> bool {
    fs::exists("/proc/1").unwrap_or(false)
}

/// The machine since it was started, and the process ids that are seen here: containers have their own.
fn machine() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let ids = fs::read_link("/proc/self/ns/pid").ok()?;
    let ids: String = ids.to_str()?.chars().filter(char::is_ascii_digit).collect();
    Some(format!("{}-{ids}", boot.trim()))
}

/// The time at which a process was started. `None` if there is none, or if it has ended and its parent has not asked
/// how.
fn start_of(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program is in brackets, and may contain spaces.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.nth(18).map(str::to_owned),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_a_process_that_ended_here_has_ended() {
        let ours = holder_name(7);
        assert!(!has_ended(&ours));
        let parts: Vec<&str> = ours.split('/').collect();
        let [machine, pid, start, number] = parts[..] else { panic!("{ours}") };
        assert!(has_ended(&format!("{machine}/{pid}/{start}0/{number}")), "another process with the same id");
        assert!(!has_ended(&format!("x{machine}/{pid}/{start}0/{number}")), "another machine");
        assert!(!has_ended(number) && !has_ended("") && !has_ended("a/b/c/d"));
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let of_child = format!("{machine}/{}/{}/0", child.id(), start_of(child.id()).unwrap());
        assert!(!has_ended(&of_child));
        child.kill().unwrap();
        while !has_ended(&of_child) {
            // Nobody has asked yet how it ended.
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(has_ended(&of_child));
    }
}
