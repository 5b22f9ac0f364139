"""Click logs to batches: Forebay and Polars in one run, on one core.

    python3.11 -m venv /tmp/peers && /tmp/peers/bin/pip install maturin numpy pyarrow polars
    VIRTUAL_ENV=/tmp/peers /tmp/peers/bin/maturin develop --release --manifest-path python/Cargo.toml
    /tmp/peers/bin/python benches/tables_peers.py

Linux only. Reads a generated table in the shape of Criteo's, from Parquet (snappy) in the page cache: 13 integers with
nulls, and 26 strings of 8 hexadecimal digits with nulls. Integers: fill nulls, clamp, log1p, float32. Strings:
hexadecimal to integer, modulus 1,000,000, int64. The result is batches of 4,096 rows with a NumPy array for each
column.

`vocabularies`: the strings through 26 given vocabularies of 10,000 entries instead of the modulus.
`no_op`: the time that a call of `clamp` that changes nothing adds over 1,000,000 rows, on top of reading them.

Each measurement is a fresh process. CPU is user and system time of the process after imports, over all rows. Prints one
JSON line for each: microseconds of CPU per row, medians of `--rounds`, and Forebay's ratio to its peer, round by round.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

INTEGERS = [f"I{index}" for index in range(1, 14)]
STRINGS = [f"C{index}" for index in range(1, 27)]
BATCH, ENTRIES = 4096, 10_000


def generate(folder: pathlib.Path, rows: int) -> None:
    import numpy
    import pyarrow
    import pyarrow.parquet

    random = numpy.random.default_rng(17)
    columns = {"label": random.integers(0, 2, rows)}
    for name in INTEGERS:
        values = numpy.floor(random.lognormal(2.0, 2.0, rows)).astype(numpy.int64) - 1
        columns[name] = pyarrow.array(values, mask=random.random(rows) < 0.2)
    for number, name in enumerate(STRINGS):
        values = random.zipf(1.2, rows) % (ENTRIES * (1 + number % 3))
        texts = numpy.char.mod("%08x", (values * 2654435761 + number * 97) & 0xFFFFFFFF)
        columns[name] = pyarrow.array(texts, mask=random.random(rows) < 0.05)
        first = numpy.char.mod("%08x", (numpy.arange(ENTRIES) * 2654435761 + number * 97) & 0xFFFFFFFF)
        (folder / f"{name}.txt").write_text("".join(f"{text}\n" for text in first))
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "clicks.parquet", compression="snappy", row_group_size=65536)


def forebay_batches(folder: pathlib.Path, query: str, format: str = "numpy") -> int:
    import forebay

    session = forebay.Session(threads=1)
    loader = session.sql(query, clicks=folder / "clicks.parquet").load(batch_size=BATCH, format=format)
    rows = 0
    for batch in loader:
        rows += batch.num_rows if format == "arrow" else len(batch["label"])
    return rows


def forebay_modulus(folder: pathlib.Path) -> int:
    dense = [f"log1p(CAST(clamp(fill_null({name}), 0, 1000000) AS REAL)) AS {name}" for name in map('"{}"'.format, INTEGERS)]
    sparse = [f'fill_null(positive_mod(hex_to_int("{name}"), 1000000)) AS "{name}"' for name in STRINGS]
    return forebay_batches(folder, f"SELECT label, {', '.join(dense + sparse)} FROM clicks")


def forebay_vocabularies(folder: pathlib.Path) -> int:
    dense = [f"log1p(CAST(clamp(fill_null({name}), 0, 1000000) AS REAL)) AS {name}" for name in map('"{}"'.format, INTEGERS)]
    sparse = [
        f"fill_null(vocab_apply(\"{name}\", '{folder / name}.txt', start => 1, other => 0)) AS \"{name}\"" for name in STRINGS
    ]
    return forebay_batches(folder, f"SELECT label, {', '.join(dense + sparse)} FROM clicks")


def forebay_read(folder: pathlib.Path) -> int:
    return forebay_batches(folder, 'SELECT label, "I1" FROM clicks', "arrow")


def forebay_no_op(folder: pathlib.Path) -> int:
    return forebay_batches(folder, 'SELECT label, clamp("I1", -9000000000, 9000000000) AS "I1" FROM clicks', "arrow")


def polars_batches(folder: pathlib.Path, sparse) -> int:
    import polars

    dense = [polars.col(name).fill_null(0).clip(0, 1_000_000).cast(polars.Float32).log1p() for name in INTEGERS]
    frame = polars.scan_parquet(folder / "clicks.parquet").select("label", *dense, *sparse).collect(engine="streaming")
    rows = 0
    for part in frame.iter_slices(BATCH):
        batch = {name: part[name].to_numpy() for name in part.columns}
        rows += len(batch["label"])
    return rows


def polars_modulus(folder: pathlib.Path) -> int:
    import polars

    return polars_batches(
        folder, [(polars.col(name).str.to_integer(base=16) % 1_000_000).fill_null(0) for name in STRINGS]
    )


def polars_vocabularies(folder: pathlib.Path) -> int:
    import polars

    sparse = []
    for name in STRINGS:
        entries = (folder / f"{name}.txt").read_text().split()
        sparse.append(
            polars.col(name).replace_strict(entries, list(range(1, len(entries) + 1)), default=0, return_dtype=polars.Int64)
        )
    return polars_batches(folder, sparse)


MEASUREMENTS = {
    "modulus": {"forebay": forebay_modulus, "polars": polars_modulus},
    "vocabularies": {"forebay": forebay_vocabularies, "polars": polars_vocabularies},
    "no_op": {"forebay": forebay_no_op, "read": forebay_read},
}


def one(measurement: str, peer: str, folder: pathlib.Path) -> None:
    function = MEASUREMENTS[measurement][peer]
    if peer == "polars":
        import polars  # noqa: F401
    else:
        import forebay  # noqa: F401
    function(folder)
    began = time.process_time()
    rows = function(folder)
    print((time.process_time() - began) / rows * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=MEASUREMENTS)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        measurement, peer, folder = given.one
        return one(measurement, peer, pathlib.Path(folder))
    # NumPy's threads would spin beside the measured process.
    environment = os.environ | {"POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name:
        generate(pathlib.Path(name), given.rows)
        for measurement, peers in MEASUREMENTS.items():
            if given.only not in (None, measurement):
                continue
            found = {peer: [] for peer in peers}
            for _ in range(given.rounds):
                for peer in peers:
                    command = [sys.executable, __file__, "--one", measurement, peer, name]
                    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
                    found[peer].append(float(done.stdout))
            medians = {f"{peer}_us_per_row": round(statistics.median(figures), 4) for peer, figures in found.items()}
            first, second = found.values()
            ratios = [round(one / other, 3) for one, other in zip(first, second)]
            print(json.dumps({"bench": measurement} | medians | {"ratios": ratios}), flush=True)


if __name__ == "__main__":
    main()
