"""`columns=`: the same samples with fewer columns. Functions that only other columns need do not run."""

import pyarrow as pa
import pytest

import forebay
from feeds import pipeline, range_of
from support import REPOSITORY

calls = []


@forebay.udf(input="int64", output="int64", version=1)
def noted(n):
    calls.append(len(n))
    return n


@forebay.udf(input="int64", output="int64", version=1)
def fails(n):
    raise ValueError("not to be called")


@pytest.fixture
def rows():
    return pipeline({"n": range_of(60)}, "SELECT noted(n) AS a, n AS b, fails(n) AS f FROM {table}")


def test_what_is_left_out_is_not_computed(rows):
    calls.clear()
    loader = rows.load(format="numpy", batch_size=16, columns=["b"])
    assert loader.columns == {"b": "Int64"}
    assert [n for batch in loader for n in batch["b"].tolist()] == list(range(60))
    assert calls == []
    # Columns come in the requested order.
    [batch, *_] = rows.load(format="arrow", columns=["b", "a"])
    assert batch.schema.names == ["b", "a"] and calls
    with pytest.raises(forebay.DataError, match="not to be called"):
        list(rows.load(format="numpy", columns=["f"]))


def test_a_state_fits_other_columns(rows):
    loader = rows.load(format="numpy", batch_size=16, shuffle=True, columns=["a"])
    batches = iter(loader)
    next(batches)
    state, expected = loader.state_dict(), next(batches)["a"].tolist()
    other = rows.load(format="numpy", batch_size=16, shuffle=True, columns=["b"])
    assert other.feed_id == loader.feed_id
    other.load_state_dict(state)
    assert next(iter(other))["b"].tolist() == expected


QUERIES = {
    "filter": "SELECT n AS a, n * 2 AS b, n + 1 AS c FROM {table} WHERE n % 3 = 1",
    "unnest": "SELECT n AS a, unnest(tokens) AS b, 7 AS c FROM {table}",
    "inner": "SELECT a, b, c FROM (SELECT n AS a, n % 7 AS b, n AS c FROM {table} WHERE n > 5) AS t WHERE b <> 2",
    "limit": "SELECT n AS a, n AS b, 1 AS c FROM (SELECT * FROM {table} LIMIT 20) AS t",
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
@pytest.mark.parametrize("chosen", [["a"], ["b"], ["c"], ["c", "a"]], ids="".join)
def test_rows_and_order_are_those_of_all_columns(query, chosen):
    table = pa.table({"n": range_of(60), "tokens": [[n] * (n % 4) for n in range(60)]})
    made = pipeline(table, query)
    options = {"format": "arrow", "batch_size": 7, "shuffle": True, "seed": 3, "epochs": 2}
    whole = [batch.select(chosen) for batch in made.load(**options)]
    assert list(made.load(**options, columns=chosen)) == whole


def test_random_columns_are_the_same_without_the_others():
    photos = forebay.table(REPOSITORY / "examples/photos")
    crop = "random_resized_crop(decode_image(bytes), height => 8, width => 8)"
    made = photos.limit(12).select(first=crop, second=crop, label="label")
    options = {"format": "numpy", "batch_size": 6, "shuffle": True, "seed": 4}
    whole = [batch["second"].tolist() for batch in made.load(**options)]
    assert [batch["second"].tolist() for batch in made.load(**options, columns=["second"])] == whole
    assert [batch["first"].tolist() for batch in made.load(**options, columns=["first"])] != whole


def test_two_readers_of_other_columns_do_not_meet():
    made = pipeline({"n": range_of(30)}, "SELECT n AS a, n * 2 AS b FROM {table}")
    one = iter(made.load(format="numpy", batch_size=5, columns=["a"]))
    two = iter(made.load(format="numpy", batch_size=5, columns=["b"]))
    for step in range(6):
        assert list(next(one)) == ["a"] and list(next(two)) == ["b"]


def test_unknown_columns_are_named():
    made = pipeline({"n": range_of(3)}, "SELECT n AS a, n AS b FROM {table}")
    with pytest.raises(forebay.InvalidError, match="\"columns\" must be 'a' or 'b', got 'c'"):
        made.load(columns=["c"])


def test_a_cluster_sends_all_and_the_loader_drops_the_rest():
    session = forebay.Session()
    session.sql("CREATE PIPELINE p AS SELECT n AS a, n * 2 AS b FROM t", t=pa.table({"n": range_of(30)}))
    with session.serve() as server:
        remote = forebay.connect(server.uri).load("p", format="arrow", columns=["b"])
        assert list(remote) == list(session.load("p", format="arrow", columns=["b"]))


def test_which_rows_are_bad_before_they_are_samples_does_not_depend_on_columns(tmp_path):
    # Row 2 cannot be read if `x` is read. Without `x`, the filter leaves the row out. Offsets must be the same either
    # way.
    lines = [f'{{"x": {n}, "y": {n}}}' for n in range(8)]
    lines[2] = '{"x": "bad", "y": -1}'
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    script = f"""
        CREATE EXTERNAL TABLE t (x BIGINT, y BIGINT) STORED AS JSON LOCATION '{tmp_path}';
        CREATE PIPELINE p AS SELECT x, y FROM t WHERE y >= 0
    """
    session = forebay.Session()
    session.sql(script)

    def loaded(name, columns):
        loader = session.load("p", format="arrow", batch_size=2, on_error="skip", columns=columns)
        values = [batch[name].to_pylist() for batch in loader]
        return values, loader.state_dict()

    assert loaded("y", None) == loaded("x", ["x"]) == loaded("y", ["y"])


def test_groups_by_length_of_a_column_that_is_left_out():
    made = pipeline(
        {"n": range_of(24), "tokens": pa.array([[1] * (1 + n % 5) for n in range(24)])}, "SELECT n, tokens FROM {table}"
    )
    settings = dict(format="arrow", global_batch_size=4, bucket_by_length="tokens", bucket_boundaries=[3])
    whole = [batch["n"].to_pylist() for batch in made.load(**settings)]
    assert [batch["n"].to_pylist() for batch in made.load(columns=["n"], **settings)] == whole
