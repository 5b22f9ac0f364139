"""How often each value of a column occurs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _html as html
from ._errors import ExhaustedError, InvalidError
from ._packages import required
from ._times import are_times, as_integers, as_python

if TYPE_CHECKING:
    from ._reading import Pass

# Values that a text or a notebook shows.
SHOWN_MAX = 30


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
    """Counts the values of the only column that is read. Holds at most `limit` distinct values."""
    [column] = read.columns
    compute = required("pyarrow.compute", "value_counts")
    pyarrow = required("pyarrow", "value_counts")
    counts: dict[Any, int] = {}
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
            counts[value] = counts.get(value, 0) + count
        if len(counts) > limit:
            raise ExhaustedError(
                f'the column "{column}" has more than {limit} distinct values',
                f"give a larger limit, at some hundred bytes a value: value_counts({column!r}, limit={limit * 10})",
            )
    if times is not None:
        counts = dict(zip(as_python(list(counts), times), counts.values()))
    return Counts(column, counts)


def _single(column: str, type: Any, pyarrow: Any) -> str:
    """An expression with a single value for each row of a nested column."""
    name = '"' + column.replace('"', '""') + '"'
    if pyarrow.types.is_struct(type) and type.num_fields:
        field = type.field(0).name.replace("'", "''")
        return f"{name}['{field}']"
    return f"array_length({name})"


_NAN = float("nan")
