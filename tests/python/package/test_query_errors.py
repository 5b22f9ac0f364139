"""Errors of queries, scripts and rows: the line with a caret, the kind, the hint."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from feeds import files, pipeline, printed, range_of


def rows():
    return pa.table({"n": range_of(3)})


QUERIES = {
    "an unknown column": ("SELECT n,\n       m\nFROM t", "m", "       ^", "columns: n"),
    "an unknown argument": ("SELECT clamp(n, mim => 0, max => 3)\nFROM t", "mim", " " * 16 + "^", 'did you mean "min"?'),
    "a draw in a stage": ("SELECT max(random_uniform())\nFROM t", "random_uniform", " " * 11 + "^", "outermost SELECT"),
    "a typing mistake": ("SELECT n\nFORM t", "", "^", None),
    "an unknown function": ("SELECT n,\n  squish(n) FROM t", "squish", "  ^", None),
    "an unfinished query": ("SELECT n FROM", "", "^", None),
}


@pytest.mark.parametrize("query, named, caret, hint", QUERIES.values(), ids=QUERIES.keys())
def test_an_error_in_a_query_shows_the_line_with_a_caret(query, named, caret, hint):
    with pytest.raises(forebay.InvalidError) as raised:
        forebay.sql(query, t=rows())
    error = raised.value
    assert error.kind == "invalid" and isinstance(error, ValueError)
    assert named in error.message
    lines = [line.partition("| ")[2] for line in error.message.splitlines() if "| " in line]
    assert lines[0] in query.splitlines()
    # The caret is below the beginning of the wrong text.
    assert lines[-1].startswith(caret) or caret == "^" and "^" in lines[-1]
    if hint is not None:
        assert hint in error.hint


def test_an_error_names_the_query_and_not_a_made_up_name():
    with pytest.raises(forebay.InvalidError) as raised:
        forebay.sql("SELECT m FROM t", t=rows())
    assert "--> query:1:8" in raised.value.message


def test_an_error_in_a_script_names_file_line_and_column(tmp_path):
    files(tmp_path / "numbers", 10)
    script = tmp_path / "pipelines.sql"
    script.write_text("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 'numbers';\nCREATE PIPELINE p AS SELECT m FROM t;")
    with pytest.raises(forebay.InvalidError) as raised:
        forebay.load(script)
    assert f"--> {script}:2:29" in raised.value.message


def test_a_missing_file_of_a_script_is_not_found(tmp_path):
    script = tmp_path / "pipelines.sql"
    script.write_text("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 'nowhere';")
    with pytest.raises(forebay.NotFoundError) as raised:
        forebay.load(script)
    assert str(tmp_path / "nowhere") in raised.value.message and f"{script}:1:52" in raised.value.message
    assert raised.value.kind == "not_found" and isinstance(raised.value, LookupError)


@pytest.mark.parametrize("make", ["nothing", "folder", "bytes"])
def test_a_script_that_cannot_be_read_is_named(tmp_path, make):
    script = tmp_path / "pipelines.sql"
    if make == "folder":
        script.mkdir()
    elif make == "bytes":
        script.write_bytes(b"SELECT '\xff'")
    for read in (forebay.load, forebay.sql):
        with pytest.raises(forebay.InvalidError) as raised:
            read(script)
        assert str(script) in raised.value.message


def test_an_unknown_pipeline_suggests_a_near_one():
    session = forebay.Session()
    session.sql("CREATE PIPELINE training AS SELECT n FROM t", t=rows())
    with pytest.raises(forebay.NotFoundError) as raised:
        session.load("trainning")
    assert 'there is no pipeline "trainning"' in raised.value.message and '"training"' in raised.value.hint


KINDS = {
    "invalid": (forebay.InvalidError, ValueError),
    "not_found": (forebay.NotFoundError, LookupError),
    "conflict": (forebay.ConflictError, Exception),
    "denied": (forebay.DeniedError, PermissionError),
    "unavailable": (forebay.UnavailableError, ConnectionError),
    "exhausted": (forebay.ExhaustedError, MemoryError),
    "data": (forebay.DataError, Exception),
    "internal": (forebay.InternalError, RuntimeError),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_a_class_below_error_and_pythons_own(kind):
    error, builtin = KINDS[kind]
    assert error.kind == kind and issubclass(error, forebay.Error) and issubclass(error, builtin)
    assert str(error("message", "hint")) == "message\nhint: hint"
    assert str(error("message")) == "message"


def test_a_changed_file_is_a_conflict(tmp_path):
    folder = files(tmp_path / "numbers", 100)
    loader = forebay.table(folder).load(format="arrow", batch_size=8, window_rows=10)
    # This opens the feed, which fixes its files, and computes no window: a loop may have read all of them ahead.
    assert len(loader) == 13
    pq.write_table(pa.table({"n": range_of(50)}), folder / "part-2.parquet")
    with pytest.raises(forebay.ConflictError, match="part-2.parquet"):
        list(loader)


def broken():
    return pipeline({"text": ["0", "1", "x", "3", "y", "5"]}, "SELECT CAST(text AS BIGINT) AS n FROM {table}")


def test_a_bad_row_is_named():
    loader = broken().load(format="arrow", batch_size=2)
    batches = iter(loader)
    assert next(batches)["n"].to_pylist() == [0, 1]
    with pytest.raises(forebay.DataError, match="row 2: ") as raised:
        next(batches)
    assert raised.value.kind == "data" and "on_error" in raised.value.hint
    # The loop is over, and its place has not changed.
    assert list(batches) == []
    assert loader.state_dict()["offset"] == 2


@pytest.mark.parametrize("on_error", ["skip", "quarantine"])
def test_bad_rows_are_left_out_and_keep_their_place(on_error, tmp_path):
    session = forebay.Session(root=tmp_path)
    made = pipeline({"text": ["0", "1", "x", "3", "y", "5"]}, "SELECT CAST(text AS BIGINT) AS n FROM {table}", session)
    loader = made.load(format="arrow", batch_size=2, on_error=on_error)
    assert [batch["n"].to_pylist() for batch in loader] == [[0, 1], [3], [5]]
    assert loader.stats()["bad_rows"] == 2
    recorded = sorted(tmp_path.glob("quarantine/*/*.parquet"))
    assert len(recorded) == (2 if on_error == "quarantine" else 0)
    for path, row in zip(recorded, (2, 4)):
        [record] = pq.read_table(path).to_pylist()
        assert record["row"] == row and "cast" in record["reason"].lower()


def test_a_batch_may_be_empty():
    made = pipeline({"text": ["x", "y", "2"]}, "SELECT CAST(text AS BIGINT) AS n FROM {table}")
    batches = list(made.load(format="numpy", batch_size=2, on_error="skip"))
    assert [batch["n"].tolist() for batch in batches] == [[], [2]]
    assert batches[0]["n"].shape == (0,)


def test_an_error_is_raised_in_the_loop_and_not_before():
    loader = broken().load(format="arrow", batch_size=6)
    batches = iter(loader)
    with pytest.raises(forebay.DataError):
        next(batches)


def test_an_error_of_the_loader_crosses_processes():
    said = printed("""
import json, pickle
import forebay
try:
    forebay.load("SELECT 1 AS one FROM nowhere")
except forebay.Error as error:
    again = pickle.loads(pickle.dumps(error))
    print(json.dumps([type(again).__name__, str(again) == str(error), again.kind]))
""")
    assert said[1] and said[0] in ("NotFoundError", "InvalidError")


def test_after_an_error_the_epoch_begins_over():
    loader = broken().load(format="arrow", batch_size=2)
    for _ in range(2):
        with pytest.raises(forebay.DataError, match="row 2: "):
            list(loader)
    assert loader.epoch == 0
