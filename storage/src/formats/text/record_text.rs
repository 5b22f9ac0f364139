//! The interface of a text format: its records and how to decode them.

use std::fmt::Debug;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use crate::Result;

/// Text with one record after the other: finds the ends of records and decodes records.
pub(crate) trait RecordText: Debug + Send + Sync + 'static {
    /// What the records of a file show while it is scanned, besides their ends.
    type Seen: Debug + Default + Send + Sync;

    /// Finds record ends, from the beginning of a file or of a block.
    fn records(&self) -> Box<dyn Records>;

    /// Whether the first record of each file is a header.
    fn has_header(&self) -> bool {
        false
    }

    /// Refuses a header that does not match the columns. `file` is the path for the error.
    fn check_header(&self, _file: &str, _header: &[u8], _schema: &SchemaRef) -> Result<()> {
        Ok(())
    }

    /// Looks at the next piece of a file, and refuses a file of another format. `infers` is whether the table declares
    /// no columns.
    fn see(&self, _seen: &mut Self::Seen, _file: &str, _piece: &[u8], _infers: bool) -> Result<()> {
        Ok(())
    }

    /// Adds what was seen of the next file to what was seen of those before.
    fn gather(&self, _all: &mut Self::Seen, _file: Self::Seen) -> Result<(), ArrowError> {
        Ok(())
    }

    /// Infers the columns from what was seen of all files.
    fn inferred(&self, _all: &Self::Seen) -> Option<SchemaRef> {
        None
    }

    /// Infers the columns from the beginning of a file, up to the end of a record. It is used for formats whose columns
    /// are not [inferred](Self::inferred) from all files.
    fn infer(&self, _sample: &[u8]) -> Result<SchemaRef, ArrowError> {
        Err(ArrowError::SchemaError("this format infers its columns from all records".to_owned()))
    }

    /// Fails for column types that the format cannot hold.
    fn check_types(&self, schema: &SchemaRef) -> Result<(), ArrowError>;

    /// Decodes some columns of records, which should be `rows` rows. Fails if any record is bad.
    fn decode(
        &self,
        records: &[u8],
        rows: usize,
        schema: &SchemaRef,
        columns: &[usize],
    ) -> Result<RecordBatch, ArrowError>;

    /// The reason that `decode` refused one record with `error`.
    fn reason(&self, record: &[u8], schema: &SchemaRef, columns: &[usize], error: &ArrowError) -> String;
}

/// Finds record ends in text that arrives in pieces.
pub(crate) trait Records: Send {
    /// Reports the position in the file, not in `piece`, after each record that ends in the piece.
    fn push(&mut self, piece: &[u8], record_ends: &mut dyn FnMut(u64));

    /// Ends the text: reports the last record if no newline ended it. Returns `false` and reports nothing if a quote in
    /// the record is never closed.
    fn finish(&mut self, record_ends: &mut dyn FnMut(u64)) -> bool;
}

/// The end of each record of `text`, which is pushed in pieces of `piece_bytes`.
#[cfg(test)]
pub(crate) fn record_ends(mut records: impl Records, text: &str, piece_bytes: usize) -> Vec<u64> {
    let mut ends = Vec::new();
    for piece in text.as_bytes().chunks(piece_bytes) {
        records.push(piece, &mut |end| ends.push(end));
    }
    records.finish(&mut |end| ends.push(end));
    ends
}
