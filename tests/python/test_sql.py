"""Tables and previews by Flight SQL, with ADBC's driver: see docs/flight.md."""

import adbc_driver_flightsql.dbapi as flightsql
import pytest

from support import Server, photographs


@pytest.fixture(scope="module")
def cursor(server):
    with flightsql.connect(server.uri, autocommit=True) as connection, connection.cursor() as cursor:
        yield cursor


def rows(cursor, query):
    cursor.execute(query)
    return cursor.fetch_arrow_table()


def test_tools_see_pipelines_and_tables(server):
    with flightsql.connect(server.uri, autocommit=True) as connection:
        assert connection.adbc_get_info()["vendor_name"] == "Forebay"
        assert connection.adbc_get_table_types() == ["PIPELINE", "TABLE"]
        [catalog] = connection.adbc_get_objects(depth="tables").read_all().to_pylist()
    found = {
        (schema["db_schema_name"], table["table_name"], table["table_type"])
        for schema in catalog["catalog_db_schemas"]
        for table in schema["db_schema_tables"]
    }
    assert found == {("pipelines", "photos", "PIPELINE"), ("tables", "photos", "TABLE")}


def test_a_pipeline_shows_processed_samples(cursor):
    table = rows(cursor, "SELECT * FROM photos LIMIT 3")
    assert table.column_names == ["image", "label", "path"]
    assert table.num_rows == 3
    assert table.column("image").type.shape == [224, 224, 3]


def test_a_table_shows_its_rows(cursor):
    table = rows(cursor, "select * from tables.photos")
    assert table.column_names == ["bytes", "path", "size", "label"]
    assert table.column("path").to_pylist() == photographs()


@pytest.mark.parametrize(
    "query, phrase",
    [
        ("SELECT path FROM photos", "only whole tables and pipelines can be previewed"),
        ("SELECT repeat('x', 1000000000) FROM photos", "only whole tables and pipelines can be previewed"),
        ("SELECT * FROM nothing", 'table "nothing" not found'),
        ("SELECT * FROM pipelines.nothing", 'there is no pipeline "nothing"'),
        ("DROP TABLE photos", "only whole tables and pipelines can be previewed"),
    ],
)
def test_what_cannot_be_looked_at_is_refused(cursor, query, phrase):
    with pytest.raises(flightsql.Error, match=phrase):
        rows(cursor, query)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """A server of a table of 25,000 rows, of which one statement returns 20,000 at most."""
    folder = tmp_path_factory.mktemp("numbers")
    (folder / "numbers.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(25_000)))
    script = folder / "numbers.sql"
    script.write_text(
        "CREATE EXTERNAL TABLE numbers STORED AS CSV LOCATION 'numbers.csv';\n"
        "CREATE PIPELINE p WITH (shuffle = false) AS SELECT n FROM numbers;\n"
    )
    with Server(script, "--sql-rows-limit", "20000") as server:
        with flightsql.connect(server.uri, autocommit=True) as connection, connection.cursor() as cursor:
            yield cursor


@pytest.mark.parametrize("limit", [0, 1, 15_000, 20_000])
def test_a_limit_is_honoured(numbers, limit):
    assert rows(numbers, f"SELECT * FROM p LIMIT {limit}").column("n").to_pylist() == list(range(limit))


@pytest.mark.parametrize("query", ["SELECT * FROM p", "SELECT * FROM p LIMIT 20001", "SELECT * FROM tables.numbers"])
def test_a_result_is_never_cut_without_a_sign(numbers, query):
    with pytest.raises(flightsql.Error, match="more rows than one statement returns: 20000"):
        rows(numbers, query)


def test_a_result_within_the_servers_limit_is_whole(cursor):
    assert rows(cursor, "SELECT * FROM tables.photos LIMIT 50000").num_rows == len(photographs())


@pytest.fixture(scope="module")
def queries(tmp_path_factory):
    """A server whose clients may run queries, with a table of 25,000 rows."""
    folder = tmp_path_factory.mktemp("queries")
    (folder / "numbers.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(25_000)))
    script = folder / "numbers.sql"
    script.write_text(
        "CREATE EXTERNAL TABLE numbers STORED AS CSV LOCATION 'numbers.csv';\n"
        "CREATE PIPELINE p WITH (shuffle = false) AS SELECT n FROM numbers;\n"
    )
    with Server(script, "--sql-queries", "--sql-rows-limit", "20000", "--root", folder / "root") as server:
        yield server


def test_a_server_that_lets_clients_query_runs_any_query(queries):
    with flightsql.connect(queries.uri, autocommit=True) as connection, connection.cursor() as cursor:
        table = rows(cursor, "SELECT n % 3 AS r, count(*) AS rows, max(n) AS most FROM numbers GROUP BY n % 3 ORDER BY r")
        assert table.to_pydict() == {"r": [0, 1, 2], "rows": [8334, 8333, 8333], "most": [24999, 24997, 24998]}
        assert rows(cursor, "SELECT n FROM numbers ORDER BY n DESC LIMIT 2").column("n").to_pylist() == [24999, 24998]
        assert rows(cursor, "SELECT * FROM p LIMIT 2").column("n").to_pylist() == [0, 1]
        with pytest.raises(flightsql.Error, match="more rows than one statement returns: 20000"):
            rows(cursor, "SELECT n + 1 AS m FROM numbers")
        for query, phrase in [
            ("SELECT nothing FROM numbers", 'column "nothing" not found'),
            ("DROP TABLE numbers", "not one query"),
            ("SELECT 1; SELECT 2", "not one query"),
            ("CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'numbers.csv'", "not one query"),
        ]:
            with pytest.raises(flightsql.Error, match=phrase):
                rows(cursor, query)


def test_a_server_runs_two_queries_at_a_time(queries):
    slow = "SELECT sum(a.n * b.n % 7) AS s FROM numbers a CROSS JOIN numbers b"
    with flightsql.connect(queries.uri, autocommit=True) as connection:
        with connection.cursor() as one, connection.cursor() as other, connection.cursor() as third:
            # Readers of rows that have not come yet hold their queries.
            readers = []
            for cursor in [one, other]:
                cursor.execute(slow)
                readers.append(cursor.fetch_record_batch())
            with pytest.raises(flightsql.Error, match="other queries are running"):
                rows(third, "SELECT count(*) AS n FROM numbers")
