"""How often each value of a column occurs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from . import _html as html
from ._errors import ExhaustedError, InvalidError
from ._packages import required
from ._times import are_times, as_integers, as_python

if TYPE_CHECKING:
    from ._reading import Pass

# Values that a text or a notebook shows.
SHOWN_MAX = 30
# The memory that distinct values may take: at least the first, and the second for each value of the limit.
VALUES_BYTES_MIN, VALUE_BYTES = 64 << 20, 1 << 10


class Counts(dict[Any, int]):
    """A dict of values and their numbers of rows, the most frequent first. Null is `None`."""

    def __init__(self, column: str, counts: dict[Any, int]):
        # The sort is stable: values of one number come in the order of their first rows.
        super().__init__(sorted(counts.items(), key=lambda item: -item[1]))
        self.column = column

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(self.values())

    def __reduce__(self) -> Any:
        return Counts, (self.column, dict(self))

    def _shown(self) -> tuple[list[tuple[str, int]], str]:
        shown = [(html.shortened(value), count) for value, count in list(self.items())[:SHOWN_MAX]]
        hidden = len(self) - len(shown)
        return shown, f"… and {hidden} more values" if hidden else ""

    def __repr__(self) -> str:
        shown, more = self._shown()
        lines = [(value, str(count), f"{100 * count / self.rows:.1f} %") for value, count in shown]
        return "\n".join(filter(None, [html.aligned([(self.column, "rows", "share"), *lines], numbers=(1, 2)), more]))

    def _repr_html_(self) -> str:
        shown, more = self._shown()
        most = max(self.values(), default=1)
        lines = [(html.text(value), str(count), html.bar(count / most)) for value, count in shown]
        return html.page(html.table((self.column, "rows", ""), lines, numbers=(1,)), html.text(more))


def value_counts(read: Pass, limit: int) -> Counts:
    """Counts the values of the only column that is read. Holds at most `limit` distinct values, and a bounded number of
    their bytes."""
    [column] = read.columns
    compute = required("pyarrow.compute", "value_counts")
    pyarrow = required("pyarrow", "value_counts")
    counts: dict[Any, int] = {}
    bytes, bytes_max = 0, max(VALUES_BYTES_MIN, limit * VALUE_BYTES)
    # The type of a column of times, which are counted as integers.
    times: Any = None
    for batch in read.batches("value_counts"):
        values = batch.column(0)
        if pyarrow.types.is_nested(values.type) or isinstance(values.type, pyarrow.BaseExtensionType):
            raise InvalidError(
                f'value_counts counts texts, numbers and times, and the column "{column}" is a {values.type}',
                f"count an expression of it: table.select(x={_single(column, values.type, pyarrow)!r})"
                '.value_counts("x")',
            )
        if are_times(values.type):
            times, values = values.type, as_integers(values)
        found = compute.value_counts(values)
        for value, count in zip(found.field("values").to_pylist(), found.field("counts").to_pylist()):
            # All NaNs are one value, and NaN is not equal to itself.
            value = _NAN if value != value else value
            if value not in counts:
                bytes += sys.getsizeof(value)
            counts[value] = counts.get(value, 0) + count
        if len(counts) > limit:
            raise ExhaustedError(
                f'the column "{column}" has more than {limit} distinct values',
                f"give a larger limit, at some hundred bytes a value: value_counts({column!r}, limit={limit * 10})",
            )
        if bytes > bytes_max:
            raise ExhaustedError(
                f'the distinct values of the column "{column}" take more than {bytes_max >> 20} MiB: {len(counts)} '
                f"values of {bytes // len(counts)} bytes on average",
                f"count their beginnings: table.select(x={_beginning(column, values.type, pyarrow)!r})"
                f'.value_counts("x"), or give a limit of so many KiB: value_counts({column!r}, '
                f"limit={bytes_max * 10 >> 10})",
            )
    if times is not None:
        counts = dict(zip(as_python(list(counts), times), counts.values()))
    return Counts(column, counts)


def _beginning(column: str, type: Any, pyarrow: Any) -> str:
    is_binary = pyarrow.types.is_binary(type) or pyarrow.types.is_large_binary(type)
    text = f"encode({_quoted(column)}, 'hex')" if is_binary else _quoted(column)
    return f"substr({text}, 1, 100)"


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _single(column: str, type: Any, pyarrow: Any) -> str:
    """An expression with a single value for each row of a nested column."""
    name = _quoted(column)
    if pyarrow.types.is_struct(type) and type.num_fields:
        field = type.field(0).name.replace("'", "''")
        return f"{name}['{field}']"
    return f"array_length({name})"


_NAN = float("nan")
