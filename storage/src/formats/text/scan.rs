//! Scans a text file once and cuts it into blocks at record boundaries.

use bytes::Bytes;

use super::record_text::RecordText;
use crate::pinned::PinnedFile;
use crate::source_file::{Cuts, RowGroup};
use crate::{Error, Result};

const BLOCK_BYTES: u64 = 1 << 20;
const BLOCK_ROWS: u64 = 8192;
const SCAN_BYTES: u64 = 4 << 20;
/// A longer record is treated as an unclosed quote. This also bounds the memory of one read.
const RECORD_BYTES_MAX: u64 = 64 << 20;

/// The result of scanning a file.
#[derive(Debug)]
pub(super) struct ScannedText<S> {
    pub(super) seen: S,
    pub(super) header: Bytes,
    pub(super) groups: Vec<RowGroup>,
}

pub(super) async fn scan<T: RecordText>(text: &T, file: &PinnedFile, infers: bool) -> Result<ScannedText<T::Seen>> {
    let mut seen = T::Seen::default();
    let mut records = text.records();
    let mut blocks = Blocks::default();
    let mut header = match text.has_header() {
        true => None,
        false => Some(Bytes::new()),
    };
    let mut at = 0;
    while at < file.size() {
        let chunk = file.get_range(at..(at + SCAN_BYTES).min(file.size())).await?;
        text.see(&mut seen, file.path(), &chunk, infers)?;
        let start = at;
        let mut record_ends = |end: u64| match header {
            Some(_) => blocks.add(end),
            None => {
                // The check below reports a header that does not fit into the first piece.
                header = Some(chunk.slice(..(end - start) as usize));
                blocks.start = end;
            }
        };
        records.push(&chunk, &mut record_ends);
        at += chunk.len() as u64;
        if at == file.size() {
            let closed = records.finish(&mut record_ends);
            if !closed {
                // The number of rows in the rest of the file is unknown, so this cannot be reported as one bad row.
                return Err(Error::data(format!(
                    "\"{}\": the record at byte {} opens a quote that is never closed; close it, or double a quote \
                     that is text",
                    file.path(),
                    blocks.end()
                )));
            }
        }
        if header.is_none() && at < file.size() {
            return Err(Error::data(format!("\"{}\" has a header of more than {SCAN_BYTES} bytes", file.path())));
        }
        if at - blocks.end() > RECORD_BYTES_MAX {
            return Err(Error::data(format!(
                "\"{}\": the record at byte {} is longer than {RECORD_BYTES_MAX} bytes; is a quote left open?",
                file.path(),
                blocks.end()
            )));
        }
    }
    blocks.cut();
    Ok(ScannedText { seen, header: header.unwrap_or_default(), groups: blocks.groups })
}

/// Groups records into blocks.
#[derive(Default)]
struct Blocks {
    groups: Vec<RowGroup>,
    start: u64,
    length: u64,
    rows: u64,
}

impl Blocks {
    fn add(&mut self, end: u64) {
        self.rows += 1;
        self.length = end - self.start;
        if self.rows >= BLOCK_ROWS || self.length >= BLOCK_BYTES {
            self.cut();
        }
    }

    fn cut(&mut self) {
        if self.rows == 0 {
            return;
        }
        self.groups.push(RowGroup {
            first_row: self.groups.last().map_or(0, |g| g.first_row + g.rows),
            rows: self.rows,
            bytes: self.length,
            offset: self.start,
            length: self.length,
            // Reading half a block would cost as much as reading all of it.
            cuts: Cuts::Nowhere,
        });
        self.start += self.length;
        (self.length, self.rows) = (0, 0);
    }

    /// The end of the last record.
    fn end(&self) -> u64 {
        self.start + self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_cut_by_rows_and_by_bytes() {
        let mut blocks = Blocks::default();
        (1..=BLOCK_ROWS + 1).for_each(|row| blocks.add(row * 2));
        blocks.add(BLOCK_BYTES * 2);
        blocks.add(BLOCK_BYTES * 2 + 1);
        blocks.cut();
        let found: Vec<_> = blocks.groups.iter().map(|g| (g.first_row, g.rows, g.offset, g.length)).collect();
        let end = BLOCK_ROWS * 2;
        let expect = [
            (0, BLOCK_ROWS, 0, end),
            (BLOCK_ROWS, 2, end, BLOCK_BYTES * 2 - end),
            (BLOCK_ROWS + 2, 1, BLOCK_BYTES * 2, 1),
        ];
        assert_eq!(found, expect);
    }
}
