"""Scripts and tokens that change while a server runs, and readers of some pipelines only."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.flight as flight
import pytest

import forebay
from support import Process, Server, binary, environment

PATIENCE_SECONDS = 60
ROWS = 400


def write_rows(folder: Path, name: str, first: int):
    rows = folder / name
    rows.mkdir(parents=True)
    # Each text file is a row range, so that there are several windows.
    for begin in range(first, first + ROWS, 40):
        (rows / f"{begin:06}.csv").write_text("id\n" + "".join(f"{row}\n" for row in range(begin, begin + 40)))


def script(name: str, table: str, batch_size: int = 10) -> str:
    return f"""
        CREATE EXTERNAL TABLE {table} STORED AS CSV LOCATION '../{table}';
        CREATE PIPELINE {name} WITH (shuffle = true, seed = 3, batch_size = {batch_size}) AS SELECT id FROM {table};
    """


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A folder with the script of the pipeline `train` over the rows from 0."""
    for index, name in enumerate(("first", "second", "third")):
        write_rows(tmp_path, name, index * 1_000_000)
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "train.sql").write_text(script("train", "first"))
    return folder


def run(*arguments: str | Path) -> subprocess.CompletedProcess:
    command = [binary(), *map(str, arguments)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS)


def reload(server: Process, *more: str) -> list[tuple[str, str, list[str]]]:
    """What the server did with each script: name, change, pipelines."""
    done = run("reload", "--connect", server.uri, "--output", "json", *more)
    assert done.stdout, done.stderr
    reports = json.loads(done.stdout)
    assert (done.returncode == 0) == all("error" not in report for report in reports), done.stderr
    return [(Path(report["script"]).name, report["change"], report["pipelines"]) for report in reports]


class Reader:
    """A rank that reads as fast as its lines are taken."""

    def __init__(self, server: Process, pipeline: str, *more: str):
        command = [binary(), "run", "--connect", server.uri, "--pipeline", pipeline, "--ids", "id", *more]
        command += ["--output", "json", "--buffer-limit", "1KiB"]
        self.process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)

    def batch(self) -> dict:
        return json.loads(self.process.stdout.readline())

    def rest(self) -> list[dict]:
        lines = self.process.stdout.readlines()
        assert self.process.wait(PATIENCE_SECONDS) == 0
        return [json.loads(line) for line in lines][:-1]


def ids(batches: list[dict]) -> list[int]:
    return [int(row) for batch in batches for row in batch["ids"]]


def test_a_script_changes_under_a_reader_and_both_read_everything_once(scripts: Path):
    epochs = 100
    with Server(scripts, "--no-worker") as server, Process("worker", "--dispatcher", server.uri):
        reader = Reader(server, "train", "--epochs", str(epochs))
        batches = [reader.batch() for _ in range(3)]
        (scripts / "train.sql").write_text(script("train", "second", 20))
        assert reload(server) == [("train.sql", "changed", ["train"])]

        # A new reader gets the new version.
        new = Reader(server, "train").rest()
        assert sorted(ids(new)) == list(range(1_000_000, 1_000_000 + ROWS)) and new[0]["rows"] == 20
        # A token of the old one resumes it, while somebody reads it.
        resumed = Reader(server, "train", "--from", batches[1]["token"], "--steps", "5").rest()
        assert resumed[0]["digest"] == batches[2]["digest"] and len(resumed) == 5
        # The old reader reads on, and again after another change.
        batches += [reader.batch() for _ in range(3)]
        (scripts / "train.sql").unlink()
        (scripts / "other.sql").write_text(script("train", "third"))
        assert reload(server) == [("other.sql", "added", ["train"]), ("train.sql", "removed", [])]
        batches += reader.rest()
        assert len(batches) == epochs * ROWS // 10
        for epoch in range(epochs):
            assert sorted(ids([batch for batch in batches if batch["epoch"] == epoch])) == list(range(ROWS))
        assert sorted(ids(Reader(server, "train").rest()))[0] == 2_000_000


def until(what: str, is_so: Callable[[], object]):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s for {what}"
        time.sleep(0.05)


def served(server: Process) -> list[str]:
    with flight.connect(server.uri) as client:
        return sorted(info.descriptor.path[0].decode() for info in client.list_flights())


def test_a_hangup_opens_what_was_added_and_changed(scripts: Path):
    with Server(scripts) as server:
        assert served(server) == ["train"]
        (scripts / "eval.sql").write_text(script("eval", "second"))
        (scripts / ".hidden.sql").write_text("nonsense")
        server.process.send_signal(signal.SIGHUP)
        until("the new pipeline", lambda: served(server) == ["eval", "train"])
        (scripts / "train.sql").write_text(script("training", "first"))
        server.process.send_signal(signal.SIGHUP)
        until("the new name", lambda: served(server) == ["eval", "training"])
        assert reload(server) == [("eval.sql", "unchanged", ["eval"]), ("train.sql", "unchanged", ["training"])]
        # A name moves to a script that comes first.
        (scripts / "train.sql").write_text(script("train", "first"))
        (scripts / "a.sql").write_text(script("training", "third"))
        assert [change for _, change, _ in reload(server)] == ["added", "unchanged", "changed"]
        assert served(server) == ["eval", "train", "training"]
        (scripts / "a.sql").unlink()
        reload(server)
        # New files of a table are seen on request only.
        write_rows(scripts.parent / "second", "more", 5_000_000)
        assert len(Reader(server, "eval").rest()) == ROWS // 10
        assert [change for _, change, _ in reload(server, "--all")] == ["changed", "changed"]
        assert len(Reader(server, "eval").rest()) == 2 * ROWS // 10
        assert server.stop() == 0


def test_a_script_with_an_error_keeps_its_earlier_version(scripts: Path, tmp_path: Path):
    log = tmp_path / "log"
    with log.open("w") as stderr, Server(scripts, stderr=stderr) as server:
        (scripts / "train.sql").write_text(script("train", "first").replace("SELECT id", "SELECT idd"))
        (scripts / "eval.sql").write_text(script("eval", "second"))
        done = run("reload", "--connect", server.uri)
        assert done.returncode == 2
        assert "train.sql: failed, serves train" in done.stdout and "eval.sql: added, serves eval" in done.stdout
        assert "error: 1 of 2 scripts failed" in done.stderr and "idd" in done.stderr, done.stderr
        assert "idd" in log.read_text() and "what was served before stays" in log.read_text()
        status = run("status", "--connect", server.uri).stdout
        assert "train.sql could not be opened again" in status and "idd" in status
        assert len(Reader(server, "train").rest()) == ROWS // 10
        (scripts / "train.sql").write_text(script("train", "first"))
        assert reload(server)[1] == ("train.sql", "unchanged", ["train"])
        assert "could not be opened" not in run("status", "--connect", server.uri).stdout


def test_a_folder_that_is_away_for_a_moment_keeps_its_pipelines(scripts: Path):
    with Server(scripts) as server:
        away = scripts.rename(scripts.parent / "away")
        done = run("reload", "--connect", server.uri)
        assert done.returncode == 2 and "cannot read the folder" in done.stderr, done.stderr
        assert served(server) == ["train"]
        assert len(Reader(server, "train").rest()) == ROWS // 10
        away.rename(scripts)
        assert reload(server) == [("train.sql", "unchanged", ["train"])]


def test_two_scripts_may_not_define_one_name(scripts: Path):
    with Server(scripts) as server:
        (scripts / "twice.sql").write_text(script("train", "second"))
        done = run("reload", "--connect", server.uri)
        assert done.returncode == 2
        wanted = ['both create the pipeline "train"', "train.sql", "twice.sql"]
        assert all(text in done.stderr for text in wanted), done.stderr
        assert served(server) == ["train"]
    done = run("serve", scripts, "--port", "0")
    assert done.returncode == 2 and 'both create the pipeline "train"' in done.stderr, done.stderr
    (scripts / "twice.sql").write_text(script("eval", "first"))
    done = run("serve", scripts / "train.sql", scripts / "twice.sql", "--port", "0")
    assert done.returncode == 2 and 'both create the table "first"' in done.stderr, done.stderr
    empty = scripts.parent / "empty"
    empty.mkdir()
    done = run("serve", empty, "--port", "0")
    assert done.returncode == 2 and "there is no script" in done.stderr, done.stderr


def sql_command(name: str, number: int, value: bytes) -> bytes:
    """A command of Flight SQL with one field, as protobuf: a google.protobuf.Any."""

    def field(number: int, content: bytes) -> bytes:
        assert len(content) < 128, "a longer length has several bytes"
        return bytes([number << 3 | 2, len(content)]) + content

    message = field(number, value) if value else b""
    return field(1, f"type.googleapis.com/arrow.flight.protocol.sql.{name}".encode()) + field(2, message)


TRAINER, OPERATOR, WORKER = "the-token-of-a-trainer", "the-token-of-the-operator", "the-token-of-the-worker"


def test_a_token_is_for_its_pipelines(scripts: Path, tmp_path: Path):
    (scripts / "eval.sql").write_text(script("eval", "second"))
    tokens = tmp_path / "tokens"
    tokens.write_text(f"# who\n{TRAINER} reader train\n{OPERATOR} operator\n{WORKER} worker\n")
    with Server(scripts, "--no-worker", "--token-file", str(tokens)) as server:
        worker = ["worker", "--dispatcher", server.uri, "--token-file", str(tokens)]
        refused = 'the token may not read pipeline "eval"'

        def read(pipeline: str, token: str) -> subprocess.CompletedProcess:
            return run("run", "--connect", server.uri, "--pipeline", pipeline, "--token", token, "--output", "json")

        with Process(*worker):
            assert len(read("train", TRAINER).stdout.splitlines()) == ROWS // 10 + 1
            denied = read("eval", TRAINER)
            assert denied.returncode == 3 and refused in denied.stderr and "it may read train" in denied.stderr
            assert len(read("eval", OPERATOR).stdout.splitlines()) == ROWS // 10 + 1
            # Names of pipelines that it may not read are not listed: there is only one to choose.
            listed = run("run", "--connect", server.uri, "--token", TRAINER, "--steps", "1")
            assert listed.returncode == 0, listed.stderr

        # Nobody gets around it by another call.
        headers = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {TRAINER}".encode())])
        operator = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {OPERATOR}".encode())])
        with flight.connect(server.uri) as client:
            command = flight.FlightDescriptor.for_command(json.dumps({"pipeline": "eval"}))
            ticket = client.get_flight_info(command, operator).endpoints[0].ticket
            metadata = json.loads(client.get_flight_info(command, operator).app_metadata)
            for call in (
                lambda: client.get_flight_info(command, headers),
                lambda: client.get_schema(command, headers),
                lambda: client.do_get(ticket, headers).read_chunk(),
            ):
                # pyarrow has no class of its own for errors of `get_schema`.
                with pytest.raises((flight.FlightUnauthorizedError, OSError), match=refused):
                    call()
            # Keep the feed open, and ask for it under the name of another pipeline.
            reading = client.do_get(ticket, operator)
            status = ("status", "--connect", server.uri, "--token")
            until("the feed", lambda: metadata["feed"] in run(*status, OPERATOR).stdout)
            assert metadata["feed"] not in run(*status, TRAINER).stdout
            sync = {
                "session": 1, "seq": 1, "feed": metadata["feed"], "rank": 0, "world_size": 1, "member": None,
                "at": [0, 0], "until_epoch": 1, "known": 0, "broken": [], "waiting": None,
                "leaving": False, "samples": 0, "bytes": 0, "stalled_ms": 0,
            }  # fmt: skip
            body = {"request": {"pipeline": "train"}, "secret_key": "5e" * 32, "sync": sync}
            action = flight.Action("reader.sync", json.dumps(body).encode())
            with pytest.raises(flight.FlightUnauthorizedError, match=refused):
                list(client.do_action(action, headers))
            reading.cancel()

            # Flight SQL shows all pipelines and tables, so it is for tokens of all.
            command = sql_command("CommandStatementQuery", 1, b"SELECT * FROM eval")
            handle = client.get_flight_info(flight.FlightDescriptor.for_command(command), operator).endpoints[0].ticket
            assert len(client.do_get(handle, operator).read_all()) == ROWS
            catalogs = sql_command("CommandGetCatalogs", 1, b"")
            for call in (
                lambda: client.get_flight_info(flight.FlightDescriptor.for_command(command), headers),
                lambda: client.get_flight_info(flight.FlightDescriptor.for_command(catalogs), headers),
                lambda: client.do_get(handle, headers).read_chunk(),
            ):
                with pytest.raises(flight.FlightUnauthorizedError, match="Flight SQL"):
                    call()

        done = run("reload", "--connect", server.uri, "--token", TRAINER)
        assert done.returncode == 3 and "needs an operator's right" in done.stderr, done.stderr
        assert run("reload", "--connect", server.uri, "--token", OPERATOR).returncode == 0
        # An operator is no worker.
        (tmp_path / "operator").write_text(OPERATOR)
        done = run("worker", "--dispatcher", server.uri, "--token-file", tmp_path / "operator")
        assert done.returncode == 3 and "needs a worker's token" in done.stderr, done.stderr


def test_a_token_is_replaced_while_a_loop_runs(scripts: Path, tmp_path: Path):
    tokens, own = tmp_path / "tokens", tmp_path / "own"
    old, new = "the-old-token-of-a-trainer", "the-new-token-of-a-trainer"
    [file.write_text(old) for file in (tokens, own)]

    def accepts(server: Process, token: str) -> bool:
        return run("status", "--connect", server.uri, "--token", token).returncode == 0

    with Server(scripts, "--token-file", str(tokens)) as server:
        cluster = forebay.connect(server.uri, token_file=own)
        loop = iter(cluster.load("train", format="numpy"))
        rows = list(next(loop)["id"])
        tokens.write_text(f"{new}\n{old}\n")
        until("the new token", lambda: accepts(server, new))
        own.write_text(new)
        tokens.write_text(new)
        until("the end of the old token", lambda: not accepts(server, old))
        # On the connection that it has.
        assert cluster.pipelines() == ["train"]
        for batch in loop:
            rows.extend(batch["id"])
        assert sorted(rows) == list(range(ROWS))
        # A file that is being written changes nothing.
        own.write_text("")
        assert cluster.pipelines() == ["train"]
    with pytest.raises(forebay.InvalidError, match="has no token"):
        forebay.connect(server.uri, token_file=own)
