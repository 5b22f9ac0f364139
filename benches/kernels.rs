//! Measures the image operators, with one call on one core over a batch of the sample photographs, through the engine's
//! session, and the packing of a window of tokens.
//!
//! Run with `cargo bench --bench kernels`. Under `cargo test` each benchmark runs once.

#![allow(missing_docs, reason = "benchmarks say what they measure by their names")]

use divan::counter::ItemsCount;
use divan::{Bencher, Divan};
use forebay_engine::operators::pack::{Layout, Pack, Strategy};
use forebay_engine::{FeedOptions, ReadOptions, Session};
use tokio::runtime::Runtime;

fn main() {
    let asked = |flag: &str| std::env::args().any(|argument| argument == flag);
    let divan = Divan::from_args();
    // `cargo bench` passes `--bench`. `cargo test` does not, and only checks that each benchmark still runs.
    if asked("--bench") || asked("--list") { divan.main() } else { divan.test_benches() }
}

/// Chains of growing length. The difference between two is the cost of the last operator.
const CHAINS: &[(&str, &str)] = &[
    ("read", "bytes"),
    ("decode", "decode_image(bytes)"),
    ("decode_resize", "resize(decode_image(bytes), 224, 224)"),
    ("decode_crop", "random_resized_crop(decode_image(bytes), 224, 224)"),
    ("decode_crop_flip", "random_hflip(random_resized_crop(decode_image(bytes), 224, 224))"),
    ("decode_crop_flip_normalize", "normalize(random_hflip(random_resized_crop(decode_image(bytes), 224, 224)))"),
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
    let strategy = if strategy == "concat" { Strategy::Concat } else { Strategy::BestFit };
    let pack = Pack { length: 2048, strategy, separator: Some(2), pad_id: 0, ignore_index: -100 };
    let documents: Vec<Vec<i32>> = (0..2_000).map(|n| vec![n; 1 + n as usize * 7919 % 1_000]).collect();
    let documents: Vec<&[i32]> = documents.iter().map(Vec::as_slice).collect();
    let tokens: usize = documents.iter().map(|document| document.len() + 1).sum();
    bencher.counter(ItemsCount::new(tokens)).bench_local(|| {
        let layout = Layout::new(&pack, documents.iter().map(|document| document.len()));
        let all = 0..layout.len();
        (layout.tokens(&pack, &documents, all.clone()), layout.bounds(all))
    });
}
