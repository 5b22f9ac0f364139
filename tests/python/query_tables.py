"""Small tables that a seed draws, in files of several formats, with nulls, ties, repeated keys and empty texts."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from support import REPOSITORY

WORDS = ["", "red", "green", "Blue", "a,b", 'say "x"', "it's", "  two  ", "été", "zz\nz", "red"]
PICTURES = ["galaxies/025.jpg", "galaxies/011.jpg", "rocket/007.jpg", "astronaut/003.jpg"]


@dataclass(frozen=True)
class Table:
    """A table's rows, and how they are stored. Of some, a column names the row."""

    rows: pa.Table
    stored_as: str
    kinds: dict[str, str]
    key: tuple[str, ...] = ()
    declared: str = ""


def draw_tables(seed: int) -> dict[str, Table]:
    draw = random.Random(f"tables {seed}")

    def column(count: int, values: Sequence, nulls: float = 0.0) -> list:
        return [None if draw.random() < nulls else draw.choice(values) for _ in range(count)]

    eighths = [n / 8 for n in range(-400, 400)]
    days = [date(2024, 1, 1) + timedelta(n) for n in range(0, 500, 7)]
    large = {
        "id": range(2400),
        "k": column(2400, range(-5, 55), 0.05),
        "g": column(2400, WORDS, 0.1),
        "x": column(2400, eighths, 0.05),
        "price": [round(draw.random() * 100, 3) for _ in range(2400)],
        "n": column(2400, range(-10**10, 10**10)),
        "day": column(2400, days, 0.2),
        "ok": column(2400, [True, False], 0.1),
    }
    middle = {
        "k": column(900, range(60), 0.03),
        "t": column(900, WORDS[1:], 0.2),
        "m": column(900, range(-30, 30), 0.1),
        "y": column(900, eighths),
    }
    nested = {
        "id": range(500),
        "k": column(500, range(0, 90, 2), 0.1),
        "g": column(500, WORDS, 0.1),
        "x": column(500, eighths, 0.3),
        "ok": column(500, [True, False]),
    }
    small = {"k": column(40, range(-3, 30), 0.1), "name": column(40, WORDS, 0.1), "size": column(40, range(5))}
    return {
        "a": Table(
            pa.table(large),
            "PARQUET",
            dict(id="integer", k="integer", g="text", x="float", price="price", n="wide", day="date", ok="flag"),
            ("id",),
        ),
        "b": Table(
            pa.table(middle),
            "CSV",
            dict(k="integer", t="text", m="integer", y="float"),
            declared=" (k BIGINT, t VARCHAR, m BIGINT, y DOUBLE)",
        ),
        "c": Table(pa.table(nested), "JSONL", dict(id="integer", k="integer", g="text", x="float", ok="flag"), ("id",)),
        "d": Table(pa.table(small), "PARQUET", dict(k="integer", name="text", size="integer")),
        "pictures": Table(pictures(), "MEDIA", dict(path="text", size="integer", bytes="image"), ("path",)),
    }


def pictures() -> pa.Table:
    files = [(REPOSITORY / "examples/photos" / name).read_bytes() for name in PICTURES]
    paths = [f"{number}.jpg" for number in range(len(files))]
    return pa.table({"path": paths, "size": [len(file) for file in files], "bytes": files})


def write_tables(folder: Path, tables: dict[str, Table]) -> None:
    for name, table in tables.items():
        (folder / name).mkdir()
        WRITERS[table.stored_as](folder / name, table.rows)


def create_tables(folder: Path, tables: dict[str, Table], queries: str) -> str:
    """The statements that create the tables that queries read."""
    return "".join(
        f"CREATE EXTERNAL TABLE {name}{table.declared} STORED AS {table.stored_as} LOCATION '{folder / name}';\n"
        for name, table in tables.items()
        if re.search(rf"(FROM|JOIN) {name}\b", queries)
    )


def parts(rows: pa.Table, count: int = 3) -> Iterator[pa.Table]:
    size = -(-rows.num_rows // count)
    return (rows.slice(first, size) for first in range(0, rows.num_rows, size))


def write_parquet(folder: Path, rows: pa.Table) -> None:
    for number, part in enumerate(parts(rows)):
        pq.write_table(part, folder / f"{number}.parquet", row_group_size=300)


def write_csv(folder: Path, rows: pa.Table) -> None:
    for number, part in enumerate(parts(rows)):
        pa.csv.write_csv(part, folder / f"{number}.csv")


def write_jsonl(folder: Path, rows: pa.Table) -> None:
    """Writes some nulls as fields, and leaves out the others."""
    for number, part in enumerate(parts(rows)):
        shown = [
            {name: value for name, value in row.items() if value is not None or row["id"] % 2}
            for row in part.to_pylist()
        ]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in shown))


def write_media(folder: Path, rows: pa.Table) -> None:
    for row in rows.to_pylist():
        (folder / row["path"]).write_bytes(row["bytes"])


WRITERS = {"PARQUET": write_parquet, "CSV": write_csv, "JSONL": write_jsonl, "MEDIA": write_media}
