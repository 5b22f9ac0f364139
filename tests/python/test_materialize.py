"""`MATERIALIZE` and `forebay materialize`, as processes."""

import hashlib
import json
import signal
import subprocess
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support import binary, environment

SCRIPT = """
CREATE EXTERNAL TABLE numbers STORED AS PARQUET LOCATION 'numbers';
CREATE PIPELINE train AS SELECT n, n * 2 AS x FROM numbers;
"""


def forebay(*arguments, folder, expect=0):
    done = subprocess.run([binary(), *arguments], cwd=folder, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == expect, done.stderr
    return done


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "numbers").mkdir()
    for part in range(4):
        rows = range(part * 2000, (part + 1) * 2000)
        pq.write_table(pa.table({"n": rows}), tmp_path / "numbers" / f"{part}.parquet", row_group_size=400)
    (tmp_path / "train.sql").write_text(SCRIPT)
    return tmp_path


def digests(folder):
    files = sorted(path for path in folder.glob("*.parquet"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def materialize(folder, *arguments, expect=0):
    return forebay("materialize", "train.sql", "--window-rows", "400", "--file-size", "1", *arguments, folder=folder, expect=expect)


def test_the_statement_and_the_command_write_the_same_files(folder):
    (folder / "job.sql").write_text(SCRIPT + "MATERIALIZE train TO 'by_sql' WITH (window_rows = 400, file_size = 1);")
    done = forebay("sql", "job.sql", folder=folder)
    assert "materialized 8000 samples in 20 files" in done.stdout
    summary = json.loads(materialize(folder, "--to", "by_command", "--output", "json").stdout)
    assert (summary["rows"], summary["files"], summary["found"], summary["bad_rows"]) == (8000, 20, False, 0)
    assert digests(folder / "by_sql") == digests(folder / "by_command")
    again = forebay("sql", "job.sql", folder=folder)
    assert "an earlier run wrote them" in again.stdout
    table = pq.read_table([folder / "by_sql" / name for name in sorted(digests(folder / "by_sql"))])
    assert table.column("x").to_pylist() == [2 * n for n in range(8000)]


def test_a_query_in_brackets_needs_no_pipeline(folder):
    statements = SCRIPT + "MATERIALIZE (SELECT n FROM numbers WHERE n % 2 = 0) TO 'even' WITH (format = 'csv', compression = 'none');"
    done = forebay("sql", "-c", statements, folder=folder)
    assert "materialized 4000 samples in 1 files" in done.stdout
    [file] = (folder / "even").glob("*.csv")
    assert file.read_text().split() == ["n", *(str(n) for n in range(0, 8000, 2))]


def test_samples_are_sorted_and_tables_joined_in_stages(folder):
    shuffled = SCRIPT.replace("train AS", "train WITH (shuffle = true, seed = 3) AS")
    (folder / "train.sql").write_text(shuffled)
    materialize(folder, "--to", "sorted", "--sort-by", "x DESC")
    [file] = (folder / "sorted").glob("*.parquet")
    assert pq.read_table(file)["n"].to_pylist() == [*reversed(range(8000))]
    (folder / "job.sql").write_text(f"""{shuffled}
        MATERIALIZE train TO 'by_sql' WITH (window_rows = 400, file_size = 1, sort_by = 'x DESC');
        MATERIALIZE (SELECT a.n, b.n AS other FROM numbers a JOIN numbers b ON b.n = a.n + 7990)
            TO 'joined' WITH (join = 'precompute', sort_by = 'other DESC', format = 'csv', compression = 'none');
    """)
    forebay("sql", "job.sql", folder=folder)
    assert digests(folder / "by_sql") == digests(folder / "sorted")
    [file] = (folder / "joined").glob("*.csv")
    assert file.read_text().split() == ["n,other", *(f"{n},{n + 7990}" for n in reversed(range(10)))]


@pytest.mark.parametrize(
    "statement, place, phrase",
    [
        ("train TO 'out' WITH (join = 'precompute')", "4:34", 'unknown option of MATERIALIZE "join"'),
        ("(SELECT n FROM numbers) TO 'out' WITH (join = 'never')", "4:59", "\"join\" must be 'lookup' or 'precompute'"),
        ("(SELECT n FROM numbers) TO 'out' WITH (sort_by = 'x')", "4:1", 'the column "x", which is not there'),
    ],
)
def test_what_a_statement_cannot_order_or_join_is_refused(folder, statement, place, phrase):
    done = forebay("sql", "-c", f"{SCRIPT}MATERIALIZE {statement};", folder=folder, expect=2)
    assert phrase in done.stderr and f":{place}\n" in done.stderr, done.stderr
    assert not (folder / "out").exists()


def test_a_dry_run_writes_nothing(folder):
    done = materialize(folder, "--to", "out", "--dry-run")
    assert "8000 source rows in 20 windows" in done.stdout
    assert "about 8000 samples" in done.stdout
    assert not (folder / "out").exists()
    estimate = json.loads(materialize(folder, "--to", "out", "--dry-run", "--output", "json").stdout)
    written = json.loads(materialize(folder, "--to", "out", "--output", "json").stdout)
    assert estimate["job"] == written["job"] and estimate["rows"] == written["rows"]
    assert 0.3 < estimate["bytes"] / written["bytes"] < 3
    assert "an earlier run has written all of it" in materialize(folder, "--to", "out", "--dry-run").stdout


def slow(folder):
    """A script that takes seconds, and the flags of its job."""
    (folder / "train.sql").write_text(SCRIPT.replace("n * 2 AS x", "sleep(n * 2, milliseconds => 1) AS x"))
    return ["materialize", "train.sql", "--window-rows", "400", "--file-size", "1", "--to", "out", "--threads", "2"]


def wait_for_files(folder, count):
    deadline = time.monotonic() + 60
    while len(list(folder.glob("*.parquet"))) < count:
        assert time.monotonic() < deadline, "no files"
        time.sleep(0.02)


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_job_resumes(folder, by):
    arguments = slow(folder)
    process = subprocess.Popen([binary(), *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_files(folder / "out", 4)
    process.send_signal(by)
    _, text = process.communicate(timeout=30)
    if by != signal.SIGKILL:
        assert process.returncode == 130
        assert "interrupted: " in text and "run the command again to resume" in text
    assert not list((folder / "out" / "_forebay" / "generations").glob("*"))
    before = {path.name: path.stat().st_mtime_ns for path in sorted((folder / "out").glob("*.parquet"))[:2]}
    began = time.monotonic()
    summary = json.loads(forebay(*arguments, "--output", "json", folder=folder).stdout)
    assert time.monotonic() - began < 25, "a job whose process ended waits for it"
    assert (summary["rows"], summary["found"]) == (8000, False)
    assert before.items() <= {path.name: path.stat().st_mtime_ns for path in (folder / "out").glob("*.parquet")}.items()
    undisturbed = [argument if argument != "out" else "undisturbed" for argument in arguments]
    forebay(*undisturbed, folder=folder)
    assert digests(folder / "out") == digests(folder / "undisturbed")


def test_two_processes_that_start_one_job_have_one_result(folder):
    arguments = [*slow(folder), "--output", "json"]
    processes = [
        subprocess.Popen([binary(), *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    results = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], results
    summaries = [json.loads(out) for out, _ in results]
    assert sorted(summary["found"] for summary in summaries) == [False, True]
    assert all(summary["rows"] == 8000 for summary in summaries)


@pytest.mark.parametrize(
    "arguments, code, phrase",
    [
        (["--to", "out", "--format", "petroleum"], 2, "petroleum"),
        (["--to", "numbers"], 5, "numbers"),
        (["--to", "train.sql/out"], 2, "train.sql"),
        (["--to", "out", "--compression", "mp3"], 2, "mp3"),
        (["--to", "out", "--pipeline", "tarin"], 2, "tarin"),
        ([], 2, "--to"),
    ],
)
def test_what_cannot_be_written_is_refused(folder, arguments, code, phrase):
    done = forebay("materialize", "train.sql", *arguments, folder=folder, expect=code)
    assert phrase in done.stderr
    assert not (folder / "out").exists()


def test_a_served_script_writes_nothing(folder):
    (folder / "job.sql").write_text(SCRIPT + "MATERIALIZE train TO 'out';")
    done = forebay("serve", "job.sql", "--port", "0", folder=folder, expect=2)
    assert "job.sql:4:1" in done.stderr and "a script that is served cannot write files" in done.stderr
    assert not (folder / "out").exists()


def test_a_manifest_says_what_the_job_has_cost(folder):
    (folder / "train.sql").write_text(
        SCRIPT.replace("n * 2 AS x", "upper(concat(n, 'a')) AS x").replace("FROM numbers;", "FROM numbers WHERE abs(n) <> 7;")
    )
    materialize(folder, "--to", "out")
    (generation,) = (folder / "out/_forebay/generations").iterdir()
    costs = json.loads(generation.read_text())["body"]["record"]["committed"]["costs"]
    assert costs["windows"] >= 20
    assert all(costs[step] > 0 for step in ["reading", "preparing", "transforming", "encoding", "storing"]), costs
    rows = {call["name"]: call["rows"] for call in costs["calls"]}
    # The estimate computes a few rows of the first window before the job begins.
    assert rows == {"abs": 8000, "concat": 7999, "upper": 7999}, costs
    assert all(call["seconds"] > 0 and call["bytes_in"] > 0 and call["bytes_out"] > 0 for call in costs["calls"])


def test_explain_measures_windows(folder):
    command = ["explain", "train.sql", "--window-rows", "400", "--measure", "3", "--output", "json"]
    (folder / "train.sql").write_text(SCRIPT.replace("n * 2", "10 / (abs(n) % 4)"))
    measured = json.loads(forebay(*command, folder=folder).stdout)["measured"]
    assert (measured["windows"], measured["rows"], measured["samples"], measured["bad_rows"]) == (3, 1200, 900, 300)
    assert measured["reading"] > 0 and measured["calls"][0]["name"] == "abs"
    text = forebay("explain", "train.sql", "--window-rows", "400", "--measure", folder=folder).stdout
    assert "measured 1 windows: 400 rows, 300 samples, 100 bad rows" in text and "us/row" in text
