"""Looking at rows before training: counts, values, descriptions, duplicates, splits, and pictures for notebooks."""

import base64
import math
import pickle
import re
import sys
from datetime import date, datetime, timedelta
from fractions import Fraction
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pandas
import pyarrow as pa
import pytest

import forebay
from feeds import files, printed
from forebay import _counts, _description, _gallery, _reading
from support import REPOSITORY

PHOTOS = REPOSITORY / "examples" / "photos"
BAD = "CAST(text AS BIGINT)"


@pytest.fixture
def session(tmp_path):
    return forebay.Session(base=tmp_path, threads=2)


@pytest.fixture
def photos(session):
    return session.table(PHOTOS)


class Balanced(HTMLParser):
    """Checks that every tag is closed, and collects texts."""

    def __init__(self, html):
        super().__init__()
        self.open, self.texts = [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in ("img", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert tag == "rect" or self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_data(self, data):
        self.texts.append(data)


# Counting


def test_the_number_of_rows_of_files_is_known_without_reading(session, tmp_path, monkeypatch):
    table = session.table(files(tmp_path / "numbers", 100))
    monkeypatch.setattr("forebay._reading.Pass.native_batches", lambda read: pytest.fail("it reads"))
    assert table.count() == 100 and table.limit(30).count() == 30


def test_rows_that_pass_a_filter_are_counted_by_reading(session, tmp_path):
    table = session.table(files(tmp_path / "numbers", 100)).filter("n % 3 = 0")
    assert table.load(format="arrow").samples_per_epoch is None
    assert table.count() == 34
    assert table.filter("n < 0").count() == 0
    assert session.sql("SELECT unnest([1, 2, 3]) AS x FROM t", t={"n": [1, 2]}).count() == 6


def test_counting_computes_no_columns(session):
    rows = session.table({"text": ["1", "x", "3"], "keep": [True, True, False]})
    assert rows.select(n=BAD).count() == 3
    assert rows.filter("keep").select(n=BAD).count() == 2
    with pytest.raises(forebay.DataError, match="row 1"):
        rows.filter(f"{BAD} > 0").count()
    assert rows.filter(f"{BAD} > 0").count(on_error="skip") == 2


@pytest.mark.parametrize("query", [
    "SELECT n FROM t WHERE n < 90",
    "SELECT n, [n] AS tokens FROM t WHERE n < 90",
])
def test_the_environment_and_the_options_of_a_pipeline_do_not_matter(session, tmp_path, monkeypatch, query):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    files(tmp_path / "numbers", 100)
    session.sql(f"""CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 'numbers';
        CREATE PIPELINE p WITH (shuffle = true, seed = 3, batch_size = 60, drop_last = true) AS {query}""")
    pipeline = session.pipeline("p")
    assert pipeline.count() == 90
    assert pipeline.to_arrow().column("n").to_pylist() == list(range(90))
    assert pipeline.head(3).column("n").to_pylist() == [0, 1, 2]


def test_a_pipeline_with_length_buckets_can_be_counted(session):
    session.table({"tokens": [[1] * (n % 7) for n in range(100)]}, name="t")
    session.sql("""CREATE PIPELINE p WITH (bucket_by_length = tokens, bucket_boundaries = '2,4', global_batch_size = 8)
        AS SELECT tokens FROM t WHERE array_length(tokens) > 1""")
    assert session.pipeline("p").count() == sum(1 for n in range(100) if n % 7 > 1)


# Rows


def test_the_first_rows_come_without_reading_the_rest(session, tmp_path):
    table = session.table(files(tmp_path / "numbers", 100))
    # The pass would fail at row 60.
    checked = table.select("n", checked="CAST(CASE WHEN n = 60 THEN 'x' ELSE '1' END AS BIGINT)")
    assert checked.head(20).column("n").to_pylist() == list(range(20))
    assert table.filter("n > 90").head().column("n").to_pylist() == [91, 92, 93, 94, 95]
    empty = table.filter("n < 0").head()
    assert empty.num_rows == 0 and empty.schema.names == ["n"]


def test_all_rows_as_arrow_and_pandas(session):
    images = np.arange(3 * 2 * 2 * 3, dtype=np.uint8).reshape(3, 2, 2, 3)
    table = session.table({"image": images, "label": ["a", None, "c"], "n": [1, 2, 3], "tags": [[1], [], None]})
    arrow = table.to_arrow()
    assert arrow.column_names == ["image", "label", "n", "tags"]
    assert arrow.column("label").to_pylist() == ["a", None, "c"]
    assert np.array_equal(arrow.column("image").combine_chunks().to_numpy_ndarray(), images)
    frame = table.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and list(frame.columns) == ["image", "label", "n", "tags"]
    assert frame["n"].tolist() == [1, 2, 3] and frame["label"].isna().tolist() == [False, True, False]
    assert np.array_equal(frame["image"][1], images[1]) and frame["tags"][0].tolist() == [1]
    assert table.to_pandas(columns=["n"]).columns.tolist() == ["n"]


def test_pictures_of_many_shapes_in_pandas(photos):
    frame = photos.select("path", image="decode_image(bytes)").limit(3).to_pandas()
    assert [image.shape for image in frame["image"]] == [(240, 360, 3), (240, 360, 3), (320, 240, 3)]
    [batch] = photos.select(image="decode_image(bytes)").limit(3).load(format="numpy")
    assert all(np.array_equal(a, b) for a, b in zip(frame["image"], batch["image"]))


def test_bfloat16_is_read_as_numbers(session, photos):
    grid = session.table({"x": np.array([[1.5, -2.0], [3.0, 4.0]], dtype=np.float32)})
    table = grid.select(x="cast_tensor(x, type => 'bfloat16')")
    found = table.describe()["x"]
    assert (found["min"], found["max"], found["mean"]) == (-2.0, 4.0, 1.625)
    read = table.to_pandas()["x"]
    assert str(read[0].dtype) == "bfloat16" and read[0].tolist() == [1.5, -2.0] and read[1].tolist() == [3.0, 4.0]
    assert "bfloat16 (2,)" in _gallery.gallery(table.pipeline(), 1, None).html
    image = "resize(decode_image(bytes), 32, 64)"
    plain, cast = (
        decoded(session, thumbnails(_gallery.gallery(photos.select(image=made).pipeline(), 1, None).html))[0].astype(int)
        for made in (f"normalize({image})", f"cast_tensor(normalize({image}), type => 'bfloat16')")
    )
    assert np.abs(plain - cast).mean() < 3


# Values


def test_values_are_counted_the_most_frequent_first(session, tmp_path):
    counts = session.table({"label": ["b", "a", None, "a", "c", "b", "a"]}).value_counts("label")
    assert counts == {"a": 3, "b": 2, None: 1, "c": 1} and list(counts) == ["a", "b", None, "c"]
    assert counts.rows == 7 and counts.column == "label"
    assert str(counts).splitlines()[2] == "a         3  42.9 %"
    many = session.table(files(tmp_path / "numbers", 9000, 9000)).select(digit="n % 10").value_counts("digit")
    assert many == {digit: 900 for digit in range(10)} and list(many) == list(range(10))
    again = pickle.loads(pickle.dumps(counts))
    assert type(again) is forebay.Counts and again == counts and again.column == "label"


def test_all_nans_are_one_value_in_all_batches(session, monkeypatch):
    monkeypatch.setattr("forebay._reading.ROWS", 2)
    counts = session.table({"x": [1.0, math.nan, math.nan, 1.0, math.nan]}).value_counts("x")
    assert sorted(counts.values()) == [2, 3] and len(counts) == 2


@pytest.mark.parametrize("numbers, type, shown", [
    ([1, 2], pa.time64("ns"), ["00:00:00.000000001", "00:00:00.000000002"]),
    (
        [1792888200, 1792891800],
        pa.timestamp("s", "Europe/Berlin"),
        ["2026-10-25 02:30:00+0200", "2026-10-25 02:30:00+0100"],
    ),
    ([2**50], pa.timestamp("s"), ["<value out of range: 1125899906842624>"]),
    ([0, 86400], pa.timestamp("s"), [datetime(1970, 1, 1), datetime(1970, 1, 2)]),
    ([0, None, 1], pa.date32(), [date(1970, 1, 1), None, date(1970, 1, 2)]),
])
def test_different_times_are_different_values(session, numbers, type, shown):
    table = session.table({"x": pa.array([*numbers, *numbers], type)})
    assert table.value_counts("x") == {value: 2 for value in shown}
    count = len(numbers)
    assert table.find_duplicates() == [[row, row + count] for row in range(count)]


def test_too_many_distinct_values_are_an_error_that_says_so(session):
    table = session.table({"id": range(100)})
    assert len(table.value_counts("id", limit=100)) == 100
    with pytest.raises(forebay.ExhaustedError, match='"id" has more than 99 distinct values') as error:
        table.value_counts("id", limit=99)
    assert "limit=990" in error.value.hint


@pytest.mark.parametrize("values", [
    ["short", *(f"{n}".ljust(1000) for n in range(99))],
    [b"short", *(bytes([n]) * 1000 for n in range(99))],
])
def test_the_memory_of_distinct_values_has_a_limit(session, monkeypatch, values):
    monkeypatch.setattr(_counts, "VALUES_BYTES_MIN", 50_000)
    monkeypatch.setattr(_counts, "VALUE_BYTES", 1)
    table = session.table({"my text": values})
    with pytest.raises(forebay.ExhaustedError, match='of the column "my text" take more than 0 MiB: ') as error:
        table.value_counts("my text", limit=100)
    assert len(table.value_counts("my text", limit=200_000)) == 100
    # Values that repeat take no more.
    again = session.table({"my text": values[:10] * 100})
    assert set(again.value_counts("my text").values()) == {100}
    hint = error.value.hint.removeprefix("count their beginnings: ").partition(", or give a limit")[0]
    made = eval(hint, {"table": table})
    assert made.rows == len(made) == 100 and max(map(len, made)) == 100


def test_long_texts_are_read_in_small_batches(session, monkeypatch):
    rows = []

    def counted(self, by, batch_size=None, batches=_reading.Pass.batches):
        for batch in batches(self, by, batch_size):
            rows.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(_reading.Pass, "batches", counted)
    table = session.table({"text": ["a" * 1000, "b" * 1000] * 1000, "n": range(2000)})
    table.value_counts("text")
    table.describe()
    assert max(rows) == _reading.TEXT_ROWS
    rows.clear()
    table.value_counts("n")
    assert rows == [2000]


def test_a_description_holds_no_long_texts(session, monkeypatch):
    columns = []

    def kept(self, facts=_description._Column.facts):
        columns.append(self)
        return facts(self)

    monkeypatch.setattr(_description._Column, "facts", kept)
    texts = [f"{n:>100000}" for n in range(20)]
    found = session.table({"text": [*texts, "short", *texts]}).describe()
    assert found["text"]["distinct"] == 21
    assert sum(map(sys.getsizeof, columns[0]._distinct)) < 2000


@pytest.mark.parametrize("column", ["tokens", "grid", "pair"])
def test_only_single_values_are_counted(session, column):
    table = session.table({"tokens": [[1], [2, 3]], "grid": np.zeros((2, 2)), "pair": [{"a": 1}, {"a": 2}]})
    phrase = f'counts texts, numbers and times, and the column "{column}"'
    with pytest.raises(forebay.InvalidError, match=phrase) as error:
        table.value_counts(column)
    # The hint works.
    made = eval(error.value.hint.removeprefix("count an expression of it: "), {"table": table})
    assert made.rows == 2


def test_columns_must_exist(session):
    table = session.table({"label": ["a"]})
    for call in (table.value_counts, table.find_duplicates):
        with pytest.raises(forebay.InvalidError) as error:
            call("lable")
        assert error.value.hint == "did you mean 'label'?"
        with pytest.raises(forebay.InvalidError, match="must be the name of a column"):
            call(3)


def test_values_in_a_notebook_are_escaped_and_bounded(session):
    text = "<script>alert(1)</script>" + "x" * 1000
    counts = session.table({"label": [text, *map(str, range(500))]}).value_counts("label")
    html = Balanced(counts._repr_html_())
    assert "<script>" not in counts._repr_html_() and len(counts._repr_html_()) < 20_000
    assert "… and 471 more values" in html.texts and counts._repr_html_().count("<svg") == _counts.SHOWN_MAX
    assert len(str(counts).splitlines()) == _counts.SHOWN_MAX + 3


# Descriptions


def test_a_description_has_what_numpy_computes(session, monkeypatch):
    monkeypatch.setattr("forebay._reading.ROWS", 300)
    random = np.random.default_rng(1)
    price = random.gamma(2, 20, 5000)
    price[7] = math.nan
    columns = {
        "price": price,
        "n": random.integers(-5, 5, 5000),
        "text": [None if n % 10 == 0 else "x" * (n % 7) for n in range(5000)],
        "flag": np.arange(5000) % 4 == 0,
        "tokens": [[1] * (n % 3) for n in range(5000)],
        "day": np.arange(5000).astype("datetime64[D]"),
        "bytes": [b"abc"] * 5000,
        "image": random.integers(0, 255, (5000, 2, 3), dtype=np.uint8),
    }
    found = session.table(columns).describe()
    assert found.rows == 5000 and list(found) == list(columns)
    described, finite = found["price"], price[~np.isnan(price)]
    assert described["type"] == "Float64" and described["nulls"] == 0 and described["nan"] == 1
    assert (described["min"], described["max"]) == (finite.min(), finite.max())
    assert math.isclose(described["mean"], finite.mean()) and math.isclose(described["std"], finite.std())
    assert described["median"] == sorted(finite)[(len(finite) - 1) // 2]
    assert found["n"]["distinct"] == 10 and math.isclose(found["n"]["std"], columns["n"].std())
    assert found["text"]["nulls"] == 500 and found["text"]["max characters"] == 6 and found["text"]["distinct"] == 7
    assert found["flag"]["true"] == 1250 and found["tokens"]["max items"] == 2 and found["bytes"]["min bytes"] == 3
    assert str(found["day"]["max"]) == "1983-09-09" and found["image"]["shape"] == (2, 3)
    assert math.isclose(found["image"]["mean"], columns["image"].mean())
    assert sum(found.histograms["price"]) == 4999 and set(found.histograms) == {"price", "n"}
    assert "distinct 10" in str(found) and "shape 2 x 3" in str(found)
    assert pickle.loads(pickle.dumps(found)).rows == 5000


def test_a_long_column_is_sampled_evenly_and_always_alike(session, monkeypatch):
    monkeypatch.setattr(_description, "SAMPLE_MAX", 1000)
    table = session.table({"n": np.arange(20_000)})
    first, second = table.describe(), table.describe()
    assert first == second and first.histograms == second.histograms
    assert sum(first.histograms["n"]) == 1000 and max(first.histograms["n"]) < 80
    assert 8_000 < first["n"]["median"] < 12_000 and first["n"]["distinct"] == "over 1000"


def test_pictures_and_columns_without_values_are_described(photos, session):
    found = photos.select("label", image="decode_image(bytes)").describe()
    assert found["image"]["min shape"] == (240, 240, 3) and found["image"]["max"] == 255
    nulls = {"x": pa.array([None, None], pa.float64()), "t": pa.array([None, None], pa.string())}
    nothing = session.table(nulls).describe()
    assert nothing["x"] == {"type": "Float64", "nulls": 2} and nothing["t"]["nulls"] == 2
    constant = session.table({"x": [2.0, 2.0]}).describe(columns=["x"])
    assert constant["x"]["std"] == 0 and sum(constant.histograms["x"]) == 2
    infinite = session.table({"x": [1.0, math.inf]}).describe()
    assert infinite["x"]["max"] == math.inf and sum(infinite.histograms["x"]) == 1


def test_a_description_in_a_notebook(session):
    found = session.table({"<b>": [1, 2, 3], "t": ["&"] * 3}).describe()
    html = Balanced(found._repr_html_())
    assert "<b>" in html.texts and "<b>" not in found._repr_html_() and found._repr_html_().count("<svg") == 1


@pytest.mark.parametrize("column, low, high", [
    (np.array([1, 2], dtype=np.float16), 1, 2),
    (np.array([[1, 2], [3, 4]], dtype=np.float16), 1, 4),
    (pa.array([5, 7], pa.duration("s")), timedelta(seconds=5), timedelta(seconds=7)),
    (np.zeros((2, 3), dtype="datetime64[s]"), None, None),
    (np.array([["a", "b"], ["c", "d"]]), None, None),
    (pa.array([2, 2**50], pa.timestamp("s")), "1970-01-01 00:00:02", "<value out of range: 1125899906842624>"),
    (pa.array([1, 2], pa.time64("ns")), "00:00:00.000000001", "00:00:00.000000002"),
    ([-1.7e308, 1.7e308], -1.7e308, 1.7e308),
    (pa.array([None, None], pa.month_day_nano_interval()), None, None),
])
def test_no_type_of_a_column_stops_a_description(session, column, low, high):
    found = session.table({"x": column, "n": [1, 2]}).describe()
    assert (found["x"].get("min"), found["x"].get("max")) == (low, high) and found["n"]["max"] == 2
    Balanced(found._repr_html_())


# Duplicates


def test_pictures_that_were_copied_are_found(session, tmp_path):
    for folder, name, content in [("a", "1", b"one"), ("a", "2", b"two"), ("b", "3", b"one"), ("b", "4", b"one")]:
        (tmp_path / "media" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "media" / folder / f"{name}.jpg").write_bytes(content)
    found = session.table("media/").find_duplicates()
    assert found == [["a/1.jpg", "b/3.jpg", "b/4.jpg"]] and found.extra == ["b/3.jpg", "b/4.jpg"]
    assert found.columns == ["bytes"] and found.rows == 4
    assert str(found).startswith("2 of 4 rows repeat another row's bytes, in 1 groups\n  a/1.jpg, b/3.jpg")
    assert "a/1.jpg" in Balanced(found._repr_html_()).texts[-1]


def test_rows_of_every_type_are_compared_by_their_content(session, monkeypatch):
    monkeypatch.setattr("forebay._reading.LARGE_ROWS", 2)
    columns = {
        "text": ["a", "b", "a", "a", "a", None],
        "tokens": pa.array([[1, 2], [1], [1, 2], [1, 2], [1, 2, 0], None], pa.list_(pa.int32())),
        "grid": np.array([[1, 2], [3, 4], [1, 2], [1, 2], [1, 2], [0, 0]], dtype=np.float32),
        "pair": [*[{"x": x, "t": "u"} for x in (1, 1, 1, 2, 1)], None],
        "flags": [[True], [True], [True], [True], [True], []],
    }
    table = session.table(columns)
    assert table.find_duplicates() == [[0, 2]]
    assert table.find_duplicates("text") == [[0, 2, 3, 4]]
    assert table.find_duplicates("tokens") == [[0, 2, 3]]
    assert table.find_duplicates("grid") == [[0, 2, 3, 4]]
    assert table.find_duplicates("pair") == [[0, 1, 2, 4]]
    assert table.find_duplicates("flags", "text") == [[0, 2, 3, 4]]


def test_the_borders_of_values_are_part_of_the_content(session):
    table = session.table({"a": ["x", "xy", "", None], "b": ["yz", "z", "xyz", "xyz"]})
    assert table.find_duplicates() == []
    assert session.table({"a": [{"p": "x", "q": "yz"}, {"p": "xy", "q": "z"}]}).find_duplicates() == []


@pytest.mark.parametrize("column, groups", [
    # Bytes that are the text of other values.
    (pa.array([[1, None], list(b"[1, None]"), [1, None]], pa.list_(pa.uint8())), [[0, 2]]),
    ([0.0, -0.0, 1.0], [[0, 1]]),
    (np.array([[0.0, 1.0], [-0.0, 1.0], [0.0, 2.0]]), [[0, 1]]),
    (np.array([0x7FF8000000000000, 0x7FF8000000000001, 0], dtype=np.uint64).view(np.float64).reshape(3, 1), [[0, 1]]),
    (np.array([[0.0], [-0.0], [1.0]], dtype=np.float16), [[0, 1]]),
    ([{"bytes": b"x", "path": "a"}, {"bytes": b"x", "path": "b"}, {"bytes": b"y", "path": "a"}], [[0, 1]]),
    ([{"bytes": None, "path": "a"}, {"bytes": None, "path": "b"}, {"bytes": None, "path": "a"}], [[0, 2]]),
    (pa.array([[[1], [2]], [[1, 2]], [[1], [2]]], pa.list_(pa.list_(pa.int8()))), [[0, 2]]),
    (pa.array([[1], [2], [1]], pa.list_(pa.time64("ns"))), [[0, 2]]),
    ([["a", "b"], ["ab"], ["a", "b"]], [[0, 2]]),
    ([[{"a": 1}], [{"a": 2}], [{"a": 1}]], [[0, 2]]),
])
def test_equal_content_is_found_and_other_content_is_not(session, column, groups):
    assert session.table({"x": column}).find_duplicates() == groups


def test_too_many_different_rows_are_an_error(session):
    with pytest.raises(forebay.ExhaustedError, match="more than 9 different rows"):
        session.table({"n": range(10)}).find_duplicates(limit=9)


def test_too_many_repeated_rows_are_an_error(session):
    with pytest.raises(forebay.ExhaustedError, match="more than 9 rows that repeat another row's label"):
        session.table({"label": [n % 2 for n in range(20)]}).find_duplicates("label", limit=9)


# Splits


def test_a_split_divides_the_rows_by_a_column(photos):
    train, test = photos.split(0.9, by="path")
    whole = photos.to_arrow(columns=["path"]).column("path").to_pylist()
    parts = [part.to_arrow(columns=["path"]).column("path").to_pylist() for part in (train, test)]
    assert sorted(parts[0] + parts[1]) == whole and 12 <= len(parts[1]) <= 36
    assert test.sql.endswith("WHERE (coalesce(hash_bucket(\"path\", buckets => 1000000, seed => 0), 0) >= 900000)")
    other = photos.split(0.9, by="path", seed=1)[1].to_arrow(columns=["path"]).column("path").to_pylist()
    assert other != parts[1]


def test_a_row_keeps_its_part_when_rows_are_added(session):
    few, more = ({"user": [f"user {n}" for n in range(count)]} for count in (100, 300))

    def part(rows):
        return set(session.table(rows).split(0.7, by="user")[0].to_arrow().column("user").to_pylist())

    assert part(few) == {user for user in part(more) if int(user.split()[1]) < 100}


def test_several_parts_nulls_and_equal_values(session):
    table = session.table({"user": [None if n % 50 == 0 else n % 97 for n in range(1000)], "n": range(1000)})
    parts = [part.to_arrow() for part in table.split(0.6, 0.2, 0.2, by="user")]
    users = [set(part.column("user").to_pylist()) for part in parts]
    assert sum(part.num_rows for part in parts) == 1000 and None in users[0]
    assert not users[0] & users[1] and not users[1] & users[2] and not users[0] & users[2]


def test_a_split_of_selected_columns(session):
    table = session.table({"n": range(100)}).select("n", half="n / 2")
    train, test = table.filter("n > 9").split(0.5, by="half")
    assert train.count() + test.count() == 90 and list(train.columns) == ["n", "half"]


@pytest.mark.parametrize(
    "fractions, options, phrase",
    [
        ((), {}, "needs fractions"),
        ((1,), {}, "above 0 and below 1, got 1"),
        ((0.5, "x"), {}, "above 0 and below 1, got 'x'"),
        ((0.5, 0.4), {}, "must sum to 1"),
        ((0.5,), {"by": "m"}, '"by" must be'),
        ((0.5,), {"seed": -1}, '"seed" must be'),
        ((0.5,), {"seed": 2**63}, '"seed" must be at most 9223372036854775807'),
        ((0.9999999,), {}, "at least a fraction of 0.000001, and one has 1e-07"),
        ((1e-9, 0.5, 0.5 - 1e-9), {}, "and one has 1e-09"),
        ((math.nan,), {}, "above 0 and below 1, got nan"),
        ((0.5,), {"by": "day"}, 'numbers, texts, booleans and bytes, and the column "day" is a Date32'),
    ],
)
def test_a_split_is_refused_with_the_reason(session, fractions, options, phrase):
    with pytest.raises(forebay.InvalidError, match=phrase):
        session.table({"n": [1], "day": [date(2026, 1, 1)]}).split(*fractions, **{"by": "n", **options})


@pytest.mark.parametrize("fractions", [[np.float32(0.8), np.float32(0.1), np.float32(0.1)], [Fraction(1, 3)], [1e-6]])
def test_fractions_of_a_split_are_any_numbers(session, fractions):
    parts = session.table({"n": range(100)}).split(*fractions, by="n", seed=2**63 - 1)
    assert sum(part.count() for part in parts) == 100


def test_rows_are_split_by_the_text_of_a_time(session):
    table = session.table({"day": np.arange(100).astype("datetime64[D]")})
    with pytest.raises(forebay.InvalidError) as error:
        table.split(0.9, by="day")
    train, test = eval(error.value.hint.split(": ")[1], {"table": table})
    assert train.count() + test.count() == 100 and test.count() > 0


def test_a_part_is_not_split_by_the_same_numbers_again(session):
    train, _ = session.table({"n": range(1000)}).split(0.9, by="n")
    for again, column in [(train, "n"), (train.select(key="n"), "key")]:
        with pytest.raises(forebay.InvalidError, match="split with seed 0 already") as error:
            again.split(0.9, by=column)
    assert "another seed" in error.value.hint
    assert 40 < train.split(0.9, by="n", seed=1)[1].count() < 140


# Pictures


def thumbnails(html):
    return [base64.b64decode(found) for found in re.findall(r'src="data:image/jpeg;base64,([^"]+)"', html)]


def decoded(session, jpegs):
    rows = session.table({"bytes": jpegs}).select(image="decode_image(bytes)").load(format="numpy", batch_size=100)
    return [image for batch in rows for image in batch["image"]]


def test_a_table_of_pictures_has_thumbnails(photos, session):
    shown = _gallery.gallery(photos.pipeline(), 3, None)
    Balanced(shown._repr_html_())
    small = thumbnails(shown.html)
    assert [image.shape for image in decoded(session, small)] == [(85, 128, 3), (85, 128, 3), (128, 96, 3)]
    [first] = photos.limit(1).select(image="resize(decode_image(bytes), 85, 128)").load(format="numpy")
    assert np.abs(decoded(session, small)[0].astype(int) - first["image"][0]).mean() < 6
    assert "astronaut/000.jpg" in Balanced(shown.html).texts and "17245 bytes" in str(shown)


@pytest.mark.parametrize("image", [
    "decode_image(bytes)", "resize(decode_image(bytes), 32, 64)", "normalize(resize(decode_image(bytes), 32, 64))",
])
def test_decoded_and_normalized_pictures_have_thumbnails(photos, session, image):
    shown = _gallery.gallery(photos.select("label", image=image).pipeline(), 2, None)
    for small in decoded(session, thumbnails(shown.html)):
        assert small.shape in [(32, 64, 3), (85, 128, 3)] and small.std() > 20
    assert len(thumbnails(shown.html)) == 2


def test_other_columns_are_texts_and_bounded(session):
    table = session.table({
        "bytes": [b"no picture", None, b""],
        "text": ["<script>", "y" * 10_000, "z"],
        "grid": np.zeros((3, 4), dtype=np.float32),
    })
    shown = _gallery.gallery(table.pipeline(), 3, None)
    texts = Balanced(shown.html).texts
    assert thumbnails(shown.html) == [] and "<script>" in texts and "10 bytes" in texts and "None" in texts
    assert len(shown.html) < 5000 and "<script>" not in shown.html


def test_rows_that_cannot_be_processed_are_left_out_and_counted(session):
    table = session.table({"text": ["1", "x", "3"]}).select(n=BAD)
    shown = _gallery.gallery(table.pipeline(), 2, None)
    assert "left out 1 rows" in str(shown) and shown.html.count("<figure>") == 2
    with pytest.raises(forebay.DataError):
        table.show(on_error="raise")


def test_show_prints_or_displays(session, capsys, monkeypatch):
    table = session.table({"n": [1, 2]})
    assert table.show() is None
    assert capsys.readouterr().out.splitlines() == ["n: Int64", "--------", "1", "2"]
    displayed = []
    notebook = SimpleNamespace(get_ipython=lambda: "a shell", display=SimpleNamespace(display=displayed.append))
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    table.show(rows=1)
    assert displayed[0]._repr_html_().count("<figure>") == 1 and capsys.readouterr().out == ""


# Packages


def test_without_pyarrow_and_pandas_errors_name_them(tmp_path):
    (tmp_path / "n.csv").write_text("n,text\n1,a\n2,b\n3,c\n")
    code = f"""
import json, sys
for name in ("pyarrow", "pandas"):
    sys.modules[name] = None
import forebay
table = forebay.table({str(tmp_path / "n.csv")!r})
train, test = table.split(0.5, by="text")
results = [table.count(), table.filter("n > 1").count(), train.count() + test.count()]
for call in (table.head, table.to_arrow, table.describe, table.find_duplicates, lambda: table.value_counts("text"),
             lambda: forebay.table({{"n": [1]}}), lambda: forebay.table(["a.jpg"]), table.to_pandas):
    try:
        call()
    except forebay.InvalidError as error:
        results.append([error.message.split(":")[0], error.hint])
sys.stdout, out = sys.stderr, sys.stdout
table.show()
print(json.dumps(results), file=out)
"""
    three, two, split, *errors = printed(code)
    assert (three, two, split) == (3, 2, 3)
    names = ["head", "to_arrow", "describe", "find_duplicates", "value_counts"]
    names += ["a table of a dict", "a table of a list of paths"]
    assert errors[:-1] == [[f"{name} needs the package pyarrow", "pip install pyarrow"] for name in names]
    assert errors[-1] == ["to_pandas needs the package pandas", "pip install pandas"]
