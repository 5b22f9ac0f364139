"""The loader as a dataset of torch's own loaders, with torch's devices, and in worker processes, where it raises an
error."""

import copy
import pickle

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import forebay
from feeds import pipeline, printed, range_of

# torch kills workers that do not answer within this time.
WORKER_WITHIN_SECONDS = 20


@pytest.fixture(scope="module")
def rows():
    return pipeline({"n": range_of(50), "name": [str(n) for n in range(50)], "parts": [[n] * (n % 3) for n in range(50)]})


def firsts(batches):
    return [batch["n"][0].item() for batch in batches]


def test_a_torch_loader_is_an_iterable_dataset(rows):
    loader = rows.load(batch_size=8)
    assert isinstance(loader, IterableDataset) and isinstance(loader, forebay.Loader)
    assert not isinstance(rows.load(batch_size=8, format="numpy"), IterableDataset)


def test_data_loader_reads_epochs(rows):
    loader = rows.load(batch_size=8, shuffle=True, seed=2)
    expected = [firsts(loader) for _ in range(2)]
    wrapped = DataLoader(rows.load(batch_size=8, shuffle=True, seed=2), batch_size=None, num_workers=0)
    assert len(wrapped) == 7
    assert [firsts(wrapped) for _ in range(2)] == expected
    batch = next(iter(wrapped))
    assert batch["name"][0] == str(batch["n"][0].item())
    assert isinstance(batch["parts"], forebay.Ragged)


@pytest.mark.parametrize("wrapper", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("count", [7, 8])
def test_data_loaders_that_are_read_by_their_length_go_on_to_the_next_epoch(rows, wrapper, count):
    loader = rows.load(batch_size=8, shuffle=True, seed=2)
    expected = [firsts(loader) for _ in range(4)]
    wrapped = wrapper(rows.load(batch_size=8, shuffle=True, seed=2), batch_size=None)
    # Exactly its length, or until its end.
    assert [firsts(batch for _, batch in zip(range(count), wrapped)) for _ in range(3)] == expected[:3]
    assert wrapped.dataset.state_dict()["epoch"] == 3
    next(iter(wrapped))
    assert firsts(wrapped) == expected[3]


@pytest.mark.parametrize("wrapper", [DataLoader, StatefulDataLoader])
def test_a_data_loader_zipped_with_itself_raises(rows, wrapper):
    wrapped = wrapper(rows.load(batch_size=8), batch_size=None)
    with pytest.raises(forebay.InvalidError, match="a newer loop over this loader began"):
        list(zip(wrapped, wrapped))


def test_a_sampler_that_divides_samples_is_refused(rows):
    loader = rows.load(batch_size=8)
    with pytest.raises(ValueError, match="expected unspecified sampler option"):
        DataLoader(loader, batch_size=None, sampler=DistributedSampler(loader, num_replicas=2, rank=0))
    loader = rows.load(batch_size=8, format="numpy")
    with pytest.raises(TypeError, match="not subscriptable"):
        next(iter(DataLoader(loader, batch_size=None, sampler=DistributedSampler(loader, num_replicas=2, rank=0))))


def test_a_batch_moves_to_a_device_with_its_place(rows):
    batch = next(iter(rows.load(batch_size=8)))
    moved = batch.to("meta", non_blocking=True)
    assert moved["n"].is_meta and moved["parts"].values.is_meta and moved["name"] == batch["name"]
    assert (type(moved), moved.epoch, moved.step, moved.offset) == (forebay.Batch, 0, 0, 0)
    assert not batch["n"].is_meta
    # Tensors of other frameworks have no device of torch.
    batch = next(iter(rows.load(batch_size=8, format="numpy")))
    assert batch.to("meta")["n"] is batch["n"]


@pytest.mark.parametrize("taken", [0, 1, 3, 6, 7])
def test_stateful_data_loader_resumes_in_the_middle(rows, taken):
    def wrapped():
        return StatefulDataLoader(rows.load(batch_size=8, shuffle=True), batch_size=None, num_workers=0)

    run = wrapped()
    batches = iter(run)
    for _ in range(taken):
        next(batches)
    state = run.state_dict()
    rest = [batch["n"].tolist() for batch in batches]
    following = [batch["n"].tolist() for batch in run]
    resumed = wrapped()
    resumed.load_state_dict(state)
    # After the last batch the next loop is the next epoch.
    loops = [rest, following] if rest else [following]
    assert [[batch["n"].tolist() for batch in resumed] for _ in loops] == loops


@pytest.mark.parametrize("context, message", [("fork", "in a forked process"), ("spawn", "sent to another process")])
def test_data_loader_with_workers_says_what_to_do(rows, context, message):
    wrapped = DataLoader(
        rows.load(batch_size=8),
        batch_size=None,
        num_workers=1,
        multiprocessing_context=context,
        timeout=WORKER_WITHIN_SECONDS,
    )
    with pytest.raises(forebay.InvalidError, match=message) as raised:
        next(iter(wrapped))
    assert "DataLoader(num_workers=0)" in str(raised.value)


@pytest.mark.parametrize("name", ["loader", "pipeline", "table", "session", "cluster"])
def test_what_holds_threads_is_not_pickled(rows, name):
    things = {
        "loader": lambda: rows.load(format="numpy"),
        "pipeline": lambda: rows,
        "table": lambda: forebay.table(rows_of_one()),
        "session": lambda: rows.session,
    }
    if name == "cluster":
        with forebay.serve() as server:
            refuse_to_pickle(forebay.connect(server.uri))
    else:
        refuse_to_pickle(things[name]())


def rows_of_one():
    import pyarrow as pa

    return pa.table({"n": [1]})


def refuse_to_pickle(thing):
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(forebay.InvalidError, match="cannot be sent to another process") as raised:
            attempt(thing)
        assert raised.value.hint


def test_batches_and_errors_are_pickled(rows):
    batch = next(iter(rows.load(batch_size=8)))
    again = pickle.loads(pickle.dumps(batch))
    assert again["n"].tolist() == batch["n"].tolist()
    assert again["parts"].offsets.tolist() == batch["parts"].offsets.tolist()
    assert (again.epoch, again.step, again.offset) == (0, 0, 0)
    error = pickle.loads(pickle.dumps(forebay.ConflictError("message", "hint")))
    assert (type(error), error.message, error.hint) == (forebay.ConflictError, "message", "hint")


FORKED = """
import json, os, sys
from feeds import numbers
import forebay

def said(action, leave=os._exit):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(action())
        except forebay.InvalidError as error:
            text = error.message
        os.write(write, text.encode())
        leave(0)
    os.close(write)
    text = os.read(read, 10_000).decode()
    os.waitpid(child, 0)
    return text

loader = numbers(100, batch_size=8)
batches = iter(loader)
next(batches)
print(json.dumps({
    "next": said(lambda: next(batches)),
    "loop": said(lambda: list(loader)),
    "trace": said(lambda: loader.trace(0)),
    "state": said(lambda: loader.state_dict()["offset"]),
    # Ends like a worker: with everything that it inherited.
    "close": said(loader.close, sys.exit),
    "fresh": said(lambda: len(list(numbers(100, batch_size=8)))),
    "here": str(len(list(batches))),
}))
"""


def test_in_a_forked_process_what_waits_is_refused_and_a_fresh_loader_works():
    said = printed(FORKED)
    refused = "a Forebay loader or session cannot be used in a forked process"
    assert said["next"] == said["loop"] == said["trace"] == refused
    assert said["state"] == "8" and said["close"] == "None"
    # The child gets its own default session.
    assert said["fresh"] == "13"
    assert said["here"] == "12"


def test_the_cpu_is_a_device(rows):
    batch = next(iter(rows.load(batch_size=8, device="cpu")))
    assert batch["n"].device == torch.device("cpu") and batch["parts"].values.device == torch.device("cpu")
    assert batch.step == 0 and batch["name"][7] == "7"
    assert len(list(rows.load(batch_size=8, device=torch.device("cpu")))) == 7


def test_each_tensor_of_a_batch_is_moved(rows):
    # "meta" is a device without memory, so a tensor on it has been moved.
    nested = forebay.sql("SELECT n, parts, struct(n AS inner_n) AS both FROM t", t=table_of(rows))
    batch = next(iter(nested.load(batch_size=8, device="meta")))
    assert batch["n"].is_meta and batch["parts"].values.is_meta and batch["parts"].offsets.is_meta
    assert batch["both"]["inner_n"].is_meta


def table_of(rows):
    import pyarrow as pa

    return pa.Table.from_batches(list(rows.load(format="arrow")))


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without CUDA")
@pytest.mark.parametrize(
    "options, message",
    [
        ({"device": "cuda"}, 'device="cuda" needs CUDA'),
        ({"device": torch.device("cuda", 1)}, 'device="cuda:1" needs CUDA'),
        ({"pin_memory": True}, "pin_memory=True needs CUDA"),
        ({"device": "cpu", "pin_memory": True}, "pin_memory=True needs CUDA"),
    ],
)
def test_cuda_is_refused_where_there_is_none(rows, options, message):
    with pytest.raises(forebay.InvalidError, match=message):
        rows.load(batch_size=8, **options)
