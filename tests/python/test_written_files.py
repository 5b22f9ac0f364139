"""Data files that Forebay writes, as other tools read them: every value of random rows is compared.

`write_files`, an example of the crate `forebay-storage`, writes the rows. Tests with webdataset, mosaicml-streaming and
litdata are skipped unless these are installed. mosaicml-streaming needs older packages than other tests do:

    python3.11 -m venv /tmp/streaming
    /tmp/streaming/bin/pip install pytest pyarrow polars duckdb pandas webdataset litdata mosaicml-streaming
    cargo build --workspace --example write_files
    /tmp/streaming/bin/python -m pytest tests/python/test_written_files.py
"""

import datetime
import json
import math
import os
import random
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
import pytest

from support import REPOSITORY

# For other rows than those of every run.
SEEDS = [int(os.environ["FOREBAY_SEED"])] if os.environ.get("FOREBAY_SEED") else range(2)
ROWS_MAX = 3000
ROWS_PER_FILE = 1000
UTC = datetime.timezone.utc

Row = dict[str, Any]
Draw = Callable[[random.Random], Any]


def drawn(*values: Any) -> Draw:
    return lambda draw: draw.choice(values)


def integer(bits: int, low: int) -> Draw:
    return lambda draw: draw.choice([low, low + (1 << bits) - 1, low + draw.randrange(1 << bits)])


def text(draw: random.Random) -> str:
    words = ["", "plain", 'a "quoted", text', "two\nlines", "tab\tand \\", " spaces ", "é 漢字 🎈", "NA", "0", "null"]
    return draw.choice(words) + str(draw.randrange(50))


def moment(draw: random.Random) -> datetime.datetime:
    return datetime.datetime(1960, 1, 1) + datetime.timedelta(microseconds=draw.randrange(3_000_000_000_000_000))


def instant(draw: random.Random) -> datetime.datetime:
    return moment(draw).replace(tzinfo=UTC)


def floating(draw: random.Random) -> float:
    return draw.choice([draw.gauss(0, 1e6), draw.random(), -0.0, 1e-300, 1.7e308])


SCALARS: dict[str, tuple[pa.DataType, Draw]] = {
    "i8": (pa.int8(), integer(8, -128)),
    "i16": (pa.int16(), integer(16, -(1 << 15))),
    "i32": (pa.int32(), integer(32, -(1 << 31))),
    "i64": (pa.int64(), integer(64, -(1 << 63))),
    "u8": (pa.uint8(), integer(8, 0)),
    "u16": (pa.uint16(), integer(16, 0)),
    "u32": (pa.uint32(), integer(32, 0)),
    "u64": (pa.uint64(), integer(64, 0)),
    "f32": (pa.float32(), lambda draw: float(np.float32(draw.gauss(0, 1000)))),
    "f64": (pa.float64(), floating),
    "flag": (pa.bool_(), drawn(True, False)),
    "words": (pa.string(), text),
    "large_words": (pa.large_string(), text),
    "view": (pa.string_view(), text),
    "color": (pa.dictionary(pa.int32(), pa.string()), drawn("red", "green", "blue")),
    "day": (pa.date32(), lambda draw: moment(draw).date()),
    "at": (pa.timestamp("us"), moment),
    "at_ms": (pa.timestamp("ms"), lambda draw: moment(draw).replace(microsecond=7000)),
    "seen": (pa.timestamp("us", "UTC"), instant),
    "clock": (pa.time64("us"), lambda draw: moment(draw).time()),
    "cost": (pa.decimal128(12, 3), lambda draw: Decimal(draw.randrange(-(10**11), 10**11)).scaleb(-3)),
}
BYTES: dict[str, tuple[pa.DataType, Draw]] = {
    "raw": (pa.binary(), lambda draw: draw.randbytes(draw.randrange(40))),
    "large_raw": (pa.large_binary(), lambda draw: b"\xff\xd8\xff" + draw.randbytes(9)),
    "fixed": (pa.binary(4), lambda draw: draw.randbytes(4)),
    "half": (pa.float16(), lambda draw: float(np.float16(draw.gauss(0, 10)))),
}
NESTED: dict[str, tuple[pa.DataType, Draw]] = {
    "numbers": (
        pa.list_(pa.int32()),
        lambda draw: [draw.choice([None, draw.randrange(9)]) for _ in range(draw.randrange(5))],
    ),
    "tags": (pa.large_list(pa.string()), lambda draw: [text(draw) for _ in range(draw.randrange(3))]),
    "place": (
        pa.struct({"x": pa.float64(), "name": pa.string()}),
        lambda draw: {"x": draw.random(), "name": draw.choice([None, text(draw)])},
    ),
    "boxes": (
        pa.list_(pa.struct({"corner": pa.list_(pa.float32(), 2), "label": pa.int8()})),
        lambda draw: [{"corner": [0.5, 2.0], "label": draw.choice([None, 3])} for _ in range(draw.randrange(3))],
    ),
}
TENSORS: dict[str, tuple[pa.DataType, Draw]] = {
    "pixels": (pa.fixed_shape_tensor(pa.uint8(), [2, 3, 3]), lambda draw: list(draw.randbytes(18))),
    "embedding": (pa.fixed_shape_tensor(pa.float32(), [4]), lambda draw: [draw.randrange(99) / 4 for _ in range(4)]),
    "tokens": (
        pa.list_(pa.field("item", pa.int64(), nullable=False)),
        lambda draw: [draw.randrange(50_000) for _ in range(draw.randrange(1, 300))],
    ),
}


def listed(draw: random.Random, value: Draw, nulls: bool = False) -> list[Any]:
    """Up to 400 values, mostly many."""
    length = draw.choice([0, 1, *range(100, 400)])
    return [None if nulls and draw.random() < 0.2 else value(draw) for _ in range(length)]


# Lists of many numbers, which Parquet's writer encodes by itself.
MANY: dict[str, tuple[pa.DataType, Draw]] = {
    "image": (pa.fixed_shape_tensor(pa.uint8(), [6, 7, 3]), lambda draw: list(draw.randbytes(126))),
    "wave": (pa.list_(pa.int8()), lambda draw: listed(draw, integer(8, -128), nulls=True)),
    "mask": (pa.large_list(pa.field("item", pa.uint8(), nullable=False)), lambda draw: listed(draw, integer(8, 0))),
    "halves": (pa.list_(pa.float16(), 70), lambda draw: [float(np.float16(draw.gauss(0, 9))) for _ in range(70)]),
    "floats": (pa.list_(pa.float32()), lambda draw: listed(draw, SCALARS["f32"][1], nulls=True)),
    "doubles": (pa.list_(pa.float64(), 64), lambda draw: [floating(draw) for _ in range(64)]),
    "ids": (pa.large_list(pa.int64()), lambda draw: listed(draw, integer(64, -(1 << 63)), nulls=True)),
    "words": (pa.list_(pa.uint32()), lambda draw: listed(draw, integer(32, 0))),
    "short": (pa.list_(pa.int16()), lambda draw: listed(draw, integer(16, -(1 << 15)))),
}


def table(seed: int, columns: dict[str, tuple[pa.DataType, Draw]], nulls: float = 0.1) -> pa.Table:
    """Random rows; the same seed gives the same rows."""
    draw = random.Random(seed)
    rows = draw.choice([1, ROWS_PER_FILE, draw.randrange(ROWS_MAX)])

    def column(data_type: pa.DataType, value: Draw) -> pa.Array:
        values = [None if draw.random() < nulls else value(draw) for _ in range(rows)]
        if isinstance(data_type, pa.FixedShapeTensorType):
            return pa.ExtensionArray.from_storage(data_type, pa.array(values, data_type.storage_type))
        return pa.array(values, data_type)

    return pa.table({name: column(*column_of) for name, column_of in columns.items()})


@cache
def program() -> Path:
    """The example that writes files. `cargo test --workspace` builds it, too."""
    path = REPOSITORY / os.environ.get("CARGO_TARGET_DIR", "target") / "debug" / "examples" / "write_files"
    if not path.is_file():
        build = ["cargo", "build", "--workspace", "--locked", "--quiet", "--example", "write_files"]
        subprocess.run(build, check=True, cwd=REPOSITORY)
    return path


def written(rows: pa.Table, folder: Path, name: str, *options: str) -> list[Path]:
    """Writes rows as data files of a format."""
    source = folder / "rows.arrow"
    with pa.ipc.new_file(source, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=random.Random(rows.num_rows).randrange(1, 700))
    target = folder / name
    command = [program(), source, target, str(ROWS_PER_FILE), name, *options]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return sorted(target.glob("shard.*"))


def normal(value: Any) -> Any:
    """A value as all tools would represent it."""
    match value:
        case float() if math.isnan(value):
            return "not a number"
        case float() | np.floating():
            # Distinguishes zeros.
            return (float(value), math.copysign(1, value))
        case dict():
            return {key: normal(inner) for key, inner in value.items()}
        case list() | tuple() | polars.Series():
            return [normal(inner) for inner in value]
        case datetime.datetime() if hasattr(value, "to_pydatetime"):
            return value.to_pydatetime()
        case datetime.datetime() if value.tzinfo:
            return value.astimezone(UTC)
        case _:
            return value


def check(found: Sequence[Row], expected: pa.Table) -> None:
    """Compares all values of all rows."""
    wanted = expected.to_pylist()
    assert len(found) == len(wanted)
    for number, (row, want) in enumerate(zip(found, wanted)):
        assert list(row) == list(want)
        for name in want:
            assert normal(row[name]) == normal(want[name]), f"{name} of row {number}"


def as_stored(row: Row, schema: pa.Schema) -> Row:
    """A row of JSON in the types of its columns: JSON has texts for times, and numbers of one type."""

    def typed(value: Any, data_type: pa.DataType) -> Any:
        if value is None:
            return None
        if pa.types.is_struct(data_type):
            return {key: typed(inner, data_type.field(key).type) for key, inner in value.items()}
        if pa.types.is_nested(data_type):
            return [typed(inner, data_type.value_type) for inner in value]
        if pa.types.is_temporal(data_type):
            of_python = {"date32[day]": datetime.date, "time64[us]": datetime.time}
            return of_python.get(str(data_type), datetime.datetime).fromisoformat(value)
        if pa.types.is_floating(data_type):
            return float(value) if data_type.bit_width == 64 else float(np.float32(value))
        return value

    return {name: typed(value, schema.field(name).type) for name, value in row.items()}


def duckdb_types(rows: pa.Table) -> dict[str, str]:
    """DuckDB's names of the types of columns."""
    return dict(zip(rows.column_names, map(str, duckdb.sql("SELECT * FROM rows").types)))


def flat(rows: pa.Table) -> pa.Table:
    """Tensors as lists, and dictionaries as values."""
    for at, field in enumerate(rows.schema):
        column = rows.column(at)
        if isinstance(field.type, pa.FixedShapeTensorType):
            column = pa.chunked_array([chunk.storage for chunk in column.chunks], field.type.storage_type)
        if isinstance(field.type, pa.DictionaryType):
            column = column.cast(field.type.value_type)
        rows = rows.set_column(at, field.name, column)
    return rows


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("compression", ["zstd", "snappy", "none"])
def test_parquet_is_read_alike(seed, compression, tmp_path):
    rows = table(seed, SCALARS | BYTES | NESTED | TENSORS)
    files = written(rows, tmp_path, "parquet", f"compression={compression}")
    found = pa.concat_tables(pq.read_table(file) for file in files)
    assert found.schema.field("pixels").type == rows.schema.field("pixels").type
    check(flat(found).to_pylist(), flat(rows))
    check(polars.concat([polars.read_parquet(file) for file in files]).to_dicts(), flat(rows))
    check(read_by_duckdb(files), flat(rows))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("compression", ["zstd", "snappy", "none"])
def test_lists_of_many_numbers_are_read_alike(seed, compression, tmp_path):
    rows = table(seed, MANY)
    files = written(rows, tmp_path, "parquet", f"compression={compression}")
    found = pa.concat_tables(pq.read_table(file) for file in files)
    assert found.schema.types == rows.schema.types
    check(flat(found).to_pylist(), flat(rows))
    check(polars.concat([polars.read_parquet(file) for file in files]).to_dicts(), flat(rows))
    check(read_by_duckdb(files), flat(rows))
    # A byte of a picture is a byte of the file.
    if compression == "none":
        image = pq.ParquetFile(files[0]).metadata.row_group(0).column(0)
        assert image.encodings == ("PLAIN", "RLE", "RLE_DICTIONARY")
        assert image.total_compressed_size < image.num_values + 1024 + 20 * len(rows) + 500


def read_by_duckdb(files: list[Path]) -> list[Row]:
    listed = {"files": [str(file) for file in files]}
    return duckdb.sql("SELECT * FROM read_parquet($files)", params=listed).to_arrow_table().to_pylist()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
def test_arrow_files_are_read_alike(seed, compression, tmp_path):
    rows = table(seed, SCALARS | BYTES | NESTED | TENSORS)
    files = written(rows, tmp_path, "arrow", f"compression={compression}")
    found = pa.concat_tables(pa.ipc.open_file(pa.memory_map(str(file))).read_all() for file in files)
    found.validate(full=True)
    assert found.schema.field("pixels").type == rows.schema.field("pixels").type
    check(flat(found).to_pylist(), flat(rows))
    check(polars.concat([polars.read_ipc(file) for file in files]).to_dicts(), flat(rows))
    # DuckDB has no half floats.
    stored = flat(found).drop_columns("half")
    check(duckdb.sql("SELECT * FROM stored").to_arrow_table().to_pylist(), flat(rows).drop_columns("half"))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_csv_is_read_alike(seed, compression, tmp_path):
    rows = flat(table(seed, SCALARS))
    files = written(rows, tmp_path, "csv", f"compression={compression}", "null=NULL")
    # pyarrow reads no string views.
    types = {field.name: pa.string() if field.name == "view" else field.type for field in rows.schema}
    convert = pa.csv.ConvertOptions(
        column_types=types, null_values=["NULL"], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    parse = pa.csv.ParseOptions(newlines_in_values=True)
    read = [pa.csv.read_csv(file, convert_options=convert, parse_options=parse) for file in files]
    check(pa.concat_tables(read).to_pylist(), rows)
    types = duckdb_types(rows)
    found = duckdb.read_csv(
        [str(file) for file in files], header=True, dtype=types, na_values="NULL", strict_mode=True, quotechar='"'
    )
    check(found.to_arrow_table().to_pylist(), rows)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_json_lines_are_read_alike(seed, compression, tmp_path):
    rows = flat(table(seed, SCALARS | NESTED))
    files = written(rows, tmp_path, "jsonl", f"compression={compression}")
    texts = [pa.input_stream(file).read().decode() for file in files]
    assert all(text.endswith("}\n") for text in texts)
    lines = [line for text in texts for line in text.removesuffix("\n").split("\n")]
    found = [json.loads(line, parse_float=Decimal) for line in lines]
    check([as_stored(row, rows.schema) for row in found], rows)
    # pyarrow reads no dates and times from texts, and no lists of these types.
    names = [name for name in rows.column_names if name not in ("day", "clock", "tags", "boxes")]
    wanted = rows.select(names)
    parse = pa.json.ParseOptions(explicit_schema=wanted.schema, unexpected_field_behavior="ignore")
    read = [pa.json.read_json(file, parse_options=parse) for file in files]
    check(pa.concat_tables(read).to_pylist(), wanted)
    found = duckdb.sql(
        "SELECT * FROM read_json($files, format => 'newline_delimited', columns => $types)",
        params={"files": [str(file) for file in files], "types": duckdb_types(rows)},
    )
    check(found.to_arrow_table().to_pylist(), rows)


def numpy_values(value: Any) -> Any:
    return value.ravel().tolist() if isinstance(value, np.ndarray) else value


# MDS has no nulls, and webdataset none at the top of a sample.
TEXTS = ["words", "large_words", "view", "color", "day", "at", "at_ms", "seen", "clock"]
SAMPLES = SCALARS | BYTES | NESTED | TENSORS


def samples(seed: int) -> pa.Table:
    return table(seed, SAMPLES, nulls=0)


def iso(value: datetime.datetime | datetime.time) -> str:
    """A time as text, with no, three or six digits of seconds."""
    whole = value.microsecond % 1000 == 0 and value.microsecond != 0
    return value.isoformat(timespec="milliseconds" if whole else "auto")


def as_sample(row: Row) -> Row:
    """What a package gives for a row: texts for times, and numbers for booleans."""

    def shown(value: Any) -> Any:
        match value:
            case bool():
                return int(value)
            case datetime.datetime() if value.tzinfo:
                return iso(value.astimezone(UTC).replace(tzinfo=None)) + "Z"
            case datetime.datetime() | datetime.time():
                return iso(value)
            case datetime.date():
                return value.isoformat()
            case _:
                return value

    return {name: shown(value) for name, value in row.items()}


def check_samples(found: Sequence[Row], expected: pa.Table) -> None:
    wanted = flat(expected).to_pylist()
    assert len(found) == len(wanted)
    for number, (row, want) in enumerate(zip(found, wanted)):
        want = as_sample(want)
        assert sorted(row) == sorted(want)
        for name, value in want.items():
            assert normal(numpy_values(row[name])) == normal(value), f"{name} of row {number}"


@pytest.mark.parametrize("seed", SEEDS)
def test_webdataset_reads_tar_shards(seed, tmp_path):
    webdataset = pytest.importorskip("webdataset")
    rows = samples(seed)
    files = written(rows, tmp_path, "webdataset")
    dataset = webdataset.WebDataset([str(file) for file in files], shardshuffle=False).decode()
    found, keys = [], []
    for sample in dataset:
        keys.append(sample["__key__"])
        found.append({suffix.split(".")[0]: value for suffix, value in sample.items() if not suffix.startswith("__")})
    assert keys == sorted(set(keys))
    for row in found:
        # Texts, and the shortest numbers that are read as these values.
        row["cost"] = Decimal(row["cost"])
        row["f32"] = float(np.float32(row["f32"]))
        row["half"] = float(np.float16(row["half"]))
    check_samples(found, rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_tar_shards_are_archives(seed, tmp_path):
    rows = samples(seed)
    for file in written(rows, tmp_path, "webdataset"):
        with tarfile.open(file) as archive:
            members = archive.getmembers()
            assert all(member.isreg() and member.mtime == 0 for member in members)
        assert subprocess.run(["tar", "-tf", file], check=True, capture_output=True, text=True).stdout.splitlines() == [
            member.name for member in members
        ]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_mosaicml_streaming_reads_shards(seed, compression, tmp_path):
    streaming = pytest.importorskip("streaming")
    rows = samples(seed)
    written(rows, tmp_path, "mds", f"compression={compression}")
    dataset = streaming.StreamingDataset(
        local=str(tmp_path / "mds"), shuffle=False, batch_size=1, validate_hash="xxh3_64"
    )
    check_samples([dataset[row] for row in range(len(dataset))], rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_shards_have_the_bytes_of_mosaicml_streaming(seed, tmp_path):
    streaming = pytest.importorskip("streaming")
    # JSON has several texts for one float, such as 1e-05 in Python and 1e-5 elsewhere.
    rows = samples(seed).slice(0, ROWS_PER_FILE).drop_columns("place")
    files = written(rows, tmp_path, "mds")
    index = json.loads((tmp_path / "mds" / "index.json").read_text())
    shard = index["shards"][0]
    columns = dict(zip(shard["column_names"], shard["column_encodings"]))
    arguments = {"hashes": ["xxh3_64"], "size_limit": None}
    with streaming.MDSWriter(out=str(tmp_path / "theirs"), columns=columns, **arguments) as writer:
        for row in map(as_sample, flat(rows).to_pylist()):
            for name, encoding in columns.items():
                match encoding.split(":"):
                    case ["ndarray", kind]:
                        row[name] = np.array(row[name], kind)
                    case ["ndarray", kind, sides]:
                        row[name] = np.array(row[name], kind).reshape([int(side) for side in sides.split(",")])
                    case ["json"]:
                        # With the separators of `json.dumps`, which is no part of the format.
                        row[name] = json.dumps(row[name], separators=(",", ":"), ensure_ascii=False).encode()
            writer.write(row)
    ours = files[0].read_bytes()
    assert ours == (tmp_path / "theirs" / "shard.00000.mds").read_bytes()
    assert (tmp_path / "mds" / "index.json").read_bytes() == (tmp_path / "theirs" / "index.json").read_bytes()


@pytest.mark.parametrize("seed", SEEDS)
def test_litdata_reads_compressed_shards(seed, tmp_path):
    litdata = pytest.importorskip("litdata")
    # It reads no uncompressed shards, and of the encodings only `str`, `bytes` and `json`: a KeyError for all others,
    # which the tests with mosaicml-streaming compare.
    rows = samples(seed).select([*TEXTS, *(name for name in BYTES if name != "half"), *NESTED])
    written(rows, tmp_path, "mds", "compression=zstd")
    dataset = litdata.StreamingDataset(str(tmp_path / "mds"), shuffle=False)
    check_samples([dataset[row] for row in range(len(dataset))], rows)
