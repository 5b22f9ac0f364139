//! A prepared window, whose rows are transformed in chunks.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::super::window::Window;
use super::chunk::ChunkRows;
use crate::error::Result;
use crate::executor::Task;

/// Source bytes and rows of a chunk: large enough to justify a task, small enough to run several in parallel.
const CHUNK_BYTES: u64 = 512 << 10;
const CHUNK_ROWS: u64 = 8192;

/// A window whose rows are known.
pub(super) struct Prepared {
    pub(super) window: Window,
    pub(super) chunk_rows: u64,
    pub(super) chunks: Mutex<Chunks>,
    /// Whether it was kept from an earlier epoch, with all chunks.
    pub(super) was_kept: bool,
}

/// The chunks of a window.
pub(super) struct Chunks {
    pub(super) all: Vec<Chunk>,
    /// The largest result so far, used as the estimate for the next.
    pub(super) bytes_max: u64,
}

#[derive(Default)]
pub(super) struct Chunk {
    pub(super) state: ChunkState,
    pub(super) rows_taken: u64,
    /// Every reader has taken it, so it is recomputed only on demand.
    pub(super) is_spent: bool,
    /// Kept for the next epoch, and counted there.
    pub(super) kept: Option<Arc<ChunkRows>>,
    pub(super) was_computed: bool,
}

#[derive(Default)]
pub(super) enum ChunkState {
    #[default]
    Absent,
    Computing {
        _task: Task<()>,
    },
    Done(Result<Arc<ChunkRows>>),
}

impl Prepared {
    pub(super) fn new(window: Window) -> Self {
        let row_bytes = (window.bytes() / window.len().max(1)).max(1);
        let chunk_rows = (CHUNK_BYTES / row_bytes).clamp(1, CHUNK_ROWS);
        let all = (0..window.len().div_ceil(chunk_rows)).map(|_| Chunk::default()).collect();
        let chunks = Mutex::new(Chunks { all, bytes_max: 0 });
        Self { window: window.sharing(), chunk_rows, chunks, was_kept: false }
    }

    pub(super) fn rows(&self, chunk: usize) -> Range<u64> {
        let first = chunk as u64 * self.chunk_rows;
        first..(first + self.chunk_rows).min(self.window.len())
    }
}

impl Chunk {
    pub(super) fn has_begun(&self) -> bool {
        self.was_computed || !matches!(self.state, ChunkState::Absent)
    }

    /// Whether its window must wait for this chunk before it is ready.
    pub(super) fn is_awaited(&self) -> bool {
        !self.is_spent && !self.was_computed
    }
}

impl ChunkState {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Done(Ok(rows)) => rows.bytes,
            _ => 0,
        }
    }
}
