//! Decodes row ranges, safely for damaged files.
//!
//! The decoder panics on some damaged files and trusts every offset in a footer. This module converts a panic to an
//! error that names the file, and refuses an offset outside the file before reading it.

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use bytes::Bytes;
use forebay_diagnostics::panic_text;
use futures::TryStreamExt;
use futures::future::{BoxFuture, FutureExt};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::arrow::{ParquetRecordBatchStreamBuilder, ProjectionMask};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;

use super::pages::{Pages, selection};
use super::shared::SharedBytes;
use crate::formats::ReadRequest;
use crate::pinned::PinnedFile;
use crate::{Error, Result};

/// Bytes of lists to decode at a time. Decoding takes up to ten times their memory.
const LIST_BYTES_AT_A_TIME: u64 = 4 << 20;

/// The columns `roots` of the requested rows, in batches of at most the requested size.
pub(super) async fn decode(
    request: &ReadRequest<'_>,
    shared: &SharedBytes,
    footer: ArrowReaderMetadata,
    roots: &[usize],
) -> Result<Vec<RecordBatch>, ParquetError> {
    let (range, group) = (request.range, request.group());
    let metadata = Arc::clone(footer.metadata());
    let columns = metadata.file_metadata().schema_descr();
    let mask = ProjectionMask::roots(columns, roots.iter().copied());
    let is_list = |leaf: usize| mask.leaf_included(leaf) && columns.column(leaf).max_rep_level() > 0;
    let at_a_time = match (0..columns.num_columns()).any(is_list) {
        true => (range.rows.saturating_mul(LIST_BYTES_AT_A_TIME) / range.bytes.max(1)).min(range.rows).max(1),
        false => range.rows,
    };
    let at_a_time = at_a_time.min(request.rows_at_once).max(1);
    let first_row = range.first_row - group.first_row;
    let selected = (range.rows < group.rows).then_some(first_row..first_row + range.rows);
    let number = range.group as usize;
    let pages = Pages::new(&metadata, number, group.bytes, &mask, selected.as_ref());
    let reader = PinnedReader { file: request.file.clone(), number: range.file, shared: shared.clone(), pages };
    let mut builder = ParquetRecordBatchStreamBuilder::new_with_metadata(reader, footer)
        .with_projection(mask)
        .with_row_groups(vec![number])
        .with_batch_size(at_a_time as usize);
    if let Some(rows) = selected {
        builder = builder.with_row_selection(selection(&rows));
    }
    let stream = builder.build()?;
    let schema = Arc::clone(stream.schema());
    let batches: Vec<RecordBatch> = stream.try_collect().await?;
    let is_for_one_batch = request.rows_at_once >= range.rows;
    if is_for_one_batch && batches.len() > 1 {
        return Ok(vec![concat_batches(&schema, &batches)?]);
    }
    Ok(batches)
}

/// Runs decoder code on a file, and converts its errors and panics.
pub(super) async fn guarded<T>(file: &PinnedFile, work: impl Future<Output = Result<T, ParquetError>>) -> Result<T> {
    // Dropping the future discards any state that a panic left inconsistent.
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(ParquetError::External(source))) => match source.downcast::<Error>() {
            Ok(ours) => Err(*ours),
            Err(source) => Err(damaged(file, &source.to_string()).with_source(source)),
        },
        Ok(Err(e)) => Err(damaged(file, &e.to_string()).with_source(e)),
        Err(panic) => Err(damaged(file, &format!("the decoder panicked: {}", panic_text(&*panic)))),
    }
}

pub(super) fn damaged(file: &PinnedFile, what: &str) -> Error {
    Error::data(format!("\"{}\" is not a readable parquet file: {what}", file.path()))
}

/// Passes the pinned file's bytes to the decoder, after checking their pages. Our errors pass through it
/// as external errors.
struct PinnedReader {
    file: PinnedFile,
    /// The number of the file in the dataset.
    number: u32,
    shared: SharedBytes,
    /// The pages that the decoder asks for.
    pages: Pages,
}

fn external(error: Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

impl AsyncFileReader for PinnedReader {
    fn get_bytes(&mut self, _range: Range<u64>) -> BoxFuture<'_, Result<Bytes, ParquetError>> {
        let unused = ParquetError::General("pages are read as several ranges".to_owned());
        async move { Err(unused) }.boxed()
    }

    /// Reads column chunks, or pages of them.
    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>, ParquetError>> {
        async move {
            let wanted = self.pages.wanted();
            if !wanted.iter().map(|wanted| &wanted.range).eq(&ranges) {
                return Err(external(damaged(&self.file, "its offset index contradicts itself")));
            }
            let fetched = self.shared.read(self.number, &self.file, &wanted).await.map_err(external)?;
            self.pages.check(&fetched).map_err(|problem| external(damaged(&self.file, &problem)))?;
            Ok(fetched)
        }
        .boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        _options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>, ParquetError>> {
        let unused = ParquetError::General("footers are read once, when the dataset is opened".to_owned());
        async move { Err(unused) }.boxed()
    }
}
