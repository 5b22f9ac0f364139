//! Which types each format holds.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch, new_null_array};
use arrow::datatypes::{DataType, Field, Fields, IntervalUnit, Schema, TimeUnit, UnionFields, UnionMode};
use forebay_arrays::{BFLOAT16, FixedShapeTensor, VariableShapeTensor};
use forebay_storage::writers::WRITE_FORMATS;

use crate::support::{format, refusal};

fn list(item: DataType) -> DataType {
    DataType::new_list(item, true)
}

fn map(key: DataType) -> DataType {
    let entries = Fields::from(vec![Field::new("key", key, false), Field::new("value", DataType::Int32, true)]);
    DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entries), false)), false)
}

/// A column of each type.
fn columns() -> Vec<Field> {
    let of = |name: &str, data_type: DataType| Field::new(name, data_type, true);
    let structs = |fields: Vec<Field>| DataType::Struct(fields.into());
    let fixed = |value, shape: &[usize]| FixedShapeTensor::new(value, shape.to_vec());
    let ragged = |value, rank| VariableShapeTensor::new(value, rank);
    let bfloat16 = FixedShapeTensor { dtype: Some(BFLOAT16.to_owned()), ..fixed(DataType::UInt16, &[2]) };
    let turned = FixedShapeTensor { permutation: Some(vec![1, 0]), ..fixed(DataType::Int8, &[2, 3]) };
    let union = UnionFields::from_fields([Field::new("a", DataType::Int32, true)]);
    vec![
        of("null", DataType::Null),
        of("boolean", DataType::Boolean),
        of("integer", DataType::UInt64),
        of("half", DataType::Float16),
        of("float", DataType::Float64),
        of("decimal", DataType::Decimal256(50, 3)),
        of("text", DataType::Utf8View),
        of("category", DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))),
        of("bytes", DataType::Binary),
        of("fixed bytes", DataType::FixedSizeBinary(16)),
        of("date", DataType::Date32),
        of("time", DataType::Time64(TimeUnit::Nanosecond)),
        of("timestamp", DataType::Timestamp(TimeUnit::Second, Some("Europe/Berlin".into()))),
        of("duration", DataType::Duration(TimeUnit::Millisecond)),
        of("months", DataType::Interval(IntervalUnit::YearMonth)),
        of("months and days", DataType::Interval(IntervalUnit::MonthDayNano)),
        of("list", list(DataType::Int32)),
        of("list of bytes", list(DataType::Binary)),
        of("fixed list", DataType::new_fixed_size_list(DataType::Float32, 4, false)),
        of("struct", structs(vec![of("a", list(DataType::Utf8))])),
        of("struct of durations", structs(vec![of("a", DataType::Duration(TimeUnit::Second))])),
        of("struct without fields", structs(vec![])),
        of("map", map(DataType::Utf8)),
        of("map of numbers", map(DataType::Int32)),
        fixed(DataType::UInt8, &[2, 3]).field("tensor", true).unwrap(),
        fixed(DataType::Float32, &[]).field("scalar tensor", true).unwrap(),
        turned.field("turned tensor", true).unwrap(),
        bfloat16.field("bfloat16 tensor", true).unwrap(),
        ragged(DataType::Int64, 2).field("ragged tensor", true),
        ragged(DataType::Int64, 64).field("ragged tensor of 64 sides", true),
        of("union", DataType::Union(union, UnionMode::Sparse)),
    ]
}

#[test]
fn each_format_holds_these_types() {
    let mut table = String::new();
    for column in columns() {
        let mut held = Vec::new();
        for written in WRITE_FORMATS {
            let name = written.descriptor().name;
            let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false), column.clone()]));
            let format = format(name);
            match format.check(&schema) {
                Ok(()) => {
                    // What passes the check can be written.
                    let mut writer = format.writer(&schema, "").unwrap();
                    let mut rows = RecordBatch::new_empty(Arc::clone(&schema));
                    // Others have no nulls, or no rows of only nulls.
                    if !matches!(name, "mds" | "webdataset") {
                        let id = Arc::new(Int64Array::from(vec![1]));
                        rows = RecordBatch::try_new(schema, vec![id, new_null_array(column.data_type(), 1)]).unwrap();
                    }
                    writer.write(&rows).unwrap();
                    writer.finish().unwrap();
                    held.push(name);
                }
                refused => {
                    let (message, hint) = refusal(refused);
                    assert!(message.starts_with(&format!("column \"{}\" is ", column.name())), "{message}");
                    assert!(message.ends_with(&format!(", which {name} files cannot hold")), "{message}");
                    assert!(!hint.is_empty(), "{message}");
                }
            }
        }
        writeln!(table, "{}: {}", column.name(), held.join(" ")).unwrap();
    }
    assert!(table.trim_end() == EXPECTED, "{table}");
}

const EXPECTED: &str = "\
null: parquet arrow csv jsonl mds webdataset
boolean: parquet arrow csv jsonl mds webdataset
integer: parquet arrow csv jsonl mds webdataset
half: parquet arrow csv jsonl mds webdataset
float: parquet arrow csv jsonl mds webdataset
decimal: parquet arrow csv jsonl mds webdataset
text: parquet arrow csv jsonl mds webdataset
category: parquet arrow csv jsonl mds webdataset
bytes: parquet arrow mds webdataset
fixed bytes: parquet arrow mds webdataset
date: parquet arrow csv jsonl mds webdataset
time: parquet arrow csv jsonl mds webdataset
timestamp: parquet arrow csv jsonl mds webdataset
duration: parquet arrow mds webdataset
months: parquet arrow mds webdataset
months and days: arrow mds webdataset
list: parquet arrow jsonl mds webdataset
list of bytes: parquet arrow
fixed list: parquet arrow jsonl mds webdataset
struct: parquet arrow jsonl mds webdataset
struct of durations: parquet arrow
struct without fields: arrow jsonl mds webdataset
map: parquet arrow jsonl mds webdataset
map of numbers: parquet arrow
tensor: parquet arrow jsonl mds webdataset
scalar tensor: parquet arrow jsonl webdataset
turned tensor: parquet arrow jsonl
bfloat16 tensor: parquet arrow
ragged tensor: parquet arrow jsonl mds webdataset
ragged tensor of 64 sides: parquet arrow jsonl
union:";
