"""Copies of batches to a device, asynchronous where it is a GPU."""

from __future__ import annotations

from typing import Any, Callable, cast

from . import _formats as formats
from ._errors import InvalidError


class DeviceCopy:
    """Copies a batch's tensors to a torch device. For CUDA it copies through pinned memory, on its own stream, while
    the loop works on the previous batch."""

    def __init__(self, device: Any, pin_memory: bool, torch: Any = None):
        if torch is None:
            import torch

        try:
            self._device = torch.device(device) if device is not None else None
        except (RuntimeError, TypeError) as error:
            raise InvalidError(f'"device" must be a torch device such as "cuda:0", got {device!r}: {error}') from None
        is_cuda = self._device is not None and self._device.type == "cuda"
        if (is_cuda or pin_memory) and not torch.cuda.is_available():
            what = f'device="{device}"' if is_cuda else "pin_memory=True"
            raise InvalidError(f"{what} needs CUDA, which torch does not find on this machine")
        self._pin = pin_memory or is_cuda
        self._stream = torch.cuda.Stream(self._device) if is_cuda else None
        self._torch = torch

    @staticmethod
    def of(device: Any, pin_memory: bool, format: str) -> "DeviceCopy | None":
        if device is None and not pin_memory:
            return None
        if format != "torch":
            raise InvalidError(f'"device" and "pin_memory" are for format="torch", not "{format}"')
        return DeviceCopy(device, pin_memory)

    @property
    def is_async(self) -> bool:
        return self._stream is not None

    def __call__(self, batch: Any) -> Any:
        """Returns the batch with its tensors on the device. With CUDA the copy may still be running."""
        if self._stream is None:
            return self._each(batch, self._move)
        with self._torch.cuda.stream(self._stream):
            moved = self._each(batch, self._move)
            # Each batch has its own event, because the stream begins the next copy before the loop waits for this one.
            moved.copied = self._torch.cuda.Event()
            moved.copied.record(self._stream)
        return moved

    def wait(self, batch: Any) -> None:
        """Makes the loop's stream wait for the copy of `batch`."""
        current = self._torch.cuda.current_stream(self._device)
        current.wait_event(batch.copied)
        batch.copied = None

        def used(tensor: Any) -> Any:
            # The allocator must not reuse the memory while the loop's stream works on it.
            tensor.record_stream(current)
            return tensor

        self._each(batch, used)

    def _move(self, tensor: Any) -> Any:
        if self._pin:
            tensor = tensor.pin_memory()
        return tensor if self._device is None else tensor.to(self._device, non_blocking=True)

    def _each(self, batch: Any, function: Callable[[Any], Any]) -> Any:
        for name, column in batch.items():
            batch[name] = each_tensor(column, function, self._is_tensor)
        return batch

    def _is_tensor(self, value: Any) -> bool:
        return isinstance(value, self._torch.Tensor)


def each_tensor(column: Any, function: Callable[[Any], Any], is_tensor: Callable[[Any], bool]) -> Any:
    """Returns the column with `function` applied to its tensors: also to those in lists, ragged columns and structs."""
    if is_tensor(column):
        return function(column)
    if isinstance(column, formats.Ragged):
        rows = cast("formats.Ragged[Any]", column)
        return rows.map(function) if is_tensor(rows.values) else rows
    if isinstance(column, dict):
        fields = cast("dict[str, Any]", column)
        return {name: each_tensor(field, function, is_tensor) for name, field in fields.items()}
    if isinstance(column, list):
        items = cast("list[Any]", column)
        # The first value shows what a list holds, so that texts and numbers are not visited one by one.
        first = next((item for item in items if item is not None), None)
        if is_tensor(first) or isinstance(first, (list, dict, formats.Ragged)):
            return [each_tensor(item, function, is_tensor) for item in items]
    return cast(Any, column)
