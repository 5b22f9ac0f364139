"""Bytes and requests that reading Parquet from a store takes, counted by the store."""

import json
import subprocess
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counting_bucket import CountingBucket
from support import binary, environment

ROWS = 300_000
# The bytes at a file's end that are read to find the footer.
TAIL = 64 << 10
# Each layout: pyarrow's options, and the most requests of an epoch in order and of a shuffled one.
LAYOUTS = {
    "one row group without an index": ({}, 12, 12),
    "one row group with an index": ({"write_page_index": True}, 40, 120),
    "an index whose pages never begin together": ({"write_page_index": True, "max_rows_per_page": 1 << 30}, 60, 140),
    "an index without dictionaries": ({"write_page_index": True, "use_dictionary": False}, 40, 140),
    "small row groups": ({"write_page_index": True, "row_group_size": 25_000}, 40, 140),
}


def lake():
    """Columns of several widths: few values and many, plain and dictionary-encoded. Printed: the seed."""
    seed = 20
    print("seed", seed)
    random = np.random.default_rng(seed)
    return pa.table(
        {
            "id": np.arange(ROWS),
            "x": random.normal(size=ROWS),
            "label": random.integers(0, 1000, ROWS).astype("i4"),
            "kind": [f"kind {kind}" for kind in random.integers(0, 50, ROWS)],
            "text": [f"text number {number}" for number in random.integers(0, 10**9, ROWS)],
            "day": pa.array(np.arange(ROWS, dtype="i4") // 100).cast(pa.date32()),
        }
    )


class Epoch(NamedTuple):
    samples: int
    digest: list
    bytes: int
    requests: int


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bucket")
    rows = lake()
    for number, (options, _, _) in enumerate(LAYOUTS.values()):
        pq.write_table(rows, folder / f"{number}.parquet", **options)
    with CountingBucket(folder) as bucket:
        yield bucket, folder


def epoch(bucket, script, location, query, **options):
    """Reads one epoch. Its bytes are those of pages: neither of the footer nor of indexes."""
    server, folder = bucket
    settings = ", ".join(f"{name} = {value}" for name, value in {"batch_size": 5000, **options}.items())
    script.write_text(
        f"CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 's3://bucket/{location}';"
        f"CREATE PIPELINE p WITH ({settings}) AS {query};"
    )
    server.reads.clear()
    done = subprocess.run(
        [binary(), "run", str(script), "--output", "json", "--root", str(script.parent / "root")],
        capture_output=True,
        text=True,
        timeout=120,
        env={**environment(), **server.environment},
    )
    assert done.returncode == 0, done.stderr
    *batches, summary = map(json.loads, done.stdout.splitlines())
    metadata = pq.read_metadata(folder / location)
    end_of_pages, size = pages_end(metadata), (folder / location).stat().st_size
    reads = [(start, end) for _, start, end in server.reads if start < end_of_pages and (start, end) != (size - TAIL, size)]
    assert all(end <= end_of_pages for _, end in reads), "pages are read together with indexes"
    digests = [batch["digest"] for batch in batches]
    return Epoch(summary["samples"], digests, sum(end - start for start, end in reads), len(reads))


def explained(bucket, script) -> list[int]:
    """What EXPLAIN says of the columns' bytes, and of the bytes that an epoch reads."""
    command = [binary(), "explain", str(script), "--output", "json", "--root", str(script.parent / "root")]
    variables = {**environment(), **bucket[0].environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["bytes"]


def chunks(metadata, columns=None):
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(number)
            if columns is None or chunk.path_in_schema in columns:
                yield chunk


def pages_end(metadata):
    starts = ((chunk.dictionary_page_offset or chunk.data_page_offset, chunk) for chunk in chunks(metadata))
    return max(start + chunk.total_compressed_size for start, chunk in starts)


@pytest.mark.parametrize("number", range(len(LAYOUTS)), ids=list(LAYOUTS))
@pytest.mark.parametrize("columns", [None, ("id", "kind")], ids=["all columns", "two columns"])
def test_an_epoch_reads_hardly_more_than_its_columns(bucket, tmp_path, number, columns):
    _, folder = bucket
    location = f"{number}.parquet"
    chosen = ", ".join(columns or ["*"])
    stored = sum(chunk.total_compressed_size for chunk in chunks(pq.read_metadata(folder / location), columns))
    (_, ordered, shuffled) = list(LAYOUTS.values())[number]
    for shuffle, requests in (("false", ordered), ("true", shuffled)):
        # Windows far smaller than the default, as a larger file has them.
        read = epoch(
            bucket,
            tmp_path / "script.sql",
            location,
            f"SELECT {chosen} FROM t",
            shuffle=shuffle,
            window_bytes=4 << 20,
        )
        assert read.samples == ROWS
        assert read.bytes <= 1.05 * stored, f"shuffle = {shuffle}: {read.bytes / stored:.3f} of the bytes"
        assert read.requests <= requests, f"shuffle = {shuffle}"
        said_stored, said_read = explained(bucket, tmp_path / "script.sql")
        assert said_stored == pytest.approx(stored, rel=0.02)
        assert said_read == pytest.approx(read.bytes, rel=0.02), f"shuffle = {shuffle}"


@pytest.mark.parametrize("shuffle", ["false", "true"])
def test_windows_of_the_default_size_share_a_row_group(bucket, tmp_path, shuffle):
    server, folder = bucket
    random = np.random.default_rng(21)
    # 96 MB that do not compress, in one row group: three windows.
    rows = pa.table({name: random.normal(size=4_000_000) for name in ("x", "y", "z")})
    pq.write_table(rows, folder / "large.parquet", write_page_index=True, use_dictionary=False, row_group_size=1 << 30)
    stored = sum(chunk.total_compressed_size for chunk in chunks(pq.read_metadata(folder / "large.parquet")))
    assert stored > 64 << 20
    script = tmp_path / "script.sql"
    read = epoch(bucket, script, "large.parquet", "SELECT x, y, z FROM t", shuffle=shuffle, batch_size=100_000)
    assert read.samples == rows.num_rows
    assert read.bytes <= 1.05 * stored, f"{read.bytes / stored:.3f} of the bytes"
    assert read.requests <= 200


FILTERS = {
    # The condition, and the most bytes that it reads of all of its columns.
    "day < DATE '1970-02-01'": 0.15,
    "id = 150000": 0.15,
    "id IN (3, 299999)": 0.25,
    "NOT (id >= 1000)": 0.15,
    "id IS NULL": 0,
    "day > DATE '1974-01-01' AND label < 500": 0.9,
    "kind LIKE 'kind 4%' AND id > 290000": 0.15,
    "x > 4": 1.05,
}


@pytest.mark.parametrize("condition", FILTERS)
@pytest.mark.parametrize("number", [3, 4], ids=["pages", "row groups"])
def test_rows_that_statistics_exclude_are_not_read(bucket, tmp_path, number, condition):
    _, folder = bucket
    location = f"{number}.parquet"
    query = f"SELECT id, x, text, day, label, kind FROM t WHERE {condition}"
    read = epoch(bucket, tmp_path / "script.sql", location, query, shuffle="true")
    # The file without an index in one row group: nothing in it can be skipped but all of it.
    whole = epoch(bucket, tmp_path / "script.sql", "0.parquet", query, shuffle="false")
    ids = epoch(bucket, tmp_path / "script.sql", location, query, shuffle="false")
    assert read.samples == whole.samples == ids.samples
    assert ids.digest == whole.digest
    stored = sum(chunk.total_compressed_size for chunk in chunks(pq.read_metadata(folder / location)))
    assert read.bytes <= FILTERS[condition] * stored, f"{read.bytes / stored:.3f} of the bytes"


def many_files(folder, files):
    """Files of two rows each in three folders that name values."""
    rows = lake().slice(0, 1000)
    for number in range(files):
        target = folder / f"part={number % 3}" / f"{number}.parquet"
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows.slice(number, 2), target)


def command(server, *arguments):
    server.reads.clear()
    done = subprocess.run(
        [binary(), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**environment(), **server.environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_filter_on_the_path_opens_no_excluded_file(bucket, tmp_path):
    server, folder = bucket
    many_files(folder / "parts", 60)
    script = tmp_path / "script.sql"

    def pipelines(names):
        script.write_text(
            "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 's3://bucket/parts' OPTIONS ('path_column' 'file');"
            + "".join(f"CREATE PIPELINE {name} AS SELECT id FROM t WHERE {where};" for name, where in names.items())
        )

    excluding = {
        "one": ("part = 1", 1),
        "some": ("part IN (0, 7) AND id >= 0", 0),
        "file": ("file LIKE 'part=2/%'", 2),
        "both": ("part > 0 AND file < 'part=2'", 1),
    }
    pipelines({name: where for name, (where, _) in excluding.items()})
    # What a slow opening finds is kept under the root, so that later commands read pages alone.
    server.delay = 2.0
    try:
        command(server, "explain", script, "--pipeline", "one", "--root", tmp_path / "root")
    finally:
        server.delay = 0.0
    assert len({path for path, _, _ in server.reads}) == 60
    for name, (where, part) in excluding.items():
        shown = command(server, "run", script, "--pipeline", name, "--root", tmp_path / "root", "--output", "json")
        assert json.loads(shown.splitlines()[-1])["samples"] == 40, where
        opened = {path for path, _, _ in server.reads}
        assert opened == {f"parts/part={part}/{number}.parquet" for number in range(part, 60, 3)}, where


def test_a_table_that_took_long_to_open_is_opened_from_the_root(bucket, tmp_path):
    server, folder = bucket
    many_files(folder / "many", 300)
    rows = lake()
    script = tmp_path / "script.sql"

    def opened():
        script.write_text(
            "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 's3://bucket/many';"
            "CREATE PIPELINE p WITH (window_rows = 4) AS SELECT id, part FROM t;"
        )
        shown = command(server, "explain", script, "--root", tmp_path / "root")
        return shown, len(server.reads)

    server.delay = 0.6
    try:
        first, footers = opened()
    finally:
        server.delay = 0.0
    again, measured = opened()
    # Explaining measures up to 64 files.
    assert footers >= 300 and measured <= 64
    assert first == again and "600 rows" in first
    # A further file changes what there is to open.
    pq.write_table(rows.slice(0, 5), folder / "many" / "part=1" / "last.parquet")
    changed, read = opened()
    assert "605 rows" in changed and read >= 301
