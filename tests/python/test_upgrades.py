"""Two builds side by side. A debug build takes its version from `FOREBAY_TEST_VERSION`, so one program stands for
both."""

import json
import subprocess
from pathlib import Path

import pytest

from support import Process, Server, Worker, binary, environment, read

PATIENCE_SECONDS = 60
ROWS = 400
OLD = {"FOREBAY_TEST_VERSION": "0.0.9"}


def run(*arguments: str | Path, variables: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    command = [binary(), *map(str, arguments)]
    variables = environment() | (variables or {})
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


def version(variables: dict[str, str] | None = None) -> str:
    return run("--version", variables=variables).stdout.split()[1]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    if "release" in binary().parts:
        pytest.skip("a release build has one version")
    for begin in range(0, ROWS, 40):
        (tmp_path / f"{begin:03}.csv").write_text("id\n" + "".join(f"{row}\n" for row in range(begin, begin + 40)))
    path = tmp_path / "rows.sql"
    path.write_text("""
        CREATE EXTERNAL TABLE rows STORED AS CSV LOCATION '*.csv';
        CREATE PIPELINE train WITH (shuffle = true, seed = 3, batch_size = 10) AS SELECT id FROM rows;
    """)
    return path


def reader(server: Process, *more: str, variables: dict[str, str] | None = None) -> tuple[list[dict], str]:
    """The batches of a trainer that reads to its end, and its error if it fails."""
    ended = run("run", "--connect", server.uri, "--ids", "id", "--output", "json", *more, variables=variables)
    if ended.returncode:
        assert ended.returncode == 5, ended.stderr
        return [], ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()][:-1], ""


def ids(batches: list[dict]) -> list[int]:
    return [int(row) for batch in batches for row in batch["ids"]]


def test_a_worker_of_another_version_is_refused_by_name(script: Path):
    with Server(script, "--no-worker") as dispatcher:
        ended = run("worker", "--dispatcher", dispatcher.uri, "--port", "0", variables=OLD)
        assert ended.returncode == 5, ended.stderr
        assert f"forebay is version {version()} here and 0.0.9 there" in ended.stderr
        assert "hint: run the same version of forebay everywhere" in ended.stderr


@pytest.mark.parametrize("delivery", ["ordered", "dynamic"])
def test_a_trainer_of_another_version_is_refused_by_name(script: Path, delivery: str):
    with Server(script) as server:
        batches, error = reader(server, "--delivery", delivery, variables=OLD)
        assert batches == []
        assert f"this client is forebay version 0.0.9, and the server is version {version()}" in error
        assert f"hint: use version {version()} for the client" in error
        batches, _ = reader(server, "--delivery", delivery)
        assert sorted(ids(batches)) == list(range(ROWS))
        # Looking at a server of another version is no reading.
        status = run("status", "--connect", server.uri, variables=OLD)
        assert status.returncode == 0, status.stderr


def test_a_plain_flight_client_has_no_version(script: Path):
    flight = pytest.importorskip("pyarrow.flight")
    with Server(script) as server, flight.connect(server.uri) as client:
        assert sum(batch.records.num_rows for batch in read(client, pipeline="train")) == ROWS


def test_a_job_moves_from_the_old_cluster_to_the_new_one_by_its_token(script: Path):
    with (
        Server(script, "--no-worker", variables=OLD) as old,
        Worker(old, variables=OLD),
        Server(script, "--no-worker") as new,
        Worker(new),
    ):
        whole, _ = reader(old, variables=OLD)
        assert sorted(ids(whole)) == list(range(ROWS))
        # Another job reads a part at the old cluster, stops at a checkpoint, and resumes at the new one.
        part, _ = reader(old, "--steps", "13", variables=OLD)
        assert len(part) == 13
        rest, _ = reader(new, "--from", part[-1]["token"])
        assert [batch["digest"] for batch in part + rest] == [batch["digest"] for batch in whole]
        # Both still serve their own.
        assert ids(reader(old, variables=OLD)[0]) == ids(reader(new)[0]) == ids(whole)
        assert "version 0.0.9" in reader(new, variables=OLD)[1]
        assert "version 0.0.9" in reader(old)[1]
