//! A file's footer: its row groups, its columns, and the types for reading them.

use std::future::ready;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::{DataType, FieldRef, Schema};
use bytes::Bytes;
use forebay_arrays::without_views;
use futures::future::{BoxFuture, FutureExt};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::async_reader::MetadataFetch;
use parquet::basic::{Compression, ConvertedType, Encoding, Type as PhysicalType};
use parquet::errors::ParquetError;
use parquet::file::FOOTER_SIZE;
use parquet::file::metadata::{
    ColumnChunkMetaData, FooterTail, PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData,
};

use super::checks::{check_footer, check_offset_index};
use super::decode::{damaged, guarded};
use crate::Result;
use crate::dictionary::retyped;
use crate::pinned::PinnedFile;
use crate::source_file::{RowGroup, RowRange};

/// Bytes at the end of a file to fetch at first. Most footers are shorter.
const FOOTER_BYTES_GUESS: u64 = 64 << 10;
/// Maximum bytes of a footer. Decoded, it takes up to about twenty times as many.
const FOOTER_BYTES_MAX: u64 = 256 << 20;
/// Maximum bytes of all offset indexes with what lies between them. A file with more is read without them.
const INDEX_BYTES_MAX: u64 = 256 << 20;
/// Maximum rows of a row group, because decoders allocate memory according to the claimed number.
pub(super) const GROUP_ROWS_MAX: i64 = i32::MAX as i64;

/// Maximum bytes of a row group's values of a fixed length.
const FIXED_BYTES_MAX: u64 = 16 << 30;

/// Columns of a file, with the type for reading each.
pub(super) type ColumnTypes = Vec<(usize, DataType)>;

#[derive(Debug)]
pub(super) struct Footer {
    pub(super) metadata: ArrowReaderMetadata,
    /// The positions of the dataset's columns in this file.
    pub(super) columns: Vec<usize>,
    /// The first leaf of each of the file's columns.
    leaves: Vec<usize>,
    /// The metadata for reading these columns as these types, from the last request, which a feed usually repeats.
    retyped: Mutex<Option<(ColumnTypes, ArrowReaderMetadata)>>,
}

impl Footer {
    pub(super) fn new(columns: Vec<usize>, metadata: ArrowReaderMetadata) -> Self {
        let schema = metadata.metadata().file_metadata().schema_descr();
        let mut leaves = Vec::new();
        for leaf in 0..schema.num_columns() {
            if schema.get_column_root_idx(leaf) == leaves.len() {
                leaves.push(leaf);
            }
        }
        Self { metadata, columns, leaves, retyped: Mutex::default() }
    }

    /// The cheapest type for decoding a column's texts that will become a dictionary. Views keep alive the pages that
    /// they refer to (`texts.rs` copies the texts) and, without compression, all fetched bytes.
    pub(super) fn cheapest_texts(&self, range: &RowRange, column: usize) -> DataType {
        let group = self.metadata.metadata().row_group(range.group as usize);
        let Some(chunk) = self.leaves.get(column).map(|leaf| group.column(*leaf)) else { return DataType::Utf8 };
        // For other texts, such as JSON, the decoder returns dictionaries of bytes.
        let is_text = chunk.column_descr().converted_type() == ConvertedType::UTF8;
        let only = |encoding| chunk.page_encoding_stats_mask().is_some_and(|pages| pages.is_only(encoding));
        if is_text && (only(Encoding::RLE_DICTIONARY) || only(Encoding::PLAIN_DICTIONARY)) {
            return DataType::Dictionary(DataType::Int32.into(), DataType::Utf8.into());
        }
        match chunk.dictionary_page_offset().is_some() && chunk.compression() != Compression::UNCOMPRESSED {
            true => DataType::Utf8View,
            false => DataType::Utf8,
        }
    }

    /// The metadata for reading these columns as these types.
    pub(super) fn with_types(&self, types: ColumnTypes) -> Result<ArrowReaderMetadata, ParquetError> {
        if types.is_empty() {
            return Ok(self.metadata.clone());
        }
        let mut last = self.retyped.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, metadata)) = last.as_ref().filter(|(those, _)| *those == types) {
            return Ok(metadata.clone());
        }
        let type_of = |at| types.iter().find(|(column, _)| *column == at).map(|(_, data_type)| data_type.clone());
        let options = ArrowReaderOptions::new().with_schema(retyped(self.metadata.schema(), type_of));
        let metadata = ArrowReaderMetadata::try_new(Arc::clone(self.metadata.metadata()), options)?;
        *last = Some((types, metadata.clone()));
        Ok(metadata)
    }
}

/// The last bytes of a file.
struct Tail {
    start: u64,
    bytes: Bytes,
}

impl Tail {
    async fn read(file: &PinnedFile) -> Result<Self> {
        let start = file.size().saturating_sub(FOOTER_BYTES_GUESS);
        Ok(Self { start, bytes: file.get_range(start..file.size()).await? })
    }

    /// Bytes of the file, which are fetched unless they are here.
    async fn range(&self, file: &PinnedFile, range: Range<u64>) -> Result<Bytes> {
        match range.start.checked_sub(self.start) {
            Some(start) if range.start <= range.end && range.end <= file.size() => {
                Ok(self.bytes.slice(start as usize..(range.end - self.start) as usize))
            }
            _ => file.get_range(range).await,
        }
    }

    /// The encoded footer, checked against what the decoder would trust.
    async fn footer(&self, file: &PinnedFile) -> Result<Bytes> {
        let Some(last) = self.bytes.last_chunk::<FOOTER_SIZE>() else {
            return Err(damaged(file, &format!("it has only {} bytes", file.size())));
        };
        let last = FooterTail::try_new(last).map_err(|error| damaged(file, &error.to_string()).with_source(error))?;
        if last.is_encrypted_footer() {
            return Err(damaged(file, "its footer is encrypted, which is not supported"));
        }
        let (length, end) = (last.metadata_length() as u64, file.size() - FOOTER_SIZE as u64);
        let start = end.checked_sub(length).filter(|_| length <= FOOTER_BYTES_MAX).ok_or_else(|| {
            let limit = FOOTER_BYTES_MAX.min(end);
            damaged(file, &format!("its footer claims {length} bytes, over the limit of {limit}"))
        })?;
        let footer = self.range(file, start..end).await?;
        check_footer(&footer).map_err(|problem| damaged(file, &format!("its footer is damaged: {problem}")))?;
        Ok(footer)
    }

    /// The metadata with the offset indexes, if there are any.
    async fn with_offset_indexes(&self, file: &PinnedFile, metadata: ParquetMetaData) -> Result<ParquetMetaData> {
        let chunks = metadata.row_groups().iter().flat_map(RowGroupMetaData::columns);
        let ranges: Vec<Range<u64>> = chunks.filter_map(offset_index).collect();
        let (start, end) = (ranges.iter().map(|range| range.start).min(), ranges.iter().map(|range| range.end).max());
        let (Some(start), Some(end)) = (start, end) else { return Ok(metadata) };
        if end - start > INDEX_BYTES_MAX {
            return Ok(metadata);
        }
        let bytes = self.range(file, start..end).await?;
        for range in ranges {
            let index = &bytes[(range.start - start) as usize..(range.end - start) as usize];
            check_offset_index(index)
                .map_err(|problem| damaged(file, &format!("its offset index is damaged: {problem}")))?;
        }
        let decoding = async {
            let mut reader = ParquetMetaDataReader::new_with_metadata(metadata)
                .with_column_index_policy(PageIndexPolicy::Skip)
                .with_offset_index_policy(PageIndexPolicy::Optional);
            reader.load_page_index(Fetched { start, bytes }).await?;
            reader.finish()
        };
        guarded(file, decoding).await
    }
}

/// The range of a column chunk's offset index, as the decoder computes it.
fn offset_index(chunk: &ColumnChunkMetaData) -> Option<Range<u64>> {
    let start = u64::try_from(chunk.offset_index_offset()?).ok()?;
    let length = u64::try_from(chunk.offset_index_length()?).ok()?;
    Some(start..start.saturating_add(length))
}

/// Bytes of a file that the decoder will ask for.
struct Fetched {
    start: u64,
    bytes: Bytes,
}

impl MetadataFetch for Fetched {
    fn fetch(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, ParquetError>> {
        let offset = |at: u64| at.checked_sub(self.start).map(|at| at as usize).filter(|at| *at <= self.bytes.len());
        let found = offset(range.start).zip(offset(range.end)).map(|(start, end)| self.bytes.slice(start..end));
        ready(found.ok_or_else(|| ParquetError::General("its offset indexes lie elsewhere".to_owned()))).boxed()
    }
}

pub(super) async fn read_footer(file: &PinnedFile) -> Result<ArrowReaderMetadata> {
    let tail = Tail::read(file).await?;
    let footer = tail.footer(file).await?;
    let metadata = guarded(file, async { ParquetMetaDataReader::decode_metadata(&footer) }).await?;
    let metadata = Arc::new(tail.with_offset_indexes(file, metadata).await?);
    guarded(file, async {
        let footer = ArrowReaderMetadata::try_new(Arc::clone(&metadata), ArrowReaderOptions::new())?;
        let plain = |field: &FieldRef| {
            let data_type = without_views(field.data_type(), false);
            Arc::new(field.as_ref().clone().with_data_type(data_type))
        };
        let plain: Vec<FieldRef> = footer.schema().fields().iter().map(plain).collect();
        if plain.iter().eq(footer.schema().fields()) {
            return Ok(footer);
        }
        let options = ArrowReaderOptions::new().with_schema(Arc::new(Schema::new(plain)));
        ArrowReaderMetadata::try_new(metadata, options)
    })
    .await
}

pub(super) fn row_groups(file: &PinnedFile, metadata: &ParquetMetaData) -> Result<Vec<RowGroup>> {
    let mut first_row = 0;
    let mut groups = Vec::with_capacity(metadata.num_row_groups());
    for (index, group) in metadata.row_groups().iter().enumerate() {
        let rows = group.num_rows();
        if !(0..=GROUP_ROWS_MAX).contains(&rows) {
            return Err(damaged(file, &format!("row group {index} claims {rows} rows")));
        }
        if let Some(bytes) = group.columns().iter().map(|c| fixed_bytes(c, rows)).find(|bytes| *bytes > FIXED_BYTES_MAX)
        {
            return Err(damaged(file, &format!("row group {index} claims {bytes} bytes of values of a fixed length")));
        }
        groups.push(RowGroup {
            first_row,
            rows: rows as u64,
            bytes: group.columns().iter().map(decoded_bytes).fold(0, u64::saturating_add).min(i64::MAX as u64),
            offset: 0,
            length: 0,
            // Without an offset index, reading a later part requires decoding all pages before it.
            splittable: metadata.offset_index().is_some()
                && group.columns().iter().all(|c| c.offset_index_offset().is_some()),
        });
        first_row += rows as u64;
    }
    Ok(groups)
}

/// The memory of a column whose values have a fixed length. The decoder takes it for nulls, too, of which a file stores
/// nothing.
fn fixed_bytes(chunk: &ColumnChunkMetaData, rows: i64) -> u64 {
    match chunk.column_type() {
        PhysicalType::FIXED_LEN_BYTE_ARRAY => {
            let length = chunk.column_descr().type_length().max(0) as u64;
            length.saturating_mul(chunk.num_values().max(rows) as u64)
        }
        _ => 0,
    }
}

/// The approximate memory of a column's values, with a separate copy of a dictionary's value for each row.
fn decoded_bytes(chunk: &ColumnChunkMetaData) -> u64 {
    let values = chunk.num_values().max(0) as u64;
    let encoded = chunk.uncompressed_size().max(0) as u64;
    let decoded = match chunk.column_type() {
        PhysicalType::BOOLEAN => values / 8,
        PhysicalType::INT32 | PhysicalType::FLOAT => values.saturating_mul(4),
        PhysicalType::INT64 | PhysicalType::DOUBLE | PhysicalType::INT96 => values.saturating_mul(8),
        PhysicalType::FIXED_LEN_BYTE_ARRAY => values.saturating_mul(chunk.column_descr().type_length().max(0) as u64),
        PhysicalType::BYTE_ARRAY => {
            // Some writers omit it.
            let bytes = chunk.unencoded_byte_array_data_bytes().map_or(0, |bytes| bytes.max(0) as u64);
            bytes.saturating_add(values.saturating_mul(size_of::<i32>() as u64))
        }
    };
    decoded.max(encoded)
}
