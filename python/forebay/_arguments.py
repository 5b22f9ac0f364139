"""Checks of arguments. Every refusal names the argument, the value and the accepted values."""

from __future__ import annotations

import difflib
import operator
import os
import re
from typing import Any, Callable, Iterable, cast

from ._errors import Error, InvalidError

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def refuse(name: str, accepted: str, value: Any, hint: str | None = None) -> InvalidError:
    shown = repr(value)
    if len(shown) > 200 or "\n" in shown:
        shown = f"a {type(value).__name__}"
    return InvalidError(f'"{name}" must be {accepted}, got {shown}', hint)


def integer(
    name: str, value: Any, minimum: int = 0, accepted: str | None = None, maximum: int = 2**64 - 1
) -> int | None:
    """Checks an integer, which may be a NumPy or torch integer. Returns `None` for `None`."""
    if value is None:
        return None
    accepted = accepted or ("a positive integer" if minimum == 1 else f"an integer of at least {minimum}")
    try:
        number = operator.index(value)
    except TypeError:
        raise refuse(name, accepted, value) from None
    if isinstance(value, bool) or number < minimum:
        raise refuse(name, accepted, value)
    if number > maximum:
        raise refuse(name, f"at most {maximum}", value)
    return number


def positive(name: str, value: Any, maximum: int = 2**64 - 1) -> int | None:
    return integer(name, value, minimum=1, maximum=maximum)


def count(name: str, value: Any, minimum: int = 0) -> int:
    """Checks an integer that is required."""
    if value is None:
        raise refuse(name, "a positive integer" if minimum == 1 else f"an integer of at least {minimum}", value)
    return cast(int, integer(name, value, minimum))


def boolean(name: str, value: Any) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise refuse(name, "True or False", value)


def choice(name: str, value: Any, choices: Iterable[str]) -> str | None:
    if value is None:
        return None
    choices = list(choices)
    if value in choices:
        return cast(str, value)
    near = difflib.get_close_matches(str(value), choices, 1)
    *most, last = map(repr, choices)
    accepted = f"{', '.join(most)} or {last}" if most else last
    raise refuse(name, accepted, value, f"did you mean {near[0]!r}?" if near else None)


def one_of(*choices: str) -> Callable[[str, Any], str | None]:
    """Returns the check of an option whose values are words."""
    return lambda name, value: choice(name, value, choices)


def text(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise refuse(name, "a string", value)


def path(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, (str, os.PathLike)):
        return None if value is None else os.fspath(value)
    raise refuse(name, "a path", value)


def names(name: str, value: Any) -> list[str] | None:
    if value is None:
        return None
    is_listed = isinstance(value, Iterable) and not isinstance(value, str)
    listed = list(cast("Iterable[Any]", value)) if is_listed else None
    if not listed or not all(isinstance(item, str) for item in listed):
        raise refuse(name, "a list of column names", value)
    for item in listed:
        if listed.count(item) > 1:
            raise refuse(name, "a list of column names, each once", value)
    return listed


def size(name: str, value: Any) -> int | None:
    """Checks a number of bytes: an integer, or a text such as '64MiB'."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", value.lower())
        if match and match[2] in _UNITS and 0 < (number := int(float(match[1]) * _UNITS[match[2]])) < 2**64:
            return number
        raise refuse(name, "a size such as '64MiB' or a number of bytes", value)
    return integer(name, value, minimum=1, accepted="a size such as '64MiB' or a number of bytes")


def columns(name: str, value: Any) -> str | None:
    """Checks the name of a column, or a list of names. Returns them separated by commas."""
    if value is None or isinstance(value, str):
        return value
    checked = names(name, value) or []
    if any("," in column for column in checked):
        raise refuse(name, "names without commas", value)
    return ",".join(checked)


def ascending(name: str, value: Any) -> str | None:
    """Checks a list of positive integers. Returns them separated by commas."""
    if value is None:
        return None
    try:
        return ",".join(str(positive(name, bound)) for bound in value)
    except (TypeError, Error):
        raise refuse(name, "a list of ascending positive integers", value) from None


def divisors(number: int) -> list[int]:
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def share(global_batch_size: int, world_size: int) -> int:
    """Returns a rank's part of the global batch."""
    if global_batch_size % world_size == 0:
        return global_batch_size // world_size
    fitting = divisors(global_batch_size)
    shown = ", ".join(map(str, fitting[:12])) + (", …" if len(fitting) > 12 else "")
    raise InvalidError(
        f'"world_size" {world_size} does not divide "global_batch_size" {global_batch_size}',
        f"world sizes that do: {shown}",
    )
