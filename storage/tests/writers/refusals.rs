//! What a format cannot hold is refused, with what to do in its place.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, DurationSecondArray, FixedSizeListArray, Float64Array, Int64Array, ListArray, RecordBatch,
    StringArray, UInt16Array,
};
use arrow::datatypes::{DataType, Field, Float32Type, Int32Type, Schema, UnionFields, UnionMode};
use forebay_arrays::{BFLOAT16, FixedShapeTensor};
use forebay_storage::writers::OutputFormat;

use crate::support::{format, format_with, refusal};

fn one(name: &str, array: impl arrow::array::Array + 'static) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable([(name, Arc::new(array) as ArrayRef, true)]).unwrap()
}

/// What a format says of columns that it cannot hold.
#[track_caller]
fn check_columns(name: &str, schema: &Schema, message: &str, hint: &str) {
    let (found, found_hint) = refusal(format(name).check(schema));
    assert_eq!(found, message);
    assert!(found_hint.contains(hint), "{found_hint}");
    let (found, _) = refusal(format(name).writer(&Arc::new(schema.clone()), "").map(drop));
    assert_eq!(found, message);
}

/// What a format says of values that it cannot hold. The first four rows of the file are fine.
#[track_caller]
fn check_values(name: &str, fine: &RecordBatch, rows: &RecordBatch, message: &str, hint: &str) {
    let mut writer = format(name).writer(&rows.schema(), "").unwrap();
    (0..4).for_each(|_| writer.write(fine).unwrap());
    let (found, found_hint) = refusal(writer.write(rows));
    assert_eq!(found, message);
    assert!(found_hint.contains(hint), "{found_hint}");
}

#[test]
fn columns_are_refused_with_their_types() {
    let image = one("image", BinaryArray::from(vec![&b"x"[..]])).schema();
    check_columns("csv", &image, "column \"image\" is Binary, which csv files cannot hold", "leave it out");
    check_columns("jsonl", &image, "column \"image\" is Binary, which jsonl files cannot hold", "leave it out");
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1)])]);
    let list = one("tags", list).schema();
    check_columns("csv", &list, "column \"tags\" is List(Int32), which csv files cannot hold", "jsonl");
    let span = one("span", DurationSecondArray::from(vec![1])).schema();
    for name in ["csv", "jsonl"] {
        let message = format!("column \"span\" is Duration(s), which {name} files cannot hold");
        check_columns(name, &span, &message, "cast it to BIGINT");
    }
    let mut tensor = FixedShapeTensor::new(DataType::UInt16, vec![2, 2]);
    tensor.dtype = Some(BFLOAT16.to_owned());
    let tensor = Schema::new(vec![tensor.field("weights", true).unwrap()]);
    for name in ["jsonl", "mds", "webdataset"] {
        let message = format!("column \"weights\" is a tensor of bfloat16, which {name} files cannot hold");
        check_columns(name, &tensor, &message, "cast it to FLOAT");
    }
    let mut tensor = FixedShapeTensor::new(DataType::UInt16, vec![2, 3]);
    tensor.permutation = Some(vec![1, 0]);
    let tensor = Schema::new(vec![tensor.field("turned", true).unwrap()]);
    for name in ["mds", "webdataset"] {
        let message = format!("column \"turned\" is a UInt16 tensor of 2 x 3, which {name} files cannot hold");
        check_columns(name, &tensor, &message, "keep the order of its dimensions");
    }
    let union = UnionFields::from_fields([Field::new("a", DataType::Int32, true)]);
    let union = Schema::new(vec![Field::new("either", DataType::Union(union, UnionMode::Sparse), true)]);
    for name in ["parquet", "arrow", "csv", "jsonl", "mds", "webdataset"] {
        let (message, _) = refusal(format(name).check(&union));
        assert!(message.starts_with("column \"either\" is Union("), "{message}");
        assert!(message.ends_with(&format!(", which {name} files cannot hold")), "{message}");
    }
}

#[test]
fn names_of_columns_are_checked() {
    let schema = |names: &[&str]| {
        Schema::new(names.iter().map(|name| Field::new(*name, DataType::Utf8, true)).collect::<Vec<_>>())
    };
    check_columns("parquet", &schema(&[]), "there are no columns to write", "");
    check_columns("mds", &schema(&["a", "b", "a"]), "two columns are named \"a\"", "column AS name");
    let message = "two columns are named \"a\" but for case, which readers of webdataset ignore";
    check_columns("webdataset", &schema(&["a", "A"]), message, "column AS name");
    check_columns(
        "webdataset",
        &schema(&["a/b"]),
        "\"a/b\" cannot be a part of a webdataset member",
        "without slashes",
    );
    check_columns("webdataset", &schema(&["__key__"]), "a webdataset sample needs a column beside its key", "");
    let number = Schema::new(vec![Field::new("__key__", DataType::Int64, true)]);
    let message = "column \"__key__\" is Int64, which webdataset files cannot hold";
    check_columns("webdataset", &number, message, "cast it to VARCHAR");
}

#[test]
fn nulls_are_refused_where_there_are_none() {
    let fine = one("n", Int64Array::from(vec![1, 2]));
    let rows = one("n", Int64Array::from(vec![Some(1), None]));
    let message = "column \"n\" is null in row 9 of the file, which mds files cannot hold";
    check_values("mds", &fine, &rows, message, "coalesce(column, value)");
    let message = "row 9 of the file has only nulls, and would be no sample";
    check_values("webdataset", &fine, &rows, message, "coalesce(column, value)");
    let list = |values: [Option<f32>; 2]| {
        one("embedding", FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>([Some(values)], 2))
    };
    for name in ["mds", "webdataset"] {
        let message =
            format!("column \"embedding\" has a null element in row 4 of the file, which {name} files cannot hold");
        check_values(name, &list([Some(1.0); 2]), &list([Some(1.0), None]), &message, "coalesce(column, value)");
    }
}

#[test]
fn numbers_that_json_lacks_are_refused() {
    let fine = one("x", Float64Array::from(vec![1.0]));
    let rows = one("x", Float64Array::from(vec![Some(1.0), None, Some(f64::NAN)]));
    for name in ["jsonl", "webdataset"] {
        // The row of only nulls comes first otherwise.
        let rows = if name == "jsonl" { rows.clone() } else { rows.slice(2, 1) };
        let row = if name == "jsonl" { 6 } else { 4 };
        let message = format!(
            "column \"x\" has a number that is infinite or not a number in row {row} of the file, which {name} files \
             cannot hold"
        );
        check_values(name, &fine, &rows, &message, "replace such numbers");
    }
    let list = |value: f32| one("x", ListArray::from_iter_primitive::<Float32Type, _, _>([None, Some([Some(value)])]));
    let message = "column \"x\" has a number that is infinite or not a number in row 9 of the file, which mds files \
                   cannot hold";
    check_values("mds", &list(0.5), &list(f32::INFINITY), message, "replace such numbers");
}

#[test]
fn mds_has_no_empty_arrays() {
    let item = Arc::new(Field::new_list_field(DataType::Int64, false));
    let list = |lengths: [usize; 2]| {
        let values = Int64Array::from(vec![5; lengths.iter().sum()]);
        let offsets = arrow::buffer::OffsetBuffer::from_lengths(lengths);
        one("tokens", ListArray::new(Arc::clone(&item), offsets, Arc::new(values), None))
    };
    let message = "column \"tokens\" is an empty array in row 9 of the file, which mds files cannot hold";
    check_values("mds", &list([1, 2]), &list([1, 0]), message, "filter these rows");
}

#[test]
fn keys_that_readers_would_not_find_are_refused() {
    let rows = |keys: Vec<Option<&str>>| {
        let n = Arc::new(UInt16Array::from(vec![1; keys.len()])) as ArrayRef;
        let keys = Arc::new(StringArray::from(keys)) as ArrayRef;
        RecordBatch::try_from_iter_with_nullable([("__key__", keys, true), ("n", n, true)]).unwrap()
    };
    let check = |keys: Vec<Option<&str>>, message: &str| {
        let rows = rows(keys);
        let mut writer = format("webdataset").writer(&rows.schema(), "").unwrap();
        let (found, hint) = refusal(writer.write(&rows));
        assert_eq!(found, message);
        assert!(hint.contains("key"), "{hint}");
    };
    check(vec![Some("a"), None], "the key of row 1 of the file is null");
    check(vec![Some("a/b.c")], "the key of row 0 of the file, \"a/b.c\", has a period, where readers end keys");
    check(vec![Some("a/")], "the key of row 0 of the file, \"a/\", is empty, or ends with a slash");
    check(vec![Some("../a")], "the key of row 0 of the file, \"../a\", is not a relative path");
    check(vec![Some("__a")], "the key of row 0 of the file, \"__a\", begins with \"__\", as names that readers skip");
    let message = "rows 1 and 2 of the file have the key \"b\", and would be one sample";
    check(vec![Some("a"), Some("b"), Some("b")], message);
    let (message, _) = refusal(format("webdataset").writer(&rows(vec![]).schema(), "a.b").map(drop));
    assert_eq!(message, "keys cannot begin with \"a.b\": such a key has a period, where readers end keys");
}

#[test]
fn options_are_checked() {
    let check = |name: &str, options: &[(&str, &str)], message: &str, hint: &str| {
        let given: Vec<_> = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let (found, found_hint) = refusal(OutputFormat::new(name, &given).map(drop));
        assert_eq!((found.as_str(), found_hint.as_str()), (message, hint));
    };
    check(
        "orc",
        &[],
        "no format \"orc\" can be written",
        "formats to write: parquet, arrow, csv, jsonl, mds, webdataset",
    );
    let message = "\"compression\" must be zstd or snappy or none, got 'gzip'";
    check("parquet", &[("compression", "gzip")], message, "");
    check(
        "csv",
        &[("quote", "'")],
        "csv files have no option \"quote\"",
        "options of csv: compression, has_header, delimiter, null",
    );
    let message = "a csv delimiter must be an ASCII character other than a quote or newline";
    check("csv", &[("delimiter", "\"")], message, "");
    check("csv", &[("null", "a,b")], "\"null\" must be a text without delimiters, quotes and newlines", "");
    assert_eq!(format_with("csv", &[("delimiter", "|")]).extension(), "csv");
}

#[test]
fn other_columns_than_announced_are_an_error() {
    for name in ["parquet", "csv", "mds", "webdataset", "jsonl", "arrow"] {
        let mut writer = format(name).writer(&one("n", Int64Array::from(vec![1])).schema(), "").unwrap();
        let error = writer.write(&one("n", Float64Array::from(vec![1.0]))).unwrap_err();
        assert_eq!(error.kind(), forebay_storage::ErrorKind::Internal, "{name}");
    }
}
