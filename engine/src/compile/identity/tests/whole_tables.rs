//! Tests of queries over whole tables, which no feed stage can run.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use datafusion::prelude::SessionContext;
use forebay_sql::Statement;

use super::rows;
use crate::compile::FeedTable;
use crate::compile::identity::fingerprint;
use crate::planner::planner;

/// DataFusion with the functions of a session, and with two tables of equal columns.
fn context() -> SessionContext {
    let context = planner();
    for table in ["t", "u"] {
        let provider = FeedTable::new(table, rows().schema());
        context.register_table(table, Arc::new(provider)).expect("a table");
    }
    context
}

async fn try_fingerprint(context: &SessionContext, query: &str) -> Result<String, String> {
    let statement = forebay_sql::parse(query).map_err(|error| error.to_string())?.pop();
    let Some(Statement::Query(query)) = statement else { return Err("not a query".to_owned()) };
    let plan = forebay_sql::plan_query(&query, Path::new(""), &context.state()).await;
    fingerprint(&plan.map_err(|error| error.to_string())?).map_err(|error| error.to_string())
}

#[tokio::test]
async fn the_text_of_a_query_over_whole_tables_is_no_part_of_it() {
    let context = context();
    for ways in [
        &[
            "SELECT name, count(*) AS n FROM t GROUP BY name",
            "select t.name, COUNT( * ) as n\n from t group by t.name -- of the items",
            "SELECT name, count(*) AS n FROM t GROUP BY 1",
            "SELECT name, count(*) AS n FROM t GROUP BY ALL",
        ][..],
        &[
            "SELECT id, name FROM t ORDER BY id",
            "SELECT id, name FROM t ORDER BY id ASC NULLS LAST",
            "SELECT id, name FROM t ORDER BY 1",
        ],
        &["SELECT id FROM t ORDER BY id DESC", "SELECT id FROM t ORDER BY id DESC NULLS FIRST"],
        &["SELECT t.id FROM t CROSS JOIN u", "SELECT t.id FROM t, u"],
        &["SELECT id FROM t UNION SELECT id FROM u", "SELECT id FROM t UNION DISTINCT SELECT id FROM u"],
        &[
            "SELECT sum(price) OVER (ORDER BY id) AS s FROM t",
            "SELECT sum(price) OVER (ORDER BY id RANGE UNBOUNDED PRECEDING) AS s FROM t",
            "SELECT sum(price) OVER (ORDER BY id RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS s FROM t",
            "SELECT sum(price) OVER w AS s FROM t WINDOW w AS (ORDER BY id)",
        ],
    ] {
        let first = try_fingerprint(&context, ways[0]).await;
        assert!(first.is_ok(), "{}: {first:?}", ways[0]);
        for way in &ways[1..] {
            assert_eq!(try_fingerprint(&context, way).await, first, "{way}");
        }
    }
}

/// DataFusion plans the columns below this aggregate in another order each time.
#[tokio::test]
async fn lists_in_group_by_have_one_fingerprint() {
    let context = context();
    let query = "SELECT unnest(ids) AS x, name, sum(id) AS s, max(price) AS p FROM t GROUP BY x, name";
    let first = try_fingerprint(&context, query).await;
    assert!(first.is_ok(), "{first:?}");
    for _ in 0..20 {
        assert_eq!(try_fingerprint(&context, query).await, first);
    }
}

/// The arguments of a table function are not in the plan.
#[tokio::test]
async fn table_functions_and_recursive_queries_have_no_form() {
    let state = context().state();
    let mut functions: Vec<&str> = state.table_functions().keys().map(String::as_str).collect();
    functions.sort_unstable();
    assert_eq!(functions, ["generate_series", "range"]);
    for query in [
        "SELECT * FROM generate_series(1, 3)",
        "SELECT * FROM range(1, 3)",
        "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT i FROM n",
    ] {
        let plan = state.create_logical_plan(query).await.expect("a plan");
        let error = fingerprint(&plan).expect_err("a node without a form");
        assert!(error.to_string().contains("has no form in a query's identity"), "{query}: {error}");
    }
}

#[tokio::test]
async fn different_queries_over_whole_tables_have_different_fingerprints() {
    let context = context();
    let pairs = [
        ("SELECT count(*) AS n FROM t GROUP BY name", "SELECT count(*) AS n FROM t GROUP BY id"),
        ("SELECT count(*) AS n FROM t GROUP BY name, id", "SELECT count(*) AS n FROM t"),
        ("SELECT sum(id) AS x FROM t", "SELECT max(id) AS x FROM t"),
        ("SELECT sum(price) AS x FROM t", "SELECT sum(price + 1) AS x FROM t"),
        ("SELECT count(id) AS n FROM t", "SELECT count(DISTINCT id) AS n FROM t"),
        ("SELECT count(*) FILTER (WHERE id > 1) AS n FROM t", "SELECT count(*) FILTER (WHERE id > 2) AS n FROM t"),
        ("SELECT array_agg(id) AS x FROM t", "SELECT array_agg(id ORDER BY price) AS x FROM t"),
        (
            "SELECT array_agg(id ORDER BY price DESC) AS x FROM t",
            "SELECT array_agg(id ORDER BY price NULLS FIRST) AS x FROM t",
        ),
        ("SELECT name FROM t GROUP BY name", "SELECT name FROM t GROUP BY name HAVING count(*) > 1"),
        ("SELECT name FROM t GROUP BY name HAVING count(*) > 2", "SELECT name FROM t GROUP BY name HAVING sum(id) > 2"),
        (
            "SELECT count(*) AS n FROM t GROUP BY ROLLUP (name, id)",
            "SELECT count(*) AS n FROM t GROUP BY CUBE (name, id)",
        ),
        (
            "SELECT count(*) AS n FROM t GROUP BY GROUPING SETS ((name), (id))",
            "SELECT count(*) AS n FROM t GROUP BY GROUPING SETS ((name, id), ())",
        ),
        (
            "SELECT unnest(ids) AS x, sum(id) AS s FROM t GROUP BY x",
            "SELECT unnest(ids) AS x, sum(price) AS s FROM t GROUP BY x",
        ),
        ("SELECT name FROM t", "SELECT DISTINCT name FROM t"),
        ("SELECT DISTINCT ON (name) id FROM t", "SELECT DISTINCT ON (price) id FROM t"),
        (
            "SELECT DISTINCT ON (name) id FROM t ORDER BY name, id",
            "SELECT DISTINCT ON (name) id FROM t ORDER BY name, id DESC",
        ),
        ("SELECT id FROM t ORDER BY id", "SELECT id FROM t ORDER BY id DESC"),
        ("SELECT id FROM t ORDER BY id NULLS FIRST", "SELECT id FROM t ORDER BY id DESC NULLS LAST"),
        ("SELECT id, name FROM t ORDER BY id, name", "SELECT id, name FROM t ORDER BY name, id"),
        ("SELECT id FROM t ORDER BY id LIMIT 1", "SELECT id FROM t ORDER BY id LIMIT 2"),
        ("SELECT id FROM t ORDER BY id OFFSET 1", "SELECT id FROM t ORDER BY id LIMIT 1 OFFSET 1"),
        ("SELECT id FROM (SELECT id FROM t LIMIT 1) ORDER BY id", "SELECT id FROM t LIMIT 1"),
        ("SELECT id FROM t UNION SELECT id FROM u", "SELECT id FROM t UNION ALL SELECT id FROM u"),
        ("SELECT id FROM u UNION ALL SELECT id FROM t", "SELECT id FROM t UNION ALL SELECT id FROM t"),
        ("SELECT id FROM t INTERSECT SELECT id FROM u", "SELECT id FROM t EXCEPT SELECT id FROM u"),
        (
            "SELECT id FROM t UNION ALL (SELECT id FROM u EXCEPT SELECT id FROM t)",
            "(SELECT id FROM t UNION ALL SELECT id FROM u) EXCEPT SELECT id FROM t",
        ),
        ("SELECT t.id FROM t JOIN u ON t.id = u.id", "SELECT t.id FROM t CROSS JOIN u"),
        ("SELECT t.id FROM t RIGHT JOIN u ON t.id = u.id", "SELECT t.id FROM t FULL JOIN u ON t.id = u.id"),
        ("SELECT t.id FROM t JOIN u ON t.id < u.id", "SELECT t.id FROM t JOIN u ON t.id > u.id"),
        ("SELECT t.id FROM t LEFT SEMI JOIN u ON t.id = u.id", "SELECT t.id FROM t LEFT ANTI JOIN u ON t.id = u.id"),
        (
            "SELECT t.id, x.n FROM t CROSS JOIN LATERAL (SELECT count(*) AS n FROM u WHERE u.id = t.id) AS x",
            "SELECT t.id, x.n FROM t CROSS JOIN LATERAL (SELECT count(*) AS n FROM u WHERE u.id = u.id) AS x",
        ),
        (
            "SELECT id, (SELECT max(price) FROM u) AS m FROM t",
            "SELECT id, (SELECT max(price) FROM u WHERE u.id = t.id) AS m FROM t",
        ),
        (
            "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.id < t.id)",
            "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.id < u.id)",
        ),
        (
            "SELECT sum(price) OVER (PARTITION BY name) AS s FROM t",
            "SELECT sum(price) OVER (PARTITION BY id) AS s FROM t",
        ),
        ("SELECT rank() OVER (ORDER BY id) AS s FROM t", "SELECT rank() OVER (ORDER BY id DESC) AS s FROM t"),
        ("SELECT dense_rank() OVER (ORDER BY id) AS s FROM t", "SELECT max(id) OVER (ORDER BY id) AS s FROM t"),
        (
            "SELECT sum(price) OVER (ORDER BY id ROWS 1 PRECEDING) AS s FROM t",
            "SELECT sum(price) OVER (ORDER BY id ROWS 2 PRECEDING) AS s FROM t",
        ),
        (
            "SELECT sum(price) OVER (ORDER BY id RANGE 1 PRECEDING) AS s FROM t",
            "SELECT sum(price) OVER (ORDER BY id GROUPS 1 PRECEDING) AS s FROM t",
        ),
        (
            "SELECT sum(price) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS s FROM t",
            "SELECT sum(price) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND UNBOUNDED FOLLOWING) AS s FROM t",
        ),
        (
            "SELECT sum(price) OVER (ORDER BY id) AS s FROM t",
            "SELECT sum(price) FILTER (WHERE id > 1) OVER (ORDER BY id) AS s FROM t",
        ),
        ("SELECT lag(id) OVER (ORDER BY id) AS s FROM t", "SELECT lag(id, 2) OVER (ORDER BY id) AS s FROM t"),
        (
            "SELECT lag(id) IGNORE NULLS OVER (ORDER BY id) AS s FROM t",
            "SELECT lag(id) RESPECT NULLS OVER (ORDER BY id) AS s FROM t",
        ),
        (
            "SELECT id FROM t QUALIFY row_number() OVER (PARTITION BY name ORDER BY id) = 1",
            "SELECT id FROM t QUALIFY row_number() OVER (PARTITION BY name ORDER BY id) = 2",
        ),
        ("VALUES (1), (2)", "VALUES (2), (1)"),
        ("VALUES (1, 2)", "VALUES (1, '2')"),
        ("SELECT 1 AS x", "SELECT 1 AS x WHERE false"),
        ("SELECT x FROM unnest([1, 2]) AS l(x)", "SELECT x FROM unnest([1, 3]) AS l(x)"),
        ("WITH a AS (SELECT id FROM t) SELECT id FROM a", "WITH a AS (SELECT id FROM u) SELECT id FROM a"),
    ];
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    let mut failed = Vec::new();
    for query in pairs.into_iter().flat_map(<[&str; 2]>::from) {
        match try_fingerprint(&context, query).await {
            Ok(of) => failed.extend(seen.insert(of, query).map(|same| format!("{query}: the same as {same}"))),
            Err(error) => failed.push(format!("{query}: {error}")),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
