"""Small tables that are read whole into memory: to sort them, or to put several together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Sequence

from . import _arguments as arguments
from ._errors import ExhaustedError, InvalidError
from ._packages import required
from ._reading import Pass
from ._udf import functions

if TYPE_CHECKING:
    from ._session import Session
    from ._table import Table

# The memory that the rows may take.
MEMORY_LIMIT = "1GiB"
_ORDER = re.compile(r"(.+?)\s+(asc|desc)", re.IGNORECASE)


def ordered(table: Table, columns: Sequence[str], memory_limit: int | str) -> Any:
    """The rows of a table as Arrow data, sorted by columns."""
    compute = required("pyarrow.compute", "order_by")
    known = table.columns
    if not columns:
        raise InvalidError('order_by() needs at least one column: order_by("label", "size DESC")')
    keys = [_key(column, known) for column in columns]
    rows = _read([table], "order_by", memory_limit, "sort the files beforehand, and load them with shuffle=False")
    for name, _ in keys:
        if _is_nested(rows.schema.field(name).type):
            raise InvalidError(
                f'order_by sorts by texts, numbers and times, and the column "{name}" is a {known[name]}',
                "sort by an expression of it, which you add with with_column",
            )
    # This sort is stable: rows with equal keys keep the order of the files. Nulls come last.
    return rows.take(compute.sort_indices(_sortable(rows.select([*{name: None for name, _ in keys}])), sort_keys=keys))


def joined(session: Session, tables: Sequence[Table], memory_limit: int | str) -> Any:
    """The rows of the first table, then those of the second, and so on, as Arrow data."""
    for table in tables:
        if table._session is not session:
            raise InvalidError("the tables of concat must belong to one session", "make all with one forebay.Session")
    for number, table in enumerate(tables[1:], 2):
        compare("concat", tables[0], table, number)
    return _read(tables, "concat", memory_limit, "write them to files of one folder, and load a table of the folder")


def _key(column: Any, known: dict[str, str]) -> tuple[str, str]:
    if not isinstance(column, str):
        raise arguments.refuse("column", 'the name of a column, or "name DESC"', column)
    found = None if column in known else _ORDER.fullmatch(column.strip())
    name, order = (found[1], found[2].lower()) if found else (column, "asc")
    arguments.choice("column", name, known)
    return name, f"{order}ending"


def compare(by: str, first: Table, other: Table, number: int) -> None:
    """Refuses a table whose columns differ from those of the first one."""
    required("pyarrow", by)
    hint = "select the same columns of each, and CAST where types differ: table.select(…)"
    known, found = first.columns, other.columns
    types, others = first.schema, other.schema
    for name in known:
        if name not in found:
            raise InvalidError(f'table 1 of {by} has the column "{name}", and table {number} has not', hint)
    for name in found:
        if name not in known:
            raise InvalidError(f'table {number} of {by} has the column "{name}", and table 1 has not', hint)
        one, two = types.field(name), others.field(name)
        if one.type != two.type or one.metadata != two.metadata:
            shown, differs = known[name], found[name]
            if shown == differs:
                shown, differs = f"{one.type} {one.metadata}", f"{two.type} {two.metadata}"
            message = f'the column "{name}" is {shown} in table 1 of {by}, and {differs} in table {number}'
            raise InvalidError(message, hint)


def _read(tables: Sequence[Table], by: str, memory_limit: int | str, cure: str) -> Any:
    """The rows of all tables, with the columns of the first."""
    pyarrow = required("pyarrow", by)
    limit = arguments.size("memory_limit", memory_limit)
    if limit is None:
        raise arguments.refuse("memory_limit", "a size such as '64MiB' or a number of bytes", None)
    found: list[Any] = []
    names = list(tables[0].columns)
    bytes = 0
    for table in tables:
        read = Pass(table.pipeline(), None)
        # A function without a version cannot be cached, but its results need not repeat.
        mine = {function.name for function in functions() if not function.rng}
        drawn = [call for call in read.uncacheable_calls if call not in mine]
        if drawn:
            raise InvalidError(
                f"{by} reads the rows once, and the results of {', '.join(drawn)} would repeat in every epoch",
                f"apply random operators to its result: table.{by}(…).with_column(…)",
            )
        for batch in read.batches(by):
            bytes += batch.nbytes
            if bytes > limit:
                raise ExhaustedError(
                    f"{by} holds the rows in memory, and they take more than {_shown(limit)}",
                    f'leave out columns and rows that you do not need, allow more: {by}(…, memory_limit="8GiB"), or '
                    + cure,
                )
            found.append(batch.select(names))
    if not found:
        return tables[0].schema.empty_table()
    # A column may be nullable in some of the tables only.
    fields = [field.with_nullable(True) for field in found[0].schema]
    schema = pyarrow.schema(fields)
    return pyarrow.Table.from_batches([pyarrow.record_batch(batch.columns, schema=schema) for batch in found])


def _sortable(keys: Any) -> Any:
    """The columns with float32 in place of float16, which pyarrow does not sort."""
    pyarrow = required("pyarrow", "order_by")
    fields = [
        field.with_type(pyarrow.float32()) if pyarrow.types.is_float16(field.type) else field for field in keys.schema
    ]
    return keys.cast(pyarrow.schema(fields))


def _is_nested(type: Any) -> bool:
    pyarrow = required("pyarrow", "order_by")
    return bool(pyarrow.types.is_nested(type) or isinstance(type, pyarrow.BaseExtensionType))


def _shown(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} bytes"
