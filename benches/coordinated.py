"""Coordinated reads: ranks whose batches have one padded length in every step, against ranks that read on their own.

    cargo build --release && python3 benches/coordinated.py

Linux only. Needs only Python's standard library. 90 % of the rows have length 1 and 10 % have length 8. A step takes
`--unit` seconds for each unit of its padded length, and ends when the slowest rank has ended (a barrier, as when
gradients are summed). The step is a sleep, so that the ranks need no cores. Every rank reads from a process of its own
(`forebay run --connect`), and all of them read from one server.

- `coordinated`: the ranks share one feed that is grouped by length (`bucket_by_length`, `global_batch_size`), so each
  step has rows of one length on all ranks.
- `uncoordinated`: each rank reads its own part of the rows, grouped by length in the same way, but for this rank alone.
  A step is then as long as the longest batch of any rank.

Both deliver the same rows in the same number of steps, and each run checks that every row came once. With p = 0.1, a
coordinated step has length 1 + 7p on average, and an uncoordinated one of m ranks 1 + 7(1 - (1 - p)^m). `arithmetic` is
the ratio of these. `of_these_steps` is the ratio of the lengths of the steps that were delivered: what the measured
ratio would be if waiting for batches took no time. `of_one_length` is the share of the coordinated steps whose batches
have one length on all ranks. `steps_share` is the part of the measured time in which ranks compute or wait for the
slowest rank, not for data.

Prints one JSON line per number of ranks, medians of `--rounds` rounds, then a table.
"""

import argparse
import contextlib
import json
import pathlib
import random
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from processes import FOREBAY, Process, reader, table

SHORT, LONG, LONG_SHARE = 1, 8, 0.1


def arithmetic(ranks: int) -> float:
    """Returns how many times as long steps are without coordination, on average over endless data."""
    more = LONG - SHORT
    return (SHORT + more * (1 - (1 - LONG_SHARE) ** ranks)) / (SHORT + more * LONG_SHARE)


def write(folder: pathlib.Path, ranks: int, steps: int, batch: int) -> pathlib.Path:
    """Writes the rows, a folder for each rank, and pipelines over all of them and over each rank's."""
    options = f"shuffle = true, bucket_by_length = length, bucket_boundaries = '{SHORT},{LONG}'"
    query = "SELECT concat(id, ':', length) AS row, length"
    rows, long = steps * batch, round(steps * batch * LONG_SHARE)
    statements = [
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'rows';",
        f"CREATE PIPELINE all_ranks WITH ({options}, global_batch_size = {ranks * batch}) AS {query} FROM t;",
    ]
    for rank in range(ranks):
        part = folder / "rows" / str(rank)
        part.mkdir(parents=True)
        lengths = [LONG] * long + [SHORT] * (rows - long)
        random.Random(rank).shuffle(lengths)
        lines = (f"{rank * rows + at},{length}\n" for at, length in enumerate(lengths))
        (part / "rows.csv").write_text(f"id,length\n{''.join(lines)}")
        statements += [
            f"CREATE EXTERNAL TABLE t{rank} STORED AS CSV LOCATION 'rows/{rank}';",
            f"CREATE PIPELINE rank{rank} WITH ({options}, global_batch_size = {batch}) AS {query} FROM t{rank};",
        ]
    script = folder / "lengths.sql"
    script.write_text("\n".join(statements))
    return script


class Steps:
    """Ranks that train in steps: the time that they take, the padded lengths of each rank's batches, and the rows."""

    def __init__(self, readers: list, unit: float):
        self.barrier = threading.Barrier(len(readers), action=self._step_ended)
        self.unit = unit
        self.ends: list[float] = []
        with ThreadPoolExecutor(len(readers)) as ranks:
            found = list(ranks.map(self._train, readers))
        # Time begins when all ranks have their first batch.
        self.seconds = self.ends[-1] - self.ends[0]
        self.lengths = list(zip(*(lengths for lengths, _ in found), strict=True))
        self.rows = [row for _, rows in found for row in rows]

    def _step_ended(self):
        self.ends.append(time.monotonic())

    def _train(self, process) -> tuple[list[int], list[int]]:
        lengths, rows = [], []
        try:
            for line in map(json.loads, process.stdout):
                if "samples" in line:
                    break
                batch = [tuple(map(int, row.split(":"))) for row in line["ids"]]
                if not lengths:
                    self.barrier.wait()
                lengths.append(max((length for _, length in batch), default=0))
                rows += [id for id, _ in batch]
                time.sleep(self.unit * lengths[-1])
                self.barrier.wait()
            assert process.wait() == 0, "a reader failed"
        except BaseException:
            self.barrier.abort()
            raise
        return lengths, rows

    def of_one_length(self) -> float:
        """The share of steps whose batches have one padded length on all ranks."""
        return sum(len(set(lengths)) == 1 for lengths in self.lengths) / len(self.lengths)

    def longest(self) -> int:
        """The sum of the lengths of all steps, each as long as on its slowest rank."""
        return sum(map(max, self.lengths))


def measure(forebay: str, ranks: int, steps: int, batch: int, unit: float, rounds: int) -> dict:
    runs = []
    with tempfile.TemporaryDirectory() as name:
        script = write(pathlib.Path(name), ranks, steps, batch)
        for number in range(rounds):
            seed = ("--seed", str(number))
            together = [("all_ranks", "--rank", str(rank), "--world-size", str(ranks)) for rank in range(ranks)]
            alone = [(f"rank{rank}",) for rank in range(ranks)]
            run = []
            for arguments in (together, alone):
                # A new server, so that no run finds the windows of an earlier one.
                with contextlib.ExitStack() as stack:
                    server = stack.enter_context(Process(forebay, "serve", str(script)))
                    readers = []
                    for rank in arguments:
                        readers.append(reader(forebay, server.uri, "--ids", "row", *seed, "--pipeline", *rank))
                        stack.callback(readers[-1].kill)
                    run.append(Steps(readers, unit))
                assert sorted(run[-1].rows) == list(range(ranks * steps * batch)), "each row comes once"
            runs.append(run)

    def median(figure) -> float:
        return statistics.median(figure(*run) for run in runs)

    return {
        "measurement": "coordinated",
        "ranks": ranks,
        "steps": len(runs[0][0].lengths),
        "coordinated_seconds": rounded(median(lambda together, _: together.seconds)),
        "uncoordinated_seconds": rounded(median(lambda _, alone: alone.seconds)),
        "ratio": rounded(median(lambda together, alone: alone.seconds / together.seconds)),
        "ratios": [rounded(alone.seconds / together.seconds) for together, alone in runs],
        "of_these_steps": rounded(median(lambda together, alone: alone.longest() / together.longest())),
        "arithmetic": rounded(arithmetic(ranks)),
        "of_one_length": rounded(median(lambda together, _: together.of_one_length())),
        "steps_share": rounded(median(lambda together, _: together.longest() * unit / together.seconds)),
    }


def rounded(figure: float) -> float:
    return round(figure, 3)


def main():
    parser = argparse.ArgumentParser(description="See this file's beginning.")
    parser.add_argument("--forebay", default=FOREBAY)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--steps", type=int, default=200, help="steps of an epoch")
    parser.add_argument("--batch", type=int, default=16, help="rows of a rank in a step")
    parser.add_argument("--unit", type=float, default=0.01, help="seconds of a step for each unit of padded length")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, alternating")
    given = parser.parse_args()
    figures = []
    for ranks in given.ranks:
        figures.append(measure(given.forebay, ranks, given.steps, given.batch, given.unit, given.rounds))
        print(json.dumps(figures[-1]), flush=True)
    table(figures)


if __name__ == "__main__":
    main()
