"""Finds this process's rank: from arguments, else `torch.distributed`, else RANK and WORLD_SIZE. Names its job."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
from collections import Counter
from typing import Any

from . import _arguments as arguments
from ._errors import InvalidError


def resolve(
    rank: int | None, world_size: int | None, dp_rank: int | None = None, dp_size: int | None = None
) -> tuple[int, int]:
    for torch_name, value, other, other_value in (
        ("rank", rank, "dp_rank", dp_rank),
        ("world_size", world_size, "dp_size", dp_size),
    ):
        if value is not None and other_value is not None and value != other_value:
            raise InvalidError(
                f'"{torch_name}" is {value!r} and "{other}" is {other_value!r}: they name the same thing'
            )
    rank = arguments.integer("rank", rank) if rank is not None else arguments.integer("dp_rank", dp_rank)
    is_dp = world_size is None
    world_size = arguments.positive("dp_size", dp_size) if is_dp else arguments.positive("world_size", world_size)
    if (rank is None) != (world_size is None):
        given, missing = ("rank", "world_size") if world_size is None else ("world_size", "rank")
        raise InvalidError(f'"{given}" was given without "{missing}"', "give both, or neither")
    if rank is None:
        rank, world_size = _of_torch() or _of_environment() or (0, 1)
    if rank >= world_size:
        raise InvalidError(
            f'"rank" must be below the world size of {world_size}, got {rank}',
            f"ranks count from 0, so the last of {world_size} is {world_size - 1}",
        )
    return rank, world_size


_loaders: Counter[str] = Counter()


def job_name(options: dict[str, Any]) -> str | None:
    """Returns a name for the job of a loader with these options, from what its launcher says. Its ranks get the same
    name, and so do processes that start again at the same address and port. A second loader of a process is a job of
    its own: neither ends the other. Returns `None` if the launcher is unknown.
    """
    address = os.environ.get("MASTER_ADDR")
    if address is None:
        return None
    # Every machine has this address.
    is_loopback = address in ("localhost", "::1") or address.startswith("127.")
    parts = ["slurm", os.environ["SLURM_JOB_ID"]] if "SLURM_JOB_ID" in os.environ else []
    parts.append(socket.gethostname() if is_loopback else address)
    parts += [os.environ.get("MASTER_PORT", ""), os.environ.get("TORCHELASTIC_RUN_ID", "")]
    loader = hashlib.blake2b(json.dumps([parts, options], sort_keys=True).encode(), digest_size=6).hexdigest()
    _loaders[loader] += 1
    return "/".join([*parts, loader, str(_loaders[loader])])


def _of_torch() -> tuple[int, int] | None:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _of_environment() -> tuple[int, int] | None:
    found = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    if None in found.values():
        return None
    for name, value in found.items():
        is_positive = name == "WORLD_SIZE"
        if not (value.isascii() and value.isdecimal()) or is_positive and int(value) == 0:
            accepted = "a positive whole number" if is_positive else "a whole number"
            raise InvalidError(f"the environment variable {name} must be {accepted}, got {value!r}")
    return int(found["RANK"]), int(found["WORLD_SIZE"])
