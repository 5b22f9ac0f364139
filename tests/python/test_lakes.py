"""Folders as lakes have them: files that pyarrow wrote over the years, in folders that name values.

What a feed delivers is compared with what pyarrow reads from each file, value by value.
"""

import datetime
import json
import random
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support import read

# Each column with the types that it has in one file or another.
COLUMNS = {
    "id": [pa.int16(), pa.int32(), pa.int64(), pa.uint8()],
    "price": [pa.float32(), pa.float64()],
    "name": [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    "at": [pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us")],
    "place": [pa.struct({"x": pa.int32()}), pa.struct({"y": pa.float64(), "x": pa.int64()})],
    "days": [pa.list_(pa.int8()), pa.list_(pa.int64())],
}


def value(name: str, draw: random.Random) -> Any:
    if draw.random() < 0.2:
        return None
    number = draw.randrange(100)
    return {
        "id": number,
        "price": number / 4,
        "name": f"name {number}",
        "at": datetime.datetime(2026, 1, 1) + datetime.timedelta(seconds=number),
        "place": {"x": number},
        "days": [number, None],
    }[name]


def write_file(path: Path, draw: random.Random) -> pa.Table:
    names = [name for name in COLUMNS if name == "id" or draw.random() < 0.7]
    draw.shuffle(names)
    rows = draw.randrange(1, 60)
    columns = {
        name: pa.array([value(name, draw) for _ in range(rows)], pa.string()).cast(data_type)
        if pa.types.is_dictionary(data_type)
        else pa.array([value(name, draw) for _ in range(rows)], data_type)
        for name in names
        for data_type in [draw.choice(COLUMNS[name])]
    }
    table = pa.table(columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        table,
        path,
        row_group_size=draw.choice([7, 1000]),
        compression=draw.choice(["none", "snappy", "zstd"]),
        use_dictionary=draw.random() < 0.5,
        write_page_index=draw.random() < 0.5,
    )
    return pq.read_table(path, partitioning=None)


def padded(name: str, values: list[Any], wide: bool) -> list[Any]:
    """The values with the further field of the structs, if any file has it."""
    if name != "place" or not wide:
        return values
    return [value and {"x": value["x"], "y": value.get("y")} for value in values]


@pytest.mark.parametrize("seed", range(4))
def test_a_lake_of_many_years_is_read_as_pyarrow_reads_each_file(serve, tmp_path, seed):
    draw = random.Random(seed)
    expected: dict[str, list[Any]] = {}
    folders = [
        (day, country)
        for day in range(1, draw.randrange(3, 6))
        for country in draw.sample(["ch", "a/b c", "__HIVE_DEFAULT_PARTITION__"], 2)
    ]
    paths = {
        tmp_path / f"lake/dt=2026-01-{day:02}/country={quote(country, safe='')}/{day}.parquet": (day, country)
        for day, country in folders
    }
    tables = {path: write_file(path, draw) for path in sorted(paths, key=str)}
    names = [name for name in COLUMNS if any(name in table.column_names for table in tables.values())]
    places = [table["place"].type for table in tables.values() if "place" in table.column_names]
    wide = any(place.num_fields == 2 for place in places)
    for path, table in tables.items():
        day, country = paths[path]
        for name in names:
            values = table[name].to_pylist() if name in table.column_names else [None] * table.num_rows
            expected.setdefault(name, []).extend(padded(name, values, wide))
        country = None if country.startswith("__") else country
        expected.setdefault("dt", []).extend([datetime.date(2026, 1, day)] * table.num_rows)
        expected.setdefault("country", []).extend([country] * table.num_rows)
    _, client = serve(f"""
        CREATE EXTERNAL TABLE lake STORED AS PARQUET LOCATION 'lake';
        CREATE PIPELINE lake WITH (batch_size = 16) AS SELECT {", ".join(names)}, dt, country FROM lake;
    """)
    delivered = pa.Table.from_batches([batch.records for batch in read(client, pipeline="lake")])
    for name, values in expected.items():
        assert delivered[name].to_pylist() == values, (seed, name)


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
