//! What a format is: a descriptor, a way to open files, a way to read their rows, and samples of both.
//!
//! [`Format::open`] looks at files once and finds their columns and row groups; these go into the snapshot. A
//! [`FormatReader`] then reads ranges of rows, here or in another process, where [`Format::reader`] makes it of the
//! snapshot without a look at any file. Everything else about datasets (listing, pinning, row ids, names of columns) is
//! the same for all formats and lies outside them.

use std::fmt::Debug;
use std::ops::Range;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use futures::future::BoxFuture;

use super::options::{FormatOption, ImpliedOption, OptionValues};
use crate::pinned::PinnedFile;
use crate::source_file::{RowGroup, RowRange, SourceFile};
use crate::{Error, Result};

/// How files of one kind are opened and read. One file in `formats/` and one line in
/// [`FORMATS`](super::FORMATS) add one.
pub trait Format: Debug + Send + Sync {
    /// What is known of the format without any file.
    fn descriptor(&self) -> &'static FormatDescriptor;

    /// Says what is wrong with options that are each of their kind, as the rest of a sentence such as "a csv delimiter
    /// must be …".
    fn check_options(&self, _options: &OptionValues) -> Result<(), String> {
        Ok(())
    }

    /// Finds the columns and the row groups of all files. Reads as little of them as tells these.
    fn open<'a>(&'a self, request: OpenRequest<'a>) -> BoxFuture<'a, Result<Opened>>;

    /// A reader of files whose columns and row groups are known. Opens none of them.
    fn reader(&self, request: ReaderRequest<'_>) -> Result<Box<dyn FormatReader>>;

    /// Says why `group` cannot be a row group of `file`, if it cannot. A snapshot from elsewhere may claim any numbers,
    /// and readers allocate by them.
    fn misfit(&self, file: &SourceFile, group: &RowGroup) -> Option<String>;

    /// A file called `name` with the rows `numbers` of an endless table, for the conformance suite. Files that hold a
    /// fixed number of rows, such as one, may hold these.
    fn sample(&self, name: &str, numbers: Range<u64>, options: &OptionValues) -> SampleFile;

    /// The options that the conformance suite tries, as a user would write them.
    fn sample_options(&self) -> &'static [&'static [(&'static str, &'static str)]] {
        &[&[]]
    }
}

/// Reads rows of the files of one dataset.
pub trait FormatReader: Debug + Send + Sync {
    /// Reads a range of rows. Whatever the file's bytes are, the result is rows, bad rows or an error that names the
    /// file.
    fn read<'a>(&'a self, request: ReadRequest<'a>) -> BoxFuture<'a, Result<Decoded>>;
}

/// What is known of a format without any file. Listing, SQL, the Python package and the guide read it, and nothing else
/// lists formats or their properties.
#[derive(Debug)]
pub struct FormatDescriptor {
    /// The name, in lower case: `STORED AS CSV` is of the format `csv`.
    pub name: &'static str,
    /// Other names for the same.
    pub aliases: &'static [&'static str],
    /// What the files are, as a phrase.
    pub summary: &'static str,
    /// The extensions of its files, in lower case and without the period. No other format has them.
    pub extensions: &'static [&'static str],
    /// The options.
    pub options: &'static [FormatOption],
    /// Values of options that follow from the location.
    pub implied: &'static [ImpliedOption],
    /// What a row group is, for the guide.
    pub row_group: &'static str,
    /// Whether a table may declare its columns. Otherwise the files say what they are.
    pub may_declare_columns: bool,
    /// Whether some rows of a row group can be read without the others.
    pub reads_parts: bool,
    /// Whether texts can be read as dictionaries at a lower cost than as they are.
    pub has_dictionaries: bool,
    /// Whether columns are made of the files' names.
    pub names_are_data: bool,
    /// Whether only the extension tells the format's files from others, so that a glob does not give others either.
    pub told_by_extension: bool,
}

impl FormatDescriptor {
    /// What most formats have in common, for `..FormatDescriptor::BASE`.
    pub const BASE: Self = Self {
        name: "",
        aliases: &[],
        summary: "",
        extensions: &[],
        options: &[],
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
    /// The columns that the table declares, if it declares them.
    pub columns: Option<&'a SchemaRef>,
}

/// What [`Format::open`] finds.
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
    /// How many files there are.
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
    /// The rows. Of a format that does not read parts, always a whole row group.
    pub range: &'a RowRange,
    /// All columns of the dataset.
    pub schema: &'a SchemaRef,
    /// The columns to read, as positions in `schema`.
    pub columns: &'a [usize],
    /// Those of them whose texts are to be read as dictionaries; none, unless the format has them.
    pub dictionaries: &'a [usize],
    /// The schema of the result.
    pub output: &'a SchemaRef,
}

impl ReadRequest<'_> {
    /// The row group that the range is in.
    pub fn group(&self) -> &RowGroup {
        &self.groups[self.range.group as usize]
    }

    /// All rows of the range, none of them bad, as the columns asked for.
    pub fn all_good(&self, columns: Vec<ArrayRef>) -> Result<Decoded> {
        // A batch without columns still has rows.
        let options = RecordBatchOptions::new().with_row_count(Some(self.range.rows as usize));
        let batch = RecordBatch::try_new_with_options(SchemaRef::clone(self.output), columns, &options)
            .map_err(|e| Error::internal(format!("a decoded batch does not fit its schema: {e}")).with_source(e))?;
        Ok(Decoded { batches: vec![batch], bad: Vec::new() })
    }
}

/// A range's good rows, in order, and its bad ones. Together they are all rows of the range.
#[derive(Debug, Default)]
pub struct Decoded {
    /// The good rows, with the columns asked for.
    pub batches: Vec<RecordBatch>,
    /// The bad rows, in order: the number of each in the range, and what is wrong with it.
    pub bad: Vec<(u64, String)>,
}

/// A file for the conformance suite, with what must be read of it.
#[derive(Debug)]
pub struct SampleFile {
    /// The file.
    pub bytes: Vec<u8>,
    /// Its rows.
    pub rows: RecordBatch,
    /// The same file with one bad row, of formats that tell bad rows from others.
    pub damaged: Option<DamagedSample>,
}

/// A file with one row that cannot be read.
#[derive(Debug)]
pub struct DamagedSample {
    /// The file.
    pub bytes: Vec<u8>,
    /// The number of the bad row.
    pub row: u64,
    /// What its reason must say.
    pub reason: &'static str,
}
