"""How many workers a server needs beside a trainer, with and without a worker in the trainer's process.

    cargo build --release && maturin develop --release … && python benches/placement.py      # pip install psutil

Linux only. The trainer takes a step of fixed work on a core, or waits (`--step wait`), for each batch of five samples.
Each sample waits on a worker, so that the workers need no cores, and a worker has one thread. The server starts and
drains workers as the trainer needs them. Measurements:

- `workers`: the workers that the server ran at the end, without and with `local_worker="auto"`.
- `threads`: the threads of the local worker at the end.
- `step_ms`: the median time that the trainer spent outside of its loader for a batch, in the last third of the run.
- `rate`: batches per second in that time.

Prints one JSON line per measurement, then a table.
"""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from processes import FOREBAY, Process, slow_feed, status, table

MILLISECONDS = 40
LOOP = """
import json, statistics, sys, time
import forebay
step, seconds, works = float(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "work"
options = {"local_worker": "auto"} if sys.argv[5] == "auto" else {}

def work(turns):
    for _ in range(turns):
        pass

turns = 1_000_000
began = time.thread_time()
work(turns)
# Half of a step computes, as where a device does the other half.
turns = int(turns * step / 2 / (time.thread_time() - began))
cluster = forebay.connect(sys.argv[1], **options)
began, steps = time.monotonic(), []
for batch in cluster.load("p", epochs=100_000):
    now = time.monotonic()
    if works:
        work(turns)
        time.sleep(step / 2)
    else:
        time.sleep(step)
    after = time.monotonic()
    if after - began > seconds * 2 / 3:
        steps.append(after - now)
    if after - began > seconds:
        break
figures = {"step_ms": round(statistics.median(steps) * 1e3, 1), "rate": round(len(steps) / (seconds / 3), 2)}
print(json.dumps(figures | {"threads": cluster.local_threads}), flush=True)
sys.stdin.read()
"""


def remote(forebay: str, uri: str) -> int:
    workers = status(forebay, uri)["workers"]
    return sum(not worker["beside_trainer"] and not worker["draining"] for worker in workers)


def measure(given: argparse.Namespace, script: pathlib.Path, local: str, demand: float) -> dict:
    with contextlib.ExitStack() as stack:
        options = ("--workers", "0..8", "--threads", "1", "--settle-for", "5")
        server = stack.enter_context(Process(given.forebay, "serve", str(script), *options))
        step = 5 * MILLISECONDS / 1e3 / demand
        loop = [sys.executable, "-c", LOOP, server.uri, str(step), str(given.seconds), given.step, local]
        # The server and its workers have the machine; the trainer has the cores of its quota.
        quota = sorted(os.sched_getaffinity(0))[: given.cores]
        trainer = subprocess.Popen(
            loop,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, quota),
        )
        stack.callback(trainer.kill)
        numbers, began = [], time.monotonic()
        while trainer.poll() is None and time.monotonic() - began < given.seconds:
            numbers.append(remote(given.forebay, server.uri))
            time.sleep(0.5)
        figures = json.loads(trainer.stdout.readline())
        trainer.stdin.close()
        trainer.wait()
    last = numbers[len(numbers) * 2 // 3 :]
    return {
        "measurement": "placement",
        "demand": demand,
        "local_worker": local,
        "workers": round(sum(last) / len(last), 2),
        **figures,
    }


def main():
    parser = argparse.ArgumentParser(description="See this file's beginning.")
    parser.add_argument("--forebay", default=FOREBAY)
    parser.add_argument("--seconds", type=float, default=120, help="seconds of each measurement")
    parser.add_argument("--cores", type=int, default=2, help="cores of the trainer")
    parser.add_argument("--step", choices=["work", "wait"], default="work")
    parser.add_argument("--demand", type=float, nargs="+", default=[0.8], help="of what a thread computes")
    given = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as name:
        script = slow_feed(pathlib.Path(name), 2_000, MILLISECONDS)
        for demand in given.demand:
            for local in ("none", "auto"):
                figures.append(measure(given, script, local, demand))
                print(json.dumps(figures[-1]), flush=True)
    table(figures)


if __name__ == "__main__":
    main()
