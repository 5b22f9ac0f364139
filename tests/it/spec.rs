//! Specs: a process without tables and pipelines, in another folder, opens a feed's spec as the same feed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::datatypes::{DataType, Field, SchemaRef};
use forebay_engine::{
    ErrorKind, Feed, FeedOptions, FeedSpec, Output, ReadOptions, Session, SnapshotPieces, SnapshotSource,
    arrays::finish_deferred, digest,
};
use futures::stream;
use futures::{StreamExt, TryStreamExt};
use serde_json::{Value, json};

use crate::support::{Folder, repository};

const PHOTOS: &str = "CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION 'photos';
    /* Not part of the statement. */
    CREATE OR REPLACE PIPELINE photos WITH (shuffle = true, seed = 17, batch_size = 10, window_bytes = '1MiB') AS
    -- Is part of it: 'ü'
    SELECT normalize(random_hflip(random_resized_crop(decode_image(bytes), height => 32, width => 32))) AS image,
        label, path
    FROM photos WHERE hash_bucket(path, buckets => 3) <> 1; CREATE PIPELINE other AS SELECT path FROM photos";

/// Returns the session of a process that runs the script, in the script's folder.
async fn dispatcher(base: &Path, script: &str) -> Session {
    let session = Session::builder().threads(2).base(base).root("memory:///root").build().expect("a session");
    session.execute("script.sql", script).await.expect("the script runs");
    session
}

/// Returns the session of a process without a script, in another folder.
fn worker() -> Session {
    Session::builder().threads(2).base("/another/folder").root("/another/root").build().expect("a session")
}

fn photos_folder() -> std::path::PathBuf {
    repository().join("examples")
}

/// Returns two epochs as a trainer with this schema of samples receives them: position, token, digest.
async fn batches(feed: &Feed, schema: &SchemaRef) -> Vec<(u64, u64, String, String)> {
    let mut reader = feed.read(&ReadOptions { epochs: Some(2), ..ReadOptions::default() }).expect("a reader");
    let mut all = Vec::new();
    while let Some(batch) = reader.next().await {
        let batch = batch.expect("a batch");
        let records = finish_deferred(&batch.records, schema).expect("what is left can be done");
        all.push((batch.epoch, batch.offset, batch.token.to_string(), digest(&records)));
    }
    all
}

/// A source that alters the feed's snapshot in transit.
struct Altered<'a> {
    feed: &'a Feed,
    from: &'a str,
    to: &'a str,
}

#[async_trait::async_trait]
impl SnapshotSource for Altered<'_> {
    async fn snapshot(&self, id: &str) -> forebay_engine::Result<SnapshotPieces> {
        let pieces: Vec<_> = self.feed.snapshot(id).await?.try_collect().await?;
        let text = String::from_utf8(pieces.concat()).expect("JSON");
        assert!(text.contains(self.from), "{text}");
        let altered = text.replacen(self.from, self.to, 1);
        let pieces: Vec<_> = altered.as_bytes().chunks(1000).map(|piece| Ok(piece.to_vec().into())).collect();
        Ok(stream::iter(pieces).boxed())
    }
}

#[tokio::test]
async fn a_snapshot_that_is_not_what_its_id_says_is_refused() {
    let feed = dispatcher(&photos_folder(), PHOTOS).await.open("photos", &FeedOptions::default()).expect("a feed");
    let spec = travelled(&feed);
    let folder = format!("{}/photos/", photos_folder().display());
    let elsewhere = format!("{folder}x/");
    let altered = "the snapshot was altered: its id is ";
    for (from, to, why) in [
        (spec.snapshot.as_str(), spec.snapshot.as_str(), ""),
        (folder.as_str(), elsewhere.as_str(), altered),
        ("]]]\n]}", "]]],\n[\"z/z.jpg\",1,0,null,[[1,1,0,1,false]]]\n]}", altered),
        (spec.snapshot.as_str(), "0123", ", received 0123"),
        ("]]]\n", "]]]", "the snapshot is damaged: "),
    ] {
        let opened = worker().open_spec(&spec, &Altered { feed: &feed, from, to }).await;
        match (opened, why) {
            (Ok(opened), "") => assert_eq!(opened.id(), feed.id()),
            (Ok(_), why) => panic!("{why}: it opened"),
            (Err(error), why) => {
                assert!(!why.is_empty() && error.message().contains(why), "{why}: {error}");
                assert!(error.message().starts_with(&format!("feed {} cannot be opened here: ", feed.id())), "{error}");
            }
        }
    }
}

/// A source that counts how often the feed's snapshots are fetched.
struct Counted<'a>(&'a Feed, AtomicUsize);

#[async_trait::async_trait]
impl SnapshotSource for Counted<'_> {
    async fn snapshot(&self, id: &str) -> forebay_engine::Result<SnapshotPieces> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.snapshot(id).await
    }
}

#[tokio::test]
async fn a_snapshot_is_fetched_once_for_all_feeds() {
    let session = dispatcher(&photos_folder(), PHOTOS).await;
    let worker = worker();
    for (fetched, pipeline, seed) in [(1, "photos", 1), (1, "photos", 2), (1, "other", 1)] {
        let feed = session.open(pipeline, &FeedOptions { seed: Some(seed), ..FeedOptions::default() }).expect("a feed");
        let source = Counted(&feed, AtomicUsize::new(0));
        let spec = travelled(&feed);
        assert!(serde_json::to_string(&spec).expect("JSON").len() < 4096, "it does not list its files");
        worker.open_spec(&spec, &source).await.expect("the same feed");
        assert_eq!(source.1.load(Ordering::Relaxed), usize::from(seed == 1 && pipeline == "photos") * fetched);
    }
    // A session that has a snapshot does not fetch it.
    let feed = session.open("other", &FeedOptions::default()).expect("a feed");
    let source = Counted(&feed, AtomicUsize::new(0));
    session.open_spec(&feed.spec(), &source).await.expect("the same feed");
    assert_eq!(source.1.load(Ordering::Relaxed), 0);
}

/// Returns the feed's spec after conversion to JSON and back.
fn travelled(feed: &Feed) -> FeedSpec {
    let text = serde_json::to_string(&feed.spec()).expect("a spec is JSON");
    assert_eq!(text, serde_json::to_string(&feed.spec()).expect("a spec is JSON"));
    let spec = serde_json::from_str(&text).expect("it can be read");
    assert_eq!(feed.spec(), spec);
    spec
}

#[tokio::test]
async fn a_spec_opens_as_the_same_feed_elsewhere() {
    let photos = photos_folder();
    let folder = Folder::new();
    for file in 0..30 {
        let rows: String =
            (0..20).map(|row| format!("{{\"id\": {}, \"price\": {row}.5}}\n", file * 20 + row)).collect();
        folder.write(&format!("clicks/{file:02}.jsonl"), rows);
    }
    let clicks = "CREATE EXTERNAL TABLE \"Some clicks\" STORED AS JSONL LOCATION './clicks/*.jsonl';
        CREATE PIPELINE \"p q\" WITH (window_rows = 60) AS
        SELECT log1p(price) AS price, id FROM \"Some clicks\" WHERE price > 3 AND id % 7 <> 0";
    let options = FeedOptions { seed: Some(3), shuffle: Some(true), ..FeedOptions::default() };
    for (base, script, name, options) in [
        (photos.as_path(), PHOTOS, "photos", FeedOptions::default()),
        (photos.as_path(), PHOTOS, "photos", options.clone()),
        (folder.path(), clicks, "p q", options),
        (folder.path(), clicks, "p q", FeedOptions::default()),
    ] {
        let feed = dispatcher(base, script).await.open(name, &options).expect("a feed");
        let spec = travelled(&feed);
        let elsewhere = worker();
        let opened = elsewhere.open_spec(&spec, &feed).await.expect("the same feed");
        assert_eq!((opened.id(), opened.pipeline()), (feed.id(), feed.pipeline()));
        assert_eq!(opened.settings(), feed.settings());
        assert_eq!(opened.quarantine_url(), feed.quarantine_url());
        assert_eq!(opened.spec(), spec);
        let expected = batches(&feed, &feed.schema()).await;
        assert!(expected.len() > 20, "{} batches", expected.len());
        assert_eq!(batches(&opened, &feed.schema()).await, expected);
        assert!(elsewhere.pipelines().is_empty());
        let tables = elsewhere.execute("", "SHOW TABLES").await.expect("tables");
        assert!(matches!(tables.as_slice(), [Output::Rows(rows)] if rows.len() == 1), "{tables:?}");
    }
}

#[tokio::test]
async fn what_is_normalised_last_is_sent_as_pixels() {
    let columns = "SELECT normalize(crop) AS a, to_chw(normalize(crop, mean => [0, 0, 0])) AS b, crop,
            normalize(crop, std => [1, 1, 1]) AS c
        FROM (SELECT random_resized_crop(decode_image(bytes), 8, 8) AS crop FROM photos)";
    let script = PHOTOS.split_inclusive(';').next().expect("a table").to_owned()
        + &format!("CREATE PIPELINE train WITH (shuffle = true, seed = 1) AS {columns}");
    let session = dispatcher(&photos_folder(), &script).await;
    let feed = session.open("train", &FeedOptions::default()).expect("a feed");
    // Even in the same session: a feed that sends samples does not share them with a feed that reads them.
    for opened in [session.open_spec(&feed.spec(), &feed).await, worker().open_spec(&travelled(&feed), &feed).await] {
        let opened = opened.expect("the same feed");
        let types = |feed: &Feed| {
            let item = |field: &Arc<Field>| match field.data_type() {
                DataType::FixedSizeList(item, _) => item.data_type().clone(),
                other => other.clone(),
            };
            feed.schema().fields().iter().map(item).collect::<Vec<_>>()
        };
        let (float, byte) = (DataType::Float32, DataType::UInt8);
        assert_eq!(types(&opened), [byte.clone(), float.clone(), byte.clone(), byte.clone()]);
        assert_eq!(types(&feed), [float.clone(), float.clone(), byte, float]);
        assert_eq!(batches(&opened, &feed.schema()).await, batches(&feed, &feed.schema()).await);
    }
}

#[tokio::test]
async fn the_text_of_a_spec_is_the_statement() {
    let feed = dispatcher(&photos_folder(), PHOTOS).await.open("photos", &FeedOptions::default()).expect("a feed");
    let statement = feed.spec().statement;
    assert!(
        statement.starts_with("CREATE OR REPLACE PIPELINE photos WITH") && statement.ends_with("<> 1"),
        "{statement}"
    );
    assert!(statement.contains("-- Is part of it: 'ü'"), "{statement}");
}

#[tokio::test]
async fn a_spec_that_comes_to_another_feed_is_refused_with_the_difference() {
    let feed = dispatcher(&photos_folder(), PHOTOS).await.open("photos", &FeedOptions::default()).expect("a feed");
    let statement = feed.spec().statement;
    let id = feed.id();
    let check = async |kind: ErrorKind, phrases: &[&str], changes: &[(&str, Value)]| {
        let mut spec = serde_json::to_value(feed.spec()).expect("a spec is JSON");
        for (path, value) in changes {
            *spec.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value.clone();
        }
        let spec: FeedSpec = serde_json::from_value(spec).expect("it can be read");
        let error = worker().open_spec(&spec, &feed).await.err().unwrap_or_else(|| panic!("{changes:?} opened"));
        assert_eq!(error.kind(), kind, "{changes:?}: {error}");
        for phrase in phrases {
            assert!(error.to_string().contains(phrase), "{changes:?} lacks {phrase:?}: {error}");
        }
        // The error names the differences, and nothing else.
        for cause in ["forebay is version", "operator \"", "its query", "the snapshot", "its settings"] {
            let named = error.message().contains(cause);
            assert_eq!(named, phrases.iter().any(|phrase| phrase.contains(cause)), "{cause:?}: {error}");
        }
    };
    use ErrorKind::{Conflict, Invalid};
    let cannot = format!("feed {id} cannot be opened here: ");
    check(Conflict, &[&cannot, "its settings {\"seed\":18,", "the same build"], &[("/settings/seed", json!(18))]).await;
    check(Conflict, &["its settings"], &[("/settings/on_error", json!("skip"))]).await;
    check(Conflict, &["its settings"], &[("/feed", json!("0123456789abcdef"))]).await;
    let version = "forebay is version 0.1.0 here and 9.9.9 there";
    check(Conflict, &[version], &[("/forebay", json!("9.9.9")), ("/settings/seed", json!(18))]).await;
    let crop = "operator \"random_resized_crop\" is version 1 here and 7 there";
    check(Conflict, &[&cannot, crop], &[("/operators/random_resized_crop", json!(7))]).await;
    let more = [("/operators/random_resized_crop", json!(7)), ("/forebay", json!("9.9.9"))];
    check(Conflict, &[version, crop], &more).await;
    let missing = json!({"sharpen": 1, "normalize": 1});
    check(Conflict, &["operator \"sharpen\" is missing here"], &[("/operators", missing)]).await;
    let other = [("/statement", json!(statement.replace("height => 32", "height => 33")))];
    check(Conflict, &["its query differs from the one that the feed was opened with"], &other).await;
    let query = "its query does not compile";
    let unknown = [("/statement", json!(statement.replace("random_hflip", "random_flip")))];
    check(Conflict, &[query, "random_flip"], &unknown).await;
    check(Conflict, &[query, "nowhere"], &[("/statement", json!(statement.replace("FROM photos", "FROM nowhere")))])
        .await;
    check(Conflict, &[query], &[("/table", json!("pictures"))]).await;
    check(Conflict, &[query], &[("/statement", json!("CREATE PIPELINE photos AS SELECT ("))]).await;
    let none = "its statement is not the CREATE PIPELINE of \"photos\"";
    for text in ["", "SHOW TABLES", "CREATE PIPELINE other AS SELECT path FROM photos"] {
        check(Conflict, &[none], &[("/statement", json!(text))]).await;
    }
    check(Conflict, &[none], &[("/statement", json!(format!("DROP PIPELINE photos; {statement}")))]).await;
    let altered = "the snapshot was altered: its id is ";
    check(Conflict, &[&cannot, altered], &[("/dataset/location", json!(photos_folder()))]).await;
    let away = [("/dataset/location", json!("/nowhere"))];
    check(Invalid, &["of the snapshot is not under \"/nowhere\"", "the snapshot"], &away).await;
    check(Invalid, &["not an absolute path or URL"], &[("/dataset/location", json!("photos"))]).await;
    check(Invalid, &["not an absolute path or URL"], &[("/root", json!(".forebay"))]).await;
    check(Invalid, &["\"window_rows\" must be positive"], &[("/settings/window_rows", json!(0))]).await;
    // A different version alone is not a difference, and neither is a setting outside the identity.
    let mut spec = feed.spec();
    spec.forebay = "9.9.9".to_owned();
    spec.root = "memory:///elsewhere".to_owned();
    let opened = worker().open_spec(&spec, &feed).await.expect("the same feed");
    assert_eq!((opened.id(), opened.quarantine_url()), (id, format!("memory:///elsewhere/quarantine/{id}").as_str()));
}

#[tokio::test]
async fn specs_name_their_tables_as_they_like() {
    let (first, second) = (Folder::new(), Folder::new());
    first.write("t.csv", "a\n1\n2\n");
    second.write("t.csv", "a,b\nx,1.5\ny,2.5\nz,3.5\n");
    let worker = worker();
    let mut feeds = Vec::new();
    for folder in [&first, &second] {
        let script = "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 't.csv'; CREATE PIPELINE p AS SELECT * FROM t";
        let feed = dispatcher(folder.path(), script).await.open("p", &FeedOptions::default()).expect("a feed");
        let opened = worker.open_spec(&travelled(&feed), &feed).await.expect("the same feed");
        feeds.push((feed, opened));
    }
    for (feed, opened) in &feeds {
        assert_eq!(batches(feed, &feed.schema()).await, batches(opened, &feed.schema()).await);
    }
    assert_ne!(feeds[0].1.id(), feeds[1].1.id());
    // Opening a spec neither sees nor changes the worker's own tables.
    let own = Folder::new();
    let path = own.write("t.csv", "c\ntrue\n");
    let sql = format!(
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{}'; CREATE PIPELINE p AS SELECT * FROM t",
        path.display()
    );
    worker.execute("own.sql", &sql).await.expect("the script runs");
    let spec = feeds[0].0.spec();
    assert_eq!(worker.open_spec(&spec, &feeds[0].0).await.expect("the same feed").id(), spec.feed);
    let schema = worker.open("p", &FeedOptions::default()).expect("a feed").schema();
    assert_eq!(schema.field(0).name(), "c");
}

/// Writes a folder of three small files, and opens the feed over it in its own process.
async fn small() -> (Folder, Feed) {
    let folder = Folder::new();
    (0..3).for_each(|file| drop(folder.write(&format!("t/{file}.csv"), format!("a\n{file}0\n{file}1\n"))));
    let script = "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 't'; CREATE PIPELINE p AS SELECT * FROM t";
    let feed = dispatcher(folder.path(), script).await.open("p", &FeedOptions::default()).expect("a feed");
    (folder, feed)
}

#[tokio::test]
async fn a_file_that_came_later_does_not_matter_and_one_that_changed_does() {
    let (folder, feed) = small().await;
    let spec = travelled(&feed);
    let expected = batches(&feed, &feed.schema()).await;
    folder.write("t/1b.csv", "a\n999\n");
    assert_eq!(
        batches(&worker().open_spec(&spec, &feed).await.expect("the same feed"), &feed.schema()).await,
        expected
    );
    let path = folder.write("t/1.csv", "a\n123\n45\n");
    let feed = worker().open_spec(&spec, &feed).await.expect("opening looks at no file");
    let error =
        feed.read(&ReadOptions::default()).expect("a reader").next().await.expect("a result").expect_err("a change");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    let expected = format!("\"{}\" changed since the feed's snapshot was taken", path.display());
    assert!(error.to_string().contains(&expected), "{error}");
}

#[tokio::test]
async fn a_spec_opened_again_shares_its_windows() {
    let (folder, feed) = small().await;
    let (worker, spec) = (worker(), travelled(&feed));
    // A server opens specs on separate tasks.
    fn is_send<F: Future + Send>(opening: F) -> F {
        opening
    }
    let first = is_send(worker.open_spec(&spec, &feed)).await.expect("the same feed");
    let options = ReadOptions { batch_size: Some(2), ..ReadOptions::default() };
    let mut reader = first.read(&options).expect("a reader");
    reader.next().await.expect("a batch").expect("a batch");
    // From here on, rows can come only from the window in memory.
    std::fs::remove_dir_all(folder.path().join("t")).expect("a folder");
    let second = worker.open_spec(&travelled(&feed), &feed).await.expect("the same feed");
    let batch = second.read(&options).expect("a reader").next().await.expect("a batch").expect("a shared window");
    assert_eq!(batch.records.num_rows(), 2);
    let mut alone = spec.clone();
    alone.root = "memory:///another".to_owned();
    let third = worker.open_spec(&alone, &feed).await.expect("the same feed");
    assert_eq!((third.id(), third.quarantine_url().starts_with("memory:///another/")), (second.id(), true));
}

#[tokio::test]
async fn a_file_that_a_call_names_is_part_of_the_feed() {
    let folder = Folder::new();
    folder.write("rows.jsonl", "{\"colour\": \"red\"}\n{\"colour\": \"green\"}\n");
    folder.write("colours.txt", "red\ngreen\n");
    // The file's path is relative to the table's folder, whatever the folder of the process or of a worker.
    let script = "CREATE EXTERNAL TABLE t STORED AS JSONL LOCATION 'rows.jsonl';
         CREATE PIPELINE p AS SELECT vocab_apply(colour, vocabulary => 'colours.txt') AS place FROM t";
    let opened = async || dispatcher(folder.path(), script).await.open("p", &FeedOptions::default()).expect("a feed");
    let first = opened().await;
    let again = opened().await;
    assert_eq!(again.id(), first.id());
    let spec = travelled(&first);
    assert_eq!(worker().open_spec(&spec, &first).await.expect("the same feed").id(), first.id());

    folder.write("colours.txt", "green\nred\n");
    assert_ne!(opened().await.id(), first.id());
    let refused = worker().open_spec(&spec, &first).await.err().expect("another file");
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(refused.message().contains("\"colours.txt\" has different content here"), "{refused}");
    // A feed that was planned before continues with the rows that it has read.
    let digests =
        |batches: Vec<(u64, u64, String, String)>| batches.into_iter().map(|batch| batch.3).collect::<Vec<_>>();
    assert_eq!(digests(batches(&first, &first.schema()).await), digests(batches(&again, &again.schema()).await));
}
