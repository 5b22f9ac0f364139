"""The column *DuckDB* of docs/sql-differences.md is what DuckDB returns. The Rust tests check the column *Forebay*."""

import duckdb
import pytest

from support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "sql-differences.md").read_text()
# The page says that these follow DuckDB's documentation: they depend on settings, or on the names of columns.
FROM_THE_DOCUMENTATION = ("## Dates, times and time zones", "## Names")


def rows():
    """The expression and DuckDB's result of each row of the page's tables."""
    section = ""
    for line in PAGE.splitlines():
        if line.startswith("## "):
            section = line
        if line.startswith("| `") and section not in FROM_THE_DOCUMENTATION:
            cells = [cell.strip().replace("\x01", "|") for cell in line.strip("|").replace("\\|", "\x01").split("|")]
            yield cells[0].strip("`"), cells[1] if cells[2] == "the same" else cells[2]


def result(expression):
    connection = duckdb.connect()
    connection.execute("""CREATE TABLE t AS SELECT 1 AS id, 'red' AS "Name" """)
    try:
        [(text, is_null)] = connection.execute(
            f"SELECT CAST(x AS VARCHAR), x IS NULL FROM (SELECT {expression} AS x FROM t)"
        ).fetchall()
    except duckdb.Error:
        return "error"
    # The sign of a NaN is the processor's.
    text = text and text.replace("-nan", "nan")
    return "`NULL`" if is_null else f"`{text}`" if text else "(empty)"


@pytest.mark.parametrize(("expression", "expected"), [row for row in rows() if row[1]])
def test_duckdb_returns_what_the_page_says(expression, expected):
    assert result(expression) == expected


def test_the_page_has_many_rows():
    assert len(list(rows())) > 40
