//! Windows computed for others: what a worker holds.
//!
//! A window is prepared (read, filtered, ordered) when it is leased, which tells its rows; then its rows are transformed in
//! chunks, ahead of those who will read them and once for all of them. Chunks live in bounded memory: a chunk that every
//! reader has taken is let go, and when memory is full those go that will be read last. What was let go is computed
//! again when somebody asks for it. Windows that every epoch has alike are kept for the next one ([`kept`]).

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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use arrow::array::RecordBatch;
use forebay_delivery::{WindowId, WindowKey};
use parking_lot::Mutex;
use tokio::sync::Notify;

use filling::Filling;
use kept::Kept;
use prepared::ChunkState;
pub use stored_window::StoredWindow;
use stored_window::prepare;
pub use window_state::StoredState;

use super::Feed;
use crate::executor::Executor;

/// What a store holds and has done, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Bytes of transformed rows in memory, those kept for the next epoch included.
    pub chunk_bytes: u64,
    /// About how many there may be.
    pub chunk_limit_bytes: u64,
    /// Bytes of source rows of the windows that are held.
    pub source_bytes: u64,
    /// Chunks that were computed.
    pub chunks_computed: u64,
    /// Those among them that were let go before and then asked for.
    pub chunks_recomputed: u64,
}

/// Rows of a window that belong to one batch.
#[derive(Clone, Debug)]
pub struct WindowRows {
    /// Which positions of the window, bad rows and gaps included.
    pub rows: Range<u64>,
    /// How many of them are gaps.
    pub gaps: u64,
    /// The samples, in order; bad rows are not among them.
    pub records: Vec<RecordBatch>,
}

/// The windows that this process computes for others.
#[derive(Clone)]
pub struct WindowStore(Arc<StoreInner>);

struct StoreInner {
    executor: Arc<Executor>,
    chunk_limit_bytes: u64,
    state: Mutex<StoreState>,
    /// Chunks that are being computed ahead.
    filling: Arc<AtomicUsize>,
    /// Windows changed their state.
    news: Notify,
}

#[derive(Default)]
struct StoreState {
    windows: HashMap<WindowKey, Arc<StoredWindow>>,
    /// Which window will be read first, and how often each is still to be read.
    order: Vec<(WindowKey, f64)>,
    chunk_bytes: u64,
    /// Of the last chunk that was computed, to guess the first of a window.
    newest_chunk_bytes: u64,
    kept: Kept,
    chunks_computed: u64,
    chunks_recomputed: u64,
    /// Memory keeps chunks from being computed ahead.
    is_full: bool,
}

impl WindowStore {
    /// A store whose transformed rows take about `chunk_limit_bytes` at most; source rows are bounded by what is leased.
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
            preparing: Mutex::new(None),
        });
        match state.kept.get(&key) {
            Some(kept) => {
                let _ = stored.prepared.set(Ok(kept));
                self.0.news.notify_one();
            }
            None => {
                // Reading ahead goes over an epoch's end before its windows are done with.
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

    /// Forgets a window. Streams that are reading it go on.
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

    /// Forgets what was kept of a feed for its next epoch.
    pub fn close_feed(&self, feed: &str) {
        let mut state = self.0.state.lock();
        state.kept.close(feed);
        self.0.fill(&mut state);
    }

    /// Says which windows will be read first, and how often each is still to be read: a reader counts one, its ranks
    /// fractions.
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

    /// The window, if it is held.
    pub fn get(&self, key: &WindowKey) -> Option<Arc<StoredWindow>> {
        self.0.state.lock().windows.get(key).cloned()
    }

    /// How far each window is.
    pub fn states(&self) -> Vec<(WindowKey, StoredState)> {
        let state = self.0.state.lock();
        state.windows.iter().map(|(key, stored)| (key.clone(), stored.state(state.is_full))).collect()
    }

    /// Waits until a window may have changed its state.
    pub async fn changed(&self) {
        self.0.news.notified().await;
    }

    /// What it holds and has done.
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

    /// Begins to compute chunks ahead, as far as threads and memory go.
    fn fill(self: &Arc<Self>, state: &mut StoreState) {
        let was_full = state.is_full;
        state.is_full = false;
        let mut is_news = false;
        let mut is_first = true;
        'windows: for (key, _) in state.order.clone() {
            let Some(stored) = state.windows.get(&key).cloned() else { continue };
            let Some(Ok(prepared)) = stored.prepared.get() else { continue };
            let mut chunks = prepared.chunks.lock();
            // What was let go waits until it is asked for: what is read last would else be computed over and over, whenever
            // there is room for a moment. Nothing makes the first window go.
            let takes_let_go = std::mem::take(&mut is_first);
            let chunk_bytes = if chunks.bytes_max > 0 { chunks.bytes_max } else { state.newest_chunk_bytes };
            for index in 0..chunks.all.len() {
                let filling = self.filling.load(Ordering::Relaxed);
                if filling >= self.executor.threads() {
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
                stored.begin(&mut chunks, index, Some(Filling::new(&self.filling)));
                is_news |= index + 1 == chunks.all.len();
            }
        }
        if is_news || state.is_full != was_full {
            self.news.notify_one();
        }
    }

    /// Lets go of chunks that will be read last, until memory is within its limit.
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
