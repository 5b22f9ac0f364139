"""Servers, workers and readers as processes of this machine, for the benchmarks of clusters. Linux only (`/proc`)."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOREBAY = str(ROOT / "target/release/forebay")
TICKS = os.sysconf("SC_CLK_TCK")
LEASED = re.compile(r"window leased feed=(\w+) epoch=(\d+) window=(\d+)")


class Process:
    """A subcommand that listens, and the lines of its standard error with their times."""

    def __init__(self, forebay: str, *arguments: str, log: str = ""):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        port = () if "--port" in arguments else ("--port", "0")
        self.process = subprocess.Popen(
            [forebay, *arguments, *port, "--output", "json"],
            env=environment | {"FOREBAY_LOG": log},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.uri = json.loads(self.process.stdout.readline())["uri"]
        self.log: list[tuple[float, str]] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stderr:
            self.log.append((time.monotonic(), line))

    def cpu_seconds(self) -> float:
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def peak_mb(self) -> float:
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) / 1e3

    def leased(self) -> dict[tuple[str, ...], float]:
        """Returns the time at which it was last leased each window."""
        found = ((at, LEASED.search(line)) for at, line in list(self.log))
        return {match.groups(): at for at, match in found if match}

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_):
        self.kill()


def status(forebay: str, uri: str) -> dict:
    said = subprocess.run([forebay, "status", "--connect", uri, "--output", "json"], stdout=subprocess.PIPE, check=True)
    return json.loads(said.stdout)


def reader(forebay: str, uri: str, *more: str, output: str = "json") -> subprocess.Popen:
    arguments = [forebay, "run", "--connect", uri, "--output", output, *more]
    # With a small pipe, a slow reader soon blocks the writer.
    return subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, pipesize=4096)


def cluster(
    stack: contextlib.ExitStack,
    forebay: str,
    script: pathlib.Path,
    workers: int,
    *options: str,
    log: str = "",
    serving: tuple[str, ...] = (),
) -> tuple[Process, list[Process]]:
    """A dispatcher with the options `serving`, and workers with `options` that have joined it."""
    dispatcher = stack.enter_context(Process(forebay, "serve", str(script), "--no-worker", *serving))
    arguments = ("worker", "--dispatcher", dispatcher.uri, *options)
    all_workers = [stack.enter_context(Process(forebay, *arguments, log=log)) for _ in range(workers)]
    while len(status(forebay, dispatcher.uri)["workers"]) < workers:
        pass
    return dispatcher, all_workers


def slow_feed(folder: pathlib.Path, rows: int, milliseconds: int) -> pathlib.Path:
    """Writes a script whose pipeline waits for each row, which needs no core, with ten rows per file and window."""
    data = folder / "rows"
    data.mkdir()
    for first in range(0, rows, 10):
        lines = "".join(f"{id}\n" for id in range(first, first + 10))
        (data / f"{first:06}.csv").write_text(f"id\n{lines}")
    script = folder / "slow.sql"
    script.write_text(
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'rows';"
        "CREATE PIPELINE p WITH (shuffle = true, batch_size = 5, window_rows = 10) AS"
        f" SELECT sleep(id, milliseconds => {milliseconds}) AS id FROM t;"
    )
    return script


def table(figures: list[dict]):
    for measurement in dict.fromkeys(line["measurement"] for line in figures):
        rows = [{name: value for name, value in line.items() if name != "measurement"} for line in figures
                if line["measurement"] == measurement]  # fmt: skip
        print(f"\n{measurement}\n| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}")
        for row in rows:
            print(f"| {' | '.join(map(str, row.values()))} |")
