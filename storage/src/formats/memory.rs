//! Rows in this process's memory, read like the rows of a file. This format is not registered, because it has no files.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use forebay_arrays::column_bytes;
use futures::future::{BoxFuture, FutureExt};

use super::format::{
    Decoded, Format, FormatDescriptor, FormatReader, OpenRequest, Opened, ReadRequest, ReaderRequest, SampleFile,
};
use super::options::OptionValues;
use crate::source_file::{Cuts, RowGroup, SourceFile};
use crate::{Error, Result};

/// The name of the format in a spec.
pub(crate) const NAME: &str = "memory";

static DESCRIPTOR: FormatDescriptor = FormatDescriptor { name: NAME, reads_parts: true, ..FormatDescriptor::BASE };

/// The format of tables in memory.
#[derive(Debug)]
pub(crate) struct InMemoryRows;

impl Format for InMemoryRows {
    fn descriptor(&self) -> &'static FormatDescriptor {
        &DESCRIPTOR
    }

    fn open<'a>(&'a self, _request: OpenRequest<'a>) -> BoxFuture<'a, Result<Opened>> {
        async { Err(no_files()) }.boxed()
    }

    fn reader(&self, _request: ReaderRequest<'_>) -> Result<Box<dyn FormatReader>> {
        Err(no_files())
    }

    fn misfit(&self, _file: &SourceFile, _group: &RowGroup) -> Option<String> {
        Some("its rows are in memory".to_owned())
    }

    fn sample(&self, _name: &str, _numbers: Range<u64>, _options: &OptionValues) -> SampleFile {
        unreachable!("it is not registered")
    }
}

fn no_files() -> Error {
    Error::internal("a table in memory has no files")
}

/// Reads batches. Each batch is a row group.
#[derive(Debug)]
pub(crate) struct InMemoryReader {
    batches: Vec<RecordBatch>,
}

impl InMemoryReader {
    /// Treats the batches as the row groups of one file. Returns the row groups and their reader.
    pub(crate) fn new(batches: Vec<RecordBatch>) -> Result<(Vec<RowGroup>, Self)> {
        let mut groups = Vec::with_capacity(batches.len());
        let mut first_row = 0;
        for batch in &batches {
            let (rows, bytes) = (batch.num_rows() as u64, plain_bytes(batch)?);
            groups.push(RowGroup { first_row, rows, bytes, offset: 0, length: 0, cuts: Cuts::Anywhere });
            first_row += rows;
        }
        Ok((groups, Self { batches }))
    }
}

impl FormatReader for InMemoryReader {
    fn read<'a>(&'a self, request: ReadRequest<'a>) -> BoxFuture<'a, Result<Decoded>> {
        let (range, group) = (request.range, request.group());
        let rows =
            self.batches[range.group as usize].slice((range.first_row - group.first_row) as usize, range.rows as usize);
        let columns = request.columns.iter().map(|&column| Arc::clone(rows.column(column))).collect();
        async move { request.all_good(columns) }.boxed()
    }
}

/// The bytes of the rows with plain columns in the place of dictionaries, whose size depends on how a frame happens to
/// be chunked.
fn plain_bytes(batch: &RecordBatch) -> Result<u64> {
    let plain = |column: &ArrayRef| match column.data_type() {
        DataType::Dictionary(_, values) => {
            let plain = cast(column, values);
            let plain =
                plain.map_err(|e| Error::invalid(format!("a dictionary cannot be read: {e}")).with_source(e))?;
            Ok(column_bytes(&plain))
        }
        _ => Ok(column_bytes(column)),
    };
    batch.columns().iter().map(plain).sum()
}
