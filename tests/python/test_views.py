"""Texts that only operators read come from Parquet as views. Results do not depend on this."""

import random

import pyarrow
import pyarrow.parquet
import pytest

import forebay

ROWS = 5_000
VOCABULARY = [f"{n:08x}" for n in range(0, 4_000_000, 7_919)]


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    draws = random.Random(11)
    texts = [draws.choice(VOCABULARY) if draws.random() > 0.1 else None for _ in range(ROWS)]
    columns = {"n": list(range(ROWS)), "c": texts, "d": texts[::-1], "length": [draws.randrange(1, 9) for _ in texts]}
    path = tmp_path_factory.mktemp("clicks") / "clicks.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=700)
    return path, columns


def read(query, path, **options):
    loader = forebay.Session(threads=2).sql(query, clicks=path).load(batch_size=64, format="arrow", **options)
    rows = [row for batch in loader for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row["n"])


def number(text):
    return None if text is None else int(text, 16)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "query, of",
    [
        ("SELECT n, hex_to_int(c) AS x FROM clicks", lambda c, d: number(c)),
        ("SELECT n, hex_to_int(c) AS x, c FROM clicks", lambda c, d: number(c)),
        ("SELECT n, hex_to_int(upper(c)) AS x, hex_to_int(d) AS y FROM clicks", lambda c, d: number(c)),
        ("SELECT n, coalesce(hex_to_int(c), hex_to_int(d)) AS x FROM clicks", lambda c, d: number(c or d)),
        ("SELECT n, positive_mod(hex_to_int(c), 10) AS x FROM clicks", lambda c, d: c and number(c) % 10),
        ("SELECT n, x FROM (SELECT n, hex_to_int(c) AS x, d FROM clicks) AS inner_rows", lambda c, d: number(c)),
        ("SELECT n, CASE WHEN d IS NULL THEN 0 ELSE hex_to_int(c) END AS x FROM clicks", lambda c, d: d and number(c) or (0 if d is None else None if c is None else number(c))),
        (
            f"SELECT n, vocab_apply(c, vocabulary => {VOCABULARY}, other => -1) AS x FROM clicks",
            lambda c, d: None if c is None else VOCABULARY.index(c),
        ),
    ],
)
def test_values_are_the_same(clicks, query, of, shuffle):
    path, columns = clicks
    rows = read(query, path, shuffle=shuffle, seed=3)
    assert [row["x"] for row in rows] == [of(c, d) for c, d in zip(columns["c"], columns["d"])]
    if "y" in rows[0]:
        assert [row["y"] for row in rows] == [number(d) for d in columns["d"]]
    if "c" in rows[0]:
        assert [row["c"] for row in rows] == columns["c"]


def test_filters_and_joins_see_texts(clicks):
    path, columns = clicks
    chosen = VOCABULARY[:100]
    listed = ", ".join(f"'{text}'" for text in chosen)
    rows = read(f"SELECT n, hex_to_int(c) AS x FROM clicks WHERE c IN ({listed})", path)
    assert [row["x"] for row in rows] == [number(c) for c in columns["c"] if c in chosen]
    names = pyarrow.table({"c": chosen, "name": [f"name {n}" for n in range(100)]})
    loader = (
        forebay.Session(threads=2)
        .sql("SELECT n, hex_to_int(c) AS x, name FROM clicks JOIN names USING (c)", clicks=path, names=names)
        .load(batch_size=64, format="arrow")
    )
    rows = sorted((row["n"], row["x"], row["name"]) for batch in loader for row in batch.to_pylist())
    kept = [(n, c) for n, c in enumerate(columns["c"]) if c in chosen]
    assert rows == [(n, number(c), f"name {chosen.index(c)}") for n, c in kept]


def test_a_bad_text_is_a_bad_row(tmp_path):
    table = pyarrow.table({"n": [0, 1, 2, 3], "c": ["0000000a", "none", None, "0000000b"]})
    pyarrow.parquet.write_table(table, tmp_path / "bad.parquet")
    query = "SELECT n, hex_to_int(c) AS x FROM clicks"
    with pytest.raises(forebay.DataError, match='"none" is not one to sixteen hexadecimal digits'):
        read(query, tmp_path / "bad.parquet")
    rows = read(query, tmp_path / "bad.parquet", on_error="skip")
    assert [(row["n"], row["x"]) for row in rows] == [(0, 10), (2, None), (3, 11)]
