//! Offset indexes: where the pages of a row group lie.
//!
//! They only make reading a part of a row group cheaper, so a file is read without them if they are damaged, encrypted
//! or too large. The decoder trusts each place in them.

use std::future::ready;
use std::ops::Range;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use parquet::arrow::async_reader::MetadataFetch;
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ColumnChunkMetaData, PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData,
};
use parquet::file::page_index::offset_index::PageLocation;

use super::thrift::{Kind, Struct, Walk};

/// Maximum bytes of all offset indexes with what lies between them. A file with more is read without them.
const INDEX_BYTES_MAX: u64 = 256 << 20;

static OFFSET_INDEX: Struct = Struct {
    name: "OffsetIndex",
    fields: &[
        ("page_locations", Kind::List(&Kind::Struct(&PAGE_LOCATION))),
        ("unencoded_byte_array_data_bytes", Kind::List(&Kind::Number)),
    ],
};

static PAGE_LOCATION: Struct = Struct {
    name: "PageLocation",
    fields: &[("offset", Kind::Number), ("compressed_page_size", Kind::Number), ("first_row_index", Kind::Number)],
};

/// The bytes that all offset indexes of a file lie in, unless the file has none that can be read.
pub(super) fn extent(metadata: &ParquetMetaData, file_bytes: u64) -> Option<Range<u64>> {
    let (start, end) =
        (indexes(metadata).map(|range| range.start).min()?, indexes(metadata).map(|range| range.end).max()?);
    (end <= file_bytes && end - start <= INDEX_BYTES_MAX).then_some(start..end)
}

/// The ranges of the offset indexes, as the decoder computes them.
fn indexes(metadata: &ParquetMetaData) -> impl Iterator<Item = Range<u64>> {
    metadata.row_groups().iter().flat_map(RowGroupMetaData::columns).filter_map(|chunk| {
        let start = u64::try_from(chunk.offset_index_offset()?).ok()?;
        let length = u64::try_from(chunk.offset_index_length()?).ok()?;
        Some(start..start.saturating_add(length))
    })
}

/// Whether the decoder can read all indexes. `bytes` are the file's bytes from `start`.
pub(super) fn are_sound(metadata: &ParquetMetaData, start: u64, bytes: &[u8]) -> bool {
    indexes(metadata).all(|range| {
        let index = bytes.get((range.start - start) as usize..(range.end - start) as usize);
        index.is_some_and(|index| Walk::new(index).structure(&OFFSET_INDEX).is_ok())
    })
}

/// Adds the indexes to the metadata, unless they do not fit the file.
pub(super) async fn load(metadata: ParquetMetaData, start: u64, bytes: Bytes) -> Result<ParquetMetaData, ParquetError> {
    let mut reader = ParquetMetaDataReader::new_with_metadata(metadata)
        .with_column_index_policy(PageIndexPolicy::Skip)
        .with_offset_index_policy(PageIndexPolicy::Optional);
    reader.load_page_index(Fetched { start, bytes }).await?;
    let metadata = reader.finish()?;
    let fits = metadata.offset_index().is_none_or(|indexes| {
        metadata.row_groups().iter().zip(indexes).all(|(group, indexes)| {
            let mut columns = group.columns().iter().zip(indexes);
            columns.all(|(chunk, index)| fits(chunk, group.num_rows(), index.page_locations()))
        })
    });
    Ok(if fits { metadata } else { metadata.into_builder().set_offset_index(None).build() })
}

/// Whether the pages follow each other in their column chunk, and their rows in the row group.
fn fits(chunk: &ColumnChunkMetaData, rows: i64, pages: &[PageLocation]) -> bool {
    let place = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
    let Some(end) = place.checked_add(chunk.compressed_size()) else { return false };
    let (mut byte, mut row) = (place.max(0), 0);
    for (at, page) in pages.iter().enumerate() {
        let is_next = if at == 0 { page.first_row_index == 0 } else { page.first_row_index >= row };
        let page_end = page.offset.checked_add(i64::from(page.compressed_page_size));
        match page_end.filter(|_| is_next && page.offset >= byte && page.compressed_page_size > 0) {
            Some(page_end) => (byte, row) = (page_end, page.first_row_index),
            None => return false,
        }
    }
    byte <= end && row <= rows.max(0) && (rows <= 0 || !pages.is_empty())
}

/// Bytes of a file that the decoder will ask for.
pub(super) struct Fetched {
    pub(super) start: u64,
    pub(super) bytes: Bytes,
}

impl MetadataFetch for Fetched {
    fn fetch(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, ParquetError>> {
        let offset = |at: u64| at.checked_sub(self.start).map(|at| at as usize).filter(|at| *at <= self.bytes.len());
        let found = offset(range.start).zip(offset(range.end)).map(|(start, end)| self.bytes.slice(start..end));
        ready(found.ok_or_else(|| ParquetError::General("its indexes lie elsewhere".to_owned()))).boxed()
    }
}
