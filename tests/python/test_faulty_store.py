"""Jobs, kept samples and feeds over a store that fails: the same results as without faults.

The store is moto behind a proxy that answers a tenth of all requests with 503, resets 2 % of the connections before a
request and 2 % after it, truncates 2 % of the answers, and stalls once for longer than clients wait.
"""

import io
import json
import os
import subprocess
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from interposed import Faults, interposed
from support import binary, environment as clean_environment
from test_s3 import bucket as bucket  # noqa: PLC0414

ROWS = 4000
STALL_SECONDS = 30
SEED = int(os.environ.get("FOREBAY_SEED", 19))
SCRIPT = """
CREATE EXTERNAL TABLE numbers STORED AS PARQUET LOCATION 's3://bucket/faulty/numbers';
CREATE PIPELINE train WITH (shuffle = true, seed = 3, batch_size = 100, window_rows = 250, on_error = 'skip') AS
SELECT n, CAST(CASE WHEN n % 1000 = 7 THEN 'bad' ELSE '1' END AS INT) AS one, {column} AS more FROM numbers;
"""
# Incompressible, for a file of several uploaded parts.
LONG = "concat(" + ", ".join(f"sha512(CAST(n * 100 + {part} AS STRING))" for part in range(40)) + ")"


@pytest.fixture(scope="module")
def numbers(bucket):
    client, environment = bucket
    for file in range(4):
        written = io.BytesIO()
        rows = range(file * 1000, (file + 1) * 1000)
        pq.write_table(pa.table({"n": rows}), written, row_group_size=250)
        client.put_object(Bucket="bucket", Key=f"faulty/numbers/{file}.parquet", Body=written.getvalue())
    return client, environment


@pytest.fixture
def store(numbers):
    """The proxy with its faults, and the environment that leads to it."""
    with interposed(numbers[1]) as (server, environment):
        print(f"FOREBAY_SEED={SEED}")
        server.fault = Faults(SEED, refused=100, reset=20, lost=20, truncated=20)
        yield server, environment


def stall_once(server):
    """Holds one request to the store back, the 40th, until clients have given it up."""
    once = threading.Lock()

    def stalls(path):
        return len(server.requests) >= 40 and once.acquire(blocking=False)

    server.stalls = stalls
    threading.Timer(STALL_SECONDS + 2, server.released.set).start()


def run(environment, *arguments):
    environment = {**clean_environment(), **environment}
    done = subprocess.run([binary(), *arguments], capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def objects(client, prefix):
    listed = client.list_objects_v2(Bucket="bucket", Prefix=prefix)["Contents"]
    keys = [entry["Key"] for entry in listed if entry["Key"].endswith(".parquet") and "_forebay" not in entry["Key"]]
    return {key.removeprefix(prefix): client.get_object(Bucket="bucket", Key=key)["Body"].read() for key in keys}


@pytest.mark.parametrize("column", ["n * 2", LONG], ids=["small files", "files of several parts"])
def test_a_job_writes_the_same_files(numbers, store, tmp_path, column):
    client, environment = numbers
    server, faulty = store
    script = tmp_path / "train.sql"
    script.write_text(SCRIPT.format(column=column))
    name = tmp_path.name
    to = {kind: f"s3://bucket/faulty/{name}-{kind}" for kind in ("calm", "faulty")}
    size = ["--file-size", "20MB"] if column == LONG else ["--file-size", "1"]
    command = ["materialize", script, *size, "--compression", "none", "--output", "json", "--to"]
    [calm] = run(environment | {"FOREBAY_ROOT": str(tmp_path)}, *command, to["calm"])
    if column != LONG:
        stall_once(server)
    began = time.monotonic()
    [disturbed] = run(faulty | {"FOREBAY_ROOT": str(tmp_path)}, *command, to["faulty"])
    if column != LONG:
        assert time.monotonic() - began > STALL_SECONDS, "the stall was waited for"
    assert (calm["rows"], calm["bad_rows"]) == (disturbed["rows"], disturbed["bad_rows"]) == (ROWS - 4, 4)
    expected = objects(client, f"faulty/{name}-calm/")
    assert objects(client, f"faulty/{name}-faulty/") == expected
    assert max(map(len, expected.values())) > (16_000_000 if column == LONG else 0)
    assert sum(server.fault.drawn.values()) > 2, server.fault.drawn
    # A committed job is found, and its files are a table whose every block is verified.
    assert run(faulty | {"FOREBAY_ROOT": str(tmp_path)}, *command, to["faulty"])[0]["found"]
    table = "CREATE EXTERNAL TABLE kept STORED AS PARQUET LOCATION '{}';"
    read = table + " CREATE PIPELINE kept AS SELECT n, more FROM kept;"
    digests = []
    for kind, through in (("calm", environment), ("faulty", faulty)):
        (tmp_path / "kept.sql").write_text(read.format(to[kind]))
        batches = run(through, "run", tmp_path / "kept.sql", "--output", "json")[:-1]
        digests.append([batch["digest"] for batch in batches])
    assert digests[0] == digests[1]


def test_kept_samples_change_nothing(numbers, store, tmp_path):
    client, environment = numbers
    server, faulty = store
    script = tmp_path / "train.sql"
    script.write_text(SCRIPT.format(column="sha256(CAST(n AS STRING))"))
    command = ["run", script, "--epochs", "3", "--output", "json"]
    digests = [batch["digest"] for batch in run(environment, *command)[:-1]]
    root = f"s3://bucket/faulty/root-{tmp_path.name}"
    for _ in range(2):
        kept = run(faulty, *command, "--cache", "prefix", "--root", root)
        assert [batch["digest"] for batch in kept[:-1]] == digests
    segments = client.list_objects_v2(Bucket="bucket", Prefix=root.removeprefix("s3://bucket/"))
    assert segments["KeyCount"] > 4
    assert sum(server.fault.drawn.values()) > 2, server.fault.drawn
