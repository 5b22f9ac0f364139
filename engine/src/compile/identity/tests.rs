//! Tests of query equality, and a few pinned hashes that must not change by accident.

mod whole_tables;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int32Type};

use crate::error::Result;
use crate::function::Function;
use crate::session::Session;

fn rows() -> RecordBatch {
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1), Some(2)]), Some(vec![])]);
    let columns = [
        ("id", Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef),
        ("price", Arc::new(Float64Array::from(vec![0.5, 2.0]))),
        ("name", Arc::new(StringArray::from(vec!["a", "b"]))),
        ("ids", Arc::new(lists)),
    ];
    let columns = columns.map(|(name, column)| (name, column, true));
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length")
}

async fn session() -> Session {
    let session = Session::builder().threads(1).root("memory:///root").build().expect("a session");
    for table in ["t", "u"] {
        session.register(Some(table), rows().schema(), vec![rows()]).await.expect("a table");
    }
    session
}

async fn fingerprint(session: &Session, query: &str) -> String {
    try_fingerprint(session, query).await.unwrap_or_else(|error| panic!("{query}: {error}"))
}

async fn try_fingerprint(session: &Session, query: &str) -> Result<String> {
    session.define("p", query).await?;
    Ok(session.pipeline("p")?.fingerprint().to_owned())
}

#[tokio::test]
async fn the_text_of_a_query_is_no_part_of_it() {
    let session = session().await;
    for ways in [
        &["SELECT id, price FROM t", "select  id,\n price -- of the item\n from t", "SELECT t.id, t.price FROM t;"][..],
        &["SELECT id, price, name, ids FROM t", "SELECT * FROM t"],
        &["SELECT id FROM t WHERE id <> 1", "SELECT id FROM t WHERE id != 1"],
        &["SELECT id AS a FROM t", "SELECT id a FROM t"],
        &["SELECT clamp(price, 0, 1) AS p FROM t", "SELECT clamp(price, max => 1, min => 0) AS p FROM t"],
        &["SELECT id FROM t WHERE (id > 1)", "SELECT id FROM t WHERE id > 1"],
    ] {
        let first = fingerprint(&session, ways[0]).await;
        for way in &ways[1..] {
            assert_eq!(fingerprint(&session, way).await, first, "{way}");
        }
    }
}

#[tokio::test]
async fn different_queries_have_different_fingerprints() {
    let session = session().await;
    let queries = [
        "SELECT id FROM t",
        "SELECT id FROM u",
        "SELECT name FROM t",
        "SELECT id AS name FROM t",
        "SELECT name AS \"id, name\" FROM t",
        "SELECT id, name FROM t",
        "SELECT name, id FROM t",
        "SELECT id FROM t WHERE id > 1",
        "SELECT id FROM t WHERE id > 2",
        "SELECT id FROM t WHERE id >= 1",
        "SELECT id FROM t WHERE id > 1.0",
        "SELECT id FROM t WHERE NOT (id > 1)",
        "SELECT id FROM t WHERE id = 1 AND price > 1",
        "SELECT id FROM t WHERE id = 1 OR price > 1",
        "SELECT id FROM t WHERE price > 1 AND id = 1",
        "SELECT id FROM t WHERE name = 'a'",
        "SELECT id FROM t WHERE name = 'a, b'",
        "SELECT id FROM t WHERE name IN ('a', 'b')",
        "SELECT id FROM t WHERE name IN ('a, b')",
        "SELECT id FROM t WHERE name NOT IN ('a', 'b')",
        "SELECT id FROM t WHERE name LIKE 'a%'",
        "SELECT id FROM t WHERE name ILIKE 'a%'",
        "SELECT id FROM t WHERE name NOT LIKE 'a%'",
        "SELECT id FROM t WHERE name LIKE 'a%' ESCAPE '\\'",
        "SELECT id FROM t WHERE id BETWEEN 1 AND 2",
        "SELECT id FROM t WHERE id NOT BETWEEN 1 AND 2",
        "SELECT id FROM t WHERE name IS NULL",
        "SELECT id FROM t WHERE name IS NOT NULL",
        "SELECT id FROM t WHERE id IN (SELECT id FROM u)",
        "SELECT id FROM t WHERE id NOT IN (SELECT id FROM u)",
        "SELECT id FROM t WHERE id IN (SELECT id FROM u WHERE price > 1)",
        "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.id = t.id)",
        "SELECT id + 1 AS x FROM t",
        "SELECT id - 1 AS x FROM t",
        "SELECT -id AS x FROM t",
        "SELECT 1 + id AS x FROM t",
        "SELECT CAST(id AS INT) AS x FROM t",
        "SELECT CAST(id AS SMALLINT) AS x FROM t",
        "SELECT TRY_CAST(id AS INT) AS x FROM t",
        "SELECT CASE WHEN id > 1 THEN 1 ELSE 2 END AS x FROM t",
        "SELECT CASE WHEN id > 1 THEN 1 END AS x FROM t",
        "SELECT CASE id WHEN 1 THEN 1 ELSE 2 END AS x FROM t",
        "SELECT upper(name) AS x FROM t",
        "SELECT lower(name) AS x FROM t",
        "SELECT log1p(price) AS x FROM t",
        "SELECT clamp(price, 0, 1) AS x FROM t",
        "SELECT clamp(price, 0, 2) AS x FROM t",
        "SELECT index_of(name, values => ['a', 'b']) AS x FROM t",
        "SELECT index_of(name, values => ['a, b']) AS x FROM t",
        "SELECT index_of(name, values => ['b', 'a']) AS x FROM t",
        "SELECT hash_bucket(name, buckets => 3) AS x FROM t",
        "SELECT id FROM (SELECT * FROM t LIMIT 1)",
        "SELECT id FROM (SELECT * FROM t LIMIT 2)",
        "SELECT t.id, u.name FROM t JOIN u ON t.id = u.id",
        "SELECT t.id, u.name FROM t LEFT JOIN u ON t.id = u.id",
        "SELECT t.id, u.name FROM t JOIN u ON t.id = u.id + 1",
        "SELECT t.id, u.name FROM t JOIN u ON t.id = u.id AND u.price > 1",
        "SELECT id, unnest(ids) AS x FROM t",
        "SELECT id FROM t TABLESAMPLE (50 PERCENT) REPEATABLE (1)",
        "SELECT id FROM t TABLESAMPLE (50 PERCENT) REPEATABLE (2)",
        "SELECT * FROM pack((SELECT ids FROM t), length => 4)",
        "SELECT * FROM pack((SELECT ids FROM t), length => 8)",
    ];
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    let mut failed = Vec::new();
    for query in queries {
        match try_fingerprint(&session, query).await {
            Ok(of) => failed.extend(seen.insert(of, query).map(|same| format!("{query}: the same as {same}"))),
            Err(error) => failed.push(format!("{query}: {error}")),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[tokio::test]
async fn a_file_counts_with_its_content_and_not_with_its_path() {
    let session = session().await;
    let folder = tempfile::tempdir().expect("a folder");
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../operators/testdata/tokenizers/gpt2.json");
    let text = std::fs::read_to_string(source).expect("a tokenizer");
    let mut prints = Vec::new();
    for (name, text) in [("a.json", text.clone()), ("b.json", text.clone()), ("c.json", format!("{text} "))] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        let query = format!("SELECT tokenize(name, '{}') AS ids FROM t", path.display());
        prints.push(fingerprint(&session, &query).await);
    }
    assert_eq!(prints[0], prints[1]);
    assert_ne!(prints[0], prints[2]);
}

#[tokio::test]
async fn a_function_counts_with_its_version() {
    let session = session().await;
    let mut seen = Vec::new();
    for version in [Some("1"), Some("2"), None] {
        let function = Function {
            name: "twice".to_owned(),
            version: version.map(str::to_owned),
            inputs: vec![Arc::new(Field::new("", DataType::Int64, true))],
            draws: false,
            output: Arc::new(Field::new("twice", DataType::Int64, true)),
            call: Arc::new(|columns| Ok(Arc::clone(&columns[0]))),
        };
        session.add_function(function).expect("a function");
        let of = fingerprint(&session, "SELECT twice(id) AS x FROM t").await;
        assert!(!seen.contains(&of), "{version:?}");
        seen.push(of);
    }
}

/// A changed hash here changes the id of every feed: raise `FEED_FORMAT`, or find the accidental change.
#[tokio::test]
async fn fingerprints_are_what_they_were() {
    let session = session().await;
    let expected = [
        ("SELECT id FROM t", "22dc4447d2c12034"),
        (
            "SELECT clamp(price, 0, 1) AS p, upper(name) AS n FROM t WHERE id % 2 = 1 AND name IN ('a', 'b')",
            "06f7b994c161909c",
        ),
        ("SELECT index_of(name, values => ['a', 'b']) AS x, CAST(id AS DOUBLE) AS y FROM t", "229feec1d32e1866"),
        (
            "SELECT t.id, u.name FROM t LEFT JOIN u ON t.id = u.id WHERE t.id NOT IN (SELECT id FROM u)",
            "1e846fb7df288610",
        ),
        ("SELECT * FROM pack((SELECT ids FROM t), length => 4)", "629bf31b4e8fb5c9"),
        ("SELECT id, unnest(ids) AS x FROM t TABLESAMPLE (50 PERCENT) REPEATABLE (1)", "6757e139625996de"),
    ];
    let mut found = Vec::new();
    for (query, _) in expected {
        found.push((query, fingerprint(&session, query).await[..16].to_owned()));
    }
    assert_eq!(found, expected.map(|(query, hash)| (query, hash.to_owned())));
}
