//! Decodes a block, and finds its bad records.
//!
//! Decoding a whole block is fast. If it fails, the block is halved repeatedly until the bad records are isolated.

use std::ops::Range;

use arrow::datatypes::SchemaRef;

use super::record_text::RecordText;
use crate::formats::format::Decoded;
use crate::{Error, Result};

/// Decodes a block that should hold `rows` records.
pub(super) fn decode(
    text: &impl RecordText,
    block: &[u8],
    rows: u64,
    schema: &SchemaRef,
    columns: &[usize],
) -> Result<Decoded> {
    if let Ok(batch) = text.decode(block, rows as usize, schema, columns)
        && batch.num_rows() as u64 == rows
    {
        return Ok(Decoded { batches: vec![batch], bad: Vec::new() });
    }
    let mut ends = vec![0];
    let mut records = text.records();
    let mut record_ends = |end: u64| ends.push(end as usize);
    records.push(block, &mut record_ends);
    records.finish(&mut record_ends);
    let found = ends.len() as u64 - 1;
    if found != rows {
        return Err(Error::internal(format!("a block of {rows} records has {found} when read again")));
    }
    let mut halving = Halving { text, block, ends: &ends, schema, columns, decoded: Decoded::default() };
    halving.decode(0..rows as usize);
    Ok(halving.decoded)
}

struct Halving<'a, T> {
    text: &'a T,
    block: &'a [u8],
    /// The end of each record, after a zero.
    ends: &'a [usize],
    schema: &'a SchemaRef,
    columns: &'a [usize],
    decoded: Decoded,
}

impl<T: RecordText> Halving<'_, T> {
    fn decode(&mut self, rows: Range<usize>) {
        let records = &self.block[self.ends[rows.start]..self.ends[rows.end]];
        match self.text.decode(records, rows.len(), self.schema, self.columns) {
            Ok(batch) if batch.num_rows() == rows.len() => self.decoded.batches.push(batch),
            result if rows.len() == 1 => {
                let reason = match result {
                    Ok(batch) => format!("one line holds {} objects", batch.num_rows()),
                    Err(e) => self.text.reason(records, self.schema, self.columns, &e),
                };
                self.decoded.bad.push((rows.start as u64, reason));
            }
            _ => {
                let middle = rows.start + rows.len() / 2;
                self.decode(rows.start..middle);
                self.decode(middle..rows.end);
            }
        }
    }
}
