//! The definition of a format: a descriptor, a way to open files, a way to read their rows, and samples of both.
//!
//! [`Format::open`] examines files once and determines their columns and row groups, which enter the snapshot. A
//! [`FormatReader`] then reads ranges of rows. In another process, [`Format::reader`] creates it from the snapshot
//! without accessing any file. The other parts of datasets (listing, pinning, row ids, names of columns) are the same
//! for all formats, and are not part of them.

use std::fmt::Debug;
use std::future::ready;
use std::ops::Range;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use futures::future::{BoxFuture, FutureExt};

use super::options::{FormatOption, ImpliedOption, OptionValues};
use crate::pinned::PinnedFile;
use crate::source_file::{RowGroup, RowRange, SourceFile};
use crate::statistics::{Of, RangeStatistics};
use crate::{Error, Result};

/// Opens and reads files of one kind. To add a format, add a file to `formats/` and a line to
/// [`FORMATS`](super::FORMATS).
pub trait Format: Debug + Send + Sync {
    /// The properties of the format that do not depend on a file.
    fn descriptor(&self) -> &'static FormatDescriptor;

    /// Checks options whose values already have the right kind. The error completes a sentence, such as "a csv
    /// delimiter must be …".
    fn check_options(&self, _options: &OptionValues) -> Result<(), String> {
        Ok(())
    }

    /// Determines the columns and the row groups of all files, and reads as little of the files as possible.
    fn open<'a>(&'a self, request: OpenRequest<'a>) -> BoxFuture<'a, Result<Opened>>;

    /// A reader for files whose columns and row groups are known. Opens no file.
    fn reader(&self, request: ReaderRequest<'_>) -> Result<Box<dyn FormatReader>>;

    /// The reason that `group` cannot be a row group of `file`, or `None`. A snapshot from elsewhere may claim any
    /// numbers, and readers allocate memory according to them.
    fn misfit(&self, file: &SourceFile, group: &RowGroup) -> Option<String>;

    /// A file `name` with the rows `numbers` of an endless table, for the conformance suite. If the format's files have
    /// a fixed number of rows, for example one, the rows may be fewer.
    fn sample(&self, name: &str, numbers: Range<u64>, options: &OptionValues) -> SampleFile;

    /// The options that the conformance suite tests, in the user's notation.
    fn sample_options(&self) -> &'static [&'static [(&'static str, &'static str)]] {
        &[&[]]
    }
}

/// Reads rows from the files of one dataset.
pub trait FormatReader: Debug + Send + Sync {
    /// Reads a range of rows. For any content of the file, the result is rows, bad rows or an error that names the
    /// file.
    fn read<'a>(&'a self, request: ReadRequest<'a>) -> BoxFuture<'a, Result<Decoded>>;

    /// Bounds on the values of the requested columns, one for each column of `output`, without reading rows.
    fn statistics<'a>(&'a self, request: ReadRequest<'a>, _of: Of) -> BoxFuture<'a, Result<RangeStatistics>> {
        let fields = request.output.fields().iter().map(AsRef::as_ref);
        ready(Ok(RangeStatistics::unknown(request.range, fields))).boxed()
    }

    /// The bytes that reading all of `ranges` takes, which are of the request's file. `None` if it is unknown.
    fn bytes_to_read<'a>(
        &'a self,
        _request: ReadRequest<'a>,
        _ranges: &'a [RowRange],
    ) -> BoxFuture<'a, Result<Option<BytesToRead>>> {
        ready(Ok(None)).boxed()
    }

    /// How many of the bytes that several ranges need are kept.
    fn shared_bytes_max(&self) -> u64 {
        0
    }
}

/// The bytes that reading some ranges of a file takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BytesToRead {
    /// The stored bytes of the columns in the ranges' row groups.
    pub stored: u64,
    /// Bytes that one range needs.
    pub own: u64,
    /// Bytes that several ranges need.
    pub shared: u64,
    /// The same bytes, counted for each range after the first.
    pub again: u64,
}

/// The properties of a format that do not depend on a file. Listing, SQL, the Python package and the guide read them
/// from here; no other place lists formats or their properties.
#[derive(Debug)]
pub struct FormatDescriptor {
    /// The name, in lower case: `STORED AS CSV` is of the format `csv`.
    pub name: &'static str,
    /// Alternative names.
    pub aliases: &'static [&'static str],
    /// A description of the files, as a phrase.
    pub summary: &'static str,
    /// The extensions of its files, in lower case and without the period. They are unique to the format.
    pub extensions: &'static [&'static str],
    /// The options.
    pub options: &'static [FormatOption],
    /// The options that the format did not always have. Ids and stored formats leave them out where they have their
    /// defaults, so that existing tables keep their ids.
    pub added_options: &'static [&'static str],
    /// Option values that follow from the location.
    pub implied: &'static [ImpliedOption],
    /// A definition of row groups, for the guide.
    pub row_group: &'static str,
    /// Whether a table may declare its columns. Otherwise the files determine them.
    pub may_declare_columns: bool,
    /// Whether a part of a row group can be read without the rest.
    pub reads_parts: bool,
    /// Whether reading texts as dictionaries is cheaper than reading them as plain texts.
    pub has_dictionaries: bool,
    /// Whether columns contain the files' names.
    pub names_are_data: bool,
    /// Whether only the extension distinguishes the format's files, so that globs also skip other extensions.
    pub told_by_extension: bool,
}

impl FormatDescriptor {
    /// The defaults of most formats, for `..FormatDescriptor::BASE`.
    pub const BASE: Self = Self {
        name: "",
        aliases: &[],
        summary: "",
        extensions: &[],
        options: &[],
        added_options: &[],
        implied: &[],
        row_group: "",
        may_declare_columns: false,
        reads_parts: false,
        has_dictionaries: false,
        names_are_data: false,
        told_by_extension: false,
    };
}

/// Files to open.
#[derive(Clone, Copy, Debug)]
pub struct OpenRequest<'a> {
    /// The files, in the order of their paths.
    pub files: &'a [PinnedFile],
    /// The format's options.
    pub options: &'a OptionValues,
    /// The columns that the table declares, if any.
    pub columns: Option<&'a SchemaRef>,
}

/// The result of [`Format::open`].
#[derive(Debug)]
pub struct Opened {
    /// The columns of all files.
    pub schema: SchemaRef,
    /// The row groups of each file.
    pub groups: Vec<Vec<RowGroup>>,
    /// The reader of the files.
    pub reader: Box<dyn FormatReader>,
}

/// Files that were opened before.
#[derive(Clone, Copy, Debug)]
pub struct ReaderRequest<'a> {
    /// The number of files.
    pub files: usize,
    /// The format's options.
    pub options: &'a OptionValues,
    /// The columns.
    pub schema: &'a SchemaRef,
}

/// Rows to read.
#[derive(Clone, Copy, Debug)]
pub struct ReadRequest<'a> {
    /// The file.
    pub file: &'a PinnedFile,
    /// Its row groups.
    pub groups: &'a [RowGroup],
    /// The rows. If the format does not read parts, always a whole row group.
    pub range: &'a RowRange,
    /// All columns of the dataset.
    pub schema: &'a SchemaRef,
    /// The columns to read, as positions in `schema`.
    pub columns: &'a [usize],
    /// The columns among them to read as dictionaries; empty unless the format supports this.
    pub dictionaries: &'a [usize],
    /// The schema of the result.
    pub output: &'a SchemaRef,
    /// The most rows of a batch of the result, for formats that decode in parts.
    pub rows_at_once: u64,
}

impl ReadRequest<'_> {
    /// The row group that contains the range.
    pub fn group(&self) -> &RowGroup {
        &self.groups[self.range.group as usize]
    }

    /// A result in which all rows of the range are good, with the requested columns.
    pub fn all_good(&self, columns: Vec<ArrayRef>) -> Result<Decoded> {
        Ok(Decoded { batches: vec![self.batch(columns, self.range.rows as usize)?], bad: Vec::new() })
    }

    /// A batch of the result, with the requested columns of some rows.
    pub fn batch(&self, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
        // A batch without columns still has rows.
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(SchemaRef::clone(self.output), columns, &options)
            .map_err(|e| Error::internal(format!("a decoded batch does not fit its schema: {e}")).with_source(e))
    }
}

/// A range's good rows, in order, and its bad rows. Together they are all rows of the range.
#[derive(Debug, Default)]
pub struct Decoded {
    /// The good rows, with the requested columns.
    pub batches: Vec<RecordBatch>,
    /// The bad rows, in order: each row's number in the range, and the reason.
    pub bad: Vec<(u64, String)>,
}

/// A file for the conformance suite, with the expected rows.
#[derive(Debug)]
pub struct SampleFile {
    /// The file.
    pub bytes: Vec<u8>,
    /// Its rows.
    pub rows: RecordBatch,
    /// The same file with one bad row, if the format can distinguish bad rows.
    pub damaged: Option<DamagedSample>,
}

/// A file with one row that cannot be read.
#[derive(Debug)]
pub struct DamagedSample {
    /// The file.
    pub bytes: Vec<u8>,
    /// The number of the bad row.
    pub row: u64,
    /// A text that the reason must contain.
    pub reason: &'static str,
}
