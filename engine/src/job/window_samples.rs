//! The samples of a run of windows, in order.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use forebay_delivery::WindowId;
use forebay_protocol::OnError;

use crate::compile::{BadRow, TransformedRows};
use crate::error::Result;
use crate::executor::Task;
use crate::feed::{FeedCore, PIECE_BYTES_MAX, PIECE_ROWS_MAX, Window};

/// Computes the samples of consecutive windows of the first epoch. While a window is transformed, the next one is
/// prepared, so it holds at most two.
pub(crate) struct WindowSamples {
    core: Arc<FeedCore>,
    /// The windows that are not prepared.
    rest: Range<u32>,
    next: Option<Task<Result<Window>>>,
    current: Option<(u32, Arc<Window>)>,
    /// The positions of the current window that are in no piece.
    unread: Range<u64>,
    /// Pieces that are being transformed, in order.
    pieces: VecDeque<Task<Result<TransformedRows>>>,
    pieces_max: usize,
    /// Source rows of the windows that are finished.
    source_rows: u64,
}

/// Samples that lie together, and the bad rows among them.
pub(crate) struct Samples {
    pub(crate) batches: Vec<RecordBatch>,
    pub(crate) bad: Vec<BadRow>,
}

impl WindowSamples {
    /// The samples of `windows`. At most `pieces_max` pieces are transformed at a time.
    pub(crate) fn new(core: Arc<FeedCore>, windows: Range<u32>, pieces_max: usize) -> Self {
        let mut samples = Self {
            core,
            rest: windows,
            next: None,
            current: None,
            unread: 0..0,
            pieces: VecDeque::new(),
            pieces_max: pieces_max.max(1),
            source_rows: 0,
        };
        samples.prepare();
        samples
    }

    /// The next samples, or `None` after the last.
    ///
    /// # Errors
    /// Those of reading and computing, and the first bad row if the feed raises them.
    pub(crate) async fn next(&mut self) -> Result<Option<Samples>> {
        loop {
            while self.pieces.len() < self.pieces_max && !self.unread.is_empty() {
                self.begin_piece();
            }
            if let Some(piece) = self.pieces.front_mut() {
                let TransformedRows { batches, bad } = piece.join().await??;
                self.pieces.pop_front();
                if let (OnError::Raise, Some(first)) = (self.core.settings.on_error, bad.first()) {
                    return Err(self.core.bad_row_error(first));
                }
                return Ok(Some(Samples { batches, bad }));
            }
            self.finish_window();
            let Some(next) = &mut self.next else { return Ok(None) };
            let window = next.join().await??;
            self.unread = 0..window.len();
            self.current = Some((self.rest.start - 1, Arc::new(window.sharing())));
            self.next = None;
            self.prepare();
        }
    }

    /// Source rows of the windows whose samples were all returned.
    pub(crate) fn source_rows(&self) -> u64 {
        self.source_rows
    }

    fn finish_window(&mut self) {
        if let Some((index, _)) = self.current.take() {
            let epoch = self.core.plan.epoch(0);
            self.source_rows += epoch.rows_before(index + 1) - epoch.rows_before(index);
        }
    }

    fn prepare(&mut self) {
        self.next = self.rest.next().map(|index| {
            let core = Arc::clone(&self.core);
            let id = WindowId { epoch: 0, index };
            self.core.executor.spawn(async move { Window::prepare(&core, id).await })
        });
    }

    fn begin_piece(&mut self) {
        let Some((_, window)) = &self.current else { return };
        let row_bytes = (window.bytes() / window.len().max(1)).max(1);
        let rows = (PIECE_BYTES_MAX / row_bytes).clamp(1, PIECE_ROWS_MAX);
        let end = self.unread.end.min(self.unread.start + rows);
        let range = std::mem::replace(&mut self.unread.start, end)..end;
        let (core, window) = (Arc::clone(&self.core), Arc::clone(window));
        let raises = core.settings.on_error == OnError::Raise;
        self.pieces.push_back(
            self.core.executor.spawn(async move { window.transform(std::slice::from_ref(&range), raises).await }),
        );
    }
}
