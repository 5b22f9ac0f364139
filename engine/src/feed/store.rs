//! Windows computed for others: what a worker holds.
//!
//! A window is prepared (read, filtered, ordered) when it is leased, which tells its rows; then its rows are transformed in
//! chunks, ahead of those who will read them and once for all of them. Chunks live in bounded memory: a chunk that every
//! reader has taken is let go, and when memory is full those go that will be read last. What was let go is computed
//! again when somebody asks for it. Windows that every epoch has alike are kept for the next one ([`kept`]).

mod chunk;
mod kept;
mod reading;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use chunk::ChunkRows;
use forebay_delivery::{WindowId, WindowKey};
use futures::FutureExt;
use kept::Kept;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::window::Window;
use super::{Feed, FeedCore};
use crate::error::{Error, Result};
use crate::executor::{Executor, Task, panic_text};

/// Source bytes and rows of a chunk: enough work to be worth a task, little enough for several to be under way.
const CHUNK_BYTES: u64 = 512 << 10;
const CHUNK_ROWS: u64 = 8192;

/// How far a stored window is.
#[derive(Clone, Debug)]
pub enum StoredState {
    /// Being read and filtered.
    Computing,
    /// Its rows are known, and it can be read.
    Counted {
        /// Samples in it, bad ones included.
        rows: u64,
        /// Bytes that its source rows take.
        bytes: u64,
    },
    /// Computed as far as memory allows.
    Ready {
        /// Samples in it, bad ones included.
        rows: u64,
        /// Bytes that its source rows take.
        bytes: u64,
    },
    /// It could not be computed.
    Failed(Error),
}

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
pub struct WindowStore(Arc<Inner>);

struct Inner {
    executor: Arc<Executor>,
    chunk_limit_bytes: u64,
    state: Mutex<State>,
    /// Chunks that are being computed ahead.
    filling: Arc<AtomicUsize>,
    /// Windows changed their state.
    news: Notify,
}

#[derive(Default)]
struct State {
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

/// A window that is leased to this process.
pub struct StoredWindow {
    key: WindowKey,
    core: Arc<FeedCore>,
    /// Its rows are the same in every epoch.
    repeats: bool,
    store: Weak<Inner>,
    /// How often each row is to be taken: as many readers as were known at a time.
    shares: Mutex<f64>,
    prepared: OnceLock<Result<Prepared>>,
    /// Preparing ended, or a chunk was computed.
    changed: Notify,
    preparing: Mutex<Option<Task<()>>>,
}

struct Prepared {
    window: Window,
    chunk_rows: u64,
    chunks: Mutex<Chunks>,
    /// Of an earlier epoch, all chunks with it.
    was_kept: bool,
}

struct Chunks {
    all: Vec<Chunk>,
    /// The largest result so far, to guess the next.
    bytes_max: u64,
}

#[derive(Default)]
struct Chunk {
    state: ChunkState,
    rows_taken: u64,
    /// Taken by everybody, so not to be computed again without being asked for.
    is_spent: bool,
    /// For the next epoch. Its bytes are counted there.
    kept: Option<Arc<ChunkRows>>,
    was_computed: bool,
}

#[derive(Default)]
enum ChunkState {
    #[default]
    Absent,
    Computing {
        _task: Task<()>,
    },
    Done(Result<Arc<ChunkRows>>),
}

impl WindowStore {
    /// A store whose transformed rows take about `chunk_limit_bytes` at most; source rows are bounded by what is leased.
    pub(crate) fn new(executor: Arc<Executor>, chunk_limit_bytes: u64) -> Self {
        Self(Arc::new(Inner {
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
            state.kept.retire(&stored, limit);
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

/// Holds the window only weakly: one that is dropped is not computed on. A `twin` has the same rows.
async fn prepare(stored: Weak<StoredWindow>, twin: Option<Arc<StoredWindow>>) {
    let Some((core, window)) = stored.upgrade().map(|stored| (Arc::clone(&stored.core), stored.key.1)) else { return };
    let shared = match &twin {
        // One that was kept has no source rows: then this is kept as well, or was found to be before.
        Some(twin) => {
            twin.wait().await.ok().filter(|prepared| !prepared.was_kept).map(|prepared| prepared.window.clone())
        }
        None => None,
    };
    let prepared = match shared {
        Some(window) => Ok(Prepared::new(window)),
        None => match AssertUnwindSafe(Window::prepare(&core, window)).catch_unwind().await {
            Ok(prepared) => prepared.map(Prepared::new),
            Err(panic) => Err(Error::internal(format!("preparing a window panicked: {}", panic_text(panic.as_ref())))),
        },
    };
    drop(twin);
    let Some(stored) = stored.upgrade() else { return };
    let _ = stored.prepared.set(prepared);
    stored.changed.notify_waiters();
    if let Some(store) = stored.store.upgrade() {
        store.fill(&mut store.state.lock());
        store.news.notify_one();
    }
}

impl Prepared {
    fn new(window: Window) -> Self {
        let row_bytes = (window.bytes() / window.len().max(1)).max(1);
        let chunk_rows = (CHUNK_BYTES / row_bytes).clamp(1, CHUNK_ROWS);
        let all = (0..window.len().div_ceil(chunk_rows)).map(|_| Chunk::default()).collect();
        let chunks = Mutex::new(Chunks { all, bytes_max: 0 });
        Self { window: window.sharing(), chunk_rows, chunks, was_kept: false }
    }

    fn rows(&self, chunk: usize) -> Range<u64> {
        let first = chunk as u64 * self.chunk_rows;
        first..(first + self.chunk_rows).min(self.window.len())
    }
}

impl Inner {
    fn kept_limit_bytes(&self) -> u64 {
        self.chunk_limit_bytes / 2
    }

    /// Begins to compute chunks ahead, as far as threads and memory go.
    fn fill(self: &Arc<Self>, state: &mut State) {
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
    fn make_room(&self, state: &mut State, spared: (&WindowKey, usize)) {
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

impl Chunk {
    /// Whether its window is not ready without it.
    fn is_awaited(&self) -> bool {
        !self.is_spent && !self.was_computed
    }
}

impl ChunkState {
    fn bytes(&self) -> u64 {
        match self {
            Self::Done(Ok(rows)) => rows.bytes,
            _ => 0,
        }
    }
}

impl StoredWindow {
    fn state(&self, is_full: bool) -> StoredState {
        match self.prepared.get() {
            None => StoredState::Computing,
            Some(Err(error)) => StoredState::Failed(error.clone()),
            Some(Ok(prepared)) => {
                let (rows, bytes) = (prepared.window.len(), prepared.window.bytes());
                match is_full || !prepared.chunks.lock().all.iter().any(Chunk::is_awaited) {
                    true => StoredState::Ready { rows, bytes },
                    false => StoredState::Counted { rows, bytes },
                }
            }
        }
    }

    fn chunk_bytes(&self) -> u64 {
        let Some(Ok(prepared)) = self.prepared.get() else { return 0 };
        prepared.chunks.lock().all.iter().map(|chunk| chunk.state.bytes()).sum()
    }

    /// The schema of its samples.
    pub fn schema(&self) -> SchemaRef {
        self.core.stage.schema()
    }

    fn prepared(&self) -> Option<Result<&Prepared>> {
        self.prepared.get().map(|prepared| prepared.as_ref().map_err(Error::clone))
    }

    async fn wait(&self) -> Result<&Prepared> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Listening begins before looking, so what happens in between is not missed.
            changed.as_mut().enable();
            if let Some(prepared) = self.prepared() {
                return prepared;
            }
            changed.await;
        }
    }

    fn begin(self: &Arc<Self>, chunks: &mut Chunks, index: usize, ahead: Option<Filling>) {
        let stored = Arc::downgrade(self);
        let _task = self.core.executor.spawn(chunk::compute(stored, index, ahead));
        chunks.all[index].state = ChunkState::Computing { _task };
    }

    /// A chunk, computed if it is not there. Cancel-safe.
    async fn chunk(self: &Arc<Self>, prepared: &Prepared, index: usize) -> Result<Arc<ChunkRows>> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut chunks = prepared.chunks.lock();
                if let Some(kept) = &chunks.all[index].kept {
                    return Ok(Arc::clone(kept));
                }
                match &chunks.all[index].state {
                    ChunkState::Done(done) => {
                        let done = done.clone();
                        if done.is_err() {
                            // The next to ask gets another try.
                            chunks.all[index].state = ChunkState::Absent;
                        }
                        return done;
                    }
                    ChunkState::Computing { .. } => {}
                    ChunkState::Absent => self.begin(&mut chunks, index, None),
                }
                // Those that come next too, so that one stream alone keeps all threads busy.
                let threads = self.core.executor.threads();
                for ahead in index + 1..(index + threads).min(chunks.all.len()) {
                    if !chunks.all[ahead].is_spent && matches!(chunks.all[ahead].state, ChunkState::Absent) {
                        self.begin(&mut chunks, ahead, None);
                    }
                }
            }
            changed.await;
        }
    }

    fn done(self: &Arc<Self>, index: usize, result: Result<ChunkRows>) {
        let Some(Ok(prepared)) = self.prepared.get() else { return };
        let Some(store) = self.store.upgrade() else { return };
        let mut state = store.state.lock();
        let is_held = state.windows.get(&self.key).is_some_and(|held| Arc::ptr_eq(held, self));
        {
            let mut chunks = prepared.chunks.lock();
            let bytes = result.as_ref().map_or(0, |rows| rows.bytes);
            chunks.bytes_max = chunks.bytes_max.max(bytes);
            state.newest_chunk_bytes = bytes;
            state.chunks_computed += 1;
            state.chunks_recomputed += u64::from(chunks.all[index].was_computed);
            chunks.all[index].was_computed = true;
            chunks.all[index].state = ChunkState::Done(result.map(Arc::new));
            // A stream may go on with a window that the store has dropped.
            state.chunk_bytes += if is_held { bytes } else { 0 };
        }
        if state.chunk_bytes + state.kept.bytes() > store.chunk_limit_bytes {
            store.make_room(&mut state, (&self.key, index));
        }
        store.fill(&mut state);
        drop(state);
        self.changed.notify_waiters();
        store.news.notify_one();
    }

    /// Counts rows that a stream took, and lets go of the chunk when everybody has.
    fn taken(self: &Arc<Self>, prepared: &Prepared, index: usize, rows: u64) {
        let Some(store) = self.store.upgrade() else { return };
        let mut state = store.state.lock();
        let is_held = state.windows.get(&self.key).is_some_and(|held| Arc::ptr_eq(held, self));
        let freed = {
            let mut chunks = prepared.chunks.lock();
            let expected = *self.shares.lock() * (prepared.rows(index).end - prepared.rows(index).start) as f64;
            let chunk = &mut chunks.all[index];
            chunk.rows_taken += rows;
            // Fractions of ranks do not add up exactly.
            if chunk.is_spent || (chunk.rows_taken as f64) < expected - 0.5 {
                return;
            }
            chunk.is_spent = true;
            match std::mem::take(&mut chunk.state) {
                ChunkState::Done(done) => {
                    if is_held && let Ok(rows) = &done {
                        chunk.kept = state.kept.reserve(self, rows, store.kept_limit_bytes());
                    }
                    ChunkState::Done(done).bytes()
                }
                other => {
                    chunk.state = other;
                    0
                }
            }
        };
        if is_held {
            state.chunk_bytes -= freed;
        }
        store.fill(&mut state);
    }
}

/// Counts a chunk that is computed ahead, for as long as its task lives.
struct Filling(Arc<AtomicUsize>);

impl Filling {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
