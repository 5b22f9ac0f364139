"""Pipelines built in Python: each method returns a new table, which is a SQL query."""

from __future__ import annotations

import numbers
import os
import re
from typing import TYPE_CHECKING, Any, Callable, Literal, Sequence

from . import _arguments as arguments
from ._errors import InvalidError
from ._loads import Loads
from ._looking import HASHED, Looks, split_conditions
from ._sql import by_value, literal, quoted
from ._stages import GroupBy, How, distinct, grouped, in_order, joined, united
from ._stratify import HASHED as HASHED_FINELY, stratified_conditions
from ._whole import MEMORY_LIMIT, ordered

if TYPE_CHECKING:
    from ._jobs import JobProgress, Materialized
    from ._loader import Loader
    from ._preview import Preview
    from ._session import Pipeline, Session, Text
    from ._types import FeedOptions, MaterializeOptions, Unpack


# Each fold is two queries.
FOLDS_MAX = 1000


class Table(Loads, Looks):
    """Rows to choose, filter and transform. Expressions are SQL; nothing is read before a loader is made."""

    def __init__(
        self,
        session: "Session",
        source: str,
        *,
        conditions: tuple[str, ...] = (),
        columns: tuple[str, ...] | None = None,
        held: tuple[Any, ...] = (),
    ):
        # Keeps in-memory rows alive, which the session frees when no table uses them.
        self._held = held
        self._session = session
        self._source = source
        self._conditions = conditions
        self._columns = columns

    @property
    def sql(self) -> str:
        """The query."""
        query = f"SELECT {', '.join(self._columns or ('*',))} FROM {self._source}"
        if self._conditions:
            query += " WHERE " + " AND ".join(f"({condition})" for condition in self._conditions)
        return query

    def filter(self, *conditions: str) -> "Table":
        """The rows for which all conditions hold: `.filter("width >= 64", "label <> 3")`."""
        for condition in conditions:
            if not isinstance(condition, str):
                raise arguments.refuse("condition", "SQL text such as \"width >= 64\"", condition)
        # A condition may use selected columns, so wrap the selection in a subquery.
        table = self._nested() if self._columns is not None else self
        return self._other(table._source, conditions=table._conditions + conditions)

    def select(self, *columns: str, **named: str) -> "Table":
        """The columns, and expressions with names: `.select("label", image="decode_image(bytes)")`."""
        if not columns and not named:
            raise InvalidError("select() needs at least one column")
        for expression in (*columns, *named.values()):
            if not isinstance(expression, str):
                raise arguments.refuse("column", "SQL text such as \"label\" or \"width / 2\"", expression)
        table = self._nested() if self._columns is not None else self
        chosen = (*columns, *(f"{expression} AS {quoted(name)}" for name, expression in named.items()))
        return self._other(table._source, conditions=table._conditions, columns=chosen)

    def with_column(self, name: str, expression: str) -> "Table":
        """All columns, with `name` added or replaced."""
        return self.with_columns(**{name: expression})

    def with_columns(self, **named: str) -> "Table":
        """All columns, with the named ones added or replaced."""
        names = list(self.columns)
        kept = [quoted(name) for name in names if name not in named]
        return self.select(*kept, **named)

    def drop(self, *names: str) -> "Table":
        """All columns but these."""
        known = list(self.columns)
        for name in names:
            arguments.choice("name", name, known)
        return self.select(*(quoted(name) for name in known if name not in names))

    def unnest(self, column: str) -> "Table":
        """A row for each element of the lists in `column`."""
        names = list(self.columns)
        arguments.choice("column", column, names)
        return self.select(*(quoted(name) for name in names if name != column), **{column: f"unnest({quoted(column)})"})

    def group_by(self, *columns: str, **named: str) -> GroupBy:
        """The groups of rows that are equal in columns, and in expressions with names. `agg` makes a row of each:
        `.group_by("label", kilobytes="size / 1000").agg(photos="count(*)")`. Nulls are one group."""
        return grouped(self, columns, named)

    def distinct(self, *columns: str) -> "Table":
        """The rows without repetitions, in the order of their values; with columns, the first row for each combination
        of values there, in the order of this table: `.distinct("label", "size")`. Nulls are equal."""
        return self._other(distinct(self, columns))

    def sort(self, *columns: str, descending: bool | Sequence[bool] = False, nulls_last: bool = True) -> "Table":
        """The rows in the order of columns: `.sort("label", "size", descending=[False, True])`. Rows that are equal
        there keep their order. Nulls come last, also if `descending`, or first without `nulls_last`. NaN is greater
        than all numbers."""
        return self._other(in_order(self, columns, descending, nulls_last))

    def union(self, *others: Any) -> "Table":
        """These rows, then those of the other tables, or sources of `forebay.table`, one after the other. Repeated rows
        stay: SQL's `UNION ALL`. All have the same columns, by name, in any order."""
        tables = [self._session.table(other) for other in others]
        return self._with(united(self, tables), *tables)

    def join(self, other: Any, on: "str | list[str] | dict[str, str] | None" = None, how: How = "inner") -> "Table":
        """These rows with the columns of `other`: a table, or any source of `forebay.table`. `on` names the columns
        that must be equal, as a dict `{"label_id": "id"}` if their names differ in `other`. Nulls are not equal. A row
        with several matches comes once per match.

        - `"inner"`: rows that have a match.
        - `"left"`: all rows; those without a match have nulls.
        - `"semi"`, `"anti"`: rows that have a match, or none, once each, without columns of `other`.
        - `"right"`, `"full"`: the rows of `other` without a match too. These rows without a match are left out
          (`"right"`), or have nulls.
        - `"cross"`: each row with each row of `other`, without `on`.

        `"inner"`, `"left"`, `"semi"` and `"anti"` hold `other` in memory: the smaller table. The others are computed
        once, before the first batch, and both tables may be of any size.
        """
        other = self._session.table(other)
        return self._with(joined(self, other, on, how), other)

    def sample(self, fraction: float, seed: int = 0) -> "Table":
        """About this fraction of the rows of a table of files or Arrow data. The choice of rows depends on this `seed`,
        and not on the loader's."""
        is_number = isinstance(fraction, numbers.Real) and not isinstance(fraction, bool)
        if not is_number or not 0 < fraction <= 1:
            raise arguments.refuse("fraction", "above 0 and at most 1", fraction)
        seed = arguments.count("seed", seed)
        return self._other(f"{self._from()} TABLESAMPLE BERNOULLI ({float(fraction) * 100!r}) REPEATABLE ({seed})")

    def split(self, *fractions: float, by: str, stratify: str | None = None, seed: int = 0) -> "tuple[Table, ...]":
        """Divides the rows: `train, test = table.split(0.9, by="path")`, or `split(0.8, 0.1, 0.1, by="path")`.

        A row's part depends only on its value in the column `by` and on `seed`. It stays the same when rows are added,
        and equal values are in one part. The parts have about these fractions of the distinct values. To split a part
        again, give another seed.

        With `stratify="label"`, the parts have these fractions of the rows of each label, rounded up or down to whole
        rows. This reads both columns once, now, and holds 8 bytes for each row. Rows with equal values in `by` stay in
        one part, so they must have one label. Another row in the table may move rows from part to part.
        """
        return tuple(self.filter(condition) for condition in self._parts(fractions, by, stratify, seed))

    def folds(
        self, count: int, *, by: str, stratify: str | None = None, seed: int = 0
    ) -> "list[tuple[Table, Table]]":
        """Pairs of training and validation rows for cross-validation: `for train, val in table.folds(5, by="path")`.

        Each row is in the validation rows of one pair and in the training rows of all others. `by`, `stratify` and
        `seed` are those of `split`.
        """
        count = arguments.count("count", count, 2)
        arguments.integer("count", count, maximum=FOLDS_MAX)
        conditions = self._parts((1 / count,) * count, by, stratify, seed)
        return [(self.filter(f"NOT ({condition})"), self.filter(condition)) for condition in conditions]

    def _parts(self, fractions: tuple[float, ...], by: str, stratify: str | None, seed: int) -> list[str]:
        """The condition of each part of a split. It is true or false for every row."""
        types = self.columns
        if arguments.choice("by", by, list(types)) is None:
            raise arguments.refuse("by", "the name of a column", by)
        # SQL has no larger integers.
        seed = arguments.integer("seed", arguments.count("seed", seed), maximum=2**63 - 1) or 0
        # The column may have another name by now.
        if any(hashed.format(seed=seed) in self.sql for hashed in (HASHED, HASHED_FINELY)):
            raise InvalidError(
                f"these rows were split with seed {seed} already, so another such split may not be random",
                "give another seed; or, of a split, all fractions at once: split(0.8, 0.1, 0.1, …)",
            )
        try:
            conditions = split_conditions(by, fractions, seed)
            if stratify is not None:
                conditions = stratified_conditions(self, by, stratify, fractions, seed)
            self.filter(conditions[0]).pipeline()
        except InvalidError as error:
            if not error.message.startswith("hash_bucket:"):
                raise
            raise InvalidError(
                f'a split divides by numbers, texts, booleans and bytes, and the column "{by}" is a {types[by]}',
                "split by another column, or by a text of this one, if it is a time: "
                f"table.with_column(\"key\", {f'CAST({quoted(by)} AS TEXT)'!r}).split(0.9, by=\"key\")",
            ) from None
        return conditions

    def limit(self, rows: int) -> "Table":
        """The first rows, in the order of the table. Table operators, such as `pack`, come after it."""
        return self._other(f"({self.sql} LIMIT {arguments.count('rows', rows, 1)}) AS first_rows")

    def order_by(self, *columns: str, memory_limit: int | str = MEMORY_LIMIT) -> "Table":
        """The rows in the order of columns: `.order_by("label", "size DESC")`. Nulls come last, and rows that are equal
        there keep their order.

        This reads the rows now, into memory. It is an error if they take more than `memory_limit`. `sort` does neither.
        """
        return self._session.table(ordered(self, columns, memory_limit))

    def pack(
        self,
        length: int,
        *,
        strategy: Literal["concat", "best_fit"] | None = None,
        column: str | None = None,
        separator: int | None = None,
        pad_id: int | None = None,
        ignore_index: int | None = None,
        dtype: Literal["int32", "int64"] | None = None,
    ) -> "Table":
        """Token lists packed into rows of `length`: the SQL operator `pack`."""
        length = arguments.count("length", length, 1)
        return self._of_rows(
            "pack",
            length=length,
            strategy=strategy,
            column=column,
            separator=separator,
            pad_id=pad_id,
            ignore_index=ignore_index,
            dtype=dtype,
        )

    def mixup(
        self,
        alpha: float = 1.0,
        *,
        num_classes: int | None = None,
        p: float | None = None,
        image: str | None = None,
        label: str | None = None,
    ) -> "Table":
        """Each image blended with that of another row: the SQL operator `mixup`."""
        return self._of_rows("mixup", alpha=alpha, num_classes=num_classes, p=p, image=image, label=label)

    def cutmix(
        self,
        alpha: float = 1.0,
        *,
        num_classes: int | None = None,
        p: float | None = None,
        image: str | None = None,
        label: str | None = None,
    ) -> "Table":
        """Each image with a box from the image of another row: the SQL operator `cutmix`."""
        return self._of_rows("cutmix", alpha=alpha, num_classes=num_classes, p=p, image=image, label=label)

    def drop_near_duplicates(self, threshold: float = 0.8, *, column: str | None = None) -> "Table":
        """The rows that are not similar to an earlier row of their window: the SQL operator `drop_near_duplicates`."""
        return self._of_rows("drop_near_duplicates", threshold=threshold, column=column)

    def repeat(self, times: str) -> "Table":
        """Each row as often as the number in the column `times` says, which may have a fraction: the SQL operator
        `repeat_rows`."""
        return self._of_rows("repeat_rows", times=times)

    def balance(self, label: str, *, to: Literal["largest", "mean", "smallest"] = "largest") -> "Table":
        """Rows repeated so that each value of the column `label` is as frequent as the largest class: a class with a
        third of its rows comes three times in each epoch, each time with other draws. Rows of a class come about as
        often as the `"mean"` class or the `"smallest"` one instead, which leaves rows out, others in each epoch. This
        reads the column once, now."""
        names = list(self.columns)
        counts = self.value_counts(label)
        if not counts:
            raise InvalidError(f'no row has a "{label}" to balance', "look at the table: show()")
        sizes = {"largest": max(counts.values()), "mean": counts.rows / len(counts), "smallest": min(counts.values())}
        size = sizes.get(arguments.choice("to", to, list(sizes)) or "")
        if size is None:
            raise arguments.refuse("to", "'largest', 'mean' or 'smallest'", to)
        times = by_value(label, {value: repr(size / count) for value, count in counts.items()}, otherwise="1.0")
        added = "times"
        while added in names:
            added += "_"
        return self.with_column(added, times).repeat(added).select(*(quoted(name) for name in names))

    def pair_rows(
        self, *, same: str | None = None, different: str | None = None, prefix: str = "partner_"
    ) -> "Table":
        """Each row with the columns of another row of its window, for pairs and triplets: the SQL operator
        `pair_rows`."""
        return self._of_rows("pair_rows", same=same, different=different, prefix=prefix)

    def sample_negatives(self, column: str, count: int = 1) -> "Table":
        """Each row with values of `column` from other rows of its window, in a column "negatives": the SQL operator
        `sample_negatives`."""
        return self._of_rows("sample_negatives", column=column, count=arguments.count("count", count, 1))

    def cache(self) -> "Table":
        """See `Pipeline.cache`."""
        return self.pipeline().cache()

    def materialize(
        self,
        to: str | os.PathLike[str],
        *,
        progress: Callable[[JobProgress], None] | None = None,
        **options: Unpack[MaterializeOptions],
    ) -> Materialized:
        """See `Pipeline.materialize`."""
        return self.pipeline().materialize(to, progress=progress, **options)

    def _of_rows(self, operator: str, **constants: Any) -> "Table":
        chosen = {name: value for name, value in constants.items() if value is not None}
        given = ", ".join(f"{name} => {literal(name, value)}" for name, value in chosen.items())
        return self._other(f"{operator}(({self.sql}), {given})")

    def _other(self, source: str, **parts: Any) -> "Table":
        return Table(self._session, source, held=self._held, **parts)

    def _with(self, source: str, *others: "Table") -> "Table":
        held = (*self._held, *(frame for other in others for frame in other._held))
        return Table(self._session, source, held=held)

    def _nested(self) -> "Table":
        return self._other(self._from())

    def _from(self, alias: str = "input") -> str:
        is_plain = self._columns is None and not self._conditions
        return self._source if is_plain else f"({self.sql}) AS {quoted(alias)}"

    def pipeline(self) -> "Pipeline":
        """The query as a pipeline, checked and compiled."""
        return self._session._define(self.sql)

    @property
    def columns(self) -> dict[str, str]:
        """Names and types of the columns."""
        return self.pipeline().columns

    @property
    def schema(self) -> Any:
        """See `Pipeline.schema`."""
        return self.pipeline().schema

    def explain(self, **options: Unpack[FeedOptions]) -> "Text":
        """See `Pipeline.explain`."""
        return self.pipeline().explain(**options)

    def preview(self, rows: int = 8, **options: Unpack[FeedOptions]) -> "Preview":
        """See `Pipeline.preview`."""
        return self.pipeline().preview(rows, **options)

    def _looked_at(self) -> "Pipeline":
        return self.pipeline()

    def _load(self, options: dict[str, Any]) -> "Loader[Any]":
        return self.pipeline()._load(options)

    def __repr__(self) -> str:
        return f"<forebay.Table {self.sql}>"


def with_tables(query: str, tables: dict[str, Table]) -> str:
    """Returns the query with `tables` defined by name, in a WITH clause."""
    if not tables:
        return query
    named = ", ".join(f"{quoted(name)} AS ({table.sql})" for name, table in tables.items())
    begin = re.match(r"(\s*(--[^\n]*\n|/\*.*?\*/))*\s*with(\s+recursive)?\b", query, re.DOTALL | re.IGNORECASE)
    if begin:
        return f"{query[:begin.end()]} {named},{query[begin.end():]}"
    return f"WITH {named}\n{query}"
