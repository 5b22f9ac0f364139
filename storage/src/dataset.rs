//! A dataset: its schema, its snapshot, and reading a range of its rows.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt64Array};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, SchemaRef};
use object_store::memory::InMemory;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use crate::listing;
use crate::media;
use crate::parquet_file::{ParquetFiles, dictionary_of_texts, retyped};
use crate::pinned::PinnedFile;
use crate::snapshot::{RowGroup, RowRange, Snapshot};
use crate::text::{self, Decoded, Text};
use crate::{Error, Result, Stores};

/// How the files of a dataset are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// Apache Parquet.
    Parquet,
    /// Text with a record per line, save for newlines in quotes.
    Csv {
        /// Whether the first record of each file holds the names of the columns.
        has_header: bool,
        /// What separates the fields, usually `b','`.
        delimiter: u8,
    },
    /// One JSON object per line.
    Jsonl,
    /// Images, audio, video and PDF: one file is one row of `bytes`, `path`, `size` and `label`.
    Media,
    /// Rows in this process's memory, of no file.
    Memory,
}

impl Format {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Csv { .. } => "csv",
            Self::Jsonl => "jsonl",
            Self::Media => "media",
            Self::Memory => "memory",
        }
    }

    /// The extensions that belong to the format in a folder.
    pub(crate) fn extensions(&self) -> &'static [&'static str] {
        match self {
            Self::Parquet => &["parquet", "parq", "pq"],
            Self::Csv { .. } => &["csv", "tsv"],
            Self::Jsonl => &["jsonl", "ndjson", "json"],
            Self::Media => media::EXTENSIONS,
            Self::Memory => &[],
        }
    }
}

/// What a dataset is made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DatasetSpec {
    /// A file, a folder or a glob, as a path or URL.
    pub location: String,
    /// How the files are written.
    pub format: Format,
    /// The columns of CSV or JSON lines; without it they are inferred from the first file.
    #[serde(with = "crate::schema::optional", default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<SchemaRef>,
}

/// A named table's files, opened and pinned. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Dataset {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    spec: DatasetSpec,
    schema: SchemaRef,
    snapshot: Arc<Snapshot>,
    files: Vec<PinnedFile>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Parquet(ParquetFiles),
    Text(Text),
    Media,
    Memory(Vec<RecordBatch>),
}

/// The rows of one range.
#[derive(Clone, Debug)]
pub struct Rows {
    /// The rows that could be read, with the columns asked for.
    pub batch: RecordBatch,
    /// The id of each row of `batch`.
    pub sample_ids: UInt64Array,
    /// The rows of the range that are not in `batch`.
    pub bad: Vec<BadRow>,
}

/// A row that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRow {
    /// The row's id.
    pub sample_id: u64,
    /// What is wrong with it.
    pub reason: String,
}

impl Dataset {
    /// Lists the files, reads Parquet footers or scans text for its records, and pins what it finds.
    pub async fn open(stores: &Stores, spec: &DatasetSpec) -> Result<Self> {
        check_spec(spec)?;
        let files = listing::list(stores, &spec.location, &spec.format).await?;
        let (schema, groups, source) = match spec.format {
            Format::Parquet => {
                let (schema, groups, source) = ParquetFiles::open(&files).await?;
                (schema, groups, Source::Parquet(source))
            }
            Format::Csv { has_header, delimiter } => {
                open_text(Text::Csv { has_header, delimiter }, &files, spec).await?
            }
            Format::Jsonl => open_text(Text::Jsonl, &files, spec).await?,
            Format::Media => (media::schema(), media::groups(&files), Source::Media),
            Format::Memory => return Err(elsewhere(spec)),
        };
        check_names(&schema, &files)?;
        let snapshot = Arc::new(Snapshot::new(&spec.format, &schema, &files, groups));
        let location = stores.place(&spec.location)?.display();
        let spec = DatasetSpec { location, ..spec.clone() };
        Ok(Self { inner: Arc::new(Inner { spec, schema, snapshot, files, source }) })
    }

    /// Opens the dataset that was opened elsewhere with [`spec`](Self::spec), [`schema`](Self::schema) and
    /// [`snapshot`](Self::snapshot), without listing or opening any file: one that changed since, or that is not there, is
    /// found out when it is read.
    pub fn pinned(
        stores: &Stores,
        spec: &DatasetSpec,
        snapshot: impl Into<Arc<Snapshot>>,
        schema: SchemaRef,
    ) -> Result<Self> {
        check_spec(spec)?;
        if spec.format == Format::Memory {
            return Err(elsewhere(spec));
        }
        let snapshot = snapshot.into();
        let files = listing::pinned(stores, &spec.location, snapshot.files())?;
        check_names(&schema, &files)?;
        snapshot.check(&spec.format, &schema, &files)?;
        let source = match spec.format {
            Format::Parquet => Source::Parquet(ParquetFiles::pinned(files.len())),
            Format::Csv { has_header, delimiter } => Source::Text(Text::Csv { has_header, delimiter }),
            Format::Jsonl => Source::Text(Text::Jsonl),
            Format::Media => Source::Media,
            Format::Memory => Source::Memory(Vec::new()),
        };
        let fits = match &source {
            Source::Parquet(_) => true,
            Source::Text(text) => {
                text.check_schema(&schema)?;
                spec.schema.as_ref().is_none_or(|declared| *declared == schema)
            }
            Source::Media => schema == media::schema(),
            Source::Memory(_) => false,
        };
        if !fits {
            return Err(Error::invalid(format!("\"{}\": its spec has not the columns of its schema", spec.location)));
        }
        Ok(Self { inner: Arc::new(Inner { spec: spec.clone(), schema, snapshot, files, source }) })
    }

    /// A dataset of rows in memory, each batch a row group. `content` stands for what is in them, as a store's version of a
    /// file does: equal rows must have the same, in every process.
    pub fn in_memory(name: &str, schema: SchemaRef, batches: Vec<RecordBatch>, content: &str) -> Result<Self> {
        let mut groups = Vec::with_capacity(batches.len());
        let (mut first_row, mut bytes) = (0, 0);
        for batch in &batches {
            let (rows, size) = (batch.num_rows() as u64, logical_bytes(batch)?);
            groups.push(RowGroup { first_row, rows, bytes: size, offset: 0, length: 0, splittable: true });
            (first_row, bytes) = (first_row + rows, bytes + size);
        }
        let display: Arc<str> = format!("{name} (in memory)").into();
        let files = vec![PinnedFile {
            store: Arc::new(InMemory::new()),
            location: Path::from(name),
            size: bytes,
            etag: Some(content.to_owned()),
            modified_ms: 0,
            relative: Arc::clone(&display),
            display,
        }];
        check_names(&schema, &files)?;
        let spec = DatasetSpec { location: name.to_owned(), format: Format::Memory, schema: None };
        let snapshot = Arc::new(Snapshot::new(&spec.format, &schema, &files, vec![groups]));
        Ok(Self { inner: Arc::new(Inner { spec, schema, snapshot, files, source: Source::Memory(batches) }) })
    }

    /// What it was opened from, its location as an absolute path or URL.
    pub fn spec(&self) -> &DatasetSpec {
        &self.inner.spec
    }

    /// The columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.inner.schema
    }

    /// The files as they were when the dataset was opened.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.inner.snapshot
    }

    /// All rows, in file order, in ranges of about `range_bytes_target` bytes in memory where the format allows.
    ///
    /// The same snapshot and target always give the same ranges.
    pub fn row_ranges(&self, range_bytes_target: u64) -> Vec<RowRange> {
        self.inner.snapshot.row_ranges(range_bytes_target)
    }

    /// Whether its texts can be read as dictionaries for less than as they are.
    pub fn has_dictionaries(&self) -> bool {
        matches!(self.inner.source, Source::Parquet(_))
    }

    /// Reads `columns` of `schema()`, in that order, of the rows in `range`.
    ///
    /// Decodes on the calling task. Only cells that are asked for are read: a bad cell in another column goes unnoticed.
    /// Likewise a read that needs no bytes, of no columns or of a media file's name, does not look at the file.
    pub async fn read(&self, range: &RowRange, columns: &[usize]) -> Result<Rows> {
        self.read_with_dictionaries(range, columns, &[]).await
    }

    /// As [`read`](Self::read), with the texts of the columns `dictionaries` as [dictionaries](crate::dictionary_of_texts), if the
    /// source [has them](Self::has_dictionaries). There a null is a null number, or one that stands for a null.
    pub async fn read_with_dictionaries(
        &self,
        range: &RowRange,
        columns: &[usize],
        dictionaries: &[usize],
    ) -> Result<Rows> {
        let inner = &*self.inner;
        let is_text = |at: &usize| inner.schema.fields().get(*at).is_some_and(|f| *f.data_type() == DataType::Utf8);
        let dictionaries = match self.has_dictionaries() {
            true => dictionaries.iter().copied().filter(is_text).collect(),
            false => Vec::new(),
        };
        let whole = retyped(&inner.schema, |at| dictionaries.contains(&at).then(dictionary_of_texts));
        let schema = match whole.project(columns) {
            Ok(schema) => Arc::new(schema),
            Err(e) => {
                return Err(Error::internal("a read asks for a column that the dataset lacks").with_source(e));
            }
        };
        let (file, group) = self.find(range)?;
        let first_sample_id = inner.snapshot.files()[range.file as usize].first_sample_id + range.first_row;
        match &inner.source {
            Source::Parquet(source) => {
                let groups = &inner.snapshot.files()[range.file as usize].groups;
                let arrays = source.read(file, &inner.schema, groups, range, columns, &dictionaries).await?;
                Rows::all_good(schema, arrays, range.rows, first_sample_id)
            }
            Source::Media => {
                let arrays = media::read(file, columns).await?;
                Rows::all_good(schema, arrays, range.rows, first_sample_id)
            }
            Source::Memory(batches) => {
                let rows = batches[range.group as usize]
                    .slice((range.first_row - group.first_row) as usize, range.rows as usize);
                let arrays = columns.iter().map(|&column| Arc::clone(rows.column(column))).collect();
                Rows::all_good(schema, arrays, range.rows, first_sample_id)
            }
            Source::Text(text) => {
                let block = file.get_range(group.offset..group.offset + group.length).await?;
                let decoded = text.decode(&block, range.rows, &inner.schema, columns)?;
                Rows::some_bad(schema, decoded, range.rows, first_sample_id)
            }
        }
    }

    /// The file and row group of a range, which must come from this snapshot.
    fn find(&self, range: &RowRange) -> Result<(&PinnedFile, &RowGroup)> {
        let foreign = || Error::internal(format!("{range:?} is not a range of this snapshot"));
        let index = range.file as usize;
        let source = self.inner.snapshot.files().get(index).ok_or_else(foreign)?;
        let group = source.groups.get(range.group as usize).ok_or_else(foreign)?;
        let inside = range.first_row >= group.first_row
            && range.first_row.saturating_add(range.rows) <= group.first_row + group.rows;
        let whole = range.rows == group.rows;
        let cut = matches!(self.inner.source, Source::Parquet(_) | Source::Memory(_));
        match inside && (whole || cut) {
            true => Ok((&self.inner.files[index], group)),
            false => Err(foreign()),
        }
    }
}

async fn open_text(
    text: Text,
    files: &[PinnedFile],
    spec: &DatasetSpec,
) -> Result<(SchemaRef, Vec<Vec<RowGroup>>, Source)> {
    let (schema, groups) = text::open(&text, files, spec.schema.as_ref()).await?;
    Ok((schema, groups, Source::Text(text)))
}

/// Bytes of the rows alone, however large the memory is that they are a part of.
fn logical_bytes(batch: &RecordBatch) -> Result<u64> {
    let bytes = batch.columns().iter().map(|column| column.to_data().get_slice_memory_size());
    let bytes = bytes.sum::<std::result::Result<usize, _>>();
    bytes.map(|bytes| bytes as u64).map_err(|e| Error::invalid(format!("rows of unknown size: {e}")).with_source(e))
}

/// A table of one process's memory cannot be opened by another.
fn elsewhere(spec: &DatasetSpec) -> Error {
    let name = &spec.location;
    Error::invalid(format!(
        "\"{name}\" is a table in the memory of the process that made it; write it to Parquet to read it anywhere else"
    ))
}

fn check_spec(spec: &DatasetSpec) -> Result<()> {
    match spec.format {
        Format::Parquet | Format::Media if spec.schema.is_some() => Err(Error::invalid(format!(
            "\"{}\": {} files have their own schema; leave the columns out",
            spec.location,
            spec.format.name()
        ))),
        Format::Csv { delimiter, .. } if matches!(delimiter, b'"' | b'\n' | b'\r') || !delimiter.is_ascii() => {
            Err(Error::invalid(format!(
                "\"{}\": a csv delimiter must be an ASCII character other than a quote or newline",
                spec.location
            )))
        }
        _ => Ok(()),
    }
}

/// Queries name columns, so two of one name could not be told apart.
fn check_names(schema: &SchemaRef, files: &[PinnedFile]) -> Result<()> {
    let mut seen = HashSet::new();
    match schema.fields().iter().find(|f| !seen.insert(f.name())) {
        Some(field) => Err(Error::invalid(format!(
            "\"{}\" has two columns named \"{}\"; rename one",
            files.first().map_or("the schema", |f| &f.display),
            field.name()
        ))),
        None => Ok(()),
    }
}

impl Rows {
    fn all_good(schema: SchemaRef, columns: Vec<ArrayRef>, rows: u64, first_sample_id: u64) -> Result<Self> {
        // A batch without columns still has rows.
        let options = RecordBatchOptions::new().with_row_count(Some(rows as usize));
        let batch = RecordBatch::try_new_with_options(schema, columns, &options)
            .map_err(|e| Error::internal(format!("a decoded batch does not fit its schema: {e}")).with_source(e))?;
        let sample_ids = (first_sample_id..first_sample_id + rows).collect::<Vec<u64>>().into();
        Ok(Self { batch, sample_ids, bad: Vec::new() })
    }

    fn some_bad(schema: SchemaRef, decoded: Decoded, rows: u64, first_sample_id: u64) -> Result<Self> {
        let batch = concat_batches(&schema, &decoded.batches)
            .map_err(|e| Error::internal(format!("decoded text does not fit its schema: {e}")).with_source(e))?;
        let bad: Vec<BadRow> =
            decoded.bad.into_iter().map(|(row, reason)| BadRow { sample_id: first_sample_id + row, reason }).collect();
        let mut skip = bad.iter().map(|b| b.sample_id).peekable();
        let ids = (first_sample_id..first_sample_id + rows).filter(|id| skip.next_if_eq(id).is_none());
        let sample_ids: UInt64Array = ids.collect::<Vec<u64>>().into();
        debug_assert_eq!(sample_ids.len(), batch.num_rows());
        Ok(Self { batch, sample_ids, bad })
    }
}
