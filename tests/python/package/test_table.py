"""Methods of the Table builder that change the set of rows."""

import datetime
import gc

import numpy as np
import pyarrow as pa
import pytest

import forebay
from forebay._sql import literal


@pytest.fixture
def table():
    rows = {"n": list(range(200)), "words": [[n] * (n % 4) for n in range(200)]}
    return forebay.Session().table(pa.table(rows), name="rows")


def _plain(column):
    return column if isinstance(column, list) else column.tolist()


def values(table, name="n", **options):
    return [value for batch in table.load(format="numpy", **options) for value in _plain(batch[name])]


def test_the_first_rows(table):
    first = table.limit(7)
    assert values(first) == list(range(7))
    assert first.load(format="numpy").samples_per_epoch == 7
    assert values(table.limit(20).filter("n % 2 = 0").select("n")) == list(range(0, 20, 2))


def test_a_sample_is_a_part_of_the_table_and_no_matter_of_the_loader(table):
    sample = values(table.sample(0.3))
    assert 30 < len(sample) < 90
    assert sorted(values(table.sample(0.3), shuffle=True, seed=5)) == sample
    assert values(table.sample(0.3, seed=1)) != sample


def test_a_row_for_each_item_of_a_list(table):
    expected = [n for n in range(200) for _ in range(n % 4)]
    assert values(table.unnest("words"), "words") == expected
    assert sorted(values(table.unnest("words"), "n", shuffle=True, batch_size=7)) == expected


@pytest.fixture
def labels(table):
    rows = {"n": [3, 5, 5, None, 900], "name": ["c", "e", "E", "none", "far"]}
    return table._session.table(pa.table(rows), name="labels")


def test_rows_are_joined_with_a_table_in_memory(table, labels):
    joined = table.join(labels, on="n")
    assert list(joined.columns) == ["n", "words", "name"]
    assert values(joined, "n") == [3, 5, 5]
    assert values(joined, "name") == ["c", "e", "E"]
    left = table.join(labels.filter("name <> 'E'"), on=["n"], how="left").filter("n < 6")
    assert values(left, "n") == list(range(6))
    assert values(left, "name") == [None, None, None, "c", None, "e"]
    assert sorted(values(left, "n", shuffle=True, seed=3)) == list(range(6))


def test_the_columns_of_a_join_may_have_other_names(table, labels):
    renamed = labels.select("name", key="n")
    assert values(table.join(renamed, on={"n": "key"}), "name") == ["c", "e", "E"]
    twice = table.join(renamed, on={"n": "key"}).join(labels.select("n", again="name"), on="n")
    assert sorted(values(twice, "again")) == ["E", "E", "c", "e", "e"]
    frame = pa.table({"n": [7], "name": ["g"]})
    assert values(table.join(frame, on="n"), "name") == ["g"]


def test_a_join_is_refused_with_the_reason(table, labels):
    for arguments, reason in [
        ({"on": []}, '"on" must be'),
        ({"on": {"n": 3}}, '"on" must be'),
        ({"on": "n", "how": "outer"}, '"how" must be'),
        ({"on": "m"}, "m"),
    ]:
        with pytest.raises(forebay.InvalidError, match=reason):
            table.join(labels, **arguments).columns
    with pytest.raises(forebay.InvalidError, match="one session"):
        table.join(forebay.Session().table(pa.table({"n": [1]})), on="n")
    with pytest.raises(forebay.InvalidError, match="TABLESAMPLE"):
        table.join(labels, on="n").sample(0.5).columns


def test_lists_are_packed_into_rows_of_one_length(table):
    packed = table.select("words").pack(16, pad_id=-1)
    [batch] = packed.load(format="torch", batch_size=1000)
    assert batch["input_ids"].shape[1:] == (16,)
    tokens = batch["input_ids"][batch["input_ids"] >= 0].tolist()
    assert sorted(tokens) == sorted(n for n in range(200) for _ in range(n % 4))
    assert batch["tokens"].sum() == len(tokens)
    assert batch["position_ids"].shape == batch["labels"].shape == batch["input_ids"].shape
    assert forebay.Ragged is type(batch["cu_seq_lens"])


def test_packed_rows_resume_in_the_middle(table):
    options = {"format": "numpy", "batch_size": 2, "shuffle": True, "seed": 3}
    packed = table.select("words").pack(16)
    loader, rest = packed.load(**options), []
    for step, batch in enumerate(loader):
        if step == 3:
            state = loader.state_dict()
        elif step > 3:
            rest.append(batch["input_ids"].tolist())
    again = packed.load(**options)
    again.load_state_dict(state)
    assert [batch["input_ids"].tolist() for batch in again] == rest != []


LITERALS = [
    (np.float64(0.5), "0.5"),
    (np.float32(0.25), "0.25"),
    (np.int64(-3), "-3"),
    (np.uint8(7), "7"),
    (np.bool_(True), "true"),
    (np.str_("it's"), "'it''s'"),
    (np.array([1, 2]), "[1, 2]"),
    (np.datetime64("2026-02-03"), "DATE '2026-02-03'"),
    (np.datetime64("2026-02"), "DATE '2026-02-01'"),
    (np.datetime64("2026-02-03T04:05"), "TIMESTAMP '2026-02-03 04:05:00'"),
    (np.datetime64("2026-02-03T04:05:06.789"), "TIMESTAMP '2026-02-03 04:05:06.789'"),
    (datetime.date(2026, 2, 3), "DATE '2026-02-03'"),
    (datetime.datetime(2026, 2, 3, 4, 5), "TIMESTAMP '2026-02-03 04:05:00'"),
    ([True, 1.5, "a"], "[true, 1.5, 'a']"),
]


@pytest.mark.parametrize("value, text", LITERALS, ids=str)
def test_values_are_written_as_sql(value, text):
    assert literal("x", value) == text


NO_VALUES = [float("nan"), np.float32("inf"), np.datetime64("NaT"), object(), None, 1j]


@pytest.mark.parametrize("value", NO_VALUES, ids=lambda value: type(value).__name__)
def test_what_sql_cannot_write_is_refused(value):
    with pytest.raises(forebay.InvalidError, match='"x" must be a'):
        literal("x", value)


def test_any_texts_are_values_in_a_query():
    names = ["cat", "devil's ivy", 'a "b"', "C:\\new", "two\nlines", "caf\u00e9\u200b", ""]
    numbered = forebay.table({"label": names}).select(n=f"index_of(label, values => {forebay.literal(names)})")
    assert numbered.to_arrow()["n"].to_pylist() == list(range(len(names)))
    with pytest.raises(forebay.InvalidError, match='"value" must be a finite number, a text'):
        forebay.literal(None)


def test_numpy_numbers_are_options(table):
    packed = table.select("words").pack(np.int64(16), pad_id=np.int32(-1))
    assert packed.load(format="numpy", batch_size=1000).columns == table.select("words").pack(16, pad_id=-1).load().columns
    assert values(table.sample(np.float64(0.3))) == values(table.sample(0.3))
    with pytest.raises(forebay.InvalidError, match='"fraction" must be above 0 and at most 1, got True'):
        table.sample(True)


def tables(session):
    return [name for [name, *_] in session._native.execute("tables", "SHOW TABLES")[0][1:]]


def test_frames_without_a_name_go_with_their_last_table():
    session = forebay.Session()
    rows = pa.table({"n": range(10)})
    first, second = session.table(rows), session.table(rows)
    filtered = first.filter("n > 5").select(m="n")
    [name] = tables(session)
    del first
    gc.collect()
    assert tables(session) == [name]
    del second
    gc.collect()
    assert tables(session) == [name] and filtered.columns == {"m": "Int64"}
    made = filtered.pipeline()
    loader = made.load(format="numpy", batch_size=2)
    del filtered
    gc.collect()
    assert tables(session) == []
    # The pipeline keeps its rows alive, and so does a loader.
    assert [batch["m"].tolist() for batch in loader] == [[6, 7], [8, 9]]
    assert [batch["m"].tolist() for batch in made.load(format="numpy", batch_size=4)] == [[6, 7, 8, 9]]
    again = session.table(rows)
    assert tables(session) == [name] and values(again) == list(range(10))


def test_frames_with_a_name_stay():
    session = forebay.Session()
    session.table(pa.table({"n": range(10)}), name="kept")
    session.sql("SELECT n FROM other", other=pa.table({"n": range(3)}))
    gc.collect()
    assert tables(session) == ["kept", "other"]


def test_errors_of_files_show_no_sql_that_nobody_wrote(tmp_path):
    session = forebay.Session(base=tmp_path)
    with pytest.raises(forebay.NotFoundError) as raised:
        session.table("nothing/rows.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    with pytest.raises(forebay.Error) as broken:
        session.table("bad.parquet")
    for error in (raised.value, broken.value):
        assert "CREATE" not in str(error) and "^" not in str(error)
    assert "nothing" in raised.value.message and "relative paths start at" in raised.value.hint


def test_a_join_holds_the_frames_of_both_sides():
    session = forebay.Session()
    joined = session.table(pa.table({"n": [1, 2]})).join(pa.table({"n": [1, 2], "m": [5, 6]}), on="n")
    gc.collect()
    assert len(tables(session)) == 2
    assert sorted(values(joined, "m")) == [5, 6]
    del joined
    gc.collect()
    assert tables(session) == []
