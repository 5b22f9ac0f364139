"""Columns of times as integers. Python's times are coarser than Arrow's, have fewer years, and are equal in the two
hours of a zone's clock that is set back."""

from __future__ import annotations

from typing import Any

from ._packages import required


def are_times(type: Any) -> bool:
    types = required("pyarrow", "a column of times").types
    return bool(types.is_temporal(type) and not types.is_interval(type))


def as_integers(values: Any) -> Any:
    """The numbers of an Arrow array of times."""
    return values.view(f"int{values.type.bit_width}")


def as_python(numbers: list[int | None], type: Any) -> list[Any]:
    """Different numbers as times of Python, or all as texts if some have no time, or two the same."""
    pyarrow = required("pyarrow", "a column of times")
    times = pyarrow.array(numbers, f"int{type.bit_width}").view(type)
    try:
        values: list[Any] = times.to_pylist()
        if len(set(values)) == len(set(numbers)) and pyarrow.array(values, type).equals(times):
            return values
    except (OverflowError, ValueError, pyarrow.ArrowException):
        pass
    texts: list[Any] = times.cast("string").to_pylist()
    return texts
