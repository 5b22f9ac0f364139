"""A finished batch."""

from __future__ import annotations

import sys
from typing import Any, Callable

from . import _formats as formats


class Batch(dict):
    """A dict of columns, with its place in the epoch."""

    __slots__ = ("epoch", "step", "offset", "copied")

    def __init__(self, *columns: Any, **named: Any):
        super().__init__(*columns, **named)
        self.epoch: int | None = None
        self.step: int | None = None
        self.offset: int | None = None
        # The CUDA event of the batch's copy to a device, while the copy may be running.
        self.copied = None

    def to(self, device: Any, non_blocking: bool = False) -> "Batch":
        """Returns the batch with torch's tensors on `device`, at the same place in the epoch. Other columns stay as
        they are. Frameworks that move batches to their device call this."""
        torch = sys.modules.get("torch")
        if torch is None:
            return self
        moved = Batch({
            name: map_tensors(column, lambda tensor: tensor.to(device, non_blocking=non_blocking), torch.Tensor)
            for name, column in self.items()
        })
        moved.epoch, moved.step, moved.offset = self.epoch, self.step, self.offset
        return moved

    def __reduce__(self):
        return Batch, (dict(self),), (None, {"epoch": self.epoch, "step": self.step, "offset": self.offset})


def map_tensors(column: Any, function: Callable[[Any], Any], kind: type) -> Any:
    """Returns a column with `function` applied to its tensors, which are of the type `kind`."""
    if isinstance(column, kind):
        return function(column)
    if isinstance(column, formats.Ragged) and isinstance(column.values, kind):
        return column.map(function)
    if isinstance(column, dict):
        return {name: map_tensors(value, function, kind) for name, value in column.items()}
    if isinstance(column, list) and column and isinstance(column[0], kind):
        return [function(tensor) for tensor in column]
    return column
