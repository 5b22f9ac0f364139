//! Damaged Parquet files of every compression and of many encodings are rows, or errors that name the file.
//!
//! The conformance suite damages files with the writer's defaults. This test bounds the memory of its whole process, so
//! it runs in a separate process. Each message has the seed: `FOREBAY_SEED` repeats a run, and `FOREBAY_DAMAGES` sets
//! the number of damaged files of each kind.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, FixedSizeBinaryArray, FixedSizeListArray, Float32Array, Int32Array, Int64Array, ListArray,
    RecordBatch, StringArray, StructArray,
};
use arrow::datatypes::{Float32Type, Int32Type};
use forebay_storage::{Dataset, DatasetSpec, ErrorKind, PathColumns, Result, Stores, TableFormat};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::schema::types::ColumnPath;

const ROWS: i64 = 200;
/// Maximum growth of the process's address space over one damaged file of some ten kilobytes.
const MEMORY_MAX: u64 = 1 << 30;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Columns of many types, with nulls.
fn rows() -> RecordBatch {
    let is_null = |n: i64| n % 11 == 3;
    let ints = Int32Array::from_iter_values((0..ROWS).map(|n| (n * n % 1000) as i32));
    let lists = (0..ROWS).map(|n| (!is_null(n)).then(|| (0..n % 4).map(move |m| (m > 0).then_some((n + m) as i32))));
    let tensors = (0..ROWS).map(|n| (!is_null(n)).then(|| [Some(n as f32), None, Some(0.5), Some(-1.0)]));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("number", Arc::new(Int64Array::from_iter((0..ROWS).map(|n| (!is_null(n)).then_some(n * 1000))))),
        ("float", Arc::new(Float32Array::from_iter_values((0..ROWS).map(|n| n as f32 / 3.0)))),
        ("text", Arc::new(StringArray::from_iter((0..ROWS).map(|n| (!is_null(n)).then(|| format!("text {n}")))))),
        ("category", Arc::new(StringArray::from_iter_values((0..ROWS).map(|n| format!("category {}", n % 5))))),
        ("flag", Arc::new(BooleanArray::from_iter((0..ROWS).map(|n| Some(n % 3 == 0))))),
        (
            "fixed",
            Arc::new(FixedSizeBinaryArray::try_from_iter((0..ROWS).map(|n| n.to_le_bytes())).unwrap()) as ArrayRef,
        ),
        ("list", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists))),
        ("tensor", Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(tensors, 4))),
        ("struct", Arc::new(StructArray::try_from(vec![("a", Arc::new(ints) as ArrayRef)]).unwrap())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true))).unwrap()
}

fn file(rows: &RecordBatch, change: impl FnOnce(WriterPropertiesBuilder) -> WriterPropertiesBuilder) -> Vec<u8> {
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(100))
        .set_data_page_row_count_limit(50)
        .set_write_batch_size(25);
    let properties = change(properties).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), rows.schema(), Some(properties)).unwrap();
    writer.write(rows).unwrap();
    writer.into_inner().unwrap()
}

/// The same rows with every compression, and with other encodings than the default.
fn files() -> Vec<(String, Vec<u8>)> {
    let rows = rows();
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(Default::default()),
        Compression::BROTLI(Default::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
        Compression::ZSTD(Default::default()),
    ];
    let mut files: Vec<_> = codecs.map(|codec| (codec.to_string(), file(&rows, |it| it.set_compression(codec)))).into();
    for texts in [Encoding::PLAIN, Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY] {
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            let encoded = |it: WriterPropertiesBuilder| {
                it.set_dictionary_enabled(false)
                    .set_writer_version(version)
                    .set_column_encoding(ColumnPath::from("text"), texts)
                    .set_column_encoding(ColumnPath::from("category"), texts)
                    .set_column_encoding(ColumnPath::from("number"), Encoding::DELTA_BINARY_PACKED)
                    .set_column_encoding(ColumnPath::from("float"), Encoding::BYTE_STREAM_SPLIT)
            };
            files.push((format!("{texts} {version:?}"), file(&rows, encoded)));
        }
    }
    files
}

/// Random numbers that follow from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % bound.max(1) as u64) as usize
    }
}

/// One to three changes: a flipped bit, another byte, huge numbers, zeros, bytes removed or repeated.
fn damaged(whole: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for _ in 0..1 + random.below(3) {
        let at = random.below(bytes.len());
        let end = (at + 1 + random.below(8)).min(bytes.len());
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.below(256) as u8,
            2 => bytes[at..end].fill(0xFF),
            3 => bytes[at..end].fill(0),
            4 => drop(bytes.drain(at..end)),
            _ => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes
}

async fn read(stores: &Stores, location: &str) -> Result<()> {
    let format = TableFormat::named("parquet")?;
    let dataset = Dataset::open(
        stores,
        &DatasetSpec {
            location: location.to_owned(),
            format,
            schema: None,
            path_columns: PathColumns::Inferred,
            path_column: None,
        },
    )
    .await?;
    let columns: Vec<usize> = (0..dataset.schema().fields().len()).collect();
    for target in [u64::MAX, 1 << 10] {
        for range in dataset.row_ranges(target).into_iter().take(8) {
            dataset.read(&range, &columns).await?;
            dataset.read_with_dictionaries(&range, &columns, &columns).await?;
        }
    }
    Ok(())
}

/// The peak address space of this process, if the system reports it.
fn memory_peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmPeak:"));
    peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) << 10
}

#[tokio::test]
async fn damaged_files_are_rows_or_errors_that_name_them() {
    let (seed, damages) = (number("FOREBAY_SEED", 1), number("FOREBAY_DAMAGES", 60));
    let (stores, location) = (Stores::new(), "memory:///damaged/a.parquet");
    let mut errors = 0;
    for (kind, whole) in files() {
        stores.put(location, whole.clone().into()).await.unwrap();
        read(&stores, location).await.unwrap_or_else(|error| panic!("{kind}: {error}"));
        for number in 0..damages {
            let place = format!("{kind}, damage {number}, FOREBAY_SEED={seed}");
            let mut random = Random(seed << 32 | number);
            stores.put(location, damaged(&whole, &mut random).into()).await.unwrap();
            let memory = memory_peak();
            let result = read(&stores, location).await;
            let grown = memory_peak().saturating_sub(memory);
            assert!(grown < MEMORY_MAX, "{place}: took {grown} bytes of memory");
            if let Err(error) = result {
                errors += 1;
                assert!(matches!(error.kind(), ErrorKind::Data | ErrorKind::Invalid), "{place}: {error}");
                assert!(error.to_string().contains("a.parquet"), "{place}: {error}");
            }
        }
    }
    assert!(errors > damages, "only {errors} errors, FOREBAY_SEED={seed}");
}
