//! Shards of mosaicml-streaming, with the bytes that its `MDSWriter` would write.
//!
//! A shard begins with the offsets of its samples, which are known at its end. So the samples wait in a temporary file.
//! A sample begins with the sizes of its values that have no fixed size.

use std::io::{Read, Seek, SeekFrom, Write};

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use arrow_json::writer::EncoderOptions;
use bytes::Bytes;
use serde_json::Value;
use tempfile::SpooledTempFile;
use xxhash_rust::xxh3::Xxh3;

use super::cells::{Cells, Kind, Shape, Unfit};
use super::compressed::{COMPRESSION, Compressed, compression};
use super::format::{DataFile, FileWriter, IndexFile, NewFile, WriteDescriptor, WriteFormat, unwritable};
use super::jsonl::not_finite;
use super::mds_index::{self, Columns, FileInfo, HASH, ShardFacts};
use super::plain::Plain;
use super::refusals::{WITHOUT_NULLS, not_json, not_numpy, refuse, refused_value};
use crate::formats::OptionValues;
use crate::{Error, Result};

/// Bytes of samples in memory. Further ones are in a temporary file.
const SPOOL_BYTES: usize = 8 << 20;
/// Bytes that are taken at a time when the shard is complete.
const PIECE_BYTES: usize = 1 << 20;
/// Sides of arrays are numbers of one of these sizes: 2^n bytes.
const SIDE_BYTES_LOG_MAX: u32 = 3;
/// Maximum number of an array's dimensions.
const RANK_MAX: usize = 63;

static DESCRIPTOR: WriteDescriptor = WriteDescriptor {
    name: "mds",
    aliases: &[],
    summary: "shards of mosaicml-streaming, with `index.json`",
    extension: "mds",
    options: &[compression(&["none", "zstd"], "none")],
    columns: "Numbers are `int8` to `uint64` and `float16` to `float64`, booleans `uint8`, texts `str`, bytes `bytes`, \
              decimals `str_decimal`, dates, times and durations `str`, tensors and lists of numbers without nulls \
              `ndarray`, and all else `json`. litdata reads only shards with zstd, of `str`, `bytes` and `json`.",
    may_be_partitioned: false,
    nulls: "A null is refused, except within `json`: the format has none.",
    refused: "unions, tensors of bfloat16, tensors in another order than C's, arrays without values, within `json` \
              what jsonl refuses, and more than 4 GiB in a shard",
};

/// Shards of mosaicml-streaming.
#[derive(Debug)]
pub(crate) struct Mds;

impl WriteFormat for Mds {
    fn descriptor(&self) -> &'static WriteDescriptor {
        &DESCRIPTOR
    }

    fn extension(&self, options: &OptionValues) -> &'static str {
        match options.text(COMPRESSION) {
            "zstd" => "mds.zstd",
            _ => "mds",
        }
    }

    fn check(&self, schema: &Schema, _options: &OptionValues) -> Result<()> {
        refuse(DESCRIPTOR.name, schema, |field| match Kind::of(field) {
            _ if not_numpy(field).is_some() => not_numpy(field),
            Kind::Array(_, Shape::Fixed(shape)) if shape.is_empty() || shape.contains(&0) => {
                Some("give the tensor at least one dimension, and values")
            }
            Kind::Array(_, Shape::Ragged(rank)) if !(1..=RANK_MAX).contains(&rank) => {
                Some("give the tensor at least one dimension, and at most 63")
            }
            Kind::Json => not_json(field),
            _ => None,
        })
    }

    fn writer(&self, file: &NewFile<'_>, options: &OptionValues) -> Result<Box<dyn FileWriter>> {
        Ok(Box::new(MdsWriter::new(file, options)?))
    }

    fn index(&self, files: &[DataFile]) -> Result<Vec<IndexFile>> {
        Ok(vec![IndexFile { name: "index.json", bytes: mds_index::index(files)?.into() }])
    }
}

struct Column {
    name: String,
    /// Its position in the rows.
    at: usize,
    kind: Kind,
    encoding: String,
    /// The bytes of its values, if all have as many.
    size: Option<u64>,
}

impl Column {
    fn new((at, field): (usize, &arrow::datatypes::FieldRef)) -> Self {
        let kind = Kind::of(field);
        let (encoding, size) = match &kind {
            Kind::Number(number) => (number.name.to_owned(), Some(number.width as u64)),
            Kind::Boolean => ("uint8".to_owned(), Some(1)),
            Kind::Text | Kind::Time => ("str".to_owned(), None),
            Kind::Bytes => ("bytes".to_owned(), None),
            Kind::Decimal => ("str_decimal".to_owned(), None),
            Kind::Array(number, Shape::Fixed(shape)) => {
                let sides: Vec<String> = shape.iter().map(usize::to_string).collect();
                let bytes = shape.iter().product::<usize>() * number.width;
                (format!("ndarray:{}:{}", number.name, sides.join(",")), Some(bytes as u64))
            }
            Kind::Array(number, _) => (format!("ndarray:{}", number.name), None),
            Kind::Json => ("json".to_owned(), None),
        };
        Self { name: field.name().clone(), at, kind, encoding, size }
    }
}

struct MdsWriter {
    plain: Plain,
    columns: Vec<Column>,
    json: EncoderOptions,
    header: Columns,
    config: Vec<u8>,
    /// Where each sample ends among all samples, after a zero.
    ends: Vec<u32>,
    /// Samples that are not in `spool` yet.
    samples: Vec<u8>,
    spool: SpooledTempFile,
    /// The file, once all samples are known.
    file: Option<CompleteFile>,
    facts: Value,
}

impl FileWriter for MdsWriter {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        self.plain.check(rows)?;
        let rows = self.plain.rows(rows)?;
        self.append(&rows)?;
        self.spool.write_all(&self.samples).map_err(spool_failed)?;
        self.samples.clear();
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let head = self.head();
        self.spool.seek(SeekFrom::Start(0)).map_err(spool_failed)?;
        let bytes = head.len() as u64 + u64::from(self.ends[self.ends.len() - 1]);
        let compression = self.header.compression.as_deref().unwrap_or("none");
        self.file = Some(CompleteFile {
            head,
            stream: Compressed::new(compression, Some(bytes))?,
            raw: Hashed::default(),
            stored: Hashed::default(),
            is_read: false,
        });
        Ok(())
    }

    fn take(&mut self) -> Result<Option<Bytes>> {
        let Some(file) = &mut self.file else { return Ok(None) };
        let bytes = file.next(&mut self.spool)?;
        if bytes.is_none() {
            let facts = ShardFacts {
                columns: self.header.clone(),
                raw_data: file.raw.info(),
                zip_data: self.header.compression.is_some().then(|| file.stored.info()),
            };
            self.facts = serde_json::to_value(facts).expect("plain data becomes JSON");
        }
        Ok(bytes)
    }

    fn bytes(&self) -> u64 {
        self.head_bytes() + u64::from(self.ends[self.ends.len() - 1])
    }

    fn facts(&self) -> Value {
        self.facts.clone()
    }
}

impl MdsWriter {
    fn new(file: &NewFile<'_>, options: &OptionValues) -> Result<Self> {
        let plain = Plain::for_text(file.schema);
        let mut columns: Vec<Column> = plain.schema().fields().iter().enumerate().map(Column::new).collect();
        // As MDSWriter orders them.
        columns.sort_by(|one, other| one.name.cmp(&other.name));
        let compression = options.text(COMPRESSION).to_owned();
        let header = Columns {
            names: columns.iter().map(|column| column.name.clone()).collect(),
            encodings: columns.iter().map(|column| column.encoding.clone()).collect(),
            sizes: columns.iter().map(|column| column.size).collect(),
            compression: (compression != "none").then_some(compression),
        };
        let config = mds_index::config(&header)?;
        Ok(Self {
            plain,
            columns,
            json: EncoderOptions::default().with_explicit_nulls(true),
            header,
            config,
            ends: vec![0],
            samples: Vec::new(),
            spool: SpooledTempFile::new(SPOOL_BYTES),
            file: None,
            facts: Value::Null,
        })
    }

    /// The bytes before the samples.
    fn head_bytes(&self) -> u64 {
        4 * (self.ends.len() as u64 + 1) + self.config.len() as u64
    }

    /// The number of samples, where each begins and the last one ends, and the columns.
    fn head(&self) -> Vec<u8> {
        let before = self.head_bytes() as u32;
        let mut head = Vec::with_capacity(before as usize);
        head.extend((self.ends.len() as u32 - 1).to_le_bytes());
        self.ends.iter().for_each(|end| head.extend((before + end).to_le_bytes()));
        head.extend_from_slice(&self.config);
        head
    }

    fn append(&mut self, rows: &RecordBatch) -> Result<()> {
        let schema = rows.schema_ref();
        let cells = self.columns.iter().map(|column| {
            let (array, field) = (rows.column(column.at), &schema.fields()[column.at]);
            Cells::new(&column.kind, array, field, &self.json).map_err(|error| unwritable(DESCRIPTOR.name, error))
        });
        let mut cells = cells.collect::<Result<Vec<_>>>()?;
        let before = self.ends.len() as u64 - 1;
        for (cells, column) in cells.iter().zip(&self.columns) {
            if let Some(row) = cells.first_not_finite() {
                return Err(not_finite(DESCRIPTOR.name, &column.name, before + row as u64));
            }
        }
        let sizes = 4 * self.columns.iter().filter(|column| column.size.is_none()).count();
        let (samples, mut shape) = (&mut self.samples, Vec::new());
        for row in 0..rows.num_rows() {
            let begin = samples.len();
            samples.resize(begin + sizes, 0);
            let mut size_at = begin;
            for (cells, column) in cells.iter_mut().zip(&self.columns) {
                let at = samples.len();
                append_value(column, cells, row, &mut shape, samples)
                    .map_err(|problem| problem.error(&column.name, before + row as u64))?;
                if column.size.is_none() {
                    let size = u32::try_from(samples.len() - at).map_err(|_| too_large())?;
                    samples[size_at..size_at + 4].copy_from_slice(&size.to_le_bytes());
                    size_at += 4;
                }
            }
            let end = u64::from(self.ends[self.ends.len() - 1]) + (samples.len() - begin) as u64;
            // With the offset of this sample.
            let head = 4 * (self.ends.len() as u64 + 2) + self.config.len() as u64;
            let end = u32::try_from(end).ok().filter(|end| head + u64::from(*end) <= u64::from(u32::MAX));
            self.ends.push(end.ok_or_else(too_large)?);
        }
        Ok(())
    }
}

/// Why a value cannot be stored.
enum Problem {
    Null,
    Unfit(Unfit),
    Empty,
}

impl Problem {
    fn error(self, column: &str, row: u64) -> Error {
        let (problem, advice) = match self {
            Self::Null => ("is null", WITHOUT_NULLS),
            Self::Unfit(Unfit::NullElement) => ("has a null element", WITHOUT_NULLS),
            Self::Unfit(Unfit::Malformed) => ("has other values than its shape says", "write the tensors again"),
            Self::Empty => ("is an empty array", "filter these rows, or write parquet or arrow files"),
        };
        refused_value(DESCRIPTOR.name, column, row, problem, advice)
    }
}

fn append_value(
    column: &Column,
    cells: &mut Cells<'_>,
    row: usize,
    shape: &mut Vec<u64>,
    out: &mut Vec<u8>,
) -> Result<(), Problem> {
    if cells.is_null(row) {
        if column.kind != Kind::Json {
            return Err(Problem::Null);
        }
        out.extend_from_slice(b"null");
        return Ok(());
    }
    if let Kind::Array(_, Shape::List | Shape::Ragged(_)) = column.kind {
        cells.shape(row, shape).map_err(Problem::Unfit)?;
        if shape.contains(&0) {
            return Err(Problem::Empty);
        }
        append_shape(shape, out);
    }
    cells.append(row, out).map_err(Problem::Unfit)
}

/// A byte of the number of dimensions and the size of their sides, and the sides.
fn append_shape(shape: &[u64], out: &mut Vec<u8>) {
    let largest = shape.iter().copied().max().unwrap_or(0);
    let log = (0..SIDE_BYTES_LOG_MAX).find(|log| largest >> (8 << log) == 0).unwrap_or(SIDE_BYTES_LOG_MAX);
    out.push((shape.len() as u8) << 2 | log as u8);
    for side in shape {
        out.extend_from_slice(&side.to_le_bytes()[..1 << log]);
    }
}

fn too_large() -> Error {
    Error::invalid("an mds shard has more than 4 GiB, and its offsets have 32 bits")
        .with_hint("write smaller files, with the option file_size")
}

fn spool_failed(error: std::io::Error) -> Error {
    let folder = std::env::temp_dir();
    Error::invalid(format!("the samples of a shard cannot be kept in \"{}\": {error}", folder.display()))
        .with_hint("make room there, or set TMPDIR to another folder")
        .with_source(error)
}

/// A shard whose samples are all known.
struct CompleteFile {
    /// What is not yet in `stream` of the bytes before the samples.
    head: Vec<u8>,
    stream: Compressed,
    raw: Hashed,
    stored: Hashed,
    is_read: bool,
}

impl CompleteFile {
    fn next(&mut self, samples: &mut SpooledTempFile) -> Result<Option<Bytes>> {
        loop {
            if let Some(bytes) = self.stream.take() {
                self.stored.update(&bytes);
                return Ok(Some(bytes));
            }
            if self.is_read {
                return Ok(None);
            }
            let mut piece = std::mem::take(&mut self.head);
            if piece.is_empty() {
                samples.take(PIECE_BYTES as u64).read_to_end(&mut piece).map_err(spool_failed)?;
            }
            self.raw.update(&piece);
            self.stream.plain().extend_from_slice(&piece);
            if piece.is_empty() {
                self.is_read = true;
                self.stream.finish()?;
            } else {
                self.stream.advance()?;
            }
        }
    }
}

/// The digest and the number of some bytes.
#[derive(Default)]
struct Hashed {
    hash: Xxh3,
    bytes: u64,
}

impl Hashed {
    fn update(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    fn info(&self) -> FileInfo {
        let digest = format!("{:016x}", self.hash.digest());
        FileInfo { basename: String::new(), bytes: self.bytes, hashes: [(HASH.to_owned(), digest)].into() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array};

    use super::*;

    #[test]
    fn a_shard_ends_before_its_offsets_overflow() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![5]));
        let rows = RecordBatch::try_from_iter([("n", numbers)]).unwrap();
        let options = OptionValues::of(DESCRIPTOR.options, |option| Ok(option.default.to_owned())).unwrap();
        let file = NewFile { schema: &rows.schema(), key_prefix: "" };
        let mut writer = MdsWriter::new(&file, &options).unwrap();
        // There is one sample, and a byte too little for two more and their offsets.
        writer.ends = vec![0, 0];
        writer.ends[1] = u32::MAX - writer.head_bytes() as u32 - (2 * (8 + 4) - 1);
        writer.write(&rows).unwrap();
        let error = writer.write(&rows).unwrap_err();
        assert_eq!(error.to_string(), "an mds shard has more than 4 GiB, and its offsets have 32 bits");
        assert!(error.hint().unwrap().contains("smaller files"));
    }
}
