//! Tests of written files: their rows come back, the same rows give the same bytes, and what a format cannot hold is
//! refused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod mds;
mod read_back;
mod refusals;
mod rows;
mod support;
mod types;
mod webdataset;

use arrow::array::RecordBatch;
use forebay_storage::writers::{FileWriter, OutputFormat, WRITE_FORMATS};
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
        let whole = encoded(&format, std::slice::from_ref(&rows));
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
            let whole = encoded(&format, std::slice::from_ref(&rows));
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

/// What a writer holds is bounded, however large its file is.
#[test]
fn no_file_is_held_whole() {
    const MIB: f64 = (1 << 20) as f64;
    for (format, _) in all() {
        let name = format.descriptor().name;
        // A row group, a record batch, or the batch itself and a piece to compress.
        let (noise, batch_bytes, batches, bound): (fn(usize, usize) -> RecordBatch, _, _, _) = match name {
            "parquet" => (rows::noise, 4 << 20, 40, 72.0),
            "arrow" => (rows::noise, 4 << 20, 16, 24.0),
            "csv" | "jsonl" => (rows::noise_text, 1 << 20, 16, 2.5),
            // A shard begins with the offsets of all rows, which are known at its end.
            "mds" => continue,
            _ => (rows::noise, 1 << 20, 16, 1.5),
        };
        let mut writer = format.writer(&noise(1, 0).schema(), "").unwrap();
        let mut taken = vec![0.0];
        let mut take = |writer: &mut Box<dyn FileWriter>| {
            while let Some(bytes) = writer.take().unwrap() {
                *taken.last_mut().unwrap() += bytes.len() as f64 / MIB;
            }
            taken.push(taken[taken.len() - 1]);
        };
        for seed in 0..batches {
            writer.write(&noise(batch_bytes, seed)).unwrap();
            take(&mut writer);
        }
        writer.finish().unwrap();
        take(&mut writer);
        // All batches are random, so each is as large in the file as any other.
        let per_batch = taken[batches + 1] / batches as f64;
        let held = (0..batches).map(|batch| per_batch * (batch + 1) as f64 - taken[batch]).fold(0.0, f64::max);
        assert!(held <= bound, "{format:?} held {held} MiB");
        assert!(per_batch * batches as f64 > 1.5 * bound, "{format:?} gave too little to tell");
    }
}

/// A job begins another file when a writer says that its file is large enough.
#[test]
fn a_file_says_how_large_it_is() {
    for (format, rows) in all() {
        let compression = serde_json::to_value(&format).unwrap()["options"]["compression"].clone();
        let mut writer = format.writer(&rows.schema(), "").unwrap();
        let (mut before, mut file) = (writer.bytes(), 0);
        for batch in parts(&rows, 50) {
            writer.write(&batch).unwrap();
            assert!(writer.bytes() >= before, "{format:?}");
            while let Some(bytes) = writer.take().unwrap() {
                file += bytes.len() as u64;
            }
            before = writer.bytes();
        }
        writer.finish().unwrap();
        while let Some(bytes) = writer.take().unwrap() {
            file += bytes.len() as u64;
        }
        match compression.as_str().unwrap() {
            "none" => assert_eq!(writer.bytes(), file, "{format:?}"),
            // Of texts and shards, the bytes before compression count.
            _ => assert!(writer.bytes() >= file, "{format:?}"),
        }
        let has_facts = format.descriptor().name == "mds";
        assert_eq!(writer.facts() != serde_json::Value::Null, has_facts, "{format:?}");
    }
}

#[test]
fn gzip_files_have_no_time() {
    for name in ["csv", "jsonl"] {
        let file = encoded(&format_with(name, &[("compression", "gzip")]), &[of_format(name, 0..3)]);
        assert_eq!(file.bytes[..10], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff], "{name}");
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
    encoded(format, std::slice::from_ref(rows))
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
