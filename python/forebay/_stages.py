"""The queries of methods that need whole tables: groups, sorts, unions and joins. What a feed cannot compute of them is
a stage, which runs once before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Sequence

from . import _arguments as arguments
from ._errors import InvalidError
from ._sql import quoted
from ._whole import compare

if TYPE_CHECKING:
    from ._table import Table

How = Literal["inner", "left", "right", "full", "cross", "semi", "anti"]
_JOINS = {
    "inner": "INNER JOIN",
    "left": "LEFT JOIN",
    "right": "RIGHT JOIN",
    "full": "FULL JOIN",
    "cross": "CROSS JOIN",
    "semi": "LEFT SEMI JOIN",
    "anti": "LEFT ANTI JOIN",
}


class GroupBy:
    """The groups of a table: `agg` makes a row of each."""

    def __init__(self, table: Table, keys: dict[str, str]):
        self._table, self._keys = table, keys

    def agg(self, **named: str) -> Table:
        """A row for each group: its keys, and aggregates with names: `.agg(photos="count(*)", largest="max(size)")`.

        Rows come in the order of their keys, nulls first. Aggregates that depend on the order of rows say which it is:
        `array_agg(path ORDER BY size)`.
        """
        if not named:
            raise InvalidError('agg() needs at least one aggregate: agg(photos="count(*)")')
        for name, expression in named.items():
            if not isinstance(expression, str):
                raise arguments.refuse(name, 'SQL text such as "count(*)" or "sum(size)"', expression)
            if name in self._keys:
                raise InvalidError(
                    f'"{name}" is a key of the groups, and an aggregate has its name', "give the aggregate another name"
                )
        chosen = ", ".join(_named(expression, name) for name, expression in (self._keys | named).items())
        # By position, so that a key whose name is that of a column, or whose value is a number, is still the key.
        places = ", ".join(str(place) for place in range(1, len(self._keys) + 1))
        return self._table._other(f"(SELECT {chosen} FROM {self._table._from()} GROUP BY {places}) AS grouped")

    def __repr__(self) -> str:
        return f"<forebay.GroupBy {', '.join(map(quoted, self._keys))} of {self._table.sql}>"


def grouped(table: Table, columns: Sequence[str], named: dict[str, str]) -> GroupBy:
    if not columns and not named:
        raise InvalidError(
            'group_by() needs at least one column: group_by("label")',
            'one row of the whole table: table.select(rows="count(*)")',
        )
    keys = {name: quoted(name) for name in _columns(table, "group_by", columns)} if columns else dict[str, str]()
    for name, expression in named.items():
        if not isinstance(expression, str):
            raise arguments.refuse(name, 'SQL text such as "size / 1000"', expression)
        if name in keys:
            raise InvalidError(f'two keys of group_by are named "{name}"', "give the expression another name")
    return GroupBy(table, keys | named)


def distinct(table: Table, columns: Sequence[str]) -> str:
    """The source of the rows that differ, or of the first row for each combination of values in `columns`."""
    compared = _columns(table, "distinct", columns or list(table.columns))
    if not columns:
        return f"(SELECT DISTINCT * FROM {table._from()}) AS distinct_rows"
    types = table.columns
    # A window function passes the other columns on, and DISTINCT ON would compute images to do so. Of floats, it would
    # have 0 and -0 in two groups.
    keys = ", ".join(f"{quoted(name)} + 0" if types[name].startswith("Float") else quoted(name) for name in compared)
    first = f"row_number() OVER (PARTITION BY {keys}) = 1"
    return f"(SELECT * FROM {table._from()} QUALIFY {first}) AS distinct_rows"


def in_order(table: Table, columns: Sequence[str], descending: bool | Sequence[bool], nulls_last: bool) -> str:
    """The source of the sorted rows."""
    if not columns:
        raise InvalidError('sort() needs at least one column: sort("label")')
    names = _columns(table, "sort", columns)
    given = list(descending) if isinstance(descending, (list, tuple)) else [descending] * len(names)
    if len(given) != len(names) or not all(isinstance(one, bool) for one in given):
        raise arguments.refuse("descending", "True or False, or a list of them, one for each column", descending)
    nulls = "NULLS LAST" if arguments.boolean("nulls_last", nulls_last) else "NULLS FIRST"
    keys = ", ".join(f"{quoted(name)} {'DESC' if down else 'ASC'} {nulls}" for name, down in zip(names, given))
    return f"(SELECT * FROM {table._from()} ORDER BY {keys}) AS sorted"


def united(table: Table, others: Sequence[Table]) -> str:
    """The source of the rows of all tables, one table after the other."""
    if not others:
        raise InvalidError("union() needs at least one other table")
    for number, other in enumerate(others, 2):
        check_session("union", table, other)
        compare("union", table, other, number)
    names = ", ".join(quoted(name) for name in table.columns)
    parts = " UNION ALL ".join(f"SELECT {names} FROM {part._from()}" for part in (table, *others))
    return f"({parts}) AS united"


def joined(table: Table, other: Table, on: str | list[str] | dict[str, str] | None, how: How) -> str:
    """The source of the joined rows. The join is a query of its own, so that a later sample or condition applies to all
    of its rows."""
    check_session("a join", table, other)
    if arguments.choice("how", how, _JOINS) is None:
        raise arguments.refuse("how", ", ".join(map(repr, _JOINS)), how)
    sides = f"({table.sql}) AS first {_JOINS[how]} ({other.sql}) AS second"
    if how == "cross":
        if on is not None:
            raise InvalidError('a cross join has no "on": it pairs all rows', 'leave "on" out, or use another "how"')
        return f"(SELECT * FROM {sides}) AS joined"
    names = [on] if isinstance(on, str) else on
    pairs = list(names.items() if isinstance(names, dict) else [(name, name) for name in names or ()])
    if not pairs or not all(isinstance(name, str) for pair in pairs for name in pair):
        raise arguments.refuse("on", "a column's name, a list of them, or a dict of names", on)
    known, found = list(table.columns), list(other.columns)
    for name, partner in pairs:
        arguments.choice("on", name, known)
        arguments.choice("on", partner, found)
    equal = " AND ".join(f"first.{quoted(name)} = second.{quoted(partner)}" for name, partner in pairs)
    if isinstance(names, dict):
        return f"(SELECT * FROM {sides} ON {equal}) AS joined"
    keys = [name for name, _ in pairs]
    if how not in ("right", "full"):
        return f"(SELECT * FROM {sides} USING ({', '.join(map(quoted, keys))})) AS joined"
    # Rows that only the second table has would have no key after USING.
    key = "second.{0}" if how == "right" else "coalesce(first.{0}, second.{0})"
    chosen = [
        _named(key.format(quoted(name)), name) if name in keys else f"first.{quoted(name)}" for name in known
    ]
    chosen += [f"second.{quoted(name)}" for name in found if name not in keys]
    return f"(SELECT {', '.join(chosen)} FROM {sides} ON {equal}) AS joined"


def check_session(by: str, table: Table, other: Table) -> None:
    if other._session is not table._session:
        raise InvalidError(
            f"the tables of {by} must belong to one session", "make all of them with the same forebay.Session"
        )


def _named(expression: str, name: str) -> str:
    return expression if expression == quoted(name) else f"{expression} AS {quoted(name)}"


def _columns(table: Table, by: str, names: Sequence[Any]) -> list[str]:
    """Checks the names of columns whose values are compared."""
    types = table.columns
    for name in names:
        if not isinstance(name, str):
            raise arguments.refuse("column", "the name of a column", name)
        arguments.choice("column", name, types)
        if types[name].startswith("tensor<"):
            raise InvalidError(
                f'{by} compares texts, numbers, times and lists, and the column "{name}" is a {types[name]}',
                f'name other columns, such as {by}("path"), or compute the tensor afterwards, with with_column',
            )
    return arguments.names("columns", names) or []
