"""Tables that are sorted and put together, in memory or as files of several locations."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from feeds import files


@pytest.fixture
def session(tmp_path):
    return forebay.Session(base=tmp_path, threads=2)


ROWS = {
    "a": [3, 1, None, 2, 1],
    "b": ["x", "y", "z", "w", "v"],
    "x": [math.nan, 2.0, -1.0, 2.0, None],
    "image": np.arange(60, dtype=np.uint8).reshape(5, 2, 2, 3),
    "tokens": [[1], [2, 3], [], [4], [5]],
}


@pytest.fixture
def table(session):
    return session.table(ROWS)


def column(table, name):
    return table.to_arrow(columns=[name])[name].to_pylist()


@pytest.mark.parametrize("columns, order", [
    (["a"], "yvwxz"),
    (["a DESC"], "xwyvz"),
    (["a desc", "b"], "xwvyz"),
    (["a", "b"], "vywxz"),
    (["x", "b"], "zwyxv"),
    (["x DESC"], "ywzxv"),
])
def test_rows_are_sorted_stably_with_nulls_last(table, columns, order):
    ordered = table.order_by(*columns)
    assert column(ordered, "b") == list(order)
    assert ordered.columns == table.columns
    # The other columns come along.
    places = ["xyzwv".index(name) for name in order]
    assert column(ordered, "tokens") == [ROWS["tokens"][place] for place in places]
    [batch] = ordered.select("image").load(format="numpy")
    assert np.array_equal(batch["image"], ROWS["image"][places])


def test_rows_of_many_batches_are_sorted(session, tmp_path, monkeypatch):
    monkeypatch.setattr("forebay._reading.ROWS", 7)
    numbers = session.table(files(tmp_path / "numbers", 100)).select("n", digit="n * 7 % 10")
    ordered = numbers.order_by("digit", "n DESC")
    expected = sorted(range(100), key=lambda n: (n * 7 % 10, -n))
    assert column(ordered, "n") == expected
    # The order enters the feed, and the same rows are the same table.
    assert ordered.sql == numbers.order_by("digit", "n DESC").sql != numbers.order_by("digit").sql
    assert column(ordered.filter("digit = 3"), "n")[0] == 99
    shuffled = [n for batch in ordered.load(format="numpy", shuffle=True, batch_size=9) for n in batch["n"]]
    assert shuffled != expected and sorted(shuffled) == list(range(100))


def test_a_column_may_have_the_name_of_an_order(session):
    table = session.table({"x desc": [2, 1, 3], "x": [1, 2, 3]})
    assert column(table.order_by("x desc"), "x") == [2, 1, 3]
    assert column(table.order_by("x desc desc"), "x") == [3, 1, 2]


def test_a_table_without_rows_is_sorted(table):
    empty = table.filter("a > 100").order_by("b")
    assert empty.columns == table.columns


@pytest.mark.parametrize("ordered, error, phrase", [
    (lambda table: table.order_by("c"), forebay.InvalidError, "must be 'a', 'b', 'x', 'image' or 'tokens', got 'c'"),
    (lambda table: table.order_by(), forebay.InvalidError, "at least one column"),
    (lambda table: table.order_by(3), forebay.InvalidError, '"column" must be the name of a column'),
    (lambda table: table.order_by("tokens"), forebay.InvalidError, r'the column "tokens" is a List\(Int64\)'),
    (lambda table: table.order_by("image"), forebay.InvalidError, r'the column "image" is a tensor<uint8>'),
    (lambda table: table.order_by("a", memory_limit=100), forebay.ExhaustedError, "they take more than 100 bytes"),
    (lambda table: table.order_by("a", memory_limit=0), forebay.InvalidError, '"memory_limit" must be a size'),
    (
        lambda table: table.with_column("r", "random_uniform()").order_by("r"),
        forebay.InvalidError,
        "results of random_uniform would repeat in every epoch",
    ),
])
def test_what_cannot_be_sorted_is_refused(table, ordered, error, phrase):
    with pytest.raises(error, match=phrase):
        ordered(table)


def test_the_limit_of_memory_names_the_cure(table):
    with pytest.raises(forebay.ExhaustedError) as error:
        table.order_by("a", memory_limit="0.1KiB")
    assert "memory_limit=" in error.value.hint and "sort the files beforehand" in error.value.hint
    assert table.order_by("a", memory_limit="1KiB").count() == 5


def test_order_by_of_a_draw_is_refused_in_sql(session, table):
    with pytest.raises(forebay.InvalidError, match="runs in a feed"):
        session.sql("SELECT random_uniform() AS u FROM t ORDER BY u", t=table)


# Several tables


def test_the_rows_of_several_tables_follow_each_other(session, table, tmp_path):
    other = table.select("tokens", "image", "x", "b", "a").filter("a = 1")
    both = session.concat([table, other, pa.table(table.limit(1).to_arrow())])
    assert column(both, "b") == [*"xyzwv", *"yv", "x"] and both.columns == table.columns
    numbers = session.concat([files(tmp_path / "numbers", 10), {"n": [7]}])
    assert column(numbers, "n") == [*range(10), 7]


@pytest.mark.parametrize("second, phrase", [
    (lambda table: table.drop("b"), 'table 1 of concat has the column "b", and table 2 has not'),
    (lambda table: table.with_column("c", "a"), 'table 2 of concat has the column "c", and table 1 has not'),
    (lambda table: table.with_column("a", "CAST(a AS INT)"), 'column "a" is Int64 in table 1 of concat, and Int32 in'),
    (
        lambda table: table.with_column("image", "reshape(image, shape => [2, 6])"),
        r'column "image" is tensor<uint8>\[2, 2, 3\] in table 1 of concat, and tensor<uint8>\[2, 6\] in table 2',
    ),
])
def test_tables_of_other_columns_are_refused_by_name(session, table, second, phrase):
    with pytest.raises(forebay.InvalidError, match=phrase) as error:
        session.concat([table, second(table)])
    assert "CAST" in error.value.hint


def test_what_cannot_be_put_together_is_refused(session, table):
    for neither in ([], table, "photos", None):
        with pytest.raises(forebay.InvalidError, match='"sources" must be a list of tables'):
            session.concat(neither)
    with pytest.raises(forebay.InvalidError, match="must belong to one session"):
        forebay.Session().concat([table, table])
    with pytest.raises(forebay.ExhaustedError, match="take more than 150 bytes") as error:
        session.concat([table, table], memory_limit=150)
    assert "files of one folder" in error.value.hint


# Several locations


@pytest.fixture
def folders(tmp_path):
    for path, count in (("a/x.parquet", 3), ("a/y.parquet", 2), ("b/deep/z.parquet", 4), ("c/w.csv", 1)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        if path.endswith("csv"):
            (tmp_path / path).write_text("n\n1\n")
        else:
            pq.write_table(pa.table({"n": [f"{path}:{row}" for row in range(count)]}), tmp_path / path)
    pq.write_table(pa.table({"n": [1.5]}), tmp_path / "other.parquet")
    (tmp_path / "b" / "README.md").write_text("no table")
    (tmp_path / "none").mkdir()


@pytest.mark.parametrize("paths, rows", [
    (["a/*.parquet", "b/deep/"], {"a/x": 3, "a/y": 2, "b/deep/z": 4}),
    (["b/deep/z.parquet", "a/x.parquet"], {"a/x": 3, "b/deep/z": 4}),
    (["b", "a/y.parquet"], {"a/y": 2, "b/deep/z": 4}),
    (["a/{x,y}.parquet", "b/"], {"a/x": 3, "a/y": 2, "b/deep/z": 4}),
    (["a/"], {"a/x": 3, "a/y": 2}),
])
def test_several_locations_are_one_table(session, folders, tmp_path, paths, rows):
    expected = [f"{name}.parquet:{row}" for name, count in rows.items() for row in range(count)]
    for table in (session.table(paths), session.concat(paths), session.table([tmp_path / path for path in paths])):
        assert table.count() == len(expected) and column(table, "n") == expected
    loader = session.table(paths).load(format="numpy", batch_size=2, shuffle=True)
    read = [n for batch in loader for n in batch["n"]]
    assert sorted(read) == expected
    assert loader.feed_id == session.table(paths).load(format="numpy", shuffle=True).feed_id
    file, row = loader.trace(0, epoch=0)[0]
    assert f"{file.removeprefix(f'{tmp_path}/')}:{row}" == read[0]
    assert session.table(paths, name="named").sql == 'SELECT * FROM "named"'


def test_folders_of_pictures_are_one_table(session, tmp_path):
    for path in ("train/cat/1.JPG", "train/dog/2.jpg", "more/cat/3.png"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"")
    table = session.table(["train/", "more/"])
    assert column(table, "label") == ["cat", "cat", "dog"]
    assert column(table, "path") == ["more/cat/3.png", "train/cat/1.JPG", "train/dog/2.jpg"]


@pytest.mark.parametrize("paths, error, phrase", [
    (["a/", "c/"], forebay.InvalidError, '"a/" has parquet and "c/" has csv'),
    (["a/", "a/x.parquet"], forebay.InvalidError, 'a/x.parquet" is at two of the locations'),
    (["a/", "other.parquet"], forebay.InvalidError, 'other.parquet" has column "n" as Float64, but .*a/x.parquet" has'),
    (["a/x.parquet", "a/z.parquet"], forebay.NotFoundError, 'a/z.parquet" does not exist'),
    (["a/", "aa/"], forebay.NotFoundError, 'aa" does not exist'),
    (["a/", "none/"], forebay.InvalidError, 'no parquet files under ".*none"'),
    (["a/", "b/*.parquet"], forebay.InvalidError, r'no parquet files match ".*b/\*.parquet"'),
    (["none/", "none"], forebay.InvalidError, "does not indicate the format"),
])
def test_locations_that_do_not_fit_are_named(session, folders, paths, error, phrase):
    with pytest.raises(error, match=phrase):
        session.table(paths)


@pytest.mark.parametrize("version", [None, 1])
def test_what_python_functions_draw_is_not_frozen(table, version):
    @forebay.udf(input="string", output="float64", version=version, rng=True)
    def drawn(b, rngs):
        return np.array([rng.random() for rng in rngs])

    with pytest.raises(forebay.InvalidError, match="results of drawn would repeat in every epoch"):
        table.with_column("r", "drawn(b)").order_by("r")
    with pytest.raises(forebay.InvalidError, match="results of drawn would repeat in every epoch"):
        table._session.concat([table.with_column("r", "drawn(b)")] * 2)


def test_functions_without_a_version_may_be_sorted_by(table):
    @forebay.udf(input="string", output="string")
    def plain(b):
        return b

    assert column(table.with_column("c", "plain(b)").order_by("c"), "b") == list("vwxyz")


def test_half_floats_are_sorted(session):
    halves = session.table({"h": np.array([2, 0.5, np.nan, -1], dtype=np.float16), "n": [0, 1, 2, 3]})
    assert column(halves.order_by("h"), "n") == [3, 1, 0, 2]
    ordered = halves.order_by("h DESC", "n")
    assert column(ordered, "n") == [0, 1, 3, 2] and ordered.columns == halves.columns


def test_a_first_table_without_rows_says_the_order_of_columns(session, table):
    other = table.select("tokens", "image", "x", "b", "a")
    both = session.concat([table.filter("a > 100"), other])
    assert list(both.columns) == list(ROWS) and column(both, "b") == list("xyzwv")


def test_names_of_tables_are_put_together(session, folders, tmp_path):
    for name, rows in (("train", [1, 2]), ("test", [3])):
        session.table({"n": rows}, name=name)
    assert column(session.concat(["train", "test"]), "n") == [1, 2, 3]
    session.table({"n": ["w"]}, name="w")
    assert column(session.concat(["w", "a/y.parquet"]), "n") == ["w", "a/y.parquet:0", "a/y.parquet:1"]
    # Folders may have names like tables.
    pq.write_table(pa.table({"n": ["a"]}), tmp_path / "none" / "x.parquet")
    assert session.concat(["a", "none"]).count() == 6
