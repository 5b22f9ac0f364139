//! A window leased to this process, and its chunks on demand.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arrow::datatypes::SchemaRef;
use forebay_delivery::WindowKey;
use forebay_diagnostics::panic_text;
use futures::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::super::feed_core::FeedCore;
use super::super::window::Window;
use super::StoreInner;
use super::chunk::{self, ChunkRows};
use super::filling::ComputingAhead;
use super::prepared::{Chunk, ChunkState, Chunks, Prepared};
use super::window_state::StoredState;
use crate::error::{Error, Result};
use crate::executor::Task;

/// A window leased to this process.
pub struct StoredWindow {
    pub(super) key: WindowKey,
    pub(super) core: Arc<FeedCore>,
    /// Whether its rows are the same in every epoch.
    pub(super) repeats: bool,
    pub(super) store: Weak<StoreInner>,
    /// Expected reads of each row: the maximum number of readers known at a time.
    pub(super) shares: Mutex<f64>,
    pub(super) prepared: OnceLock<Result<Prepared>>,
    /// Notifies when preparation ends or a chunk has been computed.
    pub(super) changed: Notify,
    /// Whether its preparation has begun.
    pub(super) has_begun: AtomicBool,
    pub(super) preparing: Mutex<Option<Task<()>>>,
}

impl StoredWindow {
    pub(super) fn state(&self, is_full: bool) -> StoredState {
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

    /// Returns whether this process has begun to compute it, and has not finished. A window whose first chunk has not
    /// been begun waits.
    pub(super) fn is_at_work(&self) -> bool {
        match self.prepared.get() {
            None => self.has_begun.load(Ordering::Relaxed),
            Some(Err(_)) => false,
            Some(Ok(prepared)) => {
                let chunks = prepared.chunks.lock();
                chunks.all.iter().any(Chunk::has_begun) && !chunks.all.iter().all(|chunk| chunk.was_computed)
            }
        }
    }

    pub(super) fn chunk_bytes(&self) -> u64 {
        let Some(Ok(prepared)) = self.prepared.get() else { return 0 };
        prepared.chunks.lock().all.iter().map(|chunk| chunk.state.bytes()).sum()
    }

    /// The schema of its samples. A window whose rows are kept may leave other last steps to its reader than the feed's
    /// other windows, so this is known when its rows are.
    pub fn schema(&self) -> SchemaRef {
        match self.prepared() {
            Some(Ok(prepared)) => prepared.window.schema(),
            _ => self.core.stage.schema(),
        }
    }

    fn prepared(&self) -> Option<Result<&Prepared>> {
        self.prepared.get().map(|prepared| prepared.as_ref().map_err(Error::clone))
    }

    pub(super) async fn wait(&self) -> Result<&Prepared> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Register before checking, so that a change in between is not missed.
            changed.as_mut().enable();
            if let Some(prepared) = self.prepared() {
                return prepared;
            }
            changed.await;
        }
    }

    pub(super) fn begin(self: &Arc<Self>, chunks: &mut Chunks, index: usize, ahead: Option<ComputingAhead>) {
        if !chunks.all.iter().any(Chunk::has_begun)
            && let Some(store) = self.store.upgrade()
        {
            store.news.notify_one();
        }
        let stored = Arc::downgrade(self);
        let _task = self.core.executor.spawn(compute(stored, index, ahead));
        chunks.all[index].state = ChunkState::Computing { _task };
    }

    /// Returns a chunk; computes it if it is absent. Cancel-safe.
    pub(super) async fn chunk(self: &Arc<Self>, prepared: &Prepared, index: usize) -> Result<Arc<ChunkRows>> {
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
                            // The next caller retries.
                            chunks.all[index].state = ChunkState::Absent;
                        }
                        return done;
                    }
                    ChunkState::Computing { .. } => {}
                    ChunkState::Absent => self.begin(&mut chunks, index, None),
                }
                // Also start the following chunks, so that a single stream keeps all threads busy.
                let threads = self.core.executor.width();
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
            // A stream may still read a window that the store has dropped.
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

    /// Counts rows taken by a stream, and evicts the chunk when every reader has taken it.
    pub(super) fn taken(self: &Arc<Self>, prepared: &Prepared, index: usize, rows: u64) {
        let Some(store) = self.store.upgrade() else { return };
        let mut state = store.state.lock();
        let is_held = state.windows.get(&self.key).is_some_and(|held| Arc::ptr_eq(held, self));
        let freed = {
            let mut chunks = prepared.chunks.lock();
            let expected = *self.shares.lock() * (prepared.rows(index).end - prepared.rows(index).start) as f64;
            let chunk = &mut chunks.all[index];
            chunk.rows_taken += rows;
            // The sum of the ranks' fractions is inexact.
            if chunk.is_spent || (chunk.rows_taken as f64) < expected - 0.5 {
                return;
            }
            chunk.is_spent = true;
            match std::mem::take(&mut chunk.state) {
                ChunkState::Done(done) => {
                    if is_held
                        && self.repeats
                        && let Ok(rows) = &done
                    {
                        chunk.kept = state.kept.reserve(&self.key, rows, store.kept_limit_bytes());
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

/// Prepares a window. Holds it weakly, so that work on a dropped window stops. A `twin` has the same rows.
pub(super) async fn prepare(stored: Weak<StoredWindow>, twin: Option<Arc<StoredWindow>>) {
    let Some((core, window)) = stored.upgrade().map(|stored| (Arc::clone(&stored.core), stored.key.1)) else { return };
    let shared = match &twin {
        // A kept twin has no source rows. In that case this window is kept as well, or was found among the kept
        // windows.
        Some(twin) => {
            twin.wait().await.ok().filter(|prepared| !prepared.was_kept).map(|prepared| prepared.window.clone())
        }
        None => None,
    };
    if let Some(stored) = stored.upgrade() {
        stored.has_begun.store(true, Ordering::Relaxed);
        if let Some(store) = stored.store.upgrade() {
            store.news.notify_one();
        }
    }
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

/// Computes a chunk.
async fn compute(stored: Weak<StoredWindow>, index: usize, ahead: Option<ComputingAhead>) {
    let Some(stored) = stored.upgrade() else { return };
    let result = match AssertUnwindSafe(transform(&stored, index)).catch_unwind().await {
        Ok(result) => result,
        Err(panic) => Err(Error::internal(format!("computing a window panicked: {}", panic_text(panic.as_ref())))),
    };
    // Release the slot before looking for the next chunk.
    drop(ahead);
    stored.done(index, result);
}

async fn transform(stored: &StoredWindow, index: usize) -> Result<ChunkRows> {
    let prepared = stored.prepared().expect("chunks are of prepared windows")?;
    chunk::transform(&stored.core, stored.key.1, &prepared.window, prepared.rows(index)).await
}
