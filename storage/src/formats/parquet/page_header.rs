//! The header of a page, and what the decoder would trust in it.
//!
//! The structs are those of `parquet.thrift`, in the format's version 2.12.

use parquet::basic::{Compression, Type as PhysicalType};
use parquet::file::metadata::ColumnChunkMetaData;

use super::checks::EMPTY;
use super::codec::{check_size, decompressed};
use super::delta::check_lengths;
use super::thrift::{Kind, Problem, Struct, Walk};

/// The numbers of encodings.
const RLE: i32 = 3;
const DELTA_LENGTH_BYTE_ARRAY: i32 = 6;
const DELTA_BYTE_ARRAY: i32 = 7;

static PAGE_HEADER: Struct = Struct {
    name: "PageHeader",
    fields: &[
        ("type", Kind::Number),
        ("uncompressed_page_size", Kind::Number),
        ("compressed_page_size", Kind::Number),
        ("crc", Kind::Number),
        ("data_page_header", Kind::Struct(&DATA_PAGE_HEADER)),
        ("index_page_header", Kind::Struct(&EMPTY)),
        ("dictionary_page_header", Kind::Struct(&DICTIONARY_PAGE_HEADER)),
        ("data_page_header_v2", Kind::Struct(&DATA_PAGE_HEADER_V2)),
    ],
};

static DATA_PAGE_HEADER: Struct = Struct {
    name: "DataPageHeader",
    fields: &[
        ("num_values", Kind::Number),
        ("encoding", Kind::Number),
        ("definition_level_encoding", Kind::Number),
        ("repetition_level_encoding", Kind::Number),
        ("statistics", Kind::Skipped),
    ],
};

static DICTIONARY_PAGE_HEADER: Struct = Struct {
    name: "DictionaryPageHeader",
    fields: &[("num_values", Kind::Number), ("encoding", Kind::Number), ("is_sorted", Kind::Bool)],
};

static DATA_PAGE_HEADER_V2: Struct = Struct {
    name: "DataPageHeaderV2",
    fields: &[
        ("num_values", Kind::Number),
        ("num_nulls", Kind::Number),
        ("num_rows", Kind::Number),
        ("encoding", Kind::Number),
        ("definition_levels_byte_length", Kind::Number),
        ("repetition_levels_byte_length", Kind::Number),
        ("is_compressed", Kind::Bool),
        ("statistics", Kind::Skipped),
    ],
};

/// What the pages of a read may still have.
pub(super) struct Budget {
    /// The memory that the row group claims, for messages.
    pub(super) group_bytes: u64,
    /// The bytes that all pages may have.
    pub(super) bytes_max: u64,
    pub(super) bytes_left: u64,
    /// The values that pages of this column may still claim.
    pub(super) values_left: u64,
}

/// The header of a page, as far as it is checked.
#[derive(Default)]
pub(super) struct Header {
    decoded: Option<i32>,
    encoded: Option<i32>,
    dictionary: Option<i32>,
    values: Option<i32>,
    encoding: i32,
    /// The encodings of levels before the values. Their lengths are in the page.
    level_encodings: Option<Levels>,
    /// The length of levels, which are not compressed.
    levels: Levels,
    is_plain: bool,
}

/// A number for repetition levels, and one for definition levels.
#[derive(Clone, Copy, Default)]
struct Levels {
    repetition: i32,
    definition: i32,
}

/// Reads the header of a page, and returns it with the bytes after it.
pub(super) fn header(page: &[u8]) -> Result<(Header, &[u8]), Problem> {
    let mut header = Header::default();
    let mut walk = Walk::new(page);
    let checked = walk.fields(&PAGE_HEADER, |walk, id| match id {
        2 => walk.i32().map(|size| header.decoded = Some(size)).map(|()| true),
        3 => walk.i32().map(|size| header.encoded = Some(size)).map(|()| true),
        5 => header.data(walk).map(|()| true),
        7 => header.dictionary(walk).map(|()| true),
        8 => header.data_v2(walk).map(|()| true),
        _ => Ok(false),
    });
    checked.map_err(|problem| walk.placed(&problem))?;
    let left = walk.left();
    Ok((header, &page[page.len() - left..]))
}

impl Header {
    fn data(&mut self, walk: &mut Walk<'_>) -> Result<(), Problem> {
        self.is_only()?;
        let mut encodings = Levels::default();
        walk.fields(&DATA_PAGE_HEADER, |walk, id| {
            let to = match id {
                1 => self.values.insert(0),
                2 => &mut self.encoding,
                3 => &mut encodings.definition,
                4 => &mut encodings.repetition,
                _ => return Ok(false),
            };
            *to = walk.i32()?;
            Ok(true)
        })?;
        self.level_encodings = Some(encodings);
        Ok(())
    }

    /// A page has one header of data.
    fn is_only(&self) -> Result<(), Problem> {
        match self.values {
            Some(_) => Err("a page of two kinds".to_owned()),
            None => Ok(()),
        }
    }

    fn dictionary(&mut self, walk: &mut Walk<'_>) -> Result<(), Problem> {
        walk.fields(&DICTIONARY_PAGE_HEADER, |walk, id| match id {
            1 => walk.i32().map(|count| self.dictionary = Some(count)).map(|()| true),
            _ => Ok(false),
        })
    }

    fn data_v2(&mut self, walk: &mut Walk<'_>) -> Result<(), Problem> {
        self.is_only()?;
        walk.fields(&DATA_PAGE_HEADER_V2, |walk, id| {
            let to = match id {
                1 => self.values.insert(0),
                4 => &mut self.encoding,
                5 => &mut self.levels.definition,
                6 => &mut self.levels.repetition,
                7 => {
                    self.is_plain = !walk.bool();
                    return Ok(false);
                }
                _ => return Ok(false),
            };
            *to = walk.i32()?;
            Ok(true)
        })
    }

    /// The encoded content, at the beginning of the bytes after the header.
    pub(super) fn content<'a>(&self, rest: &'a [u8]) -> Result<&'a [u8], Problem> {
        let encoded = number(self.encoded).ok_or_else(no_sizes)?;
        let content = usize::try_from(encoded).ok().and_then(|encoded| rest.get(..encoded));
        content.ok_or_else(|| format!("a page of {encoded} bytes with {} bytes after its header", rest.len()))
    }

    /// Checks the page against the budget, and what its content claims.
    pub(super) fn check(
        &self,
        chunk: &ColumnChunkMetaData,
        content: &[u8],
        budget: &mut Budget,
    ) -> Result<(), Problem> {
        let codec = if self.is_plain { Compression::UNCOMPRESSED } else { chunk.compression() };
        let claimed = number(self.decoded).ok_or_else(no_sizes)?;
        // The decoder takes the bytes of a page that is not compressed as they are.
        let decoded = if codec == Compression::UNCOMPRESSED { content.len() as u64 } else { claimed };
        budget.bytes_left = (budget.bytes_left.checked_sub(decoded))
            .ok_or_else(|| format!("a page of {decoded} bytes in a row group of {} bytes", budget.group_bytes))?;
        if let Some(values) = self.dictionary {
            let bytes = number(Some(values)).map(|values| values.saturating_mul(value_bytes_min(chunk)));
            if bytes.is_none_or(|bytes| bytes > decoded) {
                return Err(format!("a dictionary of {values} values in {decoded} bytes"));
            }
        }
        let values = self.values.unwrap_or(0);
        let values = number(Some(values)).ok_or_else(|| format!("a page of {values} values"))?;
        budget.values_left = (budget.values_left.checked_sub(values))
            .ok_or_else(|| "its pages have more values than the footer says".to_owned())?;
        self.check_content(chunk, codec, content, decoded, budget.bytes_max)
    }

    /// Checks what the content of a page claims, after levels that are not compressed.
    fn check_content(
        &self,
        chunk: &ColumnChunkMetaData,
        codec: Compression,
        content: &[u8],
        decoded: u64,
        bytes_max: u64,
    ) -> Result<(), Problem> {
        let levels = number(Some(self.levels.repetition)).zip(number(Some(self.levels.definition)));
        let levels = levels.map(|(repetition, definition)| repetition + definition);
        let packed = levels.and_then(|levels| content.get(usize::try_from(levels).ok()?..));
        let (Some(packed), Some(size)) = (packed, levels.and_then(|levels| decoded.checked_sub(levels))) else {
            return Err("levels that end after their page".to_owned());
        };
        // The decoder takes nothing from such a page.
        if size == 0 {
            return Ok(());
        }
        check_size(codec, packed, size, bytes_max)?;
        let has_prefixes = match self.encoding {
            DELTA_LENGTH_BYTE_ARRAY => false,
            DELTA_BYTE_ARRAY => true,
            _ => return Ok(()),
        };
        // The decoder refuses a page that cannot be decompressed, too.
        let Some(page) = decompressed(codec, packed, size) else { return Ok(()) };
        let values = number(self.values).unwrap_or(0);
        let lengths = self.skip_levels(chunk, &page, values).ok_or("levels that end after their page")?;
        check_lengths(lengths, values, has_prefixes)
    }

    /// The bytes after the levels in a page.
    fn skip_levels<'a>(&self, chunk: &ColumnChunkMetaData, mut page: &'a [u8], values: u64) -> Option<&'a [u8]> {
        let Some(Levels { repetition, definition }) = self.level_encodings else { return Some(page) };
        let column = chunk.column_descr();
        for (encoding, level) in [(repetition, column.max_rep_level()), (definition, column.max_def_level())] {
            if level > 0 {
                let bytes = match encoding {
                    RLE => 4 + u64::from(u32::from_le_bytes(*page.first_chunk()?)),
                    _ => (values * u64::from(16 - level.leading_zeros())).div_ceil(8),
                };
                page = page.get(usize::try_from(bytes).ok()?..)?;
            }
        }
        Some(page)
    }
}

fn number(number: Option<i32>) -> Option<u64> {
    number.and_then(|number| u64::try_from(number).ok())
}

fn no_sizes() -> Problem {
    "a page header without sizes".to_owned()
}

/// The least bytes of a value in a dictionary.
fn value_bytes_min(chunk: &ColumnChunkMetaData) -> u64 {
    match chunk.column_type() {
        PhysicalType::BOOLEAN => 1,
        // A length is before the bytes.
        PhysicalType::INT32 | PhysicalType::FLOAT | PhysicalType::BYTE_ARRAY => 4,
        PhysicalType::INT64 | PhysicalType::DOUBLE => 8,
        PhysicalType::INT96 => 12,
        PhysicalType::FIXED_LEN_BYTE_ARRAY => chunk.column_descr().type_length().max(1) as u64,
    }
}
