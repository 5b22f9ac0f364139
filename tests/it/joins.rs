//! Joins: samples with columns of a table in memory are delivered like the samples of any other feed.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::AsArray;
use forebay_engine::{
    Batch, ErrorKind, Feed, FeedOptions, FeedSpec, LookupSpec, OnError, ReadOptions, Session, digest,
};

use crate::cluster::Cluster;
use crate::rows::{integers, is_a_feed, open, read, session};
use crate::support::{Folder, Server, log, repository, run};

/// Writes samples with `id` 0, 1, … in files of 20, with `tokens` of varying length, and the pipelines of `sql`. Two
/// thirds of the ids below `labels` have a label, and every seventh of these has three.
fn tables(samples: u64, labels: u64, sql: &str) -> (Folder, String) {
    let folder = Folder::new();
    for first in (0..samples).step_by(20) {
        let tokens = |id: u64| vec![id; (id % 9) as usize];
        let line = |id: u64| format!("{{\"id\": {id}, \"tokens\": {:?}}}\n", tokens(id));
        let lines: String = (first..samples.min(first + 20)).map(line).collect();
        folder.write(&format!("samples/{first:06}.jsonl"), lines);
    }
    let labels: String = (0..labels).flat_map(names).map(|(id, name)| format!("{id},{name}\n")).collect();
    folder.write("labels.csv", format!("id,name\n{labels}"));
    let script = folder.script(&format!(
        "CREATE EXTERNAL TABLE samples STORED AS JSONL LOCATION 'samples';
         CREATE EXTERNAL TABLE labels STORED AS CSV LOCATION 'labels.csv'; {sql}"
    ));
    (folder, script)
}

/// Returns the label rows of an id.
fn names(id: u64) -> Vec<(u64, String)> {
    let count = if id.is_multiple_of(3) { 0 } else { 1 + 2 * u64::from(id.is_multiple_of(7)) };
    (0..count).map(|at| (id, format!("n{id}.{at}"))).collect()
}

const TRAIN: &str =
    "CREATE PIPELINE train WITH (shuffle = true, seed = 5, window_rows = 60, epochs = 2, batch_size = 16) AS
    SELECT s.id, name FROM samples s LEFT JOIN labels l ON s.id = l.id WHERE s.id % 11 <> 0;";

fn text(batch: &Batch, column: &str) -> Vec<Option<String>> {
    batch.records[column].as_string::<i32>().iter().map(|text| text.map(str::to_owned)).collect()
}

#[tokio::test]
async fn joined_rows_are_a_feed() {
    for kind in ["LEFT JOIN", "JOIN"] {
        let (folder, script) = tables(200, 150, &TRAIN.replace("LEFT JOIN", kind));
        let mut expected = Vec::new();
        for id in (0..200).filter(|id| id % 11 != 0) {
            let found = if id < 150 { names(id) } else { Vec::new() };
            if found.is_empty() && kind == "LEFT JOIN" {
                expected.push((id as i64, None));
            }
            expected.extend(found.into_iter().map(|(id, name)| (id as i64, Some(name))));
        }
        expected.sort();
        let feed = open(&folder, &script, &FeedOptions::default()).await;
        let batches = read(&feed, &ReadOptions::default()).await;
        let mut orders = BTreeSet::new();
        for epoch in 0..2 {
            let of_epoch = batches.iter().filter(|batch| batch.epoch == epoch);
            let rows = of_epoch.flat_map(|batch| integers(&batch.records, "id").into_iter().zip(text(batch, "name")));
            let mut rows: Vec<(i64, Option<String>)> = rows.collect();
            orders.insert(rows.clone());
            rows.sort();
            assert_eq!(rows, expected, "{kind}");
        }
        assert_eq!(orders.len(), 2, "rows are shuffled");
        assert_eq!(feed.samples_per_epoch(), None);
        is_a_feed(&folder, &script).await;
    }
}

#[tokio::test]
async fn two_workers_join_as_one_process_does() {
    let (_folder, script) = tables(200, 150, TRAIN);
    let here = log(run([&script, "--pipeline", "train"]).0);
    let cluster = Cluster::start(&script, 1, 2);
    let mut remote = Vec::new();
    for rank in ["0", "1"] {
        let uris = cluster.uris();
        remote.extend(run(["--connect", &uris, "--pipeline", "train", "--rank", rank, "--world-size", "2"]).0);
    }
    assert_eq!(log(remote), here);
}

#[tokio::test]
async fn without_shuffle_rows_come_in_the_order_of_both_files() {
    let (folder, script) = tables(90, 90, TRAIN);
    let feed = open(&folder, &script, &FeedOptions { shuffle: Some(false), ..FeedOptions::default() }).await;
    let batches = read(&feed, &ReadOptions { epochs: Some(1), ..ReadOptions::default() }).await;
    let found: Vec<Option<String>> = batches.iter().flat_map(|batch| text(batch, "name")).collect();
    let expected = (0..90).filter(|id| id % 11 != 0).flat_map(|id| match names(id) {
        found if found.is_empty() => vec![None],
        found => found.into_iter().map(|(_, name)| Some(name)).collect(),
    });
    assert_eq!(found, expected.collect::<Vec<_>>());
}

#[tokio::test]
async fn a_row_that_finds_one_row_stays_the_sample_that_it_is() {
    let folder = Folder::new();
    let photos = repository().join("examples/photos");
    folder.write("classes.csv", "label,class\ncat,7\nrocket,8\n");
    folder.write("twice.csv", "label,class\ncat,7\nrocket,8\ncat,9\n");
    let crop = "random_resized_crop(decode_image(bytes), height => 8, width => 8) AS image";
    let script = folder.script(&format!(
        "CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION '{}';
         CREATE EXTERNAL TABLE classes STORED AS CSV LOCATION 'classes.csv';
         CREATE EXTERNAL TABLE twice STORED AS CSV LOCATION 'twice.csv';
         CREATE PIPELINE plain WITH (shuffle = true) AS SELECT path, {crop} FROM photos;
         CREATE PIPELINE joined WITH (shuffle = true) AS
             SELECT path, {crop}, class FROM photos LEFT JOIN classes USING (label);
         CREATE PIPELINE doubled WITH (shuffle = true) AS
             SELECT path, {crop}, class FROM photos JOIN twice USING (label);",
        photos.display()
    ));
    let session = session(&folder, &script).await;
    let crops = async |name: &str| {
        let feed = session.open(name, &FeedOptions::default()).expect("a feed");
        let mut crops = Vec::new();
        for batch in read(&feed, &ReadOptions::default()).await {
            let image = batch.records.project(&[1]).expect("it has two columns");
            let paths = batch.records["path"].as_string::<i32>().iter().map(|path| path.expect("a path").to_owned());
            crops.extend(paths.enumerate().map(|(row, path)| (path, digest(&image.slice(row, 1)))));
        }
        crops
    };
    let (plain, joined, doubled) = (crops("plain").await, crops("joined").await, crops("doubled").await);
    assert_eq!(joined, plain, "the same order, and the same crops");
    let mut of_path: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, crop) in doubled {
        of_path.entry(path).or_default().insert(crop);
    }
    for (path, crop) in plain {
        match of_path.get(&path) {
            Some(crops) if path.starts_with("cat") => assert_eq!(crops.len(), 2, "{path}: another crop for each row"),
            Some(crops) => assert_eq!(*crops, BTreeSet::from([crop]), "{path}"),
            None => assert!(!path.starts_with("cat") && !path.starts_with("rocket"), "{path}"),
        }
    }
}

#[tokio::test]
async fn bad_rows_beside_a_join_are_named_and_keep_a_place() {
    // Below the join, a failing row takes one position. Above the join, each of its matches takes one.
    for (sql, places) in [
        ("SELECT s.id, q FROM (SELECT id, 1 / (id - 7) AS q FROM samples) s JOIN labels l ON s.id = l.id", 1),
        ("SELECT s.id FROM samples s JOIN labels l ON s.id + 0 / (s.id - 7) = l.id", 1),
        ("SELECT s.id, 1 / (s.id - 7) AS q FROM samples s JOIN labels l ON s.id = l.id", names(7).len()),
        ("SELECT s.id FROM samples s JOIN labels l ON s.id = l.id AND 1 / (s.id + l.id - 14) <= 1", names(7).len()),
    ] {
        let (folder, script) = tables(40, 40, &format!("CREATE PIPELINE train WITH (window_rows = 20) AS {sql};"));
        let skip = FeedOptions { on_error: Some(OnError::Skip), ..FeedOptions::default() };
        let feed = open(&folder, &script, &skip).await;
        let batches = read(&feed, &ReadOptions { batch_size: Some(16), ..ReadOptions::default() }).await;
        let ids: Vec<i64> = batches.iter().flat_map(|batch| integers(&batch.records, "id")).collect();
        let expected = (0..40).filter(|&id| id != 7).flat_map(|id| names(id).into_iter().map(|(id, _)| id as i64));
        assert_eq!(ids, expected.collect::<Vec<_>>(), "{sql}");
        assert_eq!(batches.iter().map(Batch::bad_rows).sum::<u64>(), places as u64, "{sql}");
        let feed = open(&folder, &script, &FeedOptions::default()).await;
        let error = fails(&feed).await;
        assert!(error.contains("000000.jsonl\", row 7: ") && error.contains("ivide by zero"), "{error}");
        let quarantine = FeedOptions { on_error: Some(OnError::Quarantine), ..FeedOptions::default() };
        let batches = read(&open(&folder, &script, &quarantine).await, &ReadOptions::default()).await;
        assert_eq!(batches.iter().map(Batch::bad_rows).sum::<u64>(), places as u64, "{sql}");
    }
}

async fn fails(feed: &Feed) -> String {
    let mut reader = feed.read(&ReadOptions { batch_size: Some(16), ..ReadOptions::default() }).expect("a reader");
    loop {
        match reader.next().await {
            Some(Ok(_)) => {}
            Some(Err(error)) => return error.to_string(),
            None => panic!("the feed does not fail"),
        }
    }
}

#[tokio::test]
async fn a_bad_row_of_a_joined_table_is_an_error_whatever_on_error_says() {
    for (query, reason) in [
        ("SELECT s.id, name FROM samples s JOIN labels l ON s.id = l.id", "id"),
        ("SELECT s.id FROM samples s JOIN (SELECT id, 1 / (id - 4) AS q FROM labels) l ON s.id = l.q", "ivide by zero"),
    ] {
        let (folder, script) = tables(40, 40, &format!("CREATE PIPELINE train AS {query};"));
        let mut row = 2;
        if reason == "id" {
            let labels = std::fs::read_to_string(folder.path().join("labels.csv")).expect("labels");
            folder.write("labels.csv", labels.replace("\n8,", "\neight,"));
            let sql = std::fs::read_to_string(&script).expect("the script");
            folder.script(&sql.replace("TABLE labels STORED", "TABLE labels (id BIGINT, name VARCHAR) STORED"));
            row = 7;
        }
        for on_error in [OnError::Raise, OnError::Skip, OnError::Quarantine] {
            let feed =
                open(&folder, &script, &FeedOptions { on_error: Some(on_error), ..FeedOptions::default() }).await;
            let error = fails(&feed).await;
            assert!(error.contains(&format!("labels.csv\", row {row}: ")) && error.contains(reason), "{error}");
        }
    }
}

#[tokio::test]
async fn a_joined_table_is_pinned_and_part_of_the_feed() {
    let (folder, script) = tables(60, 60, TRAIN);
    let feed = open(&folder, &script, &FeedOptions::default()).await;
    let labels = std::fs::read_to_string(folder.path().join("labels.csv")).expect("labels");
    folder.write("labels.csv", format!("{labels}59,more\n"));
    // Nothing has been read yet, and the file differs from the pinned one.
    let error = fails(&feed).await;
    assert!(error.contains("labels.csv\" changed since the feed's snapshot was taken"), "{error}");
    let changed = open(&folder, &script, &FeedOptions::default()).await;
    assert_ne!(changed.id(), feed.id());
    let token = read(&changed, &ReadOptions::default()).await[0].token.clone();
    folder.write("labels.csv", &labels);
    let again = open(&folder, &script, &FeedOptions::default()).await;
    let from = forebay_engine::Start::Token(token);
    let refused = again.read(&ReadOptions { from, ..ReadOptions::default() }).err().expect("a token of another feed");
    assert!(refused.to_string().contains("the resume token is of feed"), "{refused}");
    assert_eq!(again.identity()["lookups"][0][0], "labels");
}

#[tokio::test]
async fn a_spec_carries_the_joined_tables() {
    let sql = "CREATE PIPELINE train WITH (shuffle = true, window_rows = 60) AS
        SELECT s.id, a.name, b.name AS other FROM samples s JOIN labels a ON s.id = a.id
        LEFT JOIN labels b ON s.id + 1 = b.id WHERE s.id NOT IN (SELECT id FROM samples WHERE id > 50);";
    let (folder, script) = tables(100, 90, sql);
    let feed = open(&folder, &script, &FeedOptions::default()).await;
    let text = serde_json::to_string(&feed.spec()).expect("a spec is JSON");
    let spec: FeedSpec = serde_json::from_str(&text).expect("it can be read");
    assert_eq!(spec, feed.spec());
    let tables: Vec<&str> = spec.lookups.iter().map(|LookupSpec { table, .. }| table.as_str()).collect();
    assert_eq!(tables, ["labels"], "each table once, and not the driving one again");
    let elsewhere = Session::builder().threads(2).base("/another").root("/another/root").build().expect("a session");
    let opened = elsewhere.open_spec(&spec, &feed).await.expect("the same feed");
    assert_eq!(opened.id(), feed.id());
    let digests = async |feed: &Feed| {
        let batches = read(feed, &ReadOptions::default()).await;
        batches.iter().map(|batch| digest(&batch.records)).collect::<Vec<_>>()
    };
    let expected = digests(&feed).await;
    assert!(expected.len() > 1);
    assert_eq!(digests(&opened).await, expected);
    let mut other = spec.clone();
    other.lookups[0].snapshot = spec.snapshot.clone();
    let refused = elsewhere.open_spec(&other, &feed).await.err().expect("its labels are samples");
    assert!(matches!(refused.kind(), ErrorKind::Conflict | ErrorKind::Invalid), "{refused}");
}

#[tokio::test]
async fn trace_names_the_rows_of_the_left_side() {
    let (folder, script) = tables(60, 60, TRAIN);
    let feed = open(&folder, &script, &FeedOptions { shuffle: Some(false), ..FeedOptions::default() }).await;
    let options = ReadOptions { batch_size: Some(16), ..ReadOptions::default() };
    let batches = read(&feed, &options).await;
    let traced = feed.trace(&options, 0, 2).await.expect("a trace");
    let ids: Vec<i64> = traced
        .iter()
        .map(|source| {
            let name = source.file.rsplit('/').next().expect("a name").trim_end_matches(".jsonl");
            name.parse::<i64>().expect("a number") + source.row as i64
        })
        .collect();
    assert_eq!(ids, integers(&batches[2].records, "id"));
}

#[tokio::test]
async fn joins_stand_below_packing_and_above_unnesting_and_by_lengths() {
    let sql = "CREATE PIPELINE packed WITH (window_rows = 40) AS SELECT input_ids FROM pack(
                   (SELECT tokens FROM samples JOIN (SELECT id FROM labels WHERE name LIKE '%.0') l USING (id)),
                   length => 8);
               CREATE PIPELINE unnested WITH (window_rows = 40, shuffle = true) AS
                   SELECT item, name FROM (SELECT unnest(tokens) AS item FROM samples) JOIN labels ON item = id;
               CREATE PIPELINE lengths WITH (
                   bucket_by_length = 'name', bucket_boundaries = '5,6', global_batch_size = 8
               ) AS
                   SELECT id, name FROM samples JOIN labels USING (id);";
    let (folder, script) = tables(120, 120, sql);
    let session = session(&folder, &script).await;
    let batches = async |name: &str| {
        let feed = session.open(name, &FeedOptions::default()).expect("a feed");
        read(&feed, &ReadOptions::default()).await
    };
    let packed = batches("packed").await;
    let tokens = (0..120).filter(|&id| !names(id).is_empty()).map(|id| id % 9).sum::<u64>();
    let used: usize = packed
        .iter()
        .map(|batch| {
            let rows = batch.records["input_ids"].as_fixed_size_list().values().clone();
            rows.as_primitive::<arrow::datatypes::Int32Type>().values().iter().filter(|&&token| token != 0).count()
        })
        .sum();
    assert_eq!(used as u64, tokens);
    let unnested = batches("unnested").await;
    let rows: usize = unnested.iter().map(|batch| batch.records.num_rows()).sum();
    assert_eq!(rows as u64, (0..120).map(|id| id % 9 * names(id).len() as u64).sum::<u64>());
    let lengths = batches("lengths").await;
    let rows: usize = lengths.iter().map(|batch| batch.records.num_rows()).sum();
    assert_eq!(rows, (0..120).map(|id| names(id).len()).sum::<usize>());
    // The remainders of the buckets share the last steps.
    let is_of_one = |batch: &&Batch| {
        let lengths: BTreeSet<usize> = text(batch, "name").iter().flatten().map(|name| name.len().max(5)).collect();
        lengths.len() == 1
    };
    let of_one = lengths.iter().filter(is_of_one).count();
    assert!(of_one + 3 >= lengths.len() && of_one > 6, "{of_one} of {} steps", lengths.len());
}

#[tokio::test]
async fn joined_samples_are_shown_and_explained() {
    let (folder, script) = tables(40, 40, TRAIN);
    let session = session(&folder, &script).await;
    let explained = session.explain("train", &FeedOptions::default()).await.expect("an explanation").to_string();
    for phrase in ["joins    labels: 1 files, ", "rows are joined", "lookup in labels:"] {
        assert!(explained.contains(phrase), "{phrase}: {explained}");
    }
    let preview = session.preview("train", &FeedOptions::default(), 4).await.expect("rows");
    assert_eq!(preview.num_rows(), 4);
    // The same over Flight.
    let server = Server::start(&script, &["--threads", "1"]);
    assert!(!run(["--connect", &server.uri, "--pipeline", "train"]).0.is_empty());
}
