//! Parquet files, with pages that begin at the same rows in all columns.
//!
//! A feed shuffles pieces of row groups, and cuts them where pages begin. The first rows of a file decide how many rows
//! its pages have: about a megabyte of all columns, the size of the smallest pieces. They also decide which columns
//! have dictionaries. A dictionary of values that hardly repeat costs time and becomes a page that all pieces share.

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Field, FieldRef, IntervalUnit, Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::arrow_writer::{ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::arrow::{ArrowSchemaConverter, ArrowWriter};
use parquet::basic::{Compression, Encoding, Type as PhysicalType, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::ColumnDescPtr;

use super::chunks::{Chunk, ChunkEnd, Chunks};
use super::compressed::{COMPRESSION, compression};
use super::format::{FileWriter, NewFile, WriteDescriptor, WriteFormat, unwritable};
use super::leaves::{Leaf, leaves};
use super::list_pages::{ListChunk, ListLayout};
use super::pieces::{Pieces, ReadOnce};
use super::plain::Plain;
use super::refusals::{any_type, refuse};
use crate::Result;
use crate::formats::OptionValues;

/// The first rows, which decide how pages are divided.
const FIRST: ChunkEnd = ChunkEnd { rows: 16 << 10, bytes: 1 << 20 };
/// Bytes of values after which the rows of a page are written, if the first rows were far smaller.
const CHUNK_BYTES: u64 = 8 << 20;
/// Maximum rows and bytes of values of a row group. It is encoded in memory.
const GROUP_ROWS: usize = 1 << 20;
const GROUP_BYTES: u64 = 64 << 20;
/// The encoded bytes that end a page before its rows do. Pages of numbers with few bits are several times their values.
const PAGE_BYTES: usize = 16 << 20;
/// Pixels and tokens take three times as long at zstd's default level, and become hardly smaller.
const ZSTD_LEVEL: i32 = 1;

static DESCRIPTOR: WriteDescriptor = WriteDescriptor {
    name: "parquet",
    aliases: &[],
    summary: "Parquet files",
    extension: "parquet",
    options: &[compression(&["zstd", "snappy", "none"], "zstd")],
    columns: "Types are kept, and tensors stay tensors; other tools read these as lists. Dictionaries and views \
              become plain values. With zstd, integers of lists and tensors are split by bytes if they have several, \
              which readers know since Parquet 2.11 of 2024; for others, write snappy. Integers with many values are \
              stored as differences (DELTA_BINARY_PACKED), which Spark's vectorized reader knows since 3.3.",
    may_be_partitioned: true,
    nulls: "Nulls are kept.",
    refused: "unions, structs without fields, and intervals with nanoseconds",
};

/// Parquet files.
#[derive(Debug)]
pub(crate) struct Parquet;

impl WriteFormat for Parquet {
    fn descriptor(&self) -> &'static WriteDescriptor {
        &DESCRIPTOR
    }

    fn check(&self, schema: &Schema, _options: &OptionValues) -> Result<()> {
        refuse(DESCRIPTOR.name, schema, |field| {
            let has = |is: &dyn Fn(&DataType) -> bool| any_type(field.data_type(), is);
            if has(&|data_type| matches!(data_type, DataType::Union(_, _))) {
                return Some("make a column of each of its types");
            }
            if has(&|data_type| matches!(data_type, DataType::Struct(fields) if fields.is_empty())) {
                return Some("give the struct a field, or write arrow files");
            }
            // Parquet's intervals count days and milliseconds, and no nanoseconds.
            let is_fine = has(&|data_type| matches!(data_type, DataType::Interval(IntervalUnit::MonthDayNano)));
            let fits = ArrowSchemaConverter::new().convert(&Schema::new(vec![field.clone()])).is_ok();
            (is_fine || !fits).then_some("cast it to another type, or write arrow files")
        })
    }

    fn writer(&self, file: &NewFile<'_>, options: &OptionValues) -> Result<Box<dyn FileWriter>> {
        let compression = match options.text(COMPRESSION) {
            "zstd" => {
                Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL).map_err(|error| unwritable(DESCRIPTOR.name, error))?)
            }
            "snappy" => Compression::SNAPPY,
            _ => Compression::UNCOMPRESSED,
        };
        let plain = Plain::new(file.schema);
        Ok(Box::new(ParquetWriter { chunks: Chunks::new(plain.clone()), plain, compression, encoder: None, taken: 0 }))
    }
}

struct ParquetWriter {
    plain: Plain,
    chunks: Chunks,
    compression: Compression,
    /// It exists once the first rows are known.
    encoder: Option<Encoder>,
    taken: u64,
}

/// Encodes row groups.
struct Encoder {
    file: SerializedFileWriter<Pieces>,
    general: ArrowRowGroupWriterFactory,
    schema: SchemaRef,
    /// The layouts of the columns that are [lists of many numbers](super::list_pages).
    lists: Vec<Option<ListLayout>>,
    page_rows: usize,
    group: Group,
    groups: usize,
}

/// A row group in the making.
#[derive(Default)]
struct Group {
    columns: Vec<Column>,
    rows: usize,
    /// Bytes of values.
    bytes: u64,
}

/// A column of a row group in the making.
enum Column {
    /// The leaves of a column.
    General(Vec<ArrowColumnWriter>),
    Lists(Box<ListChunk>),
}

impl FileWriter for ParquetWriter {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        self.chunks.push(rows)?;
        if self.encoder.is_none() {
            let Some(first) = self.chunks.next(FIRST)? else { return Ok(()) };
            self.begin(&first)?;
        }
        self.encode(false)
    }

    fn finish(&mut self) -> Result<()> {
        if self.encoder.is_none() {
            let none = || Chunk { rows: RecordBatch::new_empty(self.plain.schema().clone()), bytes: 0 };
            let first = self.chunks.last(FIRST)?.unwrap_or_else(none);
            self.begin(&first)?;
        }
        self.encode(true)?;
        let encoder = self.encoder.as_mut().expect("it was made of the first rows");
        encoder.finish().map_err(|error| unwritable(DESCRIPTOR.name, error))
    }

    fn take(&mut self) -> Result<Option<Bytes>> {
        let Some(encoder) = &mut self.encoder else { return Ok(None) };
        let taken = encoder.file.inner_mut().pop();
        self.taken += taken.as_ref().map_or(0, Bytes::len) as u64;
        Ok(taken)
    }

    fn bytes(&self) -> u64 {
        let of = |encoder: &Encoder| {
            encoder.file.inner().left() + encoder.group.columns.iter().map(Column::bytes).sum::<usize>()
        };
        self.taken + self.encoder.as_ref().map_or(0, of) as u64
    }
}

impl ParquetWriter {
    /// Decides the layout of the file by its first rows, which then are the first to be encoded.
    fn begin(&mut self, first: &Chunk) -> Result<()> {
        let rows = first.rows.num_rows().max(1);
        let page_rows = 1 << rows.ilog2();
        let schema = self.plain.schema();
        let properties = properties(schema, &first.rows, page_rows, self.compression)?;
        let (file, general) = ArrowWriter::try_new(Pieces::default(), SchemaRef::clone(schema), Some(properties))
            .and_then(ArrowWriter::into_serialized_writer)
            .map_err(|error| unwritable(DESCRIPTOR.name, error))?;
        let list =
            |(field, column): (&FieldRef, _)| ListLayout::of(field, column, self.compression, page_rows, PAGE_BYTES);
        let lists = schema.fields().iter().zip(first.rows.columns()).map(list).collect();
        let (schema, group) = (SchemaRef::clone(schema), Group::default());
        self.encoder = Some(Encoder { file, general, schema, lists, page_rows, group, groups: 0 });
        self.chunks.push_front(first);
        Ok(())
    }

    fn encode(&mut self, is_last: bool) -> Result<()> {
        let Some(encoder) = &mut self.encoder else { return Ok(()) };
        loop {
            // Rows up to where the next page begins.
            let rows = encoder.page_rows - encoder.group.rows % encoder.page_rows;
            let end = ChunkEnd { rows, bytes: CHUNK_BYTES };
            let chunk = if is_last { self.chunks.last(end)? } else { self.chunks.next(end)? };
            let Some(chunk) = chunk else { return Ok(()) };
            encoder.write(&chunk).map_err(|error| unwritable(DESCRIPTOR.name, error))?;
        }
    }
}

impl Encoder {
    fn write(&mut self, chunk: &Chunk) -> Result<(), ParquetError> {
        if self.group.columns.is_empty() {
            self.group.columns = self.columns()?;
        }
        for ((column, field), values) in
            self.group.columns.iter_mut().zip(self.schema.fields()).zip(chunk.rows.columns())
        {
            column.write(field, values)?;
        }
        self.group.rows += chunk.rows.num_rows();
        self.group.bytes += chunk.bytes;
        if self.group.rows >= GROUP_ROWS || self.group.bytes >= GROUP_BYTES {
            self.end_group()?;
        }
        Ok(())
    }

    /// New columns for the next row group.
    fn columns(&self) -> Result<Vec<Column>, ParquetError> {
        let mut leaves: Vec<Vec<_>> = self.lists.iter().map(|_| Vec::new()).collect();
        for (at, leaf) in self.general.create_column_writers(self.groups)?.into_iter().enumerate() {
            let descriptor = self.file.schema_descr();
            leaves[descriptor.get_column_root_idx(at)].push((descriptor.column(at), leaf));
        }
        let column =
            |(mut leaves, layout): (Vec<(ColumnDescPtr, ArrowColumnWriter)>, &Option<_>)| match (layout, &leaves[..]) {
                (Some(layout), [(descriptor, _)]) => {
                    Column::Lists(Box::new(ListChunk::new(*layout, descriptor.clone())))
                }
                _ => Column::General(leaves.drain(..).map(|(_, leaf)| leaf).collect()),
            };
        Ok(leaves.into_iter().zip(&self.lists).map(column).collect())
    }

    fn end_group(&mut self) -> Result<(), ParquetError> {
        let mut group = self.file.next_row_group()?;
        for column in std::mem::take(&mut self.group).columns {
            match column {
                Column::General(leaves) => {
                    leaves.into_iter().try_for_each(|leaf| leaf.close()?.append_to_row_group(&mut group))?;
                }
                Column::Lists(chunk) => {
                    let (pieces, close) = chunk.close()?;
                    group.append_column(&ReadOnce::new(pieces), close)?;
                }
            }
        }
        group.close()?;
        self.groups += 1;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), ParquetError> {
        if self.group.rows > 0 {
            self.end_group()?;
        }
        self.file.finish()?;
        Ok(())
    }
}

impl Column {
    fn write(&mut self, field: &Field, values: &ArrayRef) -> Result<(), ParquetError> {
        match self {
            Self::General(leaves) => {
                compute_leaves(field, values)?.iter().zip(leaves).try_for_each(|(values, leaf)| leaf.write(values))
            }
            Self::Lists(chunk) => chunk.write(values),
        }
    }

    /// About the bytes in memory.
    fn bytes(&self) -> usize {
        match self {
            Self::General(leaves) => leaves.iter().map(ArrowColumnWriter::get_estimated_total_bytes).sum(),
            Self::Lists(chunk) => chunk.bytes(),
        }
    }
}

/// The encoding of integers, if it is not the plain one: differences, which are short for ids, sizes and times.
///
/// Lists and tensors have many integers of few bits. Parquet has none of fewer than 32, so three quarters of plain
/// pixels are zeros. Split into first bytes, second bytes and so on, decoded photographs and tokens take half the time
/// to compress and three quarters of the space. Floats gain nothing. Without a compressor that finds the zeros,
/// differences are shorter.
fn encoding(leaf: &Leaf, physical: PhysicalType, compression: Compression) -> Option<Encoding> {
    let is_integer = matches!(physical, PhysicalType::INT32 | PhysicalType::INT64);
    match compression {
        _ if leaf.repeats || !is_integer => None,
        _ if !leaf.in_list => Some(Encoding::DELTA_BINARY_PACKED),
        Compression::ZSTD(_) => Some(Encoding::BYTE_STREAM_SPLIT),
        // Also for readers without the split of integers, which is of 2024.
        _ => leaf.width.is_some_and(|width| width < 4).then_some(Encoding::DELTA_BINARY_PACKED),
    }
}

fn properties(
    schema: &Schema,
    first: &RecordBatch,
    page_rows: usize,
    compression: Compression,
) -> Result<WriterProperties> {
    let columns = ArrowSchemaConverter::new().convert(schema).map_err(|error| unwritable(DESCRIPTOR.name, error))?;
    let mut properties = WriterProperties::builder()
        // A version here would change the bytes.
        .set_created_by("forebay".to_owned())
        .set_compression(compression)
        .set_data_page_row_count_limit(page_rows)
        .set_data_page_size_limit(PAGE_BYTES)
        // `Encoder` ends row groups, by values instead of encoded bytes.
        .set_max_row_group_row_count(None);
    let leaves = leaves(first);
    debug_assert_eq!(leaves.len(), columns.num_columns());
    for (at, (column, leaf)) in columns.columns().iter().zip(&leaves).enumerate() {
        let path = column.path().clone();
        let is_nested = columns.get_column_root(at).is_group();
        // Feeds skip rows by the statistics of plain columns. Those of pixels and photographs help nobody.
        let is_bytes = schema.field(columns.get_column_root_idx(at)).data_type().is_binary();
        if is_nested || is_bytes {
            properties = properties.set_column_statistics_enabled(path.clone(), EnabledStatistics::None);
        }
        properties = properties.set_column_dictionary_enabled(path.clone(), leaf.repeats);
        if let Some(encoding) = encoding(leaf, column.physical_type(), compression) {
            properties = properties.set_column_encoding(path, encoding);
        }
    }
    Ok(properties.build())
}
