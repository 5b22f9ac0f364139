"""Measures how fast ready batches go from a server to a trainer process on loopback: Forebay and its peers in one run.

    python3.11 -m venv /tmp/peers && /tmp/peers/bin/pip install pyarrow tensorflow-cpu numpy
    cargo build --release && /tmp/peers/bin/python benches/serving_peers.py --forebay target/release/forebay

Linux only (`/proc`). Two shapes: pictures, 128 x 224 x 224 x 3 uint8 (19 MB per batch), and tokens, 8 x 2048 int32
(64 KiB). Both are random bytes, with several different batches that repeat. Clients check only sizes:

- `pyarrow-flight`: a Flight server of pyarrow (C++) with record batches in memory, one `do_get`, pyarrow's client.
- `tf-data-service`: dispatcher and worker in one server process, a `cache()`d dataset of ready tensors,
  `compression=None`; `tf-data-service-auto` has the default, `compression="AUTO"`, which means Snappy.
- `forebay`: `forebay serve` over an uncompressed Parquet file of one binary column; `forebay run` with text output.
- `forebay-json`: the same with `--output json`, which also digests every batch and prints a line for it.
- `forebay-pyarrow`: the same server, read by the client of `pyarrow-flight`, so that only the servers differ.

All servers send from memory. The peers' batches are made beforehand; `cache()` keeps those of tf.data service when they
are first drawn. Forebay's server reads and decodes the Parquet file in a client's first epoch. From then on the worker
holds the windows, because the feed is neither shuffled nor random (its `--memory-limit` is the default, 1 GiB, of which
256 MiB may be kept this way; the pictures are 154 MB). `--shuffled` measures the same feed shuffled, which is read,
decoded and reordered in every epoch.

Each measurement uses a fresh server and client: a warm-up, then at least `--seconds` of wall time. Peers alternate, so
that a noisy machine affects all of them. Ratios compare with the first peer, within one round. CPU is user and system
time of both processes and their children in that time. The clients of `forebay` and `forebay-json` cannot report when
they are warm. Their CPU counts from the client's start to its end, including the server's reading ahead, after an
earlier warm-up client, and their rate counts from the first batch on. Peak memory is `VmHWM` (for these clients:
getrusage), including interpreters and libraries. `others_cpu` is the number of cores that other programs kept busy
meanwhile.

Prints one JSON line per peer and shape: medians with lowest and highest values. Then prints a table.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

# This process imports nothing large, because getrusage counts a child's peak memory from its parent's.

SHAPES = {
    # rows, shape of a row, type, different batches
    "images": (128, (224, 224, 3), "uint8", 8),
    "tokens": (8, (2048,), "int32", 1024),
}
WARM_UP_SECONDS = 1.0
START_SECONDS = 120.0
TICKS = os.sysconf("SC_CLK_TCK")
Figures = dict[str, float]


def row_bytes(shape: str) -> int:
    _, dimensions, dtype, _ = SHAPES[shape]
    size = {"uint8": 1, "int32": 4}[dtype]
    for dimension in dimensions:
        size *= dimension
    return size


def batch_bytes(shape: str) -> int:
    return SHAPES[shape][0] * row_bytes(shape)


# ---- CPU time and memory of processes


def tree(pid: int) -> Iterator[int]:
    yield pid
    for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                yield from tree(int(child))


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of a process, its threads, and its children, including those that have ended."""
    ticks = 0
    for process in tree(pid):
        with contextlib.suppress(OSError):
            fields = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return ticks / TICKS


def peak_bytes(pid: int) -> int:
    total = 0
    for process in tree(pid):
        with contextlib.suppress(OSError):
            status = pathlib.Path(f"/proc/{process}/status").read_text()
            total += int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024
    return total


def machine_cpu_seconds() -> float:
    """Returns the CPU time of all programs: all states but idle, iowait and those that are counted twice (guest)."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICKS


# ---- servers: each prints its URI when it serves, and runs until it is killed


def server_pyarrow(shape: str) -> None:
    import itertools

    import numpy as np
    import pyarrow as pa
    from pyarrow import flight

    rows, _, _, different = SHAPES[shape]
    rng = np.random.default_rng(0)
    column = pa.binary(row_bytes(shape))
    batches = [
        pa.record_batch({"x": pa.Array.from_buffers(column, rows, [None, pa.py_buffer(rng.bytes(batch_bytes(shape)))])})
        for _ in range(different)
    ]

    class Server(flight.FlightServerBase):
        def do_get(self, context, ticket):
            reader = pa.RecordBatchReader.from_batches(batches[0].schema, itertools.cycle(batches))
            return flight.RecordBatchStream(reader)

    server = Server("grpc://127.0.0.1:0")
    print(f"grpc://127.0.0.1:{server.port}", flush=True)
    server.serve()


def server_tf(shape: str) -> None:
    import tensorflow as tf

    dispatcher = tf.data.experimental.service.DispatchServer()
    config = tf.data.experimental.service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1])
    worker = tf.data.experimental.service.WorkerServer(config)
    print(dispatcher.target, flush=True)
    worker.join()


# ---- clients: warm up, read for a while, print their figures as JSON


def client_measure(shape: str, server_pid: int, seconds: float, take: Callable[[], object]) -> None:
    """Calls `take` once per batch."""
    started, taken = time.perf_counter(), 0
    # Two rounds over the data, so that the server's caches are full.
    while taken < 2 * SHAPES[shape][3] or time.perf_counter() - started < WARM_UP_SECONDS:
        take()
        taken += 1

    def usage() -> tuple[float, float, float, float]:
        return time.perf_counter(), cpu_seconds(server_pid), cpu_seconds(os.getpid()), machine_cpu_seconds()

    before, taken = usage(), 0
    while time.perf_counter() - before[0] < seconds:
        take()
        taken += 1
    wall, server_cpu, client_cpu, machine_cpu = (b - a for a, b in zip(before, usage(), strict=True))
    figures = {
        "batches_per_second": taken / wall,
        "seconds": wall,
        "server_cpu_per_gb": server_cpu / (taken * batch_bytes(shape) / 1e9),
        "client_cpu_per_gb": client_cpu / (taken * batch_bytes(shape) / 1e9),
        "server_peak_mb": peak_bytes(server_pid) / 1e6,
        "client_peak_mb": peak_bytes(os.getpid()) / 1e6,
        "others_cpu": max(0.0, machine_cpu - server_cpu - client_cpu) / wall,
    }
    print(json.dumps(figures), flush=True)
    # Exit without closing the endless stream in either library.
    os._exit(0)


def client_pyarrow(shape: str, uri: str, server_pid: int, seconds: float) -> None:
    from pyarrow import flight

    # The server of `pyarrow-flight` ignores this.
    request = {"pipeline": "ready", "batch_size": SHAPES[shape][0], "epochs": 1_000_000_000}
    reader = flight.connect(uri).do_get(flight.Ticket(json.dumps(request)))
    rows = SHAPES[shape][0]

    def take() -> None:
        batch = reader.read_chunk().data
        assert batch.num_rows == rows

    first = reader.read_chunk().data
    # Includes offsets and other buffers of a binary column.
    assert batch_bytes(shape) <= first.nbytes <= batch_bytes(shape) + 16 * (rows + 1), first.nbytes
    client_measure(shape, server_pid, seconds, take)


def client_tf(shape: str, uri: str, server_pid: int, seconds: float, compression: str | None) -> None:
    import tensorflow as tf

    rows, dimensions, dtype, different = SHAPES[shape]

    def ready(index: tf.Tensor) -> tf.Tensor:
        full = (rows, *dimensions)
        if dtype == "uint8":
            drawn = tf.random.stateless_uniform(full, seed=(index, 0), minval=0, maxval=256, dtype=tf.int32)
            return tf.cast(drawn, tf.uint8)
        return tf.random.stateless_uniform(full, seed=(index, 0), minval=None, maxval=None, dtype=tf.int32)

    # Runs in the server: drawn once, then served from memory.
    batches = tf.data.Dataset.range(different).map(ready).cache().repeat()
    batches = batches.apply(
        tf.data.experimental.service.distribute(
            processing_mode=tf.data.experimental.service.ShardingPolicy.OFF, service=uri, compression=compression
        )
    )
    iterator = iter(batches)
    first = next(iterator)
    assert first.shape == (rows, *dimensions) and first.dtype.name == dtype, first
    client_measure(shape, server_pid, seconds, lambda: next(iterator))


# ---- measurements


@contextlib.contextmanager
def serving(command: list[str], log: pathlib.Path) -> Iterator[tuple[str, int]]:
    """Starts a server. Returns the first line that it prints, and its process id."""
    with open(log, "a", encoding="utf-8") as errors:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        line = server.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"{command} did not start:\n{log.read_text()[-2000:]}")
        yield line, server.pid
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
        server.stdout.close()


def client(command: list[str], log: pathlib.Path, seconds: float) -> str:
    """Returns the last line that a client printed. Its output goes to a file, so that no reader slows it down."""
    with open(log, "a", encoding="utf-8") as errors, tempfile.TemporaryFile("w+", dir=log.parent) as output:
        done = subprocess.run(command, stdout=output, stderr=errors, timeout=START_SECONDS + 10 * seconds, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{command} failed:\n{log.read_text()[-2000:]}")
        output.seek(max(0, output.seek(0, os.SEEK_END) - 4096))
        return output.read()


def role(name: str, *arguments: object) -> list[str]:
    return [sys.executable, os.path.abspath(__file__), "--role", json.dumps([name, *arguments])]


def pyarrow_flight(shape: str, seconds: float, folder: pathlib.Path) -> Figures:
    log = folder / "pyarrow.log"
    with serving(role("server_pyarrow", shape), log) as (uri, pid):
        return json.loads(client(role("client_pyarrow", shape, uri, pid, seconds), log, seconds).splitlines()[-1])


def tf_data_service(shape: str, seconds: float, folder: pathlib.Path, compression: str | None) -> Figures:
    log = folder / "tensorflow.log"
    with serving(role("server_tf", shape), log) as (uri, pid):
        command = role("client_tf", shape, uri, pid, seconds, compression)
        return json.loads(client(command, log, seconds).splitlines()[-1])


def write_ready(shape: str, folder: pathlib.Path, shuffled: bool) -> None:
    """Writes a Parquet file with values as they are sent, and whole batches in each row group."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, _, _, different = SHAPES[shape]
    rng = np.random.default_rng(0)
    schema = pa.schema([pa.field("x", pa.binary(), nullable=False)])
    groups = max(rows, (8 << 20) // row_bytes(shape) // rows * rows)
    with pq.ParquetWriter(
        folder / f"{shape}.parquet", schema, compression="NONE", use_dictionary=False, write_statistics=False
    ) as writer:
        for _ in range(rows * different // groups):
            values = [rng.bytes(row_bytes(shape)) for _ in range(groups)]
            writer.write_table(pa.table([pa.array(values, pa.binary())], schema=schema), row_group_size=groups)
    (folder / f"{shape}.sql").write_text(
        f"CREATE EXTERNAL TABLE ready STORED AS PARQUET LOCATION '{shape}.parquet';\n"
        f"CREATE PIPELINE ready WITH (batch_size = {rows}, shuffle = {str(shuffled).lower()}) AS SELECT x FROM ready;\n",
        encoding="utf-8",
    )


def summary_of(output: str, form: str) -> dict:
    """Parses the summary that `forebay run` prints at its end. The text format is for people, and rounded."""
    if form == "json":
        return json.loads(output.splitlines()[-1])
    number = r"(\d+(?:\.\d+)?)"
    pattern = rf"{number} samples in {number} batches, {number} s: .*first batch after {number} ms\n"
    pattern += rf"{number} CPU seconds, {number} MB of memory"
    samples, batches, seconds, first, cpu, peak = map(float, re.search(pattern, output).groups())
    return {
        "samples": samples,
        "batches": batches,
        "seconds": seconds,
        "first_batch_seconds": first / 1e3,
        "cpu_seconds": cpu,
        "peak_rss_bytes": peak * 1e6,
    }


def forebay(
    shape: str, seconds: float, folder: pathlib.Path, binary: str, client_kind: str, shuffled: bool
) -> Figures:
    """`client_kind` is text or json, for `forebay run --output`, or pyarrow."""
    log = folder / "forebay.log"
    script = folder / f"{shape}.sql"
    if not script.exists():
        subprocess.run(role("write_ready", shape, str(folder), shuffled), check=True)
    rows = SHAPES[shape][0]
    with serving([binary, "serve", str(script), "--port", "0", "--output", "json"], log) as (line, pid):
        uri = json.loads(line)["uri"]
        if client_kind == "pyarrow":
            return json.loads(client(role("client_pyarrow", shape, uri, pid, seconds), log, seconds).splitlines()[-1])

        def run(steps: int) -> tuple[dict, Figures]:
            command = [binary, "run", "--connect", uri, "--epochs", "1000000000", "--steps", str(steps)]
            command += ["--output", client_kind]
            server_before, machine_before, started = cpu_seconds(pid), machine_cpu_seconds(), time.perf_counter()
            summary = summary_of(client(command, log, seconds), client_kind)
            server_cpu, elapsed = cpu_seconds(pid) - server_before, time.perf_counter() - started
            machine_cpu = machine_cpu_seconds() - machine_before
            assert summary["batches"] == steps and summary["samples"] == steps * rows, summary
            wall = summary["seconds"] - summary["first_batch_seconds"]
            return summary, {
                "batches_per_second": (steps - 1) / max(wall, 1e-3),
                "seconds": wall,
                "server_cpu_per_gb": server_cpu / (steps * batch_bytes(shape) / 1e9),
                "client_cpu_per_gb": summary["cpu_seconds"] / (steps * batch_bytes(shape) / 1e9),
                "server_peak_mb": peak_bytes(pid) / 1e6,
                "client_peak_mb": summary["peak_rss_bytes"] / 1e6,
                "others_cpu": max(0.0, machine_cpu - server_cpu - summary["cpu_seconds"]) / elapsed,
            }

        # Warm-up runs find the number of batches with which a measurement takes about the wanted time.
        steps = 2 * SHAPES[shape][3]
        while True:
            _, figures = run(steps)
            if figures["seconds"] >= WARM_UP_SECONDS:
                break
            steps = max(2 * steps, int(1.2 * WARM_UP_SECONDS * figures["batches_per_second"]))
        while figures["seconds"] < seconds:
            steps = int(1.2 * seconds * figures["batches_per_second"]) + 1
            _, figures = run(steps)
        return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forebay", metavar="PATH", help="release binary; without it only the peers are measured")
    parser.add_argument("--seconds", type=float, default=3.0, help="minimum length of a measurement [default: 3]")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each peer and shape [default: 3]")
    parser.add_argument("--peers", help="only these, comma-separated")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="only these, comma-separated")
    parser.add_argument("--shuffled", action="store_true", help="Forebay's feed is shuffled")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        name, *rest = json.loads(arguments.role)
        if name == "write_ready":
            rest[1] = pathlib.Path(rest[1])
        {f.__name__: f for f in (server_pyarrow, server_tf, client_pyarrow, client_tf, write_ready)}[name](*rest)
        return

    peers: dict[str, Callable[[str, float, pathlib.Path], Figures]] = {
        "pyarrow-flight": pyarrow_flight,
        "tf-data-service": lambda *a: tf_data_service(*a, compression=None),
        "tf-data-service-auto": lambda *a: tf_data_service(*a, compression="AUTO"),
    }
    if arguments.forebay:
        binary = os.path.abspath(arguments.forebay)
        peers |= {
            "forebay": lambda *a: forebay(*a, binary=binary, client_kind="text", shuffled=arguments.shuffled),
            "forebay-json": lambda *a: forebay(*a, binary=binary, client_kind="json", shuffled=arguments.shuffled),
            "forebay-pyarrow": lambda *a: forebay(*a, binary=binary, client_kind="pyarrow", shuffled=arguments.shuffled),
        }
    if arguments.peers:
        unknown = set(arguments.peers.split(",")) - set(peers)
        if unknown:
            parser.error(f"no such peer, or it wants --forebay: {', '.join(sorted(unknown))}")
        peers = {name: peers[name] for name in arguments.peers.split(",")}

    shapes = arguments.shapes.split(",")
    measured: dict[tuple[str, str], list[Figures]] = {(shape, peer): [] for shape in shapes for peer in peers}
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with tempfile.TemporaryDirectory() as name:
        for round_number in range(arguments.rounds):
            for shape in shapes:
                for peer, measure in peers.items():
                    figures = measure(shape, arguments.seconds, pathlib.Path(name))
                    figures["gb_per_second"] = figures["batches_per_second"] * batch_bytes(shape) / 1e9
                    figures["cpu_per_gb"] = figures["server_cpu_per_gb"] + figures["client_cpu_per_gb"]
                    measured[shape, peer].append(figures)
                    note = f"{figures['gb_per_second']:.3f} GB/s, {figures['cpu_per_gb']:.3f} CPU s/GB"
                    note += f", others {figures['others_cpu']:.2f} cores"
                    print(f"round {round_number + 1} {shape:7} {peer:21} {note}", file=sys.stderr, flush=True)

    first_peer = next(iter(peers))
    for (shape, _), rounds in measured.items():
        for figures, first in zip(rounds, measured[shape, first_peer], strict=True):
            figures[f"rate_to_{first_peer}"] = figures["gb_per_second"] / first["gb_per_second"]
            figures[f"cpu_to_{first_peer}"] = figures["cpu_per_gb"] / first["cpu_per_gb"]

    def digits(value: float) -> float:
        return float(f"{value:.4g}")

    for (shape, peer), rounds in measured.items():
        line: dict[str, object] = {
            "shape": shape,
            "peer": peer,
            "batch_bytes": batch_bytes(shape),
            "rounds": len(rounds),
        }
        for figure in rounds[0]:
            values = [figures[figure] for figures in rounds]
            line[figure] = {
                "median": digits(statistics.median(values)),
                "least": digits(min(values)),
                "greatest": digits(max(values)),
            }
        print(json.dumps(line), flush=True)

    heads = f"{'GB/s':>20} {'batches/s':>10} {'CPU s/GB':>20} {'server+client':>14} {'peak MB':>10}"
    print(f"\n{'shape':7} {'peer':21} {heads}  rate and CPU, ratio to {first_peer}")
    for (shape, peer), rounds in measured.items():

        def middle(figure: str, rounds: list[Figures] = rounds) -> float:
            return statistics.median(figures[figure] for figures in rounds)

        def spread(figure: str, rounds: list[Figures] = rounds) -> str:
            values = [figures[figure] for figures in rounds]
            return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"

        print(
            f"{shape:7} {peer:21} {spread('gb_per_second'):>20} {middle('batches_per_second'):10.1f}"
            f" {spread('cpu_per_gb'):>20} {middle('server_cpu_per_gb'):8.3f}+{middle('client_cpu_per_gb'):.3f}"
            f" {middle('server_peak_mb'):6.0f}+{middle('client_peak_mb'):<4.0f}"
            f" {spread(f'rate_to_{first_peer}')} {spread(f'cpu_to_{first_peer}')}"
        )


if __name__ == "__main__":
    main()
