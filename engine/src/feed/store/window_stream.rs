//! A stream over a slice of a window's rows, by run and by chunk.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use forebay_delivery::Slice;
use futures::Stream;

use super::WindowRows;
use super::chunk::ChunkRows;
use super::stored_window::StoredWindow;
use crate::error::{Error, Result};

impl StoredWindow {
    /// Streams the runs of `slice` from row `from_row` on. The stream ends after an error.
    ///
    /// # Errors
    /// `Invalid` for a slice with a different number of rows. Data errors appear in the stream at their position.
    pub async fn read(
        self: Arc<Self>,
        slice: Slice,
        from_row: u64,
    ) -> Result<impl Stream<Item = Result<WindowRows>> + Send> {
        let rows = self.wait().await?.window.len();
        if !slice.is_valid() || slice.rows != rows || from_row > rows {
            return Err(Error::invalid(format!("the slice does not fit a window of {rows} rows")));
        }
        let reading = WindowStream { stored: self, slice, run: slice.run(from_row), held: VecDeque::new() };
        Ok(futures::stream::unfold(Some(reading), |reading| async move {
            let mut reading = reading?;
            let run = reading.run.clone()?;
            reading.run = reading.slice.run(run.end);
            let rows = reading.take(run).await;
            let next = rows.is_ok().then_some(reading);
            Some((rows, next))
        }))
    }
}

/// One stream's position in a window.
struct WindowStream {
    stored: Arc<StoredWindow>,
    slice: Slice,
    run: Option<Range<u64>>,
    /// The latest chunks, held because the next run may begin in one that the store evicts meanwhile.
    held: VecDeque<(usize, Arc<ChunkRows>)>,
}

impl WindowStream {
    async fn take(&mut self, run: Range<u64>) -> Result<WindowRows> {
        let stored = Arc::clone(&self.stored);
        let prepared = stored.wait().await?;
        let chunks = (run.start / prepared.chunk_rows) as usize..=((run.end - 1) / prepared.chunk_rows) as usize;
        self.held.retain(|(index, _)| chunks.contains(index));
        let mut records = Vec::new();
        for index in chunks {
            let chunk = match self.held.iter().find(|(held, _)| *held == index) {
                Some((_, chunk)) => Arc::clone(chunk),
                None => {
                    let chunk = stored.chunk(prepared, index).await?;
                    self.held.push_back((index, Arc::clone(&chunk)));
                    chunk
                }
            };
            let of_chunk = prepared.rows(index);
            let rows = run.start.max(of_chunk.start)..run.end.min(of_chunk.end);
            chunk.slice(&rows, &mut records)?;
            stored.taken(prepared, index, rows.end - rows.start);
        }
        Ok(WindowRows { gaps: prepared.window.gaps(&run), rows: run, records })
    }
}
