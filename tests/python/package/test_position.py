"""`state_dict`: after any batch of any run, a loader resumes exactly, in a fresh process and with other world sizes."""

import json
import os

import pytest

import forebay
from feeds import files, numbers, pipeline, range_of, same, values

OPTIONS = {"format": "arrow", "shuffle": True, "seed": 11}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return forebay.table(files(tmp_path_factory.mktemp("position") / "numbers"))


def states_of(loader):
    """Returns all batches, and the state after each."""
    return [(batch, loader.state_dict()) for batch in loader]


@pytest.mark.parametrize("epochs", [None, 2])
def test_the_tail_is_the_same_after_every_step(table, epochs):
    options = OPTIONS | {"batch_size": 16, "epochs": epochs}
    loader = table.load(**options)
    run = states_of(loader)
    assert len(run) == 7 * (epochs or 1)
    following = list(loader)
    for step, (_, state) in enumerate(run):
        resumed = table.load(**options)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert resumed.state_dict() == state
        rest = [batch for batch, _ in run[step + 1 :]]
        # After the last batch of a loop of one epoch, the next loop is the next epoch.
        assert same(list(resumed), rest if rest or epochs else following)


def test_the_state_of_the_last_batch_is_that_of_the_next_epoch(table):
    loader = table.load(**OPTIONS, batch_size=16)
    inside = states_of(loader)[-1][1]
    assert (inside["epoch"], inside["offset"]) == (1, 0)
    following = list(loader)
    resumed = table.load(**OPTIONS, batch_size=16)
    resumed.load_state_dict(inside)
    assert same(list(resumed), following)


def test_the_state_between_epochs_begins_the_next(table):
    loader = table.load(**OPTIONS, batch_size=16)
    list(loader)
    resumed = table.load(**OPTIONS, batch_size=16)
    resumed.load_state_dict(loader.state_dict())
    assert resumed.epoch == 1
    assert same(list(resumed), list(loader))


def test_a_chain_of_resumed_runs_is_the_whole_run(table):
    whole = list(table.load(**OPTIONS, batch_size=8))
    got, state = [], None
    while len(got) < len(whole):
        loader = table.load(**OPTIONS, batch_size=8)
        if state is not None:
            loader.load_state_dict(state)
        for taken, batch in enumerate(loader):
            got.append(batch)
            if taken == 2:
                break
        state = loader.state_dict()
    assert same(got, whole)


GLOBAL = 24
WORLDS = [1, 2, 3, 4, 6, 8, 12, 24]


@pytest.mark.parametrize("before", WORLDS)
def test_a_state_loads_on_every_other_world_size(table, before):
    samples = values(table.load(**OPTIONS, batch_size=GLOBAL))
    loader = table.load(**OPTIONS, global_batch_size=GLOBAL, rank=before - 1, world_size=before)
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    for after in WORLDS:
        steps = []
        for rank in range(after):
            resumed = table.load(**OPTIONS, global_batch_size=GLOBAL, rank=rank, world_size=after)
            resumed.load_state_dict(state)
            steps.append([values([batch]) for batch in resumed])
        # The second half of the epoch is one complete step, and one of four samples that not all ranks see.
        rest = [value for step in range(3) for rank in steps if step < len(rank) for value in rank[step]]
        assert rest == samples[2 * GLOBAL :]


def test_a_state_is_the_same_on_every_rank(table):
    states = []
    for rank in range(3):
        loader = table.load(**OPTIONS, batch_size=8, rank=rank, world_size=3)
        next(iter(loader))
        states.append(loader.state_dict())
    assert states[0] == states[1] == states[2]


def test_a_state_counts_what_was_handed_out_not_what_was_prefetched(table):
    loader = table.load(**OPTIONS, batch_size=4, prefetch_factor=10)
    batches = iter(loader)
    next(batches)
    # Another batch is ready before the state is taken (next() waits for it). The state must not count it.
    state = loader.state_dict()
    second = next(batches)
    resumed = table.load(**OPTIONS, batch_size=4, prefetch_factor=10)
    resumed.load_state_dict(state)
    assert state["offset"] == 4
    assert next(iter(resumed)).equals(second)


def test_a_state_of_no_step_is_the_beginning(table):
    loader = table.load(**OPTIONS, batch_size=8)
    before = loader.state_dict()
    batches = iter(loader)
    assert loader.state_dict() == before
    first = next(batches)
    loader.load_state_dict(before)
    assert next(iter(loader)).equals(first)


def test_a_state_is_small_json(table):
    loader = table.load(**OPTIONS, batch_size=8)
    next(iter(loader))
    text = json.dumps(loader.state_dict())
    assert len(text) < 1000
    assert json.loads(text) == loader.state_dict()


def test_loading_ends_the_loop_that_runs(table):
    loader = table.load(**OPTIONS, batch_size=8)
    batches = iter(loader)
    first = next(batches)
    state = loader.state_dict()
    next(batches)
    loader.load_state_dict(state)
    assert list(batches) == []
    assert len(list(loader)) == 12 and first.num_rows == 8


def test_other_batch_sizes_read_on_from_the_same_sample(table):
    samples = values(table.load(**OPTIONS, batch_size=100))
    loader = table.load(**OPTIONS, batch_size=8)
    next(iter(loader))
    for batch_size in (1, 7, 92, 500):
        resumed = table.load(**OPTIONS, batch_size=batch_size)
        resumed.load_state_dict(loader.state_dict())
        assert values(resumed) == samples[8:]


def test_a_filtered_feed_resumes(table):
    filtered = table.filter("n % 3 <> 0")
    loader = filtered.load(**OPTIONS, batch_size=7)
    run = states_of(loader)
    following = list(loader)
    for step, (_, state) in enumerate(run):
        resumed = filtered.load(**OPTIONS, batch_size=7)
        resumed.load_state_dict(state)
        assert same(list(resumed), [batch for batch, _ in run[step + 1 :]] or following)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_feed_with_length_buckets_resumes_on_other_world_sizes(shuffle):
    shared = pipeline({"n": range_of(200), "tokens": [[1] * (n * 7 % 29) for n in range(200)]})
    options = {
        "format": "arrow",
        "shuffle": shuffle,
        "bucket_by_length": "tokens",
        "bucket_boundaries": [10, 20],
        "global_batch_size": 12,
    }
    loader = shared.load(**options)
    run = states_of(loader)
    following = list(loader)
    for step, (_, state) in enumerate(run):
        rest = []
        for rank in range(3):
            resumed = shared.load(**options, rank=rank, world_size=3)
            resumed.load_state_dict(state)
            rest += values(resumed)
        assert sorted(rest) == sorted(values([batch for batch, _ in run[step + 1 :]] or following))


CHANGES = {
    "seed": ({"seed": 12}, "seed was 11 and is 12"),
    "shuffle": ({"shuffle": False}, "shuffle was true and is false"),
    "on_error": ({"on_error": "skip"}, 'on_error was "raise" and is "skip"'),
    "window_rows": ({"window_rows": 20}, "window_rows was 262144 and is 20"),
    "window_bytes": ({"window_bytes": "1MiB"}, "window_bytes was 33554432 and is 1048576"),
}


@pytest.mark.parametrize("change, difference", CHANGES.values(), ids=CHANGES.keys())
def test_a_state_of_other_settings_is_refused_with_the_difference(table, change, difference):
    state = table.load(**OPTIONS).state_dict()
    with pytest.raises(forebay.ConflictError, match="the state is of another feed: ") as raised:
        table.load(**(OPTIONS | change)).load_state_dict(state)
    assert difference in raised.value.message
    assert raised.value.kind == "conflict"


def test_several_differences_are_all_named(table):
    state = table.load(**OPTIONS).state_dict()
    with pytest.raises(forebay.ConflictError) as raised:
        table.filter("n > 3").load(**(OPTIONS | {"seed": 1})).load_state_dict(state)
    assert raised.value.message.endswith("the query differs; seed was 11 and is 1")


def test_a_state_of_other_operator_versions_names_them():
    loader = pipeline({"n": range_of(10)}, "SELECT clamp(n, min => 0, max => 3) AS n FROM {table}").load(format="arrow")
    state = json.loads(json.dumps(loader.state_dict()))
    identity = json.loads(state["feed"])
    assert identity["operators"] == {"clamp": 1}
    # Earlier states have a dict in place of the text.
    loader.load_state_dict(state | {"feed": identity})
    identity |= {"feed": "0" * 16, "operators": {"clamp": 0, "resize": 3}}
    state["feed"] = json.dumps(identity)
    with pytest.raises(forebay.ConflictError) as raised:
        loader.load_state_dict(state)
    assert "version of clamp was 0 and is 1; version of resize was 3 and is null" in raised.value.message


def test_a_state_that_says_no_more_than_its_feed_is_refused_by_it(table):
    loader = table.load(**OPTIONS)
    with pytest.raises(forebay.ConflictError) as raised:
        loader.load_state_dict(loader.state_dict() | {"feed": {"feed": "0" * 16}})
    assert raised.value.message == f"the state is of another feed: it was {'0' * 16} and is {loader.feed_id}"


def test_a_state_of_changed_files_is_refused(tmp_path):
    folder = files(tmp_path / "numbers")
    state = forebay.table(folder).load(**OPTIONS).state_dict()
    os.utime(folder / "part-0.parquet", (1, 1))
    with pytest.raises(forebay.ConflictError, match="the source files differ"):
        forebay.table(folder).load(**OPTIONS).load_state_dict(state)


def test_a_refused_state_leaves_the_loader_as_it_was(table):
    other = table.load(**(OPTIONS | {"seed": 12})).state_dict()
    loader = table.load(**OPTIONS, batch_size=16)
    batches = iter(loader)
    next(batches)
    before = loader.state_dict()
    for state in (other, {}, before | {"position": "nonsense"}, before | {"position": "0:101"}):
        with pytest.raises(forebay.Error):
            loader.load_state_dict(state)
    assert loader.state_dict() == before
    assert len(list(batches)) == 6


def changed(**parts):
    return lambda state: state | parts


def without(name):
    return lambda state: {key: value for key, value in state.items() if key != name}


MALFORMED = {
    "nothing": lambda state: None,
    "a number": lambda state: 5,
    "text": json.dumps,
    "no version": without("version"),
    "no position": without("position"),
    "no epoch": without("epoch"),
    "no offset": without("offset"),
    "no feed": without("feed"),
    "a feed that is not an object": changed(feed=5),
    "a feed without an id": changed(feed={}),
    "a negative epoch": changed(epoch=-1),
    "a negative offset": changed(offset=-1),
    "an epoch that is not a number": changed(epoch="x"),
    "an epoch that is a boolean": changed(epoch=True),
    "an offset that is not a whole number": changed(offset=1.5),
    "a position that is not a text": changed(position=None),
}


@pytest.mark.parametrize("damage", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_state_is_refused(table, damage):
    loader = table.load(**OPTIONS)
    with pytest.raises(forebay.InvalidError, match="this is not the state of a Forebay loader: "):
        loader.load_state_dict(damage(loader.state_dict()))


def test_a_state_of_a_later_format_is_refused(table):
    loader = table.load(**OPTIONS)
    with pytest.raises(forebay.InvalidError, match="the state is of version 2, and this Forebay reads version 1"):
        loader.load_state_dict(loader.state_dict() | {"version": 2})


@pytest.mark.parametrize("position", ["nonsense", "", "-1:0", "fb1.12345"])
def test_a_damaged_position_is_refused(table, position):
    loader = table.load(**OPTIONS)
    with pytest.raises(forebay.InvalidError) as raised:
        loader.load_state_dict(loader.state_dict() | {"position": position})
    assert repr(position)[1:-1] in raised.value.message
    assert "column" not in raised.value.message


def test_a_position_beyond_the_epoch_is_refused(table):
    loader = table.load(**OPTIONS)
    with pytest.raises(forebay.InvalidError, match="offset 999, and an epoch of this feed has 100 samples"):
        loader.load_state_dict(loader.state_dict() | {"position": "0:999"})


def test_tables_in_memory_resume_in_a_loader_of_the_same_table():
    loader = numbers(50, batch_size=8, shuffle=True)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = list(batches)
    loader.load_state_dict(state)
    assert same(list(loader), rest)
