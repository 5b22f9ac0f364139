//! Parquet: footers read once, row groups read as ranges of rows.
//!
//! The decoder panics on some damaged files, and believes any offset that a footer claims. Here a panic becomes an
//! error that names the file, and an offset outside the file is refused before it is read.

use std::any::Any;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock, PoisonError};

use arrow::array::{Array, ArrayRef, AsArray, DictionaryArray, Int32Array, RecordBatch};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Field, FieldRef, Int32Type, Schema, SchemaRef};
use arrow::error::ArrowError;
use bytes::Bytes;
use futures::TryStreamExt;
use futures::future::{BoxFuture, FutureExt};
use futures::lock::Mutex;
use object_store::{OBJECT_STORE_COALESCE_DEFAULT, coalesce_ranges};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, RowSelection, RowSelector};
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::arrow::{ArrowWriter, ParquetRecordBatchStreamBuilder, ProjectionMask};
use parquet::basic::{Compression, ConvertedType, Encoding, Type as PhysicalType, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::properties::WriterProperties;

use crate::pinned::{PinnedFile, for_all};
use crate::snapshot::{RowGroup, RowRange};
use crate::{Error, Result, Stores};

const FOOTER_BYTES_GUESS: usize = 64 << 10;
/// Lists are decoded in wider types and with their levels, of bytes in ten times their memory: so much of them at a time.
const LIST_BYTES_AT_A_TIME: u64 = 4 << 20;
/// Decoders allocate by a row group's claimed number of rows.
pub(crate) const GROUP_ROWS_MAX: i64 = i32::MAX as i64;

/// Writes one batch as a Parquet object.
pub async fn write_parquet(stores: &Stores, url: &str, batch: &RecordBatch) -> Result<()> {
    let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
    let encode = || -> Result<Vec<u8>, ParquetError> {
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties))?;
        writer.write(batch)?;
        writer.into_inner()
    };
    let bytes = encode()
        .map_err(|e| Error::invalid(format!("\"{url}\": these columns cannot be written: {e}")).with_source(e))?;
    stores.put(url, bytes.into()).await
}

/// The footers of a dataset's files.
#[derive(Debug)]
pub(crate) struct ParquetFiles {
    files: Vec<LazyFooter>,
}

/// A footer, read when the dataset is opened or, if that was pinned elsewhere, when the file is first read.
#[derive(Debug, Default)]
struct LazyFooter {
    footer: OnceLock<Footer>,
    /// Held by the one task that reads the footer, while others that need it wait.
    reading: Mutex<()>,
}

/// Columns of a file, and the type to read each in.
type ColumnTypes = Vec<(usize, DataType)>;

#[derive(Debug)]
struct Footer {
    metadata: ArrowReaderMetadata,
    /// Where the dataset's columns are in this file.
    columns: Vec<usize>,
    /// The first leaf of each of the file's columns.
    leaves: Vec<usize>,
    /// The metadata for reading these columns in these types, as last asked for: a feed mostly asks for the same.
    retyped: std::sync::Mutex<Option<(ColumnTypes, ArrowReaderMetadata)>>,
}

impl Footer {
    fn new(columns: Vec<usize>, metadata: ArrowReaderMetadata) -> Self {
        let schema = metadata.metadata().file_metadata().schema_descr();
        let mut leaves = Vec::new();
        for leaf in 0..schema.num_columns() {
            if schema.get_column_root_idx(leaf) == leaves.len() {
                leaves.push(leaf);
            }
        }
        Self { metadata, columns, leaves, retyped: std::sync::Mutex::default() }
    }

    /// What a column's texts are decoded to at least cost, if they are wanted as a dictionary. Views keep the pages that they were
    /// in, which [`without_pages`] mends, and all that was fetched where nothing is compressed.
    fn cheapest_texts(&self, range: &RowRange, column: usize) -> DataType {
        let group = self.metadata.metadata().row_group(range.group as usize);
        let Some(chunk) = self.leaves.get(column).map(|leaf| group.column(*leaf)) else { return DataType::Utf8 };
        // Of other texts, such as JSON, the decoder makes dictionaries of bytes.
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

    /// The metadata for reading these columns in these types.
    fn with_types(&self, types: ColumnTypes) -> Result<ArrowReaderMetadata, ParquetError> {
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

impl ParquetFiles {
    pub(crate) async fn open(files: &[PinnedFile]) -> Result<(SchemaRef, Vec<Vec<RowGroup>>, Self)> {
        let footers: Vec<ArrowReaderMetadata> = for_all(files, read_footer).await?;
        let schema = merge_schemas(files, &footers)?;
        let groups = files
            .iter()
            .zip(&footers)
            .map(|(file, footer)| row_groups(file, footer.metadata()))
            .collect::<Result<_>>()?;
        let footer = |metadata: ArrowReaderMetadata| {
            let columns = positions(&schema, metadata.schema()).expect("merge_schemas found all columns in all files");
            LazyFooter { footer: Footer::new(columns, metadata).into(), reading: Mutex::default() }
        };
        let files = footers.into_iter().map(footer).collect();
        Ok((schema, groups, Self { files }))
    }

    /// So many files, whose footers are still to be read.
    pub(crate) fn pinned(files: usize) -> Self {
        Self { files: (0..files).map(|_| LazyFooter::default()).collect() }
    }

    /// The footer of a file, which must have the columns of `schema` and these row groups.
    async fn footer(&self, index: usize, file: &PinnedFile, schema: &Schema, groups: &[RowGroup]) -> Result<&Footer> {
        let lazy = &self.files[index];
        if let Some(footer) = lazy.footer.get() {
            return Ok(footer);
        }
        let _reading = lazy.reading.lock().await;
        if let Some(footer) = lazy.footer.get() {
            return Ok(footer);
        }
        let metadata = read_footer(file).await?;
        match positions(schema, metadata.schema()) {
            Some(columns) if row_groups(file, metadata.metadata())? == groups => {
                Ok(lazy.footer.get_or_init(|| Footer::new(columns, metadata)))
            }
            _ => Err(Error::conflict(format!(
                "\"{}\" has not the columns and row groups of the feed's snapshot; create its table again (restart the run or server) to read the new file",
                file.display
            ))),
        }
    }

    /// Reads some columns of a range, those of `dictionaries` as [`texts_as_dictionary`] gives them.
    pub(crate) async fn read(
        &self,
        file: &PinnedFile,
        schema: &Schema,
        groups: &[RowGroup],
        range: &RowRange,
        columns: &[usize],
        dictionaries: &[usize],
    ) -> Result<Vec<ArrayRef>> {
        if columns.is_empty() {
            return Ok(Vec::new());
        }
        let footer = self.footer(range.file as usize, file, schema, groups).await?;
        let group = &groups[range.group as usize];
        let roots: Vec<usize> = columns.iter().map(|c| footer.columns[*c]).collect();
        let roots_of = dictionaries.iter().map(|c| footer.columns[*c]);
        let types = roots_of.map(|root| (root, footer.cheapest_texts(range, root))).collect();
        let decoding = async { decode(file, footer.with_types(types)?, group, range, &roots).await };
        let batch = guarded(file, decoding).await?;
        if batch.num_rows() as u64 != range.rows {
            let (found, expected) = (batch.num_rows(), range.rows);
            return Err(damaged(file, &format!("{found} rows where the footer says {expected}")));
        }
        // The decoder gives columns in the file's order, whatever order was asked for.
        let mut in_file_order = roots.clone();
        in_file_order.sort_unstable();
        in_file_order.dedup();
        let arrays = roots.iter().map(|root| {
            let at = in_file_order.partition_point(|r| r < root);
            Arc::clone(batch.column(at))
        });
        let arrays = arrays.zip(columns).map(|(array, column)| match dictionaries.contains(column) {
            true => texts_as_dictionary(&array),
            false => Ok(array),
        });
        arrays.collect::<Result<_, ArrowError>>().map_err(|e| damaged(file, &e.to_string()))
    }
}

/// The type of texts that are read as a dictionary.
pub fn dictionary_of_texts() -> DataType {
    DataType::Dictionary(DataType::Int32.into(), DataType::Utf8View.into())
}

/// The schema with other types in some places.
pub fn retyped(schema: &Schema, type_of: impl Fn(usize) -> Option<DataType>) -> SchemaRef {
    let field = |(at, field): (usize, &FieldRef)| match type_of(at) {
        Some(data_type) => Arc::new(field.as_ref().clone().with_data_type(data_type)),
        None => Arc::clone(field),
    };
    let fields: Vec<FieldRef> = schema.fields().iter().enumerate().map(field).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// Texts of any kind as a number each, and what the numbers stand for: the file's own dictionary where that has at most half as
/// many texts as there are rows, else each row's text.
fn texts_as_dictionary(texts: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    if let Some(own) = texts.as_dictionary_opt::<Int32Type>().filter(|own| own.values().len() <= own.len() / 2) {
        return Ok(Arc::new(own.with_values(cast(own.values(), &DataType::Utf8View)?)));
    }
    let texts = match texts.data_type() {
        // As views they would keep all of a dictionary.
        DataType::Dictionary(..) => &cast(texts, &DataType::Utf8)?,
        _ => texts,
    };
    let numbers = Int32Array::from_iter_values(0..texts.len() as i32);
    Ok(Arc::new(DictionaryArray::try_new(numbers, without_pages(cast(texts, &DataType::Utf8View)?))?))
}

/// Views of texts without the pages that they were in, if these are much longer than what is looked at: a piece of a row group
/// comes with all of its dictionary.
fn without_pages(texts: ArrayRef) -> ArrayRef {
    let views = texts.as_string_view();
    let pages: usize = views.data_buffers().iter().map(|page| page.len()).sum();
    let outside: usize = views.lengths().map(|length| length as usize).filter(|length| *length > 12).sum();
    match pages > 2 * (size_of_val(&views.views()[..]) + outside) {
        true => Arc::new(views.gc()),
        false => texts,
    }
}

async fn decode(
    file: &PinnedFile,
    footer: ArrowReaderMetadata,
    group: &RowGroup,
    range: &RowRange,
    roots: &[usize],
) -> Result<RecordBatch, ParquetError> {
    let metadata = Arc::clone(footer.metadata());
    let columns = metadata.file_metadata().schema_descr();
    let mask = ProjectionMask::roots(columns, roots.iter().copied());
    let is_list = |leaf: usize| mask.leaf_included(leaf) && columns.column(leaf).max_rep_level() > 0;
    let at_a_time = match (0..columns.num_columns()).any(is_list) {
        true => (range.rows.saturating_mul(LIST_BYTES_AT_A_TIME) / range.bytes.max(1)).min(range.rows).max(1),
        false => range.rows,
    };
    let reader = PinnedReader(file.clone());
    let mut builder = ParquetRecordBatchStreamBuilder::new_with_metadata(reader, footer)
        .with_projection(mask)
        .with_row_groups(vec![range.group as usize])
        .with_batch_size(at_a_time as usize);
    if range.rows < group.rows {
        builder = builder.with_row_selection(RowSelection::from(vec![
            RowSelector::skip((range.first_row - group.first_row) as usize),
            RowSelector::select(range.rows as usize),
        ]));
    }
    let stream = builder.build()?;
    let schema = Arc::clone(stream.schema());
    let batches: Vec<RecordBatch> = stream.try_collect().await?;
    match <[RecordBatch; 1]>::try_from(batches) {
        Ok([batch]) => Ok(batch),
        Err(batches) => Ok(concat_batches(&schema, &batches)?),
    }
}

async fn read_footer(file: &PinnedFile) -> Result<ArrowReaderMetadata> {
    guarded(file, async {
        let metadata = ParquetMetaDataReader::new()
            .with_column_index_policy(PageIndexPolicy::Skip)
            .with_offset_index_policy(PageIndexPolicy::Optional)
            .with_prefetch_hint(Some(FOOTER_BYTES_GUESS))
            .load_and_finish(&mut PinnedReader(file.clone()), file.size)
            .await?;
        let metadata = Arc::new(metadata);
        let footer = ArrowReaderMetadata::try_new(Arc::clone(&metadata), ArrowReaderOptions::new())?;
        let plain: Vec<FieldRef> = footer.schema().fields().iter().map(without_views).collect();
        if plain.iter().eq(footer.schema().fields()) {
            return Ok(footer);
        }
        let options = ArrowReaderOptions::new().with_schema(Arc::new(Schema::new(plain)));
        ArrowReaderMetadata::try_new(metadata, options)
    })
    .await
}

/// Runs the decoder's code on a file, turning its errors and panics into ours.
async fn guarded<T>(file: &PinnedFile, work: impl Future<Output = Result<T, ParquetError>>) -> Result<T> {
    // Whatever the panic leaves half done is dropped with the future.
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(ParquetError::External(source))) => match source.downcast::<Error>() {
            Ok(ours) => Err(*ours),
            Err(source) => Err(damaged(file, &source.to_string()).with_source(source)),
        },
        Ok(Err(e)) => Err(damaged(file, &e.to_string()).with_source(e)),
        Err(panic) => Err(damaged(file, &format!("the decoder gave up: {}", panic_text(&*panic)))),
    }
}

fn damaged(file: &PinnedFile, what: &str) -> Error {
    Error::data(format!("\"{}\" is not a readable parquet file: {what}", file.display))
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}

fn row_groups(file: &PinnedFile, metadata: &ParquetMetaData) -> Result<Vec<RowGroup>> {
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
            // Without it, a later part could only be found by decoding all pages before it.
            splittable: metadata.offset_index().is_some()
                && group.columns().iter().all(|c| c.offset_index_offset().is_some()),
        });
        first_row += rows as u64;
    }
    Ok(groups)
}

/// About how many bytes a column's values are in memory: there, what a dictionary holds once comes with each row.
fn decoded_bytes(chunk: &ColumnChunkMetaData) -> u64 {
    let values = chunk.num_values().max(0) as u64;
    let encoded = chunk.uncompressed_size().max(0) as u64;
    let decoded = match chunk.column_type() {
        PhysicalType::BOOLEAN => values / 8,
        PhysicalType::INT32 | PhysicalType::FLOAT => values.saturating_mul(4),
        PhysicalType::INT64 | PhysicalType::DOUBLE | PhysicalType::INT96 => values.saturating_mul(8),
        PhysicalType::FIXED_LEN_BYTE_ARRAY => values.saturating_mul(chunk.column_descr().type_length().max(0) as u64),
        PhysicalType::BYTE_ARRAY => {
            // Not every writer says so.
            let bytes = chunk.unencoded_byte_array_data_bytes().map_or(0, |bytes| bytes.max(0) as u64);
            bytes.saturating_add(values.saturating_mul(size_of::<i32>() as u64))
        }
    };
    decoded.max(encoded)
}

/// The first file's columns, nullable where they are in any file. The order of columns may differ, nothing else.
fn merge_schemas(files: &[PinnedFile], footers: &[ArrowReaderMetadata]) -> Result<SchemaRef> {
    let (Some(first_file), Some(first)) = (files.first(), footers.first()) else {
        return Ok(Arc::new(Schema::empty()));
    };
    let mut fields: Vec<Field> = first.schema().fields().iter().map(|f| f.as_ref().clone()).collect();
    for (file, footer) in files.iter().zip(footers).skip(1) {
        let other = footer.schema();
        for field in &mut fields {
            let Ok(found) = other.field_with_name(field.name()) else {
                return Err(Error::invalid(format!(
                    "\"{}\" lacks column \"{}\", which \"{}\" has; give files of one dataset the same columns",
                    file.display,
                    field.name(),
                    first_file.display
                )));
            };
            if found.data_type() != field.data_type() {
                return Err(Error::invalid(format!(
                    "\"{}\" has column \"{}\" as {}, but \"{}\" has it as {}; give files of one dataset the same columns",
                    file.display,
                    field.name(),
                    found.data_type(),
                    first_file.display,
                    field.data_type()
                )));
            }
            field.set_nullable(field.is_nullable() || found.is_nullable());
        }
        if let Some(extra) = other.fields().iter().find(|f| first.schema().field_with_name(f.name()).is_err()) {
            return Err(Error::invalid(format!(
                "\"{}\" has column \"{}\", which \"{}\" lacks; give files of one dataset the same columns",
                file.display,
                extra.name(),
                first_file.display
            )));
        }
    }
    Ok(Arc::new(Schema::new(fields)))
}

/// Where a file has the columns of `schema`, if it has them all as they are there.
fn positions(schema: &Schema, file: &Schema) -> Option<Vec<usize>> {
    let position = |field: &FieldRef| {
        let (at, found) = file.column_with_name(field.name())?;
        let fits = found.data_type() == field.data_type() && (field.is_nullable() || !found.is_nullable());
        fits.then_some(at)
    };
    schema.fields().iter().map(position).collect()
}

/// View types are a way to hold data in memory; that a writer used them is no reason for readers to have to.
fn without_views(field: &FieldRef) -> FieldRef {
    let data_type = match field.data_type() {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::List(item) => DataType::List(without_views(item)),
        DataType::LargeList(item) => DataType::LargeList(without_views(item)),
        DataType::ListView(item) => DataType::List(without_views(item)),
        DataType::LargeListView(item) => DataType::LargeList(without_views(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(without_views(item), *size),
        DataType::Map(entries, sorted) => DataType::Map(without_views(entries), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(without_views).collect()),
        _ => return Arc::clone(field),
    };
    Arc::new(field.as_ref().clone().with_data_type(data_type))
}

/// Gives the decoder the pinned file's bytes. Our errors pass through its as external ones.
struct PinnedReader(PinnedFile);

fn external(error: Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

impl AsyncFileReader for PinnedReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, ParquetError>> {
        async move { self.0.get_range(range).await.map_err(external) }.boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>, ParquetError>> {
        async move {
            // Column chunks and pages lie close together: a few larger requests beat many small ones.
            let fetch = |range| self.0.get_range(range);
            let fetched = coalesce_ranges(&ranges, fetch, OBJECT_STORE_COALESCE_DEFAULT).await;
            fetched.map_err(external)
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
