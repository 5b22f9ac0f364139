//! Measures the image operators, with one call on one core over a batch of the sample photographs, through the engine's
//! session, and the packing of a window of tokens.
//!
//! Run with `cargo bench --bench kernels`. Under `cargo test` each benchmark runs once.

#![allow(missing_docs, reason = "benchmarks say what they measure by their names")]

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, UInt64Array};
use arrow::datatypes::{Field, Int32Type};
use divan::counter::ItemsCount;
use divan::{Bencher, Divan};
use forebay_engine::operators::{InputPart, InputRows, RowArguments, ScalarValue, find_table_operator};
use forebay_engine::{FeedOptions, ReadOptions, Session};
use tokio::runtime::Runtime;

fn main() {
    let asked = |flag: &str| std::env::args().any(|argument| argument == flag);
    let divan = Divan::from_args();
    // `cargo bench` passes `--bench`. `cargo test` does not, and only checks that each benchmark still runs.
    if asked("--bench") || asked("--list") { divan.main() } else { divan.test_benches() }
}

/// Chains of growing length. The difference between two is the cost of the last operator. The last two give the same
/// samples: an erasing that never happens makes the images before it whole.
const CHAINS: &[(&str, &str)] = &[
    ("read", "bytes"),
    ("decode", "decode_image(bytes)"),
    ("decode_resize", "resize(decode_image(bytes), 224, 224)"),
    ("decode_crop", "random_resized_crop(decode_image(bytes), 224, 224)"),
    ("decode_crop_flip", "random_hflip(random_resized_crop(decode_image(bytes), 224, 224))"),
    ("decode_crop_flip_normalize", "normalize(random_hflip(random_resized_crop(decode_image(bytes), 224, 224)))"),
    (
        "crop_last",
        "normalize(center_crop(random_grayscale(posterize(solarize(
             random_hflip(resize(decode_image(bytes), 512, 512))))), 224, 224))",
    ),
    (
        "crop_last_of_whole_images",
        "normalize(center_crop(random_grayscale(posterize(solarize(random_erasing(
             random_hflip(resize(decode_image(bytes), 512, 512)), p => 0)))), 224, 224))",
    ),
];

#[divan::bench(args = CHAINS.iter().map(|(name, _)| *name), sample_count = 10, sample_size = 1)]
fn photographs(bencher: Bencher<'_, '_>, name: &str) {
    let query = CHAINS.iter().find(|(chain, _)| *chain == name).expect("one of the arguments").1;
    let runtime = Runtime::new().expect("a runtime");
    let session = Session::builder()
        .threads(1)
        .base(concat!(env!("CARGO_MANIFEST_DIR"), "/examples"))
        .build()
        .expect("a session");
    let script = format!(
        "CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION 'photos';
         CREATE PIPELINE p AS SELECT {query} AS image FROM photos;"
    );
    runtime.block_on(session.execute("bench", &script)).expect("a pipeline");
    let feed = session.open("p", &FeedOptions::default()).expect("a feed");
    bencher.counter(ItemsCount::new(240usize)).bench_local(|| {
        runtime.block_on(async {
            let mut reader = feed.read(&ReadOptions::default()).expect("options that make sense");
            let mut rows = 0;
            while let Some(batch) = reader.next().await {
                rows += batch.expect("good photographs").records.num_rows();
            }
            assert_eq!(rows, 240);
        });
    });
}

/// Lays out a million tokens, in documents of 1 to 1,000, and assembles the sequences.
#[divan::bench(args = ["concat", "best_fit"], sample_count = 10, sample_size = 1)]
fn pack(bencher: Bencher<'_, '_>, strategy: &str) {
    let operator = find_table_operator("pack").expect("a registered operator");
    let constants = operator.descriptor().parameters[1..].iter().map(|parameter| match parameter.name {
        "length" => ScalarValue::from(2048_i64),
        "strategy" => ScalarValue::from(strategy),
        "separator" => ScalarValue::from(2_i64),
        _ => parameter.default_value().expect("the others have defaults"),
    });
    let constants: Vec<ScalarValue> = constants.collect();
    let documents = (0..2_000).map(|n| Some(vec![Some(n); 1 + n as usize * 7919 % 1_000]));
    let documents: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(documents));
    let tokens = documents.as_list::<i32>().values().len() + documents.len();
    let columns = vec![Field::new("tokens", documents.data_type().clone(), true)].into();
    let plan = operator.plan(&RowArguments::new(operator.descriptor(), &constants, &columns)).expect("a plan");
    let (ids, reads) = (UInt64Array::from_iter_values(0..documents.len() as u64), [documents]);
    let part = InputPart { reads: &reads, random_keys: &ids, origins: &ids, ids: &ids };
    let window = InputRows { parts: vec![part], wanted: &[0, 1], order: &|_| 0, call: 0, bytes_max: 1 << 30 };
    bencher.counter(ItemsCount::new(tokens)).bench_local(|| {
        plan.rows.make(&window).expect("documents").map(|made| made.expect("sequences")).collect::<Vec<_>>()
    });
}
