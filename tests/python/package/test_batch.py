"""Batches by themselves: their place, their columns, and copies to devices."""

import copy
import pickle

import numpy as np
import pyarrow as pa
import pytest
import torch

import forebay
from feeds import pipeline
from forebay import Batch, Ragged


def batch_of_every_kind() -> Batch:
    rows = pa.table({
        "number": [1.0, 2.0],
        "words": [[1, 2, 3], [4]],
        "text": ["a", None],
        "pair": pa.array([{"x": 1, "t": "b"}, {"x": 2, "t": "c"}]),
        "nested": [[[1], [2, 3]], []],
    })
    [batch] = pipeline(rows).load(format="torch", batch_size=2)
    # As after a user's own function: images of many shapes with a missing one, and lists of them.
    batch["images"] = [None, torch.ones(2, 3), torch.ones(1, 1)]
    batch["clips"] = [[torch.ones(2)], [], [torch.ones(3), torch.ones(4)]]
    return batch


def test_a_copy_to_a_device_reaches_every_tensor_and_keeps_the_rest():
    batch = batch_of_every_kind()
    moved = batch.to("meta")
    tensors = [
        moved["number"],
        moved["words"].values,
        moved["words"].offsets,
        moved["pair"]["x"],
        *moved["images"][1:],
        *[image for clip in moved["clips"] for image in clip],
    ]
    assert len(tensors) == 9 and all(tensor.device.type == "meta" for tensor in tensors)
    assert moved["text"] == ["a", None] and moved["pair"]["t"] == ["b", "c"] and moved["images"][0] is None
    assert moved["nested"] == batch["nested"] == [[[1], [2, 3]], []]
    assert (moved.epoch, moved.step, moved.offset) == (0, 0, 0)
    # The batch itself stays where it was.
    assert batch["number"].device.type == batch["words"].values.device.type == "cpu"


class Recorded:
    """A tensor's methods that need a GPU."""

    def __init__(self):
        self.calls = []

    def pin_memory(self):
        self.calls.append("pin")
        return self

    def to(self, device, non_blocking):
        self.calls.append((device, non_blocking))
        return self


def test_pinned_memory_and_asynchronous_copies(monkeypatch):
    monkeypatch.setattr(forebay._batch, "_is_torch", lambda value: isinstance(value, Recorded))
    image, values, offsets = Recorded(), Recorded(), Recorded()
    batch = Batch(image=image, words=Ragged(values, offsets), path=["a"])
    moved = batch.pin_memory().to("cuda:1", non_blocking=True)
    assert image.calls == values.calls == offsets.calls == ["pin", ("cuda:1", True)]
    assert moved["path"] == ["a"] and isinstance(moved["words"], Ragged)
    Ragged(values, offsets).pin_memory().to("cuda:0")
    assert offsets.calls[2:] == ["pin", ("cuda:0", False)]


def test_only_torch_tensors_move():
    batch = Batch(n=np.zeros(2), words=Ragged(np.zeros(2), np.zeros(1)), path=["a"], numbers=[1, 2])
    moved = batch.to("meta")
    assert list(moved) == list(batch) and all(moved[name] is batch[name] for name in batch)


def test_a_column_of_a_known_kind():
    batch = batch_of_every_kind()
    assert batch.column("number", torch.Tensor) is batch["number"]
    assert len(batch.column("words", Ragged)) == 2 and batch.column("text", list) == ["a", None]
    with pytest.raises(forebay.InvalidError, match='the column "text" is a list, not a Tensor'):
        batch.column("text", torch.Tensor)
    with pytest.raises(forebay.NotFoundError, match='no column "texts"') as error:
        batch.column("texts", list)
    assert "number, words, text" in error.value.hint


@pytest.mark.parametrize("copied", [copy.copy, lambda batch: pickle.loads(pickle.dumps(batch))])
def test_a_copy_has_the_same_place(copied):
    [_, second] = pipeline({"n": [1, 2, 3, 4]}).load(format="numpy", batch_size=2)
    again = copied(second)
    assert type(again) is Batch and again["n"].tolist() == [3, 4]
    assert (again.epoch, again.step, again.offset) == (0, 1, 2)


def test_torchs_loader_pins_batches_by_copies(monkeypatch):
    """`DataLoader(pin_memory=True)` copies a mapping, and pins what it holds."""
    from torch.utils.data._utils.pin_memory import pin_memory

    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor.to("meta"))
    batch = batch_of_every_kind()
    pinned = pin_memory(batch)
    assert pinned["number"].device.type == pinned["words"].values.device.type == "meta"
    assert type(pinned) is Batch and pinned.offset == 0
