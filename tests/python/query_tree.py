"""Queries as trees of their parts: their text, and queries with one part less."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

@dataclass(frozen=True)
class Column:
    """A column, by the text that names it."""

    name: str
    kind: str


@dataclass(frozen=True)
class Relation:
    """What FROM names: a table or a query, with at most so many rows."""

    source: "str | Query"
    alias: str
    columns: tuple[Column, ...]
    rows: int
    # Columns by which only equal rows are ties. None if there are none.
    key: tuple[str, ...] | None
    # Whether no rows are equal.
    is_unique: bool

    def sql(self) -> str:
        return f"{self.source if isinstance(self.source, str) else f'({self.source.sql()})'} {self.alias}"

    def simpler(self) -> Iterator["Relation"]:
        if not isinstance(self.source, str):
            yield from (replace(self, source=source) for source in self.source.simpler())


@dataclass(frozen=True)
class Join:
    """A join on the first of the conditions and others, on a column of both, or on nothing."""

    kind: str
    relation: Relation
    on: tuple[str, ...] = ()
    using: str = ""

    def sql(self) -> str:
        on = f" USING ({self.using})" if self.using else f" ON {' AND '.join(self.on)}" if self.on else ""
        return f"{self.kind} JOIN {self.relation.sql()}{on}"

    def simpler(self) -> Iterator["Join"]:
        if len(self.on) > 1:
            yield replace(self, on=self.on[:1])
        yield from (replace(self, relation=relation) for relation in self.relation.simpler())


@dataclass(frozen=True)
class Select:
    """A SELECT, by its clauses. Each column is an expression, its name and its kind."""

    items: tuple[tuple[str, Column], ...]
    relation: Relation
    rows: int
    joins: tuple[Join, ...] = ()
    distinct: bool = False
    where: tuple[str, ...] = ()
    group_by: str = ""
    having: str = ""
    qualify: str = ""
    order_by: tuple[str, ...] = ()
    limit: str = ""

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(column for _, column in self.items)

    def sql(self) -> str:
        columns = ", ".join(f"{text} AS {column.name}" for text, column in self.items)
        clauses = [
            f"SELECT {'DISTINCT ' * self.distinct}{columns}",
            f"FROM {self.relation.sql()}",
            *(join.sql() for join in self.joins),
            self.where and "WHERE " + " AND ".join(self.where),
            self.group_by and f"GROUP BY {self.group_by}",
            self.having and f"HAVING {self.having}",
            self.qualify and f"QUALIFY {self.qualify}",
            self.order_by and f"ORDER BY {', '.join(self.order_by)}",
            self.limit,
        ]
        return " ".join(filter(None, clauses))

    def simpler(self) -> Iterator["Query"]:
        """Queries with one part less. Not all are valid."""
        if not isinstance(self.relation.source, str):
            yield self.relation.source
        yield from (replace(self, relation=relation) for relation in self.relation.simpler())
        for name in ("joins", "where", "items"):
            values = getattr(self, name)
            kept = (values[:index] + values[index + 1 :] for index in range(len(values)))
            yield from (replace(self, **{name: some}) for some in kept if some or name != "items")
        # A limit without an order gives other rows.
        order = () if self.limit else ("order_by",)
        for name in ("having", "qualify", "limit", "distinct", "group_by", *order):
            if getattr(self, name):
                yield replace(self, **{name: type(getattr(self, name))()})
        for index, join in enumerate(self.joins):
            others = (self.joins[:index], self.joins[index + 1 :])
            yield from (replace(self, joins=(*others[0], simple, *others[1])) for simple in join.simpler())


@dataclass(frozen=True)
class Combined:
    """UNION ALL and its like. The columns have the first query's names."""

    word: str
    first: "Query"
    second: "Query"

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.first.columns

    @property
    def rows(self) -> int:
        return self.first.rows + self.second.rows

    def sql(self) -> str:
        return f"{self.first.sql()} {self.word} {self.second.sql()}"

    def simpler(self) -> Iterator["Query"]:
        yield self.first
        yield self.second
        yield from (replace(self, first=first) for first in self.first.simpler())
        yield from (replace(self, second=second) for second in self.second.simpler())


Query = Select | Combined


@dataclass(frozen=True)
class Drawn:
    """A pipeline: a core, and above it what DuckDB lacks."""

    core: Query
    operators: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    lookup: str = ""
    # Whether the rows depend on places in files.
    is_tied: bool = False
    # A query that Forebay may refuse, instead of the core.
    odd: str = ""

    @property
    def columns(self) -> list[Column]:
        """The columns that are compared with DuckDB's."""
        return [column for column in self.core.columns if column.kind != "image"]

    @property
    def is_ordered(self) -> bool:
        """Whether the samples come in the order of the core."""
        ordered = isinstance(self.core, Select) and self.core.order_by
        return bool(ordered) and not self.is_tied and not any("shuffle" in option for option in self.options)

    def for_duckdb(self) -> str:
        return f"SELECT {', '.join(column.name for column in self.columns)} FROM ({self.core.sql()}) q"

    def select(self) -> str:
        named = [f"{operator} AS o{number}" for number, operator in enumerate(self.operators)]
        columns = ", ".join([*(f"q.{column.name}" for column in self.columns), *named])
        return self.odd or f"SELECT {columns} FROM ({self.core.sql()}) q{self.lookup}"

    def pipeline(self, name: str) -> str:
        options = f" WITH ({', '.join(self.options)})" if self.options else ""
        return f"CREATE PIPELINE {name}{options} AS {self.select()};\n"

    def simpler(self) -> Iterator["Drawn"]:
        for name in ("options", "operators"):
            values = getattr(self, name)
            if values:
                yield replace(self, **{name: ()})
            yield from (replace(self, **{name: values[:index] + values[index + 1 :]}) for index in range(len(values)))
        if self.lookup:
            yield replace(self, lookup="", operators=())
        yield from (replace(self, core=core) for core in self.core.simpler())
