//! Queries that a feed can run, and their calls in the plan.

use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use forebay_sql::Result;

use crate::{pipeline, session};

fn planned(text: &str, state: &SessionState) -> Result<LogicalPlan> {
    crate::planned(&pipeline(text)?, state)
}

/// Plans a query and compares the whole plan.
fn check(query: &str, expected: &str) {
    let plan = planned(&format!("CREATE PIPELINE p AS {query}"), &session());
    match plan {
        Ok(plan) => assert_eq!(plan.display_indent().to_string(), expected, "{query}"),
        Err(error) => panic!("{}", error.render("query", query)),
    }
}

#[test]
fn arguments_become_positions() {
    for call in [
        "resize(decode_image(bytes), 224, 112)",
        "RESIZE(Decode_Image(bytes), 224, 112)",
        "resize(decode_image(bytes), height => 224, width => 112)",
        "resize(decode_image(bytes => bytes), width => 112, height := 224)",
        "resize(width => +112, height => (224), image => decode_image(bytes))",
    ] {
        check(
            &format!("SELECT {call} AS image FROM photos"),
            "Projection: resize(decode_image(photos.bytes, Boolean(false), Int64(16384), Int64(67108864)), \
             Int64(224), Int64(112), Utf8(\"bilinear\"), Boolean(true)) AS image\n  TableScan: photos",
        );
    }
}

#[test]
fn defaults_are_filled_in() {
    check(
        "SELECT hash_bucket(path, 10) AS h FROM photos",
        "Projection: hash_bucket(photos.path, Int64(10), Int64(0)) AS h\n  TableScan: photos",
    );
    check(
        "SELECT hash_bucket(path, seed => -7, buckets => 10) AS h FROM photos",
        "Projection: hash_bucket(photos.path, Int64(10), Int64(-7)) AS h\n  TableScan: photos",
    );
}

#[test]
fn arrays_of_literals_are_literals() {
    check(
        "SELECT [0.5, -1, 2] AS a, [1, -2] AS b, ['x', 'y'] AS c, [size, 1] AS d FROM photos",
        "Projection: List([0.5, -1.0, 2.0]) AS a, List([1, -2]) AS b, List([x, y]) AS c, \
         make_array(photos.size, Int64(1)) AS d\n  TableScan: photos",
    );
    check(
        "SELECT normalize(decode_image(bytes), mean => [0.5, 0.5, 0], std => [1, 1, 1]) AS image FROM photos",
        "Projection: normalize(decode_image(photos.bytes, Boolean(false), Int64(16384), Int64(67108864)), \
         List([0.5, 0.5, 0.0]), List([1, 1, 1])) AS image\n  \
         TableScan: photos",
    );
}

#[test]
fn calls_are_found_wherever_they_are() {
    check(
        "WITH small AS (SELECT path, hash_bucket(path, buckets => 4) AS b FROM photos WHERE clamp(size, max => 9, min \
         => 0) < 5)\n\
         SELECT t.path FROM (SELECT * FROM small WHERE b = 1) AS t WHERE CASE WHEN hash_bucket(t.path, seed => 1, \
         buckets => 3) = 2 THEN true ELSE false END",
        "Projection: t.path\n  \
         Filter: CASE WHEN hash_bucket(t.path, Int64(3), Int64(1)) = Int64(2) THEN Boolean(true) ELSE Boolean(false) \
         END\n    \
         SubqueryAlias: t\n      \
         Projection: small.path, small.b\n        \
         Filter: small.b = Int64(1)\n          \
         SubqueryAlias: small\n            \
         Projection: photos.path, hash_bucket(photos.path, Int64(4), Int64(0)) AS b\n              \
         Filter: clamp(photos.size, Int64(0), Int64(9)) < Int64(5)\n                \
         TableScan: photos",
    );
}

#[test]
fn row_local_sql_is_fine() {
    for query in [
        "SELECT * FROM photos",
        "SELECT p.* FROM photos AS p",
        "SELECT * EXCLUDE (bytes) FROM photos",
        "SELECT ALL path FROM photos",
        "(SELECT path FROM photos)",
        "SELECT path FROM (photos)",
        "SELECT upper(path) || '!' AS u, \"Weight\" / 2 FROM photos WHERE label IN (1, 2) AND path LIKE '%.jpg'",
        "SELECT CAST(size AS DOUBLE) AS d, size::INT, greatest(1, label) FROM photos",
        "SELECT struct(path, label) AS s FROM photos",
        "WITH a AS (SELECT path FROM photos), b AS (SELECT path FROM a) SELECT path FROM b",
        "FROM photos SELECT path",
        "SELECT * FROM photos |> WHERE label > 1 |> EXTEND label + 1 AS next |> SELECT path, next",
        "SELECT p.path, s.text FROM photos p JOIN scans s ON p.bytes = s.bytes",
        "SELECT path, text FROM photos LEFT OUTER JOIN scans USING (bytes)",
        "SELECT * FROM photos LEFT JOIN scans USING (bytes)",
        "SELECT * FROM scans AS a LEFT JOIN (SELECT bytes, path FROM photos) AS b USING (bytes)",
        "SELECT path FROM photos p INNER JOIN (SELECT text FROM scans WHERE text <> '') s ON (s.text = p.path AND \
         size > 3)",
        "SELECT path, t.words FROM photos p JOIN scans s ON s.text = p.path LEFT JOIN texts t ON t.text = s.text",
        "SELECT path FROM photos p LEFT SEMI JOIN scans s ON p.bytes = s.bytes",
        "WITH s AS (SELECT text FROM scans) SELECT path FROM photos JOIN s ON path = text",
        "SELECT path FROM (photos p JOIN scans s ON p.bytes = s.bytes)",
        "SELECT path, size FROM photos |> JOIN scans ON path = text |> WHERE size > 1 |> SELECT path",
        "SELECT path FROM photos WHERE (path IN (SELECT text FROM scans) AND size > 3)",
        "SELECT path FROM photos WHERE size > 1 AND path NOT IN (SELECT text FROM scans)",
        "SELECT path FROM photos p WHERE NOT EXISTS (SELECT 1 FROM scans s WHERE s.text = p.path AND s.text <> 'x')",
    ] {
        let plan = planned(&format!("CREATE PIPELINE p AS {query}"), &session());
        assert!(plan.is_ok(), "{query}: {plan:?}");
    }
}

#[test]
fn spans_do_not_enter_a_plan() {
    let plan = planned("CREATE PIPELINE p AS SELECT path FROM photos", &session()).unwrap();
    let LogicalPlan::Projection(projection) = plan else { panic!("expected a projection") };
    let columns: Vec<_> = projection.expr.iter().flat_map(|expr| expr.column_refs()).collect();
    assert!(columns.iter().all(|column| column.spans.0.is_empty()), "{columns:?}");
}

/// A query of some depth.
type Build = fn(usize) -> String;

/// Tests have two megabytes of stack, like the threads of a server.
#[test]
fn the_deepest_query_fits_a_small_stack() {
    let state = session();
    let nested = |n: usize| format!("SELECT {}size{} AS s FROM photos", "abs(".repeat(n), ")".repeat(n));
    let cases =
        |n: usize| format!("SELECT {}1{} AS s FROM photos", "CASE WHEN size = 1 THEN ".repeat(n), " END".repeat(n));
    let sums = |n: usize| format!("SELECT size{} AS s FROM photos", " + size".repeat(n));
    let ors = |n: usize| format!("SELECT size FROM photos WHERE {}false", "size = 1 OR ".repeat(n));
    let queries = |n: usize| format!("{}SELECT size FROM photos{}", "SELECT size FROM (".repeat(n), ") AS t".repeat(n));
    let joins = |n: usize| {
        let join = |n: usize| format!(" JOIN scans AS s{n} ON path = s{n}.text");
        format!("SELECT size FROM photos{}", (0..n).map(join).collect::<String>())
    };
    let shapes: [(&str, usize, Build); 6] = [
        ("calls", 13, nested),
        ("cases", 13, cases),
        ("sums", 67, sums),
        ("ors", 66, ors),
        ("queries", 8, queries),
        ("joins", 8, joins),
    ];
    for (shape, deepest, build) in shapes {
        for depth in [1, 5, 8, 13, 40, 65, 66, 67, 68, 100, 1000, 4000, 60_000] {
            let outcome = planned(&format!("CREATE PIPELINE p AS {}", build(depth)), &state);
            assert_eq!(outcome.is_ok(), depth <= deepest, "{depth} {shape}: {:?}", outcome.err());
            let optimized = outcome.map(|plan| state.optimize(&plan));
            assert!(optimized.is_err() || optimized.is_ok_and(|plan| plan.is_ok()), "{depth} {shape}");
        }
    }
}

/// A file named in a call identifies the call by its content.
#[test]
fn files_are_named_with_their_digest() {
    let path = std::env::temp_dir().join(format!("forebay-plans-{}.txt", std::process::id()));
    let shown = |content: &str| {
        std::fs::write(&path, content).unwrap();
        let call = format!("vocab_apply(path, vocabulary => '{}') AS id", path.display());
        let plan = planned(&format!("CREATE PIPELINE p AS SELECT {call} FROM photos"), &session());
        plan.map(|plan| plan.display_indent().to_string()).map_err(|error| error.render("query", &call)).unwrap()
    };
    let (one, two) = (shown("red\n"), shown("red\ngreen\n"));
    assert_ne!(one, two);
    let start = format!("Projection: vocab_apply(photos.path, Utf8(\"{}#", path.display());
    assert!(one.starts_with(&start) && two.starts_with(&start), "{one}\n{two}");
    assert_eq!(shown("red\n"), one);
    std::fs::remove_file(path).unwrap();
}
