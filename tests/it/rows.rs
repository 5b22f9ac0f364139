//! Operators that derive rows: the result is a feed like any other, whichever process computes it.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int32Type, Int64Type};
use forebay_engine::{Batch, Feed, FeedOptions, OnError, ReadOptions, Session, Start, digest};

use crate::support::{Folder, Server, repository, run};

/// Writes documents of 0 to 20 tokens in files of 20 rows, and the pipelines of `sql` over them.
fn texts(rows: u64, sql: &str) -> (Folder, String) {
    let folder = Folder::new();
    for first in (0..rows).step_by(20) {
        let line = |id: u64| format!("{{\"id\": {id}, \"tokens\": {:?}}}\n", tokens(id));
        let lines: String = (first..rows.min(first + 20)).map(line).collect();
        folder.write(&format!("texts/{first:06}.jsonl"), lines);
    }
    let script = folder.script(&format!("CREATE EXTERNAL TABLE texts STORED AS JSONL LOCATION 'texts'; {sql}"));
    (folder, script)
}

fn tokens(id: u64) -> Vec<u64> {
    (0..id * 7919 % 21).map(|at| 100 * id + at + 1).collect()
}

pub(crate) async fn session(folder: &Folder, script: &str) -> Session {
    let session = Session::builder().threads(2).base(folder.path()).root("memory:///root").build().expect("a session");
    let sql = std::fs::read_to_string(script).expect("the script");
    session.execute("script.sql", &sql).await.expect("the script runs");
    session
}

pub(crate) async fn open(folder: &Folder, script: &str, options: &FeedOptions) -> Feed {
    session(folder, script).await.open("train", options).expect("a feed")
}

pub(crate) async fn read(feed: &Feed, options: &ReadOptions) -> Vec<Batch> {
    let mut reader = feed.read(options).expect("a reader");
    let mut batches = Vec::new();
    while let Some(batch) = reader.next().await {
        batches.push(batch.expect("a batch"));
    }
    batches
}

/// Maps epoch and offset to rows and digest.
type Log = BTreeMap<(u64, u64), (u64, String)>;

async fn log(feed: &Feed, world_size: u64, from: Start) -> Log {
    let mut log = Log::new();
    for rank in 0..world_size {
        let options = ReadOptions { rank, world_size, from: from.clone(), ..ReadOptions::default() };
        let rows = |batch: &Batch| (batch.records.num_rows() as u64, digest(&batch.records));
        let batches = read(feed, &options).await;
        log.extend(batches.iter().map(|batch| ((batch.epoch, batch.offset), rows(batch))));
    }
    log
}

pub(crate) fn integers(batch: &RecordBatch, column: &str) -> Vec<i64> {
    batch[column].as_primitive::<Int64Type>().values().to_vec()
}

/// Checks that the feed is the same on any number of ranks, from a server, and from the token of any step.
pub(crate) async fn is_a_feed(folder: &Folder, script: &str) {
    let feed = open(folder, script, &FeedOptions::default()).await;
    let whole = read(&feed, &ReadOptions::default()).await;
    let once = log(&feed, 1, Start::default()).await;
    assert!(once.len() > 6, "the test is about several steps");
    for world_size in [2, 3] {
        assert_eq!(log(&feed, world_size, Start::default()).await, once, "{world_size} ranks");
    }
    for batch in whole.iter().step_by(3) {
        let tail = once.clone().split_off(&(batch.epoch, batch.offset + 1));
        let from = Start::Token(batch.token.clone());
        // New processes, which have not computed anything before.
        let feed = open(folder, script, &FeedOptions::default()).await;
        assert_eq!(log(&feed, 3, from).await, tail, "after {}:{}", batch.epoch, batch.step);
    }
    let server = Server::start(script, &["--threads", "2"]);
    for world_size in [1, 2] {
        let mut remote = Log::new();
        for rank in 0..world_size {
            let (rank, world_size) = (rank.to_string(), world_size.to_string());
            let arguments = ["--connect", &server.uri, "--pipeline", "train", "--rank", &rank, "--world-size"];
            let (batches, _) = run([&arguments[..], &[&world_size]].concat());
            remote.extend(batches.into_iter().map(|batch| ((batch.epoch, batch.offset), (batch.rows, batch.digest))));
        }
        assert_eq!(remote, once, "{world_size} ranks of a server");
    }
}

const UNNEST: &str =
    "CREATE PIPELINE train WITH (shuffle = true, seed = 5, window_rows = 60, epochs = 2, batch_size = 70) AS
    SELECT id, item + 1 AS next FROM (SELECT id, unnest(tokens) AS item, tokens FROM texts WHERE id % 11 <> 0)
    WHERE item % 5 <> 0;";

#[tokio::test]
async fn unnested_rows_are_a_feed() {
    let (folder, script) = texts(130, UNNEST);
    let feed = open(&folder, &script, &FeedOptions::default()).await;
    let mut expected: Vec<(i64, i64)> = Vec::new();
    for id in (0..130).filter(|id| id % 11 != 0) {
        expected.extend(tokens(id).iter().filter(|&&item| item % 5 != 0).map(|&item| (id as i64, item as i64 + 1)));
    }
    let batches = read(&feed, &ReadOptions::default()).await;
    let epochs: Vec<Vec<(i64, i64)>> = (0..2)
        .map(|epoch| {
            let records = batches.iter().filter(|batch| batch.epoch == epoch).map(|batch| &batch.records);
            records.flat_map(|rows| integers(rows, "id").into_iter().zip(integers(rows, "next"))).collect()
        })
        .collect();
    for epoch in &epochs {
        assert_ne!(*epoch, expected, "the items of a list are shuffled too");
        let mut sorted = epoch.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, expected);
    }
    assert_ne!(epochs[0], epochs[1]);
    assert_eq!(feed.samples_per_epoch(), None);
    is_a_feed(&folder, &script).await;
}

#[tokio::test]
async fn without_shuffle_items_come_in_file_order() {
    let (folder, script) = texts(50, UNNEST);
    let feed = open(&folder, &script, &FeedOptions { shuffle: Some(false), ..FeedOptions::default() }).await;
    let batches = read(&feed, &ReadOptions { epochs: Some(1), ..ReadOptions::default() }).await;
    let next: Vec<i64> = batches.iter().flat_map(|batch| integers(&batch.records, "next")).collect();
    assert!(next.len() > 300 && next.is_sorted(), "{next:?}");
}

#[tokio::test]
async fn an_unnest_over_an_unnest_needs_no_other_columns() {
    let sql = "CREATE PIPELINE train AS SELECT unnest(pair) AS half FROM (
                   SELECT make_array(item, item + 1000) AS pair FROM (SELECT id, unnest(tokens) AS item FROM texts));";
    let (folder, script) = texts(30, sql);
    let feed = open(&folder, &script, &FeedOptions::default()).await;
    let batches = read(&feed, &ReadOptions::default()).await;
    let halves: Vec<i64> = batches.iter().flat_map(|batch| integers(&batch.records, "half")).collect();
    let pairs = (0..30).flat_map(tokens).flat_map(|item| [item as i64, item as i64 + 1000]);
    assert_eq!(halves, pairs.collect::<Vec<_>>());
}

#[tokio::test]
async fn each_copy_of_a_row_is_augmented_by_itself() {
    let folder = Folder::new();
    let script = folder.script(&format!(
        "CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION '{}';
         CREATE PIPELINE train WITH (shuffle = true) AS
             SELECT path, random_resized_crop(decode_image(bytes), height => 8, width => 8) AS image
             FROM (SELECT path, bytes, unnest([1, 2, 3]) AS copy FROM photos WHERE label = 'rocket');",
        repository().join("examples/photos").display()
    ));
    let sql = std::fs::read_to_string(&script).expect("the script");
    let session = Session::builder().threads(2).root("memory:///root").build().expect("a session");
    let sql = match session.execute("script.sql", &sql).await {
        Ok(_) => sql,
        Err(error) => panic!("{error}"),
    };
    assert!(sql.contains("unnest"));
    let feed = session.open("train", &FeedOptions::default()).expect("a feed");
    let mut crops: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for batch in read(&feed, &ReadOptions::default()).await {
        for row in 0..batch.records.num_rows() {
            let path = batch.records["path"].as_string::<i32>().value(row).to_owned();
            let image = batch.records.project(&[1]).expect("two columns").slice(row, 1);
            crops.entry(path).or_default().insert(digest(&image));
        }
    }
    assert!(crops.len() > 5, "the test is about several photographs, not {}", crops.len());
    assert!(crops.values().all(|crops| crops.len() == 3), "three different crops of each");
}

#[tokio::test]
async fn bad_rows_below_and_above_are_named_and_keep_a_place() {
    // Below the UNNEST, a failing row takes one position. Above it, each of its items takes one.
    for (sql, places) in [
        ("SELECT id, unnest(tokens) AS item FROM (SELECT id, tokens, 1 / (id - 3) AS q FROM texts) WHERE q <= 1", 1),
        ("SELECT id, q, unnest(tokens) AS item FROM (SELECT id, tokens, 1 / (id - 3) AS q FROM texts)", 1),
        ("SELECT id, item, 1 / (id - 3) AS q FROM (SELECT id, unnest(tokens) AS item FROM texts)", tokens(3).len()),
        (
            "SELECT id, item FROM (SELECT id, unnest(tokens) AS item FROM texts) WHERE 1 / (id - 3) <= 1",
            tokens(3).len(),
        ),
    ] {
        let (folder, script) = texts(40, &format!("CREATE PIPELINE train WITH (window_rows = 20) AS {sql};"));
        let skip = FeedOptions { on_error: Some(OnError::Skip), ..FeedOptions::default() };
        let feed = open(&folder, &script, &skip).await;
        let batches = read(&feed, &ReadOptions { batch_size: Some(16), ..ReadOptions::default() }).await;
        let items: Vec<i64> = batches.iter().flat_map(|batch| integers(&batch.records, "item")).collect();
        let expected = (0..40).filter(|&id| id != 3).flat_map(tokens).map(|item| item as i64);
        assert_eq!(items, expected.collect::<Vec<_>>(), "{sql}");
        assert_eq!(batches.iter().map(Batch::bad_rows).sum::<u64>(), places as u64, "{sql}");
        let feed = open(&folder, &script, &FeedOptions::default()).await;
        let mut reader = feed.read(&ReadOptions { batch_size: Some(16), ..ReadOptions::default() }).expect("a reader");
        let error = loop {
            match reader.next().await {
                Some(Ok(_)) => {}
                Some(Err(error)) => break error.to_string(),
                None => panic!("{sql}: the bad row is raised"),
            }
        };
        assert!(error.contains("000000.jsonl\", row 3: ") && error.contains("ivide by zero"), "{error}");
        // The same from a server, which transforms a window in chunks.
        let server = Server::start(&script, &["--threads", "1"]);
        let arguments = ["--connect", &server.uri, "--pipeline", "train", "--on-error", "skip", "--batch-size", "16"];
        let (remote, summary) = run(arguments);
        assert_eq!(remote.iter().map(|batch| batch.rows).sum::<u64>(), items.len() as u64);
        assert_eq!(summary["bad_rows"], places, "{sql}");
    }
}

const PACK: &str =
    "CREATE PIPELINE train WITH (shuffle = true, seed = 5, window_rows = 60, epochs = 2, batch_size = 4) AS
    SELECT input_ids, labels, position_ids, cu_seq_lens, tokens
    FROM pack((SELECT tokens, id FROM texts WHERE id % 11 <> 0), length => 32, pad_id => -1, strategy => 'concat');";

/// Returns a column of lists of any kind, row by row.
fn lists(batch: &RecordBatch, column: &str) -> Vec<Vec<i32>> {
    let column = cast(&batch[column], &DataType::new_list(DataType::Int32, true)).expect("a list");
    let rows = column.as_list::<i32>().iter();
    rows.map(|row| row.expect("a row").as_primitive::<Int32Type>().values().to_vec()).collect()
}

#[tokio::test]
async fn packed_rows_are_a_feed_that_holds_each_token_once() {
    for strategy in ["concat", "best_fit"] {
        let (folder, script) = texts(130, &PACK.replace("concat", strategy));
        let feed = open(&folder, &script, &FeedOptions::default()).await;
        let expected = (0..130).filter(|id| id % 11 != 0).flat_map(tokens).map(|token| token as i32);
        let expected: Vec<i32> = expected.collect();
        let batches = read(&feed, &ReadOptions::default()).await;
        let mut orders = BTreeSet::new();
        for epoch in 0..2 {
            let (mut all, mut sequences) = (Vec::<i32>::new(), 0);
            for batch in batches.iter().filter(|batch| batch.epoch == epoch).map(|batch| &batch.records) {
                let used = batch["tokens"].as_primitive::<Int32Type>();
                let columns = ["input_ids", "labels", "position_ids", "cu_seq_lens"].map(|name| lists(batch, name));
                let [input_ids, labels, position_ids, bounds] = columns;
                for row in 0..batch.num_rows() {
                    let used = used.value(row) as usize;
                    assert_eq!((input_ids[row].len(), *bounds[row].last().expect("an end") as usize), (32, used));
                    assert!(input_ids[row][used..].iter().all(|token| *token == -1));
                    assert!(labels[row][used..].iter().all(|label| *label == -100));
                    for run in bounds[row].windows(2) {
                        let run = run[0] as usize..run[1] as usize;
                        assert_eq!(position_ids[row][run.clone()], (0..run.len() as i32).collect::<Vec<_>>());
                        assert_eq!(labels[row][run.start], -100, "nothing before a document tells its first token");
                        assert_eq!(labels[row][run.start + 1..run.end], input_ids[row][run.start + 1..run.end]);
                        let document: BTreeSet<i32> =
                            input_ids[row][run].iter().map(|token| (token - 1) / 100).collect();
                        assert_eq!(document.len(), 1, "one document between two bounds");
                    }
                    all.extend(&input_ids[row][..used]);
                    sequences += 1;
                }
            }
            orders.insert(all.clone());
            all.sort_unstable();
            assert_eq!(all, expected, "{strategy}");
            let (least, most) = (expected.len().div_ceil(32), expected.len().div_ceil(32) + 4);
            assert!((least..=most).contains(&sequences), "{strategy}: {sequences} sequences, {least} are needed");
        }
        assert_eq!(orders.len(), 2, "documents are shuffled before they are packed");
        let field = feed.schema().field_with_name("input_ids").expect("a column").clone();
        assert_eq!(field.metadata()["ARROW:extension:name"], "arrow.fixed_shape_tensor");
        assert_eq!(field.metadata()["ARROW:extension:metadata"], "{\"shape\":[32]}");
        is_a_feed(&folder, &script).await;
    }
}

#[tokio::test]
async fn bad_documents_are_named_and_keep_a_place() {
    let sql = "CREATE PIPELINE train AS SELECT input_ids FROM pack(
                   (SELECT CASE WHEN id = 3 THEN [1, NULL] ELSE tokens END AS tokens FROM texts), length => 16);";
    let (folder, script) = texts(40, sql);
    let skip = FeedOptions { on_error: Some(OnError::Skip), ..FeedOptions::default() };
    let batches = read(&open(&folder, &script, &skip).await, &ReadOptions::default()).await;
    let total: usize = (0..40).filter(|&id| id != 3).map(|id| tokens(id).len()).sum();
    assert_eq!(batches.iter().map(|batch| batch.records.num_rows()).sum::<usize>(), total.div_ceil(16));
    assert_eq!(batches.iter().map(Batch::bad_rows).sum::<u64>(), 1);
    let feed = open(&folder, &script, &FeedOptions::default()).await;
    let mut reader = feed.read(&ReadOptions::default()).expect("a reader");
    let error = reader.next().await.expect("a result").expect_err("the bad row is raised").to_string();
    assert!(error.contains("000000.jsonl\", row 3: ") && error.contains("a list of tokens holds a null"), "{error}");
}

#[tokio::test]
async fn a_limit_is_the_first_rows_of_the_table_in_any_order() {
    let sql = "CREATE PIPELINE train WITH (shuffle = true, seed = 5, window_rows = 40, epochs = 2, batch_size = 4) AS
                   SELECT id, array_length(tokens) AS n FROM texts LIMIT 47;";
    let (folder, script) = texts(130, sql);
    let feed = open(&folder, &script, &FeedOptions::default()).await;
    // The count is known before anything is read, as without LIMIT.
    assert_eq!(feed.samples_per_epoch(), Some(47));
    for epoch in 0..2 {
        let batches = read(&feed, &ReadOptions::default()).await;
        let records = batches.iter().filter(|batch| batch.epoch == epoch).map(|batch| &batch.records);
        let mut ids: Vec<i64> = records.flat_map(|rows| integers(rows, "id")).collect();
        assert!(!ids.is_sorted());
        ids.sort_unstable();
        assert_eq!(ids, (0..47).collect::<Vec<_>>());
    }
    is_a_feed(&folder, &script).await;
}

#[tokio::test]
async fn a_sample_is_the_same_rows_in_every_epoch_and_under_every_seed() {
    let sql = "CREATE PIPELINE train WITH (shuffle = true, window_rows = 100, epochs = 2, batch_size = 8) AS
                   SELECT id FROM texts TABLESAMPLE BERNOULLI (20) REPEATABLE (3);";
    let (folder, script) = texts(400, sql);
    let ids = async |script: &str, seed: u64| {
        let feed = open(&folder, script, &FeedOptions { seed: Some(seed), ..FeedOptions::default() }).await;
        let mut epochs: [BTreeSet<i64>; 2] = Default::default();
        for batch in read(&feed, &ReadOptions::default()).await {
            epochs[batch.epoch as usize].extend(integers(&batch.records, "id"));
        }
        let [first, second] = epochs;
        assert_eq!(first, second);
        first
    };
    let sample = ids(&script, 1).await;
    assert!((50..=110).contains(&sample.len()), "{} of 400", sample.len());
    assert_eq!(ids(&script, 2).await, sample, "a feed's seed is about order");
    is_a_feed(&folder, &script).await;
    let sql = std::fs::read_to_string(&script).expect("the script");
    let other = folder.script(&sql.replace("REPEATABLE (3)", ""));
    assert_ne!(ids(&other, 1).await, sample);
    let all = folder.script(&sql.replace("BERNOULLI (20)", "BERNOULLI (30)"));
    assert!(ids(&all, 1).await.is_superset(&sample), "a larger sample holds a smaller one");
}
