//! The windows that a worker holds for readers in other processes.
//!
//! A window is prepared (read, filtered, ordered) when it is leased, which determines its rows. Then its rows are
//! transformed in chunks, ahead of the readers and once for all of them. Chunks live in bounded memory. A chunk is
//! evicted when every reader has taken it. When memory is full, the chunks that will be read last are evicted. An
//! evicted chunk is recomputed when a reader requests it. Windows that are the same in every epoch are kept for the
//! next ([`kept`]).

mod chunk;
mod filling;
mod kept;
mod prepared;
mod stored_window;
#[cfg(test)]
mod tests;
mod window_state;
mod window_stream;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use arrow::array::RecordBatch;
use forebay_delivery::{WindowId, WindowKey};
use parking_lot::Mutex;
use tokio::sync::Notify;

use filling::ComputingAhead;
use kept::Kept;
use prepared::ChunkState;
pub use stored_window::StoredWindow;
use stored_window::prepare;
pub use window_state::StoredState;

use super::Feed;
use crate::executor::Executor;

/// The contents and the work of a store, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Bytes of transformed rows in memory, including those kept for the next epoch.
    pub chunk_bytes: u64,
    /// The approximate limit of these bytes.
    pub chunk_limit_bytes: u64,
    /// Bytes of source rows of the windows held.
    pub source_bytes: u64,
    /// Chunks that were computed.
    pub chunks_computed: u64,
    /// Chunks that were computed again after eviction.
    pub chunks_recomputed: u64,
}

/// Rows of a window that belong to one batch.
#[derive(Clone, Debug)]
pub struct WindowRows {
    /// The positions in the window, including bad rows and gaps.
    pub rows: Range<u64>,
    /// The number of gaps among them.
    pub gaps: u64,
    /// The samples, in order, without bad rows.
    pub records: Vec<RecordBatch>,
}

/// The windows that this process computes for remote readers.
#[derive(Clone)]
pub struct WindowStore(Arc<StoreInner>);

struct StoreInner {
    executor: Arc<Executor>,
    chunk_limit_bytes: u64,
    state: Mutex<StoreState>,
    /// Chunks being computed ahead.
    filling: Arc<AtomicUsize>,
    /// Notifies of changed window states.
    news: Notify,
}

#[derive(Default)]
struct StoreState {
    windows: HashMap<WindowKey, Arc<StoredWindow>>,
    /// The windows in reading order, with the number of reads still expected of each.
    order: Vec<(WindowKey, f64)>,
    chunk_bytes: u64,
    /// The bytes of the latest chunk, used as the estimate for a window's first chunk.
    newest_chunk_bytes: u64,
    kept: Kept,
    chunks_computed: u64,
    chunks_recomputed: u64,
    /// Whether full memory prevents computing chunks ahead.
    is_full: bool,
}

impl WindowStore {
    /// Creates a store that holds about `chunk_limit_bytes` of transformed rows. Leases bound the source rows.
    pub(crate) fn new(executor: Arc<Executor>, chunk_limit_bytes: u64) -> Self {
        Self(Arc::new(StoreInner {
            executor,
            chunk_limit_bytes,
            state: Mutex::default(),
            filling: Arc::default(),
            news: Notify::new(),
        }))
    }

    /// Computes a window and keeps it until it is dropped.
    pub fn start(&self, feed: &Feed, window: WindowId) {
        let core = Arc::clone(feed.runner.core());
        let key = (Arc::clone(&core.id), window);
        let repeats = kept::repeats(feed);
        feed.runner.begin_choosing(None);
        let mut state = self.0.state.lock();
        let shares = state.order.iter().find_map(|(at, shares)| (*at == key).then_some(*shares));
        let stored = Arc::new(StoredWindow {
            key: key.clone(),
            core,
            repeats,
            store: Arc::downgrade(&self.0),
            shares: Mutex::new(shares.unwrap_or_default()),
            prepared: OnceLock::new(),
            changed: Notify::new(),
            has_begun: AtomicBool::new(false),
            preparing: Mutex::new(None),
        });
        match state.kept.get(&key) {
            Some(kept) => {
                let _ = stored.prepared.set(Ok(kept));
                self.0.news.notify_one();
            }
            None => {
                // Reading ahead crosses an epoch's end before the epoch's windows are finished.
                let is_twin = |other: &&Arc<StoredWindow>| {
                    repeats && other.key.0 == key.0 && other.key.1.index == key.1.index && other.key != key
                };
                let twin = state.windows.values().find(is_twin).cloned();
                let task = self.0.executor.spawn(prepare(Arc::downgrade(&stored), twin));
                *stored.preparing.lock() = Some(task);
            }
        }
        state.windows.insert(key, stored);
    }

    /// Drops a window. Streams that are reading it continue.
    pub fn drop_window(&self, key: &WindowKey) {
        let mut state = self.0.state.lock();
        if let Some(stored) = state.windows.remove(key) {
            state.chunk_bytes -= stored.chunk_bytes();
            let limit = self.0.kept_limit_bytes();
            if let Some(Ok(prepared)) = stored.prepared.get()
                && stored.repeats
            {
                state.kept.retire(key, prepared, limit);
            }
        }
        self.0.fill(&mut state);
    }

    /// Drops the windows of a feed that were kept for its next epoch.
    pub fn close_feed(&self, feed: &str) {
        let mut state = self.0.state.lock();
        state.kept.close(feed);
        self.0.fill(&mut state);
    }

    /// Sets the order in which windows will be read, with the number of reads still expected of each. A reader counts
    /// as one; its ranks count as fractions.
    pub fn prioritise(&self, order: &[(WindowKey, f64)]) {
        let mut state = self.0.state.lock();
        for (key, shares) in order {
            if let Some(stored) = state.windows.get(key) {
                let mut most = stored.shares.lock();
                *most = most.max(*shares);
            }
        }
        state.order = order.to_vec();
        self.0.fill(&mut state);
    }

    /// The window, if the store holds it.
    pub fn get(&self, key: &WindowKey) -> Option<Arc<StoredWindow>> {
        self.0.state.lock().windows.get(key).cloned()
    }

    /// The state of each window, and whether this process is at work on it: it has begun to compute the window, and
    /// has not finished.
    pub fn states(&self) -> Vec<(WindowKey, StoredState, bool)> {
        let state = self.0.state.lock();
        state
            .windows
            .iter()
            .map(|(key, stored)| (key.clone(), stored.state(state.is_full), stored.is_at_work()))
            .collect()
    }

    /// Waits for a possible change of a window's state.
    pub async fn changed(&self) {
        self.0.news.notified().await;
    }

    /// The store's contents and its work so far.
    pub fn usage(&self) -> StoreUsage {
        let state = self.0.state.lock();
        let prepared = state.windows.values().filter_map(|stored| stored.prepared.get()?.as_ref().ok());
        let prepared = prepared.filter(|prepared| !prepared.was_kept);
        StoreUsage {
            chunk_bytes: state.chunk_bytes + state.kept.bytes(),
            chunk_limit_bytes: self.0.chunk_limit_bytes,
            source_bytes: prepared.map(|prepared| prepared.window.bytes()).sum(),
            chunks_computed: state.chunks_computed,
            chunks_recomputed: state.chunks_recomputed,
        }
    }
}

impl StoreInner {
    fn kept_limit_bytes(&self) -> u64 {
        self.chunk_limit_bytes / 2
    }

    /// Starts computing chunks ahead, as far as threads and memory allow.
    fn fill(self: &Arc<Self>, state: &mut StoreState) {
        let was_full = state.is_full;
        state.is_full = false;
        let mut is_news = false;
        let mut is_first = true;
        'windows: for (key, _) in state.order.clone() {
            let Some(stored) = state.windows.get(&key).cloned() else { continue };
            let Some(Ok(prepared)) = stored.prepared.get() else { continue };
            let mut chunks = prepared.chunks.lock();
            // Evicted chunks wait until a reader requests them. Otherwise the chunks that are read last would be
            // recomputed repeatedly, whenever memory is briefly available. Chunks of the first window are never
            // evicted.
            let takes_let_go = std::mem::take(&mut is_first);
            let chunk_bytes = if chunks.bytes_max > 0 { chunks.bytes_max } else { state.newest_chunk_bytes };
            for index in 0..chunks.all.len() {
                let filling = self.filling.load(Ordering::Relaxed);
                if filling >= self.executor.width() {
                    break 'windows;
                }
                let chunk = &chunks.all[index];
                let is_to_come = chunk.is_awaited() || (takes_let_go && !chunk.is_spent);
                if !is_to_come || !matches!(chunk.state, ChunkState::Absent) {
                    continue;
                }
                let to_come = (filling as u64 + 1) * chunk_bytes;
                if state.chunk_bytes + state.kept.bytes() + to_come > self.chunk_limit_bytes {
                    state.is_full = true;
                    break 'windows;
                }
                stored.begin(&mut chunks, index, Some(ComputingAhead::new(&self.filling)));
                is_news |= index + 1 == chunks.all.len();
            }
        }
        if is_news || state.is_full != was_full {
            self.news.notify_one();
        }
    }

    /// Evicts the chunks that will be read last, until memory is within its limit.
    fn make_room(&self, state: &mut StoreState, spared: (&WindowKey, usize)) {
        for (key, _) in state.order.clone().iter().rev() {
            let Some(Ok(prepared)) = state.windows.get(key).and_then(|stored| stored.prepared.get()) else { continue };
            let mut chunks = prepared.chunks.lock();
            for (index, chunk) in chunks.all.iter_mut().enumerate().rev() {
                if state.chunk_bytes + state.kept.bytes() <= self.chunk_limit_bytes {
                    return;
                }
                if (key, index) != spared && matches!(chunk.state, ChunkState::Done(_)) {
                    state.chunk_bytes -= std::mem::take(&mut chunk.state).bytes();
                }
            }
        }
    }
}
