"""Measures a cluster: several workers, several readers, a slow reader, and killed processes.

    cargo build --release && python3 benches/cluster.py

Linux only (`/proc`). Needs only Python's standard library. Every process runs on this machine. Five measurements:

- `scaling`: a pipeline that waits 40 ms per sample (`sleep`, so it needs no cores), 1 to 4 workers of one thread each,
  and a trainer that takes 10 ms per step. Bound: the time with one worker, divided by the number of workers.
- `sharing`: CPU seconds of one worker (`/proc/PID/stat`) while 1 or 4 readers read the sample photographs, cropped to
  uint8, at the same time. The part of the ratio above 1 is sending the same bytes four times. `computed_again` counts
  windows that were computed a second time for a reader too far behind.
- `failover`: one of two workers is killed (SIGKILL) while a trainer reads; milliseconds until the other is leased a
  window that the dead one held (its log has the time), until `forebay status` no longer lists the dead one, and the
  trainer's longest wait between two batches in the two seconds around.
- `slow_reader`: a reader's batches per second, and the worker's peak memory (`VmHWM`), alone and beside a reader of the
  same feed that takes one batch per second. Measured for a reader that reads as fast as it can, so that nothing is ever
  computed ahead of it, and for one that trains for 20 ms per step.
- `restart`: the dispatcher is killed (SIGKILL) and comes back after some seconds, at the same port, while a trainer
  with a full queue takes a batch every 50 ms. Reports the trainer's longest wait between two batches, from the kill
  until three seconds after the dispatcher came back, and the same without a kill.

Prints one JSON line per measurement, then a table.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import tempfile
import threading
import time

from processes import FOREBAY, ROOT, Process, cluster, reader, slow_feed, status, table

STEP_SECONDS = 0.01
ROW_MILLISECONDS = 40


def scaling(forebay: str, rows: int) -> list[dict]:
    figures = []
    with tempfile.TemporaryDirectory() as name:
        script = slow_feed(pathlib.Path(name), rows, ROW_MILLISECONDS)
        for workers in (1, 2, 3, 4):
            with contextlib.ExitStack() as stack:
                dispatcher, _ = cluster(stack, forebay, script, workers, "--threads", "1")
                began = time.monotonic()
                trainer = reader(forebay, dispatcher.uri)
                for _ in trainer.stdout:
                    time.sleep(STEP_SECONDS)
                seconds = time.monotonic() - began
                assert trainer.wait() == 0
            one = figures[0]["seconds"] if figures else seconds
            figures.append({
                "measurement": "scaling",
                "workers": workers,
                "seconds": round(seconds, 2),
                "speedup": round(one / seconds, 2),
                "of_bound": round(one / workers / seconds, 3),
            })
    return figures


# Other photographs for `sharing`, such as those of 500 x 375 that jpeg/benches/photographs.py writes.
PHOTOS = pathlib.Path(os.environ.get("PHOTOGRAPHS", ROOT / "examples/photos"))


def sharing(forebay: str, copies: int, rounds: int) -> list[dict]:
    seconds: dict[int, list[dict[str, float]]] = {1: [], 4: []}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for copy in range(copies):
            shutil.copytree(PHOTOS, folder / "photos" / str(copy))
        script = folder / "photos.sql"
        script.write_text(
            "CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION 'photos';"
            "CREATE PIPELINE photos WITH (shuffle = true, seed = 17, batch_size = 16, window_bytes = '1MiB') AS SELECT"
            " random_hflip(random_resized_crop(decode_image(bytes), height => 224, width => 224)) AS image, label"
            " FROM photos;"
        )
        for _ in range(rounds):
            for readers in seconds:
                with contextlib.ExitStack() as stack:
                    dispatcher, [worker] = cluster(stack, forebay, script, 1)
                    before, began = worker.cpu_seconds(), time.monotonic()
                    running = [reader(forebay, dispatcher.uri, output="text") for _ in range(readers)]
                    for process in running:
                        process.communicate()
                        assert process.returncode == 0
                    seconds[readers].append({
                        "cpu": worker.cpu_seconds() - before,
                        "wall": time.monotonic() - began,
                        "again": status(forebay, dispatcher.uri)["feeds"][0]["windows_recomputed"],
                    })
    cpu = {readers: [figures["cpu"] for figures in all_] for readers, all_ in seconds.items()}
    ratios = [many / one for one, many in zip(cpu[1], cpu[4])]
    return [
        {
            "measurement": "sharing",
            "readers": readers,
            "worker_cpu_seconds": round(statistics.median(cpu[readers]), 2),
            "seconds": round(statistics.median(figures["wall"] for figures in seconds[readers]), 2),
            "computed_again": max(figures["again"] for figures in seconds[readers]),
            "cpu_to_one_reader": round(statistics.median(ratios), 3) if readers > 1 else 1.0,
        }
        for readers in seconds
    ]


def failover(forebay: str, kills: int) -> list[dict]:
    debug = "forebay_flight_server=debug"
    released, missed, waits = [], [], []
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        script = slow_feed(pathlib.Path(name), 200, ROW_MILLISECONDS)
        options = ("--threads", "1")
        dispatcher, workers = cluster(stack, forebay, script, 2, *options, log=debug)
        trainer = reader(forebay, dispatcher.uri, "--epochs", "1000000")
        stack.callback(trainer.kill)
        batches: list[float] = []

        def train():
            for _ in trainer.stdout:
                batches.append(time.monotonic())

        threading.Thread(target=train, daemon=True).start()
        for _ in range(kills):
            count = len(batches)
            while len(batches) < count + 5:
                time.sleep(0.01)
            dead, other = workers
            held, before = set(dead.leased()) - set(other.leased()), other.leased()
            killed = time.monotonic()
            dead.kill()
            while any(worker["address"] == dead.uri for worker in status(forebay, dispatcher.uri)["workers"]):
                pass
            missed.append(time.monotonic() - killed)

            def taken_over():
                return [at for window, at in other.leased().items() if window in held and window not in before]

            while not taken_over():
                time.sleep(0.01)
            released.append(min(taken_over()) - killed)
            while batches[-1] < killed + 2:
                time.sleep(0.01)
            around = [at for at in batches if killed - 0.5 < at]
            waits.append(max(after - before for before, after in zip(around, around[1:])))
            arguments = ("worker", "--dispatcher", dispatcher.uri, *options)
            workers = [other, stack.enter_context(Process(forebay, *arguments, log=debug))]

    def milliseconds(seconds: list[float]) -> dict[str, int]:
        return {"median": round(statistics.median(seconds) * 1e3), "most": round(max(seconds) * 1e3)}

    return [{
        "measurement": "failover",
        "kills": kills,
        "released_ms": milliseconds(released),
        "missed_ms": milliseconds(missed),
        "longest_wait_ms": milliseconds(waits),
    }]


def slow_reader(forebay: str, rounds: int) -> list[dict]:
    def drag(lines, seconds: float):
        for _ in lines:
            time.sleep(seconds)

    figures = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for copy in range(4):
            shutil.copytree(ROOT / "examples/photos", folder / "photos" / str(copy))
        script = folder / "photos.sql"
        script.write_text(
            "CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION 'photos';"
            "CREATE PIPELINE photos WITH (shuffle = true, seed = 17, batch_size = 16, window_bytes = '1MiB') AS SELECT"
            " random_hflip(random_resized_crop(decode_image(bytes), height => 224, width => 224)) AS image, label"
            " FROM photos;"
        )

        def measure(epochs: int, step: float, is_beside: bool) -> tuple[float, float]:
            with contextlib.ExitStack() as stack:
                dispatcher, [worker] = cluster(stack, forebay, script, 1, "--memory-limit", "256MiB")
                if is_beside:
                    slow = reader(forebay, dispatcher.uri, "--epochs", "1000", "--buffer-limit", "16MiB")
                    stack.callback(slow.kill)
                    threading.Thread(target=drag, args=(slow.stdout, 1.0), daemon=True).start()
                    # The reader is slow as soon as its pipe, which holds about a hundred lines, is full.
                    time.sleep(6)
                done = reader(forebay, dispatcher.uri, "--epochs", str(epochs))
                last = ""
                for last in done.stdout:
                    time.sleep(step)
                assert done.wait() == 0
                summary = json.loads(last)
                return summary["batches"] / summary["seconds"], worker.peak_mb()

        for trainer, epochs, step in (("as fast as it can", 20, 0.0), ("20 ms a step", 10, 0.02)):
            runs = [[measure(epochs, step, is_beside) for is_beside in (False, True)] for _ in range(rounds)]
            for at, what in enumerate(("alone", "beside")):
                figures.append({
                    "measurement": "slow_reader",
                    "trainer": trainer,
                    "reader": what,
                    "batches_per_second": round(statistics.median(run[at][0] for run in runs), 1),
                    "worker_peak_mb": round(statistics.median(run[at][1] for run in runs)),
                    "rate_to_alone": round(statistics.median(run[at][0] / run[0][0] for run in runs), 3),
                    "peak_to_alone": round(statistics.median(run[at][1] / run[0][1] for run in runs), 3),
                })
    return figures


def restart(forebay: str, kills: int) -> list[dict]:
    step, away = 0.05, 4.0
    waits: dict[str, list[float]] = {"undisturbed": [], "killed": []}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        data = pathlib.Path(name) / "rows"
        data.mkdir()
        for first in range(0, 10_000, 100):
            lines = "".join(f"{id}\n" for id in range(first, first + 100))
            (data / f"{first:06}.csv").write_text(f"id\n{lines}")
        script = pathlib.Path(name) / "rows.sql"
        script.write_text(
            "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'rows';"
            "CREATE PIPELINE p WITH (shuffle = true, batch_size = 5, window_rows = 100) AS SELECT id FROM t;"
        )
        dispatcher, _ = cluster(stack, forebay, script, 2)
        port = dispatcher.uri.rpartition(":")[2]
        trainer = reader(forebay, dispatcher.uri, "--epochs", "1000000")
        stack.callback(trainer.kill)
        batches: list[float] = []

        def train():
            for _ in trainer.stdout:
                batches.append(time.monotonic())
                time.sleep(step)

        threading.Thread(target=train, daemon=True).start()
        for _ in range(kills):
            for what in waits:
                time.sleep(5)  # The queue fills.
                began = time.monotonic()
                if what == "killed":
                    dispatcher.kill()
                time.sleep(away)
                if what == "killed":
                    arguments = ("serve", str(script), "--no-worker", "--port", port)
                    dispatcher = stack.enter_context(Process(forebay, *arguments))
                time.sleep(3)
                around = [at for at in batches if at > began - step]
                waits[what].append(max(after - before for before, after in zip(around, around[1:])))
    return [
        {
            "measurement": "restart",
            "dispatcher": what,
            "away_seconds": away if what == "killed" else 0,
            "times": kills,
            "longest_wait_ms": round(max(waits[what]) * 1e3),
            "median_wait_ms": round(statistics.median(waits[what]) * 1e3),
        }
        for what in waits
    ]


def main():
    parser = argparse.ArgumentParser(description="See this file's beginning.")
    parser.add_argument("--forebay", default=FOREBAY)
    parser.add_argument("--only", choices=["scaling", "sharing", "failover", "slow_reader", "restart"])
    parser.add_argument("--rows", type=int, default=480, help="rows of scaling; 40 ms each")
    parser.add_argument("--copies", type=int, default=8, help="copies of the 240 photographs, for sharing")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of sharing and slow_reader, alternating")
    parser.add_argument("--kills", type=int, default=10, help="kills of failover")
    arguments = parser.parse_args()
    measurements = {
        "scaling": lambda: scaling(arguments.forebay, arguments.rows),
        "sharing": lambda: sharing(arguments.forebay, arguments.copies, arguments.rounds),
        "failover": lambda: failover(arguments.forebay, arguments.kills),
        "slow_reader": lambda: slow_reader(arguments.forebay, arguments.rounds),
        "restart": lambda: restart(arguments.forebay, max(1, arguments.kills // 3)),
    }
    figures = []
    for name, measure in measurements.items():
        if arguments.only in (None, name):
            for line in measure():
                figures.append(line)
                print(json.dumps(line), flush=True)
    table(figures)


if __name__ == "__main__":
    main()
