//! Media files: each file is one row.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, Int64Array, StringArray};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use crate::pinned::PinnedFile;
use crate::snapshot::RowGroup;
use crate::{Error, Result};

pub(crate) const EXTENSIONS: &[&str] = &[
    "jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "wav", "flac", "mp3", "ogg", "m4a", "mp4", "mkv",
    "webm", "avi", "mov", "pdf",
];

/// The columns of every media dataset.
pub(crate) fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("bytes", DataType::Binary, false),
        Field::new("path", DataType::Utf8, false),
        Field::new("size", DataType::Int64, false),
        Field::new("label", DataType::Utf8, true),
    ]))
}

pub(crate) fn groups(files: &[PinnedFile]) -> Vec<Vec<RowGroup>> {
    let one_row = |file: &PinnedFile| RowGroup {
        first_row: 0,
        rows: 1,
        bytes: file.size,
        offset: 0,
        length: file.size,
        splittable: false,
    };
    files.iter().map(|file| vec![one_row(file)]).collect()
}

/// Reads some columns of a file's row. The file itself is only fetched for its bytes.
pub(crate) async fn read(file: &PinnedFile, columns: &[usize]) -> Result<Vec<ArrayRef>> {
    let mut arrays: Vec<ArrayRef> = Vec::with_capacity(columns.len());
    for column in columns {
        arrays.push(match column {
            0 => Arc::new(bytes(file).await?),
            1 => Arc::new(StringArray::from(vec![&*file.relative])),
            2 => Arc::new(Int64Array::from(vec![file.size as i64])),
            _ => Arc::new(StringArray::from(vec![label(&file.relative)])),
        });
    }
    Ok(arrays)
}

async fn bytes(file: &PinnedFile) -> Result<BinaryArray> {
    let length = i32::try_from(file.size).map_err(|_| {
        Error::data(format!("\"{}\" has {} bytes; a row holds at most {}", file.display, file.size, i32::MAX))
    })?;
    let bytes = file.get_all().await?;
    let offsets = OffsetBuffer::new(vec![0, length].into());
    // Takes the store's buffer as it is: media is large, and a copy of it is what a loader has no time for.
    Ok(BinaryArray::new(offsets, Buffer::from(bytes), None))
}

/// The name of the folder that directly holds the file, as in `train/cat/1.jpg`.
fn label(relative: &str) -> Option<&str> {
    relative.rsplit('/').nth(1)
}
