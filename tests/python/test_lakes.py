"""Folders as lakes have them: files that many writers wrote over the years, in folders that name values.

What a feed delivers is compared with what DuckDB reads from the folder and with what pyarrow reads from each file,
value by value, in order and shuffled. Where DuckDB unifies files differently, the reference is pyarrow alone.
"""

import datetime
import json
import os
import random
import subprocess
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import fastparquet
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support import binary, environment, read

# For other lakes than those of every run.
SEEDS = [int(os.environ["FOREBAY_SEED"])] if os.environ.get("FOREBAY_SEED") else range(12)
ROWS_MAX = 60
UTC = datetime.timezone.utc

# Each column with the types that it has in one file or another.
COLUMNS: dict[str, list[pa.DataType]] = {
    "id": [pa.int16(), pa.int32(), pa.int64(), pa.uint8()],
    "price": [pa.float32(), pa.float64()],
    "name": [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    "at": [pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns")],
    "seen": [pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")],
    "cost": [pa.decimal128(12, 3)],
    "day": [pa.date32()],
    "flag": [pa.bool_()],
    "raw": [pa.binary(), pa.large_binary(), pa.binary_view()],
    "big": [pa.uint64()],
    "place": [pa.struct({"x": pa.int32(), "y": pa.float64()}), pa.struct({"y": pa.float64(), "x": pa.int64()})],
    "days": [pa.list_(pa.int8()), pa.list_(pa.int64())],
}
# fastparquet writes these as they are.
OF_FASTPARQUET = ["id", "price", "name", "at", "flag", "big"]


def value(name: str, draw: random.Random) -> Any:
    if draw.random() < 0.2:
        return None
    number = draw.randrange(100)
    at = datetime.datetime(2026, 1, 1) + datetime.timedelta(seconds=number)
    return {
        "id": number,
        "price": number / 4,
        "name": f"name {number}" if number else "",
        "at": at,
        "seen": at.replace(tzinfo=UTC),
        "cost": Decimal(number - 50) / 8,
        "day": at.date() - datetime.timedelta(days=number * 200),
        "flag": number % 2 == 0,
        "raw": bytes([number, 0, 255]),
        "big": 2**64 - 1 - number,
        "place": {"x": number, "y": None if number % 7 == 0 else number / 2},
        "days": [] if number % 5 == 0 else [number, None],
    }[name]


def column(name: str, data_type: pa.DataType, rows: int, draw: random.Random) -> pa.Array:
    values = [value(name, draw) for _ in range(rows)]
    if pa.types.is_dictionary(data_type):
        return pa.array(values, pa.string()).cast(data_type)
    return pa.array(values, data_type)


def write_with_pyarrow(table: pa.Table, path: Path, draw: random.Random):
    pq.write_table(
        table,
        path,
        row_group_size=draw.choice([7, 1000]),
        compression=draw.choice(["none", "snappy", "zstd", "gzip", "lz4"]),
        use_dictionary=draw.random() < 0.5,
        write_page_index=draw.random() < 0.5,
        data_page_version=draw.choice(["1.0", "2.0"]),
        data_page_size=draw.choice([64, 1 << 20]),
        write_batch_size=draw.choice([3, 1024]),
        version=draw.choice(["2.4", "2.6"]),
        store_schema=draw.random() < 0.5,
    )


def write_with_polars(table: pa.Table, path: Path, draw: random.Random):
    frame = polars.from_arrow(table)
    assert isinstance(frame, polars.DataFrame)
    frame.write_parquet(
        path,
        compression=draw.choice(["uncompressed", "snappy", "zstd"]),
        row_group_size=draw.choice([7, 1000]),
        statistics=draw.random() < 0.5,
    )


def write_with_duckdb(table: pa.Table, path: Path, draw: random.Random):
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", table)
        compression, version = draw.choice(["snappy", "zstd", "uncompressed"]), draw.choice(["V1", "V2"])
        options = f"FORMAT parquet, COMPRESSION {compression}, PARQUET_VERSION {version}"
        connection.execute(f"COPY rows TO '{path}' ({options})")


def write_with_fastparquet(table: pa.Table, path: Path, draw: random.Random):
    plain = pa.table({name: table[name].cast(plain_type(table[name].type)) for name in table.column_names})
    types = {pa.int64(): "Int64", pa.uint64(): "UInt64", pa.bool_(): "boolean"}
    frame = plain.to_pandas(integer_object_nulls=True).astype(
        {name: types[plain[name].type] for name in plain.column_names if plain[name].type in types}
    )
    encodings = {name: "utf8" for name in plain.column_names if name == "name"}
    fastparquet.write(
        str(path), frame, compression=draw.choice(["SNAPPY", "GZIP", "UNCOMPRESSED"]), object_encoding=encodings
    )


def plain_type(data_type: pa.DataType) -> pa.DataType:
    """What pandas has of a type."""
    if pa.types.is_dictionary(data_type) or pa.types.is_string_view(data_type) or pa.types.is_large_string(data_type):
        return pa.string()
    is_small = pa.types.is_integer(data_type) and data_type != pa.uint64()
    return pa.int64() if is_small else pa.timestamp("us") if pa.types.is_timestamp(data_type) else data_type


WRITERS = {
    "pyarrow": write_with_pyarrow,
    "polars": write_with_polars,
    "duckdb": write_with_duckdb,
    "fastparquet": write_with_fastparquet,
}


def write_file(path: Path, draw: random.Random):
    writer = draw.choice(list(WRITERS))
    known = OF_FASTPARQUET if writer == "fastparquet" else list(COLUMNS)
    names = [name for name in known if name == "id" or draw.random() < 0.7]
    draw.shuffle(names)
    rows = draw.randrange(1, ROWS_MAX)
    table = pa.table({name: column(name, draw.choice(COLUMNS[name]), rows, draw) for name in names})
    path.parent.mkdir(parents=True, exist_ok=True)
    WRITERS[writer](table, path, draw)


def write_lake(folder: Path, draw: random.Random):
    for day in range(1, draw.randrange(3, 6)):
        for country in draw.sample(["ch", "a/b c", "__HIVE_DEFAULT_PARTITION__"], 2):
            for part in range(draw.randrange(1, 3)):
                write_file(folder / f"dt=2026-01-{day:02}/country={quote(country, safe='')}/{part}.parquet", draw)


def of_duckdb(folder: Path, query: str) -> list[tuple]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(
            f"CREATE VIEW lake AS SELECT * FROM read_parquet('{folder}/**/*.parquet', union_by_name = true, "
            "hive_partitioning = true, filename = true, file_row_number = true)"
        )
        return rows(connection.sql(query).to_arrow_table())


def of_pyarrow(folder: Path, names: list[str]) -> list[tuple]:
    """The rows of each file, without columns of folders, and null in columns that it lacks."""
    found = []
    for file in sorted(folder.rglob("*.parquet"), key=str):
        table = pq.ParquetFile(file).read()
        nulls = [None] * table.num_rows
        columns = [cells(table[name]) if name in table.column_names else nulls for name in names]
        found += zip(*columns, [file.relative_to(folder).as_posix()] * table.num_rows, strict=True)
    return found


def cells(column: pa.ChunkedArray) -> list[Any]:
    return [comparable(cell) for cell in plain(column).to_pylist()]


def comparable(cell: Any) -> Any:
    """A value that equals another one that is equal, of whatever unit or order of fields, and can be counted."""
    match cell:
        case dict():
            return tuple(sorted((name, comparable(part)) for name, part in cell.items()))
        case list():
            return tuple(map(comparable, cell))
        case datetime.datetime():
            return cell.astimezone(UTC).isoformat() if cell.tzinfo else cell.isoformat()
        case _:
            return cell


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Without nanoseconds, which Python's times have not."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz))
    return column


def rows(table: pa.Table) -> list[tuple]:
    return list(zip(*map(cells, table.columns), strict=True))


def delivered(client, pipeline: str) -> list[tuple]:
    return rows(pa.Table.from_batches([batch.records for batch in read(client, pipeline=pipeline)]))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lake_of_many_writers_is_read_as_duckdb_reads_it(serve, tmp_path, seed):
    draw = random.Random(seed)
    write_lake(tmp_path / "lake", draw)
    there = {name for file in (tmp_path / "lake").rglob("*.parquet") for name in pq.read_schema(file).names}
    in_files = [name for name in COLUMNS if name in there]
    names = ", ".join(f'"{name}"' for name in [*in_files, "dt", "country"])
    conditions = ["id < 50", "dt >= DATE '2026-01-02'", "country = 'ch'", "country IS NULL", "id IN (3, 7, 70)"]
    where = " AND ".join(draw.sample(conditions, 2))
    _, client = serve(f"""
        CREATE EXTERNAL TABLE lake STORED AS PARQUET LOCATION 'lake' OPTIONS ('path_column' 'file');
        CREATE PIPELINE ordered WITH (batch_size = 16) AS SELECT {names}, file FROM lake;
        CREATE PIPELINE shuffled WITH (batch_size = 16, shuffle = true, seed = {seed}, window_rows = 50)
            AS SELECT {names}, file FROM lake;
        CREATE PIPELINE some WITH (batch_size = 16) AS SELECT {names}, file FROM lake WHERE {where};
    """)
    select = f"SELECT {names}, filename[{len(str(tmp_path / 'lake')) + 2}:] AS file FROM lake"
    order = "ORDER BY filename, file_row_number"
    expected = of_duckdb(tmp_path / "lake", f"{select} {order}")
    assert expected, f"seed {seed}"
    for number, (ours, theirs) in enumerate(zip(delivered(client, "ordered"), expected, strict=True)):
        assert ours == theirs, f"seed {seed}, row {number}"
    # Without the two columns before the path.
    without_folders = [(*row[:-3], row[-1]) for row in expected]
    assert without_folders == of_pyarrow(tmp_path / "lake", in_files), f"seed {seed}"
    assert Counter(delivered(client, "shuffled")) == Counter(expected), f"seed {seed}"
    expected = of_duckdb(tmp_path / "lake", f"{select} WHERE {where} {order}")
    if expected:
        assert delivered(client, "some") == expected, f"seed {seed}, WHERE {where}"


def test_structs_with_further_fields_are_read_as_pyarrow_reads_each_file(serve, tmp_path):
    # Some of what only Forebay unifies: DuckDB reads the second file's `y`, but takes other names or refuses others.
    tables = [
        pa.table({"place": pa.array([{"x": 1}, None], pa.struct({"x": pa.int32()}))}),
        pa.table({"place": pa.array([{"y": 0.5, "x": 2}], pa.struct({"y": pa.float64(), "x": pa.int64()}))}),
    ]
    (tmp_path / "lake").mkdir()
    for number, table in enumerate(tables):
        pq.write_table(table, tmp_path / f"lake/{number}.parquet")
    _, client = serve("""
        CREATE EXTERNAL TABLE lake STORED AS PARQUET LOCATION 'lake';
        CREATE PIPELINE lake AS SELECT place FROM lake;
    """)
    read_alone = [cell for table in tables for cell in table["place"].to_pylist()]
    padded = [cell and {"x": cell["x"], "y": cell.get("y")} for cell in read_alone]
    found = pa.Table.from_batches([batch.records for batch in read(client, pipeline="lake")])
    assert found["place"].to_pylist() == padded


@pytest.mark.parametrize("column", ["INTERVAL 1 MONTH AS part", "{'part': [INTERVAL 2 DAYS]} AS part"])
def test_intervals_whose_months_would_be_lost_are_refused(tmp_path, column):
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT 1 AS id, {column}) TO '{tmp_path}/t.parquet' (FORMAT parquet)")
    script = tmp_path / "script.sql"
    script.write_text(
        "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 't.parquet'; CREATE PIPELINE p AS SELECT id FROM t;"
    )
    ended = subprocess.run([binary(), "explain", script], env=environment(), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2, ended.stderr
    assert 't.parquet" has intervals of months, days and milliseconds in column "part' in ended.stderr
    assert "hint: write the column as a number" in ended.stderr


def test_a_field_of_one_late_record_is_delivered(serve, tmp_path):
    records = [json.dumps({"n": n}) for n in range(3000)] + [json.dumps({"n": 3000, "late": {"x": 1.5}})]
    (tmp_path / "rows.jsonl").write_text("\n".join(records))
    _, client = serve("""
        CREATE EXTERNAL TABLE rows STORED AS JSONL LOCATION 'rows.jsonl';
        CREATE PIPELINE rows AS SELECT n, late['x'] AS late FROM rows;
    """)
    delivered = pa.Table.from_batches([batch.records for batch in read(client, pipeline="rows")])
    assert delivered["n"].to_pylist() == list(range(3001))
    assert delivered["late"].to_pylist() == [None] * 3000 + [1.5]
