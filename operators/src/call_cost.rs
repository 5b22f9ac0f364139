//! What a call costs: time, rows, and bytes in and out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a call has cost so far.
#[derive(Debug)]
pub struct CallCost {
    name: String,
    call: String,
    nanoseconds: AtomicU64,
    rows: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

/// What a call has cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallCosts {
    /// The function's name.
    pub name: String,
    /// The call with its constants.
    pub call: String,
    /// The time of all threads that computed it, without its arguments.
    pub seconds: f64,
    /// Rows that it was computed for.
    pub rows: u64,
    /// Bytes of its arguments, without constants. Those of pictures are of their files or pixels.
    pub bytes_in: u64,
    /// Bytes of its results.
    pub bytes_out: u64,
}

impl CallCost {
    pub(crate) fn new(name: &str, call: String) -> Self {
        let zero = || AtomicU64::new(0);
        Self { name: name.to_owned(), call, nanoseconds: zero(), rows: zero(), bytes_in: zero(), bytes_out: zero() }
    }

    pub(crate) fn add(&self, time: Duration, rows: usize, bytes_in: u64, bytes_out: u64) {
        self.nanoseconds.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
        self.bytes_in.fetch_add(bytes_in, Ordering::Relaxed);
        self.bytes_out.fetch_add(bytes_out, Ordering::Relaxed);
    }

    /// The costs until now.
    pub fn costs(&self) -> CallCosts {
        CallCosts {
            name: self.name.clone(),
            call: self.call.clone(),
            seconds: self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9,
            rows: self.rows.load(Ordering::Relaxed),
            bytes_in: self.bytes_in.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
        }
    }
}
