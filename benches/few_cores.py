"""A process with few cores: under a quota of processor time, and beside a training loop.

    cargo build --release && maturin develop --release …      # pip install torch
    python benches/few_cores.py [quota] [loop]

Linux only. Measurements:

- `quota`: an epoch over the sample photographs in a cgroup of 1 and of 2 cores, with the number of threads that the
  program chooses, and with 1, 2 and 4 threads. Needs the right to make cgroups.
- `loop`: a step of torch on one thread beside a loader, divided by a step with batches that are already in memory. The
  loader uses one thread, so that both fit on two cores. Steps of both alternate in blocks.

Prints one JSON line per measurement, then a table.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

from processes import FOREBAY, ROOT, table

QUERY = "SELECT random_resized_crop(decode_image(bytes), 224, 224) AS image FROM photos"
V1, V2 = pathlib.Path("/sys/fs/cgroup/cpu"), pathlib.Path("/sys/fs/cgroup")


@contextlib.contextmanager
def cgroup(cores: int):
    """A cgroup whose processes have the time of so many cores. Yields the file to join it."""
    is_v1 = V1.exists()
    folder = (V1 if is_v1 else V2) / f"forebay-bench-{os.getpid()}"
    folder.mkdir()
    try:
        if is_v1:
            (folder / "cpu.cfs_period_us").write_text("100000")
            (folder / "cpu.cfs_quota_us").write_text(str(cores * 100_000))
        else:
            (folder / "cpu.max").write_text(f"{cores * 100_000} 100000")
        yield folder / "cgroup.procs"
    finally:
        folder.rmdir()


def quota(program: str, seconds: float) -> list[dict]:
    figures = []
    with tempfile.TemporaryDirectory() as name:
        script = pathlib.Path(name) / "photos.sql"
        script.write_text(
            f"CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION '{ROOT / 'examples/photos'}';\n"
            f"CREATE PIPELINE p WITH (shuffle = true, batch_size = 60) AS {QUERY};"
        )
        for cores in [1, 2]:
            with cgroup(cores) as procs:

                def rate(*flags: str) -> float:
                    command = [program, "run", str(script), "--root", name, "--output", "json", "--epochs", "100000", *flags]
                    join = lambda: procs.write_text(str(os.getpid()))  # noqa: E731
                    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=join)
                    process.stdout.readline()
                    began, batches = time.monotonic(), 0
                    while time.monotonic() - began < seconds:
                        process.stdout.readline()
                        batches += 1
                    took = time.monotonic() - began
                    process.kill()
                    process.communicate()
                    return batches * 60 / took

                rates = {"by itself": [], "1": [], "2": [], "4": []}
                for _ in range(3):
                    for threads, of_threads in rates.items():
                        of_threads.append(rate(*(() if threads == "by itself" else ("--threads", threads))))
                medians = {threads: statistics.median(found) for threads, found in rates.items()}
                best = max(medians.values())
                figures.append(
                    {"measurement": "quota", "cores": cores}
                    | {f"samples/s, {threads}": round(rate) for threads, rate in medians.items()}
                    | {"by itself / best": round(medians["by itself"] / best, 3)}
                )
                print(json.dumps(figures[-1]), flush=True)
    return figures


def loop(_: str, seconds: float) -> list[dict]:
    import forebay
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 5, stride=4), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3, stride=2), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(images: torch.Tensor):
        optimizer.zero_grad()
        model(images.permute(0, 3, 1, 2).float() / 255).square().mean().backward()
        optimizer.step()

    with tempfile.TemporaryDirectory() as root:
        session = forebay.Session(threads=1, root=root)
        photos = session.table(ROOT / "examples/photos")
        loader = photos.select(image="random_resized_crop(decode_image(bytes), 224, 224)").load(
            batch_size=32, shuffle=True, epochs=100_000
        )
        batches = iter(loader)
        ready = [next(batches)["image"].clone() for _ in range(8)]
        times = {"in memory": [], "beside": []}
        began = time.monotonic()
        while time.monotonic() - began < seconds * 8:
            for kind, of_kind in times.items():
                # What the loader has ready is taken first, so that it computes during the block of steps.
                for number in range(8):
                    start = time.perf_counter()
                    images = ready[number] if kind == "in memory" else next(batches)["image"]
                    step(images)
                    of_kind.append(time.perf_counter() - start)
                time.sleep(0.5 if kind == "beside" else 0)
        loader.close()
    medians = {kind: statistics.median(of_kind) for kind, of_kind in times.items()}
    figure = {
        "measurement": "loop",
        "steps": len(times["beside"]),
        "in memory, ms": round(medians["in memory"] * 1e3, 2),
        "beside a loader, ms": round(medians["beside"] * 1e3, 2),
        "beside / in memory": round(medians["beside"] / medians["in memory"], 4),
    }
    print(json.dumps(figure), flush=True)
    return [figure]


MEASUREMENTS = {"quota": quota, "loop": loop}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements", nargs="*", help=f"of {', '.join(MEASUREMENTS)}; all by default")
    parser.add_argument("--forebay", default=FOREBAY)
    parser.add_argument("--seconds", type=float, default=5, help="seconds of each run")
    arguments = parser.parse_args()
    figures = []
    for name in arguments.measurements or MEASUREMENTS:
        figures += MEASUREMENTS[name](arguments.forebay, arguments.seconds)
    table(figures)


if __name__ == "__main__":
    main()
