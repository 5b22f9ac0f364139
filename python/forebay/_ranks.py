"""Finds this process's rank: from arguments, else `torch.distributed`, else `jax.distributed`, else RANK and
WORLD_SIZE. Names its job.

A framework may start `torch.distributed` after a loader was made, so a loader asks at its first use.
"""

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

_GROUPS_HINT = (
    "if several processes share the samples of a rank, or one process reads alone, give the place among those that "
    "share the samples: dp_rank and dp_size (dp_rank=0, dp_size=1 reads everything)"
)


class Ranks:
    """The rank and the world size of a loader, as its arguments and its launcher say.

    `dp_rank` and `dp_size` are the place in a data-parallel group, which the launcher does not know. `rank` and
    `world_size` are the launcher's own words, so they must agree with it.
    """

    def __init__(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        dp_rank: int | None = None,
        dp_size: int | None = None,
    ):
        # What the arguments say; `None` if the launcher decides.
        self.given = _given(rank, world_size, dp_rank, dp_size)
        self._is_of_group = dp_rank is not None and dp_size is not None
        self._used: tuple[int, int] | None = None

    @property
    def used(self) -> tuple[int, int] | None:
        """What the loader has used, or will certainly use."""
        return self._used or self.given

    def resolve(self) -> tuple[int, int]:
        """Returns rank and world size, and remembers them. Raises if they are not those of an earlier call, or if
        arguments and launcher disagree."""
        found = self._find()
        if found is None:
            found = self._used or (0, 1)
        if self._used not in (None, found):
            raise InvalidError(
                f"this loader was used as {_place(*self._used)}, and now this process is {_place(*found)}",
                "initialise torch.distributed before the first use of a loader, such as len(loader) or a loop; or make "
                "a new loader, and load the state of this one",
            )
        self._used = found
        return found

    def _find(self) -> tuple[int, int] | None:
        if self._is_of_group:
            return self.given
        of_torch, of_jax = _of_torch(), _of_jax()
        of_environment = _of_environment(decides=of_torch is None and of_jax is None and self.given is None)
        said = [
            ("torch.distributed says", of_torch),
            ("jax.distributed says", of_jax),
            ("RANK and WORLD_SIZE say", of_environment),
        ]
        sources = [(source, ranks) for source, ranks in said if ranks is not None]
        if self.given is not None:
            # The arguments are compared with what would decide without them.
            sources = [('"rank" and "world_size" say', self.given), *sources[:1]]
        if not sources:
            return None
        (first, found), *others = sources
        for source, ranks in others:
            if ranks != found:
                both = f"{first} that this is {_place(*found)}, and {source} {_place(*ranks)}"
                raise InvalidError(both, _GROUPS_HINT)
        return _checked(*found)


def _given(rank: Any, world_size: Any, dp_rank: Any, dp_size: Any) -> tuple[int, int] | None:
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
    return None if rank is None or world_size is None else _checked(rank, world_size)


def _checked(rank: int, world_size: int) -> tuple[int, int]:
    if rank >= world_size:
        raise InvalidError(
            f'"rank" must be below the world size of {world_size}, got {rank}',
            f"ranks count from 0, so the last of {world_size} is {world_size - 1}",
        )
    return rank, world_size


def _place(rank: int, world_size: int) -> str:
    return f"rank {rank} of {world_size}"


def _of_torch() -> tuple[int, int] | None:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _of_jax() -> tuple[int, int] | None:
    distributed = getattr(sys.modules.get("jax"), "distributed", None)
    # Asking for the process's number starts JAX's devices, so ask only where it has several processes.
    is_initialized = getattr(distributed, "is_initialized", None)
    if is_initialized is None or not is_initialized():
        return None
    jax = sys.modules["jax"]
    return jax.process_index(), jax.process_count()


def _of_environment(decides: bool) -> tuple[int, int] | None:
    """Returns what RANK and WORLD_SIZE say. If nothing else `decides`, a world without a rank is an error."""
    found = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    if found["WORLD_SIZE"] is None:
        return None
    numbers = {name: _number(name, value) for name, value in found.items() if value is not None}
    if "RANK" in numbers:
        return numbers["RANK"], numbers["WORLD_SIZE"]
    if decides and numbers["WORLD_SIZE"] > 1:
        raise InvalidError(
            f"the environment variable WORLD_SIZE is {numbers['WORLD_SIZE']}, and nothing says which rank this is",
            "initialise torch.distributed first, set RANK, or give rank and world_size, or dp_rank and dp_size",
        )
    return None


def _number(name: str, value: str) -> int:
    is_positive = name == "WORLD_SIZE"
    if not (value.isascii() and value.isdecimal()) or is_positive and int(value) == 0:
        accepted = "a positive whole number" if is_positive else "a whole number"
        raise InvalidError(f"the environment variable {name} must be {accepted}, got {value!r}")
    return int(value)


class JobName:
    """A name for the job of a loader with these options, from what its launcher says.

    The job's ranks get the same name, and so do processes that start again at the same address and port. A second
    loader of a process is a job of its own: neither ends the other.
    """

    _loaders: Counter[str] = Counter()

    def __init__(self, options: dict[str, Any]):
        # Counted when loaders are made, because ranks make their loaders in the same order.
        text = json.dumps(options, sort_keys=True)
        self._loaders[text] += 1
        self._number = self._loaders[text]
        self._options = options

    def of(self, world_size: int) -> str | None:
        """Returns the name, or `None` if the launcher is unknown."""
        address = os.environ.get("MASTER_ADDR")
        if address is None:
            return None
        # Every machine has this address.
        is_loopback = address in ("localhost", "::1") or address.startswith("127.")
        parts = ["slurm", os.environ["SLURM_JOB_ID"]] if "SLURM_JOB_ID" in os.environ else []
        parts.append(socket.gethostname() if is_loopback else address)
        parts += [os.environ.get("MASTER_PORT", ""), os.environ.get("TORCHELASTIC_RUN_ID", "")]
        options = json.dumps([parts, self._options, world_size], sort_keys=True)
        loader = hashlib.blake2b(options.encode(), digest_size=6).hexdigest()
        return "/".join([*parts, loader, str(self._number)])
