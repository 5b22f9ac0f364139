"""Queries that a seed draws, over small tables that it draws too. `random_queries.py` runs them.

A query is a *core* in the SQL that Forebay and DuckDB share, and operators above it that only Forebay has. The core is
written so that both must give the same rows. What these rules leave out is not compared:

- Nulls have their place in every ORDER BY, since the defaults differ (docs/sql-differences.md).
- Integers are never divided, `%` has a constant that is not 0, and floats have an exponent, since DuckDB takes
  numbers with a point for decimals.
- Floats that are compared, grouped or ordered are read from a table, or multiples of small powers of two, whose sums
  are exact in any order. Other sums and averages are only selected: their kind is "about".
- -0 is never made: it is 0 in keys but not in PARTITION BY.
- What depends on the order of rows orders them by columns that no two different rows share. *Tied* queries do not.
  Their rows depend on places in files, which DuckDB does not promise, so only Forebay's runs are compared.
- CSV has no empty texts, which are nulls.
- Files of images are passed through the core, and read by operators above it.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

from query_tables import WORDS, Table
from query_tree import Column, Combined, Drawn, Join, Query, Relation, Select

COMPARABLE = ("integer", "wide", "float", "price", "text", "flag", "date")
"""Kinds of columns that keys and orders may have. "wide" integers are too large to multiply; "price" has exact values
with inexact sums."""

# More rows than these are not read by a query, joined by a node, or delivered.
JOINED_ROWS = 60_000
SAMPLES = 4_000
# A drawn core that gives no rows, or too many, is drawn again.
DRAWS = 200


class Drawer:
    """Draws the parts of one query."""

    def __init__(self, draw: random.Random, tables: dict[str, Table], is_tied: bool):
        self.draw = draw
        self.tables = tables
        self.is_tied = is_tied
        self.numbers = itertools.count(1)

    def chance(self, probability: float) -> bool:
        return self.draw.random() < probability

    def named(self, kind: str) -> Column:
        return Column(f"c{next(self.numbers)}", kind)

    # ------------------------------------------------------------------------------------------- relations

    def table(self, name: str | None = None) -> Relation:
        name = name or self.draw.choice(["a", "a", "a", "b", "b", "c", "c", "d", "pictures"])
        table, alias = self.tables[name], f"t{next(self.numbers)}"
        columns = tuple(Column(f"{alias}.{column}", kind) for column, kind in table.kinds.items())
        key = tuple(f"{alias}.{column}" for column in table.key or table.kinds)
        return Relation(name, alias, columns, table.rows.num_rows, key, bool(table.key))

    def of_query(self, query: Query) -> Relation:
        alias = f"t{next(self.numbers)}"
        columns = tuple(replace(column, name=f"{alias}.{column.name}") for column in query.columns)
        key = tuple(column.name for column in columns) if all(column.kind in COMPARABLE for column in columns) else None
        return Relation(query, alias, columns, query.rows, key, False)

    def relation(self, depth: int, nested: float = 0.6) -> Relation:
        return self.of_query(self.query(depth - 1)) if depth and self.chance(nested) else self.table()

    def source(self, depth: int) -> "Source":
        source = Source(self.relation(depth))
        for _ in range(self.draw.choice([0, 0, 0, 1, 1, 2])):
            self.join(source, self.relation(depth, 0.4))
        return source

    def join(self, source: "Source", other: Relation) -> None:
        """Adds a join, unless it could have too many rows."""
        kind = self.draw.choice(["", "", "LEFT", "LEFT", "RIGHT", "FULL", "CROSS"])
        pairs = [
            (mine, theirs)
            for mine in source.columns
            for theirs in other.columns
            if mine.kind == theirs.kind and mine.kind in ("integer", "text")
        ]
        most = source.rows * other.rows
        if kind == "CROSS":
            if most <= JOINED_ROWS:
                source.add(Join("CROSS", other), most)
        elif pairs:
            mine, theirs = self.draw.choice(pairs)
            rows = max(most // (30 if mine.kind == "integer" else 8), source.rows, other.rows)
            if rows <= JOINED_ROWS:
                source.add(self.matched(kind, source, other, mine, theirs), rows)

    def matched(self, kind: str, source: "Source", other: Relation, mine: Column, theirs: Column) -> Join:
        column = mine.name.split(".")[1]
        if kind in ("", "LEFT") and not source.joins and column == theirs.name.split(".")[1] and self.chance(0.3):
            return Join(kind, other, using=column)
        conditions = [f"{mine.name} = {theirs.name}"]
        if self.chance(0.25):
            conditions.append(self.condition(other.columns if kind == "LEFT" else (*source.columns, *other.columns)))
        return Join(kind, other, tuple(conditions))

    # ----------------------------------------------------------------------------------------- expressions

    def one_of(self, columns: Sequence[Column], *kinds: str) -> str | None:
        names = [column.name for column in columns if column.kind in kinds]
        return self.draw.choice(names) if names else None

    def literal(self, kind: str) -> str:
        if kind == "text":
            return "'" + self.draw.choice(WORDS).replace("'", "''") + "'"
        return {
            "integer": str(self.draw.randrange(-10, 60)),
            "wide": str(self.draw.randrange(-10**10, 10**10)),
            "float": f"{self.draw.randrange(-40, 40)}e0",
            "price": f"{self.draw.randrange(100)}e0",
            "flag": self.draw.choice(["true", "false"]),
            "date": f"DATE '2024-{self.draw.randrange(1, 13):02}-15'",
        }[kind]

    def value(self, columns: Sequence[Column], kind: str) -> str:
        """An expression of a kind. Without a column to read, it is a constant."""
        name = self.one_of(columns, kind)
        if kind == "integer" and self.chance(0.15):
            return self.integer_of_other(columns)
        if kind == "flag" and self.chance(0.5):
            return f"({self.condition(columns)})"
        if name is None:
            return self.literal(kind)
        if self.chance(0.5):
            return name
        literal, other = self.literal(kind), self.one_of(columns, kind)
        general = [
            f"coalesce({name}, {literal})",
            f"nullif({name}, {literal})",
            f"CASE WHEN {self.condition(columns)} THEN {name} ELSE {other} END",
            f"CASE WHEN {self.condition(columns)} THEN {literal} WHEN {self.condition(columns)} THEN {name} END",
        ]
        special = {
            "integer": [
                f"{name} + {literal}",
                f"{name} - {other}",
                f"{name} * {self.draw.randrange(2, 6)}",
                f"{name} % {self.draw.randrange(2, 9)}",
                f"abs({name})",
                f"greatest({name}, {other})",
                f"least({name}, {literal}, {other})",
            ],
            "float": [f"{name} + {literal}", f"{name} - {other}", f"{name} * 5e-1", f"abs({name})", f"floor({name})"],
            "text": [
                f"upper({name})",
                f"lower({name})",
                f"substr({name}, {self.draw.randrange(1, 4)}, {self.draw.randrange(1, 4)})",
                f"left({name}, {self.draw.randrange(1, 4)})",
                f"replace({name}, 'e', '..')",
                f"trim({name})",
                f"concat({name}, '-', {other})",
                f"{name} || {literal}",
                f"concat({name}, {self.value(columns, 'integer')})",
            ],
        }
        return self.draw.choice(general + 2 * special.get(kind, []))

    def integer_of_other(self, columns: Sequence[Column]) -> str:
        text, day, flag = (self.one_of(columns, kind) for kind in ("text", "date", "flag"))
        return self.draw.choice(
            [
                f"length({text or self.literal('text')})",
                f"strpos({text or self.literal('text')}, 'e')",
                f"CAST(date_part('month', {day or self.literal('date')}) AS BIGINT)",
                f"CAST({flag or self.literal('flag')} AS BIGINT)",
            ]
        )

    def condition(self, columns: Sequence[Column], depth: int = 1) -> str:
        if depth and self.chance(0.3):
            one, other = (self.condition(columns, depth - 1) for _ in range(2))
            return self.draw.choice([f"({one} AND {other})", f"({one} OR {other})", f"NOT ({one})"])
        comparable = [column for column in columns if column.kind in COMPARABLE]
        if not comparable:
            return self.literal("flag")
        column = self.draw.choice(comparable)
        name, kind, literal = column.name, column.kind, self.literal(column.kind)
        other = self.one_of(columns, kind)
        choices = [
            f"{name} {self.draw.choice(['<', '<=', '>', '>=', '<>'])} {literal}",
            f"{name} {self.draw.choice(['=', '<', '>='])} {other}",
            f"{name} IS {self.draw.choice(['', 'NOT '])}NULL",
            f"{name} {self.draw.choice(['', 'NOT '])}IN ({literal}, {self.literal(kind)}, {self.literal(kind)})",
        ]
        if kind == "text":
            choices += [f"{name} LIKE {self.draw.choice(['%e%', 'r%', '%d', '_e%'])!r}", f"length({name}) > 3"]
        elif kind == "flag":
            choices += [name, f"NOT {name}"]
        else:
            choices += [f"{name} BETWEEN {literal} AND {other}"]
        if kind == "integer":
            choices += [f"{name} % {self.draw.randrange(2, 5)} = {self.draw.randrange(3)}"] * 2
        return self.draw.choice(choices)

    # ------------------------------------------------------------------------------------------ subqueries

    def search(self, columns: Sequence[Column]) -> str:
        """A condition with a subquery."""
        inner = self.table(self.draw.choice("abcd"))
        where = [self.condition(inner.columns)] if self.chance(0.5) else []
        mine, theirs = self.one_of(columns, "integer"), self.one_of(inner.columns, "integer")
        negation = self.draw.choice(["", "", "NOT "])
        if mine is None or theirs is None or self.chance(0.2):
            return f"{self.value(columns, 'integer')} >= ({self.scalar(inner, where)})"
        if self.chance(0.4):
            if self.chance(0.2):
                word, outer = self.draw.choice(["<", ">="]), self.one_of(columns, "integer")
                where.append(f"{self.one_of(inner.columns, 'integer')} {word} {outer}")
            return f"{negation}EXISTS (SELECT 1 FROM {inner.sql()}{all_of([f'{theirs} = {mine}', *where])})"
        grouped = f" GROUP BY {theirs} HAVING count(*) > {self.draw.randrange(9)}" if self.chance(0.3) else ""
        return f"{mine} {negation}IN (SELECT {theirs} FROM {inner.sql()}{all_of(where)}{grouped})"

    def scalar(self, inner: Relation, where: Sequence[str]) -> str:
        name = self.one_of(inner.columns, "integer")
        aggregate = self.draw.choice(["count(*)", f"max({name})", f"min({name})", f"count(DISTINCT {name})"])
        return f"SELECT {aggregate} FROM {inner.sql()}{all_of(where)}"

    def scalar_of(self, columns: Sequence[Column]) -> str:
        """A subquery as a value. Some refer to the outer query."""
        inner = self.table(self.draw.choice("abcd"))
        where = [self.condition(inner.columns)] if self.chance(0.3) else []
        mine = self.one_of(columns, "integer")
        if mine and self.chance(0.5):
            where.append(f"{self.one_of(inner.columns, 'integer')} = {mine}")
        return f"({self.scalar(inner, where)})"

    def where(self, source: "Source") -> tuple[str, ...]:
        conditions = [self.condition(source.columns) for _ in range(self.draw.choice([0, 0, 1, 1, 2]))]
        if self.chance(0.2):
            conditions.append(self.search(source.columns))
        return tuple(conditions)

    # --------------------------------------------------------------------------------------------- selects

    def query(self, depth: int) -> Query:
        weights = {
            self.plain: 3,
            self.aggregate: 5,
            self.windows: 4,
            self.top: 3,
            self.distinct: 1,
            self.combined: 2,
            self.unnested: 0.5,
        }
        return self.draw.choices(list(weights), list(weights.values()))[0](depth)

    def columns(self, source: "Source", most: int = 5) -> list[tuple[str, Column]]:
        kinds = sorted({column.kind for column in source.columns if column.kind in COMPARABLE}) or ["integer"]
        drawn = [self.draw.choice(kinds) for _ in range(self.draw.randrange(1, most))]
        items = [(self.value(source.columns, kind), self.named(kind)) for kind in drawn]
        passed = [column for column in source.columns if column.kind not in COMPARABLE and self.chance(0.5)]
        # Files are large.
        small = [column for column in passed if column.kind != "image" or source.rows < 600]
        return items + [(column.name, self.named(column.kind)) for column in small]

    def plain(self, depth: int) -> Select:
        source = self.source(depth)
        items = self.columns(source)
        if self.chance(0.15):
            items.append((self.scalar_of(source.columns), self.named("integer")))
        limit = f"LIMIT {self.draw.randrange(1, 300)}" if self.is_tied and self.chance(0.4) else ""
        return source.select(items, where=self.where(source), limit=limit)

    def distinct(self, depth: int) -> Select:
        source = self.source(depth)
        items = [item for item in self.columns(source) if item[1].kind in COMPARABLE]
        return source.select(items, where=self.where(source), distinct=True)

    def aggregate(self, depth: int) -> Select:
        source = self.source(depth)
        keys = self.keys(source)
        items = [*keys, *(self.aggregated(source.columns) for _ in range(self.draw.randrange(1, 4)))]
        texts = [text for text, _ in keys]
        having = ""
        if keys and self.chance(0.25):
            having = self.draw.choice(["count(*) > 1", "count(*) % 3 <> 0", f"min({texts[0]}) IS NOT NULL"])
        rows = min(source.rows, 4000) if keys else 1
        return source.select(items, where=self.where(source), group_by=self.group_by(texts), having=having, rows=rows)

    def keys(self, source: "Source") -> list[tuple[str, Column]]:
        kinds = [column.kind for column in source.columns if column.kind in ("integer", "text", "date", "flag")]
        drawn = self.draw.sample(kinds, min(self.draw.randrange(3), len(kinds)))
        keys = [(self.value(source.columns, kind), self.named(kind)) for kind in drawn]
        # A constant would be the number of a column.
        return [key for key in keys if any(column.name in key[0] for column in source.columns)]

    def group_by(self, keys: list[str]) -> str:
        listed = ", ".join(keys)
        if not keys or self.chance(0.7):
            return listed
        return self.draw.choice([f"ROLLUP ({listed})", f"CUBE ({listed})", f"GROUPING SETS (({listed}), ())"])

    def aggregated(self, columns: Sequence[Column]) -> tuple[str, Column]:
        text, kind = self.aggregate_of(columns)
        if self.chance(0.25):
            text += f" FILTER (WHERE {self.condition(columns)})"
        return text, self.named(kind)

    def aggregate_of(self, columns: Sequence[Column]) -> tuple[str, str]:
        comparable = [column for column in columns if column.kind in COMPARABLE]
        if not comparable or self.chance(0.2):
            return "count(*)", "integer"
        column = self.draw.choice(comparable)
        name, kind = column.name, column.kind
        choices = [
            (f"count({name})", "integer"),
            (f"count(DISTINCT {name})", "integer"),
            (f"min({name})", kind),
            (f"max({name})", kind),
        ]
        if kind in ("integer", "wide", "float", "price"):
            sums = {"float": "float", "price": "about"}.get(kind, "wide")
            choices += [(f"sum({name})", sums), (f"sum(DISTINCT {name})", sums)]
            choices += [(f"avg({name})", "about"), (f"stddev({name})", "about")]
        if kind == "text":
            choices.append((f"string_agg({name}, ',' ORDER BY {name})", "text"))
        if kind == "integer":
            choices.append((f"array_agg({name} ORDER BY {name} NULLS LAST)", "list"))
        if kind == "flag":
            choices = [(f"count({name})", "integer"), (f"bool_and({name})", "flag"), (f"bool_or({name})", "flag")]
        return self.draw.choice(choices)

    def order(self, columns: Sequence[Column], key: Sequence[str], most: int = 3) -> list[str]:
        """The terms of an ORDER BY: some columns, and then those that leave no ties."""
        names = [column.name for column in columns if column.kind in COMPARABLE]
        terms = [
            f"{name} {self.draw.choice(['', 'DESC '])}NULLS {self.draw.choice(['FIRST', 'LAST'])}"
            for name in self.draw.sample(names, min(self.draw.randrange(1, most), len(names)))
        ]
        return terms + [f"{name} NULLS LAST" for name in key]

    def key(self, source: "Source") -> tuple[str, ...] | None:
        """The columns that leave no ties; none for a tied query. None if ties cannot be helped."""
        return () if self.is_tied and self.chance(0.7) else source.key

    def top(self, depth: int) -> Select:
        source = self.source(depth)
        key = self.key(source)
        if key is None:
            return self.plain(depth)
        items, order = self.columns(source), tuple(self.order(source.columns, key))
        offset = f" OFFSET {self.draw.randrange(40)}" if self.chance(0.3) else ""
        limit = f"LIMIT {self.draw.choice([1, 10, 100, 1000])}{offset}" if self.chance(0.8) else ""
        return source.select(items, where=self.where(source), order_by=order, limit=limit)

    def windows(self, depth: int) -> Select:
        source = self.source(depth)
        key = self.key(source)
        items = [*self.columns(source, most=4), self.window(source, key)]
        # Which of several equal rows gets the first number by one order and by another depends on places.
        second = key if source.is_unique or self.is_tied else None
        items += [self.window(source, second)] * self.chance(0.5)
        return source.select(items, where=self.where(source), qualify=self.qualify(source, second))

    def qualify(self, source: "Source", key: tuple[str, ...] | None) -> str:
        """A condition on a window function, or none. Without a key, ties are alike."""
        function = self.draw.choice(["rank", "dense_rank"] + ["row_number"] * 2 * (key is not None))
        order = self.ordered(source, key or ())
        if not order or self.chance(0.7):
            return ""
        return f"{function}() OVER ({self.partition(source)}{order}) <= {self.draw.randrange(1, 9)}"

    def partition(self, source: "Source") -> str:
        name = self.one_of(source.columns, "integer", "text", "flag", "date")
        return f"PARTITION BY {name} " if name and self.chance(0.6) else ""

    def ordered(self, source: "Source", key: Sequence[str]) -> str:
        terms = self.order(source.columns, key)
        return f"ORDER BY {', '.join(terms)}" if terms else ""

    def window(self, source: "Source", key: tuple[str, ...] | None) -> tuple[str, Column]:
        if key is None or self.chance(0.3):
            return self.window_of_peers(source)
        over = f"OVER ({self.partition(source)}{self.ordered(source, key)}"
        comparable = [column for column in source.columns if column.kind in COMPARABLE]
        column = self.draw.choice(comparable)
        default = f", {self.draw.randrange(3)}, {self.literal(column.kind)}" if self.chance(0.3) else ""
        simple = [
            ("row_number()", "integer"),
            (f"ntile({self.draw.randrange(2, 9)})", "integer"),
            (f"lag({column.name}{default})", column.kind),
            (f"lead({column.name}{default})", column.kind),
        ]
        if self.chance(0.5):
            text, kind = self.draw.choice(simple)
            return f"{text} {over})", self.named(kind)
        text, kind = self.framed(column)
        return f"{text} {over} {self.frame()})", self.named(kind)

    def framed(self, column: Column) -> tuple[str, str]:
        name, kind = column.name, column.kind
        choices = [
            (f"first_value({name})", kind),
            (f"last_value({name})", kind),
            (f"count({name})", "integer"),
            ("count(*)", "integer"),
        ]
        if kind != "flag":
            choices += [(f"min({name})", kind), (f"max({name})", kind)]
        if kind in ("integer", "wide", "float", "price"):
            sums = {"float": "float", "price": "about"}.get(kind, "wide")
            choices += [(f"sum({name})", sums)] * 3 + [(f"avg({name})", "about")]
        return self.draw.choice(choices)

    def frame(self) -> str:
        before = self.draw.choice(["UNBOUNDED PRECEDING", "1 PRECEDING", "7 PRECEDING", "CURRENT ROW"])
        after = self.draw.choice(["CURRENT ROW", "CURRENT ROW", "2 FOLLOWING", "UNBOUNDED FOLLOWING"])
        return f"ROWS BETWEEN {before} AND {after}"

    def window_of_peers(self, source: "Source") -> tuple[str, Column]:
        """A window function that treats ties alike."""
        over = f"OVER ({self.partition(source)}{self.ordered(source, ())})"
        name = self.one_of(source.columns, "integer")
        choices = [("count(*)", "integer")]
        if name:
            choices += [(f"sum({name})", "wide"), (f"max({name})", "integer"), (f"count({name})", "integer")]
        if name and self.chance(0.2):
            values = f"RANGE BETWEEN {self.draw.randrange(9)} PRECEDING AND CURRENT ROW"
            over = f"OVER ({self.partition(source)}ORDER BY {name} NULLS LAST {values})"
        elif "ORDER BY" in over:
            choices += [("rank()", "integer"), ("dense_rank()", "integer")]
            choices += [("percent_rank()", "about"), ("cume_dist()", "about")]
        text, kind = self.draw.choice(choices)
        return f"{text} {over}", self.named(kind)

    def combined(self, depth: int) -> Combined:
        kinds = self.draw.choices(["integer", "text", "float", "flag", "date"], k=self.draw.randrange(1, 4))
        first, second = (self.of_kinds(depth, kinds) for _ in range(2))
        return Combined(self.draw.choice(["UNION ALL"] * 4 + ["UNION", "INTERSECT", "EXCEPT"]), first, second)

    def of_kinds(self, depth: int, kinds: Sequence[str]) -> Select:
        source = self.source(depth)
        items = [(self.value(source.columns, kind), self.named(kind)) for kind in kinds]
        return source.select(items, where=self.where(source))

    def unnested(self, depth: int) -> Select:
        """A row for each item of a list."""
        inner = self.table(self.draw.choice("abcd"))
        key, item = self.draw.choice(inner.columns[:3]), self.one_of(inner.columns, "integer")
        listed = f"array_agg({item} ORDER BY {item} NULLS LAST)"
        if self.chance(0.3):
            listed += f" FILTER (WHERE {self.condition(inner.columns)})"
        items = [(key.name, self.named(key.kind)), (listed, self.named("list"))]
        lists = self.of_query(Source(inner).select(items, group_by=key.name))
        first, second = (column.name for column in lists.columns)
        columns = [(first, self.named(key.kind)), (f"unnest({second})", self.named("integer"))]
        return Source(lists).select(columns, rows=inner.rows)


def all_of(conditions: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


class Source:
    """A FROM clause that grows by joins."""

    def __init__(self, relation: Relation):
        self.relation = relation
        self.columns = relation.columns
        self.rows = relation.rows
        self.key = relation.key
        self.is_unique = relation.is_unique
        self.joins: list[Join] = []

    def add(self, join: Join, rows: int) -> None:
        self.joins.append(join)
        self.columns = (*self.columns, *join.relation.columns)
        self.rows = rows
        self.key = None if self.key is None or join.relation.key is None else (*self.key, *join.relation.key)
        self.is_unique = self.is_unique and join.relation.is_unique

    def select(self, items: Sequence[tuple[str, Column]], rows: int | None = None, **clauses) -> Select:
        return Select(tuple(items), self.relation, self.rows if rows is None else rows, tuple(self.joins), **clauses)


# ------------------------------------------------------------------------------------------- what DuckDB lacks

FITTED = {
    "text": ["categorify({})", "categorify({}, start => 0, max_size => 3)"],
    "integer": ["categorify({}, order => 'first_seen')", "standardize({})", "quantile_bucketize({}, 4)"],
    "float": ["standardize({})", "min_max({})", "quantile_bucketize({}, 3)"],
}
ROW_BY_ROW = {
    "text": ["hash_bucket({}, 10)", "md5({})", "word_count({})", "hash_split({}, [0.8, 0.2], seed => 3)"],
    "integer": ["positive_mod({}, 7)", "clamp({}, min => 0, max => 9)", "one_hot(positive_mod({}, 5), 5)"],
    "wide": ["sigrid_hash({}, 5, 100)", "hash_bucket({}, 100)"],
    "float": ["log1p(abs({}))", "fill_null({}, 5)", "bucketize({}, [-5, 0, 5.5])", "cyclic({}, 24)"],
    "price": ["log1p({})", "hash_bucket({}, 8)"],
    "image": ["resize(decode_image({}), 8, 8)", "random_hflip(resize(decode_image({}), 8, 8))"],
}
RANDOM = [
    "random_uniform()",
    "random_int(9)",
    "random_normal(std => 3)",
    "random_choice(['x', 'y', 'z'])",
    "random_uniform(key => 'k') + random_uniform(key => 'k')",
]
OPTIONS = [
    ("shuffle = true, seed = 5", 0.4),
    ("window_rows = 200", 0.3),
    ("join = 'precompute'", 0.15),
]
# What Forebay refuses with reasons of its own, one of each.
ODD = [
    "SELECT max(random_uniform()) AS m FROM a",
    "SELECT DISTINCT g FROM a TABLESAMPLE BERNOULLI (50)",
    "SELECT array_agg(id) AS ids FROM a",
    "SELECT id, k IN (SELECT k FROM b) AS known FROM a",
    "SELECT count(*) AS n FROM a WHERE k IS DISTINCT FROM 3 AND id > 4",
    "SELECT k FROM a EXCEPT ALL SELECT k FROM b",
    "SELECT a.id FROM a NATURAL JOIN b",
    "SELECT g, count(*) AS n FROM a GROUP BY h",
    "SELECT id FROM a ORDER BY random()",
    "SELECT id, sum(x) OVER (ORDER BY id) AS s FROM a WHERE row_number() OVER (ORDER BY id) < 9",
    "SELECT lgo1p(x) AS y FROM (SELECT DISTINCT x FROM a)",
    "SELECT id FROM a ORDER BY categorify(g)",
]


def draw_query(seed: int, number: int, tables: dict[str, Table], duckdb) -> Drawn:
    """Draws a query that gives rows, but not too many, in a connection to DuckDB with the tables."""
    draw = random.Random(f"query {seed} {number}")
    is_tied = draw.random() < 0.15
    odd = draw.choice(ODD) if draw.random() < 0.03 else ""
    options = tuple(option for option, probability in OPTIONS if draw.random() < probability)
    for _ in range(DRAWS):
        core = Drawer(draw, tables, is_tied).query(draw.choice([1, 2, 2]))
        drawn = Drawn(core, options=options, is_tied=is_tied, odd=odd)
        if drawn.columns and is_fit(drawn, duckdb):
            return with_operators(drawn, draw, duckdb)
    raise AssertionError(f"{DRAWS} draws gave no query: seed {seed}, query {number}")


def is_fit(drawn: Drawn, duckdb) -> bool:
    [(rows,)] = duckdb.execute(f"SELECT count(*) FROM ({drawn.core.sql()}) q").fetchall()
    return 1 <= rows <= SAMPLES


def with_operators(drawn: Drawn, draw: random.Random, duckdb) -> Drawn:
    """The query with operators above its columns, and sometimes with a picture for each row."""
    columns = drawn.core.columns
    operators = []
    for kind, templates in ROW_BY_ROW.items():
        calls = calls_of(templates, [column for column in columns if column.kind == kind])
        if calls and (kind == "image" or draw.random() < 0.3):
            operators.append(draw.choice(calls))
    if draw.random() < 0.3:
        operators.append(draw.choice(RANDOM))
    if draw.random() < 0.25:
        fits = fits_of(drawn, duckdb)
        operators += draw.sample(fits, min(2, len(fits)))
    integers = [column.name for column in columns if column.kind == "integer"]
    lookup = ""
    if integers and draw.random() < 0.1:
        lookup = f" LEFT JOIN pictures p ON p.path = concat(q.{draw.choice(integers)} % 5, '.jpg')"
        operators.append(draw.choice(ROW_BY_ROW["image"]).format("p.bytes"))
    return replace(drawn, operators=tuple(operators), lookup=lookup)


def calls_of(templates: Sequence[str], columns: Sequence[Column]) -> list[str]:
    return [template.format(f"q.{column.name}") for column in columns for template in templates]


def fits_of(drawn: Drawn, duckdb) -> list[str]:
    """Calls that are fitted to the rows: to columns with values, which those of a tied query may lack."""
    columns = [column for column in drawn.core.columns if column.kind in FITTED and not drawn.is_tied]
    counts = ", ".join(["count(*)", *(f"count({column.name})" for column in columns)])
    [(_, *values)] = duckdb.execute(f"SELECT {counts} FROM ({drawn.core.sql()}) q").fetchall()
    return [call for column, count in zip(columns, values) if count for call in calls_of(FITTED[column.kind], [column])]
