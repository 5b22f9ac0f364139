"""Rows with the same content."""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Iterator

from . import _html as html
from ._errors import ExhaustedError
from ._packages import required
from ._times import are_times, as_integers

if TYPE_CHECKING:
    from ._reading import Pass

# Groups, and rows of a group, that a text or a notebook shows.
GROUPS_MAX, ROWS_MAX = 20, 8
_DIGEST_BYTES = 16


class Duplicates(list[list[Any]]):
    """Groups of rows that are equal: their paths, or the numbers of the rows in the table. The first of a group is the
    first in the table."""

    def __init__(self, groups: list[list[Any]], columns: list[str], rows: int):
        super().__init__(groups)
        self.columns = columns
        # The number of rows that were compared.
        self.rows = rows

    def __reduce__(self) -> Any:
        return Duplicates, (list(self), self.columns, self.rows)

    @property
    def extra(self) -> list[Any]:
        """All rows but the first of each group: those to leave out."""
        return [row for group in self for row in group[1:]]

    def _lines(self) -> list[str]:
        what = ", ".join(self.columns)
        head = f"{len(self.extra)} of {self.rows} rows repeat another row's {what}, in {len(self)} groups"
        lines = [head]
        for group in self[:GROUPS_MAX]:
            more = f", … and {len(group) - ROWS_MAX} more" if len(group) > ROWS_MAX else ""
            lines.append("  " + ", ".join(html.shortened(row) for row in group[:ROWS_MAX]) + more)
        return lines + (["  …"] if len(self) > GROUPS_MAX else [])

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        head, *groups = (html.text(line, 2000) for line in self._lines())
        return html.page(f"<p>{head}</p><ul>{''.join(f'<li>{group}</li>' for group in groups)}</ul>")


def find_duplicates(read: Pass, columns: list[str], limit: int) -> Duplicates:
    """Compares rows by a hash of `columns`. Names them by the column "path", if it is read."""
    first: dict[bytes, Any] = {}
    groups: dict[bytes, list[Any]] = {}
    rows = repeated = 0
    for batch in read.batches("find_duplicates"):
        names = batch.column("path").to_pylist() if "path" in read.columns else None
        parts = [contents(batch.column(name)) for name in columns]
        for index, row in enumerate(zip(*parts, strict=True)):
            hashed = blake2b(digest_size=_DIGEST_BYTES)
            for part in row:
                hashed.update(struct.pack("<q", -1 if part is None else len(part)))
                hashed.update(part or b"")
            digest = hashed.digest()
            name = rows + index if names is None else names[index]
            if digest in first:
                groups.setdefault(digest, [first[digest]]).append(name)
                repeated += 1
            else:
                first[digest] = name
        rows += batch.num_rows
        if max(len(first), repeated) > limit:
            what = "different rows" if len(first) > limit else f"rows that repeat another row's {', '.join(columns)}"
            raise ExhaustedError(
                f"the table has more than {limit} {what}",
                f"give a larger limit, at about 150 bytes a row: find_duplicates(limit={limit * 10})",
            )
    return Duplicates(list(groups.values()), columns, rows)


def contents(column: Any) -> Iterator[bytes | None]:
    """The values of an Arrow column as bytes; equal values have equal bytes."""
    pyarrow = required("pyarrow", "find_duplicates")
    types = pyarrow.types
    storage = column.storage if isinstance(column, pyarrow.ExtensionArray) else column
    type = storage.type
    if types.is_binary(type) or types.is_large_binary(type):
        yield from storage.to_pylist()
    elif types.is_struct(type):
        names = [field.name for field in type]
        fields = [contents(storage.field(name)) for name in names]
        rows: Any = zip(*fields, strict=True) if fields else [()] * len(storage)
        for valid, row in zip(storage.is_valid().to_pylist(), rows, strict=True):
            parts: dict[str, bytes | None] = dict(zip(names, row))
            if set(names) == {"bytes", "path"} and parts["bytes"] is not None:
                # A picture in a data set: its file's name is not its content.
                parts["path"] = None
            yield b"".join(map(_sized, parts.values())) if valid else None
    elif types.is_nested(type):
        for row in storage:
            yield _of_list(row.values, types) if row.is_valid else None
    else:
        for value in _normal(storage, types).to_pylist():
            yield None if value is None else repr(value).encode()


def _of_list(values: Any, types: Any) -> bytes:
    if not types.is_primitive(values.type) or values.null_count or values.type.bit_width % 8:
        return b"values" + b"".join(map(_sized, contents(values)))
    # Numbers, such as those of a tensor, as they are in memory.
    values = _normal(values, types)
    width = values.type.bit_width // 8
    data = values.buffers()[1]
    begin, end = values.offset * width, (values.offset + len(values)) * width
    return b"memory" + (memoryview(data)[begin:end].tobytes() if data is not None else b"")


def _normal(values: Any, types: Any) -> Any:
    """Values of one form for equal numbers: all NaNs, and both zeros, are equal. Times become integers."""
    if are_times(values.type):
        return as_integers(values)
    if not types.is_floating(values.type):
        return values
    compute = required("pyarrow.compute", "find_duplicates")
    # pyarrow has few functions for float16.
    values = values.cast("float32") if types.is_float16(values.type) else values
    pyarrow = required("pyarrow", "find_duplicates")
    zero, nan = (pyarrow.scalar(number, values.type) for number in (0.0, float("nan")))
    return compute.if_else(compute.is_nan(values), nan, compute.add(values, zero))


def _sized(part: bytes | None) -> bytes:
    return struct.pack("<q", -1 if part is None else len(part)) + (part or b"")
