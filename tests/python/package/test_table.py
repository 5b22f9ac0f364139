"""What the Table builder makes that changes which rows there are."""

import pyarrow as pa
import pytest

import forebay


@pytest.fixture
def table():
    rows = {"n": list(range(200)), "words": [[n] * (n % 4) for n in range(200)]}
    return forebay.Session().table(pa.table(rows), name="rows")


def values(table, name="n", **options):
    return [value for batch in table.load(format="numpy", **options) for value in batch[name].tolist()]


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
