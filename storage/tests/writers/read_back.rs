//! Rows come back from written files.

use std::io::Cursor;
use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Schema};
use forebay_arrays::TensorType;
use parquet::basic::Encoding;
use parquet::file::metadata::ParquetMetaDataReader;

use crate::rows::{every_scalar, scalars, uneven, unusual};
use crate::support::{decoded, encoded, format, format_with, parts, read_dataset};

/// The rows with plain values in the place of dictionaries and views.
fn plain(rows: &RecordBatch) -> RecordBatch {
    let columns = rows.columns().iter().map(|column| match column.data_type() {
        DataType::Dictionary(_, value) => cast(column, value).unwrap(),
        DataType::Utf8View => cast(column, &DataType::Utf8).unwrap(),
        _ => Arc::clone(column),
    });
    let columns: Vec<ArrayRef> = columns.collect();
    let fields = rows
        .schema()
        .fields()
        .iter()
        .zip(&columns)
        .map(|(field, column)| field.as_ref().clone().with_data_type(column.data_type().clone()))
        .collect::<Vec<_>>();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

#[test]
fn every_format_gives_its_rows_back() {
    for (format, rows) in crate::all() {
        let rows = plain(&rows);
        let read = decoded(&format, &encoded(&format, &parts(&rows, 100)), &rows);
        assert_eq!(read.num_rows(), rows.num_rows(), "{format:?}");
        for (field, expected) in rows.schema().fields().iter().zip(rows.columns()) {
            let found = read.column_by_name(field.name()).unwrap_or_else(|| panic!("{format:?} has no {field}"));
            assert_eq!(found, expected, "{format:?} {}", field.name());
        }
    }
}

/// Reads all types that a format holds, in other batches than they were written.
#[test]
fn unusual_types_come_back() {
    let with_plain_types = |rows: &RecordBatch| {
        let columns = rows.columns().iter().map(|column| match column.data_type() {
            DataType::ListView(item) => cast(column, &DataType::List(Arc::clone(item))).unwrap(),
            DataType::RunEndEncoded(_, values) => cast(column, values.data_type()).unwrap(),
            DataType::BinaryView => cast(column, &DataType::Binary).unwrap(),
            _ => Arc::clone(column),
        });
        columns.collect::<Vec<_>>()
    };
    for (name, rows) in [
        ("parquet", unusual(0..200)),
        ("arrow", unusual(0..200)),
        ("csv", every_scalar(0..200)),
        ("jsonl", every_scalar(0..200)),
        ("mds", without_null_rows(&every_scalar(0..200))),
        ("webdataset", without_null_rows(&every_scalar(0..200))),
    ] {
        let format = format(name);
        let file = encoded(&format, &[rows.slice(0, 150), rows.slice(150, 0), rows.slice(150, rows.num_rows() - 150)]);
        assert!(encoded(&format, std::slice::from_ref(&rows)).bytes == file.bytes, "{name}");
        let read = decoded(&format, &file, &rows);
        for (field, expected) in rows.schema().fields().iter().zip(with_plain_types(&rows)) {
            let found = read.column_by_name(field.name()).unwrap_or_else(|| panic!("{name} has no {field}"));
            assert_eq!(found, &expected, "{name} {}", field.name());
        }
    }
}

/// The rows that have no nulls.
fn without_null_rows(rows: &RecordBatch) -> RecordBatch {
    let valid = arrow::compute::is_not_null(rows.column(0)).unwrap();
    arrow::compute::filter_record_batch(rows, &valid).unwrap()
}

#[test]
fn tensors_and_metadata_come_back() {
    let rows = plain(&crate::of_format("parquet", 0..10));
    for name in ["parquet", "arrow"] {
        let read = decoded(&format(name), &encoded(&format(name), std::slice::from_ref(&rows)), &rows);
        assert_eq!(read.schema().fields(), rows.schema().fields(), "{name}");
        let is_tensor = |name: &str| TensorType::of(read.schema().field_with_name(name).unwrap()).is_some();
        assert!(is_tensor("matrix") && is_tensor("ragged"), "{name}");
    }
}

#[test]
fn large_files_come_back_in_several_row_groups() {
    let rows = uneven(12_000);
    let file = encoded(&format("parquet"), &parts(&rows, 700));
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&bytes::Bytes::from(file.bytes.clone())).unwrap();
    let groups: Vec<i64> = metadata.row_groups().iter().map(|group| group.num_rows()).collect();
    assert!(groups.len() == 2, "{groups:?}");
    assert_eq!(read_dataset("parquet", file.bytes, None), rows);
    let arrow = encoded(&format("arrow"), &parts(&rows, 700));
    let reader = arrow_ipc::reader::FileReader::try_new(Cursor::new(&arrow.bytes), None).unwrap();
    let batches: Vec<usize> = reader.map(|batch| batch.unwrap().num_rows()).collect();
    assert!(batches.len() == 8, "{batches:?}");
}

/// Feeds cut row groups where pages of all columns begin.
#[test]
fn pages_of_all_columns_begin_at_the_same_rows() {
    let rows = scalars(0..70_000);
    let file = encoded(&format("parquet"), &parts(&rows, 1000));
    let policy = parquet::file::metadata::PageIndexPolicy::Required;
    let reader = ParquetMetaDataReader::new().with_page_index_policy(policy);
    let metadata = reader.parse_and_finish(&bytes::Bytes::from(file.bytes)).unwrap();
    let firsts = |column: &parquet::file::page_index::offset_index::OffsetIndexMetaData| {
        column.page_locations().iter().map(|page| page.first_row_index).collect::<Vec<_>>()
    };
    let of_columns: Vec<Vec<i64>> = metadata.offset_index().unwrap()[0].iter().map(firsts).collect();
    assert!(of_columns[0].len() > 5 && of_columns[0].len() < 100, "{:?}", of_columns[0]);
    assert!(of_columns.iter().all(|firsts| *firsts == of_columns[0]), "{of_columns:?}");
    assert_eq!(metadata.file_metadata().created_by(), Some("forebay"));
    assert!(metadata.row_group(0).column(1).statistics().is_some());
    // Texts that differ have no dictionary, and three values of a boolean or a day have one.
    let has_dictionary = |name: &str| {
        let at = rows.schema().index_of(name).unwrap();
        metadata.row_group(0).column(at).dictionary_page_offset().is_some()
    };
    assert!(has_dictionary("i8") && !has_dictionary("i64") && !has_dictionary("text"));
}

/// Dictionaries of many integers take longer than their differences, to write and to read.
#[test]
fn integers_with_few_values_have_a_dictionary_and_others_differences() {
    let column =
        |values: i64| -> ArrayRef { Arc::new(Int64Array::from_iter_values((0..4096).map(|n| n * n % values))) };
    let rows = RecordBatch::try_from_iter([("few", column(101)), ("many", column(2003))]).unwrap();
    let file = encoded(&format("parquet"), std::slice::from_ref(&rows));
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&bytes::Bytes::from(file.bytes.clone())).unwrap();
    let encodings = |at: usize| metadata.row_group(0).column(at).encodings().collect::<Vec<_>>();
    assert!(encodings(0).contains(&Encoding::RLE_DICTIONARY), "{:?}", encodings(0));
    assert!(encodings(1).contains(&Encoding::DELTA_BINARY_PACKED), "{:?}", encodings(1));
    assert_eq!(read_dataset("parquet", file.bytes, None), rows);
}

#[test]
fn integers_of_lists_and_tensors_are_stored_as_briefly_as_they_are() {
    let rows = crate::of_format("parquet", 0..500);
    let encodings = |compression: &str| {
        let file = encoded(&format_with("parquet", &[("compression", compression)]), std::slice::from_ref(&rows));
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&bytes::Bytes::from(file.bytes)).unwrap();
        let group = metadata.row_group(0);
        let column = |path: &str| {
            let found = group.columns().iter().find(|column| column.column_path().string() == path);
            found.unwrap().encodings().collect::<Vec<_>>()
        };
        ["ragged.data.list.item", "list.list.item", "matrix.list.item"].map(column)
    };
    let [bytes, integers, floats] = encodings("zstd");
    assert!(bytes.contains(&Encoding::BYTE_STREAM_SPLIT) && integers.contains(&Encoding::BYTE_STREAM_SPLIT));
    assert!(!floats.contains(&Encoding::BYTE_STREAM_SPLIT));
    for compression in ["snappy", "none"] {
        let [bytes, integers, floats] = encodings(compression);
        assert!(bytes.contains(&Encoding::DELTA_BINARY_PACKED), "{bytes:?}");
        assert!(integers.contains(&Encoding::PLAIN) && floats.contains(&Encoding::PLAIN));
    }
}

#[test]
fn csv_has_the_options_of_its_tables() {
    let columns: [(&str, ArrayRef); 2] = [
        ("a", Arc::new(Int64Array::from(vec![Some(1), None]))),
        ("b", Arc::new(StringArray::from(vec![Some("x;y"), Some("")]))),
    ];
    let rows = RecordBatch::try_from_iter(columns).unwrap();
    let text = |options: &[(&str, &str)]| {
        String::from_utf8(encoded(&format_with("csv", options), std::slice::from_ref(&rows)).bytes).unwrap()
    };
    assert_eq!(text(&[]), "a,b\n1,x;y\n,\n");
    assert_eq!(text(&[("delimiter", ";"), ("null", "NA"), ("has_header", "false")]), "1;\"x;y\"\nNA;\n");
}

/// A record of one null is no blank line, which readers would skip.
#[test]
fn a_csv_record_of_one_null_is_a_record() {
    let rows = |array: ArrayRef| RecordBatch::try_from_iter_with_nullable([("a", array, true)]).unwrap();
    for rows in [
        rows(Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]))),
        rows(Arc::new(StringArray::from(vec![Some("x"), None]))),
    ] {
        for null in ["", "NA"] {
            let file = encoded(&format_with("csv", &[("null", null)]), std::slice::from_ref(&rows));
            let text = String::from_utf8(file.bytes).unwrap();
            assert_eq!(text.lines().count(), rows.num_rows() + 1, "{text}");
            assert!(text.lines().all(|line| !line.is_empty()), "{text}");
            if null.is_empty() {
                assert_eq!(read_dataset("csv", text.into_bytes(), Some(rows.schema())), rows);
            }
        }
    }
}

#[test]
fn numbers_that_are_not_finite_come_back_where_they_are_not_refused() {
    let numbers = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, f64::MIN_POSITIVE, f64::MAX];
    let singles = numbers.iter().map(|number| *number as f32).collect::<Float32Array>();
    let lists = numbers.iter().map(|number| Some(vec![Some(*number), Some(1.5)]));
    let lists = FixedSizeListArray::from_iter_primitive::<Float64Type, _, _>(lists, 2);
    let columns: [(&str, ArrayRef); 3] =
        [("x", Arc::new(Float64Array::from(numbers.to_vec()))), ("y", Arc::new(singles)), ("z", Arc::new(lists))];
    let rows = RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap();
    for (name, columns) in [
        ("parquet", &[0, 1, 2][..]),
        ("arrow", &[0, 1, 2]),
        ("csv", &[0, 1]),
        ("mds", &[0, 1, 2]),
        ("webdataset", &[2]),
    ] {
        let rows = rows.project(columns).unwrap();
        let read = decoded(&format(name), &encoded(&format(name), std::slice::from_ref(&rows)), &rows);
        for (field, expected) in rows.schema().fields().iter().zip(rows.columns()) {
            let found = read.column_by_name(field.name()).unwrap();
            assert_eq!(found, expected, "{name} {}", field.name());
        }
    }
}

#[test]
fn json_lines_have_the_order_of_the_columns_and_explicit_nulls() {
    let columns: [(&str, ArrayRef); 2] = [
        ("z", Arc::new(Int64Array::from(vec![Some(1), None]))),
        ("a", Arc::new(StringArray::from(vec![Some("é\""), None]))),
    ];
    let rows = RecordBatch::try_from_iter(columns).unwrap();
    let text = String::from_utf8(encoded(&format("jsonl"), &[rows]).bytes).unwrap();
    assert_eq!(text, "{\"z\":1,\"a\":\"é\\\"\"}\n{\"z\":null,\"a\":null}\n");
    let tensors = crate::rows::without_nulls(0..2);
    let matrix = tensors.project(&[tensors.schema().index_of("matrix").unwrap()]).unwrap();
    let text = String::from_utf8(encoded(&format("jsonl"), &[matrix]).bytes).unwrap();
    assert!(text.starts_with("{\"matrix\":[0.0,1.0,2.0,3.0,4.0,5.0]}\n"), "{text}");
}
