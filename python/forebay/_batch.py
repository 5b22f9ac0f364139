"""Batches: columns with their place in the epoch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Callable, Generic, TypeVar, cast, overload

from ._devices import each_tensor
from ._errors import InvalidError, NotFoundError
from ._types import T

if TYPE_CHECKING:
    from ._formats import Ragged

C = TypeVar("C")


class Batch(dict[str, "T | Any"], Generic[T]):
    """A dict of columns, with its place: `epoch`, `step` (the global step in the epoch) and `offset`.

    For type checkers `batch["image"]` is a tensor `T` of the loader's format, or anything. `batch.column("path", list)`
    says what a column of another kind is, and checks it.
    """

    __slots__ = ("epoch", "step", "offset", "copied")

    epoch: int
    step: int
    offset: int

    def __init__(self, *columns: Any, **named: Any):
        super().__init__(*columns, **named)
        # Only a loop knows the place of a batch.
        self.epoch = self.step = self.offset = cast(int, None)
        # The CUDA event of the batch's copy to a device, while the copy may be running.
        self.copied: Any = None

    def __reduce__(self) -> Any:
        return Batch, (dict(self),), (None, {"epoch": self.epoch, "step": self.step, "offset": self.offset})

    @overload
    def column(self, name: str, kind: type[list[Any]]) -> list[Any]: ...
    @overload
    def column(self, name: str, kind: type[dict[str, Any]]) -> dict[str, Any]: ...
    @overload
    def column(self, name: str, kind: type[Ragged[Any]]) -> Ragged[T]: ...
    @overload
    def column(self, name: str, kind: type[C]) -> C: ...
    def column(self, name: str, kind: type[Any]) -> Any:
        """Returns a column, or raises an error if it is not of the class `kind`: `batch.column("path", list)`."""
        if name not in self:
            raise NotFoundError(f'there is no column "{name}"', f"columns: {', '.join(self)}")
        found = self[name]
        if not isinstance(found, kind):
            raise InvalidError(f'the column "{name}" is a {type(found).__name__}, not a {kind.__name__}')
        return found

    def to(self, device: Any, non_blocking: bool = False) -> Batch[T]:
        """Returns the batch with its torch tensors on `device`, at the same place. Other columns stay the same.
        Frameworks that move batches to their device call this.

        As with torch's tensors, `non_blocking=True` returns before copies from pinned memory have ended. With
        `device=` the loader copies ahead of the loop, which is faster.
        """
        return self._with(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch[T]:
        """Returns the batch with its torch tensors in pinned memory, from which copies to a GPU are fast. `DataLoader`
        calls it if it is given `pin_memory=True`."""
        return self._with(lambda tensor: tensor.pin_memory())

    def _with(self, function: Callable[[Any], Any]) -> Batch[T]:
        made: Batch[T] = Batch({name: each_tensor(column, function, _is_torch) for name, column in self.items()})
        made.epoch, made.step, made.offset = self.epoch, self.step, self.offset
        return made


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
