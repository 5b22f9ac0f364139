//! Queries over small tables with many equal values, on several numbers of threads and in batches of several sizes.

use std::cmp::Reverse;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{Float64Type, Int64Type};
use arrow::row::OwnedRow;
use datafusion::common::TableReference;
use datafusion::execution::{SessionStateBuilder, TaskContext};
use datafusion::functions_aggregate::all_default_aggregate_functions;
use datafusion::physical_plan::{ExecutionPlan, displayable, execute_stream};
use datafusion::prelude::SessionContext;
use forebay_storage::Dataset;
use futures::TryStreamExt;

use super::calls::{Class, class, instead};
use super::*;
use crate::batch::without_tables;
use crate::planner::planner;

/// Threads, and rows in a batch.
const SETTINGS: [(usize, usize); 6] = [(1, 8192), (1, 3), (2, 1), (4, 3), (7, 1), (7, 8192)];
const ROWS_OF_T: i64 = 61;
const ROWS_OF_U: i64 = 23;
/// Rows in a row group. One partition reads it.
const GROUP_ROWS: usize = 7;

/// Queries that have the same rows without places, in any order.
const DETERMINED: &[&str] = &[
    "SELECT * FROM t",
    "SELECT id, b FROM t WHERE a > 1",
    "SELECT 7 AS seven FROM t",
    "SELECT id, x FROM t ORDER BY b DESC, a",
    "SELECT a, count(*), sum(id), max(b) FROM t GROUP BY a",
    "SELECT b, count(DISTINCT a), bool_or(id > 50) FROM t GROUP BY b HAVING count(*) > 2",
    "SELECT count(*), min(x), max(x), min(id) FROM t",
    "SELECT x, count(*) FROM t GROUP BY x",
    "SELECT l, count(*) FROM t GROUP BY l",
    "SELECT a, b, count(*), grouping(a) FROM t GROUP BY ROLLUP (a, b)",
    "SELECT DISTINCT a, b FROM t",
    "SELECT DISTINCT x FROM t",
    "SELECT DISTINCT a FROM t ORDER BY a DESC LIMIT 3",
    "SELECT a FROM t UNION ALL SELECT a FROM u",
    "SELECT DISTINCT a FROM t UNION ALL SELECT DISTINCT a FROM u",
    "SELECT a, count(*) AS n FROM t GROUP BY a UNION ALL SELECT id, count(*) FROM u GROUP BY id",
    "SELECT a, b FROM t UNION SELECT a, c FROM u",
    "SELECT id, NULL AS c FROM t UNION ALL SELECT count(*), c FROM u GROUP BY c",
    "SELECT a FROM t INTERSECT SELECT a FROM u",
    "SELECT a FROM t EXCEPT SELECT a FROM u",
    "SELECT t.id, u.id, c FROM t JOIN u ON t.a = u.a",
    "SELECT * FROM t LEFT JOIN u ON t.a = u.a AND u.id > 9",
    "SELECT * FROM t RIGHT JOIN u ON t.a = u.a AND t.id > u.id",
    "SELECT * FROM t FULL JOIN u USING (a)",
    "SELECT * FROM t LEFT SEMI JOIN u ON t.a = u.a",
    "SELECT * FROM t LEFT ANTI JOIN u ON t.a = u.a",
    "SELECT t.id, u.id AS other FROM t, u WHERE t.id < 9 AND u.id < 4 ORDER BY other",
    "WITH n AS (SELECT a, count(*) AS n FROM t GROUP BY a) SELECT one.a, two.a FROM n one JOIN n two ON one.n = two.n",
    "SELECT b, unnest(l) FROM t",
    "SELECT item, count(*) FROM (SELECT unnest(l) AS item FROM t) GROUP BY item",
    "SELECT * FROM (VALUES (3, 'c'), (1, 'a'), (3, 'c')) AS v(n, s)",
    "SELECT id, rank() OVER (ORDER BY a), sum(id) OVER (PARTITION BY b ORDER BY a) FROM t",
    "SELECT id, sum(id) OVER (ORDER BY a RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING) FROM t",
    "SELECT id FROM t WHERE a IN (SELECT a FROM u WHERE id > 3)",
    "SELECT id FROM t WHERE a NOT IN (SELECT a FROM u WHERE id > 20)",
    "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a LIMIT 1)",
    "SELECT id, (SELECT max(u.id) FROM u WHERE u.a = t.a) AS latest FROM t",
    "SELECT a, array_agg(id ORDER BY id), string_agg(b, ',' ORDER BY id DESC) FROM t GROUP BY a",
    "SELECT a, array_agg(DISTINCT b ORDER BY b) FROM t GROUP BY a",
];

/// Queries for which places choose rows.
const CHOSEN: &[&str] = &[
    "SELECT id FROM t LIMIT 7",
    "SELECT 7 AS seven FROM t LIMIT 4",
    "SELECT id FROM t WHERE a = 2 LIMIT 3 OFFSET 4",
    "SELECT id, b FROM t ORDER BY b LIMIT 10",
    "SELECT id FROM t ORDER BY a % 2, b DESC LIMIT 10 OFFSET 3",
    "SELECT count(*), sum(id) FROM (SELECT id FROM t ORDER BY b OFFSET 9)",
    "SELECT a FROM (SELECT a, id FROM t ORDER BY b DESC) WHERE id % 2 = 0 LIMIT 9",
    "(SELECT id FROM t ORDER BY b LIMIT 3) UNION ALL (SELECT id FROM u ORDER BY c LIMIT 4)",
    "SELECT t.id, u.id FROM t JOIN u ON t.a = u.a LIMIT 11",
    // Each part has nulls in several columns of one type for the places of the other.
    "SELECT p.id FROM (SELECT id, a FROM t ORDER BY a DESC, id DESC LIMIT 9) p JOIN u ON p.a = u.a UNION ALL \
     SELECT y.id FROM (SELECT b FROM t GROUP BY b) x JOIN t y ON x.b = y.b JOIN u z ON y.a = z.a",
    "SELECT a, count(*) AS n FROM t GROUP BY a ORDER BY n LIMIT 2",
    "SELECT DISTINCT ON (a) a, id FROM t ORDER BY a DESC, b",
    "SELECT DISTINCT ON (b) id FROM t",
    "SELECT DISTINCT ON (a % 2) id, x FROM t",
    "SELECT id, row_number() OVER (PARTITION BY b ORDER BY a), ntile(4) OVER (ORDER BY b) FROM t",
    "SELECT id, row_number() OVER () FROM t WHERE b = 'y'",
    "SELECT id, lag(id) OVER (ORDER BY b), lead(id, 2) OVER (PARTITION BY a ORDER BY b) FROM t",
    "SELECT id, first_value(id) OVER (ORDER BY b), nth_value(id, 2) OVER (PARTITION BY a) FROM t",
    "SELECT id, last_value(id) OVER (ORDER BY a RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) FROM t",
    "SELECT id, sum(id) OVER (ORDER BY b ROWS 2 PRECEDING), array_agg(id) OVER (PARTITION BY b) FROM t",
    "SELECT id, rank() OVER (ORDER BY a), row_number() OVER (ORDER BY a), sum(id) OVER (ORDER BY a) FROM t",
    "SELECT id, n FROM (SELECT id, row_number() OVER (PARTITION BY b ORDER BY a) AS n FROM t) WHERE n <= 2",
    "SELECT array_agg(id ORDER BY b) FROM t",
    "SELECT a, first_value(id ORDER BY b), last_value(id ORDER BY b), nth_value(id, 2 ORDER BY b) FROM t GROUP BY a",
    "SELECT a, string_agg(b, '+' ORDER BY b), string_agg(b, '-' ORDER BY b, x) FROM t GROUP BY a",
    "SELECT b, min(x), max(x), median(x), percentile_cont(0) WITHIN GROUP (ORDER BY x) FROM t GROUP BY b",
    "SELECT id FROM t WHERE id IN (SELECT id FROM u ORDER BY c LIMIT 5)",
    "SELECT count(*), (SELECT id FROM u ORDER BY c LIMIT 1) AS chosen FROM t",
    "SELECT id, (SELECT array_agg(u.id ORDER BY u.c) FROM u WHERE u.a = t.a) AS ids FROM t",
];

const REFUSED: &[&str] = &[
    "SELECT array_agg(id) FROM t",
    "SELECT a, string_agg(b, ',') FROM t GROUP BY a",
    "SELECT first_value(id) FROM t",
    "SELECT array_agg(DISTINCT b) FROM t",
    "SELECT any_value(b) FROM t",
    "SELECT corr(x, x) FROM t",
    "SELECT approx_median(x) FROM t",
    "SELECT last_value(id) OVER (ORDER BY a) FROM t",
    "SELECT first_value(id) IGNORE NULLS OVER (ORDER BY a) FROM t",
    "SELECT array_agg(id) OVER (ORDER BY a) FROM t",
    "SELECT id FROM t WHERE id IN (SELECT any_value(id) FROM u GROUP BY a)",
];

fn a(id: i64) -> Option<i64> {
    (id % 11 != 0).then_some(id * 7 % 5)
}

/// The items of the list of a row of `t`.
fn items(id: i64) -> Option<Vec<i64>> {
    (id % 9 != 4).then(|| (0..id % 4).map(|item| 100 * id - item).collect())
}

fn table<const COLUMNS: usize>(name: &str, columns: [(&str, ArrayRef); COLUMNS]) -> Arc<BatchTable> {
    let columns = columns.map(|(name, column)| (name, column, true));
    let rows = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let groups = (0..rows.num_rows()).step_by(GROUP_ROWS);
    let groups = groups.map(|at| rows.slice(at, GROUP_ROWS.min(rows.num_rows() - at))).collect();
    Arc::new(BatchTable::new(name, Dataset::in_memory(name, rows.schema(), groups, name).unwrap(), 2))
}

fn t() -> Arc<BatchTable> {
    let ids = || 0..ROWS_OF_T;
    let texts = ["x", "y", "z", "y"];
    let b = ids().map(|id| (id % 13 != 5).then(|| texts[(id * 3 % 4) as usize]));
    let floats = [f64::NAN, -0.0, 0.0, 1.5, -2.0, -f64::NAN];
    let lists = ids().map(|id| items(id).map(|items| items.into_iter().map(Some).collect::<Vec<_>>()));
    table(
        "t",
        [
            ("id", Arc::new(Int64Array::from_iter_values(ids()))),
            ("a", Arc::new(Int64Array::from_iter(ids().map(a)))),
            ("b", Arc::new(StringArray::from_iter(b))),
            ("x", Arc::new(Float64Array::from_iter_values(ids().map(|id| floats[(id * 5 % 6) as usize])))),
            ("l", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists))),
        ],
    )
}

fn u() -> Arc<BatchTable> {
    let ids = || 0..ROWS_OF_U;
    table(
        "u",
        [
            ("id", Arc::new(Int64Array::from_iter_values(ids()))),
            ("a", Arc::new(Int64Array::from_iter_values(ids().map(|id| id * 3 % 7)))),
            ("c", Arc::new(StringArray::from_iter_values(ids().map(|id| if id % 3 == 0 { "p" } else { "q" })))),
        ],
    )
}

fn session((partitions, batch_rows): (usize, usize)) -> SessionContext {
    let planner = without_tables(planner().state());
    let config = planner.config().clone().with_target_partitions(partitions).with_batch_size(batch_rows);
    let mut config = config.set_bool("datafusion.optimizer.prefer_hash_join", batch_rows > 1);
    let options = config.options_mut();
    options.execution.skip_physical_aggregate_schema_check = true;
    // These tables are small, and joins of small ones have one partition.
    options.optimizer.hash_join_single_partition_threshold = 0;
    options.optimizer.hash_join_single_partition_threshold_rows = 0;
    let state = SessionStateBuilder::new_from_existing(planner).with_config(config).build();
    let session = SessionContext::new_with_state(state);
    for (name, table) in [("t", t()), ("u", u())] {
        session.register_table(TableReference::bare(name), table).unwrap();
    }
    session
}

async fn planned(session: &SessionContext, query: &str) -> LogicalPlan {
    let state = session.state();
    let plan = state.create_logical_plan(query).await.unwrap_or_else(|error| panic!("{query}: {error}"));
    let plan = state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {});
    plan.unwrap_or_else(|error| panic!("{query}: {error}"))
}

async fn physical(session: &SessionContext, plan: &LogicalPlan) -> Result<Arc<dyn ExecutionPlan>> {
    let state = session.state();
    let plan = state.optimize(plan)?;
    state.query_planner().create_physical_plan(&plan, &state).await
}

async fn run(session: &SessionContext, plan: &LogicalPlan) -> Result<RecordBatch> {
    let plan = physical(session, plan).await?;
    let schema = plan.schema();
    let batches: Vec<_> = execute_stream(plan, Arc::new(TaskContext::from(&session.state())))?.try_collect().await?;
    Ok(concat_batches(&schema, &batches)?)
}

/// The rows of a query with places, on so many threads.
async fn ordered(session: &SessionContext, query: &str) -> RecordBatch {
    let plan = planned(session, query).await;
    let placed = in_order(plan.clone()).unwrap_or_else(|error| panic!("{query}: {error}"));
    let columns = |plan: &LogicalPlan| -> Vec<(Column, DataType)> {
        let fields = plan.schema().iter();
        fields.map(|(table, field)| (Column::from((table, field)), field.data_type().clone())).collect()
    };
    assert_eq!(columns(&placed), columns(&plan), "{query}");
    run(session, &placed).await.unwrap_or_else(|error| panic!("{query}: {error}\n{}", placed.display_indent()))
}

fn sorted(rows: &RecordBatch) -> Vec<OwnedRow> {
    let fields = rows.columns().iter().map(|column| SortField::new(column.data_type().clone())).collect();
    let converter = RowConverter::new(fields).unwrap();
    let encoded = converter.convert_columns(rows.columns()).unwrap();
    let mut encoded: Vec<OwnedRow> = encoded.iter().map(|row| row.owned()).collect();
    encoded.sort();
    encoded
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rows_and_their_order_are_the_same_on_any_number_of_threads() {
    let sessions = SETTINGS.map(session);
    for query in DETERMINED.iter().chain(CHOSEN) {
        let first = ordered(&sessions[0], query).await;
        for (session, setting) in sessions.iter().zip(SETTINGS).skip(1) {
            let rows = ordered(session, query).await;
            // Compared by their bits.
            assert!(rows.columns() == first.columns(), "{query}: {setting:?}\n{rows:?}\n{first:?}");
        }
    }
}

#[tokio::test]
async fn places_change_no_rows() {
    let session = session(SETTINGS[0]);
    for query in DETERMINED {
        let plain = run(&session, &planned(&session, query).await).await;
        let plain = plain.unwrap_or_else(|error| panic!("{query}: {error}"));
        let rows = ordered(&session, query).await;
        assert!(sorted(&rows) == sorted(&plain), "{query}\n{rows:?}\n{plain:?}");
    }
}

#[tokio::test]
async fn orders_are_those_of_the_query_and_then_of_the_tables() {
    let session = session((4, 3));
    let mut by_a: Vec<i64> = (0..ROWS_OF_T).collect();
    by_a.sort_by_key(|id| (a(*id), *id));
    let mut by_a_downwards: Vec<i64> = (0..ROWS_OF_T).collect();
    by_a_downwards.sort_by_key(|id| (Reverse(a(*id)), *id));
    let beyond_20 = by_a_downwards.iter().copied().filter(|id| *id > 20).collect();
    let place_by_a = (0..ROWS_OF_T).map(|id| by_a.iter().position(|other| *other == id).unwrap() as i64 + 1);
    let mut first_of_a = by_a.clone();
    first_of_a.dedup_by_key(|id| a(*id));
    let of_u = |id: i64| Some(id * 3 % 7);
    let joined = (0..ROWS_OF_U).flat_map(|of| (0..ROWS_OF_T).filter(move |id| a(*id) == of_u(of)));
    let both = (0..ROWS_OF_U).chain(0..ROWS_OF_T);
    let expected: [(&str, Vec<i64>); 15] = [
        ("SELECT id FROM t", (0..ROWS_OF_T).collect()),
        ("SELECT id FROM t WHERE id % 2 = 1 LIMIT 3", vec![1, 3, 5]),
        ("SELECT id FROM t ORDER BY a NULLS FIRST", by_a.clone()),
        ("SELECT id FROM t ORDER BY a DESC NULLS LAST LIMIT 9", by_a_downwards[..9].to_vec()),
        ("SELECT id FROM (SELECT * FROM t ORDER BY a DESC NULLS LAST) WHERE id > 20", beyond_20),
        ("SELECT unnest(l) FROM t", (0..ROWS_OF_T).filter_map(items).flatten().collect()),
        ("SELECT row_number() OVER (ORDER BY a NULLS FIRST) FROM t", place_by_a.collect()),
        ("SELECT unnest(ids) FROM (SELECT array_agg(id ORDER BY a NULLS FIRST) AS ids FROM t)", by_a.clone()),
        ("SELECT id FROM u UNION ALL SELECT id FROM t", both.clone().collect()),
        ("SELECT id FROM (SELECT 2 AS k, id FROM t UNION ALL SELECT 1, id FROM u) ORDER BY k", both.collect()),
        ("SELECT count(*) FROM t UNION ALL SELECT count(*) FROM u", vec![ROWS_OF_T, ROWS_OF_U]),
        ("SELECT n FROM (VALUES (3), (1), (2)) AS v(n)", vec![3, 1, 2]),
        ("SELECT t.id FROM u JOIN t ON t.a = u.a", joined.collect()),
        ("SELECT DISTINCT ON (a) id FROM t ORDER BY a NULLS FIRST", first_of_a),
        ("SELECT a FROM t WHERE a > 1 GROUP BY a ORDER BY a DESC", vec![4, 3, 2]),
    ];
    for (query, expected) in expected {
        let column = arrow::compute::cast(ordered(&session, query).await.column(0), &DataType::Int64).unwrap();
        assert_eq!(column.as_primitive::<Int64Type>().values().to_vec(), expected, "{query}");
    }
}

#[tokio::test]
async fn functions_that_depend_on_the_order_of_arrival_are_refused() {
    let session = session(SETTINGS[0]);
    for query in REFUSED {
        let error = in_order(planned(&session, query).await).expect_err(query).to_string();
        assert!(error.contains("depends on the order in which rows arrive"), "{query}: {error}");
    }
    let error = in_order(planned(&session, "SELECT approx_median(x) FROM t").await).unwrap_err().to_string();
    assert!(error.ends_with("arrive: write `median(x)`"), "{error}");
    let recursive = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT i FROM n";
    let error = in_order(planned(&session, recursive).await).expect_err(recursive).to_string();
    assert!(error.contains("have no order"), "{error}");
}

#[tokio::test]
async fn refusals_name_what_computes_the_same() {
    let session = session(SETTINGS[0]);
    // How far the results may be apart.
    for (refused, call, apart) in [
        ("approx_median", "approx_median(x)", 1.0),
        ("approx_percentile_cont", "approx_percentile_cont(0.9) WITHIN GROUP (ORDER BY x)", 1.0),
        ("corr", "corr(x, y)", 1e-9),
        ("covar_pop", "covar_pop(x, y)", 1e-9),
        ("covar_samp", "covar_samp(x, y)", 1e-9),
    ] {
        // All rows, one row, and a constant.
        for y in ["CAST(id * id % 7 AS DOUBLE) AS y FROM t", "2e0 AS y FROM t WHERE id = 1", "2e0 AS y FROM t"] {
            let query = |call: &str| format!("SELECT {call} FROM (SELECT CAST(id AS DOUBLE) AS x, {y})");
            let expected = run(&session, &planned(&session, &query(call)).await).await.unwrap();
            let got = ordered(&session, &query(instead(refused).unwrap())).await;
            let number = |rows: &RecordBatch| {
                let column = rows.column(0).as_primitive::<Float64Type>();
                column.is_valid(0).then(|| column.value(0))
            };
            match (number(&got), number(&expected)) {
                (Some(got), Some(expected)) => {
                    assert!((got - expected).abs() < apart, "{call}: {got}, {expected}, {y}")
                }
                (got, expected) => assert_eq!(got, expected, "{call}, {y}"),
            }
        }
    }
}

/// A new aggregate is refused until it has a class.
#[test]
fn all_aggregates_have_a_class() {
    let of_class = |of: Class| {
        let functions = all_default_aggregate_functions();
        let names = functions.iter().map(|function| function.name().to_owned());
        let mut names: Vec<String> = names.filter(|name| class(name) == of).collect();
        names.sort();
        names.join(" ")
    };
    assert_eq!(
        of_class(Class::Free),
        "approx_distinct avg bit_and bit_or bit_xor bool_and bool_or count grouping regr_count stddev stddev_pop sum \
         var var_pop"
    );
    assert_eq!(of_class(Class::Compared), "max median min percentile_cont");
    assert_eq!(of_class(Class::Ordered), "array_agg first_value last_value nth_value string_agg");
    assert_eq!(
        of_class(Class::Dependent),
        "any_value approx_median approx_percentile_cont approx_percentile_cont_with_weight corr covar_pop covar_samp \
         regr_avgx regr_avgy regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy"
    );
}

#[tokio::test]
async fn rows_are_sorted_once_and_those_of_a_table_are_merged() {
    let session = session((4, 3));
    for (query, sorts) in [
        ("SELECT count(*) FROM t", 0),
        ("SELECT id FROM t", 1),
        ("SELECT id FROM t ORDER BY a", 1),
        ("SELECT id FROM t ORDER BY a LIMIT 3", 1),
        ("SELECT b FROM (SELECT * FROM t ORDER BY a) ORDER BY id", 1),
    ] {
        let placed = in_order(planned(&session, query).await).unwrap().display_indent().to_string();
        assert_eq!(placed.matches("Sort:").count(), sorts, "{query}\n{placed}");
    }
    let placed = in_order(planned(&session, "SELECT id, b FROM t WHERE a > 1").await).unwrap();
    let plan = physical(&session, &placed).await.unwrap();
    let plan = displayable(plan.as_ref()).indent(false).to_string();
    assert!(!plan.contains("SortExec"), "{plan}");
}
