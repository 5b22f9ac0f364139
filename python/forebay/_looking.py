"""Looking at rows before training: methods of tables and pipelines that read the rows once, in this process."""

from __future__ import annotations

import numbers
import sys
from typing import TYPE_CHECKING, Any

from . import _arguments as arguments
from ._counts import Counts, value_counts
from ._description import Description, describe
from ._duplicates import Duplicates, find_duplicates
from ._errors import InvalidError
from ._gallery import gallery
from ._packages import required
from ._reading import Pass
from ._sql import quoted
from ._tensors import Tensors

if TYPE_CHECKING:
    from ._session import Pipeline
    from ._types import OnError


class Looks:
    """A query whose rows can be looked at. Rows come in the order of the files, and not of a shuffle."""

    def _looked_at(self) -> Pipeline:
        raise NotImplementedError

    def count(self, *, on_error: OnError | None = None) -> int:
        """The number of rows. Without a filter it is known from the files' footers, and nothing is read. Rows count
        that only fail when they are processed."""
        read = Pass(self._looked_at(), [], on_error)
        known = read.samples
        return sum(batch.num_rows for batch in read.native_batches()) if known is None else known

    def head(self, rows: int = 5, *, on_error: OnError | None = None) -> Any:
        """The first rows as a pyarrow table. Reading stops after them."""
        return Pass(self._looked_at(), None, on_error).table("head", arguments.count("rows", rows, 1))

    def to_arrow(self, *, columns: list[str] | None = None, on_error: OnError | None = None) -> Any:
        """All rows as a pyarrow table. They must fit in memory."""
        return Pass(self._looked_at(), arguments.names("columns", columns), on_error).table("to_arrow")

    def to_pandas(self, *, columns: list[str] | None = None, on_error: OnError | None = None) -> Any:
        """All rows as a pandas frame. They must fit in memory. Tensors are NumPy arrays."""
        required("pandas", "to_pandas")
        return frame_of(Pass(self._looked_at(), arguments.names("columns", columns), on_error).table("to_pandas"))

    def value_counts(self, column: str, *, limit: int = 10_000, on_error: OnError | None = None) -> Counts:
        """How often each value of a column occurs, the most frequent first: a dict, with bars in a notebook. Only this
        column is computed. More than `limit` distinct values are an error."""
        limit = arguments.count("limit", limit, 1)
        return value_counts(Pass(self._looked_at(), [_name(column)], on_error), limit)

    def describe(self, *, columns: list[str] | None = None, on_error: OnError | None = None) -> Description:
        """What each column holds: nulls, ranges, means, lengths, shapes; with histograms in a notebook."""
        pipeline = self._looked_at()
        return describe(Pass(pipeline, arguments.names("columns", columns), on_error), pipeline.columns)

    def find_duplicates(self, *columns: str, limit: int = 5_000_000, on_error: OnError | None = None) -> Duplicates:
        """Groups of rows that have the same content in `columns`: by default in "bytes" of a table of media files, and
        otherwise in all columns. Rows are named by the column "path", if there is one, else by their number. More than
        `limit` different rows, or repeated ones, are an error."""
        pipeline = self._looked_at()
        known = list(pipeline.columns)
        compared = [_name(column) for column in columns]
        if not compared:
            compared = ["bytes"] if {"bytes", "path"} <= set(known) else known
        for name in compared:
            arguments.choice("column", name, known)
        named = ["path"] if "path" in known and "path" not in compared else []
        read = Pass(pipeline, [*compared, *named], on_error)
        return find_duplicates(read, compared, arguments.count("limit", limit, 1))

    def show(self, rows: int = 8, *, on_error: OnError | None = None) -> None:
        """Shows the first rows: as a text in a terminal, and with thumbnails of pictures in a notebook. Rows that
        cannot be processed are left out."""
        pipeline, rows = self._looked_at(), arguments.count("rows", rows, 1)
        notebook = sys.modules.get("IPython")
        if notebook is not None and notebook.get_ipython() is not None:
            notebook.display.display(gallery(pipeline, rows, on_error))
        else:
            print(pipeline.preview(rows, shuffle=False, on_error=on_error or "skip"))


def frame_of(rows: Any) -> Any:
    """A pyarrow table as a pandas frame. Tensors are NumPy arrays."""
    frame = {name: _for_pandas(rows.column(name), rows.field(name)) for name in rows.column_names}
    pandas = required("pandas", "to_pandas")
    return pandas.DataFrame(frame, columns=rows.column_names, index=range(rows.num_rows))


def _name(column: Any) -> str:
    if not isinstance(column, str):
        raise arguments.refuse("column", "the name of a column", column)
    return column


def _for_pandas(column: Any, field: Any) -> Any:
    chunks = [Tensors.of(chunk, field) for chunk in column.chunks]
    tensors = [chunk for chunk in chunks if chunk is not None]
    if not tensors:
        return column.to_pandas().array
    return _objects([row for chunk in tensors for row in chunk.arrays()])


def _objects(rows: list[Any]) -> Any:
    """A NumPy array of objects, which pandas keeps as they are."""
    made = required("numpy", "to_pandas").empty(len(rows), dtype=object)
    for index, row in enumerate(rows):
        made[index] = row
    return made


def shares(fractions: tuple[float, ...]) -> list[float]:
    """The share of each part of a split. One fraction makes two parts."""
    for fraction in fractions:
        if isinstance(fraction, bool) or not isinstance(fraction, numbers.Real) or not 0 < fraction < 1:
            raise arguments.refuse("fractions", "numbers above 0 and below 1", fraction)
    if not fractions:
        raise InvalidError('split() needs fractions: split(0.9, by="path") or split(0.8, 0.1, 0.1, by="path")')
    parts = [float(fraction) for fraction in fractions]
    parts += [1 - parts[0]] if len(parts) == 1 else []
    if abs(sum(parts) - 1) > 1 / BUCKETS:
        listed = ", ".join(map(str, parts))
        raise InvalidError(f"the fractions of a split must sum to 1, and {listed} sum to {sum(parts)}")
    return parts


def split_conditions(column: str, fractions: tuple[float, ...], seed: int) -> list[str]:
    """Conditions of SQL that divide rows by a hash of `column`: a row's part depends on the column's value alone."""
    parts = shares(fractions)
    # Rows whose value is null have one part too.
    bucket = f"coalesce({bucket_of(column, seed)}, 0)"
    bounds = [round(sum(parts[:index]) * BUCKETS) for index in range(len(parts))] + [BUCKETS]
    if min(high - low for low, high in zip(bounds, bounds[1:])) < 1:
        smallest = min(parts)
        raise InvalidError(f"a part of a split has at least a fraction of {1 / BUCKETS:f}, and one has {smallest:.2g}")
    conditions: list[str] = []
    for low, high in zip(bounds, bounds[1:]):
        above, below = f"{bucket} >= {low}", f"{bucket} < {high}"
        conditions.append(" AND ".join([above] * (low > 0) + [below] * (high < BUCKETS)))
    return conditions


BUCKETS = 1_000_000
HASHED = f", buckets => {BUCKETS}, seed => {{seed}})"


def bucket_of(column: str, seed: int) -> str:
    return f"hash_bucket({quoted(column)}{HASHED.format(seed=seed)}"
