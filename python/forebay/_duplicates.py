"""Rows with the same content."""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Iterator

from . import _html as html
from ._errors import ExhaustedError
from ._packages import required

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
    rows = 0
    for batch in read.batches("find_duplicates"):
        names = batch.column("path").to_pylist() if "path" in read.columns else None
        parts = [contents(batch.column(name)) for name in columns]
        for index, row in enumerate(zip(*parts)):
            hashed = blake2b(digest_size=_DIGEST_BYTES)
            for part in row:
                hashed.update(struct.pack("<q", -1 if part is None else len(part)))
                hashed.update(part or b"")
            digest = hashed.digest()
            name = rows + index if names is None else names[index]
            if digest in first:
                groups.setdefault(digest, [first[digest]]).append(name)
            else:
                first[digest] = name
        rows += batch.num_rows
        if len(first) > limit:
            raise ExhaustedError(
                f"the table has more than {limit} different rows",
                f"give a larger limit, at about 150 bytes a row: find_duplicates(limit={limit * 10})",
            )
    return Duplicates(list(groups.values()), columns, rows)


def contents(column: Any) -> Iterator[bytes | None]:
    """The values of an Arrow column as bytes; equal values have equal bytes."""
    pyarrow = required("pyarrow", "find_duplicates")
    storage = column.storage if isinstance(column, pyarrow.ExtensionArray) else column
    type = storage.type
    if pyarrow.types.is_binary(type) or pyarrow.types.is_large_binary(type):
        yield from storage.to_pylist()
    elif pyarrow.types.is_struct(type):
        names = [field.name for field in type]
        rows = zip(*(contents(storage.field(name)) for name in names))
        for valid, fields in zip(storage.is_valid().to_pylist(), rows):
            yield b"".join(_sized(field) for field in fields) if valid else None
    elif pyarrow.types.is_nested(type) and pyarrow.types.is_primitive(getattr(type, "value_type", type)):
        # Lists of numbers, such as the values of a tensor: the numbers as they are in memory.
        for row in storage:
            yield _of_numbers(row.values) if row.is_valid else None
    else:
        for value in storage.to_pylist():
            yield None if value is None else repr(value).encode()


def _of_numbers(values: Any) -> bytes:
    bits = values.type.bit_width
    if values.null_count or bits % 8:
        return repr(values.to_pylist()).encode()
    begin = values.offset * bits // 8
    data = values.buffers()[1]
    return memoryview(data)[begin : begin + len(values) * bits // 8].tobytes() if data is not None else b""


def _sized(part: bytes | None) -> bytes:
    return struct.pack("<q", -1 if part is None else len(part)) + (part or b"")
