//! One rank reading a feed: takes windows and returns exact batches in order.
//!
//! The cuts of a window are grouped into *pieces*, the unit of work of one core. A large batch is several pieces; many
//! small batches are one piece. Pieces are computed on all cores in parallel and returned in order. A reader that is
//! not polled starts no work, so a trainer's backpressure reaches the feed.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use forebay_arrays::{JoinedSize, batch_bytes, joined};
use forebay_delivery::{Cut, Cutter, EmptyEpoch, Origin, Plan, ReadSettings, Steps, Token, WindowId};
use forebay_protocol::{Batch, OnError};
use futures::Stream;

use super::demand::Taking;
use super::feed_core::FeedCore;
use super::runner::WindowCursor;
use super::window::Window;
use crate::compile::BadRow;
use crate::error::{Error, ErrorKind, Result};
use crate::executor::Task;

/// A piece closes at the end of a batch once it holds this much work.
const PIECE_BYTES_MIN: u64 = 256 << 10;
const PIECE_ROWS_MIN: u64 = 1024;
const PIECE_RESULT_BYTES_MIN: u64 = 8 << 20;
/// A piece closes inside a batch once it holds this much. Encoded images grow about thirty-fold when processed, so this
/// bounds memory. Concatenating a batch from several pieces costs half as much as decoding it.
pub(crate) const PIECE_BYTES_MAX: u64 = 4 << 20;
pub(crate) const PIECE_ROWS_MAX: u64 = 8192;
/// If results are larger than this, finished pieces do not wait beside the pieces being computed.
const RESULT_BYTES_READY_MAX: usize = 32 << 20;

/// Reads batches; made by [`Feed::read`](super::Feed::read).
pub struct Reader {
    reading: WindowCursor,
    settings: ReadSettings,
    at: WindowPosition,
    cutter: Cutter<Arc<Window>>,
    empty: EmptyEpoch,
    steps: Steps,
    /// Rows not yet in a piece, in order.
    parts: VecDeque<PiecePart>,
    in_flight: VecDeque<Task<Result<PieceResult>>>,
    /// Batches whose rows are in `parts`, being computed, or partly finished, in order.
    assembling: VecDeque<Assembly>,
    largest_result_bytes: usize,
    result_bytes_per_row: Option<u64>,
    /// The error of a bad row, returned after the batches before it.
    raised: Option<Error>,
    failed: bool,
    taking: Taking,
}

/// The next window to take, and its first offset.
#[derive(Clone, Copy, Debug)]
struct WindowPosition {
    window: WindowId,
    offset: u64,
}

/// Rows of one window that belong to one batch.
struct PiecePart {
    window: Arc<Window>,
    rows: Range<u64>,
    ends_batch: bool,
}

struct Assembly {
    batch: Cut<()>,
    token: Token,
    missing: u64,
    gaps: u64,
    records: Vec<RecordBatch>,
    size: JoinedSize,
    bad: Vec<BadRow>,
}

/// The result of a piece, one entry per part.
struct PieceResult {
    parts: Vec<PartResult>,
    bytes: usize,
    /// The first bad row, if bad rows are raised. Its part and the parts after it are missing.
    raised: Option<Error>,
}

struct PartResult {
    /// The number of positions, including bad rows and gaps.
    rows: u64,
    gaps: u64,
    records: Vec<RecordBatch>,
    bad: Vec<BadRow>,
}

impl Reader {
    pub(crate) fn new(reading: WindowCursor, settings: ReadSettings, begin: Origin) -> Self {
        let steps = Steps::new(Arc::clone(&reading.core().id), begin.window.epoch);
        Self {
            reading,
            settings,
            at: WindowPosition { window: begin.window, offset: begin.window_offset },
            cutter: Cutter::new(settings, begin.offset),
            empty: EmptyEpoch::new(&settings, &begin),
            steps,
            parts: VecDeque::new(),
            in_flight: VecDeque::new(),
            assembling: VecDeque::new(),
            largest_result_bytes: 0,
            result_bytes_per_row: None,
            raised: None,
            failed: false,
            taking: Taking::default(),
        }
    }

    /// The next batch, or `None` after the last epoch or after an error. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Batch>> {
        if self.failed {
            return None;
        }
        let core = Arc::clone(self.core());
        self.taking.asks(&core.demand);
        let next = self.advance().await;
        self.failed = next.is_err();
        if let Ok(Some(batch)) = &next {
            self.taking.returns(&core.demand, batch.positions);
        }
        next.transpose()
    }

    /// The batches as a stream.
    pub fn into_stream(self) -> impl Stream<Item = Result<Batch>> + Send {
        futures::stream::unfold(self, |mut reader| async move { Some((reader.next().await?, reader)) })
    }

    async fn advance(&mut self) -> Result<Option<Batch>> {
        loop {
            if self.assembling.front().is_some_and(|first| first.missing == 0) {
                return self.hand_out().await.map(Some);
            }
            if let Some(error) = self.raised.take() {
                return Err(error);
            }
            while self.in_flight.len() < self.depth() {
                let piece = self.next_piece();
                if !piece.is_empty() {
                    self.start(piece);
                } else if !self.take_window(self.in_flight.is_empty()).await? {
                    break;
                }
            }
            let Some(task) = self.in_flight.front_mut() else { return Ok(None) };
            let result = task.join().await??;
            self.in_flight.pop_front();
            self.place(result);
        }
    }

    /// The number of pieces to compute at once: as many as keep the threads busy, plus one unless results are large.
    fn depth(&self) -> usize {
        let executor = &self.core().executor;
        // Pieces beyond one per thread only wait, and large ones take more memory than that is worth.
        let waiting = executor.width().saturating_sub(executor.threads());
        let fit = self.core().waiting_bytes_max / self.largest_result_bytes.max(1) as u64;
        let waiting = waiting.min(usize::try_from(fit).unwrap_or(usize::MAX));
        executor.threads() + waiting + usize::from(self.largest_result_bytes <= RESULT_BYTES_READY_MAX)
    }

    fn core(&self) -> &Arc<FeedCore> {
        self.reading.core()
    }

    /// Takes the next window to cut. Without `wait`, takes it only if it is ready. Returns `false` if no window was
    /// taken.
    async fn take_window(&mut self, wait: bool) -> Result<bool> {
        let id = self.at.window;
        self.reading.advance(id);
        if id.epoch >= self.settings.epochs {
            return Ok(false);
        }
        let window = match self.reading.try_window(id) {
            Some(Ok(window)) => window,
            _ if wait => self.reading.window(id).await?,
            // A failed window returns its error only after the batches before it.
            _ => return Ok(false),
        };
        let last = self.core().plan.is_last(id);
        let offsets = self.at.offset..self.at.offset + window.len();
        if id.epoch != self.steps.epoch() {
            self.cutter = Cutter::new(self.settings, 0);
        }
        self.steps.push(id, offsets.start);
        self.empty.push(&self.settings, id.epoch, offsets.end, last);
        if self.empty.was_met() {
            return Err(Error::empty_epoch(&self.settings));
        }
        self.cutter.push(window, offsets.clone(), last);
        self.at = if last {
            WindowPosition { window: WindowId { epoch: id.epoch + 1, index: 0 }, offset: 0 }
        } else {
            WindowPosition { window: WindowId { index: id.index + 1, ..id }, offset: offsets.end }
        };
        Ok(true)
    }

    /// Queues the rows of a batch and a place to assemble them.
    fn expect(&mut self, cut: Cut<Arc<Window>>) {
        let step_at = cut.next_step_at - self.settings.batch_size * self.settings.world_size;
        let token = self.steps.token(step_at, cut.next_step_at);
        let parts = cut.parts.len();
        self.parts.extend(cut.parts.into_iter().enumerate().map(|(index, (window, rows))| PiecePart {
            window,
            rows,
            ends_batch: index + 1 == parts,
        }));
        self.assembling.push_back(Assembly {
            missing: cut.offsets.end - cut.offsets.start,
            batch: Cut { step: cut.step, offsets: cut.offsets, next_step_at: cut.next_step_at, parts: Vec::new() },
            token,
            gaps: 0,
            records: Vec::new(),
            size: JoinedSize::default(),
            bad: Vec::new(),
        });
    }

    /// Takes the next rows of one window, enough work for one task. Empty if no rows are left.
    fn next_piece(&mut self) -> Vec<PiecePart> {
        let mut piece: Vec<PiecePart> = Vec::new();
        let (mut rows, mut bytes) = (0, 0);
        loop {
            if self.parts.is_empty() {
                let Some(cut) = self.cutter.next() else { break };
                self.expect(cut);
            }
            let Some(part) = self.parts.front_mut() else { break };
            if piece.first().is_some_and(|first| !Arc::ptr_eq(&first.window, &part.window)) {
                break;
            }
            let row_bytes = (part.window.bytes() / part.window.len()).max(1);
            let room = (PIECE_BYTES_MAX.saturating_sub(bytes) / row_bytes).min(PIECE_ROWS_MAX - rows);
            let take = room.max(u64::from(piece.is_empty())).min(part.rows.end - part.rows.start);
            if take == 0 {
                break;
            }
            let taken = part.rows.start..part.rows.start + take;
            part.rows.start = taken.end;
            let ends_part = part.rows.is_empty();
            let ends_batch = ends_part && part.ends_batch;
            piece.push(PiecePart { window: Arc::clone(&part.window), rows: taken, ends_batch });
            rows += take;
            bytes += take * row_bytes;
            if ends_part {
                self.parts.pop_front();
            }
            // Small batches share a piece only after the first piece has shown the size of results.
            let results = self.result_bytes_per_row.map_or(u64::MAX, |bytes| bytes.saturating_mul(rows));
            let is_enough = bytes >= PIECE_BYTES_MIN || rows >= PIECE_ROWS_MIN || results >= PIECE_RESULT_BYTES_MIN;
            if ends_batch && is_enough {
                break;
            }
        }
        piece
    }

    fn start(&mut self, piece: Vec<PiecePart>) {
        let core = Arc::clone(self.core());
        let task = self.core().executor.spawn(async move { compute(&core, &piece).await });
        self.in_flight.push_back(task);
    }

    /// Assigns the rows of a finished piece to their batches.
    fn place(&mut self, result: PieceResult) {
        self.largest_result_bytes = self.largest_result_bytes.max(result.bytes);
        let rows: u64 = result.parts.iter().map(|part| part.rows).sum();
        if let Some(bytes) = (result.bytes as u64).checked_div(rows) {
            self.result_bytes_per_row = self.result_bytes_per_row.max(Some(bytes));
        }
        self.raised = result.raised;
        let mut waiting = self.assembling.iter_mut().skip_while(|batch| batch.missing == 0).peekable();
        for part in result.parts {
            let batch = waiting.peek_mut().expect("every row in flight belongs to a batch");
            batch.missing -= part.rows;
            batch.gaps += part.gaps;
            // Tell it now, before the rest of the batch takes more memory.
            let fits = part.records.iter().try_for_each(|records| batch.size.add(records));
            if self.raised.is_none() {
                self.raised = fits.map_err(unjoinable).err();
            }
            batch.records.extend(part.records);
            batch.bad.extend(part.bad);
            if batch.missing == 0 {
                waiting.next();
            }
        }
    }

    /// Returns the first batch, which is complete. Cancel-safe: the batch is removed only after the last await.
    async fn hand_out(&mut self) -> Result<Batch> {
        let core = self.core();
        let first = self.assembling.front().expect("asked for by the caller");
        if core.settings.on_error == OnError::Quarantine && !first.bad.is_empty() {
            let name = format!("offset-{:012}", first.batch.offsets.start);
            core.quarantine(&first.bad, first.token.epoch, &name).await?;
        }
        let records = match &first.records[..] {
            [one] => one.clone(),
            several => {
                let (schema, several) = (core.stage.schema(), several.to_vec());
                // Copying a large batch would block the thread that serves it for too long.
                let whole = core.executor.spawn(async move { joined(&schema, &several) }).join().await?;
                whole.map_err(unjoinable)?
            }
        };
        let Assembly { batch, token, gaps, .. } = self.assembling.pop_front().expect("looked at above");
        Ok(Batch {
            epoch: token.epoch,
            step: batch.step,
            offset: batch.offsets.start,
            positions: batch.offsets.end - batch.offsets.start,
            gaps,
            records,
            token,
        })
    }
}

/// The error of a batch that one array cannot hold.
fn unjoinable(error: ArrowError) -> Error {
    Error::new(ErrorKind::Exhausted, format!("cannot put a batch together: {error}")).with_hint("lower the batch size")
}

/// Computes a piece and splits the result into its parts.
async fn compute(core: &FeedCore, piece: &[PiecePart]) -> Result<PieceResult> {
    let window = &piece.first().expect("a piece has a part").window;
    let ranges: Vec<_> = piece.iter().map(|part| part.rows.clone()).collect();
    let raise = core.settings.on_error == OnError::Raise;
    let transformed = window.transform(&ranges, raise).await?;
    // Columns of the source share their buffers with other pieces.
    let bytes = transformed.batches.iter().map(batch_bytes).sum::<u64>() as usize;
    let mut rows = RowQueue { batches: transformed.batches.into(), at: 0 };
    let mut parts = Vec::with_capacity(ranges.len());
    for (range, bad) in ranges.iter().zip(window.split_bad(&ranges, transformed.bad)) {
        if let (true, Some(first)) = (raise, bad.first()) {
            return Ok(PieceResult { parts, bytes, raised: Some(core.bad_row_error(first)) });
        }
        let (len, gaps) = (range.end - range.start, window.gaps(range));
        parts.push(PartResult { rows: len, gaps, records: rows.take((len - gaps) as usize - bad.len()), bad });
    }
    Ok(PieceResult { parts, bytes, raised: None })
}

/// Rows in several batches, taken from the front without copying.
struct RowQueue {
    batches: VecDeque<RecordBatch>,
    at: usize,
}

impl RowQueue {
    fn take(&mut self, mut rows: usize) -> Vec<RecordBatch> {
        let mut taken = Vec::new();
        while rows > 0 {
            let first = self.batches.front().expect("a stage gives one row for each that is not bad");
            let len = rows.min(first.num_rows() - self.at);
            taken.push(first.slice(self.at, len));
            rows -= len;
            self.at += len;
            if self.at == first.num_rows() {
                self.batches.pop_front();
                self.at = 0;
            }
        }
        taken
    }
}
