"""Several trainers of one feed: on one shared computation, against private loaders.

    cargo build --release && python3 benches/shared_trainers.py

Linux only. Needs only Python's standard library. Every trainer reads the sample photographs, decoded, cropped to 224 x
224 and flipped, as uint8 batches of 16, as fast as it can: as the jobs of a search for hyperparameters do.

- `private`: each trainer computes all of its batches in its own process (`forebay run SCRIPT`).
- `shared`: all trainers read from one server (`forebay run --connect`), which computes each window once.

`cpu_seconds` is user and system time of all processes of a run: trainers, and the server from the moment at which it
listens. `seconds` is the time until the last trainer has ended. `cpu_to_one_private` and `seconds_to_one_private`
divide by those of one private trainer in the same round: private loaders need n times as much for n trainers, and
shared trainers would need as much as one if sending took no time. `cpu_to_private` and `seconds_to_private` divide by
those of as many private trainers. `windows` counts the windows that the server computed: more than for one trainer if a
trainer was so far behind the others, or so late, that windows were computed again for it.

Prints one JSON line per number of trainers and kind, medians of `--rounds` rounds, then a table.
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

from processes import FOREBAY, ROOT, Process, status, table

PIPELINE = (
    "CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION 'photos';"
    "CREATE PIPELINE photos WITH (shuffle = true, seed = 17, batch_size = 16, window_bytes = '1MiB') AS SELECT"
    " random_hflip(random_resized_crop(decode_image(bytes), height => 224, width => 224)) AS image, label FROM photos;"
)
KINDS = ("private", "shared")


def write(folder: pathlib.Path, copies: int, photographs: int) -> tuple[pathlib.Path, int]:
    """Returns the script, and the number of samples."""
    chosen = sorted((ROOT / "examples/photos").glob("*/*.jpg"))[:photographs]
    for copy in range(copies):
        for path in chosen:
            target = folder / "photos" / str(copy) / path.parent.name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    script = folder / "photos.sql"
    script.write_text(PIPELINE)
    return script, copies * len(chosen)


def train(forebay: str, trainers: int, samples: int, *source: str) -> tuple[float, float]:
    """Runs trainers to their end. Returns their CPU seconds, and the time until the last one ended."""
    began = time.monotonic()
    command = [forebay, "run", *source]
    running = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) for _ in range(trainers)]
    cpu = 0.0
    for process in running:
        said = process.stdout.read()
        _, state, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(state)
        assert process.returncode == 0, f"a trainer failed: {said}"
        assert said.startswith(f"{samples} samples".encode()), said
        cpu += usage.ru_utime + usage.ru_stime
    return cpu, time.monotonic() - began


def measure(forebay: str, counts: list[int], copies: int, photographs: int, rounds: int) -> list[dict]:
    runs: list[dict[tuple[int, str], dict]] = []
    with tempfile.TemporaryDirectory() as name:
        script, samples = write(pathlib.Path(name), copies, photographs)
        for _ in range(rounds):
            runs.append({})
            for trainers in counts:
                cpu, seconds = train(forebay, trainers, samples, str(script))
                runs[-1][trainers, "private"] = {"cpu": cpu, "seconds": seconds, "windows": 0}
                with contextlib.ExitStack() as stack:
                    server = stack.enter_context(Process(forebay, "serve", str(script)))
                    before = server.cpu_seconds()
                    cpu, seconds = train(forebay, trainers, samples, "--connect", server.uri)
                    cpu += server.cpu_seconds() - before
                    [feed] = status(forebay, server.uri)["feeds"]
                runs[-1][trainers, "shared"] = {"cpu": cpu, "seconds": seconds, "windows": feed["leases_granted"]}

    def median(trainers: int, kind: str, of: str, to: tuple[int, str] | None = None) -> float:
        figures = [run[trainers, kind][of] / (run[to][of] if to else 1) for run in runs]
        return round(statistics.median(figures), 2)

    one = (counts[0], "private")
    return [
        {
            "measurement": "shared_trainers",
            "trainers": trainers,
            "kind": kind,
            "cpu_seconds": median(trainers, kind, "cpu"),
            "seconds": median(trainers, kind, "seconds"),
            "cpu_to_one_private": median(trainers, kind, "cpu", one),
            "seconds_to_one_private": median(trainers, kind, "seconds", one),
            "cpu_to_private": median(trainers, kind, "cpu", (trainers, "private")),
            "seconds_to_private": median(trainers, kind, "seconds", (trainers, "private")),
            "windows": max(run[trainers, kind]["windows"] for run in runs),
        }
        for trainers in counts
        for kind in KINDS
    ]


def main():
    parser = argparse.ArgumentParser(description="See this file's beginning.")
    parser.add_argument("--forebay", default=FOREBAY)
    parser.add_argument("--trainers", type=int, default=4, help="the most trainers; also measures 1, 2, … of them")
    parser.add_argument("--copies", type=int, default=16, help="copies of the photographs")
    parser.add_argument("--photographs", type=int, default=240, help="photographs of the sample to use, at most 240")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, alternating")
    given = parser.parse_args()
    counts = [1 << power for power in range(given.trainers.bit_length()) if 1 << power <= given.trainers]
    figures = measure(given.forebay, counts, given.copies, given.photographs, given.rounds)
    for line in figures:
        print(json.dumps(line))
    table(figures)


if __name__ == "__main__":
    main()
