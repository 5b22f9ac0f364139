//! Counts the chunks that are computed ahead.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts a chunk that is computed ahead, for as long as its task lives.
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
