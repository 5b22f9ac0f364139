"""The 22 queries of TPC-H: Forebay gives DuckDB's rows, as queries and as pipelines, and the same samples however the
stages run."""

import json
import math
import re
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest

import tpch
from test_stages import lines, run
from test_whole_tables import rows_of

SEED = 22
SCALE = 0.01

SETTINGS = {
    "1": ("--threads", "1"),
    "2": ("--threads", "2"),
    "4": ("--threads", "4"),
    "16MiB": ("--batch-memory-limit", "16MiB"),
    # Here q18 spills.
    "4MiB": ("--threads", "4", "--batch-memory-limit", "4MiB"),
}
"""How stages run; each has a root of its own."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tpch")
    print(f"seed {SEED}")
    tpch.write(folder, SCALE, SEED)
    # One script with all of them takes longer at each start: Forebay checks every pipeline of a script.
    for name, query in tpch.QUERIES.items():
        (folder / f"{name}.sql").write_text(f"{tpch.SCRIPT}\n\nCREATE PIPELINE {name} AS\n{query};\n")
    return folder


@pytest.fixture(scope="module")
def expected(folder) -> dict[str, list[dict]]:
    """DuckDB's rows of each query. Each has rows, and no query adds up nothing."""
    with duckdb.connect() as connection:
        for table in tpch.TABLES:
            connection.execute(f"CREATE VIEW {table} AS SELECT * FROM '{folder}/{table}/*.parquet'")
        expected = {}
        for name, query in tpch.QUERIES.items():
            result = connection.execute(query)
            columns = [column[0] for column in result.description]
            rows = expected[name] = [dict(zip(columns, row)) for row in result.fetchall()]
            assert rows and all(value is not None for row in rows for value in row.values()), (name, rows[:5])
        return expected


def is_same(actual, expected) -> bool:
    if isinstance(expected, Decimal):
        return Decimal(actual) == expected
    if isinstance(expected, float):
        # Forebay's average of decimals has four digits more than they have, and is cut off there.
        return math.isclose(float(actual), expected, rel_tol=1e-9, abs_tol=1e-6)
    return str(actual) == str(expected)


def check(actual: list[dict], expected: list[dict], query: str) -> None:
    """Compares the rows: those that ORDER BY leaves in any order, without an order."""
    order = re.search(r"\nORDER BY (.*)(\nLIMIT|$)", query)
    keys = [key.split()[0] for key in order[1].split(", ")] if order else []
    exact = [column for column, value in expected[0].items() if not isinstance(value, float)]

    def values(row: dict, columns: list[str]) -> list[str]:
        return [str(row[column]) for column in columns]

    assert [values(row, keys) for row in actual] == [values(row, keys) for row in expected]
    by_value = [sorted(rows, key=lambda row: values(row, exact)) for rows in (actual, expected)]
    for one, other in zip(*by_value, strict=True):
        assert one.keys() == other.keys() and all(is_same(one[name], other[name]) for name in other), (one, other)


def output(folder: Path, command: str, name: str, setting: str, *options: str) -> list[dict]:
    flags = ["--root", f"root-{setting}", "--output", "json", *SETTINGS[setting], *options]
    return lines(run(command, f"{name}.sql", *flags, folder=folder))


@pytest.mark.parametrize("name", tpch.QUERIES)
def test_rows_are_those_of_duckdb(folder, expected, name):
    query = tpch.QUERIES[name]
    check(rows_of(folder, query), expected[name], query)
    output(folder, "materialize", name, "2", "--to", name, "--format", "jsonl")
    files = sorted((folder / name).glob("*.jsonl"))
    samples = [json.loads(line, parse_float=Decimal) for path in files for line in path.read_text().splitlines()]
    check(samples, expected[name], query)


@pytest.mark.parametrize("name", tpch.QUERIES)
def test_samples_are_the_same_however_the_stages_run(folder, name):
    made = {}
    for setting in SETTINGS:
        [*batches, last] = output(folder, "run", name, setting)
        # The feed's id follows from the digests of the stages' rows.
        made[setting] = (last["feed"], [batch["digest"] for batch in batches])
    assert all(other == made["1"] for other in made.values()), made
