//! Stores and cuts as if they had been measured.

use forebay_policy::{Cut, Store};

/// A store that reads and writes at one rate, without latency.
pub(crate) fn store(bytes_per_second: f64) -> Store {
    Store {
        bytes_per_second,
        written_bytes_per_second: bytes_per_second,
        seconds_per_request: 0.0,
        bytes_per_request: 1e6,
    }
}

pub(crate) fn cut(name: &str, compute_seconds_per_sample: f64, bytes_per_sample: f64, never_kept: bool) -> Cut {
    Cut { name: name.to_owned(), compute_seconds_per_sample, bytes_per_sample, never_kept }
}
