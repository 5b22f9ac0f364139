//! Received rows of a window, and the batches built from them.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use forebay_arrays::{finish_deferred, joined, matches_when_finished};
use forebay_delivery::AssembledBatch;
use forebay_protocol::{Batch, Error, ErrorKind, Result};

/// Rows that were received together.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) records: RecordBatch,
    /// Positions without a row, bad or good.
    pub(crate) gaps: u64,
}

impl Piece {
    /// Whether the columns match the feed's schema.
    pub(crate) fn is_of(&self, schema: &SchemaRef) -> bool {
        let (fields, expected) = (self.records.schema_ref().fields(), schema.fields());
        fields.len() == expected.len()
            && fields.iter().zip(expected).all(|(field, expected)| matches_when_finished(field, expected))
    }
}

/// Joins the pieces of a batch and runs the steps that the feed leaves to its reader.
///
/// # Errors
/// `Exhausted` for a batch that one array cannot hold.
pub(crate) fn join(batch: AssembledBatch<Piece>, schema: &SchemaRef) -> Result<Batch> {
    let AssembledBatch { epoch, step, offsets, token, records: pieces } = batch;
    let gaps = pieces.iter().map(|piece| piece.gaps).sum();
    let records = pieces.into_iter().map(|piece| piece.records);
    let mut records: Vec<_> = records.filter(|records| records.num_rows() > 0).collect();
    let records = match records.len() {
        0 => RecordBatch::new_empty(SchemaRef::clone(schema)),
        1 => finish_deferred(&records.remove(0), schema)?,
        _ => {
            // Workers may leave different steps of different windows.
            let is_one_schema = records.iter().all(|it| it.schema_ref() == records[0].schema_ref());
            if !is_one_schema {
                for records in &mut records {
                    *records = finish_deferred(records, schema)?;
                }
            }
            let records = joined(records[0].schema_ref(), &records).map_err(|error| {
                Error::new(ErrorKind::Exhausted, format!("cannot put a batch together: {error}"))
                    .with_hint("lower the batch size")
            })?;
            if is_one_schema { finish_deferred(&records, schema)? } else { records }
        }
    };
    Ok(Batch { epoch, step, offset: offsets.start, positions: offsets.end - offsets.start, gaps, records, token })
}
