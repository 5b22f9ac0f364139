//! Writes the corpora that no one can write by hand: `cargo run -p forebay-fuzz --bin fuzz-seeds`, in `fuzz/`.
//!
//! The other corpora are small texts, and the photographs of `jpeg/testdata`.

use std::fs;
use std::io::Result;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, DictionaryArray, FixedSizeListArray, Float64Array, Int64Array, ListArray, RecordBatch,
    StringArray, StringViewArray, StructArray, UInt8Array,
};
use arrow::datatypes::{DataType, Field, Int32Type};
use arrow::error::ArrowError;
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};

fn main() -> Result<()> {
    for (name, batch) in batches() {
        let file = stream(&batch).map_err(std::io::Error::other)?;
        fs::write(format!("corpus/stream/{name}"), file)?;
        for (kind, file) in parquet_file::files(&batch).map_err(std::io::Error::other)? {
            fs::write(format!("corpus/footer/{name}-{kind}"), file)?;
        }
    }
    Ok(())
}

/// Batches of every kind of column that a feed delivers.
fn batches() -> [(&'static str, RecordBatch); 4] {
    let named = |columns: Vec<(&str, ArrayRef)>| {
        let columns = columns.into_iter().map(|(name, column)| (name, column, true));
        RecordBatch::try_from_iter_with_nullable(columns).expect("columns have equal lengths")
    };
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1), None]), None, Some([Some(3), None])]);
    let bytes: ArrayRef = Arc::new(UInt8Array::from_iter_values(0..6));
    let tensors = FixedSizeListArray::new(Arc::new(Field::new("item", DataType::UInt8, true)), 2, bytes, None);
    let strings: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("ä")]));
    let structs = StructArray::from(vec![(Arc::new(Field::new("s", DataType::Utf8, true)), Arc::clone(&strings))]);
    let words: DictionaryArray<Int32Type> = ["x", "y", "x"].into_iter().collect();
    let views = StringViewArray::from(vec![Some("short"), Some("a text of more than twelve bytes"), None]);
    [
        (
            "numbers",
            named(vec![
                ("i", Arc::new(Int64Array::from(vec![Some(1), None, Some(-3)]))),
                ("x", Arc::new(Float64Array::from(vec![0.5, f64::NAN, 1e300]))),
                ("b", Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]))),
            ]),
        ),
        ("texts", named(vec![("s", strings), ("v", Arc::new(views))])),
        (
            "nested",
            named(vec![("list", Arc::new(list)), ("tensors", Arc::new(tensors)), ("structs", Arc::new(structs))]),
        ),
        ("words", named(vec![("w", Arc::new(words))])),
    ]
}

/// The body of an answer with a schema and a batch, twice, after the byte that says how it is cut.
fn stream(batch: &RecordBatch) -> std::result::Result<Vec<u8>, ArrowError> {
    let options = IpcWriteOptions::default();
    let generator = IpcDataGenerator::default();
    let mut dictionaries = DictionaryTracker::new(true);
    let schema = generator.schema_to_bytes_with_dictionary_tracker(&batch.schema(), &mut dictionaries, &options);
    let (words, rows) = generator.encode(batch, &mut dictionaries, &options, &mut IpcWriteContext::default())?;
    let mut body = vec![2];
    for part in [&schema].into_iter().chain(&words).chain([&rows, &rows]) {
        let mut message = field(2, &part.ipc_message);
        message.extend(field(3, br#"{"rows":[0,3]}"#));
        message.extend(field(1000, &part.arrow_data));
        body.push(0);
        body.extend(u32::try_from(message.len()).expect("a small message").to_be_bytes());
        body.extend(message);
    }
    Ok(body)
}

/// A field of a message of protobuf.
fn field(number: u64, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for mut varint in [number << 3 | 2, value.len() as u64] {
        while varint >= 0x80 {
            bytes.push(varint as u8 | 0x80);
            varint >>= 7;
        }
        bytes.push(varint as u8);
    }
    bytes.extend_from_slice(value);
    bytes
}

mod parquet_file {
    use arrow::array::RecordBatch;
    use parquet::arrow::ArrowWriter;
    use parquet::basic::{Compression, ZstdLevel};
    use parquet::errors::ParquetError;
    use parquet::file::properties::{WriterProperties, WriterVersion};

    /// The batch as Parquet files of several kinds.
    pub(super) fn files(batch: &RecordBatch) -> Result<Vec<(&'static str, Vec<u8>)>, ParquetError> {
        let plain = WriterProperties::builder().set_dictionary_enabled(false);
        let groups = WriterProperties::builder().set_max_row_group_row_count(Some(2));
        let pages = WriterProperties::builder().set_writer_version(WriterVersion::PARQUET_2_0);
        let pages = pages.set_data_page_row_count_limit(1).set_write_batch_size(1);
        let zstd = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default()));
        let snappy = WriterProperties::builder().set_compression(Compression::SNAPPY);
        let kinds = [("plain", plain), ("groups", groups), ("pages", pages), ("zstd", zstd), ("snappy", snappy)];
        let write = |properties: WriterProperties| -> Result<Vec<u8>, ParquetError> {
            let mut file = Vec::new();
            let mut writer = ArrowWriter::try_new(&mut file, batch.schema(), Some(properties))?;
            writer.write(batch)?;
            writer.close()?;
            Ok(file)
        };
        kinds.into_iter().map(|(name, properties)| Ok((name, write(properties.build())?))).collect()
    }
}
