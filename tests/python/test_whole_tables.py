"""Queries over whole tables give DuckDB's rows, on any number of threads and with little memory."""

import json
import math
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from support import binary, environment

PATIENCE_SECONDS = 120
SEED = 21

QUERIES = [
    "SELECT count(*) AS a, count(day) AS b, sum(amount) AS c, min(price) AS d, max(price) AS e FROM sales",
    "SELECT shop, count(*) AS n, sum(amount) AS amount FROM sales GROUP BY shop ORDER BY shop",
    "SELECT shop, day, sum(amount) AS a FROM sales WHERE amount % 3 <> 0 GROUP BY shop, day HAVING count(*) > 2 ORDER BY a, shop, day",
    "SELECT DISTINCT amount % 7 AS a, shop % 3 AS s FROM sales ORDER BY 1, 2",
    "SELECT id, amount FROM sales ORDER BY amount DESC, id LIMIT 20 OFFSET 5",
    "SELECT s.name, sum(amount) AS a FROM sales JOIN shops s ON sales.shop = s.shop GROUP BY s.name ORDER BY a, s.name",
    "SELECT s.shop, count(sales.id) AS n FROM sales RIGHT JOIN shops s ON sales.shop = s.shop GROUP BY s.shop ORDER BY s.shop",
    "SELECT count(*) FROM sales, shops WHERE sales.shop = shops.shop AND shops.size > sales.amount",
    "SELECT count(*) FROM shops a CROSS JOIN shops b WHERE a.size < b.size",
    "SELECT id FROM sales WHERE amount = (SELECT max(amount) FROM sales) ORDER BY id",
    "SELECT count(*) FROM sales a WHERE amount > (SELECT avg(b.amount) FROM sales b WHERE b.shop = a.shop)",
    "SELECT count(*) FROM sales WHERE shop NOT IN (SELECT shop FROM shops WHERE size > 50)",
    "SELECT count(*) FROM sales WHERE EXISTS (SELECT 1 FROM shops WHERE shops.shop = sales.shop AND size > id % 90)",
    "SELECT a.shop, a.amount, b.shop AS found FROM sales a LEFT JOIN shops b ON a.amount = b.shop WHERE EXISTS (SELECT 1 FROM shops c WHERE c.shop = a.shop) ORDER BY a.shop, b.shop, a.amount",
    "SELECT id, rank() OVER (PARTITION BY shop ORDER BY amount, id) AS r FROM sales ORDER BY id LIMIT 50",
    "SELECT shop, amount FROM sales QUALIFY row_number() OVER (PARTITION BY shop ORDER BY amount DESC, id) = 1 ORDER BY shop",
    "SELECT shop FROM sales WHERE amount > 900 INTERSECT SELECT shop FROM shops WHERE size > 20 ORDER BY shop",
    "SELECT shop FROM shops EXCEPT SELECT shop FROM sales ORDER BY shop",
    "SELECT name FROM shops WHERE size < 9 UNION ALL SELECT day FROM sales WHERE id < 9 ORDER BY 1",
    "WITH best AS (SELECT shop, max(price) AS p FROM sales GROUP BY shop) SELECT count(*) FROM best WHERE p > 90",
    "SELECT day, count(DISTINCT shop) AS n FROM sales GROUP BY day ORDER BY day NULLS LAST",
    "SELECT amount % 7 AS a, count(*) AS n FROM sales GROUP BY ROLLUP (amount % 7) ORDER BY a NULLS LAST",
    "SELECT sum(id) AS s FROM (SELECT id FROM sales LIMIT 30000)",
    "SELECT DISTINCT CASE WHEN a.amount > b.size THEN b.size ELSE 4 END AS v FROM sales a JOIN shops b ON a.shop = b.shop ORDER BY v",
    "SELECT shop, day, count(*) AS n FROM sales WHERE shop < 4 GROUP BY ROLLUP (shop, day) ORDER BY shop NULLS LAST, day NULLS LAST, n",
]

# Refused in a pipeline.
BARE_QUERIES = [
    "SELECT s.name, t.n FROM shops s CROSS JOIN LATERAL (SELECT count(*) AS n FROM sales b WHERE b.shop = s.shop) AS t ORDER BY 1",
]


def write(folder: Path) -> None:
    draw = random.Random(SEED)
    print(f"seed {SEED}")
    rows = 40_000
    sales = pa.table(
        {
            "id": range(rows),
            "shop": [draw.randrange(40) for _ in range(rows)],
            "day": [draw.choice(["mon", "tue", "wed", None]) for _ in range(rows)],
            "amount": [draw.randrange(1000) for _ in range(rows)],
            "price": [round(draw.random() * 100, 3) for _ in range(rows)],
        }
    )
    (folder / "sales").mkdir()
    for part in range(4):
        pq.write_table(sales.slice(part * rows // 4, rows // 4), folder / f"sales/{part}.parquet", row_group_size=2_000)
    shops = pa.table({"shop": range(45), "name": [f"shop {n:02}" for n in range(45)], "size": [draw.randrange(100) for _ in range(45)]})
    pa.csv.write_csv(shops, folder / "shops.csv")


TABLES = """CREATE EXTERNAL TABLE sales STORED AS PARQUET LOCATION 'sales';
CREATE EXTERNAL TABLE shops STORED AS CSV LOCATION 'shops.csv';"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    write(folder)
    (folder / "tables.sql").write_text(TABLES)
    return folder


def rows_of(folder: Path, query: str, *flags: str) -> list[dict]:
    command = [binary(), "sql", "tables.sql", "-c", query, "--output", "json", *flags]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    return [row for row in map(json.loads, done.stdout.splitlines()) if set(row) != {"done"}]


def expected_of(folder: Path, query: str) -> list[dict]:
    with duckdb.connect() as connection:
        connection.execute(f"CREATE VIEW sales AS SELECT * FROM '{folder}/sales/*.parquet'")
        connection.execute(f"CREATE VIEW shops AS SELECT * FROM '{folder}/shops.csv'")
        rows = connection.execute(query)
        names = [column[0] for column in rows.description]
        return [dict(zip(names, row)) for row in rows.fetchall()]


def is_equal(actual: list[dict], expected: list[dict]) -> bool:
    def same(a, b) -> bool:
        return math.isclose(float(a), float(b), rel_tol=1e-12) if isinstance(b, float) else str(a) == str(b)

    def is_row(a: dict, b: dict) -> bool:
        # A column without a name has another in each system.
        values = zip(a.values(), b.values()) if len(b) == 1 else ((a[name], value) for name, value in b.items())
        return len(a) == len(b) and all(same(one, other) for one, other in values)

    return len(actual) == len(expected) and all(map(is_row, actual, expected))


@pytest.mark.parametrize("query", QUERIES + BARE_QUERIES)
def test_rows_are_those_of_duckdb(folder, query):
    expected = expected_of(folder, query)
    assert expected
    for flags in [(), ("--threads", "1"), ("--threads", "4", "--batch-memory-limit", "16MiB", "--spill-folder", str(folder))]:
        actual = rows_of(folder, query, *flags)
        assert is_equal(actual, expected), (flags, actual[:5], expected[:5])


@pytest.mark.parametrize(
    ("query", "phrase"),
    [
        ("SELECT shop, count(*) FROM sales RIGHT JOIN shops USING (shop) GROUP BY shop", "USING or NATURAL would be null"),
        ("SELECT * FROM sales NATURAL FULL JOIN shops", "USING or NATURAL would be null"),
        ("SELECT count(*) FROM sales JOIN shops", "every pair of rows"),
        ("SELECT shop FROM shops EXCEPT ALL SELECT shop FROM sales", "EXCEPT ALL"),
        ("SELECT count(*) FROM sales WHERE shop IS DISTINCT FROM 3 AND id > 4", "IS DISTINCT FROM"),
        ("SELECT shop, count(*) FROM sales GROUP BY shop WITH ROLLUP", "silently ignored"),
        ("SELECT abs(amount) OVER (PARTITION BY shop) FROM sales", 'a clause of "abs" would be silently ignored'),
        ("SELECT upper(day) FILTER (WHERE shop > 1) FROM sales", 'a clause of "upper" would be silently ignored'),
    ],
)
def test_what_would_give_wrong_rows_is_refused(folder, query, phrase):
    command = [binary(), "sql", "tables.sql", "-c", query]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)
    assert done.returncode != 0 and phrase in done.stderr, done.stderr + done.stdout


def test_a_subquery_without_a_row_is_null(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"a")
    (tmp_path / "tables.sql").write_text("CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION 'photos';")
    none = "(SELECT path FROM photos WHERE size < 0)"
    assert rows_of(tmp_path, f"SELECT {none} AS p FROM photos") == [{"p": None}]
    assert rows_of(tmp_path, f"SELECT path FROM photos WHERE {none} IS NULL") == [{"path": "a.jpg"}]


def test_json_has_lists_objects_and_bytes(folder):
    query = "SELECT ['a, b', NULL] AS list, {'z': 1, 'a': [1.5]} AS struct, MAP {'k': 2} AS map, CAST('a' AS BYTEA) AS bytes FROM shops LIMIT 1"
    expected = {"list": ["a, b", None], "struct": {"z": 1, "a": [1.5]}, "map": {"k": 2}, "bytes": "YQ=="}
    assert rows_of(folder, query) == [expected]


def test_joins_that_do_not_fit_in_memory_are_spilled(folder):
    # Texts of 80 MB on each side.
    wide = "SELECT id, concat(repeat('x', 2000), id) AS text FROM sales"
    query = f"SELECT count(*) AS n, sum(length(b.text)) AS s FROM ({wide}) a JOIN ({wide}) b ON a.id = b.id AND a.text = b.text"
    for limit in ("48MiB", "64MiB"):
        small = rows_of(folder, query, "--threads", "1", "--batch-memory-limit", limit)
        assert small == rows_of(folder, query, "--batch-memory-limit", "1GiB")


def test_wide_rows_are_read_in_small_batches(tmp_path):
    (tmp_path / "wide").mkdir()
    for name in range(160):
        (tmp_path / f"wide/{name:03}.jpg").write_bytes(bytes([name]) * (4 << 20))
    (tmp_path / "tables.sql").write_text("CREATE EXTERNAL TABLE wide STORED AS MEDIA LOCATION 'wide';")
    query = "SELECT count(*) AS n, min(bytes) IS NULL AS x FROM wide WHERE path <> 'x'"
    program = f"import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    command = [sys.executable, "-c", program, str(binary()), "sql", "tables.sql", "-c", query, "--output", "json", "--threads", "2"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)
    # 640 MB in all.
    assert int(done.stdout.splitlines()[-1]) < 350_000, done.stdout


def test_an_interrupted_query_leaves_no_files(folder, tmp_path):
    query = "SELECT a.id, concat(repeat('x', 300), a.id, b.shop) AS t FROM sales a CROSS JOIN shops b ORDER BY t DESC"
    command = [binary(), "sql", "tables.sql", "-c", query, "--batch-memory-limit", "64MiB", "--spill-folder", str(tmp_path)]
    process = subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    # Files appear while it runs.
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not any(path.is_file() for path in tmp_path.rglob("*")):
        assert process.poll() is None and time.monotonic() < deadline, "the query spills"
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130 and "interrupted" in error, error
    assert list(tmp_path.iterdir()) == []


def test_rows_that_do_not_fit_in_memory_are_spilled_and_removed(folder, tmp_path):
    query = "SELECT a.id, concat(repeat('x', 600), a.id) AS text FROM sales a ORDER BY text, a.id DESC"
    spill = tmp_path / "spill"
    spill.mkdir()
    small = rows_of(folder, query, "--batch-memory-limit", "20MiB", "--spill-folder", str(spill))
    assert small == rows_of(folder, query) and len(small) == 40_000
    assert list(spill.iterdir()) == []


def test_a_query_that_cannot_run_says_what_to_do(folder, tmp_path):
    def error(query: str, *flags: str) -> str:
        command = [binary(), "sql", "tables.sql", "-c", query, *flags]
        done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        assert done.returncode != 0 and "panicked" not in done.stderr
        return done.stderr

    hungry = "SELECT array_agg(concat(repeat('x', 500), id)) FROM sales"
    text = error(hungry, "--batch-memory-limit", "1MiB")
    assert "--batch-memory-limit" in text and "Aggregate" in text, text
    assert "--spill-folder" in error("SELECT count(*) FROM sales", "--spill-folder", str(folder / "tables.sql"))
    assert "folder of the local disk" in error("SELECT count(*) FROM sales", "--spill-folder", "s3://bucket/spill")
    assert "nowhere" in error("SELECT * FROM nowhere ORDER BY 1")
    (tmp_path / "bad.csv").write_text("n\n1\nx\n")
    done = subprocess.run(
        [binary(), "sql", "-c", f"CREATE EXTERNAL TABLE t (n BIGINT) STORED AS CSV LOCATION '{tmp_path}/bad.csv'; SELECT sum(n) FROM t"],
        env=environment(), capture_output=True, text=True,
    )
    assert done.returncode != 0 and "bad.csv" in done.stderr and "row 1" in done.stderr, done.stderr


def test_other_commands_run_no_query(folder):
    script = folder / "queries.sql"
    script.write_text(f"{TABLES}\nSELECT sum(1 / (shop - shop)) FROM sales;\nCREATE PIPELINE p AS SELECT shop FROM shops;")
    done = subprocess.run([binary(), "run", str(script), "--output", "json"], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0 and "the script's queries were checked and not run" in done.stderr, done.stderr


PROGRAM = """
import forebay, pyarrow as pa
shops = forebay.table({"shop": [1, 2, 2], "size": [3, 4, 5]})
query = forebay.sql("SELECT shop, sum(size) AS size FROM t GROUP BY shop ORDER BY shop", t=shops)
assert isinstance(query, forebay.Query), query
assert query.to_arrow().to_pydict() == {"shop": [1, 2], "size": [3, 9]}
assert query.head(1).num_rows == 1 and query.schema.names == ["shop", "size"]
assert list(query.to_pandas()["size"]) == [3, 9]
assert pa.table(query).num_rows == 2
query.show()
assert [batch.num_rows for batch in query.batches()] == [2]
[batch] = forebay.load(query, format="arrow", batch_size=2, shuffle=False)
assert pa.table(batch).to_pydict() == {"shop": [1, 2], "size": [3, 9]}
# A script gives its last pipeline or query.
assert isinstance(forebay.sql("CREATE EXTERNAL TABLE a STORED AS CSV LOCATION 'a.csv'; SELECT count(*) AS n FROM a"), forebay.Query)
assert forebay.sql("VALUES (1), (2)").to_arrow().num_rows == 2
# Loaded as text, it is a pipeline with a stage.
[batch] = forebay.load("SELECT shop, count(*) AS n FROM a GROUP BY shop", format="arrow", batch_size=9, shuffle=False)
assert pa.table(batch).to_pydict() == {"shop": [1, 2], "n": [1, 1]}
try:
    forebay.load("SHOW TABLES; SELECT count(*) FROM a")
except forebay.InvalidError as error:
    assert "no pipeline" in str(error), error
else:
    raise AssertionError("a script without a pipeline")
# What a feed can run stays a pipeline.
assert isinstance(forebay.sql("SELECT size FROM t", t=shops), forebay.Pipeline)
for text, phrase in [
    ("SELECT nothing, count(*) FROM t GROUP BY nothing", "nothing"),
    ("SELECT random_uniform() AS u FROM t ORDER BY u", "runs in a feed"),
]:
    try:
        forebay.sql(text, t=shops)
    except forebay.InvalidError as error:
        assert phrase in str(error), error
    else:
        raise AssertionError(text)
"""


def test_python_has_queries_too(tmp_path):
    (tmp_path / "a.csv").write_text("shop\n1\n2\n")
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "shop: Int64  size: Int64" in done.stdout
