//! A dataset: its schema, its snapshot, and reading a range of its rows.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use arrow::array::{RecordBatch, UInt64Array};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, SchemaRef};
use futures::future::try_join_all;
use object_store::memory::InMemory;
use object_store::path::Path;

use crate::artifact::ArtifactColumns;
use crate::dataset_spec::DatasetSpec;
use crate::dictionary::{dictionary_of_texts, retyped};
use crate::formats::format::{BytesToRead, Decoded, FormatReader, OpenRequest, Opened, ReadRequest, ReaderRequest};
use crate::formats::memory::{self, InMemoryReader};
use crate::formats::table_format::TableFormat;
use crate::keeping::Keeping;
use crate::listing;
use crate::path_columns::{PathColumns, PathValues};
use crate::piece_cache::PieceCache;
use crate::pinned::PinnedFile;
use crate::snapshot::Snapshot;
use crate::source_file::{Cuts, RowGroup, RowRange};
use crate::statistics::{ColumnStatistics, Of, RangeStatistics};
use crate::{Error, Result, Stores};

/// Files whose footers are read to measure a dataset.
const MEASURED_FILES_MAX: usize = 16;

/// The files of a table, opened and pinned. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Dataset {
    inner: Arc<DatasetInner>,
    /// Where pieces of remote files are kept.
    pieces: Option<(Arc<PieceCache>, Arc<AtomicBool>)>,
}

#[derive(Debug)]
struct DatasetInner {
    spec: DatasetSpec,
    schema: SchemaRef,
    /// The columns among them that are in the files.
    file_schema: SchemaRef,
    path_values: PathValues,
    snapshot: Arc<Snapshot>,
    files: Vec<PinnedFile>,
    reader: Box<dyn FormatReader>,
}

/// The rows of one range.
#[derive(Clone, Debug)]
pub struct RangeRows {
    /// The good rows, with the requested columns.
    pub batch: RecordBatch,
    /// The id of each row of `batch`.
    pub sample_ids: UInt64Array,
    /// The rows of the range that are not in `batch`.
    pub bad: Vec<BadRead>,
}

/// The rows of a row range, as [`RangeRows`] in several batches.
#[derive(Debug)]
pub struct RangeBatches {
    /// The good rows with their ids, in order.
    pub batches: Vec<(RecordBatch, UInt64Array)>,
    /// The rows of the range that are not in `batches`.
    pub bad: Vec<BadRead>,
}

/// A row that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRead {
    /// The row's id.
    pub sample_id: u64,
    /// The reason.
    pub reason: String,
}

impl Dataset {
    /// Lists the files, determines their columns and row groups, and pins the result.
    pub async fn open(stores: &Stores, spec: &DatasetSpec) -> Result<Self> {
        Self::open_keeping(stores, spec, None).await
    }

    /// Like [`open`](Self::open). If an earlier opening found the same files, uses what it kept.
    pub async fn open_keeping(stores: &Stores, spec: &DatasetSpec, keeping: Option<Keeping<'_>>) -> Result<Self> {
        check_spec(spec)?;
        let (files, columns) = listing::list(stores, &spec.location, spec.format.descriptor()).await?;
        let location = stores.locate(&spec.location)?.display();
        let mut spec = DatasetSpec { location, ..spec.clone() };
        // What an artifact's job wrote as texts are not numbers, whatever they look like.
        if let Some(ArtifactColumns { in_files, of_folders }) = columns {
            if spec.schema.is_none() && spec.format.descriptor().may_declare_columns {
                spec.schema = Some(in_files);
            }
            if spec.path_columns.is_inferred() && !of_folders.fields().is_empty() {
                spec.path_columns = PathColumns::Declared(of_folders);
            }
        }
        if spec.format.descriptor().names_are_data {
            // No folder's name is lost without columns.
            spec.path_columns = spec.path_columns.where_common(&files);
        }
        Self::of_files(stores, spec, files, keeping).await
    }

    /// Like [`open_keeping`](Self::open_keeping), for the files at all of these locations, in the order of their paths.
    ///
    /// # Errors
    /// `Invalid` for a file at two locations, and for locations in different stores.
    pub async fn open_all(
        stores: &Stores,
        locations: &[String],
        format: &TableFormat,
        path_columns: PathColumns,
        path_column: Option<String>,
        keeping: Option<Keeping<'_>>,
    ) -> Result<Self> {
        let (location, files) = listing::list_all(stores, locations, format.descriptor()).await?;
        let paths: HashSet<&Path> = files.iter().map(|file| &file.location).collect();
        let is_file = |location: &String| stores.locate(location).is_ok_and(|place| paths.contains(&place.path));
        // Files that are named one by one may be of several folders.
        let path_columns = match format.descriptor().names_are_data || locations.iter().all(is_file) {
            true => path_columns.where_common(&files),
            false => path_columns,
        };
        let spec = DatasetSpec { location, format: format.clone(), schema: None, path_columns, path_column };
        check_spec(&spec)?;
        Self::of_files(stores, spec, files, keeping).await
    }

    async fn of_files(
        stores: &Stores,
        spec: DatasetSpec,
        files: Vec<PinnedFile>,
        keeping: Option<Keeping<'_>>,
    ) -> Result<Self> {
        if let Some(keeping) = keeping
            && let Some((schema, snapshot)) = keeping.find(stores, &spec, &files).await
            && let Ok(dataset) = Self::of_snapshot(&spec, files.clone(), snapshot.into(), schema)
        {
            return Ok(dataset);
        }
        let begun = Instant::now();
        let format = &spec.format;
        let request = OpenRequest { files: &files, options: format.options(), columns: spec.schema.as_ref() };
        let path_values = PathValues::of(&spec.path_columns, spec.path_column.as_deref(), &files)?;
        let Opened { schema: file_schema, groups, reader } = format.format().open(request).await?;
        let file_schema = match format.descriptor().names_are_data {
            true => path_values.not_replaced(&file_schema),
            false => file_schema,
        };
        check_names(&file_schema, &files)?;
        let schema = path_values.with_columns_of(&file_schema, files.first())?;
        let snapshot = Arc::new(Snapshot::new(&spec, &schema, &files, groups)?);
        // Names that are data are listed again, so nothing would be saved.
        let is_read = !spec.format.descriptor().names_are_data;
        if let Some(keeping) = keeping.filter(|keeping| is_read && begun.elapsed() >= keeping.after) {
            keeping.put(stores, &spec, &files, &schema, &snapshot).await;
        }
        let inner = DatasetInner { spec, schema, file_schema, path_values, snapshot, files, reader };
        Ok(Self { inner: Arc::new(inner), pieces: None })
    }

    /// Opens a dataset that was opened elsewhere with [`spec`](Self::spec), [`schema`](Self::schema) and
    /// [`snapshot`](Self::snapshot), without listing or opening any file. A changed or missing file is reported when it
    /// is read.
    pub fn pinned(
        stores: &Stores,
        spec: &DatasetSpec,
        snapshot: impl Into<Arc<Snapshot>>,
        schema: SchemaRef,
    ) -> Result<Self> {
        check_spec(spec)?;
        let snapshot = snapshot.into();
        let files = listing::pinned(stores, &spec.location, snapshot.files())?;
        Self::of_snapshot(spec, files, snapshot, schema)
    }

    /// Opens the files of a snapshot from elsewhere.
    fn of_snapshot(
        spec: &DatasetSpec,
        files: Vec<PinnedFile>,
        snapshot: Arc<Snapshot>,
        schema: SchemaRef,
    ) -> Result<Self> {
        check_names(&schema, &files)?;
        snapshot.check(spec, &schema, &files)?;
        let path_values = PathValues::of(&spec.path_columns, spec.path_column.as_deref(), &files)?;
        let file_schema = path_values.without(&schema)?;
        let request = ReaderRequest { files: files.len(), options: spec.format.options(), schema: &file_schema };
        let reader = spec.format.format().reader(request)?;
        if spec.schema.as_ref().is_some_and(|declared| *declared != file_schema) {
            return Err(Error::invalid(format!(
                "\"{}\": the columns of its spec do not match those of its schema",
                spec.location
            )));
        }
        let spec = spec.clone();
        let inner = DatasetInner { spec, schema, file_schema, path_values, snapshot, files, reader };
        Ok(Self { inner: Arc::new(inner), pieces: None })
    }

    /// A dataset of rows in memory, with one row group per batch. `content` identifies the rows, as a store's version
    /// identifies a file's content: equal rows must have equal `content` in every process.
    pub fn in_memory(name: &str, schema: SchemaRef, batches: Vec<RecordBatch>, content: &str) -> Result<Self> {
        let (groups, reader) = InMemoryReader::new(batches)?;
        let display: Arc<str> = format!("{name} (in memory)").into();
        let files = vec![PinnedFile {
            store: Arc::new(InMemory::new()),
            location: Path::from(name),
            size: groups.iter().map(|group| group.bytes).sum(),
            etag: Some(content.to_owned()),
            modified_ms: 0,
            relative: Arc::clone(&display),
            display,
            verifier: None,
            pieces: None,
        }];
        check_names(&schema, &files)?;
        let (location, path_columns) = (name.to_owned(), PathColumns::Ignored);
        let format = TableFormat::in_memory();
        let spec = DatasetSpec { location, format, schema: None, path_columns, path_column: None };
        let snapshot = Arc::new(Snapshot::new(&spec, &schema, &files, vec![groups])?);
        let (file_schema, path_values, reader) = (Arc::clone(&schema), PathValues::none(), Box::new(reader));
        let inner = DatasetInner { spec, schema, file_schema, path_values, snapshot, files, reader };
        Ok(Self { inner: Arc::new(inner), pieces: None })
    }

    /// The same dataset, which reads what is kept of remote files. It keeps what else it reads of them while `keeps` is
    /// set.
    #[must_use]
    pub fn keeping_pieces(&self, cache: Arc<PieceCache>, keeps: Arc<AtomicBool>) -> Self {
        Self { inner: Arc::clone(&self.inner), pieces: Some((cache, keeps)) }
    }

    /// The same dataset, which reads all of its files from their stores.
    #[must_use]
    pub fn without_pieces(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), pieces: None }
    }

    /// The bytes of remote files that are kept, as far as this process knows.
    pub async fn kept_bytes(&self) -> u64 {
        let Some((cache, _)) = &self.pieces else { return 0 };
        cache.bytes_of(self.inner.files.iter().map(PinnedFile::key).collect()).await
    }

    /// Whether all files are on the local disk or in memory.
    pub fn is_local(&self) -> bool {
        self.is_in_memory() || self.inner.files.iter().all(PinnedFile::is_local)
    }

    /// Whether the rows are in this process's memory rather than in files.
    pub fn is_in_memory(&self) -> bool {
        is_in_memory(&self.inner.spec)
    }

    /// Its definition, with the location as an absolute path or URL.
    pub fn spec(&self) -> &DatasetSpec {
        &self.inner.spec
    }

    /// The columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.inner.schema
    }

    /// The files at the time the dataset was opened.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.inner.snapshot
    }

    /// All rows in file order, in ranges of about `range_bytes_target` bytes in memory if the format allows it.
    ///
    /// The same snapshot and target always give the same ranges.
    pub fn row_ranges(&self, range_bytes_target: u64) -> Vec<RowRange> {
        self.inner.snapshot.row_ranges(range_bytes_target)
    }

    /// Whether reading texts as dictionaries is cheaper than reading them as plain texts.
    pub fn has_dictionaries(&self) -> bool {
        self.inner.spec.format.descriptor().has_dictionaries
    }

    /// Whether a column is of the files' paths rather than in files.
    pub fn is_path_column(&self, column: usize) -> bool {
        column >= self.inner.file_schema.fields().len()
    }

    /// Whether parts of a range can be read without reading much more than the parts.
    pub fn reads_parts(&self, range: &RowRange) -> bool {
        self.find(range).is_ok_and(|(_, groups)| groups[range.group as usize].cuts != Cuts::Nowhere)
    }

    /// Reads `columns` of `schema()`, in that order, for the rows in `range`.
    ///
    /// Decodes on the caller's task. Reads only the requested cells: a bad cell in another column goes unnoticed, and a
    /// read of no columns, or of a media file's name, does not access the file.
    pub async fn read(&self, range: &RowRange, columns: &[usize]) -> Result<RangeRows> {
        self.read_with_dictionaries(range, columns, &[]).await
    }

    /// Like [`read`](Self::read), but returns the texts of the columns `dictionaries` as
    /// [dictionaries](crate::dictionary_of_texts) if the dataset [has them](Self::has_dictionaries). In a dictionary, a
    /// null is a null key or a key of a null.
    pub async fn read_with_dictionaries(
        &self,
        range: &RowRange,
        columns: &[usize],
        dictionaries: &[usize],
    ) -> Result<RangeRows> {
        let Read { schema, decoded, first_sample_id } =
            self.read_at_once(range, columns, dictionaries, u64::MAX).await?;
        RangeRows::numbered(&schema, decoded, range.rows, first_sample_id)
    }

    /// Like [`read`](Self::read), in batches of at most `rows_at_once` rows if the format decodes in parts. Batches may
    /// be smaller, and empty.
    pub async fn read_in_batches(
        &self,
        range: &RowRange,
        columns: &[usize],
        rows_at_once: u64,
    ) -> Result<RangeBatches> {
        let Read { decoded, first_sample_id, .. } = self.read_at_once(range, columns, &[], rows_at_once).await?;
        RangeBatches::numbered(decoded, range.rows, first_sample_id)
    }

    async fn read_at_once(
        &self,
        range: &RowRange,
        columns: &[usize],
        dictionaries: &[usize],
        rows_at_once: u64,
    ) -> Result<Read> {
        let inner = &*self.inner;
        let own = inner.file_schema.fields().len();
        let is_text = |at: &usize| inner.schema.fields().get(*at).is_some_and(|f| *f.data_type() == DataType::Utf8);
        let dictionaries: Vec<usize> = match self.has_dictionaries() {
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
        let (file, groups) = self.find(range)?;
        let of_file: Vec<usize> = columns.iter().copied().filter(|column| *column < own).collect();
        let dictionaries_of_file: Vec<usize> = dictionaries.iter().copied().filter(|column| *column < own).collect();
        let positions: Vec<usize> = (0..columns.len()).filter(|at| columns[*at] < own).collect();
        let output = Arc::new(schema.project(&positions).map_err(|e| Error::internal(e.to_string()))?);
        let request = self.request(&file, groups, range, &of_file, &output);
        let request = ReadRequest { dictionaries: &dictionaries_of_file, rows_at_once, ..request };
        let mut decoded = inner.reader.read(request).await?;
        if of_file.len() < columns.len() {
            for batch in &mut decoded.batches {
                let complete = inner.path_values.complete(batch, own, columns, range.file, &schema);
                *batch = complete.map_err(|e| Error::internal(format!("columns of paths: {e}")).with_source(e))?;
            }
        }
        let first_sample_id = inner.snapshot.files()[range.file as usize].first_sample_id + range.first_row;
        Ok(Read { schema, decoded, first_sample_id })
    }

    /// Bounds on the values of `columns` of `schema()` in parts of `range`, without reading its rows. Opens the file
    /// only if a column is in it.
    pub async fn statistics(&self, range: &RowRange, columns: &[usize], of: Of) -> Result<RangeStatistics> {
        let inner = &*self.inner;
        let own = inner.file_schema.fields().len();
        let of_file: Vec<usize> = columns.iter().copied().filter(|column| *column < own).collect();
        let output = Arc::new(inner.file_schema.project(&of_file).map_err(|e| Error::internal(e.to_string()))?);
        let (file, groups) = self.find(range)?;
        let request = self.request(&file, groups, range, &of_file, &output);
        let RangeStatistics { parts, columns: found } = match of_file.is_empty() {
            true => RangeStatistics::unknown(range, std::iter::empty()),
            false => inner.reader.statistics(request, of).await?,
        };
        let mut found = found.into_iter();
        let columns = columns.iter().map(|column| match column.checked_sub(own) {
            Some(of_path) => Ok(ColumnStatistics::of_value(&inner.path_values.value(of_path, range.file), &parts)),
            None => found.next().ok_or_else(|| Error::internal("a format gave too few statistics")),
        });
        Ok(RangeStatistics { columns: columns.collect::<Result<_>>()?, parts })
    }

    /// The stored bytes of `columns` in `ranges`, which are in file order, and the bytes that reading all of the ranges
    /// takes. `None` if the format does not know. Of many files, some are looked at.
    pub async fn bytes_to_read(&self, ranges: &[RowRange], columns: &[usize]) -> Result<Option<(u64, u64)>> {
        let inner = &*self.inner;
        let own = inner.file_schema.fields().len();
        let of_file: Vec<usize> = columns.iter().copied().filter(|column| *column < own).collect();
        let output = Arc::new(inner.file_schema.project(&of_file).map_err(|e| Error::internal(e.to_string()))?);
        let files: Vec<&[RowRange]> = ranges.chunk_by(|a, b| a.file == b.file).collect();
        let step = files.len().div_ceil(MEASURED_FILES_MAX).max(1);
        // One after the other, the files would cost a store's delay each.
        let measured = files.iter().step_by(step).map(|ranges| async {
            let range = ranges.first().ok_or_else(|| Error::internal("a file without ranges"))?;
            let (file, groups) = self.find(range)?;
            let request = self.request(&file, groups, range, &of_file, &output);
            inner.reader.bytes_to_read(request, ranges).await
        });
        let measured: Vec<Option<BytesToRead>> = try_join_all(measured).await?;
        let mut total = BytesToRead::default();
        for bytes in &measured {
            let Some(bytes) = bytes else { return Ok(None) };
            total.stored += bytes.stored;
            total.own += bytes.own;
            total.shared += bytes.shared;
            total.again += bytes.again;
        }
        let all = |bytes: u64| (u128::from(bytes) * files.len() as u128 / (measured.len().max(1) as u128)) as u64;
        let again = if all(total.shared) <= inner.reader.shared_bytes_max() { 0 } else { total.again };
        Ok(Some((all(total.stored), all(total.own + total.shared + again))))
    }

    /// A request for columns of a file, as one batch without dictionaries.
    fn request<'a>(
        &'a self,
        file: &'a PinnedFile,
        groups: &'a [RowGroup],
        range: &'a RowRange,
        columns: &'a [usize],
        output: &'a SchemaRef,
    ) -> ReadRequest<'a> {
        let schema = &self.inner.file_schema;
        ReadRequest { file, groups, range, schema, columns, dictionaries: &[], output, rows_at_once: u64::MAX }
    }

    /// The file of a range, which must come from this snapshot, and the file's row groups.
    fn find(&self, range: &RowRange) -> Result<(PinnedFile, &[RowGroup])> {
        let foreign = || Error::internal(format!("{range:?} is not a range of this snapshot"));
        let index = range.file as usize;
        let source = self.inner.snapshot.files().get(index).ok_or_else(foreign)?;
        let group = source.groups.get(range.group as usize).ok_or_else(foreign)?;
        let inside = range.first_row >= group.first_row
            && range.first_row.saturating_add(range.rows) <= group.first_row + group.rows;
        let whole = range.rows == group.rows;
        match inside && (whole || self.inner.spec.format.descriptor().reads_parts) {
            true => {
                let file = &self.inner.files[index];
                let pieces = self.pieces.as_ref().filter(|_| !file.is_local());
                let pieces = pieces.map(|(cache, keeps)| (Arc::clone(cache), keeps.load(Ordering::Relaxed)));
                Ok((PinnedFile { pieces, ..file.clone() }, &source.groups))
            }
            false => Err(foreign()),
        }
    }
}

fn is_in_memory(spec: &DatasetSpec) -> bool {
    spec.format.descriptor().name == memory::NAME
}

fn check_spec(spec: &DatasetSpec) -> Result<()> {
    let DatasetSpec { location, format, schema, .. } = spec;
    let descriptor = format.descriptor();
    if is_in_memory(spec) {
        return Err(Error::invalid(format!(
            "\"{location}\" is a table in the memory of the process that made it; write it to Parquet to read it \
             anywhere else"
        )));
    }
    if schema.is_some() && !descriptor.may_declare_columns {
        return Err(Error::invalid(format!(
            "\"{location}\": {} files have their own schema; leave the columns out",
            descriptor.name
        )));
    }
    let problem = format.format().check_options(format.options());
    problem.map_err(|problem| Error::invalid(format!("\"{location}\": {problem}")))
}

/// Refuses two columns with the same name, because queries find columns by name.
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

/// Rows as they were decoded.
struct Read {
    schema: SchemaRef,
    decoded: Decoded,
    first_sample_id: u64,
}

impl RangeRows {
    /// Assigns ids to rows.
    fn numbered(schema: &SchemaRef, mut decoded: Decoded, rows: u64, first_sample_id: u64) -> Result<Self> {
        let batch = concat_batches(schema, &decoded.batches)
            .map_err(|e| Error::internal(format!("decoded rows do not fit their schema: {e}")).with_source(e))?;
        decoded.batches = vec![batch];
        let RangeBatches { mut batches, bad } = RangeBatches::numbered(decoded, rows, first_sample_id)?;
        let (batch, sample_ids) = batches.pop().expect("there is one");
        Ok(Self { batch, sample_ids, bad })
    }
}

impl RangeBatches {
    /// Assigns ids to rows.
    fn numbered(decoded: Decoded, rows: u64, first_sample_id: u64) -> Result<Self> {
        let Decoded { batches, bad } = decoded;
        let good: usize = batches.iter().map(RecordBatch::num_rows).sum();
        if (good + bad.len()) as u64 != rows {
            let bad = bad.len();
            return Err(Error::internal(format!("a range of {rows} rows was read as {good} rows and {bad} bad ones")));
        }
        let bad: Vec<BadRead> =
            bad.into_iter().map(|(row, reason)| BadRead { sample_id: first_sample_id + row, reason }).collect();
        let mut skip = bad.iter().map(|bad| bad.sample_id).peekable();
        let mut ids = (first_sample_id..first_sample_id + rows).filter(|id| skip.next_if_eq(id).is_none());
        let number = |batch: RecordBatch| {
            let ids: UInt64Array = ids.by_ref().take(batch.num_rows()).collect::<Vec<u64>>().into();
            (batch, ids)
        };
        let batches: Vec<(RecordBatch, UInt64Array)> = batches.into_iter().map(number).collect();
        let are_numbered = batches.iter().all(|(batch, ids)| batch.num_rows() == ids.len());
        if !are_numbered || ids.next().is_some() {
            return Err(Error::internal(format!("the bad rows of a range of {rows} rows are out of order")));
        }
        Ok(Self { batches, bad })
    }
}
