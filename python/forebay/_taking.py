"""A batch as the loop gets it: made of the columns that the native half hands over."""

from __future__ import annotations

from typing import Any, cast

from . import _formats as formats
from . import _native
from ._batch import Batch
from ._devices import DeviceCopy
from ._errors import InvalidError
from ._packages import installed
from ._place import Place
from ._share import Share


def take(
    share: Share,
    columns: list[str] | None,
    padding: dict[str, Any],
    tensor: Any,
    copy: DeviceCopy | None,
    taken: _native.Batch,
) -> tuple[Any, Place]:
    """Returns a batch for the loop, and the place after it. Without `tensor`, it is an Arrow batch."""
    # Compute this from the batch's offset: after a resume, steps need not begin at multiples of the global batch. With
    # dynamic delivery, a token's offset is another one.
    step_begins = taken.offset - share.rank * share.batch_size
    after = Place(taken.epoch, step_begins + share.global_batch_size, taken.token)
    return _batch(columns, padding, tensor, copy, taken), after


def _batch(
    columns: list[str] | None, padding: dict[str, Any], tensor: Any, copy: DeviceCopy | None, taken: _native.Batch
) -> Any:
    if tensor is None:
        return _arrow(taken, columns)
    batch: Batch[Any] = Batch()
    natives = taken.columns(columns)
    for name in columns or natives:
        column = formats.convert(natives[name], tensor)
        batch[name] = _padded(name, column, padding[name]) if name in padding else column
    batch.epoch, batch.step, batch.offset = taken.epoch, taken.step, taken.offset
    return batch if copy is None else copy(batch)


def _padded(name: str, column: Any, padding: Any) -> Any:
    """Returns a column of lists as one tensor. A column of lists of one size already is one."""
    if isinstance(column, formats.Ragged):
        return cast("formats.Ragged[Any]", column).to_padded_tensor(padding)
    if len(getattr(column, "shape", ())) > 1:
        return column
    raise InvalidError(f'"padding" names "{name}", which holds no lists of numbers', "leave it out of padding")


def _arrow(taken: _native.Batch, columns: list[str] | None) -> Any:
    """Returns a pyarrow record batch if pyarrow is installed, else an object with the Arrow PyCapsule interface."""
    pyarrow = installed("pyarrow")
    if pyarrow is None:
        return taken
    batch = pyarrow.record_batch(taken)
    return batch if columns is None else batch.select(columns)
