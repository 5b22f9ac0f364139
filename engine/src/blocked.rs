//! The part of its time that a thread is blocked: neither running nor ready to run.

use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// A moment in a thread's life.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    at: Instant,
    thread: ThreadId,
    /// The time that the thread ran, or waited for a processor.
    ready: Duration,
}

/// What a thread did between two moments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    pub(crate) time: Duration,
    /// The time in which it ran or waited for a processor. The system counts it in ticks, so it may be more than all of
    /// a short time.
    pub(crate) ready: Duration,
}

impl Moment {
    /// This moment of this thread; `None` where the system does not tell what threads do.
    pub(crate) fn now() -> Option<Self> {
        // Running time and waiting time in nanoseconds, and a number of time slices.
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        let mut numbers = text.split_ascii_whitespace().map(str::parse::<u64>);
        let (ran, waited) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        if ran == 0 {
            // A system without these statistics has zeros.
            return None;
        }
        let ready = Duration::from_nanos(ran.checked_add(waited)?);
        Some(Self { at: Instant::now(), thread: std::thread::current().id(), ready })
    }

    /// What this thread has done since; `None` if the work went to another thread.
    pub(crate) fn spent(self) -> Option<Spent> {
        let now = Self::now().filter(|now| now.thread == self.thread)?;
        let time = now.at.saturating_duration_since(self.at);
        Some(Spent { time, ready: now.ready.saturating_sub(self.ready) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    #[expect(clippy::disallowed_methods, reason = "a thread that sleeps is blocked")]
    fn a_thread_that_sleeps_is_blocked_and_one_that_computes_is_not() {
        let Some(begun) = Moment::now() else { return };
        std::thread::sleep(Duration::from_millis(50));
        let slept = begun.spent().unwrap();
        assert!(slept.ready <= slept.time.mul_f64(0.5), "{slept:?}");
        let begun = Moment::now().unwrap();
        let mut sum = 0_u64;
        while begun.at.elapsed() < Duration::from_millis(50) {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(7));
        }
        let computed = begun.spent().unwrap();
        assert!(computed.ready >= computed.time.mul_f64(0.5), "{computed:?}");
        let moved = Moment::now().unwrap();
        assert!(std::thread::spawn(move || moved.spent().is_none()).join().unwrap());
    }
}
