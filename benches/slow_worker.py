"""A worker that is eight times as slow as the others: the time of an epoch with it, and without it.

    cargo build --release && python3 benches/slow_worker.py

Linux only. Needs only Python's standard library. A pipeline waits for each row (`sleep`, so it needs no cores), windows
have ten rows, and a trainer reads an epoch as fast as it can. A fast worker computes ten windows per second. The slow
one computes one in 800 ms, for one of two reasons:

- `paused`: workers have one thread, rows take 10 ms, and the slow worker's process is stopped (SIGSTOP) but for 50 ms
  of every 800 ms. It is as slow to answer trainers and dispatcher, as a process on an overloaded machine is.
- `fewer_threads`: rows take 80 ms, fast workers have eight threads, and the slow one has one. It answers as fast as the
  others, and needs as long as they do for each single window.

Measured in turns: the epoch's seconds with `--workers` fast workers (`all_fast`), with one of these fewer (`without`),
and with one of these replaced by the slow one (`with_slow`). `to_without` is the ratio to `without`, round by round: a
slow worker must not make it larger than 1. `bound` is what the ratio would be if every worker was busy all the time.
`second_copies` counts windows that were leased to a second worker, because the first took too long. `longest_wait`
is the trainer's longest wait in seconds. `slowness`, measured first, is the time of 40 windows on the slow worker
alone, divided by that on a fast one alone. Each run checks that every row came once.

Prints one JSON line per measurement, then a table.
"""

import argparse
import contextlib
import json
import pathlib
import signal
import statistics
import tempfile
import threading
import time
from typing import NamedTuple

from processes import FOREBAY, Process, cluster, reader, slow_feed, status, table

SLOWNESS = 8
WINDOW_SECONDS = 0.1
# Shorter than a window, so that one window ends in each period.
RUNNING_SECONDS = WINDOW_SECONDS / 2
ALONE_WINDOWS = 40


class Way(NamedTuple):
    """A way of being slow: the threads of fast workers, and the milliseconds that a row takes."""

    threads: int
    row_milliseconds: int


WAYS = {"paused": Way(1, 10), "fewer_threads": Way(SLOWNESS, 10 * SLOWNESS)}


@contextlib.contextmanager
def paused(worker: Process):
    """Stops a process for most of each period in which it should compute one window."""
    ended = threading.Event()

    def pause():
        while not ended.is_set():
            worker.process.send_signal(signal.SIGCONT)
            ended.wait(RUNNING_SECONDS)
            worker.process.send_signal(signal.SIGSTOP)
            ended.wait(SLOWNESS * WINDOW_SECONDS - RUNNING_SECONDS)

    thread = threading.Thread(target=pause)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        worker.process.send_signal(signal.SIGCONT)


def read(
    forebay: str, script: pathlib.Path, way: str, fast: int, slow: int, rows: int, steps: int | None = None
) -> dict:
    """Reads an epoch, or some steps of it, from a new cluster."""
    with contextlib.ExitStack() as stack:
        dispatcher, _ = cluster(stack, forebay, script, fast, "--threads", str(WAYS[way].threads))
        if slow:
            arguments = ("worker", "--dispatcher", dispatcher.uri, "--threads", "1")
            worker = stack.enter_context(Process(forebay, *arguments))
            while len(status(forebay, dispatcher.uri)["workers"]) < fast + slow:
                pass
            if way == "paused":
                stack.enter_context(paused(worker))
        limit = ("--steps", str(steps)) if steps else ()
        trainer = reader(forebay, dispatcher.uri, "--ids", "id", *limit)
        stack.callback(trainer.kill)
        arrived, ids = [time.monotonic()], []
        for line in map(json.loads, trainer.stdout):
            if "ids" in line:
                arrived.append(time.monotonic())
                ids += map(int, line["ids"])
        assert trainer.wait() == 0, "the trainer failed"
        if steps is None:
            assert sorted(ids) == list(range(rows)), "each row comes once"
        [feed] = status(forebay, dispatcher.uri)["feeds"]
        return {
            "seconds": arrived[-1] - arrived[0],
            "longest_wait": max(after - before for before, after in zip(arrived, arrived[1:])),
            "second_copies": feed["leases_speculative"],
        }


def measure(forebay: str, way: str, workers: int, rows: int, rounds: int) -> list[dict]:
    # The parts of a fast worker's speed.
    speeds = {"all_fast": workers, "without": workers - 1, "with_slow": workers - 1 + 1 / SLOWNESS}
    with tempfile.TemporaryDirectory() as name:
        script = slow_feed(pathlib.Path(name), rows, WAYS[way].row_milliseconds)
        steps = min(ALONE_WINDOWS * 2, rows // 5)
        alone = [read(forebay, script, way, fast, slow, rows, steps)["seconds"] for fast, slow in ((1, 0), (0, 1))]
        runs = [
            {
                "all_fast": read(forebay, script, way, workers, 0, rows),
                "without": read(forebay, script, way, workers - 1, 0, rows),
                "with_slow": read(forebay, script, way, workers - 1, 1, rows),
            }
            for _ in range(rounds)
        ]
    ratios = {what: [round(run[what]["seconds"] / run["without"]["seconds"], 3) for run in runs] for what in speeds}
    return [
        {
            "measurement": "slow_worker",
            "way": way,
            "workers": what,
            "seconds": round(statistics.median(run[what]["seconds"] for run in runs), 2),
            "to_without": statistics.median(ratios[what]),
            "rounds": ratios[what],
            "bound": round(speeds["without"] / speed, 3),
            "second_copies": statistics.median(run[what]["second_copies"] for run in runs),
            "longest_wait": round(statistics.median(run[what]["longest_wait"] for run in runs), 2),
            "slowness": round(alone[1] / alone[0], 2),
        }
        for what, speed in speeds.items()
    ]


def main():
    parser = argparse.ArgumentParser(description="See this file's beginning.")
    parser.add_argument("--forebay", default=FOREBAY)
    parser.add_argument("--way", choices=WAYS, help="only this way of being slow")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=3000, help="rows of an epoch, a multiple of ten")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, alternating")
    given = parser.parse_args()
    figures = []
    for way in [given.way] if given.way else WAYS:
        lines = measure(given.forebay, way, given.workers, given.rows, given.rounds)
        for line in lines:
            print(json.dumps(line), flush=True)
        figures += lines
    table(figures)


if __name__ == "__main__":
    main()
