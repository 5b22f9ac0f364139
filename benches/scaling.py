"""How fast and how exactly a server finds the number of workers that its trainers need.

    cargo build --release && python benches/scaling.py      # pip install psutil

Linux only. The pipeline waits for each sample, so that it needs no cores; a trainer waits for each batch of five
samples. Measurements, each from a cold start without workers:

- `demand`: samples per second that the trainer takes, divided by those that a worker of one thread computes.
- `workers`, `seconds`, `changes`: the number of workers at the end, the seconds until it was reached for the last time,
  and how often the wanted number changed.
- `wait`: the part of its time that the trainer waited, in the last third of the run.

Prints one JSON line per measurement, then a table.
"""

import argparse
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from processes import FOREBAY, Process, slow_feed, status, table

# Milliseconds of a sample on a worker.
MILLISECONDS = 40
LOOP = """
import sys, time, forebay
step, seconds = float(sys.argv[2]), float(sys.argv[3])
began, waited, since, asked = time.monotonic(), 0.0, 0.0, 0.0
for batch in forebay.connect(sys.argv[1]).load("p", epochs=1_000):
    now = time.monotonic()
    if now - began > seconds * 2 / 3:
        since = since or now
        waited += now - asked if asked > since else 0.0
    if now - began > seconds:
        break
    time.sleep(step)
    asked = time.monotonic()
print(waited / (time.monotonic() - since))
"""


def wanted(forebay: str, uri: str) -> int:
    return status(forebay, uri)["scaling"]["workers"]


def measure(forebay: str, script: pathlib.Path, demand: float, seconds: float) -> dict:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Process(forebay, "serve", str(script), "--workers", "0..8", "--threads", "1"))
        step = 5 * MILLISECONDS / 1e3 / demand
        began = time.monotonic()
        loop = [sys.executable, "-c", LOOP, server.uri, str(step), str(seconds)]
        trainer = subprocess.Popen(loop, stdout=subprocess.PIPE, text=True)
        numbers = [(0.0, wanted(forebay, server.uri))]
        while trainer.poll() is None:
            number = wanted(forebay, server.uri)
            if number != numbers[-1][1]:
                numbers.append((time.monotonic() - began, number))
            time.sleep(0.25)
        waited = float(trainer.communicate()[0])
    reached, number = numbers[-1]
    return {
        "measurement": "scaling",
        "demand": demand,
        "workers": number,
        "seconds": round(reached, 1),
        "changes": len(numbers) - 1,
        "wait": round(waited, 4),
    }


def main():
    parser = argparse.ArgumentParser(description="See this file's beginning.")
    parser.add_argument("--forebay", default=FOREBAY)
    parser.add_argument("--seconds", type=float, default=90, help="seconds of each measurement")
    given = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as name:
        script = slow_feed(pathlib.Path(name), 2_000, MILLISECONDS)
        for demand in (0.5, 1.9, 3.5, 6.5):
            figures.append(measure(given.forebay, script, demand, given.seconds))
            print(json.dumps(figures[-1]), flush=True)
    table(figures)


if __name__ == "__main__":
    main()
