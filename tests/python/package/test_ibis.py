"""Queries that Ibis writes, in the dialect "datafusion": it quotes every name and nests SELECTs."""

import datetime

import ibis
import pyarrow as pa
import pytest

import forebay

CITIES = ["Bern", "Oslo", None]
ROWS = pa.table({
    "n": pa.array(range(12), pa.int64()),
    "price": [n / 2 for n in range(12)],
    "city": [CITIES[n % 3] for n in range(12)],
    "tokens": [[n] * (n % 3) for n in range(12)],
    "when": [datetime.datetime(2020 + n, 1, 1) for n in range(12)],
    "Mixed Case": [n * 10 for n in range(12)],
})
trips = ibis.table(
    {
        "n": "int64",
        "price": "float64",
        "city": "string",
        "tokens": "array<int64>",
        "when": "timestamp",
        "Mixed Case": "int64",
    },
    name="trips",
)


@ibis.udf.scalar.builtin
def log1p(x: float) -> float: ...


@ibis.udf.scalar.builtin
def clamp(x: float, low: float, high: float) -> float: ...


EXPRESSIONS = {
    "the whole table": (trips, ROWS.to_pylist()),
    "filter": (
        trips.filter(trips.price > 3, trips.city.isin(["Bern"])).select("n", half=trips.price / 2),
        [{"n": 9, "half": 2.25}],
    ),
    "a subquery": (
        trips.mutate(double=trips.price * 2, up=trips.city.upper()).filter(lambda t: t.double > 9).drop("tokens", "when", "price"),
        [
            {"n": 10, "city": "Oslo", "Mixed Case": 100, "double": 10.0, "up": "OSLO"},
            {"n": 11, "city": None, "Mixed Case": 110, "double": 11.0, "up": None},
        ],
    ),
    "cases": (
        trips.select(k=ibis.cases((trips.n > 9, 1), else_=0), c=trips.city.fill_null("-"), f=trips.price.cast("float32"))[["k", "c", "f"]],
        [{"k": int(n > 9), "c": CITIES[n % 3] or "-", "f": n / 2} for n in range(12)],
    ),
    "names as written": (
        trips.filter(trips["Mixed Case"] >= 100).select(Sum=trips["Mixed Case"] + 1),
        [{"Sum": 101}, {"Sum": 111}],
    ),
    "a chain": (
        trips.select("n", "price").filter(lambda t: t.n % 2 == 0).mutate(m=lambda t: t.price + 1).filter(lambda t: t.m > 5)
        .rename(renamed="m"),
        [{"n": 10, "price": 5.0, "renamed": 6.0}],
    ),
    "limit": (trips.select("n").limit(3), [{"n": 0}, {"n": 1}, {"n": 2}]),
    "unnest": (trips.filter(trips.n < 3).select("n", item=trips.tokens.unnest()), [{"n": 1, "item": 1}, *[{"n": 2, "item": 2}] * 2]),
    "text and time": (
        trips.filter(trips.city.like("B%") & (trips.when.year() > 2025)).select(y=trips.when.year(), s=trips.city.length()),
        [{"y": 2026, "s": 4}, {"y": 2029, "s": 4}],
    ),
    "operators of Forebay": (
        trips.filter(trips.n == 0).select(l=log1p(trips.price), c=clamp(trips.price - 7, -1.0, 1.0)),
        [{"l": 0.0, "c": -1.0}],
    ),
    "between": (trips.filter(trips.price.between(1, 1.5)).select("n", r=trips.price.round(1)), [{"n": 2, "r": 1.0}, {"n": 3, "r": 1.5}]),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions_are_pipelines(name):
    expression, expected = EXPRESSIONS[name]
    made = forebay.sql(ibis.to_sql(expression, dialect="datafusion"), trips=ROWS)
    assert pa.Table.from_batches(made.load(format="arrow", batch_size=5)).to_pylist() == expected


def test_common_table_expressions_of_other_tools():
    made = forebay.sql(
        """WITH "a" AS (SELECT "t0"."n" AS "k", "t0"."price" FROM "trips" AS "t0" WHERE "t0"."n" > 8),
        "b" AS (SELECT * FROM "a" AS "t1")
        SELECT "t2"."k" FROM (SELECT * FROM "b") AS "t2" WHERE ("t2"."price") < 5.5""",
        trips=ROWS,
    )
    assert [row for batch in made.load(format="numpy") for row in batch["k"]] == [9, 10]


def test_what_no_feed_can_run_is_a_query():
    made = forebay.sql(ibis.to_sql(trips.select("city").distinct(), dialect="datafusion"), trips=ROWS)
    assert isinstance(made, forebay.Query)
    assert set(made.to_arrow()["city"].to_pylist()) == set(ROWS["city"].to_pylist())
