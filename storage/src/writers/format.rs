//! The definition of a format of output files: a descriptor, a check of columns, and a writer of files.

use std::fmt::Debug;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use bytes::Bytes;
use serde_json::Value;

use crate::formats::{FormatOption, OptionValues};
use crate::{Error, Result};

/// Encodes files of one kind. To add a format, add a file to `writers/` and a line to
/// [`WRITE_FORMATS`](super::WRITE_FORMATS).
pub trait WriteFormat: Debug + Send + Sync {
    /// The properties of the format that do not depend on its options.
    fn descriptor(&self) -> &'static WriteDescriptor;

    /// Checks options whose values already have the right kind. The error completes a sentence.
    fn check_options(&self, _options: &OptionValues) -> Result<(), String> {
        Ok(())
    }

    /// The extension of a file with these options, without the first period.
    fn extension(&self, _options: &OptionValues) -> &'static str {
        self.descriptor().extension
    }

    /// Checks that files can hold these columns.
    ///
    /// # Errors
    /// `Invalid`, with the column's name, its type and what to do.
    fn check(&self, schema: &Schema, options: &OptionValues) -> Result<()>;

    /// A writer of a file, whose columns were checked.
    fn writer(&self, file: &NewFile<'_>, options: &OptionValues) -> Result<Box<dyn FileWriter>>;

    /// Files that readers need beside the data files, when all of these are written.
    fn index(&self, _files: &[DataFile]) -> Result<Vec<IndexFile>> {
        Ok(Vec::new())
    }
}

/// The properties of a format that do not depend on its options. SQL, the command line, the Python package and the
/// guide read them from here.
#[derive(Debug)]
pub struct WriteDescriptor {
    /// The name, in lower case.
    pub name: &'static str,
    /// Alternative names.
    pub aliases: &'static [&'static str],
    /// A description of the files, as a phrase.
    pub summary: &'static str,
    /// The extension of its files without compression, without the period.
    pub extension: &'static str,
    /// The options.
    pub options: &'static [FormatOption],
    /// How columns are stored, in sentences.
    pub columns: &'static str,
    /// Whether readers take columns from the names of the files' folders, such as `dt=2026-01-01`.
    pub may_be_partitioned: bool,
    /// What becomes of nulls, as a sentence.
    pub nulls: &'static str,
    /// What is refused, as a list in words.
    pub refused: &'static str,
}

/// A file to write.
#[derive(Clone, Copy, Debug)]
pub struct NewFile<'a> {
    /// The columns.
    pub schema: &'a SchemaRef,
    /// The beginning of the keys of rows that have none of their own. It must be unique to the file.
    pub key_prefix: &'a str,
}

/// Encodes the rows of one file, in memory: it accesses no store.
///
/// The same rows give the same bytes, however batches divide them. Call [`write`](Self::write) for all rows, with
/// [`take`](Self::take) after each batch, then [`finish`](Self::finish), [`take`](Self::take) until it returns `None`,
/// and [`facts`](Self::facts).
pub trait FileWriter: Send {
    /// Adds rows to the file. After an error the file is of no use.
    ///
    /// # Errors
    /// `Invalid` for a value that the format cannot hold, with its column and its row.
    fn write(&mut self, rows: &RecordBatch) -> Result<()>;

    /// Ends the rows.
    fn finish(&mut self) -> Result<()>;

    /// The next bytes of the file. `None` if further bytes need further rows, or, after [`finish`](Self::finish), if
    /// there are none.
    fn take(&mut self) -> Result<Option<Bytes>>;

    /// About how many bytes the file has so far, for deciding when to begin the next one.
    fn bytes(&self) -> u64;

    /// What [`WriteFormat::index`] needs to know about the file, once all its bytes are taken.
    fn facts(&self) -> Value {
        Value::Null
    }
}

/// A file that was written.
#[derive(Clone, Debug, PartialEq)]
pub struct DataFile {
    /// Its name, relative to the folder of the index.
    pub name: String,
    /// Its rows.
    pub rows: u64,
    /// [`FileWriter::facts`].
    pub facts: Value,
}

/// A file beside the data files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexFile {
    /// Its name in the folder of the data files.
    pub name: &'static str,
    /// Its content.
    pub bytes: Bytes,
}

/// An error about a library's refusal to encode what was checked.
pub(super) fn unwritable(format: &str, source: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::invalid(format!("these rows cannot be written as {format}: {source}")).with_source(source)
}
