//! Text with one record after the other: CSV and JSON lines.
//!
//! Text says nowhere how many rows it has, so opening it reads all of it once, in pieces, and cuts it at record
//! boundaries into blocks. A block is then read and decoded by itself, as a Parquet row group is. Decoding a block at
//! once is fast; only when that fails is it halved, again and again, until the bad records are alone.

use std::ops::Range;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use bytes::Bytes;

use crate::pinned::{PinnedFile, for_all};
use crate::snapshot::RowGroup;
use crate::{Error, Result, csv, jsonl};

const BLOCK_BYTES: u64 = 1 << 20;
const BLOCK_ROWS: u64 = 8192;
const SCAN_BYTES: u64 = 4 << 20;
/// A longer record is taken for a quote that was never closed. It also bounds what one read holds in memory.
const RECORD_BYTES_MAX: u64 = 64 << 20;

/// How a text file is to be understood.
#[derive(Clone, Debug)]
pub(crate) enum Text {
    Csv { has_header: bool, delimiter: u8 },
    Jsonl,
}

/// A block's good rows, in order, and its bad ones by their number in the block.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    pub(crate) batches: Vec<RecordBatch>,
    pub(crate) bad: Vec<(u64, String)>,
}

/// What scanning a file finds.
#[derive(Debug)]
struct Scanned {
    header: Bytes,
    groups: Vec<RowGroup>,
}

/// Scans all files, and infers the schema from the first that has rows unless it is given.
pub(crate) async fn open(
    text: &Text,
    files: &[PinnedFile],
    schema: Option<&SchemaRef>,
) -> Result<(SchemaRef, Vec<Vec<RowGroup>>)> {
    let scanned: Vec<Scanned> = for_all(files, |file| scan(text, file)).await?;
    let schema = match schema {
        Some(schema) => schema.clone(),
        None => infer(text, files, &scanned).await?,
    };
    text.check_schema(&schema)?;
    if let Text::Csv { delimiter, has_header: true } = text {
        for (file, scanned) in files.iter().zip(&scanned) {
            csv::check_header(&file.display, &scanned.header, *delimiter, &schema)?;
        }
    }
    Ok((schema, scanned.into_iter().map(|s| s.groups).collect()))
}

async fn infer(text: &Text, files: &[PinnedFile], scanned: &[Scanned]) -> Result<SchemaRef> {
    let with_rows = scanned.iter().position(|s| !s.groups.is_empty());
    let with_header = scanned.iter().position(|s| !s.header.is_empty());
    let Some(first) = with_rows.or(with_header) else {
        return Ok(SchemaRef::new(arrow::datatypes::Schema::empty()));
    };
    let end = match scanned[first].groups.first() {
        Some(group) => group.offset + group.length,
        None => scanned[first].header.len() as u64,
    };
    let sample = files[first].get_range(0..end).await?;
    let inferred = match text {
        Text::Csv { has_header, delimiter } => csv::infer(&sample, *has_header, *delimiter),
        Text::Jsonl => jsonl::infer(&sample),
    };
    inferred.map_err(|e| {
        Error::data(format!(
            "\"{}\": its columns cannot be told from its first rows: {e}; give the columns and their types",
            files[first].display
        ))
        .with_source(e)
    })
}

async fn scan(text: &Text, file: &PinnedFile) -> Result<Scanned> {
    let mut records = text.records();
    let mut blocks = Blocks::default();
    let mut header = match text {
        Text::Csv { has_header: true, .. } => None,
        _ => Some(Bytes::new()),
    };
    let mut at = 0;
    while at < file.size {
        let chunk = file.get_range(at..(at + SCAN_BYTES).min(file.size)).await?;
        let start = at;
        let mut record_ends = |end: u64| match header {
            Some(_) => blocks.add(end),
            None => {
                // A header that does not fit the first piece is found out below.
                header = Some(chunk.slice(..(end - start) as usize));
                blocks.start = end;
            }
        };
        records.push(&chunk, &mut record_ends);
        at += chunk.len() as u64;
        if at == file.size {
            let closed = records.finish(&mut record_ends);
            if !closed {
                // Nobody could say how many rows the rest of the file was meant to be, so this is not one bad row.
                return Err(Error::data(format!(
                    "\"{}\": the record at byte {} opens a quote that is never closed; close it, or double a quote that is text",
                    file.display,
                    blocks.end()
                )));
            }
        }
        if header.is_none() && at < file.size {
            return Err(Error::data(format!("\"{}\" has a header of more than {SCAN_BYTES} bytes", file.display)));
        }
        if at - blocks.end() > RECORD_BYTES_MAX {
            return Err(Error::data(format!(
                "\"{}\": the record at byte {} is longer than {RECORD_BYTES_MAX} bytes; is a quote left open?",
                file.display,
                blocks.end()
            )));
        }
    }
    blocks.cut();
    Ok(Scanned { header: header.unwrap_or_default(), groups: blocks.groups })
}

/// Gathers records into blocks.
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
            // A block is smaller than any sensible range, and half of it would cost as much to read as all.
            splittable: false,
        });
        self.start += self.length;
        (self.length, self.rows) = (0, 0);
    }

    /// Where the last record ended.
    fn end(&self) -> u64 {
        self.start + self.length
    }
}

/// Finds where records end in text that comes in pieces.
pub(crate) trait Records: Send {
    /// Reports the position in the file, not in `piece`, after each record that ends in it.
    fn push(&mut self, piece: &[u8], record_ends: &mut dyn FnMut(u64));
    /// The text is over: reports the last record if no newline ended it. `false` if its quotes are never closed: then
    /// it is not reported.
    fn finish(&mut self, record_ends: &mut dyn FnMut(u64)) -> bool;
}

impl Text {
    fn records(&self) -> Box<dyn Records> {
        match self {
            Self::Csv { delimiter, .. } => Box::new(csv::CsvRecords::new(*delimiter)),
            Self::Jsonl => Box::new(jsonl::Lines::default()),
        }
    }

    pub(crate) fn check_schema(&self, schema: &SchemaRef) -> Result<()> {
        match self {
            Self::Csv { delimiter, .. } => csv::check_types(*delimiter, schema),
            Self::Jsonl => jsonl::check_types(schema),
        }
        .map_err(|e| Error::invalid(format!("the columns cannot be read from text: {e}")).with_source(e))
    }

    /// Decodes a block that should hold `rows` records.
    pub(crate) fn decode(&self, block: &[u8], rows: u64, schema: &SchemaRef, columns: &[usize]) -> Result<Decoded> {
        let mut decoded = Decoded::default();
        if let Ok(batch) = self.decode_records(block, rows as usize, schema, columns)
            && batch.num_rows() as u64 == rows
        {
            decoded.batches.push(batch);
            return Ok(decoded);
        }
        let mut ends = vec![0];
        let mut records = self.records();
        let mut record_ends = |end: u64| ends.push(end as usize);
        records.push(block, &mut record_ends);
        records.finish(&mut record_ends);
        let found = ends.len() as u64 - 1;
        if found != rows {
            return Err(Error::internal(format!("a block of {rows} records has {found} when read again")));
        }
        self.halve(block, &ends, 0..rows as usize, schema, columns, &mut decoded);
        Ok(decoded)
    }

    fn halve(
        &self,
        block: &[u8],
        ends: &[usize],
        rows: Range<usize>,
        schema: &SchemaRef,
        columns: &[usize],
        decoded: &mut Decoded,
    ) {
        let records = &block[ends[rows.start]..ends[rows.end]];
        match self.decode_records(records, rows.len(), schema, columns) {
            Ok(batch) if batch.num_rows() == rows.len() => decoded.batches.push(batch),
            result if rows.len() == 1 => {
                let reason = match result {
                    Ok(batch) => format!("one line holds {} objects", batch.num_rows()),
                    Err(e) => self.reason(records, schema, columns, &e),
                };
                decoded.bad.push((rows.start as u64, reason));
            }
            _ => {
                let middle = rows.start + rows.len() / 2;
                self.halve(block, ends, rows.start..middle, schema, columns, decoded);
                self.halve(block, ends, middle..rows.end, schema, columns, decoded);
            }
        }
    }

    fn decode_records(
        &self,
        records: &[u8],
        rows: usize,
        schema: &SchemaRef,
        columns: &[usize],
    ) -> Result<RecordBatch, ArrowError> {
        match self {
            Self::Csv { delimiter, .. } => csv::decode(records, rows, *delimiter, schema, columns),
            Self::Jsonl => jsonl::decode(records, rows, schema, columns),
        }
    }

    fn reason(&self, record: &[u8], schema: &SchemaRef, columns: &[usize], error: &ArrowError) -> String {
        match self {
            Self::Csv { delimiter, .. } => csv::reason(record, *delimiter, schema, columns, error),
            Self::Jsonl => jsonl::reason(error),
        }
    }
}

/// Where each record of `text` ends, given in pieces of `piece_bytes`.
#[cfg(test)]
pub(crate) fn record_ends(mut records: impl Records, text: &str, piece_bytes: usize) -> Vec<u64> {
    let mut ends = Vec::new();
    for piece in text.as_bytes().chunks(piece_bytes) {
        records.push(piece, &mut |end| ends.push(end));
    }
    records.finish(&mut |end| ends.push(end));
    ends
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
