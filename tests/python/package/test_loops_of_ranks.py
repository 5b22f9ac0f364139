"""Where the next loop of each of several ranks begins, and what its state is, in one process and on a cluster."""

import threading

import pyarrow as pa
import pytest

import forebay
from feeds import files, numbers, pipeline, range_of, values
from loops import LISTS, WAYS, old_state, place, read

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
