//! Arrow IPC files, which readers can map into memory.

use arrow::datatypes::{DataType, Schema};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter as IpcWriter, IpcWriteOptions};
use bytes::Bytes;

use super::canonical::canonical_rows;
use super::chunks::{ChunkEnd, Chunks};
use super::compressed::{COMPRESSION, ZSTD_LEVEL, compression};
use super::format::{FileWriter, NewFile, WriteDescriptor, WriteFormat, unwritable};
use super::plain::Plain;
use super::refusals::refuse;
use crate::Result;
use crate::formats::OptionValues;
use arrow::array::RecordBatch;

/// Rows and bytes of a record batch. It is what a reader without a memory map reads at a time.
const BATCH: ChunkEnd = ChunkEnd { rows: 64 << 10, bytes: 16 << 20 };

static DESCRIPTOR: WriteDescriptor = WriteDescriptor {
    name: "arrow",
    aliases: &["ipc", "feather"],
    summary: "Arrow IPC files, which readers map into memory",
    extension: "arrow",
    options: &[compression(&["none", "zstd", "lz4"], "none")],
    columns: "Types are kept, and tensors stay tensors. Dictionaries and views become plain values.",
    may_be_partitioned: true,
    nulls: "Nulls are kept.",
    refused: "unions",
};

/// Arrow IPC files.
#[derive(Debug)]
pub(crate) struct Arrow;

impl WriteFormat for Arrow {
    fn descriptor(&self) -> &'static WriteDescriptor {
        &DESCRIPTOR
    }

    fn check(&self, schema: &Schema, _options: &OptionValues) -> Result<()> {
        refuse(DESCRIPTOR.name, schema, |field| match field.data_type() {
            DataType::Union(_, _) => Some("make a column of each of its types"),
            _ => None,
        })
    }

    fn writer(&self, file: &NewFile<'_>, options: &OptionValues) -> Result<Box<dyn FileWriter>> {
        let (compression, level) = match options.text(COMPRESSION) {
            "zstd" => (Some(CompressionType::ZSTD), Some(ZSTD_LEVEL)),
            "lz4" => (Some(CompressionType::LZ4_FRAME), None),
            _ => (None, None),
        };
        let chunks = Chunks::new(Plain::new(file.schema));
        // Aligned to 64 bytes, so that mapped arrays can be used as they are.
        let ipc = IpcWriteOptions::default()
            .try_with_compression(compression)
            .and_then(|options| options.try_with_compression_level(level))
            .and_then(|options| IpcWriter::try_new_with_options(Vec::new(), chunks.schema(), options))
            .map_err(|error| unwritable(DESCRIPTOR.name, error))?;
        Ok(Box::new(ArrowWriter { chunks, ipc, taken: 0 }))
    }
}

struct ArrowWriter {
    chunks: Chunks,
    ipc: IpcWriter<Vec<u8>>,
    taken: u64,
}

impl FileWriter for ArrowWriter {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        self.chunks.push(rows)?;
        while let Some(chunk) = self.chunks.next(BATCH)? {
            self.encode(&chunk.rows)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        while let Some(chunk) = self.chunks.last(BATCH)? {
            self.encode(&chunk.rows)?;
        }
        self.ipc.finish().map_err(|error| unwritable(DESCRIPTOR.name, error))
    }

    fn take(&mut self) -> Result<Option<Bytes>> {
        let bytes = std::mem::take(self.ipc.get_mut());
        self.taken += bytes.len() as u64;
        Ok((!bytes.is_empty()).then(|| bytes.into()))
    }

    fn bytes(&self) -> u64 {
        self.taken + self.ipc.get_ref().len() as u64
    }
}

impl ArrowWriter {
    fn encode(&mut self, rows: &RecordBatch) -> Result<()> {
        self.ipc.write(&canonical_rows(rows)?).map_err(|error| unwritable(DESCRIPTOR.name, error))
    }
}
