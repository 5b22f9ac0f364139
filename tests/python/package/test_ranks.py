"""A loader's rank and world size come from its arguments, `torch.distributed`, or RANK and WORLD_SIZE."""

import pytest
import torch

import forebay
from feeds import numbers, pipeline, printed_by_ranks, range_of, values


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def process_group(tmp_path):
    """Initialises torch.distributed with this process alone."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def ranks_of(**options):
    loader = numbers(100, batch_size=8, **options)
    return loader.rank, loader.world_size


def test_without_anything_there_is_one_rank():
    assert ranks_of() == (0, 1)


def test_ranks_share_each_step_in_order():
    shared = pipeline({"n": range_of(100)})
    ranks = [list(shared.load(format="arrow", batch_size=8, rank=rank, world_size=3)) for rank in range(3)]
    assert [len(batches) for batches in ranks] == [5, 4, 4]
    steps = [value for step in range(5) for batches in ranks if step < len(batches) for value in values([batches[step]])]
    assert steps == list(range(100))


def test_drop_last_gives_each_rank_the_same_number_of_whole_batches():
    shared = pipeline({"n": range_of(100)})
    for rank in range(3):
        loader = shared.load(format="arrow", batch_size=8, rank=rank, world_size=3, drop_last=True)
        assert [len(batch) for batch in loader] == [8] * 4


def test_dp_rank_and_dp_size_are_other_names():
    assert ranks_of(dp_rank=1, dp_size=4) == (1, 4)
    assert ranks_of(rank=1, dp_rank=1, world_size=4, dp_size=4) == (1, 4)
    assert ranks_of(dp_rank=1, world_size=4) == (1, 4)


def test_the_environment_says_which_rank(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert ranks_of() == (2, 4)
    assert ranks_of(rank=2, world_size=4) == (2, 4)


def test_torch_distributed_says_which_rank(process_group):
    assert ranks_of() == (0, 1)
    assert ranks_of(rank=0, world_size=1) == (0, 1)


@pytest.mark.parametrize(
    "options, environment, message",
    [
        ({}, (2, 4), "torch.distributed says that this is rank 0 of 1, and RANK and WORLD_SIZE say rank 2 of 4"),
        (
            {"rank": 1, "world_size": 3},
            None,
            '"rank" and "world_size" say that this is rank 1 of 3, and torch.distributed says rank 0 of 1',
        ),
    ],
)
def test_sources_that_disagree_with_the_process_group_are_named(
    monkeypatch, process_group, options, environment, message
):
    if environment:
        monkeypatch.setenv("RANK", str(environment[0]))
        monkeypatch.setenv("WORLD_SIZE", str(environment[1]))
    with pytest.raises(forebay.InvalidError) as raised:
        next(iter(numbers(100, **options)))
    assert raised.value.message == message
    assert "dp_rank and dp_size" in raised.value.hint


def test_arguments_that_disagree_with_the_environment_are_named(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(forebay.InvalidError) as raised:
        ranks_of(rank=0, world_size=2)
    assert raised.value.message == (
        '"rank" and "world_size" say that this is rank 0 of 2, and RANK and WORLD_SIZE say rank 2 of 4'
    )


def test_a_data_parallel_place_is_no_matter_of_the_launcher(monkeypatch, process_group):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert ranks_of(dp_rank=1, dp_size=2) == (1, 2)
    # One process of a job evaluates alone.
    assert values(numbers(100, batch_size=8, dp_rank=0, dp_size=1)) == list(range(100))


def test_a_world_size_without_a_rank_is_an_error(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(forebay.InvalidError, match="WORLD_SIZE is 4, and nothing says which rank this is") as raised:
        next(iter(numbers(100)))
    assert "initialise torch.distributed first" in raised.value.hint
    assert ranks_of(rank=1, world_size=4) == (1, 4)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert ranks_of() == (0, 1)


def test_the_process_group_says_which_rank_in_a_world_without_ranks(monkeypatch, process_group):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert ranks_of() == (0, 1)


def test_a_rank_without_a_world_is_another_programs(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    assert ranks_of() == (0, 1)


def test_ranks_are_those_of_the_first_use(monkeypatch):
    loader = numbers(100, batch_size=8)
    # These say nothing about ranks.
    assert repr(loader) == "<forebay.Loader {n: Int64}>" and loader.batch_size == 8 and loader.epoch == 0
    assert loader.state_dict()["offset"] == 0
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(loader) == 6 and values(loader)[:8] == list(range(8, 16))
    assert "rank 1/2 batch_size=8" in repr(loader)


def test_a_global_batch_is_divided_at_the_first_use(monkeypatch):
    loader = numbers(100, global_batch_size=24)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert loader.batch_size == 8
    monkeypatch.setenv("WORLD_SIZE", "5")
    with pytest.raises(forebay.InvalidError, match="does not divide"):
        next(iter(numbers(100, global_batch_size=24)))


@pytest.mark.parametrize("use", [len, lambda loader: loader.rank, list, lambda loader: loader.skip(1)])
def test_ranks_that_change_after_a_use_are_an_error(monkeypatch, use):
    loader = numbers(100, batch_size=8)
    use(loader)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(forebay.InvalidError) as raised:
        next(iter(loader))
    assert raised.value.message == "this loader was used as rank 0 of 1, and now this process is rank 1 of 2"
    # A loader whose launcher has ended keeps its rank.
    other = numbers(100, batch_size=8)
    list(other)
    monkeypatch.delenv("RANK"), monkeypatch.delenv("WORLD_SIZE")
    assert values(other)[:8] == list(range(8, 16))


@pytest.mark.parametrize(
    "environment, message",
    [
        ({"RANK": "one", "WORLD_SIZE": "4"}, "environment variable RANK must be a whole number, got 'one'"),
        ({"RANK": "1", "WORLD_SIZE": "-4"}, "environment variable WORLD_SIZE must be a positive whole number, got '-4'"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, '"rank" must be below the world size of 4, got 4'),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "environment variable WORLD_SIZE must be a positive whole number, got '0'"),
        ({"RANK": "\u00b2", "WORLD_SIZE": "4"}, "environment variable RANK must be a whole number, got '\u00b2'"),
    ],
)
def test_a_wrong_environment_is_named(monkeypatch, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(forebay.InvalidError) as raised:
        ranks_of()
    assert message in raised.value.message


@pytest.mark.parametrize(
    "options, message",
    [
        ({"rank": 3, "world_size": 3}, '"rank" must be below the world size of 3, got 3'),
        ({"rank": 0}, '"rank" was given without "world_size"'),
        ({"world_size": 2}, '"world_size" was given without "rank"'),
        ({"rank": -1, "world_size": 2}, '"rank" must be an integer of at least 0, got -1'),
        ({"rank": 0, "world_size": 0}, '"world_size" must be a positive integer, got 0'),
        ({"rank": "0", "world_size": 2}, "\"rank\" must be an integer of at least 0, got '0'"),
        ({"rank": True, "world_size": 2}, '"rank" must be an integer of at least 0, got True'),
        ({"dp_rank": -1, "dp_size": 2}, '"dp_rank" must be an integer of at least 0, got -1'),
        ({"dp_rank": 0, "dp_size": 0}, '"dp_size" must be a positive integer, got 0'),
        ({"rank": 0, "dp_rank": 1, "world_size": 2}, '"rank" is 0 and "dp_rank" is 1: they name the same thing'),
        ({"rank": 0, "world_size": 2, "dp_size": 3}, '"world_size" is 2 and "dp_size" is 3: they name the same thing'),
    ],
)
def test_wrong_ranks_are_named(options, message):
    with pytest.raises(forebay.InvalidError) as raised:
        ranks_of(**options)
    assert raised.value.message == message


def test_a_global_batch_is_shared_by_the_ranks():
    loader = numbers(100, global_batch_size=24, rank=1, world_size=3)
    assert loader.batch_size == 8
    assert values(loader)[:9] == [*range(8, 16), 32]


def test_a_world_size_that_does_not_divide_the_global_batch_names_those_that_do():
    with pytest.raises(forebay.InvalidError) as raised:
        numbers(100, global_batch_size=24, rank=0, world_size=5)
    assert raised.value.message == '"world_size" 5 does not divide "global_batch_size" 24'
    assert raised.value.hint == "world sizes that do: 1, 2, 3, 4, 6, 8, 12, 24"
    with pytest.raises(forebay.InvalidError, match="world sizes that do: .*, …$"):
        numbers(100, global_batch_size=720720, rank=0, world_size=17)
    with pytest.raises(forebay.InvalidError, match="does not divide"):
        tokens = pipeline({"tokens": [[1], [2]]})
        tokens.load(
            global_batch_size=24, bucket_by_length="tokens", bucket_boundaries=[3], rank=0, world_size=5, format="arrow"
        )


def test_a_global_batch_and_a_batch_are_not_both_given():
    with pytest.raises(forebay.InvalidError, match='"batch_size" and "global_batch_size" were both given'):
        numbers(100, batch_size=8, global_batch_size=24)


# A framework starts the process group after the loader was made, and the environment does not say which rank this is.
LATE = """
import json, os
rank, world_size = int(os.environ.pop("RANK")), int(os.environ.pop("WORLD_SIZE"))
from feeds import pipeline, range_of
import forebay
made = pipeline({"n": range_of(100)})
loader, used, given = made.load(batch_size=8), made.load(batch_size=8), made.load(batch_size=8, rank=0, world_size=1)
group = made.load(batch_size=8, dp_rank=0, dp_size=1)
too_early = len(used)
import torch
torch.distributed.init_process_group("gloo", rank=rank, world_size=world_size)

def read(loader):
    try:
        return [value for batch in loader for value in batch["n"].tolist()]
    except forebay.InvalidError as error:
        return str(error)

said = {"late": [read(loader) for _ in range(2)], "used": read(used), "given": read(given), "group": read(group)}
torch.distributed.destroy_process_group()
# Without the group the loader keeps its rank.
print(json.dumps(said | {"rest": read(loader), "early": too_early}))
"""


def test_a_process_group_that_comes_after_the_loader_says_which_rank():
    said = printed_by_ranks(LATE)
    for epoch in range(2):
        assert sorted(said[0]["late"][epoch] + said[1]["late"][epoch]) == list(range(100))
    for rank, its in enumerate(said):
        assert its["early"] == 13
        assert f"this loader was used as rank 0 of 1, and now this process is rank {rank} of 2" in its["used"]
        assert f"torch.distributed says rank {rank} of 2" in its["given"] and "dp_rank and dp_size" in its["given"]
        assert its["group"] == list(range(100))
        assert its["rest"] == its["late"][1]
