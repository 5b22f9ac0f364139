"""Lists of different lengths as one tensor: each padded to the longest list of its batch."""

from __future__ import annotations

import importlib
import math
import numbers
import re
from typing import TYPE_CHECKING, Any, Mapping, cast

from . import _arguments as arguments
from ._errors import InvalidError

if TYPE_CHECKING:
    from ._formats import Ragged

HINT = "give each column its own value: padding={\"input_ids\": 0, \"labels\": -100}"


def checked(value: Any, columns: Mapping[str, str]) -> dict[str, Any]:
    """Returns the argument `padding`: the value for each column that is padded."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise arguments.refuse("padding", "a dict of columns and their values", value, HINT)
    padding = cast("Mapping[Any, Any]", value)
    for name, number in padding.items():
        arguments.choice("padding", name, columns)
        if not isinstance(number, numbers.Real):
            raise arguments.refuse("padding", f'a number for "{name}"', number, HINT)
    return dict(padding)


def padded_tensor(rows: Ragged[Any], padding: Any) -> Any:
    """Returns the rows as one tensor, without a copy if they all have one length."""
    values, offsets = rows.values, rows.offsets
    if not float(padding).is_integer() and "float" not in str(values.dtype):
        raise InvalidError(f"padding {padding!r} is no integer, and the values are {values.dtype}", "give an integer")
    _check_range(padding, values.dtype)
    package = type(values).__module__.partition(".")[0]
    if package == "tensorflow":
        tensorflow: Any = importlib.import_module("tensorflow")
        ragged = tensorflow.RaggedTensor.from_row_splits(values, offsets)
        return ragged.to_tensor(tensorflow.cast(padding, values.dtype))
    lengths = offsets[1:] - offsets[:-1]
    longest = int(lengths.max()) if len(rows) else 0
    shape = (len(rows), longest, *values.shape[1:])
    if len(values) == len(rows) * longest:
        return values.reshape(shape)
    if package == "torch":
        torch: Any = importlib.import_module("torch")
        made = values.new_full(shape, padding)
        made[torch.arange(longest, device=values.device) < lengths[:, None]] = values
        return made
    numpy: Any = importlib.import_module("jax.numpy" if package.startswith("jax") else "numpy")
    made = numpy.full(shape, padding, values.dtype)
    is_value = numpy.arange(longest) < lengths[:, None]
    if package.startswith("jax"):
        return made.at[is_value].set(values)
    made[is_value] = values
    return made


# The greatest finite values of floats that have fewer than Python's.
_FLOATS_MAX = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}


def _check_range(padding: Any, dtype: Any) -> None:
    """Raises an error if values of a type cannot hold the padding. Some packages would wrap it around."""
    name = getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")
    integer = re.fullmatch(r"(u?)int(\d+)", name)
    least: float
    most: float
    if name == "bool":
        least, most = 0, 1
    elif integer is not None:
        bits = int(integer[2])
        least, most = (0, (1 << bits) - 1) if integer[1] else (-1 << bits - 1, (1 << bits - 1) - 1)
    else:
        most = _FLOATS_MAX.get(name, math.inf)
        least = -most
        if not math.isfinite(padding):
            return
    if not least <= padding <= most:
        raise InvalidError(
            f"padding {padding!r} does not fit into the values, which are {name}",
            f"give a value from {least} to {most}, or CAST the column in the query",
        )
