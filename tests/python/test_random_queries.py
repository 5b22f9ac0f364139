"""Queries that a seed draws, in a short form: see `random_queries.py` for as many as one likes."""

import itertools
from types import SimpleNamespace

import pytest

import random_queries
from query_tree import Column, Drawn, Relation, Select
from random_queries import Broken, Tally, Workplace, check, check_group, check_refusal, compare

SEED = 21
SHORT = 8


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    print(f"seed {SEED}")
    with Workplace(tmp_path_factory.mktemp("queries"), SEED) as place:
        yield place


def test_queries_give_duckdbs_rows_and_the_same_bytes_however_they_run(place):
    tally = Tally()
    check_group(place, range(SHORT), tally)
    assert tally.is_good, tally
    assert tally.did["compared"] > SHORT / 2 and tally.did["served"] > SHORT / 2, tally


def test_a_seed_draws_the_same_queries(place, tmp_path):
    with Workplace(tmp_path, SEED) as other:
        for number in range(1000, 1010):
            assert other.begin(number).drawn == place.begin(number).drawn


def query(*kinds: str, order_by: tuple[str, ...] = ()) -> Drawn:
    items = tuple(("x", Column(f"c{number}", kind)) for number, kind in enumerate(kinds))
    return Drawn(Select(items, Relation("a", "t", (), 9, None, False), 9, order_by=order_by))


ROWS = [(1, 0.1, "a", [1, None]), (1, 0.2, None, None), (None, None, "", [])]


def test_rows_are_compared_as_bags_and_sums_with_a_tolerance():
    drawn = query("integer", "about", "text", "list")
    for rows in itertools.permutations(ROWS):
        compare(drawn, rows, ROWS)
    compare(drawn, [(1, 0.1 + 1e-13, "a", [1, None]), *ROWS[1:]], ROWS)


@pytest.mark.parametrize(
    "rows",
    [
        ROWS[1:],
        [*ROWS, ROWS[0]],
        [ROWS[0], ROWS[0], ROWS[2]],
        [(1, 0.1001, "a", [1, None]), *ROWS[1:]],
        [(1, None, "a", [1, None]), *ROWS[1:]],
        [(1, 0.1, "", [1, None]), *ROWS[1:]],
        [(1, 0.1, "a", [None, 1]), *ROWS[1:]],
    ],
)
def test_other_rows_are_found(rows):
    with pytest.raises(AssertionError, match="DuckDB"):
        compare(query("integer", "about", "text", "list"), rows, ROWS)


def test_an_order_counts():
    compare(query("integer"), [(2,), (1,)], [(1,), (2,)])
    with pytest.raises(AssertionError, match="row 0"):
        compare(query("integer", order_by=("x",)), [(2,), (1,)], [(1,), (2,)])


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (2, "error: no\n --> a.sql:1:2"),
        (2, "error: no\nhint: yes"),
        (1, "error: no\n --> a.sql:1:2\nhint: yes"),
        (2, "thread panicked\nerror: no\n --> a.sql:1:2\nhint: yes"),
    ],
)
def test_a_bad_refusal_is_found(code, text):
    check_refusal(SimpleNamespace(returncode=2, stderr="error: no\n --> a.sql:1:2\nhint: yes"))
    with pytest.raises(AssertionError):
        check_refusal(SimpleNamespace(returncode=code, stderr=text))


def test_a_failing_query_becomes_small(place, monkeypatch):
    def no_query_has_a_full_join(trial):
        assert "FULL JOIN" not in trial.drawn.select()

    monkeypatch.setattr(random_queries, "CHECKS", [no_query_has_a_full_join])
    trial = next(trial for trial in map(place.begin, itertools.count(2000)) if "FULL JOIN" in trial.drawn.select())
    with pytest.raises(Broken) as broken:
        check(trial)
    smallest = place.simplest(trial, broken.value)
    assert "FULL JOIN" in smallest.drawn.select() and not smallest.drawn.operators and not smallest.drawn.options
    assert smallest.drawn.select().count("SELECT") <= 3, smallest.drawn.select()
