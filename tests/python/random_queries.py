"""Queries that a seed draws, as pipelines: their samples are DuckDB's rows, and the same bytes however they run.

    python tests/python/random_queries.py --count 500 --seed 21              500 queries
    python tests/python/random_queries.py --seed 21 --first 17 --count 1     query 17 again

Of each query that is not refused:

1. The samples are DuckDB's rows, floats to 1e-9. `query_generator.py` says which columns and queries are left out.
2. The feed's id and the digests of its batches are equal on any number of threads, with little memory, after a resume
   in the middle, after `kill -9` in the middle of a stage (of some queries), for four ranks together (of some, as
   processes; of all, over Flight), and from a server with three workers.

A query that is refused has an error with a hint and a place, and less than a tenth are. A failure shows the query, and
the smallest one without some of its parts that fails alike.
"""

import argparse
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pyarrow.flight as flight

from query_generator import draw_query
from query_tables import create_tables, draw_tables, write_tables
from query_tree import Drawn
from support import Server, binary, environment, read
from test_stages import PATIENCE_SECONDS, SETTINGS, begin, lines, run, wait_for

# So many pipelines have one server.
GROUP = 25
RANKS = 4
WORKERS = 3
MOST_REFUSED = 0.1
# At most so many queries are tried in search of a smaller one that fails.
SIMPLIFICATIONS = 150


class Broken(AssertionError):
    """A promise that was broken, in a check with a name."""

    def __init__(self, check: str, error: Exception):
        super().__init__(f"{check}: {error}")
        # Alike for failures that differ by names and numbers.
        self.kind = re.split(r'[\d"]', str(self))[0]


@dataclass
class Trial:
    """A query in a folder of its own, and what its runs gave."""

    name: str
    drawn: Drawn
    folder: Path
    # DuckDB's rows. None if they may differ.
    expected: list[tuple] | None
    seed: str
    did: Counter[str] = field(default_factory=Counter)
    samples: int = 0
    feed: str = ""
    batches: list[dict] = field(default_factory=list)

    @property
    def script(self) -> Path:
        return self.folder / "query.sql"

    @property
    def is_refused(self) -> bool:
        return bool(self.did["refused"])

    @property
    def batch_size(self) -> int:
        return self.samples // 7 + 1

    def draws(self, what: str) -> random.Random:
        return random.Random(f"{what} {self.seed}")

    def read(self, *source: str | Path) -> tuple[str, list[dict]]:
        """Returns the feed's id, and the batches of a run."""
        flags = ("--output", "json", "--batch-size", str(self.batch_size))
        [*batches, last] = lines(run("run", *source, *flags, folder=self.folder))
        return last["feed"], batches

    def read_script(self, root: str, *flags: str) -> tuple[str, list[dict]]:
        return self.read(self.script, "--root", root, *flags)

    def expect_same(self, what: str, feed: str, batches: Sequence[dict]) -> None:
        assert feed == self.feed, f"{what}: the feed {feed}, and not {self.feed}"
        digests, expected = ([(batch["offset"], batch["digest"]) for batch in some] for some in (batches, self.batches))
        assert digests == expected, f"{what}: the batches\n{digests}\nand not\n{expected}"


# ---------------------------------------------------------------------------------------------------- the checks


def samples_are_duckdbs_rows(trial: Trial) -> None:
    command = [binary(), "materialize", trial.script, "--to", "out", "--format", "jsonl", "--root", "root-default"]
    done = subprocess.run(
        command, cwd=trial.folder, env=environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    if done.returncode:
        check_refusal(done)
        trial.did["refused"] += 1
        return
    text = "".join(path.read_text() for path in sorted((trial.folder / "out").glob("*.jsonl")))
    rows = [tuple(row[column.name] for column in trial.drawn.columns) for row in map(json.loads, text.splitlines())]
    trial.samples = len(rows)
    if trial.expected is not None:
        compare(trial.drawn, rows, trial.expected)
    trial.did["run but not compared" if trial.expected is None else "compared"] += 1


def check_refusal(done: subprocess.CompletedProcess) -> None:
    assert done.returncode == 2 and "panicked" not in done.stderr, f"exit code {done.returncode}: {done.stderr}"
    assert "hint: " in done.stderr and " --> " in done.stderr, f"an error without hint or place: {done.stderr}"


def runs_are_the_same(trial: Trial) -> None:
    trial.feed, trial.batches = trial.read_script("root-default")
    assert sum(batch["rows"] for batch in trial.batches) == trial.samples
    for number, flags in enumerate(SETTINGS):
        trial.expect_same(" ".join(flags), *trial.read_script(f"root-{number}", *flags))


def a_token_resumes(trial: Trial) -> None:
    if middle := len(trial.batches) // 2:
        root = trial.draws("resume").choice(["root-default", "root-0", "root-1"])
        feed, rest = trial.read_script(root, "--from", trial.batches[middle - 1]["token"])
        trial.expect_same("after a resume", feed, [*trial.batches[:middle], *rest])


def ranks_share_the_samples(trial: Trial) -> None:
    if trial.draws("ranks").random() < 0.3:
        world = ("--world-size", str(RANKS))
        shares = [trial.read_script("root-default", *world, "--rank", str(rank)) for rank in range(RANKS)]
        union = sorted((batch for _, batches in shares for batch in batches), key=lambda batch: batch["offset"])
        trial.expect_same(f"{RANKS} ranks", shares[0][0], union)
        trial.did["read by four processes"] += 1


def a_kill_changes_nothing(trial: Trial) -> None:
    has_stage = (trial.folder / "root-default/artifacts").exists()
    if has_stage and trial.draws("kill").random() < 0.4:
        process = begin(trial.script)
        wait_for("a claim", lambda: list((trial.folder / "root").rglob("*claims*/**/*")) or process.poll() is not None)
        process.kill()
        out, _ = process.communicate()
        trial.did["killed in a stage" if process.returncode < 0 and not out else "killed too late"] += 1
        trial.expect_same("after kill -9", *trial.read_script("root"))


CHECKS: list[Callable[[Trial], None]] = [
    samples_are_duckdbs_rows,
    runs_are_the_same,
    a_token_resumes,
    ranks_share_the_samples,
    a_kill_changes_nothing,
]


def check(trial: Trial) -> None:
    for step in CHECKS:
        try:
            step(trial)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            raise Broken(step.__name__, error) from None
        if trial.is_refused:
            return


def a_server_gives_the_same(trial: Trial, server: Server, client: flight.FlightClient) -> None:
    served = trial.read("--connect", server.uri, "--pipeline", trial.name)
    trial.expect_same(f"a server with {WORKERS} workers", *served)
    request = {"pipeline": trial.name, "batch_size": trial.batch_size}
    alone = {batch.place: batch.records for batch in read(client, **request)}
    union = [batch for rank in range(RANKS) for batch in read(client, **request, rank=rank, world_size=RANKS)]
    assert len(union) == len(alone), f"{len(union)} batches of {RANKS} ranks, and {len(alone)} of one"
    for batch in union:
        assert batch.records.equals(alone[batch.place]), f"the batch at {batch.place} of one of {RANKS} ranks differs"
    trial.did["served"] += 1


# ---------------------------------------------------------------------------------------------------- comparison


def compare(drawn: Drawn, rows: Sequence[tuple], expected: Sequence[tuple]) -> None:
    assert len(rows) == len(expected), f"{len(rows)} samples, and {len(expected)} rows of DuckDB"
    kinds = [column.kind for column in drawn.columns]
    if not drawn.is_ordered:
        rows, expected = (sorted(some, key=lambda row: sorting_key(row, kinds)) for some in (rows, expected))
    for number, (row, other) in enumerate(zip(rows, expected)):
        assert all(map(is_same, row, other, kinds)), f"row {number} of {len(rows)}: {row}, and {other} of DuckDB"


def sorting_key(row: Sequence, kinds: Sequence[str]) -> tuple:
    """What sorts rows so that equal ones meet: floats that may differ a little come last, and rounded."""
    exact = [sortable(value) for value, kind in zip(row, kinds) if kind != "about"]
    return (*exact, *(sortable(value and float(f"{value:.5g}")) for value, kind in zip(row, kinds) if kind == "about"))


def sortable(value) -> tuple:
    """A value in an order with nulls."""
    if value is None:
        return (False,)
    return (True, tuple(map(sortable, value)) if isinstance(value, list) else value)


def is_same(value, other, kind: str) -> bool:
    if kind == "about" and value is not None and other is not None:
        # Values are around 100. Where they cancel out, their rounding remains.
        return math.isclose(value, other, rel_tol=1e-9, abs_tol=1e-7)
    return value == other


# ----------------------------------------------------------------------------------------------------- workplace


class Workplace:
    """The tables of a seed in a folder, and in a connection to DuckDB."""

    def __init__(self, folder: Path, seed: int):
        self.folder = folder
        self.seed = seed
        self.tables = draw_tables(seed)
        write_tables(folder, self.tables)
        self.duckdb = duckdb.connect(config={"threads": 1})
        for name, table in self.tables.items():
            self.duckdb.register(name, table.rows)

    def __enter__(self) -> "Workplace":
        return self

    def __exit__(self, *_) -> None:
        self.duckdb.close()

    def begin(self, number: int) -> Trial:
        """Draws the query with this number."""
        drawn = draw_query(self.seed, number, self.tables, self.duckdb)
        return self.write(f"q{number}", drawn, f"{self.seed} {number}")

    def write(self, name: str, drawn: Drawn, seed: str) -> Trial:
        expected = None if drawn.is_tied or drawn.odd else self.rows(drawn)
        trial = Trial(name, drawn, self.folder / name, expected, seed)
        trial.folder.mkdir()
        trial.script.write_text(self.script([trial]))
        return trial

    def script(self, trials: Sequence[Trial]) -> str:
        """The pipelines of queries, and the tables that they read."""
        pipelines = "".join(trial.drawn.pipeline(trial.name) for trial in trials)
        return create_tables(self.folder, self.tables, pipelines) + pipelines

    def rows(self, drawn: Drawn) -> list[tuple]:
        rows = self.duckdb.execute(drawn.for_duckdb()).fetchall()
        is_date = [column.kind == "date" for column in drawn.columns]
        return [tuple(str(value) if date and value else value for value, date in zip(row, is_date)) for row in rows]

    def serve(self, trials: Sequence[Trial]) -> Iterator[tuple[Trial, Broken]]:
        """Serves the pipelines of queries together, and yields those that are not the same over Flight."""
        folder = self.folder / f"served-{trials[0].name}"
        folder.mkdir()
        (folder / "all.sql").write_text(self.script(trials))
        with open(folder / "log", "w") as log:
            server = Server(folder / "all.sql", "--root", folder / "root", "--workers", str(WORKERS), stderr=log)
            with server, flight.connect(server.uri) as client:
                for trial in trials:
                    try:
                        a_server_gives_the_same(trial, server, client)
                    except (AssertionError, flight.FlightError, OSError, subprocess.TimeoutExpired) as error:
                        yield trial, Broken(a_server_gives_the_same.__name__, error)

    def simplest(self, trial: Trial, broken: Broken) -> Trial:
        """The query without parts that the failure does not need."""
        names = iter([f"{trial.name}_{number}" for number in range(SIMPLIFICATIONS)])
        while True:
            for drawn, name in zip(filter(self.is_valid, trial.drawn.simpler()), names):
                other = self.write(name, drawn, trial.seed)
                if fails_alike(other, broken):
                    trial = other
                    break
            else:
                return trial

    def is_valid(self, drawn: Drawn) -> bool:
        try:
            return bool(drawn.columns) and bool(self.rows(drawn))
        except duckdb.Error:
            return False


def fails_alike(trial: Trial, broken: Broken) -> bool:
    try:
        check(trial)
    except Broken as other:
        return other.kind == broken.kind
    return False


# ------------------------------------------------------------------------------------------------------- command


@dataclass
class Tally:
    """What became of the queries."""

    queries: int = 0
    # By their kind.
    failed: Counter[str] = field(default_factory=Counter)
    did: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        did = ", ".join(f"{count} {what}" for what, count in sorted(self.did.items()))
        return f"{self.queries} queries: {did}; {self.failed.total()} failed"

    @property
    def is_good(self) -> bool:
        return not self.failed and self.did["refused"] <= max(MOST_REFUSED * self.queries, 1)


def check_group(place: Workplace, numbers: Sequence[int], tally: Tally) -> None:
    """Checks queries, each by itself and then behind one server, and removes the folders of those that pass."""
    passed = []
    for number in numbers:
        trial = place.begin(number)
        tally.queries += 1
        try:
            check(trial)
            passed.append(trial)
        except Broken as broken:
            fail(place, trial, broken, tally)
    served = [trial for trial in passed if not trial.is_refused]
    for trial, broken in place.serve(served) if served else ():
        passed.remove(trial)
        fail(place, trial, broken, tally)
    for trial in passed:
        tally.did += trial.did
        shutil.rmtree(trial.folder)
    print(tally, flush=True)


def fail(place: Workplace, trial: Trial, broken: Broken, tally: Tally) -> None:
    """Prints how to repeat a failure, and a small query for the first of its kind."""
    _, number = trial.seed.split()
    print(f"seed {place.seed}, query {number}: {broken}\n{trial.script.read_text()}")
    print(f"repeat it with: python tests/python/random_queries.py --seed {place.seed} --first {number} --count 1")
    if not tally.failed[broken.kind] and not broken.kind.startswith(a_server_gives_the_same.__name__):
        smallest = place.simplest(trial, broken)
        print(f"the smallest query that fails alike, in {smallest.folder}:\n{smallest.script.read_text()}", flush=True)
    tally.failed[broken.kind] += 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Queries that a seed draws, as pipelines; see CONTRIBUTING.md.")
    parser.add_argument("--count", type=int, default=500, help="how many queries (500)")
    parser.add_argument("--seed", type=int, default=21, help="the seed of tables and queries (21)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first query (0)")
    parser.add_argument("--seconds", type=float, default=math.inf, help=f"begin no {GROUP} queries after this time")
    parser.add_argument("--binary", help="the program under test; FOREBAY_BIN, or target/debug/forebay")
    parser.add_argument("--folder", type=Path, help="an empty folder to work in; by default a temporary one")
    arguments = parser.parse_args()
    if arguments.binary:
        os.environ["FOREBAY_BIN"] = str(Path(arguments.binary).resolve())
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix=f"forebay-queries-{arguments.seed}-"))
    folder.mkdir(exist_ok=True)
    print(f"seed {arguments.seed}, in {folder}", flush=True)
    until = time.monotonic() + arguments.seconds
    tally, end = Tally(), arguments.first + arguments.count
    with Workplace(folder.resolve(), arguments.seed) as place:
        for first in range(arguments.first, end, GROUP):
            if time.monotonic() < until:
                check_group(place, range(first, min(first + GROUP, end)), tally)
    if tally.is_good and not arguments.folder:
        shutil.rmtree(folder)
    return 0 if tally.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
