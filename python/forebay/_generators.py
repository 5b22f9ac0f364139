"""Generators of random numbers for the rows of a Python function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from ._packages import required


class Generators(Sequence[Any]):
    """A `numpy.random.Generator` for each row, made when it is first used."""

    def __init__(self, seeds: list[int]):
        self._seeds = seeds
        self._made: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._seeds)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = range(len(self))[index]
        # One row has one generator. A second one would begin its numbers again.
        if row not in self._made:
            random = required("numpy.random", "rng=True")
            self._made[row] = random.Generator(random.Philox(key=self._seeds[row]))
        return self._made[row]
