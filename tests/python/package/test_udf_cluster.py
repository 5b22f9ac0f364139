"""Python functions stay in the process that declares them, as docs/cluster.md says."""

import subprocess

import pyarrow.compute
import pytest

import forebay
from feeds import files
from support import Process, binary, environment

FEEDS_MAX = 200
OPTIONS = "batch_size = 10, window_rows = 10"
CALLING = f"CREATE PIPELINE shifted WITH ({OPTIONS}) AS SELECT shift_by_nine(n) AS n FROM numbers"


@forebay.udf(input="int64", output="int64", version=1)
def shift_by_nine(n):
    return pyarrow.compute.add(n, 9)


@pytest.fixture
def script(tmp_path):
    files(tmp_path / "numbers", 200)
    return f"CREATE EXTERNAL TABLE numbers STORED AS PARQUET LOCATION 'numbers'; {CALLING};"


def test_a_server_of_the_process_computes_them_and_other_workers_refuse(script, tmp_path):
    session = forebay.Session(base=tmp_path)
    session.sql(script)
    with session.serve() as server, Process("worker", "--dispatcher", server.uri) as worker:
        cluster = forebay.connect(server.uri, retry_for=10)
        refused = []
        # The worker may join late, and the server may be faster with a feed's windows: each seed is another feed.
        for seed in range(FEEDS_MAX):
            read = [n for batch in cluster.load("shifted", seed=seed, format="numpy") for n in batch["n"]]
            assert read == [n + 9 for n in range(200)]
            refused = [part["refused"] for part in cluster.status()["workers"] if part["address"] == worker.uri]
            if any(refused):
                break
        [[[_, report], *_]] = refused
        assert 'function "shift_by_nine" not found' in report["message"]


def test_a_script_of_a_server_cannot_call_them(script, tmp_path):
    (tmp_path / "shifted.sql").write_text(script)
    ended = subprocess.run(
        [binary(), "serve", tmp_path / "shifted.sql"], env=environment(), capture_output=True, text=True
    )
    assert ended.returncode != 0 and 'function "shift_by_nine" not found' in ended.stderr
