//! Counts the chunks being computed ahead.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts a chunk being computed ahead, until its task is dropped.
pub(super) struct ComputingAhead(Arc<AtomicUsize>);

impl ComputingAhead {
    pub(super) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for ComputingAhead {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
