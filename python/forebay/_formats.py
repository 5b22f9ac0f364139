"""Converts columns to a framework's tensors. The framework imports the batch's memory through DLPack, without a copy
unless it cannot use that memory.

A batch's memory belongs to the loop alone, so the loop may write to it.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, Callable, Generic, Iterator, Sized, cast

from . import _native
from ._errors import InvalidError
from ._padding import padded_tensor
from ._types import T, U

FORMATS = ("torch", "numpy", "jax", "tf", "arrow")


def default() -> str:
    """Returns "torch" if it is installed, else "numpy", else "arrow"."""
    for name in ("torch", "numpy"):
        if importlib.util.find_spec(name) is not None:
            return name
    return "arrow"


def converter(format: str) -> Callable[[_native.Tensor], Any]:
    """Imports the framework, and returns the function that converts native tensors to the framework's."""
    try:
        return _MAKERS[format]()
    except ImportError as error:
        package = {"tf": "tensorflow"}.get(format, format)
        raise InvalidError(
            f'format="{format}" needs the package {package}: {error}', f"pip install {package}"
        ) from None


def convert(value: Any, tensor: Callable[[_native.Tensor], Any]) -> Any:
    """Converts a column of the native half: replaces its native tensors with the framework's."""
    kind = cast("type[Any]", type(value))
    if kind is _native.Tensor:
        return tensor(value)
    if kind is _native.Ragged:
        return Ragged(tensor(value.values), tensor(value.offsets))
    if kind is dict:
        return {name: convert(column, tensor) for name, column in value.items()}
    if kind is list and value and type(value[0]) is _native.Tensor:
        return [tensor(item) for item in value]
    return value


class Ragged(Generic[T]):
    """Rows of different lengths: row `i` is `values[offsets[i]:offsets[i + 1]]`, or `ragged[i]`."""

    __slots__ = ("values", "offsets")

    def __init__(self, values: T, offsets: T):
        self.values = values
        self.offsets = offsets

    def __len__(self) -> int:
        return len(cast("Sized", self.offsets)) - 1

    def __getitem__(self, row: int) -> T:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        values, offsets = cast(Any, self.values), cast(Any, self.offsets)
        return cast(T, values[int(offsets[row]) : int(offsets[row + 1])])

    def __iter__(self) -> Iterator[T]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"Ragged({len(self)} rows, values={self.values!r}, offsets={self.offsets!r})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # A model that gets a ragged column instead of a tensor asks for its shape.
            raise AttributeError(
                f"'Ragged' object has no attribute {name!r}, because its rows may have different lengths; for one "
                'tensor load with padding={"column": 0}, or call to_padded_tensor()'
            )

    def to_padded_tensor(self, padding: float = 0) -> T:
        """Returns the rows as one tensor, each padded at its end to the longest of them."""
        return cast(T, padded_tensor(self, padding))

    def map(self, function: Callable[[T], U]) -> Ragged[U]:
        """Returns the same rows with `function` applied to both tensors. The function may be a copy to a device."""
        return Ragged(function(self.values), function(self.offsets))

    def to(self, device: Any, non_blocking: bool = False) -> Ragged[T]:
        """Returns the rows with their torch tensors on `device`."""
        return self.map(lambda tensor: cast(Any, tensor).to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Ragged[T]:
        """Returns the rows with their torch tensors in pinned memory."""
        return self.map(lambda tensor: cast(Any, tensor).pin_memory())


def _torch() -> Callable[[_native.Tensor], Any]:
    from torch.utils.dlpack import from_dlpack

    return from_dlpack


def _numpy(times: bool = True) -> Callable[[_native.Tensor], Any]:
    import numpy

    def array(tensor: _native.Tensor) -> Any:
        if tensor.dtype == "bfloat16":
            import ml_dtypes  # NumPy has no bfloat16 of its own.

            return numpy.from_dlpack(tensor.bits()).view(ml_dtypes.bfloat16)
        array = numpy.from_dlpack(tensor)
        return array.view(tensor.unit) if times and tensor.unit else array

    return array


def _jax() -> Callable[[_native.Tensor], Any]:
    import jax.numpy

    numpy = _numpy(times=False)

    def array(tensor: _native.Tensor) -> Any:
        # JAX has no strided arrays, so others are copied through NumPy.
        return jax.numpy.from_dlpack(tensor) if tensor.is_contiguous else jax.numpy.asarray(numpy(tensor))

    return array


def _tf() -> Callable[[_native.Tensor], Any]:
    tensorflow: Any = importlib.import_module("tensorflow")
    imported = tensorflow.experimental.dlpack.from_dlpack
    numpy = _numpy(times=False)

    def array(tensor: _native.Tensor) -> Any:
        if tensor.is_contiguous:
            # TensorFlow aborts the process if the memory does not begin at a multiple of 64 bytes.
            return imported(tensor.__dlpack__(copy=not tensor.is_aligned))
        return tensorflow.convert_to_tensor(numpy(tensor))

    return array


_MAKERS = {"torch": _torch, "numpy": _numpy, "jax": _jax, "tf": _tf}
