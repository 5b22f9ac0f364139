"""Fitted operators: their constants follow from the rows, are fitted once, and are the same however the fit runs."""

import json
import math
import random
import statistics
from collections import Counter
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support import Server
from test_stages import lines, run

SEED = 7
ROWS = 30_000
TABLES = """CREATE EXTERNAL TABLE clicks STORED AS PARQUET LOCATION 'clicks';
CREATE EXTERNAL TABLE sites STORED AS JSONL LOCATION 'sites.jsonl';"""

PIPELINES = {
    "by_frequency": "SELECT id, categorify(user) AS user, categorify(site) AS site, categorify(word) AS word FROM clicks",
    "frequent": "SELECT id, categorify(user, min_freq => 20, max_size => 300, start => 2, other => 1) AS user FROM clicks",
    "first_seen": "SELECT id, categorify(user, order => 'first_seen', start => 0) AS user, categorify(word, order => 'first_seen') AS word FROM clicks",
    "joined": "SELECT c.id, categorify(s.topic, order => 'first_seen') AS topic FROM clicks c JOIN sites s ON c.site = s.site",
    "scaled": "SELECT id, standardize(price) AS s, standardize(user) AS u, min_max(price) AS m, quantile_bucketize(price, 10) AS b FROM clicks",
    "nested": "SELECT id, standardize(log1p(min_max(price))) AS s, categorify(hash_bucket(word, 50)) AS w FROM clicks",
    "above": "SELECT user, standardize(n) AS n FROM (SELECT user, count(*) AS n FROM clicks GROUP BY user)",
    "below": "SELECT w, count(*) AS n FROM (SELECT categorify(word) AS w FROM clicks) GROUP BY w",
    "train": "SELECT id, categorify(word, fit_on => 'split = ''train''') AS w, standardize(price, fit_on => 'split = ''train''') AS p FROM clicks WHERE split = 'train'",
    "validation": "SELECT id, categorify(word, fit_on => 'split = ''train''') AS w, standardize(price, fit_on => 'split = ''train''') AS p FROM clicks WHERE split <> 'train'",
    "large": "SELECT id, categorify(path) AS path FROM clicks",
}


def word(draw: random.Random) -> str | None:
    length = min(int(draw.expovariate(0.3)) + 1, 14)
    return None if draw.random() < 0.02 else "".join(draw.choice("abc") for _ in range(length))


@pytest.fixture(scope="module")
def clicks() -> pa.Table:
    print(f"seed {SEED}")
    draw = random.Random(SEED)
    return pa.table(
        {
            "id": range(ROWS),
            "user": [None if draw.random() < 0.01 else int(draw.paretovariate(0.6)) % 5_000 - 100 for _ in range(ROWS)],
            "site": [draw.randrange(30) for _ in range(ROWS)],
            "word": [word(draw) for _ in range(ROWS)],
            "price": [None if draw.random() < 0.01 else draw.choice([draw.gauss(5, 30), math.nan, -0.0, 0.0]) for _ in range(ROWS)],
            "split": [draw.choice(["train", "train", "test"]) for _ in range(ROWS)],
            "path": [f"/products/{draw.randrange(20_000)}/details" for _ in range(ROWS)],
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory, clicks) -> Path:
    folder = tmp_path_factory.mktemp("fits")
    (folder / "clicks").mkdir()
    for part in range(3):
        rows = clicks.slice(part * ROWS // 3, ROWS // 3)
        pq.write_table(rows, folder / f"clicks/{part}.parquet", row_group_size=1_500)
    sites = [{"site": n, "topic": f"topic {n % 7}"} for n in range(29, -1, -1)]
    (folder / "sites.jsonl").write_text("\n".join(map(json.dumps, sites)))
    script = [f"CREATE PIPELINE {name} AS {query};" for name, query in PIPELINES.items()]
    (folder / "all.sql").write_text("\n".join([TABLES, *script]))
    return folder


@pytest.fixture(scope="module")
def samples(folder):
    def of(name: str) -> dict[str, list]:
        out = folder / f"out-{name}"
        if not out.exists():
            flags = ["--to", out, "--format", "parquet", "--root", folder / "root"]
            run("materialize", "all.sql", "--pipeline", name, *flags, folder=folder)
        rows = pq.read_table(out)
        return rows.to_pydict()

    return of


def ids(values: list, start: int = 1, other: int = 0, min_freq: int = 1, max_size: int | None = None) -> list:
    """The ids by frequency, counted by DuckDB."""
    values = pa.table({"value": values})
    limit = f"LIMIT {max_size}" if max_size else ""
    with duckdb.connect() as connection:
        entries = connection.execute(
            f"""SELECT value FROM values WHERE value IS NOT NULL GROUP BY value HAVING count(*) >= {min_freq}
            ORDER BY count(*) DESC, value {limit}"""
        ).fetchall()
    id_of = {value: start + at for at, (value,) in enumerate(entries)}
    return [None if value is None else id_of.get(value, other) for value in values["value"].to_pylist()]


def in_first_seen_order(values: list, start: int) -> list:
    seen = {}
    return [None if value is None else seen.setdefault(value, start + len(seen)) for value in values]


def test_ids_are_those_of_counting(clicks, samples):
    data, found = clicks.to_pydict(), samples("by_frequency")
    assert found["id"] == data["id"]
    for column in ["user", "site", "word"]:
        assert found[column] == ids(data[column]), column
    assert samples("frequent")["user"] == ids(data["user"], start=2, other=1, min_freq=20, max_size=300)
    assert samples("large")["path"] == ids(data["path"])


def test_ids_in_the_order_of_rows(clicks, samples):
    data = clicks.to_pydict()
    found = samples("first_seen")
    assert found["user"] == in_first_seen_order(data["user"], 0)
    assert found["word"] == in_first_seen_order(data["word"], 1)
    assert samples("joined")["topic"] == in_first_seen_order([site % 7 for site in data["site"]], 1)


def test_statistics_are_those_of_the_rows(clicks, samples):
    data, found = clicks.to_pydict(), samples("scaled")
    prices = [price for price in data["price"] if price is not None and not math.isnan(price)]
    mean, std = statistics.fmean(prices), statistics.pstdev(prices)
    least, greatest = min(prices), max(prices)
    with duckdb.connect() as connection:
        numbers = pa.table({"price": prices})
        assert numbers.num_rows
        [(quantiles,)] = connection.execute(
            f"SELECT quantile_cont(price, {[k / 10 for k in range(1, 10)]}) FROM numbers"
        ).fetchall()
    borders = sorted(set(quantiles))
    for price, s, m, b in zip(data["price"], found["s"], found["m"], found["b"], strict=True):
        if price is None:
            assert s is None and m is None and b is None
        elif math.isnan(price):
            assert math.isnan(s) and math.isnan(m) and b == len(borders)
        else:
            assert math.isclose(s, (price - mean) / std, rel_tol=1e-9, abs_tol=1e-12)
            assert math.isclose(m, (price - least) / (greatest - least), rel_tol=1e-12, abs_tol=1e-15)
            assert b == sum(border < price for border in borders)
    users = [user for user in data["user"] if user is not None]
    mean, std = statistics.fmean(users), statistics.pstdev(users)
    assert all(math.isclose(u, (user - mean) / std, rel_tol=1e-9) for user, u in zip(data["user"], found["u"]) if user is not None)


def test_fits_over_fits_over_stages_and_below_them(clicks, samples):
    data = clicks.to_pydict()
    prices = [price for price in data["price"] if price is not None and not math.isnan(price)]
    least, greatest = min(prices), max(prices)
    logs = [math.log1p((price - least) / (greatest - least)) for price in prices]
    mean, std = statistics.fmean(logs), statistics.pstdev(logs)
    found = [s for s in samples("nested")["s"] if s is not None and not math.isnan(s)]
    assert all(math.isclose(s, (log - mean) / std, rel_tol=1e-9, abs_tol=1e-12) for s, log in zip(found, logs, strict=True))
    counts = Counter(data["user"])
    mean, std = statistics.fmean(counts.values()), statistics.pstdev(counts.values())
    above = samples("above")
    for user, n in zip(above["user"], above["n"], strict=True):
        assert math.isclose(n, (counts[user] - mean) / std, rel_tol=1e-9, abs_tol=1e-12)
    below = samples("below")
    assert dict(zip(below["w"], below["n"], strict=True)) == Counter(ids(data["word"]))


def test_pipelines_that_fit_to_the_same_rows_share_a_fit(clicks, folder, samples):
    data = clicks.to_pydict()
    is_train = [split == "train" for split in data["split"]]
    of_train = [word if train else None for word, train in zip(data["word"], is_train)]
    id_of = dict(zip(of_train, ids(of_train), strict=True))
    for name, side in [("train", True), ("validation", False)]:
        words = [word for word, train in zip(data["word"], is_train) if train == side]
        assert samples(name)["w"] == [None if word is None else id_of.get(word, 0) for word in words]
    plan = [run("explain", "all.sql", "--pipeline", name, "--root", folder / "root", "--output", "json", folder=folder) for name in ["train", "validation"]]
    stages = [json.loads(done.stdout)["stages"] for done in plan]
    assert [len(of_pipeline) for of_pipeline in stages] == [1, 1]
    assert stages[0][0]["kept"] == stages[1][0]["kept"] and stages[0][0]["kept"]


@pytest.mark.parametrize("name", PIPELINES)
def test_a_fit_is_the_same_however_it_runs(folder, name):
    feeds = set()
    for number, flags in enumerate([(), ("--threads", "1"), ("--threads", "4", "--batch-memory-limit", "32MiB")]):
        flags = ["--root", folder / f"root-{number}", "--output", "json", *flags]
        feeds.add(lines(run("run", "all.sql", "--pipeline", name, *flags, folder=folder))[-1]["feed"])
    assert len(feeds) == 1


def test_workers_get_what_was_fitted(folder, tmp_path):
    def digests(*flags: str | Path) -> list[str]:
        done = run("run", *flags, "--output", "json", "--batch-size", "5000", folder=folder)
        return [batch["digest"] for batch in lines(done)[:-1]]

    root = tmp_path / "root"
    with Server(folder / "all.sql", "--root", root, "--workers", "2") as server:
        for name in ["by_frequency", "large", "scaled", "nested"]:
            there = digests("--connect", server.uri, "--pipeline", name)
            assert there == digests("all.sql", "--pipeline", name, "--root", root), name


def test_a_bare_query_fits_too(folder, samples):
    def query(text: str) -> list[dict]:
        return lines(run("sql", "all.sql", "-c", text, "--output", "json", folder=folder))

    rows = [row for row in query(PIPELINES["frequent"] + " LIMIT 50") if "id" in row]
    assert [row["user"] for row in rows] == samples("frequent")["user"][:50]
    [row] = [row for row in query("SELECT max(m) AS most FROM (SELECT min_max(user) AS m FROM clicks)") if "most" in row]
    assert row["most"] == 1.0
    assert not (folder / ".forebay/artifacts").exists()


def test_more_values_than_fit_in_memory_are_an_error_that_says_so(tmp_path):
    table = pa.table({"key": [f"a long key {number:032}" for number in range(400_000)]})
    pq.write_table(table, tmp_path / "keys.parquet")
    (tmp_path / "p.sql").write_text(
        "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 'keys.parquet';\n"
        "CREATE PIPELINE p AS SELECT categorify(key) AS k FROM t;"
    )
    done = run("run", "p.sql", "--batch-memory-limit", "16MiB", folder=tmp_path, code=7)
    assert "value_1" in done.stderr and "--batch-memory-limit" in done.stderr, done.stderr
    done = run("run", "p.sql", "--output", "json", folder=tmp_path)
    assert lines(done)[-1]["samples"] == 400_000


def test_pipers_chain_gives_its_ids(tmp_path):
    """Fill, clamp and logarithm for numbers; hexadecimal, modulus and vocabulary for categories."""
    draw = random.Random(SEED)
    rows = [
        {
            "dense": None if draw.random() < 0.1 else draw.randrange(-3, 5_000),
            "sparse": None if draw.random() < 0.1 else f"{draw.randrange(1 << 32) % 900_000:08x}",
        }
        for _ in range(20_000)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "p.sql").write_text(
        "CREATE EXTERNAL TABLE t STORED AS JSONL LOCATION 'rows.jsonl';\n"
        "CREATE PIPELINE p AS SELECT log1p(clamp(fill_null(dense, 0), 0, 1000000)) AS dense, "
        "categorify(positive_mod(hex_to_int(coalesce(sparse, '0')), 5000), order => 'first_seen', start => 0) AS sparse FROM t;"
    )
    run("materialize", "p.sql", "--to", "out", "--format", "parquet", folder=tmp_path)
    found = pq.read_table(tmp_path / "out").to_pydict()
    keys = [int(row["sparse"] or "0", 16) % 5_000 for row in rows]
    assert found["sparse"] == in_first_seen_order(keys, 0)
    dense = [math.log1p(max(row["dense"] or 0, 0)) for row in rows]
    assert all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(found["dense"], dense, strict=True))
