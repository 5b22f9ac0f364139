//! Shards of mosaicml-streaming, read as its `MDSReader` does.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use forebay_storage::writers::DataFile;
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use crate::rows::without_nulls;
use crate::support::{array_of, decompressed, encoded, format, format_with};

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

/// The columns of a shard and the values of its samples.
struct Shard {
    config: Value,
    samples: Vec<Vec<Vec<u8>>>,
}

fn shard(bytes: &[u8]) -> Shard {
    let samples = u32_at(bytes, 0);
    let offset = |sample: usize| u32_at(bytes, 4 + 4 * sample);
    let config: Value = serde_json::from_slice(&bytes[8 + 4 * samples..offset(0)]).unwrap();
    assert_eq!(offset(samples), bytes.len());
    let sizes: Vec<Option<u64>> = serde_json::from_value(config["column_sizes"].clone()).unwrap();
    let sample = |sample: usize| {
        let bytes = &bytes[offset(sample)..offset(sample + 1)];
        let mut at = 0;
        let mut size = |fixed: &Option<u64>| match fixed {
            Some(size) => *size as usize,
            None => {
                at += 4;
                u32_at(bytes, at - 4)
            }
        };
        let sizes: Vec<usize> = sizes.iter().map(&mut size).collect();
        let values = sizes.iter().map(|size| {
            at += size;
            bytes[at - size..at].to_vec()
        });
        let values = values.collect();
        assert_eq!(at, bytes.len());
        values
    };
    Shard { samples: (0..samples).map(sample).collect(), config }
}

/// The sides and the values of an array whose shape varies.
fn array(bytes: &[u8]) -> (Vec<u64>, Vec<u8>) {
    let (rank, side_bytes) = (usize::from(bytes[0] >> 2), 1 << (bytes[0] & 3));
    let (sides, values) = bytes[1..].split_at(rank * side_bytes);
    let side = |side: &[u8]| side.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    (sides.chunks(side_bytes).map(side).collect(), values.to_vec())
}

/// The rows of a shard, with these columns.
pub(crate) fn read(bytes: &[u8], schema: &Schema) -> RecordBatch {
    let Shard { config, samples } = shard(bytes);
    let names: Vec<String> = serde_json::from_value(config["column_names"].clone()).unwrap();
    let encodings: Vec<String> = serde_json::from_value(config["column_encodings"].clone()).unwrap();
    let column = |field: &Arc<Field>| {
        let at = names.iter().position(|name| name == field.name()).unwrap();
        let cells: Vec<_> = samples.iter().map(|sample| Some(sample[at].clone())).collect();
        let encoding = encodings[at].as_str();
        let varies = encoding.starts_with("ndarray:") && encoding.matches(':').count() == 1;
        let (sides, cells): (Vec<_>, Vec<_>) = match varies {
            true => cells.iter().flatten().map(|cell| array(cell)).map(|(sides, values)| (sides, Some(values))).unzip(),
            false => (Vec::new(), cells),
        };
        array_of(field, encoding == "json", &cells, &sides)
    };
    let columns = schema.fields().iter().map(column).collect();
    RecordBatch::try_new(Arc::new(schema.clone()), columns).unwrap()
}

#[test]
fn columns_have_the_encodings_of_mosaicml_streaming() {
    let config = shard(&encoded(&format("mds"), &[without_nulls(0..2)]).bytes).config;
    let names = config["column_names"].as_array().unwrap();
    assert!(names.is_sorted_by(|one, other| one.as_str() < other.as_str()), "{names:?}");
    let encodings: BTreeMap<_, _> = names
        .iter()
        .zip(config["column_encodings"].as_array().unwrap())
        .map(|(n, e)| (n.as_str().unwrap(), e))
        .collect();
    let expected = json!({
        "bool": "uint8", "category": "str", "clock": "str", "day": "str", "embedding": "ndarray:float32:2",
        "f32": "float32", "f64": "float64", "fixed": "bytes", "half": "float16", "i64": "int64", "i8": "int8",
        "image": "bytes", "instant": "str", "large": "str", "list": "json", "matrix": "ndarray:float32:2,3",
        "price": "str_decimal", "ragged": "ndarray:uint8", "struct": "json", "text": "str", "time": "str",
        "tokens": "ndarray:int64", "u32": "uint32", "u64": "uint64",
    });
    assert_eq!(json!(encodings), expected);
    let sizes = config["column_sizes"].as_array().unwrap();
    assert_eq!(sizes[names.iter().position(|name| name == "matrix").unwrap()], json!(24));
    assert_eq!(config["version"], 2);
}

#[test]
fn a_shard_has_the_bytes_of_its_own_writer() {
    let fields = vec![Field::new("text", DataType::Utf8, true), Field::new("n", DataType::Int64, true)];
    let text = StringArray::from(vec!["ab", "é"]);
    let columns: Vec<ArrayRef> = vec![Arc::new(text), Arc::new(Int64Array::from(vec![1, -2]))];
    let rows = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
    let config = "{\"column_encodings\": [\"int64\", \"str\"], \"column_names\": [\"n\", \"text\"], \
                  \"column_sizes\": [8, null], \"compression\": null, \"format\": \"mds\", \"hashes\": [\"xxh3_64\"], \
                  \"size_limit\": null, \"version\": 2}";
    let head = 4 * 4 + config.len() as u32;
    let mut expected = Vec::new();
    [2, head, head + 14, head + 28].iter().for_each(|n: &u32| expected.extend(n.to_le_bytes()));
    expected.extend(config.as_bytes());
    for (n, text) in [(1_i64, "ab"), (-2, "é")] {
        expected.extend(2_u32.to_le_bytes());
        expected.extend(n.to_le_bytes());
        expected.extend(text.as_bytes());
    }
    let found = encoded(&format("mds"), &[rows]).bytes;
    assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(&expected));
}

#[test]
fn the_index_lists_shards_with_their_digests() {
    let rows = without_nulls(0..100);
    for compression in ["none", "zstd"] {
        let format = format_with("mds", &[("compression", compression)]);
        let extension = format.extension();
        let shards = [rows.slice(0, 60), rows.slice(0, 0), rows.slice(60, 40)];
        let files: Vec<_> = shards.iter().map(|rows| encoded(&format, std::slice::from_ref(rows))).collect();
        let written: Vec<DataFile> = files
            .iter()
            .zip(&shards)
            .enumerate()
            .map(|(at, (file, rows))| DataFile {
                name: format!("shard.{at:05}.{extension}"),
                rows: rows.num_rows() as u64,
                facts: file.facts.clone(),
            })
            .collect();
        let index = format.index(&written).unwrap();
        assert_eq!(index.len(), 1);
        assert_eq!(index[0].name, "index.json");
        let index: Value = serde_json::from_slice(&index[0].bytes).unwrap();
        assert_eq!(index["version"], 2);
        let listed = index["shards"].as_array().unwrap();
        // A shard without samples is not listed.
        assert_eq!(listed.len(), 2);
        for (shard, at) in listed.iter().zip([0, 2]) {
            let info = |bytes: &[u8], name: &str| {
                let digest = format!("{:016x}", xxh3_64(bytes));
                json!({"basename": name, "bytes": bytes.len(), "hashes": {"xxh3_64": digest}})
            };
            let raw = decompressed(extension, &files[at].bytes);
            assert_eq!(shard["raw_data"], info(&raw, &format!("shard.{at:05}.mds")));
            let zip = info(&files[at].bytes, &format!("shard.{at:05}.mds.zstd"));
            assert_eq!(shard["zip_data"], if compression == "zstd" { zip } else { Value::Null });
            assert_eq!(shard["samples"], shards[at].num_rows());
            assert_eq!(shard["compression"], if compression == "zstd" { json!("zstd") } else { Value::Null });
            assert_eq!(shard["format"], "mds");
            assert_eq!(shard["size_limit"], Value::Null);
            assert_eq!(shard["column_names"].as_array().unwrap().len(), rows.num_columns());
        }
    }
    let two = RecordBatch::try_from_iter([("é", Arc::new(Int64Array::from(vec![7, 8])) as ArrayRef)]).unwrap();
    let facts = encoded(&format("mds"), &[two]).facts;
    let files = [DataFile { name: "shard.00000.mds".to_owned(), rows: 2, facts }];
    let index = format("mds").index(&files).unwrap();
    // What MDSWriter 0.13.0 of mosaicml-streaming writes with these rows, `size_limit=None` and `hashes=["xxh3_64"]`.
    let expected = "{\"shards\": [{\"column_encodings\": [\"int64\"], \"column_names\": [\"\\u00e9\"], \
                    \"column_sizes\": [8], \"compression\": null, \"format\": \"mds\", \
                    \"hashes\": [\"xxh3_64\"], \"raw_data\": {\"basename\": \"shard.00000.mds\", \
                    \"bytes\": 207, \"hashes\": {\"xxh3_64\": \"522d5e1df8a5221b\"}}, \"samples\": 2, \
                    \"size_limit\": null, \"version\": 2, \"zip_data\": null}], \"version\": 2}";
    assert_eq!(String::from_utf8_lossy(&index[0].bytes), expected);
    assert_eq!(*format("mds").index(&[]).unwrap()[0].bytes, *b"{\"shards\": [], \"version\": 2}");
    let other = DataFile { name: "a.mds".to_owned(), rows: 1, facts: json!({"rows": 1}) };
    let error = format("mds").index(&[other]).unwrap_err();
    assert!(error.to_string().starts_with("\"a.mds\" is no shard of mds: "), "{error}");
    assert_eq!(format("parquet").index(&[]).unwrap(), []);
}

/// Samples beyond the memory of the spool come from its temporary file.
#[test]
fn large_shards_are_spooled() {
    let rows = crate::rows::noise(30 << 20, 0);
    let file = encoded(&format("mds"), &crate::support::parts(&rows, 1000));
    assert_eq!(read(&file.bytes, &rows.schema()), rows);
}
