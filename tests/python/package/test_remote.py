"""A server's batches equal those of this process. Also servers that disappear or refuse the client."""

import threading
import time

import pytest

import forebay
from feeds import files, pipeline, range_of, same, values
from support import Server

# Maximum delay of an error after `retry_for`, on a busy machine.
SLACK_SECONDS = 5
COUNT = 200


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    folder = tmp_path_factory.mktemp("remote")
    files(folder / "numbers", COUNT)
    script = folder / "pipelines.sql"
    script.write_text("""
        CREATE EXTERNAL TABLE numbers STORED AS PARQUET LOCATION 'numbers';
        CREATE PIPELINE numbers WITH (shuffle = true, seed = 5, batch_size = 8, window_rows = 40) AS
        SELECT n, n * 2 AS twice FROM numbers;
        CREATE PIPELINE filtered AS SELECT n FROM numbers WHERE n % 3 <> 0;
        CREATE PIPELINE slow WITH (window_rows = 10, batch_size = 5) AS SELECT sleep(n, milliseconds => 5) AS n FROM
        numbers; """)
    return script


@pytest.fixture(scope="module")
def local(script):
    session = forebay.Session(base=script.parent)
    session.sql(script)
    return session


@pytest.fixture(scope="module")
def server(script):
    with Server(script) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(server):
    return forebay.connect(server.uri, retry_for=10)


def test_a_cluster_names_its_pipelines(cluster, server):
    assert cluster.pipelines() == ["filtered", "numbers", "slow"]
    assert server.uri in repr(cluster)


def test_status_shows_workers_and_feeds(cluster):
    list(cluster.load("numbers", format="arrow"))
    status = cluster.status()
    assert len(status["workers"]) == 1 and status["workers_lost"] == 0
    assert cluster.load("numbers", format="arrow").feed_id in [feed["feed"] for feed in status["feeds"]]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"epochs": 2},
        {"seed": 9, "batch_size": 16, "drop_last": True},
        {"shuffle": False},
        {"rank": 1, "world_size": 3},
        {"global_batch_size": 24, "rank": 2, "world_size": 3},
        {"columns": ["twice"]},
        {"window_rows": 20},
    ],
    ids=repr,
)
def test_the_batches_are_those_of_this_process(cluster, local, options):
    here, there = local.load("numbers", format="arrow", **options), cluster.load("numbers", format="arrow", **options)
    assert there.feed_id == here.feed_id
    assert there.columns == here.columns and there.batch_size == here.batch_size
    assert there.samples_per_epoch == here.samples_per_epoch == COUNT
    assert len(there) == len(here)
    assert same(list(there), list(here))
    # Each loop is one epoch, and the next loop is the next epoch.
    assert same(list(there), list(here))


def test_a_filtered_feed_is_the_same_too(cluster, local):
    here, there = local.load("filtered", format="arrow"), cluster.load("filtered", format="arrow")
    assert same(list(there), list(here))
    with pytest.raises(TypeError, match="groups rows; loop without len"):
        len(there)


def test_counting_is_refused(cluster):
    with pytest.raises(forebay.InvalidError, match='"count" reads the files in this process'):
        cluster.load("filtered", format="arrow", count=True)


def test_frameworks_get_the_same_tensors(cluster, local):
    for here, there in zip(local.load("numbers", format="torch"), cluster.load("numbers", format="torch"), strict=True):
        assert here["n"].equal(there["n"]) and here["twice"].equal(there["twice"])
        assert (here.epoch, here.step, here.offset) == (there.epoch, there.step, there.offset)


@pytest.mark.parametrize("taken", [1, 7, 24])
def test_states_go_between_this_process_and_a_cluster(cluster, local, taken):
    for first, second in ((local, cluster), (cluster, local)):
        run = first.load("numbers", format="arrow")
        batches = iter(run)
        for _ in range(taken):
            next(batches)
        resumed = second.load("numbers", format="arrow")
        resumed.load_state_dict(run.state_dict())
        assert same(list(resumed), list(batches))


def test_a_state_of_another_feed_shows_the_difference(cluster, local):
    state = local.load("numbers", format="arrow", seed=6).state_dict()
    with pytest.raises(forebay.ConflictError, match="seed was 6 and is 5"):
        cluster.load("numbers", format="arrow").load_state_dict(state)


def test_skip_and_set_epoch(cluster, local):
    here, there = local.load("numbers", format="arrow"), cluster.load("numbers", format="arrow")
    for loader in (here, there):
        loader.set_epoch(3)
        loader.skip(20)
    assert same(list(there), list(here))


def test_a_loop_that_was_left_begins_over(cluster):
    loader = cluster.load("numbers", format="arrow")
    first = next(iter(loader))
    assert next(iter(loader)).equals(first)


def test_dynamic_delivery_gives_each_sample_to_one_of_two_loaders(cluster):
    options = {"format": "arrow", "delivery": "dynamic", "job": "pair", "epochs": 2, "world_size": 2}
    got = [[], []]

    def read(rank):
        got[rank] += cluster.load("numbers", rank=rank, **options)

    ranks = [threading.Thread(target=read, args=(rank,)) for rank in range(2)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    assert sorted(values(got[0]) + values(got[1])) == sorted([*range(COUNT)] * 2)


def test_a_feed_on_a_cluster_is_traced_as_in_this_process(cluster, local):
    for name in ("numbers", "filtered"):
        there, here = cluster.load(name, epochs=2, format="numpy"), local.load(name, epochs=2, format="numpy")
        for batch in there:
            rows = there.trace(batch)
            assert rows == here.trace(batch) == there.trace(batch.step, epoch=batch.epoch)
            assert [int(file[-len("0.parquet")]) * 40 + row for file, row in rows] == batch["n"].tolist()
    assert cluster.load("numbers", format="numpy", rank=1, world_size=2).trace(1) == of_rank(local, 1)
    with pytest.raises(forebay.InvalidError, match="a call traces at most 1048576"):
        cluster.load("numbers", batch_size=1 << 21, format="numpy").trace(0)


def of_rank(local, step):
    return local.load("numbers", format="numpy", rank=1, world_size=2).trace(step)


def test_stats_count_what_came(cluster):
    loader = cluster.load("numbers", format="arrow")
    list(loader)
    stats = loader.stats()
    assert (stats["batches"], stats["samples"]) == (25, COUNT)
    # Workers compute the batches, not this process.
    assert stats["compute_seconds"] is None


def test_a_lost_server_is_an_error_within_the_stated_time(script):
    with Server(script) as server:
        loader = forebay.connect(server.uri, retry_for=1).load("slow", format="arrow")
        batches = iter(loader)
        got = [next(batches)]
        server.kill()
        killed = time.monotonic()
        with pytest.raises(forebay.UnavailableError, match=server.uri) as raised:
            got += batches
        assert time.monotonic() - killed < 1 + SLACK_SECONDS
    assert raised.value.kind == "unavailable"
    # The state is still the loop's place, to resume from when the server is back.
    assert loader.state_dict()["offset"] == sum(len(batch) for batch in got)


def test_a_server_that_comes_back_goes_on_by_the_state(script, local):
    with Server(script) as server:
        run = forebay.connect(server.uri, retry_for=0).load("slow", format="arrow")
        batches = iter(run)
        got = [next(batches)]
        server.kill()
        with pytest.raises(forebay.UnavailableError):
            for batch in batches:
                got.append(batch)
    with Server(script) as server:
        resumed = forebay.connect(server.uri).load("slow", format="arrow")
        resumed.load_state_dict(run.state_dict())
        got += resumed
    assert values(got) == list(range(COUNT))


def test_connecting_to_nobody_is_an_error_within_the_stated_time(script):
    with Server(script) as server:
        uri = server.uri
    began = time.monotonic()
    with pytest.raises(forebay.UnavailableError, match="no server answers at") as raised:
        forebay.connect(uri, retry_for=0.5)
    assert time.monotonic() - began < 0.5 + SLACK_SECONDS
    assert isinstance(raised.value, ConnectionError)


def test_the_first_server_of_several_that_answers_is_taken(cluster, server):
    both = forebay.connect(f"grpc://127.0.0.1:1,{server.uri}", retry_for=5)
    assert both.pipelines() == cluster.pipelines()


def test_a_token_is_shown_or_refused(script, monkeypatch, tmp_path):
    tokens = tmp_path / "tokens"
    secret = "a-secret-of-enough-characters"
    tokens.write_text(secret + "\n")
    with Server(script, "--token-file", str(tokens)) as server:
        for token in (None, "wrong"):
            with pytest.raises(forebay.DeniedError, match="token") as raised:
                forebay.connect(server.uri, token=token, retry_for=5).pipelines()
            assert raised.value.kind == "denied" and "wrong" not in str(raised.value)
        expected = ["filtered", "numbers", "slow"]
        assert forebay.connect(server.uri, token=secret).pipelines() == expected
        assert len(list(forebay.connect(server.uri, token=secret).load("numbers", format="arrow"))) == 25
        monkeypatch.setenv("FOREBAY_TOKEN", secret)
        assert forebay.connect(server.uri).pipelines() == expected


def test_serve_is_a_server_in_this_process(local):
    with local.serve() as server:
        assert server.uri.startswith("grpc://127.0.0.1:") and server.uri in repr(server)
        cluster = forebay.connect(server.uri, retry_for=5)
        assert cluster.pipelines() == ["filtered", "numbers", "slow"]
        assert same(list(cluster.load("numbers", format="arrow")), list(local.load("numbers", format="arrow")))
    server.stop()
    with pytest.raises(forebay.UnavailableError):
        forebay.connect(server.uri, retry_for=0)


def test_serve_offers_what_is_created_later(script):
    session = forebay.Session()
    with session.serve() as server:
        cluster = forebay.connect(server.uri, retry_for=5)
        assert cluster.pipelines() == []
        session.sql("CREATE PIPELINE later AS SELECT n FROM numbers", numbers=script.parent / "numbers")
        assert cluster.pipelines() == ["later"]
        assert values(cluster.load("later", format="arrow")) == list(range(COUNT))


def test_a_port_that_is_taken_is_named(local):
    with local.serve() as server:
        port = int(server.uri.rpartition(":")[2])
        with pytest.raises(forebay.Error, match=str(port)):
            local.serve(port=port)


def test_a_table_in_memory_is_served_by_its_own_process():
    shared = pipeline({"n": range_of(20)})
    with forebay.serve() as server:
        assert values(forebay.connect(server.uri, retry_for=5).load(shared.name, format="arrow")) == list(range(20))
