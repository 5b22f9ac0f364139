"""What Forebay decides by itself, compared with every other choice.

    cargo build --release && python benches/policies.py [cache] [presto] [reuse] [reads] [waiting] [filter]

Stages sleep and stores are limited, so that the machine's cores are not the variable. Measurements:

- `cache` (Cachew's sweep): a stage that takes more and more time and inflates samples 2.5 times, with limited stores.
  `best` is the fastest of no cache, `source` and `prefix`; `chosen / best` compares what `auto` reaches.
- `presto`: four synthetic pipelines; one inflates samples 60 times. The place that `forebay advise` chooses,
  and the seconds of later epochs there divided by those at the best place.
- `reuse`: the first epoch of a second job, divided by the first epoch of the first.
- `reads`: files of a store that answers after 300 ms, read with the number of reads that follows from that, and the
  seconds that 16 reads of each of 2 windows would take at least.
- `waiting`: a call that waits for most of its time, with pieces under way as they follow from that, and with each of
  several numbers of threads.
- `filter`: a condition that is written last, and one that is written first.

Prints one JSON line per measurement, then a table.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile
import time

from limited_bucket import LimitedBucket
from processes import FOREBAY, table

ROWS = 3_000
# Bytes of a row's text.
TEXT = 2_000


def forebay(program: str, folder: pathlib.Path, *arguments: str, **environment: str) -> tuple[float, list[str]]:
    """Runs the program, and returns its seconds and the lines of its output."""
    began = time.monotonic()
    command = [program, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - began, done.stdout.splitlines()


def script(folder: pathlib.Path, query: str, location: str = "rows", **options: str) -> pathlib.Path:
    listed = ", ".join(f"{name} = {value}" for name, value in options.items())
    file = folder / "train.sql"
    file.write_text(
        f"CREATE EXTERNAL TABLE rows STORED AS JSONL LOCATION '{location}';\n"
        f"CREATE PIPELINE p WITH (window_rows = 100, shuffle = true{', ' + listed if listed else ''}) AS {query};"
    )
    return file


def rows_of(number: int, parts: int = 30) -> dict[str, bytes]:
    """Files of rows whose text cannot be compressed by repetition."""
    files = {}
    for part in range(parts):
        lines = [
            json.dumps({"n": n, "text": f"{n:08}" * (TEXT // 8)})
            for n in range(part * number // parts, (part + 1) * number // parts)
        ]
        files[f"rows/{part:03}.jsonl"] = ("\n".join(lines) + "\n").encode()
    return files


def write_rows(folder: pathlib.Path, rows: int):
    for file, content in rows_of(rows).items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(content)


def epochs(program: str, folder: pathlib.Path, file: pathlib.Path, number: int, *flags: str, **environment) -> float:
    return forebay(program, folder, "run", file, "--epochs", number, *flags, **environment)[0]


def later_epoch(program, folder, file, *flags, **environment) -> float:
    """Seconds of an epoch of a job of eight that finds what another job of four has kept. Deciding is part of it."""
    epochs(program, folder, file, 4, *flags, **environment)
    return epochs(program, folder, file, 8, *flags, **environment) / 8


def cache(program: str, rows: int) -> list[dict]:
    figures = []
    with LimitedBucket(rate=6e6) as bucket:
        bucket.objects.update(rows_of(rows))
        for milliseconds in (0.2, 0.6, 1.2, 2.4):
            query = f"SELECT n, concat(repeat(sleep(text, {milliseconds}), 2), substr(text, 1, {TEXT // 2})) AS text, "
            query += "random_int(10) AS r FROM rows"
            seconds = {}
            for mode in ("none", "source", "prefix", "auto"):
                with tempfile.TemporaryDirectory() as name:
                    folder = pathlib.Path(name)
                    file = script(folder, query, "s3://bucket/rows", cache=f"'{mode}'")
                    flags = ("--root", "s3://bucket/root", "--cache-folder", folder / "pieces", "--threads", "2")
                    seconds[mode] = later_epoch(program, folder, file, *flags, **bucket.environment)
                    for key in [key for key in bucket.objects if key.startswith("root/")]:
                        del bucket.objects[key]
            best = min(("none", "source", "prefix"), key=seconds.get)
            figures.append(
                {"measurement": "cache", "ms": milliseconds}
                | {mode: round(took, 2) for mode, took in seconds.items()}
                | {"best": best, "chosen / best": round(seconds["auto"] / seconds[best], 3)}
            )
            print(json.dumps(figures[-1]), flush=True)
    return figures


PRESTO = {
    "inflates 60 times": "repeat(sleep(substr(text, 1, 200), 2), 60)",
    "inflates, then shrinks": "sleep(substr(repeat(sleep(text, 1), 20), 1, 100), 1)",
    "work at the end": "sleep(concat(concat(text, 'a'), 'b'), 3)",
    "shrinks step by step": "substr(sleep(substr(sleep(substr(text, 1, 1000), 1), 1, 300), 1), 1, 50)",
}


def presto(program: str, rows: int) -> list[dict]:
    figures = []
    with LimitedBucket(rate=5e6) as bucket, tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_rows(folder, rows)
        for pipeline, query in PRESTO.items():
            file = script(folder, f"SELECT {query} AS text, random_int(10) AS r FROM rows")
            flags = ("--threads", "2", "--root", "s3://bucket/root")
            _, [text] = forebay(program, folder, "advise", file, "--output", "json", *flags, **bucket.environment)
            advice = json.loads(text)
            estimates = [one for one in advice["estimates"] if not one["never_kept"]]
            chosen = advice["estimates"][advice["chosen"]]
            seconds = {}
            for estimate in estimates:
                if estimate["cut"] not in (None, "source"):
                    seconds[estimate["cut"]] = measured_at(program, folder, query, estimate["cut"], bucket)
            none = script(folder, f"SELECT {query} AS text, random_int(10) AS r FROM rows")
            seconds[None] = epochs(program, folder, none, 1, *flags, **bucket.environment)
            best = min(seconds, key=seconds.get)
            figures.append(
                {
                    "measurement": "presto",
                    "pipeline": pipeline,
                    "rows measured": round(advice["trial"]["rows"] / rows, 3),
                    "chosen": chosen["cut"] or "nothing",
                    "best": best or "nothing",
                    "chosen / best": round(seconds[chosen["cut"]] / seconds[best], 3),
                }
            )
            print(json.dumps(figures[-1]), flush=True)
    return figures


def measured_at(program, folder, query: str, cut: str, bucket: LimitedBucket) -> float:
    """Seconds of a later epoch that keeps the samples at `cut`: the calls after it are made to vary by epoch, which
    changes nothing else."""
    *_, call = query.partition(cut + "(")
    depth, end = 1, 0
    while depth:
        depth += {"(": 1, ")": -1}.get(call[end], 0)
        end += 1
    kept = f"{cut}({call[:end]}"
    # Of a draw that is always 0, nothing is left in the text.
    varied = query.replace(kept, f"concat({kept}, repeat('x', random_int(1)))")
    file = script(folder, f"SELECT {varied} AS text, random_int(10) AS r FROM rows", cache="'prefix'")
    seconds = later_epoch(program, folder, file, "--threads", "2", "--root", "s3://bucket/root", **bucket.environment)
    for key in [key for key in bucket.objects if key.startswith("root/")]:
        del bucket.objects[key]
    return seconds


def reuse(program: str, rows: int) -> list[dict]:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_rows(folder, rows)
        file = script(folder, "SELECT upper(sleep(text, 2)) AS text, random_int(10) AS r FROM rows", cache="'auto'")
        first = epochs(program, folder, file, 1, "--threads", "2", "--cache", "none")
        epochs(program, folder, file, 3, "--threads", "2")
        second = epochs(program, folder, file, 1, "--threads", "2", "--seed", "7")
    figure = {
        "measurement": "reuse",
        "first job, epoch 1": round(first, 2),
        "second job, epoch 1": round(second, 2),
        "second / first": round(second / first, 3),
    }
    print(json.dumps(figure), flush=True)
    return [figure]


def reads(program: str, rows: int) -> list[dict]:
    with LimitedBucket(rate=1e9, delay=0.3) as bucket, tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        picture = next(pathlib.Path(__file__).parents[1].glob("examples/photos/*/*.jpg")).read_bytes()
        bucket.objects.update({f"photos/{n:05}.jpg": picture for n in range(rows // 2)})
        file = folder / "train.sql"
        file.write_text(
            "CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION 's3://bucket/photos';\n"
            "CREATE PIPELINE p WITH (shuffle = true) AS SELECT resize(decode_image(bytes), 64, 64) AS image FROM photos;"
        )
        took = epochs(program, folder, file, 1, **bucket.environment)
    figure = {
        "measurement": "reads",
        "seconds": round(took, 2),
        "with 16 reads of 2 windows at least": round(rows // 2 * 0.3 / 32, 2),
    }
    print(json.dumps(figure), flush=True)
    return [figure]


def waiting(program: str, rows: int) -> list[dict]:
    seconds = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_rows(folder, rows)
        # Skewed: two stages that compute, one that waits little, and one that waits long.
        query = "SELECT upper(sleep(lower(sleep(reverse(text), 0.2)), 4)) AS text FROM rows"
        file = script(folder, query)
        for threads in (4, 8, 16, None):
            flags = () if threads is None else ("--threads", str(threads))
            seconds[threads] = epochs(program, folder, file, 9, "--batch-size", "8", *flags)
    best = min((threads for threads in seconds if threads), key=seconds.get)
    figure = (
        {"measurement": "waiting"}
        | {f"{threads} threads": round(took, 2) for threads, took in seconds.items() if threads}
        | {"by itself": round(seconds[None], 2), "by itself / best": round(seconds[None] / seconds[best], 3)}
    )
    print(json.dumps(figure), flush=True)
    return [figure]


def filter_(program: str, rows: int) -> list[dict]:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_rows(folder, rows)
        first = script(folder, "SELECT upper(sleep(text, 2)) AS text FROM (SELECT * FROM rows WHERE n % 4 = 0)")
        took_first = epochs(program, folder, first, 2, "--threads", "2")
        last = script(folder, "SELECT text FROM (SELECT upper(sleep(text, 2)) AS text, n FROM rows) WHERE n % 4 = 0")
        took_last = epochs(program, folder, last, 2, "--threads", "2")
    figure = {
        "measurement": "filter",
        "written first": round(took_first, 2),
        "written last": round(took_last, 2),
        "last / first": round(took_last / took_first, 3),
    }
    print(json.dumps(figure), flush=True)
    return [figure]


MEASUREMENTS = {
    "cache": cache,
    "presto": presto,
    "reuse": reuse,
    "reads": reads,
    "waiting": waiting,
    "filter": filter_,
}


def main():
    parser = argparse.ArgumentParser(description="See this file's beginning.")
    parser.add_argument("measurements", nargs="*", help=f"of {', '.join(MEASUREMENTS)}; all by default")
    parser.add_argument("--forebay", default=FOREBAY)
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of the tables")
    given = parser.parse_args()
    program = str(pathlib.Path(given.forebay).absolute())
    for name in given.measurements or MEASUREMENTS:
        table(MEASUREMENTS[name](program, given.rows))


if __name__ == "__main__":
    main()
