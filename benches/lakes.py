"""Reading Parquet from a store: opening a table of many files, and what a page index costs.

    cargo build --release && python benches/lakes.py      # pip install numpy pyarrow

A server in this process is the store: it speaks S3's protocol, answers each read and listing after `--delay` seconds,
and counts bytes and requests. Prints a line of JSON for each figure:

- `opening`: seconds of `forebay explain` over `--files` files, the first time and again;
- `layout`: for a table of `--rows` rows in one row group with and without a page index, and in small row groups, in
  order and shuffled: the bytes read divided by those of the columns, requests, and what `forebay run` says of its CPU
  time and peak memory.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/python"))

from counting_bucket import CountingBucket

LAYOUTS = {
    "one row group, no index": {"row_group_size": 1 << 30},
    "one row group, index": {"row_group_size": 1 << 30, "write_page_index": True},
    "row groups of 50,000, index": {"row_group_size": 50_000, "write_page_index": True},
}


def forebay(bucket: CountingBucket, *arguments: str) -> tuple[str, float]:
    """Runs a command. Returns its output and its seconds."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    bucket.reads.clear()
    begun = time.monotonic()
    # A child of this process would count this process's memory as its own peak; a shell's child does not.
    command = ["sh", "-c", '"$@"; exit $?', "sh", options.forebay, *arguments]
    ended = subprocess.run(command, env=environment | bucket.environment, stdout=subprocess.PIPE, text=True, check=True)
    return ended.stdout, time.monotonic() - begun


def opening(folder: pathlib.Path) -> None:
    rows = pa.table({"id": np.arange(2), "text": ["a", "b"]})
    for number in range(options.files):
        target = folder / f"bucket/many/part={number % 50}/{number}.parquet"
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, target)
    script = folder / "opening.sql"
    script.write_text(
        "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 's3://bucket/many';"
        "CREATE PIPELINE p AS SELECT id, part FROM t;"
    )
    with CountingBucket(folder / "bucket") as bucket:
        bucket.delay = options.delay
        for run in ["first", "again"]:
            root = str(folder / "root")
            shown, seconds = forebay(bucket, "explain", str(script), "--root", root)
            assert f"{2 * options.files} rows" in shown, shown
            figure = {"run": run, "files": options.files, "seconds": round(seconds, 2), "reads": len(bucket.reads)}
            print(json.dumps({"bench": "opening"} | figure), flush=True)


def layouts(folder: pathlib.Path) -> None:
    random = np.random.default_rng(22)
    count = options.rows
    rows = pa.table(
        {
            "id": np.arange(count),
            "x": random.normal(size=count),
            "label": random.integers(0, 1000, count).astype("i4"),
            "kind": [f"kind {kind}" for kind in random.integers(0, 50, count)],
            "text": [f"text number {number}" for number in random.integers(0, 10**9, count)],
        }
    )
    script = folder / "layout.sql"
    with CountingBucket(folder / "bucket") as bucket:
        for layout, written in LAYOUTS.items():
            file = folder / "bucket/rows.parquet"
            file.parent.mkdir(exist_ok=True)
            pq.write_table(rows, file, **written)
            groups = pq.read_metadata(file)
            chunks = [groups.row_group(group).column(at) for group in range(groups.num_row_groups) for at in range(5)]
            stored = sum(chunk.total_compressed_size for chunk in chunks)
            for shuffle in ["false", "true"]:
                script.write_text(
                    "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 's3://bucket/rows.parquet';"
                    f"CREATE PIPELINE p WITH (shuffle = {shuffle}, batch_size = 4096) AS SELECT * FROM t;"
                )
                command = ["run", str(script), "--output", "json", "--root", str(folder / "root")]
                output, seconds = forebay(bucket, *command)
                summary = json.loads(output.splitlines()[-1])
                assert summary["samples"] == count
                read = sum(end - start for _, start, end in bucket.reads)
                figure = {
                    "layout": layout,
                    "shuffle": shuffle,
                    "stored_mb": round(stored / 1e6, 1),
                    "times_read": round(read / stored, 3),
                    "requests": len(bucket.reads),
                    "seconds": round(seconds, 2),
                    "cpu_seconds": round(summary["cpu_seconds"], 2),
                    "peak_mb": round(summary["peak_rss_bytes"] / 1e6),
                }
                print(json.dumps({"bench": "layout"} | figure), flush=True)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--forebay", default=str(ROOT / "target/release/forebay"))
parser.add_argument("--files", type=int, default=5000)
parser.add_argument("--delay", type=float, default=0.05)
parser.add_argument("--rows", type=int, default=1_000_000)
options = parser.parse_args()
with tempfile.TemporaryDirectory() as name:
    opening(pathlib.Path(name))
    layouts(pathlib.Path(name))
