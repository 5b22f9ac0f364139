//! Parquet's column chunks of lists and tensors of numbers, encoded without a look at each number.
//!
//! A general encoder computes two levels for each number, and makes four bytes of each byte, since Parquet has no
//! smaller integers. Here levels are runs, and values are copied. Bytes refer to a dictionary of all 256 values: the
//! indices, packed in 8 bits, are the bytes themselves. So a chunk of pixels is as large as the pixels, and every
//! reader of Parquet reads it.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field};
use bytes::Bytes;
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{CompressedPage, Page, PageWriteSpec, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ColumnChunkMetaData, OffsetIndexBuilder};
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;

use super::cells::number_bytes;
use super::pieces::Pieces;

/// Items of a list from which runs of levels are shorter than levels. Lists of fewer items are for the general encoder.
const MANY: usize = 64;

/// How items are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Items {
    /// Integers of one byte, as indices of a dictionary.
    Bytes { signed: bool },
    /// Values as they are in memory.
    Plain,
    /// The first bytes of all values, then their second bytes, and so on.
    Split,
}

/// How a column chunk is encoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListLayout {
    items: Items,
    width: usize,
    levels: Levels,
    compression: Compression,
    /// Rows of a page, unless it has [`page_bytes`](Self::page_bytes) before.
    page_rows: usize,
    page_bytes: usize,
}

/// The definition levels of a list and its items.
#[derive(Clone, Copy, Debug)]
struct Levels {
    empty: u8,
    null_item: u8,
    item: u8,
}

impl ListLayout {
    /// The layout of a column whose lists have many numbers, judged by the first rows. `None` for other columns.
    pub(super) fn of(
        field: &Field,
        first: &ArrayRef,
        compression: Compression,
        page_rows: usize,
        page_bytes: usize,
    ) -> Option<Self> {
        let (DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _)) = field.data_type()
        else {
            return None;
        };
        let items = match item.data_type() {
            DataType::UInt8 => Items::Bytes { signed: false },
            DataType::Int8 => Items::Bytes { signed: true },
            DataType::Float16 | DataType::Float32 | DataType::Float64 => Items::Plain,
            // Tokens take half the time to compress and three quarters of the space when they are split.
            DataType::Int32 | DataType::UInt32 | DataType::Int64 | DataType::UInt64 => match compression {
                Compression::ZSTD(_) => Items::Split,
                _ => Items::Plain,
            },
            _ => return None,
        };
        let lists = Lists::of(first)?;
        // What lies behind nulls is no part of the rows.
        let is_there = |row: &usize| lists.nulls.is_none_or(|nulls| nulls.is_valid(*row));
        let items_of: Vec<Range<usize>> =
            (0..first.len()).filter(is_there).map(|row| lists.items(row..row + 1)).collect();
        let has_nulls = |items: &Range<usize>| {
            lists.null_items.is_some_and(|nulls| nulls.slice(items.start, items.len()).null_count() > 0)
        };
        let count: usize = items_of.iter().map(Range::len).sum();
        let many = !items_of.is_empty() && count >= MANY * items_of.len() && !items_of.iter().any(has_nulls);
        let empty = u8::from(field.is_nullable());
        let levels = Levels { empty, null_item: empty + 1, item: empty + 1 + u8::from(item.is_nullable()) };
        let width = item.data_type().primitive_width()?;
        many.then_some(Self { items, width, levels, compression, page_rows, page_bytes })
    }
}

/// Lists of numbers as bytes.
struct Lists<'a> {
    ends: Ends<'a>,
    nulls: Option<&'a NullBuffer>,
    values: &'a ArrayRef,
    null_items: Option<&'a NullBuffer>,
}

/// Where each list's items lie.
enum Ends<'a> {
    Short(&'a [i32]),
    Long(&'a [i64]),
    Fixed(usize),
}

impl<'a> Lists<'a> {
    fn of(column: &'a ArrayRef) -> Option<Self> {
        let (ends, values) = match column.data_type() {
            DataType::List(_) => {
                let lists = column.as_list::<i32>();
                (Ends::Short(lists.value_offsets()), lists.values())
            }
            DataType::LargeList(_) => {
                let lists = column.as_list::<i64>();
                (Ends::Long(lists.value_offsets()), lists.values())
            }
            DataType::FixedSizeList(_, size) => {
                (Ends::Fixed(usize::try_from(*size).ok()?), column.as_fixed_size_list().values())
            }
            _ => return None,
        };
        number_bytes(values)?;
        let null_items = values.nulls().filter(|nulls| nulls.null_count() > 0);
        Some(Self { ends, nulls: column.nulls(), values, null_items })
    }

    /// The items of consecutive rows.
    fn items(&self, rows: Range<usize>) -> Range<usize> {
        let at = |row: usize| match self.ends {
            // Arrow checks that its ends are not negative.
            Ends::Short(ends) => ends[row].unsigned_abs() as usize,
            Ends::Long(ends) => usize::try_from(ends[row]).unwrap_or(0),
            Ends::Fixed(size) => row * size,
        };
        at(rows.start)..at(rows.end)
    }
}

/// Encodes one column chunk.
pub(super) struct ListChunk {
    layout: ListLayout,
    column: ColumnDescPtr,
    sink: TrackedWrite<Pieces>,
    page: PageInProgress,
    offsets: OffsetIndexBuilder,
    dictionary: Option<u64>,
    first_page: Option<u64>,
    rows: u64,
    values: u64,
    plain_bytes: u64,
}

/// A page that is not yet encoded.
#[derive(Default)]
struct PageInProgress {
    rows: usize,
    levels: u32,
    repetition: Runs,
    definition: Runs,
    items: Vec<Part>,
    /// The number of these items.
    count: usize,
}

/// Items of a page.
enum Part {
    /// Of an array. They are copied once, into the page.
    Of(ArrayRef, Range<usize>),
    /// Those among nulls.
    Copied(Vec<u8>),
}

impl Part {
    fn bytes(&self, width: usize) -> &[u8] {
        match self {
            Self::Of(values, items) => {
                let (bytes, _) = number_bytes(values).unwrap_or_default();
                bytes.get(items.start * width..items.end * width).unwrap_or_default()
            }
            Self::Copied(bytes) => bytes,
        }
    }
}

impl ListChunk {
    pub(super) fn new(layout: ListLayout, column: ColumnDescPtr) -> Self {
        Self {
            layout,
            column,
            sink: TrackedWrite::new(Pieces::default()),
            page: PageInProgress::default(),
            offsets: OffsetIndexBuilder::new(),
            dictionary: None,
            first_page: None,
            rows: 0,
            values: 0,
            plain_bytes: 0,
        }
    }

    /// Adds rows of the column.
    pub(super) fn write(&mut self, column: &ArrayRef) -> Result<()> {
        let lists = Lists::of(column).ok_or_else(|| ParquetError::General("a column changed its type".to_owned()))?;
        for row in 0..column.len() {
            self.page.add(&lists, row, &self.layout)?;
            if self.page.rows == self.layout.page_rows || self.page.count * self.layout.width >= self.layout.page_bytes
            {
                self.end_page()?;
            }
        }
        Ok(())
    }

    /// About the bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.sink.bytes_written() + self.page.count * self.layout.width
    }

    /// Ends the chunk.
    pub(super) fn close(mut self) -> Result<(Pieces, ColumnCloseResult)> {
        // A chunk has a page, even without rows.
        if self.page.rows > 0 || self.first_page.is_none() {
            self.end_page()?;
        }
        let encoding = match self.layout.items {
            Items::Bytes { .. } => Encoding::RLE_DICTIONARY,
            Items::Plain => Encoding::PLAIN,
            Items::Split => Encoding::BYTE_STREAM_SPLIT,
        };
        let encodings = match self.dictionary {
            Some(_) => vec![Encoding::PLAIN, Encoding::RLE, encoding],
            None => vec![Encoding::RLE, encoding],
        };
        let bytes_written = self.sink.bytes_written() as u64;
        let metadata = ColumnChunkMetaData::builder(self.column)
            .set_compression(self.layout.compression)
            .set_encodings(encodings)
            .set_num_values(signed(self.values)?)
            .set_total_compressed_size(signed(bytes_written)?)
            .set_total_uncompressed_size(signed(self.plain_bytes)?)
            .set_dictionary_page_offset(self.dictionary.map(signed).transpose()?)
            .set_data_page_offset(signed(self.first_page.unwrap_or(0))?)
            .build()?;
        let close = ColumnCloseResult {
            bytes_written,
            rows_written: self.rows,
            metadata,
            bloom_filter: None,
            column_index: None,
            offset_index: Some(self.offsets.build()),
        };
        Ok((self.sink.into_inner()?, close))
    }

    fn end_page(&mut self) -> Result<()> {
        if let (Items::Bytes { signed }, None) = (self.layout.items, self.dictionary) {
            let buf = all_bytes(signed);
            let written = self.write_page(
                buf.len(),
                |buf| Page::DictionaryPage { buf, num_values: 256, encoding: Encoding::PLAIN, is_sorted: !signed },
                buf,
            )?;
            self.dictionary = Some(written.offset);
        }
        let page = std::mem::take(&mut self.page);
        let (rows, levels) = (page.rows as u64, page.levels);
        let encoding = match self.layout.items {
            Items::Bytes { .. } => Encoding::RLE_DICTIONARY,
            Items::Plain => Encoding::PLAIN,
            Items::Split => Encoding::BYTE_STREAM_SPLIT,
        };
        i32::try_from(levels).map_err(too_long)?;
        let buf = page.encoded(&self.layout)?;
        let written = self.write_page(
            buf.len(),
            |buf| Page::DataPage {
                buf,
                num_values: levels,
                encoding,
                def_level_encoding: Encoding::RLE,
                rep_level_encoding: Encoding::RLE,
                statistics: None,
            },
            buf,
        )?;
        let size = i32::try_from(written.compressed_size).map_err(too_long)?;
        self.offsets.append_row_count(signed(rows)?);
        self.offsets.append_offset_and_size(signed(written.offset)?, size);
        self.first_page.get_or_insert(written.offset);
        self.rows += rows;
        self.values += u64::from(levels);
        Ok(())
    }

    fn write_page(&mut self, plain: usize, page: impl FnOnce(Bytes) -> Page, buf: Vec<u8>) -> Result<PageWriteSpec> {
        // Parquet counts the bytes of a page in 32 bits.
        i32::try_from(plain).map_err(too_long)?;
        let buf = compressed(buf, self.layout.compression)?;
        let page = CompressedPage::new(page(buf.into()), plain);
        let written = SerializedPageWriter::new(&mut self.sink).write_page(page)?;
        self.plain_bytes += written.uncompressed_size as u64;
        Ok(written)
    }
}

impl PageInProgress {
    fn add(&mut self, lists: &Lists<'_>, row: usize, layout: &ListLayout) -> Result<()> {
        self.rows += 1;
        let (items, levels) = (lists.items(row..row + 1), layout.levels);
        let is_null = lists.nulls.is_some_and(|nulls| nulls.is_null(row));
        self.repetition.add(0, 1);
        if is_null || items.is_empty() {
            self.levels = self.levels.checked_add(1).ok_or_else(|| too_long(()))?;
            self.definition.add(if is_null { 0 } else { levels.empty }, 1);
            return Ok(());
        }
        let many = u32::try_from(items.len()).ok().and_then(|items| self.levels.checked_add(items));
        self.levels = many.ok_or_else(|| too_long(()))?;
        self.repetition.add(1, items.len() as u64 - 1);
        match lists.null_items {
            None => {
                self.definition.add(levels.item, items.len() as u64);
                self.push(lists.values, items);
            }
            Some(nulls) => {
                let (bytes, _) = number_bytes(lists.values).unwrap_or_default();
                for item in items {
                    let is_there = nulls.is_valid(item);
                    self.definition.add(if is_there { levels.item } else { levels.null_item }, 1);
                    if is_there {
                        self.copy(&bytes[item * layout.width..(item + 1) * layout.width]);
                    }
                }
            }
        }
        Ok(())
    }

    fn push(&mut self, values: &ArrayRef, items: Range<usize>) {
        self.count += items.len();
        match self.items.last_mut() {
            Some(Part::Of(last, before)) if Arc::ptr_eq(last, values) && before.end == items.start => {
                before.end = items.end;
            }
            _ => self.items.push(Part::Of(Arc::clone(values), items)),
        }
    }

    fn copy(&mut self, item: &[u8]) {
        self.count += 1;
        match self.items.last_mut() {
            Some(Part::Copied(bytes)) => bytes.extend_from_slice(item),
            _ => self.items.push(Part::Copied(item.to_vec())),
        }
    }

    fn encoded(mut self, layout: &ListLayout) -> Result<Vec<u8>> {
        let mut page = Vec::with_capacity(self.count * layout.width + 64);
        for levels in [&mut self.repetition, &mut self.definition] {
            let runs = levels.finish();
            page.extend_from_slice(&u32::try_from(runs.len()).map_err(too_long)?.to_le_bytes());
            page.extend_from_slice(runs);
        }
        let width = layout.width;
        let items = self.items.iter().map(|part| part.bytes(width));
        match layout.items {
            Items::Plain => items.for_each(|items| page.extend_from_slice(items)),
            Items::Split => {
                for byte in 0..width {
                    items.clone().for_each(|items| page.extend(items.iter().skip(byte).step_by(width)));
                }
            }
            Items::Bytes { .. } => {
                page.push(8);
                // Packed indices come in groups of eight; the last group is filled up.
                let groups = self.count.div_ceil(8);
                if groups > 0 {
                    push_varint(&mut page, (groups as u64) << 1 | 1);
                }
                items.for_each(|items| page.extend_from_slice(items));
                page.resize(page.len() + groups * 8 - self.count, 0);
            }
        }
        Ok(page)
    }
}

/// Runs of equal levels, in Parquet's hybrid of runs and packed bits. Levels here have less than 8 bits.
#[derive(Default)]
struct Runs {
    bytes: Vec<u8>,
    level: u8,
    count: u64,
}

impl Runs {
    fn add(&mut self, level: u8, count: u64) {
        if level != self.level {
            self.end_run();
            self.level = level;
        }
        self.count += count;
    }

    fn finish(&mut self) -> &[u8] {
        self.end_run();
        &self.bytes
    }

    fn end_run(&mut self) {
        if self.count > 0 {
            push_varint(&mut self.bytes, self.count << 1);
            self.bytes.push(self.level);
            self.count = 0;
        }
    }
}

fn push_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// The dictionary whose entry at the index of each byte is the byte's value.
fn all_bytes(signed: bool) -> Vec<u8> {
    let value = |byte: u8| if signed { i32::from(byte.cast_signed()) } else { i32::from(byte) };
    (0..=u8::MAX).flat_map(|byte| value(byte).to_le_bytes()).collect()
}

fn compressed(plain: Vec<u8>, compression: Compression) -> Result<Vec<u8>> {
    match compression {
        Compression::ZSTD(level) => Ok(zstd::bulk::compress(&plain, level.compression_level())?),
        Compression::SNAPPY => Ok(snap::raw::Encoder::new().compress_vec(&plain)?),
        _ => Ok(plain),
    }
}

fn signed(number: u64) -> Result<i64> {
    i64::try_from(number).map_err(too_long)
}

fn too_long<T>(_: T) -> ParquetError {
    ParquetError::General("a row has more items or bytes than a page of Parquet can have: 2^31".to_owned())
}
