//! Media files: each file is one row.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use futures::future::{BoxFuture, FutureExt};

use super::format::{
    Decoded, Format, FormatDescriptor, FormatReader, OpenRequest, Opened, ReadRequest, ReaderRequest, SampleFile,
};
use super::options::OptionValues;
use crate::pinned::PinnedFile;
use crate::source_file::{Cuts, RowGroup, SourceFile};
use crate::{Error, Result};

static DESCRIPTOR: FormatDescriptor = FormatDescriptor {
    name: "media",
    summary: "images, audio, video and PDF, each file one row",
    extensions: &[
        "jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "wav", "flac", "mp3", "ogg", "m4a", "mp4", "mkv",
        "webm", "avi", "mov", "pdf",
    ],
    row_group: "a file",
    names_are_data: true,
    told_by_extension: true,
    ..FormatDescriptor::BASE
};

/// Images, audio, video and PDF: a file is a row of `bytes`, `path`, `size` and `label`.
#[derive(Debug)]
pub(crate) struct Media;

impl Format for Media {
    fn descriptor(&self) -> &'static FormatDescriptor {
        &DESCRIPTOR
    }

    fn open<'a>(&'a self, request: OpenRequest<'a>) -> BoxFuture<'a, Result<Opened>> {
        let groups = request.files.iter().map(|file| vec![one_row(file.size())]).collect();
        async move { Ok(Opened { schema: schema(), groups, reader: Box::new(MediaReader) }) }.boxed()
    }

    fn reader(&self, request: ReaderRequest<'_>) -> Result<Box<dyn FormatReader>> {
        let all = schema();
        match request.schema.fields().iter().all(|field| all.fields().iter().any(|other| other == field)) {
            true => Ok(Box::new(MediaReader)),
            false => Err(Error::invalid("these columns do not match those of media files")),
        }
    }

    fn misfit(&self, file: &SourceFile, group: &RowGroup) -> Option<String> {
        let fits = file.groups.len() == 1 && *group == one_row(file.size);
        (!fits).then(|| "a media file is one row of all its bytes".to_owned())
    }

    fn sample(&self, name: &str, numbers: Range<u64>, _options: &OptionValues) -> SampleFile {
        let bytes = format!("the bytes of file {}", numbers.start).into_bytes();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(BinaryArray::from_vec(vec![&bytes])),
            Arc::new(StringArray::from(vec![name])),
            Arc::new(Int64Array::from(vec![bytes.len() as i64])),
            Arc::new(StringArray::from(vec![label(name)])),
        ];
        let rows = RecordBatch::try_new(schema(), columns).expect("they are of these types");
        SampleFile { bytes, rows, damaged: None }
    }
}

/// The columns of every media dataset, except for those that columns of folders replace.
fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("bytes", DataType::Binary, false),
        Field::new("path", DataType::Utf8, false),
        Field::new("size", DataType::Int64, false),
        Field::new("label", DataType::Utf8, true),
    ]))
}

/// The row group of a file of this size.
fn one_row(size: u64) -> RowGroup {
    RowGroup { first_row: 0, rows: 1, bytes: size, offset: 0, length: size, cuts: Cuts::Nowhere }
}

#[derive(Debug)]
struct MediaReader;

impl FormatReader for MediaReader {
    fn read<'a>(&'a self, request: ReadRequest<'a>) -> BoxFuture<'a, Result<Decoded>> {
        async move {
            let names = request.columns.iter().map(|column| request.schema.field(*column).name().as_str());
            request.all_good(read(request.file, names).await?)
        }
        .boxed()
    }
}

/// Reads some columns of a file's row. The file is fetched only for its bytes.
async fn read(file: &PinnedFile, columns: impl Iterator<Item = &str>) -> Result<Vec<ArrayRef>> {
    let mut arrays: Vec<ArrayRef> = Vec::new();
    for column in columns {
        arrays.push(match column {
            "bytes" => Arc::new(bytes(file).await?),
            "path" => Arc::new(StringArray::from(vec![file.relative()])),
            "size" => Arc::new(Int64Array::from(vec![file.size() as i64])),
            _ => Arc::new(StringArray::from(vec![label(file.relative())])),
        });
    }
    Ok(arrays)
}

async fn bytes(file: &PinnedFile) -> Result<BinaryArray> {
    let length = i32::try_from(file.size()).map_err(|_| {
        Error::data(format!("\"{}\" has {} bytes; a row holds at most {}", file.path(), file.size(), i32::MAX))
    })?;
    let bytes = file.get_all().await?;
    let offsets = OffsetBuffer::new(vec![0, length].into());
    // Uses the store's buffer without a copy, because media files are large.
    Ok(BinaryArray::new(offsets, Buffer::from(bytes), None))
}

/// The name of the folder that directly contains the file, as in `train/cat/1.jpg`.
fn label(relative: &str) -> Option<&str> {
    relative.rsplit('/').nth(1)
}
