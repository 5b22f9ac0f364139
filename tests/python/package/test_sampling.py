"""Repeated, balanced, paired and stratified rows, and functions that draw."""

import collections

import numpy as np
import pyarrow as pa
import pytest

import forebay
from forebay import InvalidError

ROWS = {
    "n": list(range(300)),
    "label": ["cat"] * 200 + ["dog"] * 80 + [None] * 15 + ["it's"] * 5,
}


@pytest.fixture
def table():
    return forebay.Session().table(pa.table(ROWS), name="rows")


def column(table, name, epoch=0, **options):
    options = {"batch_size": 64, "seed": 3, "epochs": epoch + 1, "from_": f"{epoch}:0", **options}
    start = options.pop("from_")
    loader = table.load(format="numpy", drop_last=False, **options)
    if start != "0:0":
        loader.set_epoch(epoch)
    return [value for batch in loader for value in list(batch[name])]


def classes(table, epoch=0):
    return collections.Counter(column(table, "label", epoch))


def test_rows_are_repeated_by_a_column_with_other_draws_in_each_epoch(table):
    repeated = table.filter("n < 200").with_column("times", "n % 3 + 0.25").repeat("times")
    epochs = [column(repeated, "n", epoch) for epoch in range(3)]
    assert epochs[0] == column(repeated, "n", 0) and epochs[0] != epochs[1]
    for epoch in epochs:
        times = collections.Counter(epoch)
        assert all(times[n] in (n % 3, n % 3 + 1) for n in range(200))
        assert 20 < sum(times[n] - n % 3 for n in range(200)) < 85


def test_repetitions_draw_by_themselves(table):
    draws = column(table.limit(2).select(times="3").repeat("times").select(draw="random_int(1000000)"), "draw")
    assert len(set(draws)) == 6


@pytest.mark.parametrize("to, size", [("largest", 200), ("mean", 75), ("smallest", 5)])
def test_classes_are_balanced(table, to, size):
    balanced = table.balance("label", to=to)
    assert list(balanced.columns) == ["n", "label"]
    found = sum((classes(balanced, epoch) for epoch in range(4)), collections.Counter())
    assert set(found) == {"cat", "dog", None, "it's"}
    assert all(abs(count / 4 - size) < 0.25 * size + 2 for count in found.values()), found


def test_numbers_and_truth_values_are_balanced_and_a_column_keeps_its_name(table):
    rows = {"times": [1.5, 1.5, 1.5, float("nan"), None, -2.0], "flag": [True] * 5 + [False]}
    rows = table._session.table(pa.table(rows))
    balanced = rows.balance("times")
    assert list(balanced.columns) == ["times", "flag"]
    texts = collections.Counter(str(value) for value in column(balanced, "times"))
    assert texts == {"1.5": 3, "nan": 6, "-2.0": 3} or sum(texts.values()) == 12
    assert collections.Counter(column(rows.balance("flag"), "flag")) == {True: 5, False: 5}


def test_what_cannot_be_balanced_is_refused(table):
    with pytest.raises(InvalidError, match="'largest', 'mean' or 'smallest'|largest"):
        table.balance("label", to="median")
    with pytest.raises(InvalidError, match="lable"):
        table.balance("lable")
    with pytest.raises(InvalidError, match="no row has a \"label\" to balance"):
        table.filter("n < 0 AND n > -2").balance("label")


def test_a_stratified_split_has_each_label_by_its_share(table):
    train, test = table.split(0.8, by="n", stratify="label")
    assert classes(train) == {"cat": 160, "dog": 64, None: 12, "it's": 4}
    assert classes(test) == {"cat": 40, "dog": 16, None: 3, "it's": 1}
    assert sorted(column(train, "n") + column(test, "n")) == ROWS["n"]
    other = table.split(0.8, by="n", stratify="label", seed=1)[1]
    assert classes(other) == classes(test) and set(column(other, "n")) != set(column(test, "n"))
    three = table.split(0.7, 0.2, 0.1, by="n", stratify="label")
    assert [classes(part)["cat"] for part in three] == [140, 40, 20]
    assert sorted(sum((column(part, "n") for part in three), [])) == ROWS["n"]


@pytest.mark.parametrize("stratify", [None, "label"])
def test_each_row_is_validated_by_one_fold_and_trains_the_others(table, stratify):
    folds = table.folds(4, by="n", stratify=stratify)
    validated = [column(validation, "n") for _, validation in folds]
    assert sorted(sum(validated, [])) == ROWS["n"] and all(validated)
    for (train, _), others in zip(folds, validated, strict=True):
        assert sorted(column(train, "n") + others) == ROWS["n"]
    if stratify:
        assert [classes(validation)["dog"] for _, validation in folds] == [20] * 4
    assert column(table.folds(4, by="n", stratify=stratify, seed=1)[0][1], "n") != validated[0]


@pytest.mark.parametrize("rows, labels, count", [(1, 300, 5), (3, 100, 5), (7, 40, 3), (2, 1, 2)])
def test_labels_with_few_rows_are_spread_over_folds(table, rows, labels, count):
    given = {"id": range(rows * labels), "label": [row // rows for row in range(rows * labels)]}
    folds = table._session.table(given).folds(count, by="id", stratify="label")
    sizes = [validation.count() for _, validation in folds]
    assert sum(sizes) == rows * labels and max(sizes) - min(sizes) <= 2 + labels // 50, sizes
    for _, validation in folds:
        assert all(of in (rows // count, -(-rows // count)) for of in validation.value_counts("label").values())


def test_groups_are_not_torn_apart(table):
    groups = {"patient": [row // 6 for row in range(240)], "label": [row // 12 for row in range(240)]}
    folds = table._session.table(groups).folds(4, by="patient", stratify="label")
    patients = [set(validation.value_counts("patient")) for _, validation in folds]
    assert set().union(*patients) == set(range(40)) and sum(map(len, patients)) == 40
    assert [len(of) for of in patients] == pytest.approx([10] * 4, abs=2)
    mixed = table._session.table({"patient": [row % 9 for row in range(90)], "label": [row % 2 for row in range(90)]})
    with pytest.raises(InvalidError, match='"patient" has rows of several values of "label"'):
        mixed.split(0.8, by="patient", stratify="label")


def test_rows_without_a_value_have_a_fold_and_wrong_folds_are_refused(table):
    folds = table.folds(3, by="label")
    assert sorted(row for _, rows in folds for row in rows.to_arrow().column("n").to_pylist()) == ROWS["n"]
    for count in (1, 2.5, "3", 100_000):
        with pytest.raises(InvalidError, match='"count" must be'):
            table.folds(count, by="n")
    with pytest.raises(InvalidError, match="already"):
        folds[0][0].split(0.5, by="label")


def test_labels_of_any_kind_are_stratified(table):
    rows = {"id": list(range(40)), "label": [1.0, float("nan")] * 10 + [None] * 20, "flag": [True, False] * 20}
    rows = table._session.table(pa.table(rows))
    for label, count in [("label", [5, 5, 10]), ("flag", [10, 10])]:
        half, rest = rows.split(0.5, by="id", stratify=label)
        found = collections.Counter(str(value) for value in half.to_arrow().column(label).to_pylist())
        assert sorted(found.values()) == count
        assert rest.count() == 20


@pytest.mark.parametrize(
    "options, phrase",
    [
        ({"by": "n", "stratify": "lable"}, "lable"),
        ({"by": "n", "stratify": "words"}, "divides by texts, numbers and times"),
        ({"by": "words", "stratify": "n"}, "a split divides by numbers, texts"),
        ({"by": "n", "stratify": 3}, '"stratify" must be'),
    ],
)
def test_a_stratified_split_is_refused_with_the_reason(table, options, phrase):
    rows = table._session.table({"n": [1, 2], "words": [["a"], ["b"]]})
    with pytest.raises(InvalidError) as error:
        rows.split(0.5, **options)
    assert phrase in str(error.value)


def test_a_stratified_part_is_not_split_by_the_same_numbers_again(table):
    train, _ = table.split(0.8, by="n", stratify="label")
    with pytest.raises(InvalidError, match="already"):
        train.split(0.5, by="n")


def test_rows_get_partners_and_negatives(table):
    known = table.filter("label IS NOT NULL")
    pairs = known.pair_rows(same="label")
    assert list(pairs.columns) == ["n", "label", "partner_n", "partner_label"]
    assert column(pairs, "label") == column(pairs, "partner_label")
    assert all(own != other for own, other in zip(column(pairs, "n"), column(pairs, "partner_n")))
    others = known.pair_rows(different="label", prefix="other_")
    assert all(own != other for own, other in zip(column(others, "label"), column(others, "other_label")))
    negatives = np.array(column(table.sample_negatives("n", 4), "negatives"))
    assert negatives.shape == (300, 4)
    assert not (negatives == np.arange(300)[:, None]).any()
    assert column(table.sample_negatives("n", 4), "negatives", 1)[0].tolist() != negatives[0].tolist()


@forebay.udf(input="int64", output="float64", version=1, rng=True)
def noisy(n, rngs):
    assert len(rngs) == len(n) and rngs[-1] is rngs[len(n) - 1]
    return np.array([value + rng.random() for value, rng in zip(n.to_pylist(), rngs)])


@forebay.udf(input="int64", output="float64", version=1, rng=True, processes=1)
def noisy_elsewhere(n, rngs):
    return noisy(n, rngs)


@forebay.udf(input=[], output="int64", version=1, rng=True)
def dice(rngs):
    return np.array([rng.integers(1, 7) for rng in rngs])


def test_a_function_draws_by_seed_epoch_row_and_call(table):
    one = table.select("n", a="noisy(n)", b="noisy(n + 0)", die="dice()")
    a = column(one, "a")
    assert a == column(one, "a", batch_size=7)
    assert [int(value) for value in a] == ROWS["n"] and len({value % 1 for value in a}) == 300
    assert all(left != right for left, right in zip(a, column(one, "b")))
    assert all(left != right for left, right in zip(a, column(one, "a", epoch=1)))
    assert a != column(one, "a", seed=4)
    shuffled = column(one, "a", shuffle=True)
    assert shuffled != a and sorted(shuffled) == a
    assert set(column(one, "die")) == set(range(1, 7))


def test_a_function_draws_in_a_worker_process_too(table):
    elsewhere = table.select(a="noisy_elsewhere(n)")
    a = column(elsewhere, "a")
    assert a == column(elsewhere, "a", batch_size=7)
    assert [int(value) for value in a] == ROWS["n"] and len({value % 1 for value in a}) == 300


def test_a_function_draws_alike_on_ranks_after_a_resume_and_from_a_server(table):
    rows = table.select("n", a="noisy(n)", b="noisy_elsewhere(n)", die="dice()").filter("die <> 3")
    options = {"shuffle": True, "seed": 3, "format": "numpy"}

    def drawn(batches):
        return [tuple(row) for batch in batches for row in zip(*(batch[name].tolist() for name in "n a b die".split()))]

    def dealt(parts):
        """The rows of two ranks, whose batches of each step follow each other."""
        return drawn(batch for step in zip(*parts, strict=True) for batch in step)

    whole = drawn(rows.load(batch_size=8, epochs=2, **options))
    assert 400 < len(whole) < 600 and len(set(whole)) == len(whole)
    loaders = [rows.load(batch_size=4, epochs=2, drop_last=True, rank=rank, world_size=2, **options) for rank in (0, 1)]
    dropped = drawn(rows.load(batch_size=8, epochs=2, drop_last=True, **options))
    assert dealt(loaders) == dropped

    first = rows.load(batch_size=8, epochs=2, drop_last=True, **options)
    batches = iter(first)
    head = drawn([next(batches) for _ in range(7)])
    state = first.state_dict()
    resumed = [rows.load(batch_size=4, epochs=2, drop_last=True, rank=rank, world_size=2, **options) for rank in (0, 1)]
    for loader in resumed:
        loader.load_state_dict(state)
    assert head + dealt(resumed) == dropped

    session = table._session
    session.sql(
        "CREATE PIPELINE drawn AS SELECT * FROM "
        "(SELECT n, noisy(n) AS a, noisy_elsewhere(n) AS b, dice() AS die FROM numbered) WHERE die <> 3",
        numbered=pa.table(ROWS),
    )
    own = drawn(session.load("drawn", batch_size=8, epochs=2, **options))
    with session.serve() as server:
        cluster = forebay.connect(server.uri)
        served = [cluster.load("drawn", batch_size=4, epochs=2, rank=rank, world_size=2, **options) for rank in (0, 1)]
        batches = [list(loader) for loader in served]
    assert sorted(drawn(batches[0]) + drawn(batches[1])) == sorted(own)
    assert drawn(batches[0])[:4] == own[:4] and drawn(batches[1])[:4] == own[4:8]


def test_a_function_that_draws_is_checked(table):
    assert forebay.check_udf(noisy) == [] and forebay.check_udf(dice) == []
    with pytest.raises(InvalidError, match="rng"):
        forebay.udf(lambda x: x, input="int64", output="int64", name="wrong", rng="yes")


def test_rows_of_one_generator_go_on_and_slices_are_lists():
    from forebay._generators import Generators

    rngs = Generators([1, 2, 3])
    assert rngs[1].random() != rngs[1].random()
    assert rngs[1:] == [rngs[1], rngs[2]] and list(rngs) == rngs[:]
    with pytest.raises(IndexError):
        rngs[3]
