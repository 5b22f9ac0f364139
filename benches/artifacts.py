"""What keeping and writing samples costs.

    cargo build --release && python benches/artifacts.py      # pip install numpy pyarrow

Linux only. Measurements:

- `cache`: CPU of an epoch of photographs of 1024 x 768, decoded, resized to 256 x 256, cropped and flipped: without a
  cache, the first one with `cache = 'prefix'`, and one in a later process. `to_none` divides by the first of these.
- `parquet`: CPU of writing an epoch as Parquet divided by that of reading it, for photographs that are resized to
  256 x 256, and for texts that are packed tokens, by compression. `peak_mb` is the writer's.
- `killed`: a job of 100 files is killed when 90 of them are written, and resumed: the part of the windows that the
  second process computed.
- `scaling`: seconds of a job on a cluster of 1, 2 and 4 workers of one thread. Its pipeline waits 40 ms for each
  sample, so it needs no cores.

CPU is user and system time of the process. Prints one JSON line per measurement, medians of
`--rounds`, then tables.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from processes import FOREBAY, ROOT, cluster, slow_feed, table

SAMPLE = ROOT / "examples/photos"
# The photographs of the sample are small, so that decoding them costs hardly anything.
LARGE = (
    f"CREATE EXTERNAL TABLE sample STORED AS MEDIA LOCATION '{SAMPLE}';"
    "CREATE PIPELINE large AS SELECT label, encode_jpeg(resize(decode_image(bytes), 768, 1024), quality => 90) AS bytes"
    " FROM sample;"
)
PHOTOS = "CREATE EXTERNAL TABLE photos STORED AS PARQUET LOCATION 'photos';"
CROPPED = PHOTOS + (
    "CREATE PIPELINE p WITH (shuffle = true, batch_size = 16) AS SELECT normalize(random_hflip(random_crop("
    "resize(decode_image(bytes), 256, 256), 224, 224))) AS image, label FROM photos;"
)
RESIZED = PHOTOS + "CREATE PIPELINE p AS SELECT resize(decode_image(bytes), 256, 256) AS image, label FROM photos;"
PACKED = (
    "CREATE EXTERNAL TABLE texts STORED AS PARQUET LOCATION 'texts.parquet';"
    "CREATE PIPELINE p AS SELECT * FROM pack((SELECT tokens FROM texts), length => 1024);"
)
SEED = 4


def photographs(forebay: str, folder: pathlib.Path, copies: int):
    script = folder / "large.sql"
    script.write_text(LARGE)
    run(forebay, "materialize", str(script), "--to", str(folder / "large"), "--window-rows", "60", "--file-size", "8MiB")
    for copy in range(copies):
        for path in (folder / "large").glob("*.parquet"):
            target = folder / "photos" / f"{copy}-{path.name}"
            target.parent.mkdir(exist_ok=True)
            os.link(path, target)


def texts(folder: pathlib.Path, rows: int):
    random = np.random.default_rng(SEED)
    lengths = random.integers(20, 800, rows)
    tokens = random.zipf(1.2, lengths.sum()).clip(max=50_000).astype("i4")
    offsets = np.concatenate([[0], lengths.cumsum()]).astype("i4")
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens))
    pq.write_table(pa.table({"tokens": lists}), folder / "texts.parquet", row_group_size=5_000, write_page_index=True)


def run(*command: str) -> float:
    """Runs a command to its end. Returns its CPU seconds."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _, state, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(state)
    assert process.returncode == 0, f"{command} failed"
    return usage.ru_utime + usage.ru_stime


def write(*command: str) -> tuple[float, float]:
    """Runs a job to its end. Returns its CPU seconds and its peak memory in MB."""
    ended = subprocess.run([*command, "--output", "json"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
    summary = json.loads(ended.stdout)
    return summary["cpu_seconds"], summary["peak_rss_bytes"] / 1e6


def cache(forebay: str, folder: pathlib.Path, rounds: int) -> list[dict]:
    script = folder / "cropped.sql"
    script.write_text(CROPPED)
    epoch = (forebay, "run", str(script), "--root", str(folder / "root"))
    kinds = {"none": (), "first": ("--cache", "prefix"), "later": ("--cache", "prefix")}
    cpu: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        shutil.rmtree(folder / "root", ignore_errors=True)
        for kind, options in kinds.items():
            cpu[kind].append(run(*epoch, *options))

    def line(kind: str) -> dict:
        ratios = [one / none for one, none in zip(cpu[kind], cpu["none"])]
        seconds = round(statistics.median(cpu[kind]), 2)
        return {"measurement": "cache", "epoch": kind, "cpu_seconds": seconds, "to_none": round(statistics.median(ratios), 3)}

    return [line(kind) for kind in kinds]


def parquet(forebay: str, folder: pathlib.Path, rounds: int) -> list[dict]:
    lines = []
    for samples, text in (("photographs", RESIZED), ("tokens", PACKED)):
        script = folder / f"{samples}.sql"
        script.write_text(text)
        reading = [run(forebay, "run", str(script)) for _ in range(rounds)]
        for compression in ("none", "zstd"):
            ratios, peaks = [], []
            for seconds in reading:
                shutil.rmtree(folder / "out", ignore_errors=True)
                job = (forebay, "materialize", str(script), "--to", str(folder / "out"), "--compression", compression)
                cpu, peak = write(*job)
                ratios.append(cpu / seconds)
                peaks.append(peak)
            lines.append({
                "measurement": "parquet",
                "samples": samples,
                "compression": compression,
                "cpu_reading": round(statistics.median(reading), 2),
                "writing_to_reading": round(statistics.median(ratios), 3),
                "peak_mb": round(max(peaks)),
            })  # fmt: skip
    return lines


def killed(forebay: str, folder: pathlib.Path) -> list[dict]:
    (folder / "killed").mkdir()
    script = slow_feed(folder / "killed", 1_000, 2)
    job = (forebay, "materialize", str(script), "--to", str(folder / "killed/out"), "--file-size", "1", "--threads", "2")
    parts = folder / "killed/out/_forebay/jobs"
    process = subprocess.Popen(job, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while (written := len(list(parts.glob("*/*/parts/*")))) < 90 and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    process.wait()
    written = len(list(parts.glob("*/*/parts/*")))
    run(*job)
    (generation,) = sorted((folder / "killed/out/_forebay/generations").iterdir())[-1:]
    costs = json.loads(generation.read_text())["body"]["record"]["committed"]["costs"]
    return [{"measurement": "killed", "written": written, "windows_computed": costs["windows"]}]


def scaling(forebay: str, folder: pathlib.Path, rows: int) -> list[dict]:
    figures = []
    (folder / "slow").mkdir()
    script = slow_feed(folder / "slow", rows, 40)
    for workers in (1, 2, 4):
        with contextlib.ExitStack() as stack:
            serving = ("--allow-write", str(folder / "slow"))
            dispatcher, _ = cluster(stack, forebay, script, workers, "--threads", "1", serving=serving)
            target = str(folder / f"slow/out-{workers}")
            began = time.monotonic()
            run(forebay, "materialize", "--connect", dispatcher.uri, "--to", target, "--file-size", "1")
            seconds = time.monotonic() - began
        one = figures[0]["seconds"] if figures else seconds
        speedup = round(one / seconds, 2)
        figures.append({"measurement": "scaling", "workers": workers, "seconds": round(seconds, 2), "speedup": speedup})
    return figures


def main():
    parser = argparse.ArgumentParser(description="See this file's beginning.")
    parser.add_argument("--forebay", default=FOREBAY)
    parser.add_argument("--only", choices=["cache", "parquet", "killed", "scaling"])
    parser.add_argument("--copies", type=int, default=8, help="copies of the 240 photographs")
    parser.add_argument("--texts", type=int, default=200_000)
    parser.add_argument("--rows", type=int, default=600, help="samples of `scaling`")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    figures: list[dict] = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        photographs(given.forebay, folder, given.copies)
        texts(folder, given.texts)
        measurements = {
            "cache": lambda: cache(given.forebay, folder, given.rounds),
            "parquet": lambda: parquet(given.forebay, folder, given.rounds),
            "killed": lambda: killed(given.forebay, folder),
            "scaling": lambda: scaling(given.forebay, folder, given.rows),
        }
        for measurement, measure in measurements.items():
            if given.only in (None, measurement):
                for line in measure():
                    print(json.dumps(line), flush=True)
                    figures.append(line)
    table(figures)


if __name__ == "__main__":
    main()
