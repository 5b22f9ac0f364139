//! The time that processors have spent on this process, and on some of its threads.

use std::fs;
use std::time::Duration;

use parking_lot::Mutex;

/// The unit of times under `/proc`: Linux has a hundredth of a second on every processor that we build for.
const TICK: Duration = Duration::from_millis(10);

/// The processors' time for this process until now; `None` where the system does not tell.
pub fn cpu_time() -> Option<Duration> {
    read("/proc/self/stat")
}

/// The processors' time for some threads, also for those that have ended.
#[derive(Debug, Default)]
pub(crate) struct CpuTime(Mutex<Threads>);

#[derive(Debug, Default)]
struct Threads {
    alive: Vec<String>,
    ended: Duration,
}

impl CpuTime {
    /// Counts this thread from now on.
    #[cfg(target_os = "linux")]
    pub(crate) fn begin(&self) {
        self.0.lock().alive.push(path());
    }

    /// This thread ends.
    #[cfg(target_os = "linux")]
    pub(crate) fn end(&self) {
        let path = path();
        let mut threads = self.0.lock();
        threads.alive.retain(|alive| *alive != path);
        threads.ended += read(&path).unwrap_or_default();
    }

    /// Other systems do not tell.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn begin(&self) {}

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn end(&self) {}

    pub(crate) fn get(&self) -> Duration {
        let threads = self.0.lock();
        threads.ended + threads.alive.iter().filter_map(|path| read(path)).sum::<Duration>()
    }
}

/// Where Linux tells the times of this thread.
#[cfg(target_os = "linux")]
fn path() -> String {
    format!("/proc/self/task/{}/stat", rustix::thread::gettid().as_raw_nonzero())
}

/// The sum of the times in user and system mode in such a file.
fn read(path: &str) -> Option<Duration> {
    time_in(&fs::read_to_string(path).ok()?)
}

fn time_in(stat: &str) -> Option<Duration> {
    // The name, which may contain anything, ends with the last parenthesis. The times are fields 14 and 15, and the
    // first one behind the name is the third.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u32>().ok();
    Some(TICK * ticks()?.checked_add(ticks()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = |name: &str| format!("7 ({name}) R 1 7 7 0 -1 4194368 5 6593 0 0 150 25 5 0 30 10 2 0 199525");
        for name in ["python3", "a) (b", "1 2 3 4", ""] {
            assert_eq!(time_in(&stat(name)), Some(Duration::from_millis(1_750)), "{name}");
        }
        for wrong in ["", "7 (python3", "7 (python3) R 1", "7 (x) R 1 7 7 0 -1 4194368 5 6593 0 0 x y"] {
            assert_eq!(time_in(wrong), None, "{wrong}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn threads_are_counted_while_they_run_and_afterwards() {
        let times = CpuTime::default();
        let before = cpu_time().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                times.begin();
                while times.get() < Duration::from_millis(30) {
                    std::hint::black_box(0);
                }
                times.end();
            });
        });
        assert!(times.get() >= Duration::from_millis(30) && times.0.lock().alive.is_empty());
        assert!(cpu_time().unwrap() - before >= Duration::from_millis(20));
    }
}
