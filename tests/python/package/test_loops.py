"""Where the next loop begins, and what the state is: the table in docs/python.md, row by row.

Each row holds for feeds whose length is known, and for those whose length only reading shows.
"""

import gc
import threading
import weakref

import pytest

import forebay
from feeds import numbers, pipeline, range_of, values
from loops import LISTS, WAYS, old_state, place, read, until_break

BUCKETS = {"bucket_by_length": "tokens", "bucket_boundaries": [10, 20]}

# Feeds and options. The length is known of those that begin with "known".
FEEDS = {
    "known": ("SELECT n FROM {table}", {"batch_size": 8}),
    "known, drop_last": ("SELECT n FROM {table}", {"batch_size": 8, "drop_last": True}),
    "known, whole steps": ("SELECT n FROM {table}", {"batch_size": 10}),
    "known, one batch": ("SELECT n FROM {table}", {"batch_size": 64}),
    "dynamic": ("SELECT n FROM {table}", {"batch_size": 8, "delivery": "dynamic"}),
    "filtered": ("SELECT n FROM {table} WHERE n % 3 <> 0", {"batch_size": 7}),
    "filtered, drop_last": ("SELECT n FROM {table} WHERE n % 3 <> 0", {"batch_size": 7, "drop_last": True}),
    "filtered, whole steps": ("SELECT n FROM {table} WHERE n % 2 = 0", {"batch_size": 5}),
    "filtered, one batch": ("SELECT n FROM {table} WHERE n % 3 <> 0", {"batch_size": 64}),
    "filtered, dynamic": ("SELECT n FROM {table} WHERE n % 3 <> 0", {"batch_size": 7, "delivery": "dynamic"}),
    "buckets": ("SELECT n, tokens FROM {table}", {"global_batch_size": 8, **BUCKETS}),
}


class Case:
    """A feed, its loaders, and the batches of its epochs as lists of numbers."""

    def __init__(self, query, options):
        self._pipeline = pipeline(LISTS, query)
        self._options = {"format": "arrow", "shuffle": True, "seed": 3, **options}
        loader = self.loader()
        self.epochs = [[batch["n"].to_pylist() for batch in loader] for _ in range(4)]
        self.count = len(self.epochs[0])
        self.is_dynamic = options.get("delivery") == "dynamic"

    def loader(self, **options):
        return self._pipeline.load(**(self._options | options))

    def resumed(self, state, **options):
        loader = self.loader(**options)
        loader.load_state_dict(state)
        return loader


@pytest.fixture(params=FEEDS, scope="module")
def case(request):
    return Case(*FEEDS[request.param])


@pytest.mark.parametrize("way", WAYS)
def test_a_loop_that_takes_all_batches_ends_its_epoch(case, way):
    loader = case.loader()
    for epoch in range(3):
        assert loader.epoch == epoch
        assert read(WAYS[way](loader, case.count)) == case.epochs[epoch]
        assert place(loader) == (epoch + 1, 0)
    assert read(loader) == case.epochs[3]


@pytest.mark.parametrize("way", WAYS)
def test_without_asking_for_the_state_too(case, way):
    loader = case.loader()
    got = [read(WAYS[way](loader, case.count)) for _ in range(3)]
    assert got == case.epochs[:3]


def test_a_loop_that_meets_its_end_ends_its_epoch(case):
    loader = case.loader()
    for epoch in range(3):
        assert read(loader) == case.epochs[epoch]
        assert place(loader) == (epoch + 1, 0) and loader.epoch == epoch + 1


def test_a_zip_that_asks_for_one_batch_more_ends_the_epoch_too(case):
    loader = case.loader()
    for epoch in range(2):
        assert read(batch for batch, _ in zip(loader, range(case.count))) == case.epochs[epoch]


@pytest.mark.parametrize("way", WAYS)
def test_a_loop_that_was_left_earlier_begins_its_epoch_over(case, way):
    loader = case.loader()
    assert read(loader) == case.epochs[0]
    for count in range(1, case.count):
        assert read(WAYS[way](loader, count)) == case.epochs[1][:count]
        assert place(loader)[0] == 1 and place(loader)[1] > 0 and loader.epoch == 1
    assert read(loader) == case.epochs[1]


def test_a_loop_that_was_left_before_its_first_batch_changed_nothing(case):
    loader = case.loader()
    list(loader)
    for _ in range(3):
        iter(loader)
    assert place(loader) == (1, 0) and loader.epoch == 1
    assert read(loader) == case.epochs[1]


def test_a_resumed_loop_that_was_left_before_its_first_batch_resumes(case):
    if case.is_dynamic or case.count == 1:
        return
    loader = case.loader()
    first = WAYS["next"](loader, 1)
    state = loader.state_dict()
    resumed = case.resumed(state)
    for _ in range(3):
        iter(resumed)
    assert resumed.state_dict() == state
    iter(resumed)
    resumed.set_epoch(0)
    assert read(first) + read(resumed) == case.epochs[0]


def test_the_state_after_each_batch_resumes_behind_it(case):
    loader = case.loader()
    whole = [batch for epoch in case.epochs for batch in epoch]
    for taken in range(1, 2 * case.count + 1):
        [_, state] = [(batch, loader.state_dict()) for batch in until_break(loader, (taken - 1) % case.count + 1)][-1]
        if case.is_dynamic and state["offset"]:
            continue
        resumed = case.resumed(state)
        end = (taken // case.count + 2) * case.count
        assert [batch for _ in range(2) for batch in read(resumed)] == whole[taken:end]


@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_loop_ends_its_epoch_with_its_last_batch(case, way):
    if case.is_dynamic:
        return
    for taken in range(1, case.count):
        loader = case.loader()
        WAYS["next"](loader, taken)
        resumed = case.resumed(loader.state_dict())
        assert read(WAYS[way](resumed, case.count - taken)) == case.epochs[0][taken:]
        assert place(resumed) == (1, 0)
        assert read(resumed) == case.epochs[1]


def test_a_state_of_the_end_of_an_epoch_resumes_in_the_next(case):
    if case.is_dynamic:
        return
    state = old_state(case.loader())
    assert state["offset"] > 0 and state["epoch"] == 0
    resumed = case.resumed(state)
    assert read(resumed) == case.epochs[1] and read(resumed) == case.epochs[2]
    resumed = case.resumed(state)
    assert read(WAYS["zip"](resumed, case.count)) == case.epochs[1] and read(resumed) == case.epochs[2]


@pytest.mark.parametrize("take_state", [old_state, lambda loader: (list(loader), loader.state_dict())[1]])
def test_set_epoch_says_that_the_next_loop_is_the_rest_of_the_epoch_that_ended(case, take_state):
    """A training loop saves its own number of the epoch in the body of the last batch, and resumes with set_epoch."""
    if case.is_dynamic:
        return
    resumed = case.resumed(take_state(case.loader()))
    got = []
    for epoch in range(3):
        resumed.set_epoch(epoch)
        assert resumed.epoch == epoch
        got.append(read(resumed))
    assert got == [[], case.epochs[1], case.epochs[2]]
    resumed = case.resumed(take_state(case.loader()))
    resumed.set_epoch(1)
    assert read(resumed) == case.epochs[1]


def test_a_loop_without_batches_is_over_when_it_begins():
    case = Case(*FEEDS["known"])
    for take_state in (old_state, lambda loader: (list(loader), loader.state_dict())[1]):
        resumed = case.resumed(take_state(case.loader()))
        resumed.set_epoch(0)
        assert list(zip(range(0), resumed)) == [] and read(resumed) == case.epochs[1]


def test_set_epoch_to_an_epoch_before_a_loaded_state_is_an_error(case):
    state = case.loader().state_dict() | {"epoch": 3, "position": "3:0"}
    resumed = case.resumed(state)
    with pytest.raises(forebay.InvalidError, match=r"a state of epoch 3 was loaded, and set_epoch\(0\) would give"):
        resumed.set_epoch(0)
    assert read(resumed) == case.epochs[3]
    # The state has been used.
    resumed.set_epoch(0)
    assert read(resumed) == case.epochs[0]


def test_set_epoch_after_an_exact_count_chooses_the_epoch(case):
    loader = case.loader()
    for epoch in (0, 0, 2, 1):
        loader.set_epoch(epoch)
        assert read(WAYS["zip"](loader, case.count)) == case.epochs[epoch]
        assert place(loader) == (epoch + 1, 0)


def test_steps_are_skipped_from_where_a_state_of_the_end_of_an_epoch_resumes(case):
    if case.is_dynamic:
        return
    resumed = case.resumed(old_state(case.loader()))
    resumed.skip(1)
    assert read(resumed) == case.epochs[1][1:] and read(resumed) == case.epochs[2]


@pytest.mark.parametrize("taken", range(2))
def test_skipping_to_the_end_leaves_an_empty_loop(case, taken):
    if case.is_dynamic:
        return
    loader = case.loader()
    WAYS["next"](loader, taken)
    loader.skip(case.count)
    if taken == case.count:
        assert read(loader) == [] and read(loader) == case.epochs[2]
    else:
        assert read(loader) == [] and read(loader) == case.epochs[1]


def test_skipping_to_the_end_within_a_loop_ends_it(case):
    if case.is_dynamic or case.count == 1:
        return
    loader = case.loader()
    batches = iter(loader)
    next(batches)
    loader.skip(case.count - 1)
    # The loop is over, though it has not met its end.
    assert read(loader) == case.epochs[1]
    assert list(batches) == []


def test_the_older_of_two_loops_raises(case):
    loader = case.loader()
    older = iter(loader)
    if case.count > 1:
        next(older)
        newer = iter(loader)
        for _ in range(2):
            with pytest.raises(forebay.InvalidError, match="a newer loop over this loader began"):
                next(older)
        assert read(newer) == case.epochs[0]


def test_a_loop_that_has_had_its_last_batch_ends_when_a_newer_one_begins(case):
    loader = case.loader()
    older = iter(loader)
    for _ in range(case.count):
        next(older)
    newer = iter(loader)
    assert list(older) == []
    assert read(newer) == case.epochs[1]


def test_a_loop_inside_another_raises_in_the_outer(case):
    loader, outer = case.loader(), 0
    if case.count > 1:
        with pytest.raises(forebay.InvalidError, match="a newer loop over this loader began"):
            for _ in loader:
                outer += 1
                assert read(loader) == case.epochs[0]
        assert outer == 1


def test_a_loader_zipped_with_itself_raises(case):
    loader = case.loader()
    if case.count > 1:
        with pytest.raises(forebay.InvalidError, match="a newer loop over this loader began"):
            list(zip(loader, loader))
    # Two loaders are two loops.
    assert [read([a]) == read([b]) for a, b in zip(case.loader(), case.loader())] == [True] * case.count


ENDS = {
    "close": lambda loader, _: loader.close(),
    "set_epoch": lambda loader, _: loader.set_epoch(0),
    "load_state_dict": lambda loader, state: loader.load_state_dict(state),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_ends_a_loop_on_purpose_raises_nothing(case, end):
    loader = case.loader()
    state = loader.state_dict()
    batches = iter(loader)
    next(batches)
    ENDS[end](loader, state)
    assert list(batches) == []


def test_closing_after_the_last_batch_keeps_the_end(case):
    if case.is_dynamic and case.loader().samples_per_epoch is None:
        return
    loader = case.loader()
    for epoch in range(3):
        with loader:
            assert read(WAYS["zip"](loader, case.count)) == case.epochs[epoch]
    with loader:
        if case.count > 1:
            WAYS["zip"](loader, 1)
    assert read(loader) == case.epochs[3]


@pytest.mark.parametrize("way", WAYS)
def test_several_epochs_are_one_loop(case, way):
    whole = [batch for epoch in case.epochs[:3] for batch in epoch]
    loader = case.loader(epochs=3)
    for _ in range(2):
        assert read(WAYS[way](loader, len(whole))) == whole
        assert place(loader) == (3, 0)
    assert read(loader) == whole and place(loader) == (3, 0) and loader.epoch == 0
    # A loop that was left earlier, even at the end of an epoch, begins over.
    for count in (1, case.count, case.count + 1):
        assert read(WAYS[way](loader, count)) == whole[:count]
    assert read(loader) == whole


def test_several_epochs_resume_after_each_batch(case):
    if case.is_dynamic:
        return
    whole = [batch for epoch in case.epochs[:2] for batch in epoch]
    loader = case.loader(epochs=2)
    states = [loader.state_dict() for _ in loader]
    assert (states[case.count - 1]["epoch"], states[case.count - 1]["offset"]) == (1, 0)
    for taken, state in enumerate(states, 1):
        resumed = case.resumed(state, epochs=2)
        # The run is complete after its last batch, so its rest is empty.
        assert read(resumed) == whole[taken:]
        assert read(resumed) == whole


def test_a_complete_run_of_several_epochs_has_no_length_left():
    loader = numbers(50, batch_size=8, epochs=2)
    list(loader)
    resumed = pipeline({"n": range_of(50)}).load(format="arrow", batch_size=8, epochs=2)
    resumed.load_state_dict(loader.state_dict() | {"feed": resumed._feed.identity})
    assert len(resumed) == 0 and list(resumed) == [] and len(resumed) == 14
    with pytest.raises(forebay.InvalidError, match="covers the epochs below 2"):
        resumed.set_epoch(2)


def test_a_count_of_epochs_goes_on_after_the_end_of_an_epoch():
    case = Case(*FEEDS["known"])
    loader = case.loader(epochs=3)
    WAYS["zip"](loader, case.count)
    resumed = case.resumed(loader.state_dict(), epochs=3)
    assert resumed.epoch == 1 and len(resumed) == 2 * case.count
    # The rest of epoch 0 is empty, and the loop goes on.
    resumed.set_epoch(0)
    assert read(resumed) == [batch for epoch in case.epochs[1:3] for batch in epoch]
    for way in WAYS:
        assert len(WAYS[way](loader, 3 * case.count)) == 3 * case.count
        assert loader.epoch == 0 and len(loader) == 3 * case.count


def test_what_nothing_refers_to_is_closed_in_the_middle_of_a_loop():
    loader = numbers(100, batch_size=8)
    batches = iter(loader)
    next(batches)
    gone = weakref.ref(loader), weakref.ref(loader._loop)
    gc.disable()
    try:
        del loader, batches
        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()


def test_the_end_that_a_closed_loop_looked_for_moves_no_steps():
    case = Case(*FEEDS["filtered"])
    loader = case.loader()
    with loader:
        WAYS["zip"](loader, case.count)
    assert read(loader) == case.epochs[1]
    assert loader.trace(0, epoch=0) == case.loader().trace(0, epoch=0)


def test_a_loop_without_end_has_a_state_after_each_batch():
    loader = numbers(20, batch_size=8, epochs=float("inf"))
    batches = iter(loader)
    places = [(len(next(batches)), *place(loader)) for _ in range(4)]
    assert places == [(8, 0, 8), (8, 0, 16), (4, 1, 0), (8, 1, 8)]
    # It is never over.
    assert len(next(iter(loader))) == 8 and place(loader) == (0, 8)


def test_after_an_error_the_epoch_begins_over():
    made = pipeline({"t": ["1", "2", "3", "x"]}, "SELECT CAST(t AS BIGINT) AS n FROM {table}")
    loader = made.load(format="arrow", batch_size=1)
    for _ in range(2):
        got = []
        with pytest.raises(forebay.DataError):
            for batch in loader:
                got += values([batch])
        assert got == [1, 2, 3] and place(loader) == (0, 3)
    # Taken in exact numbers, the batches before the bad one are no epoch either.
    assert [values(WAYS["zip"](loader, 3)) for _ in range(2)] == [[1, 2, 3]] * 2


def test_an_error_that_the_state_met_is_raised_by_the_loop():
    made = pipeline({"t": ["1", "2", "x", "4"]}, "SELECT CAST(t AS BIGINT) AS n FROM {table} WHERE t <> '0'")
    loader = made.load(format="arrow", batch_size=1)
    got = []
    with pytest.raises(forebay.DataError):
        for batch in loader:
            got += values([batch])
            assert place(loader) == (0, len(got))
    assert got == [1, 2]
    assert values(WAYS["zip"](loader, 2)) == values(WAYS["zip"](loader, 2)) == [1, 2]


@pytest.mark.parametrize("interrupted", ["state_dict", "is_last_batch", "__iter__"])
def test_ctrl_c_while_the_loader_looks_ahead_loses_nothing(interrupted, monkeypatch):
    case = Case(*FEEDS["filtered"])
    loader = case.loader()
    batches = iter(loader)
    got = [next(batches)]
    take = loader._loop._take

    def take_and_lose():
        monkeypatch.setattr(loader._loop, "_take", take)
        take()
        raise KeyboardInterrupt

    monkeypatch.setattr(loader._loop, "_take", take_and_lose)
    with pytest.raises(KeyboardInterrupt):
        asked = getattr(loader, interrupted)
        asked()
    assert place(loader) == (0, 7)
    got += batches
    assert read(got) == case.epochs[0]


def test_the_state_waits_for_no_batch_in_another_thread(tmp_path):
    # Another thread takes the state while the loop waits for its next batch.
    slow = pipeline({"n": range_of(6)}, "SELECT sleep(n, milliseconds => 100) AS n FROM {table} WHERE n < 6")
    loader = slow.load(format="arrow", batch_size=2, window_rows=2)
    states, got = [], []

    def take():
        while len(got) < 3:
            states.append(place(loader))

    for batch in loader:
        got.append(values([batch]))
        if len(got) == 1:
            thread = threading.Thread(target=take)
            thread.start()
    thread.join()
    assert got == [[0, 1], [2, 3], [4, 5]]
    assert set(states) <= {(0, 2), (0, 4), (0, 6), (1, 0)} and (0, 2) in states


def test_statistics_of_many_loops_take_no_more_memory_than_those_of_one():
    loader = pipeline({"n": range_of(10)}).load(batch_size=5)
    for _ in range(20):
        next(iter(loader))
    assert len(loader._done) == 1
    assert loader.stats()["batches"] >= 20
