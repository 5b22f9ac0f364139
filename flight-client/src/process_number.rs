//! Numbers that order the readers of a rank, in one process and over its successors.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_protocol::{Result, random_bytes};
use parking_lot::Mutex;

/// The newest number of this process.
static NEWEST: AtomicU64 = AtomicU64::new(0);
/// The feeds, jobs and ranks that this process has read.
static READ: Mutex<Option<HashSet<(String, String, u64)>>> = Mutex::new(None);

/// Returns a number greater than those of earlier readers in this process and in earlier ones.
pub(crate) fn process_number() -> Result<u64> {
    #[expect(clippy::disallowed_methods, reason = "only the wall clock outlives a process")]
    let now = SystemTime::now();
    let millis = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let drawn = millis << 16 | u64::from(u16::from_le_bytes(random_bytes()?));
    // The clock may be set back.
    let newest = NEWEST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |newest| Some(drawn.max(newest + 1)));
    Ok(newest.map_or(drawn, |newest| drawn.max(newest + 1)))
}

/// Returns whether this is the process's first reader of this rank of a job.
pub(crate) fn is_first(feed: &str, job: &str, rank: u64) -> bool {
    READ.lock().get_or_insert_default().insert((feed.to_owned(), job.to_owned(), rank))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_grow_and_only_one_reader_is_the_first() {
        let numbers: Vec<u64> = (0..1_000).map(|_| process_number().unwrap()).collect();
        assert!(numbers.is_sorted_by(|one, next| one < next));
        assert_eq!([0, 0, 1].map(|rank| is_first("f", "numbers_grow", rank)), [true, false, true]);
    }
}
