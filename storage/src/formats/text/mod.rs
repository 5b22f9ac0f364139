//! Common parts of text formats with one record after the other, such as CSV and JSON lines.
//!
//! A text file does not store its number of rows. Opening it therefore reads all of it once, in pieces, and cuts it
//! into blocks at record boundaries. Each block is then read and decoded separately, like a Parquet row group.

mod decoding;
mod lines;
mod record_text;
mod scan;

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use futures::future::{BoxFuture, FutureExt};

pub(crate) use self::lines::LineEnds;
#[cfg(test)]
pub(crate) use self::record_text::record_ends;
pub(crate) use self::record_text::{RecordText, Records};

use self::scan::{ScannedText, scan};
use super::format::{Decoded, FormatReader, OpenRequest, Opened, ReadRequest, ReaderRequest};
use crate::extension::has_extension;
use crate::pinned::{PinnedFile, for_all_then};
use crate::source_file::{Cuts, RowGroup, SourceFile};
use crate::{Error, Result};

/// The definition of a row group, for descriptors.
pub(crate) const ROW_GROUP: &str = "a block of about 1 MiB or 8,192 rows";

const COMPRESSED: &[&str] = &["gz", "zst", "bz2", "xz", "lz4"];

/// Scans all files, and infers the columns unless they are declared.
pub(crate) async fn open<T: RecordText>(text: T, request: OpenRequest<'_>) -> Result<Opened> {
    let files = request.files;
    if let Some(file) = files.iter().find(|file| has_extension(file.path(), COMPRESSED)) {
        return Err(Error::invalid(format!(
            "\"{}\": compressed text is not read yet; decompress it or write it as parquet",
            file.path()
        )));
    }
    let infers = request.columns.is_none();
    let mut all = T::Seen::default();
    let gather = |file: &PinnedFile, mut scanned: ScannedText<T::Seen>| {
        // The files are gathered while others are scanned, so that memory does not grow with their number.
        let seen = std::mem::take(&mut scanned.seen);
        text.gather(&mut all, seen).map_err(|error| not_inferred(file, error))?;
        Ok(scanned)
    };
    let scanned: Vec<ScannedText<T::Seen>> = for_all_then(files, |file| scan(&text, file, infers), gather).await?;
    let schema = match request.columns {
        Some(columns) => Arc::clone(columns),
        None => infer(&text, files, &scanned, &all).await?,
    };
    check_types(&text, &schema)?;
    if text.has_header() {
        for (file, scanned) in files.iter().zip(&scanned) {
            text.check_header(file.path(), &scanned.header, &schema)?;
        }
    }
    let groups = scanned.into_iter().map(|file| file.groups).collect();
    Ok(Opened { schema, groups, reader: Box::new(TextReader(text)) })
}

/// A reader for files that were scanned before.
pub(crate) fn reader(text: impl RecordText, request: ReaderRequest<'_>) -> Result<Box<dyn FormatReader>> {
    check_types(&text, request.schema)?;
    Ok(Box::new(TextReader(text)))
}

/// The reason that `group` cannot be a block of `file`, or `None`.
pub(crate) fn misfit(file: &SourceFile, group: &RowGroup) -> Option<String> {
    let end = group.offset.saturating_add(group.length);
    let fits = end <= file.size && group.rows <= group.length && group.cuts == Cuts::Nowhere;
    (!fits).then(|| format!("a block of {} rows cannot be bytes {}..{end} of {}", group.rows, group.offset, file.size))
}

fn check_types(text: &impl RecordText, schema: &SchemaRef) -> Result<()> {
    text.check_types(schema)
        .map_err(|e| Error::invalid(format!("the columns cannot be read from text: {e}")).with_source(e))
}

async fn infer<T: RecordText>(
    text: &T,
    files: &[PinnedFile],
    scanned: &[ScannedText<T::Seen>],
    all: &T::Seen,
) -> Result<SchemaRef> {
    let with_rows = scanned.iter().position(|s| !s.groups.is_empty());
    let with_header = scanned.iter().position(|s| !s.header.is_empty());
    let Some(first) = with_rows.or(with_header) else {
        return Ok(Arc::new(Schema::empty()));
    };
    if let Some(inferred) = text.inferred(all) {
        return Ok(inferred);
    }
    let end = match scanned[first].groups.first() {
        Some(group) => group.offset + group.length,
        None => scanned[first].header.len() as u64,
    };
    let sample = files[first].get_range(0..end).await?;
    text.infer(&sample).map_err(|error| not_inferred(&files[first], error))
}

fn not_inferred(file: &PinnedFile, error: ArrowError) -> Error {
    Error::data(format!(
        "\"{}\": its columns cannot be inferred from its first rows: {error}; give the columns and their types",
        file.path()
    ))
    .with_source(error)
}

#[derive(Debug)]
struct TextReader<T>(T);

impl<T: RecordText> FormatReader for TextReader<T> {
    fn read<'a>(&'a self, request: ReadRequest<'a>) -> BoxFuture<'a, Result<Decoded>> {
        async move {
            let group = request.group();
            let block = request.file.get_range(group.offset..group.offset + group.length).await?;
            decoding::decode(&self.0, &block, request.range.rows, request.schema, request.columns)
        }
        .boxed()
    }
}
