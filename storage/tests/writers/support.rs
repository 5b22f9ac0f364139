//! Encoding and decoding of whole files.

use std::io::{Cursor, Read};
use std::sync::Arc;

use arrow::array::{
    ArrayData, ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, FixedSizeListArray, Int32Array, ListArray,
    RecordBatch, StringArray, StructArray, make_array, new_empty_array,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use forebay_storage::writers::OutputFormat;
use forebay_storage::{Dataset, DatasetSpec, PathColumns, Stores, TableFormat};
use serde_json::Value;

/// A format with the defaults of its options.
pub(crate) fn format(name: &str) -> OutputFormat {
    format_with(name, &[])
}

pub(crate) fn format_with(name: &str, options: &[(&str, &str)]) -> OutputFormat {
    let given: Vec<_> = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    OutputFormat::new(name, &given).unwrap()
}

/// A file with its facts.
pub(crate) struct Encoded {
    pub(crate) bytes: Vec<u8>,
    pub(crate) facts: Value,
}

/// A file of these batches. Without any, it has the columns of its format's test rows.
pub(crate) fn encoded(format: &OutputFormat, batches: &[RecordBatch]) -> Encoded {
    let schema = match batches.first() {
        Some(batch) => batch.schema(),
        None => crate::of_format(format.descriptor().name, 0..1).schema(),
    };
    let mut writer = format.writer(&schema, "shard-").unwrap();
    let mut bytes = Vec::new();
    for batch in batches {
        writer.write(batch).unwrap();
        while let Some(piece) = writer.take().unwrap() {
            assert!(!piece.is_empty());
            bytes.extend(piece);
        }
    }
    writer.finish().unwrap();
    while let Some(piece) = writer.take().unwrap() {
        bytes.extend(piece);
    }
    assert!(writer.take().unwrap().is_none());
    Encoded { bytes, facts: writer.facts() }
}

/// The rows in batches of so many.
pub(crate) fn parts(rows: &RecordBatch, rows_of_part: usize) -> Vec<RecordBatch> {
    let begins = (0..rows.num_rows()).step_by(rows_of_part);
    begins.map(|at| rows.slice(at, rows_of_part.min(rows.num_rows() - at))).collect()
}

/// The message and the hint of a refusal.
pub(crate) fn refusal<T>(result: forebay_storage::Result<T>) -> (String, String) {
    let error = result.err().expect("a refusal");
    assert_eq!(error.kind(), forebay_storage::ErrorKind::Invalid);
    (error.to_string(), error.hint().unwrap_or_default().to_owned())
}

/// The rows of a file, read with what reads such files elsewhere, in the columns of `like`.
pub(crate) fn decoded(format: &OutputFormat, file: &Encoded, like: &RecordBatch) -> RecordBatch {
    let bytes = decompressed(format.extension(), &file.bytes);
    match format.descriptor().name {
        "arrow" => read_arrow(&bytes),
        "mds" => crate::mds::read(&bytes, &like.schema()),
        "webdataset" => crate::webdataset::read(&bytes, &like.schema()),
        "parquet" => read_dataset("parquet", bytes, None),
        name => read_dataset(name, bytes, Some(declared(&like.schema()))),
    }
}

pub(crate) fn decompressed(extension: &str, bytes: &[u8]) -> Vec<u8> {
    match extension.rsplit('.').next().unwrap() {
        "gz" => {
            let mut plain = Vec::new();
            flate2::read::GzDecoder::new(bytes).read_to_end(&mut plain).unwrap();
            plain
        }
        "zst" | "zstd" => zstd::stream::decode_all(bytes).unwrap(),
        _ => bytes.to_vec(),
    }
}

fn read_arrow(bytes: &[u8]) -> RecordBatch {
    let reader = arrow_ipc::reader::FileReader::try_new(Cursor::new(bytes), None).unwrap();
    let schema = reader.schema();
    concat_batches(&schema, &reader.map(Result::unwrap).collect::<Vec<_>>()).unwrap()
}

/// The columns without metadata, as a table declares them.
fn declared(schema: &Schema) -> SchemaRef {
    let field = |field: &Arc<Field>| field.as_ref().clone().with_metadata(Default::default());
    Arc::new(Schema::new(schema.fields().iter().map(field).collect::<Vec<_>>()))
}

/// The rows as a feed reads them.
pub(crate) fn read_dataset(name: &str, bytes: Vec<u8>, schema: Option<SchemaRef>) -> RecordBatch {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stores = Stores::new();
        let location = format!("memory:///written/file.{name}");
        stores.put(&location, bytes.into()).await.unwrap();
        let format = TableFormat::named(name).unwrap();
        let spec = DatasetSpec { location, format, schema, path_columns: PathColumns::Inferred, path_column: None };
        let dataset = Dataset::open(&stores, &spec).await.unwrap();
        let columns: Vec<usize> = (0..dataset.schema().fields().len()).collect();
        let mut batches = Vec::new();
        for range in dataset.row_ranges(1 << 20) {
            let rows = dataset.read(&range, &columns).await.unwrap();
            assert_eq!(rows.bad, []);
            batches.push(rows.batch);
        }
        concat_batches(dataset.schema(), &batches).unwrap()
    })
}

/// The column of these encoded values, whose arrays have these sides if their shapes vary.
pub(crate) fn array_of(field: &Arc<Field>, is_json: bool, cells: &[Option<Vec<u8>>], sides: &[Vec<u64>]) -> ArrayRef {
    let data_type = field.data_type();
    if cells.is_empty() {
        return new_empty_array(data_type);
    }
    if is_json {
        let schema = Arc::new(Schema::new(vec![field.as_ref().clone().with_nullable(true)]));
        let line = |cell: &Option<Vec<u8>>| match cell {
            Some(cell) => format!("{{\"{}\":{}}}\n", field.name(), std::str::from_utf8(cell).unwrap()),
            None => "{}\n".to_owned(),
        };
        let text: String = cells.iter().map(line).collect();
        let mut decoder = arrow_json::ReaderBuilder::new(schema).with_batch_size(1 << 20).build_decoder().unwrap();
        assert_eq!(decoder.decode(text.as_bytes()).unwrap(), text.len());
        return Arc::clone(decoder.flush().unwrap().unwrap().column(0));
    }
    let all: Vec<u8> = cells.iter().flatten().flatten().copied().collect();
    let numbers = |data_type: &DataType| {
        let len = all.len() / data_type.primitive_width().unwrap();
        make_array(ArrayData::builder(data_type.clone()).len(len).add_buffer(all.as_slice().into()).build().unwrap())
    };
    let lengths = |width: usize| OffsetBuffer::from_lengths(cells.iter().flatten().map(|cell| cell.len() / width));
    match data_type {
        DataType::FixedSizeList(item, size) => {
            let values = numbers(item.data_type());
            Arc::new(FixedSizeListArray::new(Arc::clone(item), *size, values, None))
        }
        DataType::List(item) => {
            let width = item.data_type().primitive_width().unwrap();
            let lengths = lengths(width);
            assert!(
                sides
                    .iter()
                    .zip(cells)
                    .all(|(sides, cell)| sides == &[cell.as_ref().unwrap().len() as u64 / width as u64])
            );
            Arc::new(ListArray::new(Arc::clone(item), lengths, numbers(item.data_type()), None))
        }
        DataType::Struct(fields) => {
            let (DataType::List(item), DataType::FixedSizeList(side, rank)) =
                (fields[0].data_type(), fields[1].data_type())
            else {
                panic!("{data_type} is no tensor")
            };
            let width = item.data_type().primitive_width().unwrap();
            let data = ListArray::new(Arc::clone(item), lengths(width), numbers(item.data_type()), None);
            let sides = Int32Array::from_iter_values(sides.iter().flatten().map(|side| *side as i32));
            let shape = FixedSizeListArray::new(Arc::clone(side), *rank, Arc::new(sides), None);
            Arc::new(StructArray::new(fields.clone(), vec![Arc::new(data), Arc::new(shape)], None))
        }
        DataType::Boolean => {
            Arc::new(cells.iter().map(|cell| cell.as_ref().map(|cell| cell[0] == 1)).collect::<BooleanArray>())
        }
        DataType::Binary => Arc::new(BinaryArray::from_iter(cells.iter().map(Option::as_ref))),
        DataType::FixedSizeBinary(size) => Arc::new(
            FixedSizeBinaryArray::try_from_sparse_iter_with_size(cells.iter().map(Option::as_ref), *size).unwrap(),
        ),
        other if other.is_numeric() && !other.is_decimal() => numbers(other),
        other => {
            let texts = cells.iter().map(|cell| cell.as_ref().map(|cell| std::str::from_utf8(cell).unwrap()));
            cast(&texts.collect::<StringArray>(), other).unwrap()
        }
    }
}
