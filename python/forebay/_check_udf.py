"""Finds Python functions whose results depend on more than their rows: `forebay.check_udf`."""

from __future__ import annotations

import math
import random
import sys
import warnings
from typing import Any, Callable

from ._errors import InvalidError
from ._udf import Udf
from ._udf_tensors import TensorType


def check_udf(function: Udf, *arrays: Any) -> list[str]:
    """Runs a function several times, and returns what makes its results depend on more than the rows.

        assert not forebay.check_udf(words, ["a b", "", "c"])

    Each problem is also a warning. A feed computes rows again: after a restart, on another rank, in pieces of another
    size. Such a function then gives other results. The check finds

    - draws from the global generators of `random`, NumPy and PyTorch,
    - results that change from call to call, such as those of clocks, counters and generators of the function's own,
    - results that depend on the other rows of a call, or on their order.

    `arrays` are the arguments, one array or list of at least two rows for each input. Without them the check makes rows
    of numbers, strings, bytes, and lists or tensors of these. It runs the function in this process.
    """
    if not isinstance(function, Udf):
        raise InvalidError(f"check_udf: not a function in queries: {function!r}", "decorate it with @forebay.udf(…)")
    rows = _rows(function, arrays)
    kept = {name: generator.state() for name, generator in _generators().items()}
    try:
        problems = _problems(function, rows)
    finally:
        for name, generator in _generators().items():
            if name in kept:
                generator.restore(kept[name])
    for problem in problems:
        warnings.warn(f"{function.name}: {problem}", stacklevel=2)
    return problems


def _problems(function: Udf, rows: list[Any]) -> list[str]:
    problems: list[str] = []
    _seed(1)
    before = {name: generator.state() for name, generator in _generators().items()}
    first = _values(function, rows)
    # A generator that the function imports is in the second list alone. Its later state is compared below.
    used = [name for name, generator in _generators().items() if name in before and generator.state() != before[name]]
    _seed(1)
    again = _values(function, rows)
    _seed(2)
    other = _values(function, rows)
    if not used and first == again and again != other:
        used = ["a global generator"]
    for name in used:
        problems.append(
            f"draws from {name}, whose numbers depend on earlier draws; declare it with rng=True, and draw from the "
            "generators that it then gets"
        )
    if first != again:
        problems.append(
            "gives other results for the same rows; a clock, a counter or a generator of the function's own may be why"
        )
    if problems:
        # The results differ anyway.
        return problems
    count = len(rows[0])
    alone = [value for row in range(count) for value in _values(function, [array.slice(row, 1) for array in rows])]
    if alone != first:
        problems.append("gives a row another result if it is alone in a call, so the result depends on other rows")
        return problems
    order = list(reversed(range(count)))
    if list(reversed(_values(function, [array.take(_indices(order)) for array in rows]))) != first:
        problems.append("gives a row another result in another order of rows")
    return problems


def _values(function: Udf, rows: list[Any]) -> list[str]:
    """Returns the text of each result, in which a NaN equals itself."""
    made = function._run(rows)
    if len(made) != len(rows[0]):
        raise InvalidError(
            f"check_udf: {function.name} returned {len(made)} rows for {len(rows[0])}",
            "return one result for each row",
        )
    return [repr(value) for value in made.to_pylist()]


def _rows(function: Udf, arrays: tuple[Any, ...]) -> list[Any]:
    import pyarrow

    tensors = [TensorType.of(field) for field in function.inputs]
    types = [getattr(field.type, "storage_type", field.type) for field in function.inputs]
    if arrays and len(arrays) != len(types):
        raise InvalidError(
            f"check_udf: {function.name} takes {len(types)} arrays, got {len(arrays)}", "give one for each input"
        )
    rows: list[Any] = []
    for position, type in enumerate(types):
        if arrays:
            given, tensor = arrays[position], tensors[position]
            if tensor is not None and not isinstance(given, pyarrow.Array):
                given = tensor.column(given)
            given = getattr(given, "storage", given)
            given = given if isinstance(given, pyarrow.Array) else pyarrow.array(given)
            rows.append(given if given.type == type else given.cast(type))
        else:
            tensor = tensors[position]
            values = [
                _value(type, row, function) if tensor is None else _elements(tensor, row, function)
                for row in range(_ROWS)
            ]
            rows.append(pyarrow.array(values, type))
    if function.rng:
        rows.append(pyarrow.array(range(len(rows[0]) if rows else _ROWS), pyarrow.uint64()))
    if len({len(array) for array in rows}) > 1 or not rows or len(rows[0]) < 2:
        lengths = ", ".join(str(len(array)) for array in rows)
        raise InvalidError(
            f"check_udf: {function.name} needs arrays of one length of at least 2, got {lengths or 'none'}",
            "give several rows for each input",
        )
    return rows


# Enough for draws to differ.
_ROWS = 8


def _value(type: Any, row: int, function: Udf) -> Any:
    """Returns a value of a simple type."""
    import pyarrow

    types = pyarrow.types
    if types.is_boolean(type):
        return row % 2 == 1
    if types.is_integer(type):
        return row + 1
    if types.is_floating(type):
        return row + 0.5
    if types.is_string(type) or types.is_large_string(type) or types.is_string_view(type):
        return "word " * row
    if types.is_binary(type) or types.is_large_binary(type) or types.is_binary_view(type):
        return bytes([row]) * row
    if types.is_fixed_size_list(type):
        return [_value(type.value_type, row + item, function) for item in range(type.list_size)]
    if types.is_list(type) or types.is_large_list(type):
        return [_value(type.value_type, row + item, function) for item in range(row)]
    raise InvalidError(
        f"check_udf: no rows of type {type} can be made for {function.name}",
        f"give them: check_udf({function.name}, array)",
    )


def _elements(tensor: TensorType, row: int, function: Udf) -> Any:
    """Returns a tensor as the storage of its column has it."""
    shape = [side or 2 + row % 3 for side in tensor.shape]
    elements = [_value(tensor.value, row + item, function) for item in range(math.prod(shape))]
    return elements if tensor.is_fixed else {"data": elements, "shape": shape}


def _indices(order: list[int]) -> Any:
    import pyarrow

    return pyarrow.array(order, pyarrow.int64())


class _Generator:
    """A global generator: functions that read its state as a comparable value, restore it, and seed it."""

    def __init__(self, state: Callable[[], Any], restore: Callable[[Any], Any], seed: Callable[[int], Any]):
        self.state = state
        self.restore = restore
        self.seed = seed


def _generators() -> dict[str, _Generator]:
    """Returns the global generators of the modules that are loaded."""
    generators = {"random": _Generator(random.getstate, random.setstate, random.seed)}
    numpy = sys.modules.get("numpy")
    if numpy is not None:

        def state() -> Any:
            kind, keys, *rest = numpy.random.get_state()
            return (kind, keys.tolist(), *rest)

        generators["numpy.random"] = _Generator(state, numpy.random.set_state, numpy.random.seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        generators["torch"] = _Generator(
            lambda: torch.get_rng_state().tolist(),
            lambda kept: torch.set_rng_state(torch.tensor(kept, dtype=torch.uint8)),
            # Not `torch.manual_seed`, which also seeds devices.
            torch.default_generator.manual_seed,
        )
    return generators


def _seed(number: int) -> None:
    for generator in _generators().values():
        generator.seed(number)
