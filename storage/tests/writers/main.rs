//! Tests of written files: their rows come back, the same rows give the same bytes, and what a format cannot hold is
//! refused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod mds;
mod read_back;
mod refusals;
mod rows;
mod support;
mod webdataset;

use arrow::array::RecordBatch;
use forebay_storage::writers::{OutputFormat, WRITE_FORMATS};
use rows::{all_types, of_format, scalars, without_nulls};
use support::{Encoded, encoded, format, format_with, parts};

/// Every format with each compression, and rows that it can hold.
fn all() -> Vec<(OutputFormat, RecordBatch)> {
    let mut all = Vec::new();
    for written in WRITE_FORMATS {
        let name = written.descriptor().name;
        let compressions: &[&str] = match name {
            "parquet" => &["zstd", "snappy", "none"],
            "arrow" => &["none", "zstd", "lz4"],
            "csv" | "jsonl" => &["none", "gzip", "zstd"],
            "mds" => &["none", "zstd"],
            _ => &["none"],
        };
        all.extend(compressions.iter().map(|it| (format_with(name, &[("compression", it)]), of_format(name, 0..500))));
    }
    all
}

#[test]
fn the_same_rows_give_the_same_bytes_in_other_batches() {
    for (format, rows) in all() {
        let whole = encoded(&format, &[rows.clone()]);
        for rows_of_part in [1, 7, 256] {
            let other = encoded(&format, &parts(&rows, rows_of_part));
            assert!(other.bytes == whole.bytes, "{format:?} in batches of {rows_of_part} rows");
            assert_eq!(other.facts, whole.facts);
        }
        assert!(encoded(&format, &[rows.slice(0, 499)]).bytes != whole.bytes, "{format:?}");
    }
}

/// Wide rows among narrow ones move the ends of pages, record batches and row groups.
#[test]
fn large_files_are_cut_by_their_rows_alone() {
    for name in ["parquet", "arrow"] {
        for rows in [scalars(0..70_000), rows::uneven(3000)] {
            let format = format(name);
            let whole = encoded(&format, &[rows.clone()]);
            for rows_of_part in [999, 2048] {
                let other = encoded(&format, &parts(&rows, rows_of_part));
                assert!(other.bytes == whole.bytes, "{name} in batches of {rows_of_part} rows");
            }
        }
    }
}

/// What arrays hold under nulls and beside their values depends on how they were computed.
#[test]
fn the_layout_of_arrays_does_not_show() {
    for (format, rows) in all() {
        let name = format.descriptor().name;
        let expected = encoded(&format, &[rows.slice(100, 300)]).bytes;
        let taken = rows::computed_otherwise(&rows).slice(100, 300);
        assert!(encoded(&format, &[taken]).bytes == expected, "{name}");
    }
}

#[test]
fn metadata_are_in_one_order() {
    for name in ["parquet", "arrow"] {
        let bytes: Vec<_> = (0..8).map(|_| encoded(&format(name), &[rows::with_metadata(20)]).bytes).collect();
        assert!(bytes.iter().all(|other| *other == bytes[0]), "{name}");
    }
}

#[test]
fn bytes_can_be_taken_long_before_the_end() {
    for (format, _) in all() {
        let name = format.descriptor().name;
        // A shard of mds begins with the offsets of all rows.
        if name == "mds" {
            continue;
        }
        let batch = match name {
            "csv" | "jsonl" => rows::noise_text(4 << 20),
            _ => rows::noise(4 << 20),
        };
        let mut writer = format.writer(&batch.schema(), "").unwrap();
        let (mut given, mut held_max, mut taken) = (0_i64, 0, 0);
        // 200 MiB of bytes that hardly become smaller.
        for _ in 0..50 {
            writer.write(&batch).unwrap();
            given += 4 << 20;
            while let Some(bytes) = writer.take().unwrap() {
                taken += bytes.len() as i64;
            }
            held_max = held_max.max(given - taken);
        }
        assert!(held_max <= 80 << 20, "{format:?} held {held_max} bytes");
        assert!(taken > 100 << 20, "{format:?} gave {taken} bytes");
    }
}

#[test]
fn files_without_rows_are_complete() {
    for (format, rows) in all() {
        let none = rows.slice(0, 0);
        let bytes = encoded(&format, &[]).bytes;
        assert_eq!(bytes, encoded(&format, &[none.clone(), none.clone()]).bytes, "{format:?}");
        let read = support::decoded(&format, &encoded_of(&format, &none), &none);
        assert_eq!(read.num_rows(), 0, "{format:?}");
    }
}

fn encoded_of(format: &OutputFormat, rows: &RecordBatch) -> Encoded {
    encoded(format, &[rows.clone()])
}

#[test]
fn formats_have_names_extensions_and_a_json_form() {
    let check = |name: &str, compression: &str, extension: &str| {
        let format = format_with(name, &[("compression", compression)]);
        assert_eq!(format.extension(), extension);
        let text = serde_json::to_string(&format).unwrap();
        assert_eq!(serde_json::from_str::<OutputFormat>(&text).unwrap(), format);
    };
    check("PARQUET", "snappy", "parquet");
    check("feather", "LZ4", "arrow");
    check("csv", "gzip", "csv.gz");
    check("json", "zstd", "jsonl.zst");
    check("mds", "zstd", "mds.zstd");
    check("wds", "none", "tar");
    let text = serde_json::to_string(&format("csv")).unwrap();
    assert_eq!(
        text,
        r#"{"name":"csv","options":{"compression":"none","delimiter":",","has_header":"true","null":""}}"#
    );
}

/// Rows of the columns that all formats have in common.
#[test]
fn rows_of_all_types_are_refused_only_where_the_format_says_so() {
    for name in ["parquet", "arrow"] {
        format(name).check(&all_types(0..1).schema()).unwrap();
    }
    for name in ["mds", "webdataset"] {
        format(name).check(&without_nulls(0..1).schema()).unwrap();
    }
}
