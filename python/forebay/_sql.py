"""Parts of SQL: names, literals and expressions of values."""

from __future__ import annotations

import datetime
import math
from typing import Any, cast

from . import _arguments as arguments


def quoted(name: str) -> str:
    """Quotes a name for SQL."""
    return '"' + name.replace('"', '""') + '"'


def by_value(column: str, expressions: dict[Any, str], otherwise: str) -> str:
    """Returns an expression of SQL that has the value of another one for each value of a column."""
    name = quoted(column)
    cases = [
        f"WHEN {literal(column, value)} THEN {expression}"
        for value, expression in expressions.items()
        if not (value is None or value != value)
    ]
    # Nothing is equal to null, and SQL has no literal of NaN.
    for value, expression in expressions.items():
        if value is None:
            otherwise = f"CASE WHEN {name} IS NULL THEN {expression} ELSE {otherwise} END"
        elif value != value:
            otherwise = f"CASE WHEN isnan({name}) THEN {expression} ELSE {otherwise} END"
    return f"CASE {name} {' '.join(cases)} ELSE {otherwise} END" if cases else otherwise


def literal(name: str, value: Any) -> str:
    """Returns the value of the argument `name` as a SQL literal. NumPy scalars become their values."""
    if hasattr(value, "dtype") and getattr(value, "ndim", None) == 0:
        if getattr(value.dtype, "kind", "") == "M":
            return _time(name, value)
        value = value.item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, datetime.datetime):
        return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
    if isinstance(value, datetime.date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, (list, tuple)) or hasattr(value, "tolist"):
        return "[" + ", ".join(literal(name, item) for item in cast("list[Any]", value)) + "]"
    raise arguments.refuse(name, "a finite number, a text, a time, True, False or a list of these", value)


def _time(name: str, value: Any) -> str:
    """Returns a NumPy time as a SQL literal. It may be finer than Python's times, or out of their range."""
    text = str(value)
    if text == "NaT":
        raise arguments.refuse(name, "a time", value)
    if "T" not in text:
        return f"DATE '{value.astype('M8[D]')}'"
    # SQL requires seconds in a time.
    text = text if text.count(":") == 2 else str(value.astype("M8[s]"))
    return f"TIMESTAMP '{text.replace('T', ' ')}'"
