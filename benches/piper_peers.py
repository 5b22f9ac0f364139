"""Piper's operator chain: Forebay and pandas in one run, on one core.

    python3.11 -m venv /tmp/peers && /tmp/peers/bin/pip install maturin numpy pandas pyarrow
    VIRTUAL_ENV=/tmp/peers /tmp/peers/bin/maturin develop --release --manifest-path python/Cargo.toml
    /tmp/peers/bin/python benches/piper_peers.py

Linux only. Reads a generated table like the first data set of Piper (arXiv 2409.14912), a fiftieth of its rows, from
uncompressed Parquet in the page cache: a label, 13 float32 numbers from -1000 to 1000, and 26 strings of 8 hexadecimal
digits. 2 % of the values are missing. Every value is processed as Piper does: numbers: fill missing by 0, negatives to
0, ln(x + 1). Strings: fill missing by "0", hexadecimal to integer, remainder of M, and with vocabularies the number of
distinct remainders that came before the value's first row in this column. The result is batches of 4,096 rows with a
NumPy array for each column.

Vocabularies need two passes: `categorify` fits all of them in a stage, before the feed. Both are measured.

- `lambdas`: pandas with a Python lambda for each cell, as in Piper's own comparison.
- `vectorised`: pandas with NumPy and `factorize` wherever they can do it; only the hexadecimal digits are parsed one by
  one.

Each measurement is a fresh process with one thread on one core, after a small run that imports and starts everything.
CPU is its user and system time over all rows, reading included. Before, all peers' results are compared: the labels
and the strings' results must be equal, and numbers may differ by 1e-6. Prints one JSON line for each measurement:
microseconds of CPU per row, medians of `--rounds`, and each peer's CPU divided by Forebay's, round by round.
"""

import argparse
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

NUMBERS = [f"I{index}" for index in range(1, 14)]
STRINGS = [f"C{index}" for index in range(1, 27)]
BATCH, WARM_ROWS, TOLERANCE = 4096, 1024, 1e-6
MISSING = 0.02
# The rows of Piper's first data set, divided by 50.
ROWS = 45_840_617 // 50

Batches = Iterator[dict]


def generate(path: pathlib.Path, rows: int, seed: int) -> None:
    import numpy
    import pyarrow
    import pyarrow.parquet

    random = numpy.random.default_rng(seed)

    def missing():
        return pyarrow.array(random.random(rows) < MISSING)

    columns = {"label": random.integers(0, 2, rows, dtype=numpy.int8)}
    none = pyarrow.scalar(None)
    for name in NUMBERS:
        values = pyarrow.array(random.uniform(-1000, 1000, rows).astype(numpy.float32))
        columns[name] = pyarrow.compute.if_else(missing(), none, values)
    for name in STRINGS:
        digits = pyarrow.py_buffer(random.bytes(4 * rows).hex().encode())
        offsets = pyarrow.py_buffer(numpy.arange(0, 8 * rows + 1, 8, dtype=numpy.int32))
        texts = pyarrow.StringArray.from_buffers(rows, offsets, digits)
        columns[name] = pyarrow.compute.if_else(missing(), none, texts)
    pyarrow.parquet.write_table(pyarrow.table(columns), path, compression="none", row_group_size=65536)


def forebay_batches(path: pathlib.Path, modulus: int, with_vocabularies: bool) -> Batches:
    import forebay

    numbers = [f'log1p(clamp(fill_null("{name}"), 0, 1000000)) AS "{name}"' for name in NUMBERS]
    sparse = {name: f'fill_null(positive_mod(hex_to_int("{name}"), {modulus}))' for name in STRINGS}
    if with_vocabularies:
        sparse = {name: f"categorify({call}, order => 'first_seen', start => 0)" for name, call in sparse.items()}
    columns = ["label", *numbers, *(f'{call} AS "{name}"' for name, call in sparse.items())]
    # The vocabularies are kept under the root, so another root fits them again.
    with tempfile.TemporaryDirectory() as root:
        session = forebay.Session(threads=1, root=root)
        session.sql(f"""
            CREATE EXTERNAL TABLE clicks STORED AS PARQUET LOCATION '{path}';
            CREATE PIPELINE features AS SELECT {', '.join(columns)} FROM clicks;
        """)
        yield from session.pipeline("features").load(batch_size=BATCH, format="numpy")


def batches_of(columns: dict) -> Batches:
    for first in range(0, len(columns["label"]), BATCH):
        yield {name: column[first : first + BATCH] for name, column in columns.items()}


def lambda_batches(path: pathlib.Path, modulus: int, with_vocabularies: bool) -> Batches:
    import math

    import pandas

    frame = pandas.read_parquet(path)
    for name in NUMBERS:
        filled = frame[name].fillna(0)
        frame[name] = filled.apply(lambda x: x if x > 0 else 0.0).apply(lambda x: math.log(x + 1)).astype("float32")
    for name in STRINGS:
        filled = frame[name].fillna("0")
        remainders = filled.apply(lambda x: int(x, 16)).apply(lambda x: x % modulus)
        if with_vocabularies:
            vocabulary: dict[int, int] = {}
            for remainder in remainders:
                vocabulary.setdefault(remainder, len(vocabulary))
            remainders = remainders.apply(lambda x: vocabulary[x])
        frame[name] = remainders
    yield from batches_of({name: frame[name].to_numpy() for name in frame.columns})


def vectorised_batches(path: pathlib.Path, modulus: int, with_vocabularies: bool) -> Batches:
    import numpy
    import pandas

    frame = pandas.read_parquet(path)
    columns = {"label": frame["label"].to_numpy()}
    for name in NUMBERS:
        columns[name] = numpy.log1p(frame[name].fillna(0).clip(lower=0).to_numpy())
    for name in STRINGS:
        texts = frame[name].fillna("0").to_numpy(dtype=object)
        remainders = numpy.fromiter((int(text, 16) for text in texts), dtype=numpy.int64, count=len(texts)) % modulus
        columns[name] = pandas.factorize(remainders)[0] if with_vocabularies else remainders
    yield from batches_of(columns)


PEERS = {"forebay": forebay_batches, "lambdas": lambda_batches, "vectorised": vectorised_batches}


def results(batches: Batches) -> tuple[list[str], list]:
    """Returns a digest of each column but the numbers, and the numbers."""
    import numpy

    digests = {name: hashlib.sha256() for name in ["label", *STRINGS]}
    numbers = []
    for batch in batches:
        for name, digest in digests.items():
            digest.update(numpy.ascontiguousarray(batch[name], dtype=numpy.int64))
        assert all(batch[name].dtype == numpy.float32 for name in NUMBERS)
        numbers.append(numpy.stack([batch[name] for name in NUMBERS]))
    return [digest.hexdigest() for digest in digests.values()], numpy.concatenate(numbers, axis=1)


def compare(path: pathlib.Path, modulus: int, with_vocabularies: bool) -> float:
    """Fails if the peers' results differ. Returns the greatest difference of numbers."""
    import numpy

    found = {peer: results(batches(path, modulus, with_vocabularies)) for peer, batches in PEERS.items()}
    expected, numbers = found["lambdas"]
    for peer, (digests, others) in found.items():
        assert digests == expected, f"{peer}: labels or strings differ from those of lambdas"
        difference = float(numpy.abs(others - numbers).max())
        assert difference <= TOLERANCE, f"{peer}: numbers differ by {difference}"
    return max(float(numpy.abs(others - numbers).max()) for _, others in found.values())


def one(peer: str, folder: pathlib.Path, modulus: int, with_vocabularies: bool) -> None:
    for _ in PEERS[peer](folder / "warm.parquet", modulus, with_vocabularies):
        pass
    began, rows = time.process_time(), 0
    for batch in PEERS[peer](folder / "clicks.parquet", modulus, with_vocabularies):
        rows += len(batch["label"])
    print((time.process_time() - began) / rows * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modulus", type=int, nargs="+", default=[8192, 1_000_000])
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    # Child processes inherit the core. NumPy's threads would spin beside the measured thread.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    if given.one:
        peer, folder, modulus, vocabularies = given.one
        return one(peer, pathlib.Path(folder), int(modulus), vocabularies == "vocabularies")
    with tempfile.TemporaryDirectory() as name:
        generate(pathlib.Path(name, "clicks.parquet"), given.rows, 17)
        generate(pathlib.Path(name, "warm.parquet"), min(given.rows, WARM_ROWS), 18)
        measurements = [("modulus", given.modulus[0]), *(("vocabularies", modulus) for modulus in given.modulus)]
        for kind, modulus in measurements:
            difference = compare(pathlib.Path(name, "clicks.parquet"), modulus, kind == "vocabularies")
            found = {peer: [] for peer in PEERS}
            for _ in range(given.rounds):
                for peer in PEERS:
                    command = [sys.executable, __file__, "--one", peer, name, str(modulus), kind]
                    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                    found[peer].append(float(done.stdout))
            line = {"bench": kind, "modulus": modulus, "difference": difference}
            line |= {f"{peer}_us_per_row": round(statistics.median(figures), 2) for peer, figures in found.items()}
            ours = found.pop("forebay")
            for peer, figures in found.items():
                line[f"{peer}_to_forebay"] = [round(theirs / us, 2) for theirs, us in zip(figures, ours)]
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
