"""Hugging Face's accelerate on two ranks: each sample once, exact resume, and wrappers that divide batches again."""

import pytest
import torch
from accelerate import Accelerator
from accelerate.data_loader import IterableDatasetShard
from torch.utils.data import DataLoader

import forebay
from feeds import pipeline, printed_by_ranks, range_of
from forebay.integrations.accelerate import _check_ranks, prepare

ROWS = {"n": range_of(50), "name": [str(n) for n in range(50)], "parts": [[n] * (n % 3) for n in range(50)]}


@pytest.fixture(scope="module")
def rows():
    return pipeline(ROWS)


@pytest.fixture
def accelerator():
    return Accelerator(cpu=True)


def firsts(batches):
    return [batch["n"][0].item() for batch in batches]


def test_a_prepared_loader_reads_epochs(rows, accelerator):
    loader = rows.load(batch_size=8, shuffle=True)
    expected = [firsts(loader) for _ in range(2)]
    prepared = prepare(accelerator, rows.load(batch_size=8, shuffle=True))
    assert [firsts(prepared) for _ in range(2)] == expected
    assert len(prepared) == 7
    assert accelerator.prepare(prepared) is prepared


def test_a_data_loader_around_the_loader_is_unwrapped(rows, accelerator):
    prepared = prepare(accelerator, DataLoader(rows.load(batch_size=8), batch_size=None))
    assert firsts(prepared) == list(range(0, 50, 8))
    with pytest.raises(forebay.InvalidError, match="has a batch size"):
        prepare(accelerator, DataLoader(rows.load(batch_size=8), batch_size=4))
    with pytest.raises(forebay.InvalidError, match="only Forebay loaders"):
        prepare(accelerator, DataLoader([1, 2]))


class Mesh(dict):
    """Stands for torch's DeviceMesh."""

    @property
    def mesh_dim_names(self):
        return tuple(self)


class Part:
    def __init__(self, size):
        self._size = size

    def size(self):
        return self._size


@pytest.mark.parametrize("sizes,rank", [({"dp_shard": 2, "tp": 2}, 1), ({"dp_shard": 2, "cp": 2}, 1), ({"tp": 4}, 0)])
def test_ranks_that_share_layers_must_read_the_same_samples(rows, sizes, rank):
    class Ranks:
        torch_device_mesh = Mesh({name: Part(size) for name, size in sizes.items()})
        num_processes, process_index = 4, 3

    ranks = rank + 1
    with pytest.raises(forebay.InvalidError) as raised:
        _check_ranks(Ranks(), rows.load(batch_size=8, rank=3, world_size=4))
    assert raised.value.hint == f"load with dp_rank={rank}, dp_size={ranks}"
    _check_ranks(Ranks(), rows.load(batch_size=8, dp_rank=rank, dp_size=ranks))
    Ranks.torch_device_mesh = Mesh({"sp": Part(2)})
    with pytest.raises(forebay.InvalidError, match="sequence parallelism"):
        _check_ranks(Ranks(), rows.load(batch_size=8))
    # Ranks of a mesh without such dimensions may read alone.
    Ranks.torch_device_mesh = Mesh({"dp_shard": Part(4)})
    _check_ranks(Ranks(), rows.load(batch_size=8, dp_rank=0, dp_size=1))


def test_the_batches_are_on_the_device_and_know_their_place(rows, accelerator):
    prepared = prepare(accelerator, rows.load(batch_size=8))
    prepared.device = torch.device("meta")
    batch = list(prepared)[1]
    assert batch["n"].is_meta and batch["parts"].values.is_meta and batch["parts"].offsets.is_meta
    assert (batch.epoch, batch.step, batch.offset) == (0, 1, 8) and batch["name"][0] == "8"
    without = prepare(accelerator, rows.load(batch_size=8, device="meta"), device_placement=False)
    assert without.device is None and next(iter(without))["n"].is_meta


@pytest.mark.parametrize("query", ["SELECT n FROM {table}", "SELECT n FROM {table} WHERE n % 3 <> 0"])
def test_the_last_batch_of_an_epoch_ends_the_accumulation_of_gradients(query):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    loader = pipeline(ROWS, query).load(batch_size=8)
    prepared, model = prepare(accelerator, loader), accelerator.prepare(torch.nn.Linear(1, 1))
    for epoch in range(2):
        steps = []
        for batch in prepared:
            with accelerator.accumulate(model):
                steps.append(accelerator.sync_gradients)
            # Asking for the end does not move the state.
            assert loader.state_dict()["epoch"] == epoch + prepared.end_of_dataloader
        assert steps[3] and steps[-1] and steps.count(True) == -(-len(steps) // 4)
        assert not accelerator.gradient_state.in_dataloader


def test_the_state_within_a_loop_is_that_of_its_batch(rows, accelerator):
    prepared = prepare(accelerator, rows.load(batch_size=8, shuffle=True))
    states = [(batch["n"][0].item(), prepared.state_dict()) for batch in prepared]
    following = firsts(prepared)
    for step, (_, state) in enumerate(states, 1):
        resumed = prepare(accelerator, rows.load(batch_size=8, shuffle=True))
        resumed.load_state_dict(state)
        assert firsts(resumed) == ([first for first, _ in states[step:]] or following)


def test_steps_are_skipped_by_the_loader_or_by_accelerate(rows, accelerator):
    expected = prepare(accelerator, rows.load(batch_size=8, shuffle=True))
    epochs = [firsts(expected) for _ in range(2)]
    prepared = prepare(accelerator, rows.load(batch_size=8, shuffle=True))
    prepared.skip(3)
    assert [firsts(prepared), firsts(prepared)] == [epochs[0][3:], epochs[1]]
    prepared = prepare(accelerator, rows.load(batch_size=8, shuffle=True))
    rest = list(accelerator.skip_first_batches(prepared, 3))
    assert rest[0].step == 3 and isinstance(rest[0], forebay.Batch)
    assert [firsts(rest), firsts(prepared)] == [epochs[0][3:], epochs[1]]


def test_save_state_and_load_state_keep_the_place(rows, accelerator, tmp_path):
    accelerator._custom_objects.clear()
    prepared = prepare(accelerator, rows.load(batch_size=8, shuffle=True))
    for batch in prepared:
        if batch.step == 2:
            accelerator.save_state(tmp_path / "checkpoint")
    expected = [firsts(prepared)]
    again = Accelerator(cpu=True)
    again._custom_objects.clear()
    resumed = prepare(again, rows.load(batch_size=8, shuffle=True))
    again.load_state(tmp_path / "checkpoint")
    assert [batch.step for batch in resumed] == [3, 4, 5, 6]
    assert [firsts(resumed)] == expected


WAYS_TO_DIVIDE = {
    "dispatch": {"dispatch_batches": True},
    "shard": {"dispatch_batches": False},
    "stateful": {"use_stateful_dataloader": True},
}


@pytest.mark.parametrize("way", WAYS_TO_DIVIDE)
def test_accelerators_own_prepare_is_refused_on_one_rank_too(rows, way):
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**WAYS_TO_DIVIDE[way]))
    divided = accelerator.prepare(DataLoader(rows.load(batch_size=8), batch_size=None))
    with pytest.raises(forebay.InvalidError, match="of accelerate divides") as raised:
        next(iter(divided))
    assert "forebay.integrations.accelerate.prepare" in raised.value.hint


def test_a_shard_of_a_loader_that_has_all_samples_is_allowed(rows):
    # The loader has everything, and the shards divide it.
    whole = [rows.load(batch_size=8, dp_rank=0, dp_size=1) for _ in range(2)]
    shards = [IterableDatasetShard(loader, 1, True, 2, rank) for rank, loader in enumerate(whole)]
    assert [firsts(shard) for shard in shards] == [[0, 16, 32], [8, 24, 40]]
    with pytest.raises(forebay.InvalidError, match="IterableDatasetShard keeps the batches of one process"):
        next(iter(IterableDatasetShard(rows.load(batch_size=8, dp_rank=0, dp_size=2), 1, True, 2, 0)))


TWO_RANKS = """
import json, sys, tempfile, pathlib
from feeds import pipeline, range_of
# The loaders are made before the process group.
rows = pipeline({"n": range_of(100)})
options = {"batch_size": 8, "shuffle": True, "seed": 4}
loader, plain, divided, other = (rows.load(**options) for _ in range(4))
import torch
from accelerate import Accelerator
from accelerate.data_loader import IterableDatasetShard
from accelerate.utils import DataLoaderConfiguration, broadcast_object_list
from torch.utils.data import DataLoader
import forebay
from forebay.integrations.accelerate import prepare

accelerator = Accelerator(cpu=True)
said = {"world": accelerator.num_processes}

def read(batches):
    return [value for batch in batches for value in batch["n"].tolist()]

batches = prepare(accelerator, loader)
said["rank"] = loader.rank
said["epochs"] = [read(batches) for _ in range(2)]

folder = [tempfile.mkdtemp() if accelerator.is_main_process else None]
broadcast_object_list(folder)
begun = []
for batch in batches:
    begun += batch["n"].tolist()
    if batch.step == 2:
        accelerator.save_state(folder[0])
        break
accelerator.wait_for_everyone()
accelerator.load_state(folder[0])
said["resumed"] = begun + read(batches)

# accelerator.prepare leaves a loader as it is.
said["untouched"] = accelerator.prepare(plain) is plain and read(plain)

def refused(batches):
    try:
        return read(batches)
    except forebay.InvalidError as error:
        return error.message

said["dispatched"] = refused(accelerator.prepare(DataLoader(divided, batch_size=None)))
accelerator.dataloader_config.dispatch_batches = False
said["sharded"] = refused(accelerator.prepare(DataLoader(other, batch_size=None)))
said["evaluated"] = read(rows.load(batch_size=8, dp_rank=0, dp_size=1))[:3]
said["wrong"] = refused(rows.load(batch_size=8, rank=0, world_size=1))
print(json.dumps(said))
accelerator.end_training()
"""


def test_two_ranks_read_each_sample_once():
    said = printed_by_ranks(TWO_RANKS, ACCELERATE_USE_CPU="true")
    assert [rank["rank"] for rank in said] == [0, 1] and {rank["world"] for rank in said} == {2}
    for epoch in range(2):
        assert sorted(said[0]["epochs"][epoch] + said[1]["epochs"][epoch]) == list(range(100))
    assert sorted(said[0]["resumed"] + said[1]["resumed"]) == list(range(100))
    assert sorted(said[0]["untouched"] + said[1]["untouched"]) == list(range(100))
    for rank, its in enumerate(said):
        only = f"this loader has the batches of rank {rank} of 2"
        assert only in its["dispatched"] and "DataLoaderDispatcher of accelerate divides" in its["dispatched"]
        assert only in its["sharded"] and "IterableDatasetShard keeps the batches of one process" in its["sharded"]
        assert its["evaluated"] == [0, 1, 2]
        assert its["wrong"] == (
            f'"rank" and "world_size" say that this is rank 0 of 1, and torch.distributed says rank {rank} of 2'
        )
