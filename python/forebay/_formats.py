"""Columns as the tensors of a framework. Nothing is copied where the framework can do without: it takes the batch's memory over by
DLPack.

A batch's memory belongs to the loop alone, so it may be written to.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Callable

from . import _native
from ._errors import InvalidError

FORMATS = ("torch", "numpy", "jax", "tf", "arrow")


def default() -> str:
    """torch if it is installed, else NumPy, else Arrow."""
    for name in ("torch", "numpy"):
        if importlib.util.find_spec(name) is not None:
            return name
    return "arrow"


def converter(format: str) -> Callable[[_native.Tensor], Any]:
    """What makes the framework's tensor of a native one. Imports the framework."""
    try:
        return _MAKERS[format]()
    except ImportError as error:
        package = {"tf": "tensorflow"}.get(format, format)
        raise InvalidError(f'format="{format}" needs the package {package}: {error}', f"pip install {package}") from None


def convert(value: Any, tensor: Callable[[_native.Tensor], Any]) -> Any:
    """A column as the native half gives it, with the framework's tensors in it."""
    kind = type(value)
    if kind is _native.Tensor:
        return tensor(value)
    if kind is _native.Ragged:
        return Ragged(tensor(value.values), tensor(value.offsets))
    if kind is dict:
        return {name: convert(column, tensor) for name, column in value.items()}
    if kind is list and value and type(value[0]) is _native.Tensor:
        return [tensor(item) for item in value]
    return value


class Ragged:
    """Rows of different lengths: row `i` is `values[offsets[i]:offsets[i + 1]]`, and `ragged[i]` too."""

    __slots__ = ("values", "offsets")

    def __init__(self, values: Any, offsets: Any):
        self.values = values
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Any:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        return self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]

    def __iter__(self):
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"Ragged({len(self)} rows, values={self.values!r}, offsets={self.offsets!r})"

    def map(self, function: Callable[[Any], Any]) -> "Ragged":
        """The same rows with `function` applied to both tensors, such as a copy to a device."""
        return Ragged(function(self.values), function(self.offsets))


def _torch() -> Callable[[_native.Tensor], Any]:
    import torch

    return torch.from_dlpack


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
        # It has no arrays whose elements lie in another order than they are shown in.
        return jax.numpy.from_dlpack(tensor) if tensor.is_contiguous else jax.numpy.asarray(numpy(tensor))

    return array


def _tf() -> Callable[[_native.Tensor], Any]:
    import tensorflow

    numpy = _numpy(times=False)

    def array(tensor: _native.Tensor) -> Any:
        if tensor.is_contiguous:
            # It aborts the process over memory that begins elsewhere than at a multiple of 64.
            return tensorflow.experimental.dlpack.from_dlpack(tensor.__dlpack__(copy=not tensor.is_aligned))
        return tensorflow.convert_to_tensor(numpy(tensor))

    return array


_MAKERS = {"torch": _torch, "numpy": _numpy, "jax": _jax, "tf": _tf}
