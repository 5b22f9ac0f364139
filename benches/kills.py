"""Two readers of one feed while workers are killed at random: their rates, compared with an undisturbed run.

    cargo build --release && python3 benches/kills.py

Linux only. Needs only Python's standard library. A pipeline waits 10 ms per row (`sleep`, so it needs no cores),
windows have ten rows, and three workers of one thread compute them: 300 rows per second. Two readers read two epochs:

- `fast` reads as fast as it can.
- `behind` begins when the first has read a quarter of an epoch, and trains for 20 ms per batch of five rows. It falls
  further behind, so workers hold windows for it that the first has passed.

In every other run a worker, drawn by `--seed`, is killed (SIGKILL) after 1 to 3 seconds, drawn too, again and again
while a reader reads, and replaced by a new process. Each run checks that each reader got every row once in each epoch,
in the same batches with the same digests as in the first undisturbed run.

`rate_to_undisturbed` is the reader's rows per second, divided by those of the undisturbed run of the same round.
`to_undisturbed` is the same for each round. `longest_wait` is the longest time between two batches in seconds.
`windows` counts windows that were leased: those of two epochs, those that the first reader had passed before the second
one began, and those that a killed worker held. `computed_again` counts those among the last that the worker had
prepared. Fails if no worker was killed.

Prints one JSON line per reader and kind of run, medians of `--rounds` rounds, then a table.
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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from processes import FOREBAY, Process, cluster, reader, slow_feed, status, table

ROW_MILLISECONDS = 10
STEP_SECONDS = 0.02
OPTIONS = ("--threads", "1")


class Killer:
    """Kills workers at random times, and starts others in their place, until it is told to end."""

    def __init__(self, workers: list[Process], start: Callable[[], Process], seed: int, pause: float, most: int):
        self.kills, self._most = 0, most
        self._workers, self._start = workers, start
        self._random, self._pause = random.Random(seed), pause
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while self.kills < self._most and not self._ended.wait(self._pause * self._random.uniform(0.5, 1.5)):
            victim = self._random.randrange(len(self._workers))
            self._workers[victim].kill()
            self.kills += 1
            self._workers[victim] = self._start()

    def __enter__(self) -> "Killer":
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()


class Reading:
    """What a reader got: its batches, and when they came."""

    def __init__(self, forebay: str, uri: str, epochs: int, rows: int, step: float, quarter: threading.Event):
        self.batches: list[dict] = []
        arrived = [time.monotonic()]
        with reader(forebay, uri, "--ids", "id", "--epochs", str(epochs)) as process:
            try:
                for line in map(json.loads, process.stdout):
                    if "ids" not in line:
                        break
                    arrived.append(time.monotonic())
                    self.batches.append({name: line[name] for name in ("epoch", "step", "offset", "digest", "ids")})
                    if 5 * len(self.batches) >= rows // 4:
                        quarter.set()
                    time.sleep(step)
            finally:
                quarter.set()
                process.kill()
        for epoch in range(epochs):
            ids = [int(id) for batch in self.batches if batch["epoch"] == epoch for id in batch["ids"]]
            assert sorted(ids) == list(range(rows)), f"epoch {epoch}: each row comes once"
        self.rate = epochs * rows / (arrived[-1] - arrived[0])
        self.longest_wait = max(after - before for before, after in zip(arrived, arrived[1:]))


def run(forebay: str, script: pathlib.Path, given: argparse.Namespace, seed: int | None) -> dict:
    """Runs both readers, on workers that are killed if there is a seed."""
    with contextlib.ExitStack() as stack:
        dispatcher, workers = cluster(stack, forebay, script, 3, *OPTIONS)
        quarter = threading.Event()

        def read(step: float) -> Reading:
            return Reading(forebay, dispatcher.uri, given.epochs, given.rows, step, quarter)

        def start() -> Process:
            return stack.enter_context(Process(forebay, "worker", "--dispatcher", dispatcher.uri, *OPTIONS))

        with ThreadPoolExecutor(2) as readers, contextlib.ExitStack() as killing:
            killer = None
            if seed is not None:
                killer = killing.enter_context(Killer(workers, start, seed, given.pause, given.kills))
            first = readers.submit(read, 0.0)
            quarter.wait()
            second = readers.submit(read, STEP_SECONDS)
            found = {"fast": first.result(), "behind": second.result()}
        [feed] = status(forebay, dispatcher.uri)["feeds"]
        assert killer is None or killer.kills, "no worker was killed: read longer, or pause for less time"
        return {
            "readers": found,
            "kills": killer.kills if killer else 0,
            "windows": feed["leases_granted"],
            "computed_again": feed["windows_recomputed"],
        }


def main():
    parser = argparse.ArgumentParser(description="See this file's beginning.")
    parser.add_argument("--forebay", default=FOREBAY)
    parser.add_argument("--rows", type=int, default=3000, help="rows of an epoch, a multiple of ten; 10 ms each")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--pause", type=float, default=2.0, help="mean time between kills, in seconds")
    parser.add_argument("--kills", type=int, default=1000, help="the most kills of a run")
    parser.add_argument("--seed", type=int, default=17, help="seed of the first round's kills; later rounds count up")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, alternating")
    given = parser.parse_args()
    runs: list[dict[str, dict]] = []
    with tempfile.TemporaryDirectory() as name:
        script = slow_feed(pathlib.Path(name), given.rows, ROW_MILLISECONDS)
        for number in range(given.rounds):
            runs.append({
                "undisturbed": run(given.forebay, script, given, None),
                "killed": run(given.forebay, script, given, given.seed + number),
            })
            expected = runs[0]["undisturbed"]["readers"]["fast"].batches
            for kind, got in runs[-1].items():
                for name, reading in got["readers"].items():
                    assert reading.batches == expected, f"{kind}, {name}: the batches differ"
    figures = []
    for kind in ("undisturbed", "killed"):
        for name in ("fast", "behind"):
            mine = [run[kind]["readers"][name] for run in runs]
            ratios = [one.rate / run["undisturbed"]["readers"][name].rate for one, run in zip(mine, runs)]
            figures.append({
                "measurement": "kills",
                "run": kind,
                "reader": name,
                "kills": sum(run[kind]["kills"] for run in runs),
                "rows_per_second": round(statistics.median(one.rate for one in mine), 1),
                "rate_to_undisturbed": round(statistics.median(ratios), 3),
                "to_undisturbed": [round(ratio, 3) for ratio in ratios],
                "longest_wait": round(statistics.median(one.longest_wait for one in mine), 2),
                "windows": statistics.median(run[kind]["windows"] for run in runs),
                "computed_again": statistics.median(run[kind]["computed_again"] for run in runs),
                "seeds": [given.seed + number for number in range(given.rounds)] if kind == "killed" else [],
            })
            print(json.dumps(figures[-1]), flush=True)
    table(figures)


if __name__ == "__main__":
    main()
