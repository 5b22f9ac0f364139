//! Cuts rows into chunks that depend on the rows alone, whatever batches they come in.

use std::collections::VecDeque;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;

use super::plain::Plain;
use super::value_bytes::ValueBytes;
use crate::{Error, Result};

/// Rows that wait for their chunk to become complete.
#[derive(Debug)]
pub(super) struct Chunks {
    plain: Plain,
    pieces: VecDeque<Piece>,
    rows: usize,
    bytes: u64,
}

/// The rest of a batch.
#[derive(Debug)]
struct Piece {
    batch: RecordBatch,
    sizes: ValueBytes,
    /// The first row that is left.
    from: usize,
}

/// The end of a chunk: after so many rows, or the row that completes so many bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkEnd {
    pub(super) rows: usize,
    pub(super) bytes: u64,
}

/// Rows with plain types.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) rows: RecordBatch,
    /// The bytes of its values.
    pub(super) bytes: u64,
}

impl Chunks {
    pub(super) fn new(plain: Plain) -> Self {
        Self { plain, pieces: VecDeque::new(), rows: 0, bytes: 0 }
    }

    /// The schema of chunks.
    pub(super) fn schema(&self) -> &SchemaRef {
        self.plain.schema()
    }

    /// Adds rows.
    pub(super) fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        self.plain.check(batch)?;
        let sizes = ValueBytes::of(batch);
        self.rows += batch.num_rows();
        self.bytes += (0..batch.num_rows()).map(|row| sizes.row(row)).sum::<u64>();
        self.pieces.push_back(Piece { batch: batch.clone(), sizes, from: 0 });
        Ok(())
    }

    /// Puts a chunk back before all other rows.
    pub(super) fn push_front(&mut self, chunk: &Chunk) {
        self.rows += chunk.rows.num_rows();
        self.bytes += chunk.bytes;
        let sizes = ValueBytes::of(&chunk.rows);
        self.pieces.push_front(Piece { batch: chunk.rows.clone(), sizes, from: 0 });
    }

    /// The next chunk, if it is complete.
    pub(super) fn next(&mut self, end: ChunkEnd) -> Result<Option<Chunk>> {
        match self.rows >= end.rows.max(1) || self.bytes >= end.bytes.max(1) {
            true => self.cut(end).map(Some),
            false => Ok(None),
        }
    }

    /// The next chunk after the last row was added, if there are rows.
    pub(super) fn last(&mut self, end: ChunkEnd) -> Result<Option<Chunk>> {
        match self.rows > 0 {
            true => self.cut(end).map(Some),
            false => Ok(None),
        }
    }

    fn cut(&mut self, end: ChunkEnd) -> Result<Chunk> {
        let (mut rows, mut bytes, mut parts) = (0, 0, Vec::new());
        while rows < end.rows.max(1) && (bytes < end.bytes || rows == 0) {
            let Some(piece) = self.pieces.front_mut() else { break };
            let from = piece.from;
            while piece.from < piece.batch.num_rows() && rows < end.rows.max(1) && (bytes < end.bytes || rows == 0) {
                bytes += piece.sizes.row(piece.from);
                rows += 1;
                piece.from += 1;
            }
            parts.push(self.plain.rows(&piece.batch.slice(from, piece.from - from))?);
            if piece.from == piece.batch.num_rows() {
                self.pieces.pop_front();
            }
        }
        self.rows -= rows;
        self.bytes -= bytes;
        let rows = match &parts[..] {
            [one] => one.clone(),
            parts => concat_batches(self.plain.schema(), parts)
                .map_err(|error| Error::internal(format!("cannot put rows together: {error}")).with_source(error))?,
        };
        Ok(Chunk { rows, bytes })
    }
}
