"""Queries over whole tables, compared with DataFusion, DuckDB and Polars on the same machine with as many threads.

    python3.11 -m venv /tmp/peers && /tmp/peers/bin/pip install maturin pyarrow polars duckdb 'datafusion==55.*' psutil
    VIRTUAL_ENV=/tmp/peers /tmp/peers/bin/maturin develop --release --manifest-path python/Cargo.toml
    /tmp/peers/bin/python benches/whole_tables.py [tpch] [vocabularies] [opening]

Linux only. Measurements:

- `tpch`: the 22 queries of TPC-H at `--scale`, by plain DataFusion, by Forebay as queries, and by Forebay as stages,
  whose rows have an order, have sums that do not depend on it, and are written to files. Each engine runs all queries
  in one process, best of `--rounds`.
- `vocabularies`: fits a vocabulary to each of 26 columns of `--rows` rows in Criteo's shape, and writes the ids of all
  rows to Parquet. Seconds and peak memory of a process; DuckDB and Polars do the same in the fewest steps.
- `opening`: opens a feed whose stages are kept, and one without stages.

Prints one JSON line per measurement, then a table.
"""

import argparse
import json
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from processes import ROOT, table

sys.path.insert(0, str(ROOT / "tests/python"))
SEED = 22
THREADS = 2
COLUMNS = [f"C{number}" for number in range(1, 27)]


def peers(measurement: str, engine: str, folder: pathlib.Path, rounds: int) -> dict:
    """The figures of one engine, from a process of its own."""
    command = [sys.executable, __file__, "--one", measurement, engine, str(folder), "--rounds", str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def best(run, rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        began = time.monotonic()
        run()
        seconds.append(time.monotonic() - began)
    return min(seconds)


# ---------------------------------------------------------------------------------------------------------- tpch


def queries() -> dict[str, str]:
    """TPC-H's, and the first of them with floats."""
    import tpch

    floats = ", ".join(f"CAST({name} AS DOUBLE) AS {name}" for name in ("l_quantity", "l_extendedprice", "l_discount", "l_tax"))
    lines = f"(SELECT l_returnflag, l_linestatus, l_shipdate, {floats} FROM lineitem) AS lines"
    return tpch.QUERIES | {"q1 of floats": tpch.QUERIES["q1"].replace("FROM lineitem", f"FROM {lines}")}


def tpch_datafusion(folder: pathlib.Path, rounds: int) -> dict:
    import datafusion

    import tpch

    context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(THREADS))
    for name in tpch.TABLES:
        context.register_parquet(name, str(folder / name))
    return {name: best(lambda: context.sql(query).collect(), rounds) for name, query in queries().items()}


def tpch_queries(folder: pathlib.Path, rounds: int) -> dict:
    import forebay

    import tpch

    session = forebay.Session(threads=THREADS, base=folder, root=folder / "root")
    session.sql(tpch.SCRIPT)
    return {name: best(lambda: session.sql(query).to_arrow(), rounds) for name, query in queries().items()}


def tpch_stages(folder: pathlib.Path, rounds: int) -> dict:
    import forebay

    import tpch

    root = folder / "root-stages"

    def run(query: str) -> float:
        shutil.rmtree(root, ignore_errors=True)
        session = forebay.Session(threads=THREADS, base=folder, root=root)
        session.sql(f"{tpch.SCRIPT}\nCREATE PIPELINE p AS {query};")
        began = time.monotonic()
        try:
            list(session.pipeline("p").load(batch_size=1000))
        except forebay.InvalidError as error:
            # A small scale has no rows for some queries.
            assert "gave no rows" in str(error), error
        return time.monotonic() - began

    return {name: min(run(query) for _ in range(rounds)) for name, query in queries().items()}


def tpch(given) -> list[dict]:
    import tpch as tables

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tables.write(folder, given.scale, SEED)
        seconds = {engine: peers("tpch", engine, folder, given.rounds) for engine in ("datafusion", "queries", "stages")}
    plain = seconds["datafusion"]
    figures = []
    for query in [*plain, "all"]:
        took = {
            engine: sum(of[name] for name in tables.QUERIES) if query == "all" else of[query]
            for engine, of in seconds.items()
        }
        ratios = {f"{engine} / datafusion": round(took[engine] / took["datafusion"], 2) for engine in ("queries", "stages")}
        figures.append({"measurement": "tpch", "query": query} | {name: round(s, 3) for name, s in took.items()} | ratios)
        print(json.dumps(figures[-1]), flush=True)
    return figures


# -------------------------------------------------------------------------------------------------- vocabularies


def generate(folder: pathlib.Path, rows: int) -> None:
    """Texts of eight hexadecimal digits: some are frequent, and most are rare."""
    import numpy
    import pyarrow
    import pyarrow.parquet

    random = numpy.random.default_rng(SEED)
    per_file = 1_000_000
    (folder / "clicks").mkdir()
    for number in range(-(-rows // per_file)):
        count = min(per_file, rows - number * per_file)
        columns = {}
        for at, name in enumerate(COLUMNS):
            values = random.zipf(1.2, count) % (1_000 << (at % 11))
            texts = numpy.char.mod("%08x", (values * 2654435761 + at * 97) & 0xFFFFFFFF)
            columns[name] = pyarrow.array(texts, mask=random.random(count) < 0.05)
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"clicks/{number:03}.parquet", row_group_size=65536)


def vocabularies_forebay(folder: pathlib.Path) -> None:
    columns = ", ".join(f'fill_null(categorify("{name}")) AS "{name}"' for name in COLUMNS)
    script = folder / "clicks.sql"
    script.write_text(
        "CREATE EXTERNAL TABLE clicks STORED AS PARQUET LOCATION 'clicks';\n"
        f"MATERIALIZE (SELECT {columns} FROM clicks) TO 'forebay' WITH (format = 'parquet');"
    )
    import forebay

    session = forebay.Session(threads=THREADS, base=folder, root=folder / "root")
    session.sql(script.read_text())


def vocabularies_duckdb(folder: pathlib.Path) -> None:
    import duckdb

    connection = duckdb.connect(config={"threads": THREADS})
    connection.execute(f"CREATE VIEW clicks AS SELECT * FROM '{folder}/clicks/*.parquet'")
    for name in COLUMNS:
        connection.execute(
            f"CREATE TABLE v_{name} AS SELECT {name} AS entry, row_number() OVER (ORDER BY count(*) DESC, {name}) AS id "
            f"FROM clicks WHERE {name} IS NOT NULL GROUP BY {name}"
        )
    joins = " ".join(f"LEFT JOIN v_{name} ON clicks.{name} = v_{name}.entry" for name in COLUMNS)
    columns = ", ".join(f"coalesce(v_{name}.id, 0) AS {name}" for name in COLUMNS)
    # Without the rows' order, which would cost more.
    connection.execute("SET preserve_insertion_order = false")
    connection.execute(f"COPY (SELECT {columns} FROM clicks {joins}) TO '{folder}/duckdb.parquet'")


def vocabularies_polars(folder: pathlib.Path) -> None:
    import polars

    clicks = polars.scan_parquet(folder / "clicks/*.parquet")
    entries = [
        clicks.select(polars.col(name).drop_nulls().alias("entry"))
        .group_by("entry")
        .len()
        .sort(["len", "entry"], descending=[True, False])
        for name in COLUMNS
    ]
    ids = clicks
    for name, of_column in zip(COLUMNS, polars.collect_all(entries, engine="streaming")):
        numbered = of_column.lazy().select(polars.col("entry").alias(name)).with_row_index(f"id_{name}", 1)
        ids = ids.join(numbered, on=name, how="left", maintain_order="left")
    ids.select(polars.col(f"id_{name}").fill_null(0).cast(polars.Int64).alias(name) for name in COLUMNS).sink_parquet(
        folder / "polars.parquet"
    )


def vocabularies(given) -> list[dict]:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        generate(folder, given.rows)
        took = {engine: peers("vocabularies", engine, folder, 1) for engine in ("forebay", "duckdb", "polars")}
        check_ids(folder, given.rows)
    figure = {"measurement": "vocabularies", "rows": given.rows}
    for engine, of in took.items():
        figure |= {engine: round(of["seconds"], 1), f"{engine} peak GB": round(of["peak_bytes"] / 1e9, 2)}
    others = min(took[engine]["seconds"] for engine in ("duckdb", "polars"))
    figure["forebay / the faster one"] = round(took["forebay"]["seconds"] / others, 2)
    print(json.dumps(figure), flush=True)
    return [figure]


def check_ids(folder: pathlib.Path, rows: int) -> None:
    """The ids of all engines are the same."""
    import duckdb

    sums = ", ".join(f"sum({name} * (1 + {name} % 7))::HUGEINT" for name in COLUMNS)
    found = {
        engine: duckdb.sql(f"SELECT count(*), {sums} FROM '{folder}/{files}'").fetchall()[0]
        for engine, files in (("forebay", "forebay/*.parquet"), ("duckdb", "duckdb.parquet"), ("polars", "polars.parquet"))
    }
    assert found["forebay"] == found["duckdb"] == found["polars"] and found["forebay"][0] == rows, found


# ------------------------------------------------------------------------------------------------------- opening


def opening(given) -> list[dict]:
    import forebay

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        rows = "\n".join(json.dumps({"n": n, "site": n % 50}) for n in range(100_000))
        (folder / "clicks.jsonl").write_text(rows)
        clicks = "CREATE EXTERNAL TABLE clicks STORED AS JSONL LOCATION 'clicks.jsonl';"
        seconds = {}
        for kind, query in {
            "without stages": "SELECT n FROM clicks",
            "with stages": "SELECT standardize(n) AS n, c FROM clicks JOIN (SELECT site, count(*) AS c FROM clicks GROUP BY "
            "site) s ON clicks.site = s.site",
        }.items():

            def first_batch() -> float:
                session = forebay.Session(threads=THREADS, base=folder, root=folder / "root")
                session.sql(f"{clicks} CREATE PIPELINE p AS {query};")
                began = time.monotonic()
                next(iter(session.pipeline("p").load(batch_size=10)))
                return time.monotonic() - began

            first_batch()
            seconds[kind] = statistics.median(first_batch() for _ in range(10 * given.rounds))
    figure = {"measurement": "opening"} | {f"{kind}, ms": round(took * 1000, 1) for kind, took in seconds.items()}
    print(json.dumps(figure), flush=True)
    return [figure]


MEASUREMENTS = {"tpch": tpch, "vocabularies": vocabularies, "opening": opening}


def one(measurement: str, engine: str, folder: pathlib.Path, rounds: int) -> dict:
    function = globals()[f"{measurement}_{engine}"]
    if measurement == "tpch":
        return function(folder, rounds)
    began = time.monotonic()
    function(folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": time.monotonic() - began, "peak_bytes": peak}


def main():
    parser = argparse.ArgumentParser(description="See this file's beginning.")
    parser.add_argument("measurements", nargs="*", help=f"of {', '.join(MEASUREMENTS)}; all by default")
    parser.add_argument("--scale", type=float, default=1.0, help="scale of TPC-H")
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of `vocabularies`")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        measurement, engine, folder = given.one
        print(json.dumps(one(measurement, engine, pathlib.Path(folder), given.rounds)))
        return
    for name in given.measurements or MEASUREMENTS:
        table(MEASUREMENTS[name](given))


if __name__ == "__main__":
    main()
