//! Measures feeds end to end, in process and over Flight on loopback: samples and bytes per second.
//!
//! Run with `cargo bench --bench feed`. Under `cargo test` each benchmark runs once, over fewer rows.

#![allow(missing_docs, reason = "benchmarks say what they measure by their names")]

use std::fmt::Write;
use std::sync::Arc;

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, Divan};
use forebay_engine::{FeedOptions, ReadOptions, Session};
use forebay_flight_client::{Client, StreamRequest};
use forebay_flight_server::Server;
use tokio::runtime::Runtime;

fn asked(flag: &str) -> bool {
    std::env::args().any(|argument| argument == flag)
}

fn main() {
    let divan = Divan::from_args();
    // `cargo bench` passes `--bench`. `cargo test` does not, and only checks that each benchmark still runs.
    if asked("--bench") || asked("--list") { divan.main() } else { divan.test_benches() }
}

fn rows() -> u64 {
    if asked("--bench") { 1_000_000 } else { 5_000 }
}

/// Returns a session with `table`, a shuffled pipeline over a CSV of clicks, and the folder of the CSV.
fn clicks(runtime: &Runtime) -> (Session, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut csv = "id,price,tag\n".to_owned();
    for id in 0..rows() {
        writeln!(csv, "{id},{}.25,tag{}", id % 1009, id % 31).expect("memory");
    }
    std::fs::write(folder.path().join("clicks.csv"), csv).expect("a file");
    let mut csv = "id,name\n".to_owned();
    for id in 0..rows() {
        writeln!(csv, "{},item {id}", (id * 7919) % rows()).expect("memory");
    }
    std::fs::write(folder.path().join("items.csv"), csv).expect("a file");
    let session = Session::builder().base(folder.path()).build().expect("a session");
    let script = "CREATE EXTERNAL TABLE clicks STORED AS CSV LOCATION 'clicks.csv';
        CREATE PIPELINE clicks WITH (shuffle = true, window_bytes = '4MiB') AS
            SELECT id, log1p(price) AS price, hash_bucket(tag, buckets => 1000) AS tag FROM clicks;
        CREATE EXTERNAL TABLE items STORED AS CSV LOCATION 'items.csv';
        CREATE PIPELINE joined WITH (shuffle = true, window_bytes = '4MiB') AS
            SELECT c.id, log1p(price) AS price, hash_bucket(tag, buckets => 1000) AS tag, name
            FROM clicks c LEFT JOIN items i ON c.id = i.id;";
    runtime.block_on(session.execute("bench", script)).expect("a pipeline");
    (session, folder)
}

fn options(batch_size: u64) -> ReadOptions {
    ReadOptions { batch_size: Some(batch_size), ..ReadOptions::default() }
}

#[divan::bench(args = [64, 1024, 8192], sample_count = 5, sample_size = 1)]
fn clicks_in_process(bencher: Bencher<'_, '_>, batch_size: u64) {
    in_process(bencher, "clicks", batch_size);
}

/// Each click looks up its row in a table of the same size. The first sample reads that table, and the others reuse it.
#[divan::bench(args = [1024], sample_count = 5, sample_size = 1)]
fn clicks_with_a_lookup(bencher: Bencher<'_, '_>, batch_size: u64) {
    in_process(bencher, "joined", batch_size);
}

fn in_process(bencher: Bencher<'_, '_>, pipeline: &str, batch_size: u64) {
    let runtime = Runtime::new().expect("a runtime");
    let (session, _folder) = clicks(&runtime);
    let feed = session.open(pipeline, &FeedOptions::default()).expect("a feed");
    bencher.counter(ItemsCount::new(rows())).counter(BytesCount::new(rows() * 24)).bench_local(|| {
        runtime.block_on(async {
            let mut reader = feed.read(&options(batch_size)).expect("options that make sense");
            let mut seen = 0;
            while let Some(batch) = reader.next().await {
                seen += batch.expect("good rows").positions;
            }
            assert_eq!(seen, rows());
        });
    });
}

#[divan::bench(args = [64, 1024, 8192], sample_count = 5, sample_size = 1)]
fn clicks_over_flight(bencher: Bencher<'_, '_>, batch_size: u64) {
    let runtime = Runtime::new().expect("a runtime");
    let (session, _folder) = clicks(&runtime);
    let server = runtime.block_on(Server::bind(([127, 0, 0, 1], 0).into())).expect("a port");
    let uri = server.uri();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = std::thread::spawn(move || {
        let runtime = Runtime::new().expect("a runtime");
        let stopped = async {
            let _ = stopped.await;
        };
        runtime.block_on(server.serve(Arc::new(session), stopped)).expect("a server");
    });
    bencher.counter(ItemsCount::new(rows())).counter(BytesCount::new(rows() * 24)).bench_local(|| {
        runtime.block_on(async {
            let request = StreamRequest::new("clicks", &FeedOptions::default(), &options(batch_size));
            let mut client = Client::connect(&uri).await.expect("the server");
            let mut reader = client.open(&request).await.expect("a plan").read().expect("a reader");
            let mut seen = 0;
            while let Some(batch) = reader.next().await {
                seen += batch.expect("good rows").positions;
            }
            assert_eq!(seen, rows());
        });
    });
    drop(stop);
    serving.join().expect("the server ends");
}
