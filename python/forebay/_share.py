"""A feed as its loaders read it, and the share of it that one rank reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from . import _native


class Feed(Protocol):
    """The feed that a loader reads, in this process or on a cluster."""

    id: str
    columns: list[tuple[str, str, bool]]
    samples_per_epoch: int | None
    identity: dict[str, Any]
    # Whether `count` reads the samples of an epoch whose number is not known; `None` if it never can.
    counts: bool | None

    def resolve(self, options: dict[str, Any]) -> tuple[int, int, bool, int | None]:
        """Returns batch size, epochs, drop_last, and the number of this rank's remaining samples if it is known."""
        ...

    def count(self, epoch: int) -> int | None:
        """Returns the number of offsets in an epoch over all ranks, if the feed counts."""
        ...

    def read(self, options: dict[str, Any], ahead: int) -> _native.Stream: ...

    def compute_seconds(self) -> float | None: ...

    def trace(self, options: dict[str, Any], epoch: int, step: int) -> list[tuple[str, int]]: ...

    def trace_offsets(self, epoch: int, first: int, count: int) -> list[tuple[str, int]]: ...


@dataclass(frozen=True)
class Share:
    """What one rank reads of a feed: its part of each global step."""

    rank: int
    world_size: int
    # The options for reading, as the native half takes them.
    read: dict[str, Any]
    batch_size: int
    drop_last: bool
    # Offsets of an epoch over all ranks, if the rank's batches are known before reading.
    total: int | None

    @property
    def is_dynamic(self) -> bool:
        """Whether only reading shows which batches the rank gets, because other ranks may take them."""
        return self.read.get("delivery") == "dynamic" and self.world_size > 1

    @property
    def global_batch_size(self) -> int:
        return self.batch_size * self.world_size

    def has_batch(self, step_begins: int, rank: int | None = None) -> bool:
        """Whether a rank, by default this one, has a batch in the global step that begins at this offset, if `total` is
        known."""
        assert self.total is not None
        if self.drop_last:
            return step_begins + self.global_batch_size <= self.total
        return step_begins + (self.rank if rank is None else rank) * self.batch_size < self.total

    def steps(self, offset: int = 0) -> int:
        """The number of global steps in an epoch from this offset on, if `total` is known."""
        assert self.total is not None
        left = max(self.total - offset, 0)
        return left // self.global_batch_size if self.drop_last else -(-left // self.global_batch_size)

    def batches(self) -> int:
        """The number of batches in an epoch, if `total` is known."""
        assert self.total is not None
        steps = self.total // self.global_batch_size
        return steps + self.has_batch(steps * self.global_batch_size)
