"""One loop is one epoch, or the requested number of epochs. Also loops after `break`, `skip` and a restart."""

import itertools

import numpy as np
import pytest

import forebay
from feeds import numbers, pipeline, range_of, same, values


def test_one_loop_is_one_epoch_and_the_next_loop_the_next():
    loader = numbers(100, batch_size=8, shuffle=True, seed=5)
    epochs = []
    for epoch in range(3):
        assert loader.epoch == epoch
        epochs.append(values(loader))
    assert [sorted(order) for order in epochs] == [list(range(100))] * 3
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_without_shuffle_the_order_is_the_files():
    assert values(numbers(100, batch_size=8)) == list(range(100))


def test_epochs_are_one_loop():
    shared = pipeline({"n": range_of(100)})
    single = shared.load(format="arrow", batch_size=8, shuffle=True)
    expected = [value for _ in range(3) for value in values(single)]
    loader = shared.load(format="arrow", batch_size=8, shuffle=True, epochs=3)
    assert values(loader) == expected
    # The next loop covers the same epochs again.
    assert values(loader) == expected


def test_a_batch_never_spans_two_epochs():
    assert [len(batch) for batch in numbers(20, batch_size=8, epochs=2)] == [8, 8, 4] * 2


@pytest.mark.parametrize(
    "options, batches",
    [
        ({}, 13),
        ({"drop_last": True}, 12),
        ({"epochs": 3}, 39),
        ({"rank": 0, "world_size": 3}, 5),
        ({"rank": 2, "world_size": 3}, 4),
        ({"rank": 2, "world_size": 3, "drop_last": True}, 4),
        ({"rank": 2, "world_size": 3, "epochs": 2}, 8),
    ],
)
def test_len_is_the_number_of_batches(options, batches):
    loader = numbers(100, batch_size=8, **options)
    assert len(loader) == batches == len(list(loader))


def test_len_of_a_filtered_feed_is_a_type_error_that_says_why():
    filtered = pipeline({"n": range_of(20)}, "SELECT n FROM {table} WHERE n > 3").load(format="arrow", batch_size=8)
    assert filtered.samples_per_epoch is None
    with pytest.raises(TypeError, match="not known before reading"):
        len(filtered)
    assert values(list(filtered)) == list(range(4, 20))


QUERIES = {
    "filter": "SELECT n FROM {table} WHERE n % 3 = 1",
    "random": "SELECT n FROM {table} WHERE random_uniform() < 0.3",
    "pack": "SELECT * FROM pack((SELECT tokens FROM {table}), length => 64)",
    "unnest": "SELECT unnest(tokens) AS n FROM {table}",
    "join": "SELECT first.n FROM {table} AS first JOIN {table} AS second ON first.n = second.n % 50",
    "lengths": "SELECT n, tokens FROM {table} WHERE n < 290",
    "repeat": "SELECT n FROM repeat_rows((SELECT n, 1.5 AS times FROM {table}), times => 'times')",
    "negatives": "SELECT n FROM sample_negatives((SELECT n FROM {table}), column => 'n') WHERE negatives[1] > 150",
}
# Whether epochs have other numbers of samples.
DRAWN = {"random", "repeat", "negatives"}
# Whether all epochs have the same number of samples.
EQUAL = {"filter", "unnest", "join"}


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("query", QUERIES)
def test_counted_samples_give_the_length_of_each_epoch(query, drop_last):
    rows = {"n": range_of(300), "tokens": [[1] * (n * 7 % 29) for n in range(300)]}
    counted = pipeline(rows, QUERIES[query])
    buckets = {"bucket_by_length": "tokens", "bucket_boundaries": [10, 20], "global_batch_size": 24}
    options = buckets if query == "lengths" else {"batch_size": 8}
    options |= {"format": "arrow", "shuffle": True, "window_rows": 40, "drop_last": drop_last, "count": True}
    lengths = []
    for world_size in (1, 3):
        for rank in range(world_size):
            loader = counted.load(rank=rank, world_size=world_size, **options)
            assert (loader.samples_per_epoch is not None) == (query in EQUAL)
            for _ in range(3):
                expected = len(loader)
                assert sum(1 for _ in loader) == expected
                lengths.append(expected)
            several = counted.load(rank=rank, world_size=world_size, epochs=3, **options)
            assert len(several) == sum(1 for _ in several) == sum(lengths[-3:])
    assert (len(set(lengths[:3])) == 1) or query in DRAWN


def test_counting_transforms_nothing_and_reads_once():
    query = "SELECT CAST(text AS BIGINT) AS n FROM {table} WHERE text > '1'"
    filtered = pipeline({"text": ["1", "x", "3", "4"]}, query, forebay.Session())
    loader = filtered.load(format="numpy", batch_size=2, count=True)
    # A row that fails when it is transformed keeps its place.
    assert len(loader) == 2 and loader.samples_per_epoch == 3
    known = dict(filtered.session._counts)
    assert list(known.values()) == [3]
    assert len(filtered.load(format="numpy", batch_size=3, count=True)) == 1 and filtered.session._counts == known


def test_a_function_without_a_version_is_counted_again_when_it_is_replaced():
    session = forebay.Session()
    session.table({"n": range(10)}, name="numbers")

    def count(least, version):
        @forebay.udf(input="int64", output="bool", name="is_kept", version=version)
        def _(n):
            return np.array(n) >= least

        return session.sql("SELECT n FROM numbers WHERE is_kept(n)")

    def load(made):
        return made.load(format="numpy", batch_size=1, count=True)

    first = count(2, None)
    loader = load(first)
    assert len(loader) == len(list(loader)) == 8
    second = count(5, None)
    assert [len(load(first)), len(load(second)), len(list(load(second)))] == [8, 5, 5]
    assert loader.feed_id == load(second).feed_id and not session._counts
    assert len(load(count(7, 1))) == 3 and list(session._counts.values()) == [3]


def test_a_counted_feed_ends_and_resumes_like_one_of_known_length():
    counted = pipeline({"n": range_of(300)}, QUERIES["filter"])
    loader = counted.load(format="arrow", batch_size=8, count=True, drop_last=True)
    for _ in range(2):
        batches = [batch for batch, _ in zip(loader, range(len(loader)))]
        assert len(batches) == 12 and loader.state_dict()["offset"] == 0
    assert loader.epoch == 2
    loader = counted.load(format="arrow", batch_size=8, count=True)
    batches = iter(loader)
    first = [next(batches) for _ in range(5)]
    plain = counted.load(format="arrow", batch_size=8)
    plain.load_state_dict(loader.state_dict())
    assert loader.feed_id == plain.feed_id and same(list(plain), list(batches)) and len(first) == 5


def test_a_loop_that_was_left_begins_its_epoch_over():
    loader = numbers(40, batch_size=8, shuffle=True)
    first = next(iter(loader))
    for step, _ in enumerate(loader):
        if step == 2:
            break
    whole = list(loader)
    assert whole[0].equals(first) and len(whole) == 5
    assert loader.epoch == 1


def test_a_loop_raises_when_another_over_the_same_loader_begins():
    loader = numbers(40, batch_size=8)
    first = iter(loader)
    next(first)
    assert len(list(loader)) == 5
    for _ in range(2):
        with pytest.raises(forebay.InvalidError, match="a newer loop over this loader began") as raised:
            next(first)
    assert "make two loaders" in raised.value.hint


def test_closing_ends_the_loop_and_reading_may_begin_anew():
    loader = numbers(40, batch_size=8)
    batches = iter(loader)
    next(batches)
    loader.close()
    assert list(batches) == []
    assert values(loader) == list(range(40))


def test_a_with_block_closes():
    with numbers(40, batch_size=8) as loader:
        batches = iter(loader)
        next(batches)
    assert list(batches) == []


def test_set_epoch_chooses_the_next_loops_epoch():
    loader = numbers(100, batch_size=8, shuffle=True)
    epochs = [values(loader) for _ in range(4)]
    loader.set_epoch(2)
    assert loader.epoch == 2
    assert values(loader) == epochs[2]
    # A trainer with torch's DistributedSampler calls it like this.
    for epoch in (0, 1, 2):
        loader.set_epoch(epoch)
        assert values(loader) == epochs[epoch]


def test_set_epoch_keeps_the_place_of_a_state_in_that_epoch():
    loader = numbers(100, batch_size=8)
    next(iter(loader))
    state = loader.state_dict()
    loader.load_state_dict(state)
    loader.set_epoch(0)
    assert values(loader)[0] == 8
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert values(loader)[0] == 0


def test_skip_before_a_loop_is_of_that_loop_alone():
    loader = numbers(100, batch_size=8)
    loader.skip(steps=2)
    loader.skip(1)
    assert values(loader) == list(range(24, 100))
    assert len(values(loader)) == 100


def test_skip_in_a_loop_goes_on_behind():
    loader = numbers(100, batch_size=8)
    firsts = []
    for batch in loader:
        firsts.append(batch["n"][0].as_py())
        if len(firsts) == 2:
            loader.skip(5)
            assert loader.state_dict()["offset"] == 56
    assert firsts == [0, 8, 56, 64, 72, 80, 88, 96]


def test_skip_after_a_loop_that_was_left_is_of_the_next():
    loader = numbers(100, batch_size=8)
    for step, _ in enumerate(loader):
        if step == 3:
            break
    loader.skip(1)
    assert values(loader) == list(range(8, 100))


def test_skip_between_loops_of_several_epochs_is_of_the_next():
    loader = numbers(20, batch_size=8, epochs=2)
    list(loader)
    loader.skip(1)
    assert values(loader) == [*range(8, 20), *range(20)]


def test_skip_beyond_the_end_leaves_nothing_of_the_epoch():
    loader = numbers(100, batch_size=8)
    loader.skip(1000)
    assert list(loader) == []
    assert loader.epoch == 1 and len(list(loader)) == 13


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("epochs", [4, float("inf")])
def test_skip_goes_on_with_the_next_epoch_where_a_loop_has_several(epochs, drop_last):
    def loader(rank=0):
        read = {"rank": rank, "world_size": 2, "batch_size": 4, "drop_last": drop_last}
        return numbers(20, shuffle=True, seed=3, epochs=epochs, **read)

    def read(batches, count):
        return [batch["n"].to_pylist() for batch in itertools.islice(batches, count)]

    steps = 2 if drop_last else 3
    for rank in range(2):
        # Without drop_last, rank 1 has no batch in the last step of an epoch.
        is_short = rank == 1 and not drop_last
        whole = read(loader(rank), 4 * (steps - is_short))
        for skipped in range(4 * steps + 2):
            done = sum(not is_short or step % steps < steps - 1 for step in range(min(skipped, 4 * steps)))
            skipping = loader(rank)
            skipping.skip(skipped)
            assert read(skipping, len(whole) - done) == whole[done:], (rank, skipped)
            batches = iter(loaded := loader(rank))
            next(batches)
            loaded.skip(max(skipped - 1, 0))
            assert read(batches, len(whole) - max(done, 1)) == whole[max(done, 1):], (rank, skipped)


def test_skip_goes_on_from_the_middle_of_an_epoch():
    shared = pipeline({"n": range_of(20)})
    loader = shared.load(format="arrow", batch_size=4, epochs=3)
    batches = iter(loader)
    next(batches), next(batches)
    resumed = shared.load(format="arrow", batch_size=8, epochs=3)
    resumed.load_state_dict(loader.state_dict())
    # Two steps are left of the first epoch: 8 to 15, and 16 to 19.
    resumed.skip(3)
    assert values(resumed) == [*range(8, 20), *range(20)]


def test_skip_beyond_the_last_epoch_leaves_nothing():
    loader = numbers(20, batch_size=8, epochs=2)
    loader.skip(1000)
    assert list(loader) == [] and loader.state_dict()["epoch"] == 2
    assert len(list(loader)) == 6
    for batch in loader:
        loader.skip(1000)
        break
    assert len(list(loader)) == 6


def test_skip_counts_global_steps_of_all_ranks():
    loader = numbers(100, batch_size=8, rank=1, world_size=3)
    loader.skip(2)
    assert values(loader)[:8] == list(range(56, 64))


def test_skip_after_a_resume_at_no_multiple_of_the_global_batch():
    shared = pipeline({"n": range_of(100)})
    three = shared.load(format="arrow", batch_size=8)
    batches = iter(three)
    for _ in range(3):
        next(batches)
    for rank in range(2):
        loader = shared.load(format="arrow", batch_size=8, rank=rank, world_size=2)
        loader.load_state_dict(three.state_dict())
        batches = iter(loader)
        assert next(batches)["n"][0].as_py() == 24 + 8 * rank
        assert loader.state_dict()["offset"] == 40
        loader.skip(1)
        assert next(batches)["n"][0].as_py() == 56 + 8 * rank


@pytest.mark.parametrize("call", ["skip", "set_epoch", "trace"])
@pytest.mark.parametrize("value", [-1, None, 1.5, "2", True], ids=repr)
def test_what_is_no_count_is_refused(call, value):
    with pytest.raises(forebay.InvalidError, match="must be an integer of at least 0, got"):
        getattr(numbers(10), call)(value)


def test_skip_is_refused_with_dynamic_delivery():
    with pytest.raises(forebay.InvalidError, match="dynamic"):
        numbers(10, delivery="dynamic").skip(1)


def test_dynamic_delivery_in_process_gives_everything_once():
    assert sorted(values(numbers(100, batch_size=8, delivery="dynamic", shuffle=True))) == list(range(100))


def test_length_buckets_read_everything_once_on_each_world_size():
    lists = {"n": range_of(300), "tokens": [[1] * (n * 7 % 29) for n in range(300)]}
    shared = pipeline(lists)
    for world_size in (1, 2, 4):
        seen = []
        for rank in range(world_size):
            loader = shared.load(
                format="arrow",
                shuffle=True,
                bucket_by_length="tokens",
                bucket_boundaries=[10, 20],
                global_batch_size=24,
                rank=rank,
                world_size=world_size,
            )
            assert loader.batch_size == 24 // world_size
            with pytest.raises(TypeError):
                len(loader)
            seen += values(loader)
        assert sorted(seen) == list(range(300))


def test_a_loop_may_have_no_end():
    made = pipeline({"n": range_of(5)})
    loader = made.load(format="arrow", batch_size=2, epochs=float("inf"))
    batches = iter(loader)
    places = [(batch.num_rows, loader.epoch) for batch, _ in zip(batches, range(8))]
    assert [rows for rows, _ in places] == [2, 2, 1, 2, 2, 1, 2, 2]
    with pytest.raises(TypeError, match="the loop has no end"):
        len(loader)
    state = loader.state_dict()
    resumed = made.load(format="arrow", batch_size=2, epochs=float("inf"))
    resumed.load_state_dict(state)
    assert next(iter(resumed)).equals(next(batches))
    with pytest.raises(forebay.InvalidError, match='"epochs" must be a positive integer, got 1.5'):
        numbers(5, epochs=1.5)
