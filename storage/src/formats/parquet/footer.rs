//! A file's footer: its row groups, its columns, and the types for reading them.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use bytes::Bytes;
use forebay_arrays::without_views;
use parquet::arrow::ARROW_SCHEMA_META_KEY;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::basic::{Compression, ConvertedType, Encoding, Type as PhysicalType};
use parquet::errors::ParquetError;
use parquet::file::FOOTER_SIZE;
use parquet::file::metadata::{ColumnChunkMetaData, FooterTail, ParquetMetaData, ParquetMetaDataReader};

use super::bounds::StoredColumn;
use super::checks::check_footer;
use super::decode::{damaged, guarded};
use super::offset_index;
use crate::dictionary::retyped;
use crate::pinned::PinnedFile;
use crate::source_file::{Cuts, RowGroup, RowRange};
use crate::{Error, Result};

/// Bytes at the end of a file to fetch at first. Most footers are shorter.
const FOOTER_BYTES_GUESS: u64 = 64 << 10;
/// Maximum bytes of a footer. Decoded, it takes up to about twenty times as many.
const FOOTER_BYTES_MAX: u64 = 256 << 20;
/// Maximum rows of a row group, because decoders allocate memory according to the claimed number.
pub(super) const GROUP_ROWS_MAX: i64 = i32::MAX as i64;

/// Maximum bytes of a row group's values of a fixed length.
pub(super) const FIXED_BYTES_MAX: u64 = 16 << 30;

/// Columns of a file, with the type for reading each.
pub(super) type ColumnTypes = Vec<(usize, DataType)>;

#[derive(Debug)]
pub(super) struct Footer {
    pub(super) metadata: ArrowReaderMetadata,
    /// The positions of the dataset's columns in this file, which may lack some.
    pub(super) columns: Vec<Option<usize>>,
    /// The first leaf of each of the file's columns.
    leaves: Vec<usize>,
    /// The metadata for reading these columns as these types, from the last request, which a feed usually repeats.
    retyped: Mutex<Option<(ColumnTypes, ArrowReaderMetadata)>>,
}

impl Footer {
    pub(super) fn new(columns: Vec<Option<usize>>, metadata: ArrowReaderMetadata) -> Self {
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

    /// The place of a column of the dataset in a row group, if the file has it and it has one leaf.
    pub(super) fn stored<'a>(&'a self, group: u32, column: usize, field: &'a Field) -> Option<StoredColumn<'a>> {
        let root = self.columns[column]?;
        let leaf = *self.leaves.get(root)?;
        let is_one = !field.data_type().is_nested();
        is_one.then_some(StoredColumn { footer: &self.metadata, group: group as usize, root, leaf, field })
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

    /// The footer with the offset indexes, if there are any that can be read.
    async fn metadata(&self, file: &PinnedFile) -> Result<ParquetMetaData> {
        let footer = self.footer(file).await?;
        let decoded = || guarded(file, async { ParquetMetaDataReader::decode_metadata(&footer) });
        let metadata = decoded().await?;
        let Some(extent) = offset_index::extent(&metadata, file.size()) else { return Ok(metadata) };
        let start = extent.start;
        let bytes = self.range(file, extent).await?;
        if !offset_index::are_sound(&metadata, start, &bytes) {
            return Ok(metadata);
        }
        match guarded(file, offset_index::load(metadata, start, bytes)).await {
            Ok(metadata) => Ok(metadata),
            Err(_) => decoded().await,
        }
    }
}

pub(super) async fn read_footer(file: &PinnedFile) -> Result<ArrowReaderMetadata> {
    let tail = Tail::read(file).await?;
    let metadata = Arc::new(tail.metadata(file).await?);
    check_intervals(file, &metadata)?;
    guarded(file, async {
        let footer = ArrowReaderMetadata::try_new(Arc::clone(&metadata), ArrowReaderOptions::new())?;
        check_lists(footer.schema(), &metadata)?;
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

/// Refuses intervals unless Arrow's schema, which few writers add, says their unit. The decoder would leave out their
/// months.
fn check_intervals(file: &PinnedFile, metadata: &ParquetMetaData) -> Result<()> {
    let metadata = metadata.file_metadata();
    let has_units =
        metadata.key_value_metadata().is_some_and(|all| all.iter().any(|it| it.key == ARROW_SCHEMA_META_KEY));
    let mut columns = metadata.schema_descr().columns().iter();
    match columns.find(|column| !has_units && column.converted_type() == ConvertedType::INTERVAL) {
        None => Ok(()),
        Some(column) => Err(Error::invalid(format!(
            "\"{}\" has intervals of months, days and milliseconds in column \"{}\", which cannot be read",
            file.path(),
            column.path().string()
        ))
        .with_hint("write the column as a number, such as its seconds, or as text")),
    }
}

pub(super) fn row_groups(file: &PinnedFile, metadata: &ParquetMetaData) -> Result<Vec<RowGroup>> {
    let mut first_row = 0;
    let mut groups = Vec::with_capacity(metadata.num_row_groups());
    for (index, group) in metadata.row_groups().iter().enumerate() {
        let rows = group.num_rows();
        if !(0..=GROUP_ROWS_MAX).contains(&rows) {
            return Err(damaged(file, &format!("row group {index} claims {rows} rows")));
        }
        let is_before = |c: &ColumnChunkMetaData| {
            c.data_page_offset() < 0 || c.compressed_size() < 0 || c.dictionary_page_offset().is_some_and(|at| at < 0)
        };
        if group.columns().iter().any(is_before) {
            return Err(damaged(file, &format!("row group {index} has a column before the beginning of the file")));
        }
        if let Some(bytes) = group.columns().iter().map(|c| fixed_bytes(c, rows)).find(|bytes| *bytes > FIXED_BYTES_MAX)
        {
            return Err(damaged(file, &format!("row group {index} claims {bytes} bytes of values of a fixed length")));
        }
        groups.push(RowGroup {
            first_row,
            rows: rows as u64,
            bytes: group
                .columns()
                .iter()
                .map(|chunk| decoded_bytes(chunk, rows))
                .fold(0, u64::saturating_add)
                .min(i64::MAX as u64),
            offset: 0,
            length: 0,
            // `cut` decides it for all files together.
            cuts: Cuts::Nowhere,
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

/// Checks the columns of lists of a fixed length, which only the Arrow schema in the footer declares. The decoder takes
/// memory for each null list, of which a file stores nothing.
fn check_lists(schema: &Schema, metadata: &ParquetMetaData) -> Result<(), ParquetError> {
    let rows = metadata.row_groups().iter().map(|group| group.num_rows()).max().unwrap_or(0).max(0) as u64;
    let bytes = |field: &FieldRef| rows.saturating_mul(list_bytes(field.data_type()));
    match schema.fields().iter().find(|field| bytes(field) > FIXED_BYTES_MAX) {
        Some(field) => Err(ParquetError::General(format!(
            "{rows} lists of \"{}\" claim {} bytes of values of a fixed length, over the limit of {FIXED_BYTES_MAX}",
            field.name(),
            bytes(field)
        ))),
        None => Ok(()),
    }
}

/// The least memory of the lists of a fixed length in a value of this type.
fn list_bytes(data_type: &DataType) -> u64 {
    match data_type {
        DataType::FixedSizeList(item, length) => {
            let item = item.data_type();
            let bytes = item.primitive_width().map_or(1, |width| width as u64).max(list_bytes(item));
            bytes.saturating_mul((*length).max(0) as u64)
        }
        DataType::Struct(fields) => {
            fields.iter().map(|field| list_bytes(field.data_type())).fold(0, u64::saturating_add)
        }
        _ => 0,
    }
}

/// The approximate memory of a column's values, with a separate copy of a dictionary's value for each row.
fn decoded_bytes(chunk: &ColumnChunkMetaData, rows: i64) -> u64 {
    // A null takes as much memory as a value, and the file may claim fewer values than rows.
    let values = chunk.num_values().max(rows).max(0) as u64;
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
