//! Length buckets: the rows of a global step belong to one bucket on all ranks, and nothing else about a feed changes.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{Array, AsArray};
use arrow::datatypes::Int64Type;
use forebay_engine::{Batch, Feed, FeedOptions, OnError, ReadOptions, Session, Start, digest};

use crate::support::{Folder, Server, forebay, run, succeed};

const BOUNDARIES: [u64; 3] = [4, 8, 16];
const GLOBAL: u64 = 12;

/// Writes texts of 0 to 20 tokens in files of 20 rows, and a pipeline `train` over them in windows of 60.
fn texts(rows: u64) -> (Folder, String) {
    let folder = Folder::new();
    for first in (0..rows).step_by(20) {
        let line = |id: u64| {
            let tokens: Vec<u64> = (0..id * 7919 % 21).map(|at| id + at).collect();
            format!("{{\"id\": {id}, \"tokens\": {tokens:?}, \"count\": {}}}\n", tokens.len())
        };
        let lines: String = (first..rows.min(first + 20)).map(line).collect();
        folder.write(&format!("texts/{first:06}.jsonl"), lines);
    }
    let script = folder.script(
        "CREATE EXTERNAL TABLE texts STORED AS JSONL LOCATION 'texts';
         CREATE PIPELINE train WITH (shuffle = true, seed = 5, window_rows = 60, epochs = 2, bucket_by_length = tokens,
             bucket_boundaries = '4,8,16', global_batch_size = 12) AS
         SELECT id, tokens, pad_to(tokens, boundaries => [4, 8, 16, 32], value => -1) AS padded
         FROM texts WHERE id % 11 <> 0;
         CREATE PIPELINE whole WITH (window_rows = 60) AS SELECT id, tokens, count, count * 0.5 AS half FROM texts;",
    );
    (folder, script)
}

async fn session(folder: &Folder, script: &str) -> Session {
    let session = Session::builder().threads(2).base(folder.path()).root("memory:///root").build().expect("a session");
    let sql = std::fs::read_to_string(script).expect("the script");
    session.execute("script.sql", &sql).await.expect("the script runs");
    session
}

async fn read(feed: &Feed, options: &ReadOptions) -> Vec<Batch> {
    let mut reader = feed.read(options).expect("a reader");
    let mut batches = Vec::new();
    while let Some(batch) = reader.next().await {
        batches.push(batch.expect("a batch"));
    }
    batches
}

/// Returns the batches of all ranks, by rank.
async fn ranks(feed: &Feed, world_size: u64, from: Option<&Start>) -> Vec<Vec<Batch>> {
    let mut all = Vec::new();
    for rank in 0..world_size {
        let from = from.cloned().unwrap_or_default();
        all.push(read(feed, &ReadOptions { rank, world_size, from, ..ReadOptions::default() }).await);
    }
    all
}

fn ids(batch: &Batch) -> Vec<i64> {
    batch.records["id"].as_primitive::<Int64Type>().values().to_vec()
}

fn lengths(batch: &Batch, column: &str) -> Vec<u64> {
    let lists = batch.records[column].as_list::<i32>();
    (0..lists.len()).map(|row| lists.value_length(row) as u64).collect()
}

fn bucket(length: u64) -> usize {
    BOUNDARIES.iter().filter(|&&bound| bound < length).count()
}

/// Returns the samples of each global step, in the order of its ranks.
fn steps(ranks: &[Vec<Batch>]) -> BTreeMap<(u64, u64), Vec<i64>> {
    let mut steps: BTreeMap<_, Vec<i64>> = BTreeMap::new();
    let mut batches: Vec<&Batch> = ranks.iter().flatten().collect();
    batches.sort_by_key(|batch| (batch.epoch, batch.offset));
    for batch in batches {
        steps.entry((batch.epoch, batch.step)).or_default().extend(ids(batch));
    }
    steps
}

#[tokio::test]
async fn each_global_step_is_of_one_bucket_on_any_number_of_ranks() {
    let (folder, script) = texts(230);
    let feed = session(&folder, &script).await.open("train", &FeedOptions::default()).expect("a feed");
    let expected: BTreeSet<i64> = (0..230).filter(|id| id % 11 != 0).collect();
    let whole = steps(&ranks(&feed, 1, None).await);
    for world_size in [1, 2, 3, 4] {
        let ranks = ranks(&feed, world_size, None).await;
        assert_eq!(steps(&ranks), whole, "{world_size} ranks");
        assert!(ranks.iter().all(|rank| rank.len() == ranks[0].len()), "ranks have equally many batches");
        let (mut mixed, mut incomplete) = (0, 0);
        for at in 0..ranks[0].len() {
            let step: Vec<&Batch> = ranks.iter().map(|rank| &rank[at]).collect();
            let raw: Vec<u64> = step.iter().flat_map(|batch| lengths(batch, "tokens")).collect();
            let padded: BTreeSet<u64> = step.iter().flat_map(|batch| lengths(batch, "padded")).collect();
            let longest = raw.iter().copied().map(bucket).max().expect("a row");
            let target = BOUNDARIES.get(longest).copied().unwrap_or(32);
            assert_eq!(padded, BTreeSet::from([target]), "a step is padded to one length");
            mixed += usize::from(raw.iter().any(|&length| bucket(length) != longest));
            let rows: Vec<usize> = step.iter().map(|batch| batch.records.num_rows()).collect();
            let (least, most) = (rows.iter().min().expect("a rank"), rows.iter().max().expect("a rank"));
            assert!(most - least <= 1, "ranks share a step evenly: {rows:?}");
            let gaps: u64 = step.iter().map(|batch| batch.gaps).sum();
            incomplete += usize::from(gaps > 0);
            for batch in step {
                assert_eq!((batch.positions, batch.bad_rows()), (GLOBAL / world_size, 0));
                assert_eq!(batch.offset, batch.step * GLOBAL + batch.offset % GLOBAL);
                assert_eq!(batch.token, ranks[0][at].token, "all ranks make the same token");
            }
        }
        // Four windows per epoch. Each has at most one incomplete group, and one mixed group for each bucket but the
        // first.
        assert!(incomplete <= 8 && mixed <= 24, "{incomplete} incomplete and {mixed} mixed steps");
        for epoch in 0..2 {
            let order: Vec<i64> = whole.range((epoch, 0)..(epoch + 1, 0)).flat_map(|(_, ids)| ids.clone()).collect();
            assert_eq!(order.len(), expected.len(), "each sample once");
            assert_eq!(order.into_iter().collect::<BTreeSet<_>>(), expected);
        }
        assert_ne!(whole[&(0, 0)], whole[&(1, 0)], "another order in each epoch");
    }
}

#[tokio::test]
async fn every_step_resumes_on_other_ranks() {
    let (folder, script) = texts(120);
    let feed = session(&folder, &script).await.open("train", &FeedOptions::default()).expect("a feed");
    let whole = ranks(&feed, 1, None).await;
    let steps_of_whole = steps(&whole);
    for batch in &whole[0] {
        let tail: BTreeMap<_, _> =
            steps_of_whole.range((batch.epoch, batch.step + 1)..).map(|(at, ids)| (*at, ids.clone())).collect();
        for world_size in [1, 3, 4] {
            let resumed = ranks(&feed, world_size, Some(&Start::Token(batch.token.clone()))).await;
            assert_eq!(steps(&resumed), tail, "after {}:{} on {world_size} ranks", batch.epoch, batch.step);
        }
        let from = Start::Offset { epoch: batch.epoch, offset: batch.offset + GLOBAL };
        assert_eq!(steps(&ranks(&feed, 2, Some(&from)).await), tail);
    }
}

/// Maps epoch and offset to rows and digest.
type Log = BTreeMap<(u64, u64), (u64, String)>;

async fn log(feed: &Feed, world_size: u64) -> Log {
    let batches = ranks(feed, world_size, None).await.into_iter().flatten();
    batches
        .map(|batch| ((batch.epoch, batch.offset), (batch.records.num_rows() as u64, digest(&batch.records))))
        .collect()
}

#[tokio::test]
async fn the_server_gives_the_same_batches_and_calls_no_gap_a_bad_row() {
    let (folder, script) = texts(130);
    // One row is bad when it is read, the other when its length is computed.
    folder.write("texts/999999.jsonl", "{\"id\": 998, \"tokens\": \"none\"}\n{\"id\": 999, \"tokens\": [1, 2]}\n");
    let sql = std::fs::read_to_string(&script).expect("the script").replace("16, 32]", "16]");
    std::fs::write(&script, sql.replace("= tokens", "= padded")).expect("the script");
    let options = FeedOptions { on_error: Some(OnError::Skip), ..FeedOptions::default() };
    let feed = session(&folder, &script).await.open("train", &options).expect("a feed");
    let long = (0..130).filter(|id| id % 11 != 0 && id * 7919 % 21 > 16).count();
    let whole = ranks(&feed, 1, None).await;
    let bad: u64 = whole[0].iter().filter(|batch| batch.epoch == 0).map(Batch::bad_rows).sum();
    assert_eq!(bad, long as u64 + 1);
    let gaps: u64 = whole[0].iter().map(|batch| batch.gaps).sum();
    assert!(gaps > 0, "the test is about gaps");
    let server = Server::start(&script, &["--threads", "2"]);
    for world_size in 1..=4 {
        let mut remote = Log::new();
        let (mut remote_bad, mut remote_gaps) = (0, 0);
        for rank in 0..world_size {
            let (rank, world_size) = (rank.to_string(), world_size.to_string());
            let (batches, summary) = run([
                "--connect",
                &server.uri,
                "--pipeline",
                "train",
                "--on-error",
                "skip",
                "--rank",
                &rank,
                "--world-size",
                &world_size,
            ]);
            remote_bad += summary["bad_rows"].as_u64().expect("a count");
            remote_gaps += batches.iter().map(|batch| batch.gaps).sum::<u64>();
            remote.extend(batches.into_iter().map(|batch| ((batch.epoch, batch.offset), (batch.rows, batch.digest))));
        }
        assert_eq!(remote, log(&feed, world_size).await, "{world_size} ranks");
        assert_eq!((remote_bad, remote_gaps), (2 * bad, gaps), "{world_size} ranks");
    }
}

#[tokio::test]
async fn without_shuffle_groups_are_in_file_order() {
    let (folder, script) = texts(100);
    let options = FeedOptions {
        bucket_by_length: Some("count".to_owned()),
        bucket_boundaries: Some("4,8,16".parse().expect("boundaries")),
        global_batch_size: Some(10),
        ..FeedOptions::default()
    };
    let session = session(&folder, &script).await;
    let feed = session.open("whole", &options).expect("a feed");
    let batches = read(&feed, &ReadOptions::default()).await;
    assert!(batches.iter().all(|batch| ids(batch).is_sorted()));
    let windows: [Vec<i64>; 2] = [0..60, 60..100]
        .map(|window| batches.iter().map(|batch| ids(batch)[0]).filter(|first| window.contains(first)).collect());
    assert!(windows.iter().all(|firsts| firsts.is_sorted()), "{windows:?}");
    // A column of lengths and a column of lists of these lengths give the same groups.
    let lists = FeedOptions { bucket_by_length: Some("tokens".to_owned()), ..options };
    let lists = session.open("whole", &lists).expect("a feed");
    assert_eq!(read(&lists, &ReadOptions::default()).await.iter().map(ids).collect::<Vec<_>>(), {
        batches.iter().map(ids).collect::<Vec<_>>()
    });
    assert_ne!(feed.id(), lists.id());
}

#[tokio::test]
async fn what_cannot_be_grouped_is_refused() {
    let (folder, script) = texts(40);
    let session = session(&folder, &script).await;
    let create = async |options: &str, phrases: &[&str]| {
        let sql = format!(
            "CREATE OR REPLACE PIPELINE p WITH ({options}) AS SELECT id, tokens, count * 0.5 AS half FROM texts"
        );
        let error = match session.execute("p.sql", &sql).await {
            Err(error) => error,
            Ok(_) => session.open("p", &FeedOptions::default()).err().unwrap_or_else(|| panic!("{options} opens")),
        };
        for phrase in phrases {
            assert!(error.to_string().contains(phrase), "{options} lacks {phrase:?}: {error}");
        }
    };
    let placed = "p.sql:1:";
    create("bucket_by_length = 'tokns'", &[placed, "no column \"tokns\"", "did you mean \"tokens\"?"]).await;
    create("bucket_by_length = half", &[placed, "column \"half\" has no length: it is Float64", "lists, strings"])
        .await;
    create("bucket_boundaries = '8,4'", &[placed, "must be ascending, got 8 before 4", "'64,128,256'"]).await;
    create("bucket_boundaries = 'a'", &[placed, "must be positive integers, got 'a'"]).await;
    create("global_batch_size = 0", &[placed, "must be a positive integer, got 0"]).await;
    create("global_batch_size = 99999999", &[placed, "must be between 1 and 1048576"]).await;
    create("global_batch_size = 8, batch_size = 4", &[placed, "follows from the global batch size of 8"]).await;
    create("bucket_by_lenght = 'tokens'", &[placed, "did you mean \"bucket_by_length\"?"]).await;
    create("bucket_by_length = 'tokens', global_batch_size = 8", &["\"bucket_boundaries\" is missing", "together"])
        .await;
    create("bucket_by_length = 'tokens', bucket_boundaries = 8", &["\"global_batch_size\" is missing"]).await;
    create("global_batch_size = 8", &["\"bucket_by_length\" is missing"]).await;

    let options = FeedOptions { bucket_by_length: Some("paded".to_owned()), ..FeedOptions::default() };
    let error = session.open("train", &options).err().expect("an unknown column");
    assert!(error.to_string().contains("did you mean \"padded\"?"), "{error}");
    let feed = session.open("train", &FeedOptions::default()).expect("a feed");
    let check = |options: &ReadOptions, phrases: &[&str]| {
        let error = feed.read(options).err().expect("options that do not fit");
        for phrase in phrases {
            assert!(error.to_string().contains(phrase), "{options:?} lacks {phrase:?}: {error}");
        }
    };
    let shares = "allowed world sizes are 1, 2, 3, 4, 6, 12";
    let options = ReadOptions { world_size: 5, ..ReadOptions::default() };
    check(&options, &["the global batch of 12 samples cannot be divided among 5 ranks", shares]);
    let options = ReadOptions { world_size: 2, batch_size: Some(5), ..ReadOptions::default() };
    check(&options, &["2 ranks with batches of 5 do not make a global batch of 12 samples", shares]);
    let options = ReadOptions { from: Start::Offset { epoch: 0, offset: 6 }, ..ReadOptions::default() };
    check(&options, &["\"from\" is offset 6, inside a global step of 12", "begin at 0 or 12"]);
}

#[tokio::test]
async fn explaining_shows_the_buckets_and_other_feeds_have_none() {
    let (folder, script) = texts(40);
    let session = session(&folder, &script).await;
    let explained = session.explain("train", &FeedOptions::default()).await.expect("an explanation");
    let shown = explained.to_string();
    for phrase in ["  buckets  by length of tokens: 4,8,16 and longer; global steps of 12", "    length:\n"] {
        assert!(shown.contains(phrase), "{shown}");
    }
    let json = serde_json::to_value(&explained).expect("plain data");
    let buckets = serde_json::json!({"by": "tokens", "boundaries": [4, 8, 16], "global_batch_size": 12});
    assert_eq!(json["settings"]["buckets"], buckets);
    let whole = session.explain("whole", &FeedOptions::default()).await.expect("an explanation");
    assert!(!whole.to_string().contains("buckets"));
    assert!(serde_json::to_value(&whole).expect("plain data")["settings"].get("buckets").is_none());
    // Flags give the same feed, and a preview of it works.
    let flags = ["--bucket-by-length", "count", "--bucket-boundaries", "4,8", "--global-batch-size", "20"];
    let (batches, summary) = run([&[script.as_str(), "--pipeline", "whole", "--world-size", "4"][..], &flags].concat());
    assert!(batches.iter().all(|batch| batch.rows + batch.gaps == 5), "{batches:?}");
    assert_eq!(summary["bad_rows"], 0);
    let preview = succeed(&mut forebay(["preview", &script, "--pipeline", "train", "--rows", "3", "--output", "json"]));
    assert_eq!(preview.lines().count(), 3);
}
