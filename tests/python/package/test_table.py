"""What the Table builder makes that changes which rows there are."""

import pyarrow as pa
import pytest

import forebay


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
        ({"on": "n", "how": "right"}, '"how" must be'),
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
