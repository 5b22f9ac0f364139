"""What type checkers know about loops. test_types.py checks this file, and nothing runs it."""

from typing import Any, assert_type

import jax
import numpy.typing
import torch
from torch.utils.data import DataLoader

import forebay
from forebay import Batch, Loader, Pipeline, Ragged, Table


def of_each_format(table: Table, pipeline: Pipeline, session: forebay.Session, cluster: forebay.Cluster) -> None:
    for batch in forebay.load("photos.sql", batch_size=16):
        assert_type(batch, Batch[torch.Tensor])
        assert_type(batch.epoch, int)
    for batch in table.load(format="torch", shuffle=True, seed=17):
        assert_type(batch, Batch[torch.Tensor])
    for arrays in pipeline.load(format="numpy", count=True):
        assert_type(arrays, Batch[numpy.typing.NDArray[Any]])
    for buffers in session.load("photos", format="jax"):
        assert_type(buffers, Batch[jax.Array])
    for records in cluster.load("photos", format="arrow", job="train"):
        print(records.num_rows)


def small(table: Table) -> None:
    ordered = table.order_by("label", "size DESC", memory_limit="64MiB")
    assert_type(ordered, Table)
    assert_type(forebay.concat([ordered, table, {"label": [1]}]), Table)
    assert_type(forebay.concat(["photos/cat/", "photos/rocket/"]).split(0.5, by="path"), tuple[Table, ...])


def whole(table: Table) -> None:
    groups = table.group_by("label", kilobytes="size / 1000")
    assert_type(groups, forebay.GroupBy)
    counts = groups.agg(photos="count(*)")
    assert_type(counts.sort("photos", "label", descending=[True, False], nulls_last=False), Table)
    assert_type(table.join(counts, on="label", how="semi").union(table, {"label": [1]}).distinct("label"), Table)
    assert_type(table.join(counts, how="cross"), Table)


def columns(batch: Batch[torch.Tensor]) -> None:
    assert_type(batch["image"], torch.Tensor | Any)
    images: torch.Tensor = batch["image"]
    paths: list[str] = batch.column("path", list)
    assert_type(batch.column("image", torch.Tensor), torch.Tensor)
    tokens: Ragged[torch.Tensor] = batch.column("tokens", Ragged)
    assert_type(tokens[3], torch.Tensor)
    assert_type(batch.to("cuda", non_blocking=True).pin_memory(), Batch[torch.Tensor])
    print(images.shape, len(paths))


def of_torch(table: Table) -> None:
    """Torch's own loaders accept the loader."""
    loader = table.load(batch_size=32, drop_last=True)
    assert_type(list(loader), list[Batch[torch.Tensor]])
    for batch in DataLoader(loader, batch_size=None):
        print(batch)


def chosen_at_run_time(table: Table, format: str) -> None:
    assert_type(table.load(format=format), Loader[Any])


def of_queries(text: str) -> None:
    samples = forebay.sql("SELECT label FROM photos", photos="photos/")
    for batch in samples.load():
        print(batch)
    samples.materialize("folder", seed=3)
    samples.preview(rows=3, on_error="skip")
