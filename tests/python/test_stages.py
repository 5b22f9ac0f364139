"""Pipelines that need whole tables: stages run once, give DuckDB's rows, and are the same bytes however they run."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from support import Server, binary, environment
from test_whole_tables import QUERIES, TABLES, expected_of, is_equal, write

PATIENCE_SECONDS = 120

NAMED = [query for query in QUERIES if "SELECT count(*) FROM" not in query.split("(SELECT")[0] and not query.startswith("WITH")]
"""The queries whose columns have names in a file."""

COUNTS = [
    query.replace("SELECT count(*) FROM", "SELECT count(*) AS n FROM")
    for query in QUERIES
    if query not in NAMED
]

PIPELINES = {f"q{number}": query for number, query in enumerate(NAMED + COUNTS)}

TIES = {
    # Floats whose sums depend on the order of additions, and ties that only the rows' place breaks.
    "floats": "SELECT shop, sum(price / 3) AS s, avg(price) AS a, stddev(price) AS d FROM sales GROUP BY shop",
    "tied": "SELECT id, amount FROM sales ORDER BY amount % 5",
    "first": "SELECT id, shop FROM sales QUALIFY row_number() OVER (PARTITION BY shop ORDER BY amount % 3) <= 2",
    "joined": "SELECT a.id, b.shop AS other FROM sales a FULL JOIN shops b ON a.amount = b.size AND a.id % 7 = 0",
    "listed": "SELECT shop, array_agg(id ORDER BY amount % 5) AS ids FROM sales WHERE id < 9000 GROUP BY shop",
    "some": "SELECT id FROM (SELECT id FROM sales WHERE amount % 2 = 0 LIMIT 500) UNION ALL SELECT size FROM shops",
    "looked_up": "SELECT s.id, c.n FROM sales s LEFT JOIN (SELECT shop, count(*) AS n FROM sales GROUP BY shop) c ON c.shop = s.shop",
    "divided": "SELECT id, price / nullif((SELECT stddev(price) FROM sales), 0.0) AS p FROM sales",
    "valued": "SELECT id, price - (SELECT avg(price) FROM sales) AS p FROM sales WHERE amount > (SELECT avg(size) FROM shops)",
}


def run(*arguments: str | Path, folder: Path, code: int = 0, **variables: str) -> subprocess.CompletedProcess:
    command = [binary(), *map(str, arguments)]
    done = subprocess.run(
        command, cwd=folder, env=environment() | variables, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == code, done.stderr + done.stdout
    assert "panicked" not in done.stderr, done.stderr
    return done


def lines(done: subprocess.CompletedProcess) -> list[dict]:
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stages")
    write(folder)
    pipelines = PIPELINES | TIES
    script = [f"CREATE PIPELINE {name} AS {query};" for name, query in pipelines.items()]
    (folder / "all.sql").write_text("\n".join([TABLES, *script]))
    return folder


SETTINGS = [
    ("--threads", "1"),
    ("--threads", "4", "--batch-memory-limit", "16MiB"),
]


@pytest.mark.parametrize("name", PIPELINES)
def test_samples_are_duckdbs_rows(folder, name):
    expected = expected_of(folder, PIPELINES[name])
    out = folder / f"out-{name}"
    run("materialize", "all.sql", "--pipeline", name, "--to", out, "--format", "jsonl", "--root", folder / "default", folder=folder)
    actual = [json.loads(line) for path in sorted(out.glob("*.jsonl")) for line in path.read_text().splitlines()]
    # JSON lines leave nulls out.
    columns = {column: None for row in expected for column in row}
    actual = [columns | row for row in actual]
    assert is_equal(actual, expected), (actual[:5], expected[:5])


@pytest.mark.parametrize("name", [*PIPELINES, *TIES])
def test_samples_are_the_same_however_the_stages_run(folder, name):
    ids = set()
    for number, flags in enumerate([(), *SETTINGS]):
        root = folder / f"root-{number}"
        [*_, last] = lines(run("run", "all.sql", "--pipeline", name, "--root", root, "--output", "json", *flags, folder=folder))
        ids.add(last["feed"])
    # The feed's id follows from the digests of the stages' rows.
    assert len(ids) == 1


SLOW = """SELECT a.shop, count(*) AS n, sum(a.price * b.price) AS s
FROM sales a JOIN sales b ON a.amount = b.amount GROUP BY a.shop"""


@pytest.fixture
def slow(folder, tmp_path) -> Path:
    script = tmp_path / "slow.sql"
    script.write_text(f"{TABLES.replace(chr(39) + 's', chr(39) + str(folder) + '/s')}\nCREATE PIPELINE slow AS {SLOW};")
    return script


def begin(script: Path, *flags: str) -> subprocess.Popen:
    command = [binary(), "run", script, "--root", "root", "--output", "json", *flags]
    return subprocess.Popen(command, cwd=script.parent, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(what: str, is_so) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_a_stage_that_was_killed_runs_once_more_and_leaves_nothing(slow):
    first = begin(slow)
    wait_for("a claim", lambda: list((slow.parent / "root").rglob("*claims*/**/*")) or first.poll() is not None)
    first.kill()
    killed, _ = first.communicate()
    [*batches, last] = lines(run("run", slow, "--root", "root", "--output", "json", folder=slow.parent))
    assert not killed and batches
    other = run("run", slow, "--root", "other", "--output", "json", folder=slow.parent)
    assert [batch["digest"] for batch in lines(other)[:-1]] == [batch["digest"] for batch in batches]
    assert lines(other)[-1]["feed"] == last["feed"]
    found = run("gc", "--root", "root", "--dry-run", "--output", "json", folder=slow.parent)
    assert '"objects":0' in found.stdout.replace(" ", ""), found.stdout


def test_processes_that_need_a_stage_run_it_once(slow):
    runs = [begin(slow) for _ in range(3)]
    feeds = set()
    for process in runs:
        out, log = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, log
        feeds.add(json.loads(out.splitlines()[-1])["feed"])
    assert len(feeds) == 1
    artifacts = list((slow.parent / "root/artifacts").iterdir())
    assert len(artifacts) == 1 and len(list(artifacts[0].glob("*.parquet"))) == 1


def test_tokens_outlive_the_rows_of_a_stage(folder, tmp_path):
    flags = ["run", "all.sql", "--pipeline", "tied", "--root", tmp_path / "root", "--shuffle", "--seed", "3", "--output", "json"]
    [*batches, _] = lines(run(*flags, "--batch-size", "1000", folder=folder))
    shutil.rmtree(tmp_path / "root")
    [*rest, _] = lines(run(*flags, "--batch-size", "1000", "--from", batches[9]["token"], "--threads", "1", folder=folder))
    assert [batch["digest"] for batch in rest] == [batch["digest"] for batch in batches[10:]]


def test_a_cluster_gives_the_same_samples(folder, tmp_path):
    def samples(*flags: str | Path) -> list[str]:
        done = run("run", *flags, "--output", "json", "--batch-size", "5000", folder=folder)
        return [batch["digest"] for batch in lines(done)[:-1]]

    root = tmp_path / "root"
    with Server(folder / "all.sql", "--root", root, "--workers", "2") as server:
        for name in ["tied", "looked_up", "valued", "divided", "floats"]:
            there = samples("--connect", server.uri, "--pipeline", name)
            assert there == samples("all.sql", "--pipeline", name, "--root", root), name


def test_a_stage_that_fails_keeps_no_other_pipeline_from_being_served(folder, tmp_path):
    (tmp_path / "two.sql").write_text(
        f"{TABLES.replace(chr(39) + 's', chr(39) + str(folder) + '/s')}\n"
        "CREATE PIPELINE good AS SELECT shop, count(*) AS n FROM sales GROUP BY shop;\n"
        "CREATE PIPELINE bad AS SELECT shop, max(CAST(day AS INT)) AS d FROM sales GROUP BY shop;"
    )
    with Server(tmp_path / "two.sql", "--root", tmp_path / "root") as server:
        assert lines(run("run", "--connect", server.uri, "--pipeline", "good", "--output", "json", folder=tmp_path))[-1]["samples"] == 40
        done = subprocess.run(
            [binary(), "run", "--connect", server.uri, "--pipeline", "bad"],
            env=environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS,
        )
        assert done.returncode != 0 and "stage_1" in done.stderr, done.stderr


def test_without_precompute_a_stage_is_named(folder, tmp_path):
    flags = ["run", "all.sql", "--pipeline", "tied", "--root", tmp_path / "root", "--output", "json"]
    done = run(*flags, "--no-precompute", folder=folder, code=5)
    assert "stage_1" in done.stderr and "sales" in done.stderr and "--no-precompute" in done.stderr, done.stderr
    run(*flags, folder=folder)
    run(*flags, "--no-precompute", folder=folder)


def test_explain_runs_nothing(folder, tmp_path):
    explain = ["explain", "all.sql", "--pipeline", "looked_up", "--root", tmp_path / "root"]
    assert "not kept" in run(*explain, folder=folder).stdout
    assert not (tmp_path / "root").exists()
    run("run", "all.sql", "--pipeline", "looked_up", "--root", tmp_path / "root", folder=folder)
    text = run(*explain, folder=folder).stdout
    assert "kept: 40 rows" in text and "feed stage" in text, text


def test_an_interrupted_stage_leaves_nothing_behind(slow):
    spill = slow.parent / "spill"
    process = begin(slow, "--spill-folder", str(spill))
    wait_for("a claim", lambda: list((slow.parent / "root").rglob("*claims*/**/*")) or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    _, log = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130 and "interrupted" in log, log
    assert not spill.exists() or not list(spill.iterdir())


@pytest.mark.parametrize(
    ("query", "phrase"),
    [
        ("SELECT max(random_uniform()) AS m FROM sales", '"random_uniform" runs in a feed'),
        ("SELECT DISTINCT shop FROM sales TABLESAMPLE BERNOULLI (50)", '"TABLESAMPLE" runs in a feed'),
        ("SELECT array_agg(id) AS ids FROM sales", "without ORDER BY"),
        ("SELECT id FROM sales ORDER BY random()", '"random" returns new random values'),
        ("SELECT shop IN (SELECT shop FROM shops) AS known FROM sales", "must be in a condition"),
        ("SELECT count(*) AS n FROM sales WHERE shop IS DISTINCT FROM 3 AND id > 4", "IS DISTINCT FROM"),
    ],
)
def test_what_cannot_be_a_stage_is_refused_when_the_pipeline_is_created(folder, query, phrase):
    done = run("sql", "all.sql", "-c", f"CREATE PIPELINE p AS {query}", folder=folder, code=2)
    assert phrase in done.stderr and "hint: " in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("query", "code", "phrases"),
    [
        ("SELECT id FROM sales WHERE id < 0 ORDER BY id", 2, ["stage_1"]),
        ("SELECT shop, sum(1 / (shop - shop)) AS s FROM sales GROUP BY shop", 4, ["stage_1", "p", "in 1 / (", "divide by zero"]),
        ("SELECT shop, max(CAST(day AS INT)) AS s FROM sales GROUP BY shop", 4, ["stage_1", 'in CAST(sales."day" AS INTEGER)', "cannot cast string"]),
        ("SELECT id, (SELECT shop FROM shops) AS s FROM sales", 4, ["more than one row"]),
    ],
)
def test_a_stage_that_fails_says_which(folder, tmp_path, query, code, phrases):
    (tmp_path / "p.sql").write_text(f"{TABLES.replace(chr(39) + 's', chr(39) + str(folder) + '/s')}\nCREATE PIPELINE p AS {query};")
    done = run("run", "p.sql", folder=tmp_path, code=code)
    assert all(phrase in done.stderr for phrase in phrases), done.stderr


def test_rows_that_cannot_be_read_are_left_out_of_a_stage_if_the_pipeline_says_so(tmp_path):
    rows = [f"{n},{'x' if n % 500 == 7 else n}" for n in range(2_000)]
    (tmp_path / "a.csv").write_text("n,m\n" + "\n".join(rows) + "\n")
    table = "CREATE EXTERNAL TABLE a (n BIGINT, m BIGINT) STORED AS CSV LOCATION 'a.csv';"
    query = "SELECT count(*) AS rows, count(m) AS ms, sum(m) AS total, min(b.o) AS least FROM a JOIN (SELECT n AS k, m + 1 AS o FROM a) b ON b.k = a.n"
    left_out = [n for n in range(2_000) if n % 500 == 7]
    good = [n for n in range(2_000) if n % 500 != 7]
    feeds = set()
    for on_error in ["raise", "skip", "quarantine"]:
        (tmp_path / "p.sql").write_text(f"{table}\nCREATE PIPELINE p WITH (on_error = '{on_error}') AS {query};")
        done = run("run", "p.sql", folder=tmp_path, code=4 if on_error == "raise" else 0)
        if on_error == "raise":
            assert "a.csv\", row 7: " in done.stderr and "on_error" in done.stderr, done.stderr
            continue
        assert "bad_rows=4" in done.stderr, done.stderr
        for number, flags in enumerate([(), *SETTINGS]):
            out = run("run", "p.sql", "--root", f"root-{on_error}-{number}", "--output", "json", *flags, folder=tmp_path)
            feeds.add((on_error, lines(out)[-1]["feed"]))
        run("materialize", "p.sql", "--to", f"out-{on_error}", "--format", "jsonl", folder=tmp_path)
        [file] = (tmp_path / f"out-{on_error}").glob("*.jsonl")
        expected = {"rows": len(good), "ms": len(good), "total": sum(good), "least": 1}
        assert json.loads(file.read_text()) == expected
        explained = run("explain", "p.sql", folder=tmp_path).stdout
        assert "4 bad rows left out" in explained, explained
    assert len(feeds) == 2, "the rows do not depend on how a stage runs"
    [file] = tmp_path.glob(".forebay/quarantine/*/stage.parquet")
    recorded = pq.read_table(file)
    assert recorded["row"].to_pylist() == left_out and recorded["reason"][0].as_py().startswith('column "m"')
    (tmp_path / "p.sql").write_text(f"{table}\nCREATE PIPELINE p WITH (on_error = 'skip') AS {query};")
    explained = run("explain", "p.sql", "--root", "root-quarantine-0", folder=tmp_path).stdout
    assert "on_error is skip, was quarantine" in explained, explained
    # Only cells that a query reads are checked, and other rows are all there.
    (tmp_path / "p.sql").write_text(f"""{table}
        MATERIALIZE (SELECT count(*) AS rows, max(n) AS n FROM a) TO 'all' WITH (format = 'jsonl');
        MATERIALIZE (SELECT m FROM a ORDER BY m LIMIT 10) TO 'least' WITH (format = 'jsonl', on_error = 'skip');""")
    run("sql", "p.sql", folder=tmp_path)
    [every], [least] = (tmp_path / "all").glob("*.jsonl"), (tmp_path / "least").glob("*.jsonl")
    assert json.loads(every.read_text()) == {"rows": 2_000, "n": 1_999}
    assert [json.loads(line)["m"] for line in least.read_text().splitlines()] == good[:10]


def test_a_changed_file_is_another_feed_and_a_damaged_artifact_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("n\n3\n1\n2\n")
    (tmp_path / "p.sql").write_text("CREATE EXTERNAL TABLE a STORED AS CSV LOCATION 'a.csv'; CREATE PIPELINE p AS SELECT n FROM a ORDER BY n;")
    first = lines(run("run", "p.sql", "--output", "json", folder=tmp_path))
    os.utime(tmp_path / "a.csv", (1, 1))
    # The same rows in a newer file give the same samples, by another stage.
    assert lines(run("run", "p.sql", "--output", "json", folder=tmp_path))[-1]["feed"] == first[-1]["feed"]
    (tmp_path / "a.csv").write_text("n\n3\n1\n")
    assert lines(run("run", "p.sql", "--output", "json", folder=tmp_path))[-1]["feed"] != first[-1]["feed"]
    for file in (tmp_path / ".forebay/artifacts").glob("*/*.parquet"):
        content = bytearray(file.read_bytes())
        content[8] ^= 1
        file.write_bytes(content)
    done = run("run", "p.sql", "--output", "json", folder=tmp_path)
    assert ".parquet" in done.stderr and "runs again" in done.stderr, done.stderr
    again = lines(done)
    for file in (tmp_path / ".forebay/artifacts").glob("*/*.parquet"):
        file.unlink()
    rows = lines(run("run", "p.sql", "--output", "json", folder=tmp_path))
    assert [row.get("digest") for row in rows] == [row.get("digest") for row in again]
    assert rows[-1]["feed"] == again[-1]["feed"]


def test_a_join_is_a_stage_if_the_pipeline_says_so(folder, tmp_path):
    query = "SELECT s.id, p.size, p.name FROM sales s LEFT JOIN shops p ON p.shop = s.shop WHERE s.amount < 50"
    tables = TABLES.replace(chr(39) + "s", chr(39) + str(folder) + "/s")
    (tmp_path / "p.sql").write_text(
        f"{tables}\nCREATE PIPELINE found AS {query};\n"
        f"CREATE PIPELINE joined WITH (join = 'precompute') AS {query};"
    )

    def rows(name: str) -> list[str]:
        out = tmp_path / name
        run("materialize", "p.sql", "--pipeline", name, "--to", out, "--format", "jsonl", folder=tmp_path)
        return sorted(line for path in out.glob("*.jsonl") for line in path.read_text().splitlines())

    assert rows("joined") == rows("found")
    plans = [run("explain", "p.sql", "--pipeline", name, folder=tmp_path).stdout for name in ["found", "joined"]]
    assert "stage_1" not in plans[0] and "stage_1" in plans[1]
