"""Where the next loop begins, and what the state is: the table in docs/python.md, row by row.

Each row holds for feeds whose length is known, and for those whose length only reading shows.
"""

import gc
import itertools
import threading
import weakref

import pyarrow as pa
import pytest

import forebay
from feeds import files, numbers, pipeline, range_of, values

COUNT = 50
LISTS = {"n": range_of(COUNT), "tokens": [[1] * (n * 7 % 29) for n in range(COUNT)]}
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


def read(batches):
    return [batch["n"].to_pylist() for batch in batches]


def place(loader):
    state = loader.state_dict()
    return state["epoch"], state["offset"]


def nexts(loader, count):
    batches = iter(loader)
    return [next(batches) for _ in range(count)]


def until_break(loader, count):
    got = []
    for batch in loader:
        got.append(batch)
        if len(got) == count:
            break
    return got


# Ways to take a number of batches without meeting the end of the loop.
WAYS = {
    "islice": lambda loader, count: list(itertools.islice(loader, count)),
    "zip": lambda loader, count: [batch for _, batch in zip(range(count), loader)],
    "next": nexts,
    "break": until_break,
}


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


def old_state(loader):
    """Returns the state that earlier versions took after the last batch: at the end of the epoch."""
    batches, last = iter(loader), None
    for _ in batches:
        last = loader._loop.place
    return last.state(loader._feed.identity)


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


WORLDS = [(world, drop_last) for world in (2, 3, 4) for drop_last in (False, True)]
RANKED = {
    "known": "SELECT n FROM {table}",
    "filtered": "SELECT n FROM {table} WHERE n % 3 <> 0",
}


@pytest.fixture(params=RANKED, scope="module")
def ranked(request):
    return pipeline(LISTS, RANKED[request.param])


def of_ranks(made, world_size, **options):
    options = {"format": "arrow", "batch_size": 6, "shuffle": True, **options}
    return [made.load(**options, rank=rank, world_size=world_size) for rank in range(world_size)]


@pytest.mark.parametrize("world_size, drop_last", WORLDS)
def test_each_rank_ends_its_epoch_with_its_own_last_batch(ranked, world_size, drop_last):
    expected = [[read(loader) for _ in range(3)] for loader in of_ranks(ranked, world_size, drop_last=drop_last)]
    # Without drop_last the ranks have other numbers of batches, and some last batches are short.
    assert len({len(epochs[0]) for epochs in expected}) == 1 or not drop_last
    for loader, epochs in zip(of_ranks(ranked, world_size, drop_last=drop_last), expected):
        assert [read(WAYS["zip"](loader, len(epochs[0]))) for _ in epochs] == epochs


@pytest.mark.parametrize("world_size, drop_last", WORLDS)
def test_states_of_ranks_are_equal_after_equal_steps(ranked, world_size, drop_last):
    """A rank without a batch in the last step stays at the step before it. The others have its state there."""
    loaders = of_ranks(ranked, world_size, drop_last=drop_last)
    states = [[place(loader) for _ in loader] for loader in loaders]
    for step in range(len(states[0])):
        assert len({steps[step] for steps in states if step < len(steps)}) == 1
    assert states[0][-1] == (1, 0)
    assert all(place(loader) == (1, 0) for loader in loaders)


@pytest.mark.parametrize("world_size, drop_last", WORLDS)
def test_each_state_of_each_rank_resumes_all_ranks_exactly(ranked, world_size, drop_last):
    loaders = of_ranks(ranked, world_size, drop_last=drop_last)
    runs = [[read([batch])[0] for batch in loader] for loader in loaders]
    following = [read(loader) for loader in loaders]
    for rank, loader in enumerate(of_ranks(ranked, world_size, drop_last=drop_last)):
        states = [loader.state_dict() for _ in loader]
        for step, state in enumerate(states, 1):
            resumed = of_ranks(ranked, world_size, drop_last=drop_last)
            for other in resumed:
                other.load_state_dict(state)
            rests = [run[step:] for run in runs]
            loops = [rests, following] if any(rests) else [following]
            assert [[read(other) for other in resumed] for _ in loops] == loops, (rank, step)


@pytest.mark.parametrize("world_size, drop_last", WORLDS)
def test_an_old_state_of_the_end_resumes_all_ranks_in_the_next_epoch(ranked, world_size, drop_last):
    state = old_state(of_ranks(ranked, world_size, drop_last=drop_last)[0])
    following = [(list(loader), read(loader))[1] for loader in of_ranks(ranked, world_size, drop_last=drop_last)]
    resumed = of_ranks(ranked, world_size, drop_last=drop_last)
    for loader in resumed:
        loader.load_state_dict(state)
    assert [read(loader) for loader in resumed] == following


def test_a_rank_without_any_batch_has_empty_epochs():
    made = pipeline({"n": range_of(3)})
    loader = of_ranks(made, 2)[1]
    assert len(loader) == 0
    for epoch in range(3):
        assert loader.epoch == epoch and list(loader) == []
    # Whether the loop met its end or not.
    assert [list(zip(range(0), loader)) for _ in range(3)] == [[]] * 3
    assert loader.epoch >= 5


EMPTY = {
    "few": ({"n": range_of(7)}, {"batch_size": 4, "drop_last": True}, "(7 samples|the query leaves too few samples)"),
    "filtered": ({"n": range_of(9)}, {"batch_size": 4}, "the query leaves too few samples"),
}


@pytest.mark.parametrize("epochs", [None, 1, 3, float("inf")])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", EMPTY)
def test_an_epoch_without_a_batch_for_any_rank_is_an_error(name, rank, epochs):
    columns, options, problem = EMPTY[name]
    query = "SELECT * FROM {table} WHERE n < 0" if name == "filtered" else "SELECT * FROM {table}"
    loader = pipeline(columns, query).load(format="arrow", rank=rank, world_size=2, epochs=epochs, **options)
    # The second loop finds nothing either.
    for _ in range(2):
        with pytest.raises(forebay.InvalidError, match=f"an epoch has no batch: {problem}, and 8 in a global") as raised:
            next(iter(loader))
        assert "use a smaller batch size" in raised.value.hint


@pytest.mark.parametrize("rank", [0, 1])
def test_an_endless_loop_over_nothing_is_an_error_on_a_cluster_too(rank):
    session = forebay.Session()
    rows = pa.table({"n": range_of(9)})
    session.sql("CREATE PIPELINE nothing AS SELECT n FROM rows WHERE n < 0", rows=rows)
    with session.serve() as server:
        cluster = forebay.connect(server.uri, retry_for=10)
        for epochs in (None, 3, float("inf")):
            loader = cluster.load("nothing", batch_size=4, rank=rank, world_size=2, epochs=epochs, format="arrow")
            with pytest.raises(forebay.InvalidError, match="the query leaves too few samples, and 8 in a global step"):
                next(iter(loader))


def test_a_rank_may_have_no_batch_where_only_reading_shows_it():
    made = pipeline({"n": range_of(9)}, "SELECT n FROM {table} WHERE n < 3")
    first, second = of_ranks(made, 2)
    assert [list(second), list(second)] == [[], []] and second.epoch == 2
    assert sorted(values(first)) == [0, 1, 2]


def test_the_rest_of_an_epoch_may_be_empty():
    loader = numbers(20, batch_size=8)
    loader.skip(1000)
    assert list(loader) == []
    loader = pipeline({"n": range_of(20)}, "SELECT n FROM {table} WHERE n >= 0").load(format="arrow", batch_size=8)
    loader.skip(3)
    assert list(loader) == []


def test_a_state_of_more_samples_than_are_left_for_whole_steps_begins_the_next_epoch():
    made = pipeline({"n": range_of(50)})
    small = made.load(format="arrow", batch_size=10)
    WAYS["zip"](small, 4)
    large = made.load(format="arrow", batch_size=16, drop_last=True)
    large.load_state_dict(small.state_dict())
    assert values(large) == list(range(48))


@pytest.mark.parametrize("world_size", [1, 2])
def test_exact_counts_from_a_cluster(tmp_path, world_size):
    files(tmp_path / "numbers")
    session = forebay.Session()
    session.sql(f"""
        CREATE EXTERNAL TABLE numbers STORED AS PARQUET LOCATION '{tmp_path}/numbers';
        CREATE PIPELINE known AS SELECT n FROM numbers;
        CREATE PIPELINE filtered AS SELECT n FROM numbers WHERE n % 3 <> 0;
    """)
    with session.serve() as server:
        cluster = forebay.connect(server.uri, retry_for=10)
        for name in ("known", "filtered"):
            for here, there in zip(of_ranks(session.pipeline(name), world_size), of_cluster(cluster, name, world_size)):
                expected = [read(here) for _ in range(3)]
                got = [(read(WAYS["zip"](there, len(expected[0]))), place(there)[0]) for _ in range(2)]
                assert [batches for batches, _ in got] == expected[:2]
                assert [epoch for _, epoch in got] == [1, 2] or there.rank > 0
                assert read(there) == expected[2]


def of_cluster(cluster, name, world_size):
    options = {"format": "arrow", "batch_size": 6, "shuffle": True, "world_size": world_size}
    return [cluster.load(name, **options, rank=rank) for rank in range(world_size)]


def test_looking_for_the_last_step_leaves_the_ranks_of_a_named_job_alone(tmp_path):
    files(tmp_path / "numbers")
    session = forebay.Session()
    session.sql(f"""
        CREATE EXTERNAL TABLE numbers STORED AS PARQUET LOCATION '{tmp_path}/numbers';
        CREATE PIPELINE filtered AS SELECT n FROM numbers WHERE n % 3 <> 0;
    """)
    got, failed = [[], []], []
    with session.serve() as server:
        cluster = forebay.connect(server.uri, retry_for=10)

        def run(rank):
            loader = cluster.load("filtered", format="arrow", batch_size=6, rank=rank, world_size=2, job="fenced")
            try:
                for _ in range(2):
                    for batch in loader:
                        # At its last batch, rank 1 reads as rank 0 to see whether there is another step.
                        got[rank].append((batch["n"].to_pylist(), place(loader)))
            except forebay.Error as error:
                failed.append(error)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []
    expected = [n for n in range(100) if n % 3]
    assert sorted(n for rank in got for batch, _ in rank for n in batch) == sorted(expected * 2)
    # 66 samples are five and a half steps. The last one has samples of rank 0 alone.
    assert [len(rank) for rank in got] == [12, 10]
    assert [place for _, place in got[0][4:7]] == [(0, 60), (1, 0), (1, 12)]
    assert [place for _, place in got[1][4:6]] == [(0, 60), (1, 12)]


@pytest.mark.parametrize("name", ["known", "filtered"])
def test_one_rank_with_dynamic_delivery_has_exact_counts(tmp_path, name):
    files(tmp_path / "numbers")
    session = forebay.Session()
    session.sql(f"""
        CREATE EXTERNAL TABLE numbers STORED AS PARQUET LOCATION '{tmp_path}/numbers';
        CREATE PIPELINE known AS SELECT n FROM numbers;
        CREATE PIPELINE filtered AS SELECT n FROM numbers WHERE n % 3 <> 0;
    """)
    with session.serve() as server:
        cluster = forebay.connect(server.uri, retry_for=10)

        def loader(job):
            options = {"format": "arrow", "batch_size": 4, "shuffle": True, "delivery": "dynamic", "job": job}
            return cluster.load(name, **options, rank=0, world_size=1)

        plain = session.load(name, format="arrow", batch_size=4, shuffle=True)
        epochs = [read(plain) for _ in range(3)]
        count = len(epochs[0])
        assert count > 16
        counted = loader("counted")
        for epoch in range(2):
            assert read(WAYS["zip"](counted, count)) == epochs[epoch] and place(counted) == (epoch + 1, 0)
        assert read(WAYS["zip"](counted, 3)) == epochs[2][:3] and read(counted) == epochs[2]
        run, states = loader("run"), []
        for batch in run:
            states.append(run.state_dict())
        for number, taken in enumerate((1, 5, count - 1, count)):
            resumed = loader(f"resumed{number}")
            resumed.load_state_dict(states[taken - 1])
            assert read(resumed) == (epochs[0][taken:] or epochs[1])


def test_dynamic_ranks_read_epoch_after_epoch(tmp_path):
    """How many batches a rank gets is known when its loop ends, so there are no exact counts, and no length."""
    files(tmp_path / "numbers")
    session = forebay.Session()
    session.sql(f"""
        CREATE EXTERNAL TABLE numbers STORED AS PARQUET LOCATION '{tmp_path}/numbers';
        CREATE PIPELINE numbers AS SELECT n FROM numbers;
    """)
    with session.serve() as server:
        cluster = forebay.connect(server.uri, retry_for=10)
        options = {"format": "arrow", "batch_size": 4, "delivery": "dynamic", "job": "loops", "world_size": 2}
        loaders = [cluster.load("numbers", rank=rank, **options) for rank in range(2)]
        got = [[], []]

        def run(rank):
            for _ in range(2):
                batches = list(loaders[rank])
                got[rank].append((values(batches), place(loaders[rank])))

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with pytest.raises(TypeError, match="ranks take batches as they need them"):
            len(loaders[0])
        for epoch in range(2):
            assert sorted(got[0][epoch][0] + got[1][epoch][0]) == list(range(100))
            assert got[0][epoch][1] == got[1][epoch][1] == (epoch + 1, 0)
        states = [loader.state_dict() for loader in loaders]
        resumed = [cluster.load("numbers", rank=rank, **(options | {"job": "later"})) for rank in range(2)]
        for loader in resumed:
            loader.load_state_dict(states)
            assert loader.epoch == 2
        with pytest.raises(forebay.InvalidError, match="of different epochs"):
            resumed[0].load_state_dict([states[0], states[1] | {"epoch": 1, "position": "1:0"}])


def test_statistics_of_many_loops_take_no_more_memory_than_those_of_one():
    loader = pipeline({"n": range_of(10)}).load(batch_size=5)
    for _ in range(20):
        next(iter(loader))
    assert len(loader._done) == 1
    assert loader.stats()["batches"] >= 20
