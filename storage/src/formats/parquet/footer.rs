//! A file's footer: its row groups, its columns, and the types for reading them.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::{DataType, FieldRef, Schema};
use forebay_arrays::without_views;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::basic::{Compression, ConvertedType, Encoding, Type as PhysicalType};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};

use super::decode::{PinnedReader, damaged, guarded};
use crate::Result;
use crate::dictionary::retyped;
use crate::pinned::PinnedFile;
use crate::source_file::{RowGroup, RowRange};

const FOOTER_BYTES_GUESS: usize = 64 << 10;
/// Maximum rows of a row group, because decoders allocate memory according to the claimed number.
pub(super) const GROUP_ROWS_MAX: i64 = i32::MAX as i64;

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

pub(super) async fn read_footer(file: &PinnedFile) -> Result<ArrowReaderMetadata> {
    guarded(file, async {
        let metadata = ParquetMetaDataReader::new()
            .with_column_index_policy(PageIndexPolicy::Skip)
            .with_offset_index_policy(PageIndexPolicy::Optional)
            .with_prefetch_hint(Some(FOOTER_BYTES_GUESS))
            .load_and_finish(&mut PinnedReader(file.clone()), file.size())
            .await?;
        let metadata = Arc::new(metadata);
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
