"""Lists of different lengths as one tensor: each padded to the longest list of its batch."""

from __future__ import annotations

import importlib
import numbers
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
