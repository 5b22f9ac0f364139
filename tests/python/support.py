"""Shared by the tests: the server's process, and a client that uses only pyarrow.

Nothing here imports Forebay: these tests check that a client does not need it.
"""

import json
import os
import select
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.flight as flight
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PHOTOS_SQL = REPOSITORY / "examples" / "photos.sql"

STARTED_WITHIN_SECONDS = 60
# The server drains its streams for 5 s before it closes them.
STOPPED_WITHIN_SECONDS = 20


def binary() -> Path:
    """The program under test; a relative FOREBAY_BIN is relative to the repository."""
    path = REPOSITORY / os.environ.get("FOREBAY_BIN", "target/debug/forebay")
    assert path.is_file(), f'there is no "{path}": run `cargo build`, or set FOREBAY_BIN'
    return path


def environment() -> dict[str, str]:
    """The environment without the caller's own Forebay settings."""
    ours = {"RANK", "WORLD_SIZE"}
    return {name: value for name, value in os.environ.items() if name not in ours and not name.startswith("FOREBAY_")}


def limited(limits: str) -> list[str]:
    """Returns the beginning of a command line that runs a program under limits, such as `ulimit -n 256`."""
    return ["sh", "-c", f'{limits} && exec "$@"', "sh"]


def with_small_folders(folders: dict[Path, str]) -> list[str]:
    """Returns the beginning of a command line that runs a program in which each folder is a file system of its own, of
    a size such as "1m". Only the program and its children see it. Skips the test where the kernel does not permit
    that."""
    mounts = [f"mount -t tmpfs -o size={size},mode=1777 none '{folder}'" for folder, size in folders.items()]
    command = ["unshare", "--user", "--map-root-user", "--mount", *limited(" && ".join(mounts))]
    try:
        tried = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=STARTED_WITHIN_SECONDS)
        reason = tried.stderr.strip() if tried.returncode else ""
    except FileNotFoundError as error:
        reason = str(error)
    if reason:
        pytest.skip(f"this machine permits no file systems in a user namespace: {reason}")
    return command


class Process:
    """A subcommand that serves, on a free port of this machine unless another is given.

    `before` is the beginning of its command line, such as [`limited`]; `variables` are added to its environment; and
    `stderr` is an open file for its log.
    """

    def __init__(
        self,
        *arguments: str | Path,
        port: int = 0,
        before: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        stderr: IO[str] | None = None,
    ):
        command = [*before, binary(), *arguments, "--port", str(port), "--output", "json"]
        self.process = subprocess.Popen(
            command,
            env=environment() | dict(variables or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        try:
            started = json.loads(self._first_line())
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        self.uri: str = started["uri"]
        self.port = int(self.uri.rsplit(":", 1)[1])
        self.started: dict = started

    def _first_line(self) -> str:
        ready, _, _ = select.select([self.process.stdout], [], [], STARTED_WITHIN_SECONDS)
        assert ready, f"the server did not listen within {STARTED_WITHIN_SECONDS} s"
        line = self.process.stdout.readline()
        assert line, f"the server ended with {self.process.wait()} before it listened"
        return line

    def stop(self) -> int:
        """Asks the server to stop, and returns its exit status."""
        self.process.terminate()
        try:
            return self.process.wait(STOPPED_WITHIN_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()

    def kill(self):
        """Kills the server. It cannot tell its peers that it leaves."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Server(Process):
    """`forebay serve` over a script."""

    def __init__(self, script: Path, *options: str, **more):
        super().__init__("serve", script, *options, **more)
        self.pipelines: list[str] = self.started["pipelines"]


class Worker(Process):
    """`forebay worker` for a dispatcher."""

    def __init__(self, dispatcher: Server, *options: str, **more):
        super().__init__("worker", "--dispatcher", dispatcher.uri, *options, **more)


@dataclass(frozen=True)
class Batch:
    """A record batch, with its `app_metadata`."""

    records: pa.RecordBatch
    metadata: dict

    @property
    def place(self) -> tuple[int, int]:
        return self.metadata["epoch"], self.metadata["offset"]

    @property
    def token(self) -> str:
        return self.metadata["token"]

    @property
    def paths(self) -> list[str]:
        return self.records["path"].to_pylist()


def command(**request) -> flight.FlightDescriptor:
    """Returns a request as a descriptor. `from_` stands for `from`, which is a keyword in Python."""
    return flight.FlightDescriptor.for_command(encode(request))


def ticket(**request) -> flight.Ticket:
    """Returns a request as a ticket, without asking for flight info."""
    return flight.Ticket(encode(request))


def encode(request: dict) -> str:
    return json.dumps({name.rstrip("_"): value for name, value in request.items()})


def batches(client: flight.FlightClient, ticket: flight.Ticket) -> list[Batch]:
    chunks = client.do_get(ticket)
    return [Batch(chunk.data, json.loads(chunk.app_metadata.to_pybytes())) for chunk in chunks]


def read(client: flight.FlightClient, **request) -> list[Batch]:
    """Returns all batches of one rank, through its flight info."""
    info = client.get_flight_info(command(**request))
    return [batch for endpoint in info.endpoints for batch in batches(client, endpoint.ticket)]


def paths(batches: list[Batch]) -> list[str]:
    return [path for batch in batches for path in batch.paths]


def photographs() -> list[str]:
    """Returns the samples that each epoch of the sample pipeline must deliver, in file order."""
    folder = REPOSITORY / "examples" / "photos"
    return sorted(path.relative_to(folder).as_posix() for path in folder.glob("*/*.jpg"))
