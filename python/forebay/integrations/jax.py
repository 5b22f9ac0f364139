"""Forebay in JAX on several processes.

    jax.distributed.initialize()
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    loader = forebay.load("train.sql", global_batch_size=1024, drop_last=True, format="numpy", **ranks(sharding))
    for batch in loader:
        state = step(state, global_batch(batch, sharding))

Without `ranks`, each process is a rank of its own, as `jax.distributed` says. A mesh may give several processes the
same samples, because they share a model's layers; `ranks` finds that out.
"""

from __future__ import annotations

from typing import Any, Mapping

from .._errors import InvalidError
from ._versions import require

_jax = require("jax", "jax")
import numpy  # noqa: E402  (JAX needs it)

__all__ = ["global_batch", "ranks"]


def ranks(sharding: Any) -> dict[str, int]:
    """Returns `dp_rank` and `dp_size` for `forebay.load`: this process's place among those that get different samples.

    `sharding` is that of a batch, whose first dimension is samples.
    """
    # Only the samples matter, and not how each of them is divided.
    if isinstance(sharding, _jax.sharding.NamedSharding):
        sharding = _jax.sharding.NamedSharding(sharding.mesh, _jax.sharding.PartitionSpec(*sharding.spec[:1]))
    # Rows of a batch that has one row for each device.
    devices = len(sharding.device_set)
    rows_of: dict[int, set[int]] = {}
    for device, index in sharding.devices_indices_map((devices,)).items():
        rows_of.setdefault(device.process_index, set()).update(range(devices)[index[0]])
    mine = rows_of.get(_jax.process_index())
    if mine is None:
        raise InvalidError("no device of this process is in the sharding", "all processes that load take part in it")
    shares = sorted({tuple(sorted(rows)) for rows in rows_of.values()})
    is_divided = sum(map(len, shares)) == devices and len({len(share) for share in shares}) == 1
    if not is_divided:
        raise InvalidError(
            f"{sharding} gives some processes a part of the samples of others, or more of them",
            "lay the mesh out so that the devices of a process, or of a group of processes, share a part of the batch",
        )
    return {"dp_rank": shares.index(tuple(sorted(mine))), "dp_size": len(shares)}


def global_batch(batch: Mapping[str, Any], sharding: Any) -> dict[str, Any]:
    """Makes global arrays of the batches of all processes. `sharding` is one for all columns, or a dict by column."""
    arrays = {}
    for name, column in batch.items():
        if not hasattr(column, "__array__"):
            raise InvalidError(
                f'the column "{name}" is a {type(column).__name__}, and only arrays can be sharded',
                "load with columns=[…] without it, or take it out of the batch",
            )
        wanted = sharding[name] if isinstance(sharding, Mapping) else sharding
        local = numpy.asarray(column)
        array = _jax.make_array_from_process_local_data(wanted, local)
        if array.shape[1:] != local.shape[1:]:
            # Each process has whole samples, also of those that are divided among processes.
            shape = (array.shape[0], *local.shape[1:])
            array = _jax.make_array_from_process_local_data(wanted, local, shape)
        arrays[name] = array
    return arrays
