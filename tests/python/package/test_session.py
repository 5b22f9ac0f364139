"""Scripts, queries and tables of a session; previews, plans, traces and statistics."""

import gc
import os
import threading

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import forebay
from feeds import files, numbers, pipeline, printed, range_of, same, values
from support import REPOSITORY


@pytest.fixture
def session(tmp_path):
    return forebay.Session(base=tmp_path, root=tmp_path / "root")


@pytest.fixture
def folder(tmp_path):
    return files(tmp_path / "numbers", count=100)


def trips():
    return pa.table({"n": range_of(20), "zone": [["harbour", "centre"][n % 2] for n in range(20)]})


def test_a_query_is_a_pipeline():
    trip = forebay.sql("SELECT n * 2 AS twice, zone FROM trips", trips=trips())
    assert trip.columns == {"twice": "Int64", "zone": "Utf8"}
    assert values(trip.load(format="arrow"), "twice") == list(range(0, 40, 2))
    assert "twice: Int64" in repr(trip)


@pytest.mark.parametrize(
    "query",
    [
        "  select n from t",
        "-- a comment\nSELECT n FROM t;",
        "/* a */ (SELECT n FROM t)",
        "WITH a AS (SELECT n FROM t) SELECT n FROM a",
    ],
)
def test_queries_are_known_by_their_first_word(query):
    assert forebay.sql(query, t=trips()).columns == {"n": "Int64"}


@pytest.mark.parametrize(
    "query",
    [
        "SELECT twice FROM t WHERE twice > 30",
        "WITH a AS (SELECT twice FROM t) SELECT twice FROM a WHERE twice > 30",
        "-- with\nWith a AS (SELECT * FROM t) SELECT twice FROM a WHERE twice > 30",
    ],
)
def test_a_table_that_was_put_together_can_be_named_in_a_query(query):
    doubled = forebay.table(trips()).select("zone", twice="n * 2")
    assert values(forebay.sql(query, t=doubled).load(format="arrow"), "twice") == [32, 34, 36, 38]
    with pytest.raises(forebay.InvalidError, match='"t" is a forebay.Table, which only a query can name'):
        forebay.sql("CREATE PIPELINE p AS " + query, t=doubled)


def test_a_script_gives_its_last_pipeline(session, folder):
    made = session.sql("""
        CREATE EXTERNAL TABLE numbers STORED AS PARQUET LOCATION 'numbers';
        CREATE PIPELINE small AS SELECT n FROM numbers WHERE n < 10;
        CREATE PIPELINE large AS SELECT n FROM numbers WHERE n >= 90;
    """)
    assert made.name == "large"
    assert session.pipelines() == ["large", "small"]
    assert values(session.load("small", format="arrow")) == list(range(10))
    assert values(session.pipeline("large").load(format="arrow")) == list(range(90, 100))
    assert session.sql("SHOW TABLES") is None


def test_a_script_on_disk_is_loaded_by_its_path(folder, monkeypatch):
    script = folder.parent / "pipelines.sql"
    script.write_text(
        "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 'numbers'; CREATE PIPELINE p AS SELECT n FROM t WHERE n < 5;"
    )
    # Relative locations begin at the script's folder, whatever the working folder.
    for source in (script, str(script)):
        assert values(forebay.load(source, format="arrow")) == list(range(5))


def test_a_script_with_several_pipelines_or_none_says_how_to_choose(folder):
    script = folder.parent / "pipelines.sql"
    table = "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 'numbers';"
    script.write_text(table + "CREATE PIPELINE a AS SELECT n FROM t; CREATE PIPELINE b AS SELECT n FROM t;")
    with pytest.raises(forebay.InvalidError, match="creates 2 pipelines: a, b"):
        forebay.load(script)
    script.write_text(table)
    with pytest.raises(forebay.InvalidError, match="creates no pipeline"):
        forebay.load(script)


def test_settings_of_the_pipeline_are_defaults_and_arguments_override_them(session, folder):
    session.sql("""
        CREATE EXTERNAL TABLE numbers STORED AS PARQUET LOCATION 'numbers';
        CREATE PIPELINE p WITH (shuffle = true, seed = 3, batch_size = 7, drop_last = true) AS SELECT n FROM numbers;
    """)
    loader = session.load("p", format="arrow")
    assert loader.batch_size == 7 and len(loader) == 14
    assert values(loader) != sorted(values(loader))
    plain = session.load("p", format="arrow", shuffle=False, batch_size=10, drop_last=False)
    assert values(plain) == list(range(100))


FRAMES = {
    "table": lambda table: table,
    "batch": lambda table: table.to_batches()[0],
    "reader": lambda table: table.to_reader(),
    "polars": pl.from_arrow,
    "pandas": pa.Table.to_pandas,
}


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_of_several_libraries_are_tables(kind):
    table = forebay.table(FRAMES[kind](trips()))
    assert list(table.columns) == ["n", "zone"]
    batch = pa.Table.from_batches(table.load(format="arrow"))
    assert batch["n"].to_pylist() == list(range(20)) and batch["zone"][1].as_py() == "centre"


def test_a_frame_of_no_rows_is_refused_by_name():
    with pytest.raises(forebay.InvalidError, match='without rows: "empty'):
        forebay.table(trips().slice(0, 0), name="empty").load(format="numpy")


FRAME_IDS = """
import json, sys
import forebay, pyarrow as pa, polars, pandas
rows = {"n": [1, 2, 3], "zone": ["a", "b", "c"]}
named = [forebay.table(frame, name="rows") for frame in (pa.table(rows), polars.DataFrame(rows))]
numbered = [forebay.table(pa.table(rows)), forebay.table(pandas.DataFrame(rows))]
print(json.dumps([table.load(format="arrow").feed_id for table in named + numbered]))
"""


def test_a_frames_feed_is_the_same_in_each_process():
    first, second = printed(FRAME_IDS), printed(FRAME_IDS)
    assert first == second


def test_a_frame_is_known_by_its_content():
    ids = []
    for data in ([1, 2, 3], [1, 2, 3], [1, 2, 4]):
        session = forebay.Session()
        ids.append(session.table(pa.table({"n": data}), name="rows").load(format="arrow").feed_id)
    assert ids[0] == ids[1] != ids[2]


def test_a_frame_is_known_whatever_its_chunks():
    whole = trips()
    chunked = pa.concat_tables([whole.slice(0, 3), whole.slice(3, 9), whole.slice(12)])
    ids = [forebay.Session().table(data, name="rows").load(format="arrow").feed_id for data in (whole, chunked)]
    assert ids[0] == ids[1]


def tensors(*shape):
    return {"x": np.arange(12, dtype=np.uint8).reshape(1, *shape)}


EMPTY = [pa.array([], pa.int32()), pa.array([], pa.string())]


@pytest.mark.parametrize("first, second", [
    (tensors(2, 6), tensors(6, 2)),
    (pa.table({"x": EMPTY[0]}), pa.table({"x": EMPTY[1]})),
    (pa.table({"x": EMPTY[0]}), pa.table({"y": EMPTY[0]})),
    (
        pa.table([[1]], schema=pa.schema([pa.field("x", pa.int64(), nullable=False)])),
        pa.table([[1]], schema=pa.schema([pa.field("x", pa.int64())])),
    ),
])
def test_tables_of_other_columns_are_other_tables(first, second):
    session = forebay.Session()
    tables = [session.table(data) for data in (first, second)]
    columns = [session.table(data, name=f"named_{number}").columns for number, data in enumerate((first, second))]
    assert [table.columns for table in tables] == columns
    assert tables[0].sql != tables[1].sql
    # As a table of the same rows in another process.
    assert forebay.Session().table(first).sql == tables[0].sql


def test_two_equal_tables_of_one_name_are_one_feed():
    session = forebay.Session()
    loaders = [session.table(trips(), name="rows").load(format="arrow", batch_size=8, shuffle=True) for _ in range(2)]
    assert loaders[0].feed_id == loaders[1].feed_id
    batches = iter(loaders[0])
    next(batches)
    loaders[1].load_state_dict(loaders[0].state_dict())
    assert same(list(loaders[1]), list(batches))


def test_a_loader_keeps_its_table_when_the_name_is_taken_by_another():
    session = forebay.Session()
    loader = session.table(pa.table({"n": [1, 2]}), name="rows").load(format="arrow")
    session.table(pa.table({"n": [3, 4]}), name="rows")
    assert values(loader) == [1, 2]


def test_a_changed_table_is_another_feed_for_a_state():
    session = forebay.Session()
    state = session.table(pa.table({"n": [1, 2]}), name="rows").load(format="arrow").state_dict()
    with pytest.raises(forebay.ConflictError, match="the source files differ"):
        session.table(pa.table({"n": [1, 3]}), name="rows").load(format="arrow").load_state_dict(state)


def test_the_builder_is_sql(folder):
    table = forebay.table(folder)
    built = table.filter("n > 3", "n <> 7").select("n", twice="n * 2")
    assert built.sql.endswith("WHERE (n > 3) AND (n <> 7)") and 'n * 2 AS "twice"' in built.sql
    written = forebay.sql(built.sql)
    options = {"format": "arrow", "shuffle": True}
    assert built.load(**options).feed_id == written.load(**options).feed_id
    assert same(list(built.load(**options)), list(written.load(**options)))


def test_the_builder_adds_replaces_and_drops_columns():
    table = forebay.table(trips())
    assert table.with_column("half", "n / 2.0").columns == {"n": "Int64", "zone": "Utf8", "half": "Float64"}
    replaced = table.with_column("n", "n + 1")
    assert sorted(replaced.columns) == ["n", "zone"]
    assert values(replaced.load(format="arrow"))[:3] == [1, 2, 3]
    assert list(table.drop("zone").columns) == ["n"]
    # Conditions after a selection apply to the selected columns.
    assert values(replaced.filter("n <= 2").load(format="arrow")) == [1, 2]
    assert values(table.filter("n > 17").select("n").filter("n < 19").load(format="arrow")) == [18]


def test_names_are_taken_literally():
    odd = forebay.table(pa.table({'a "b"': [1], "Select": [2]}), name="Odd Name")
    assert list(odd.columns) == ['a "b"', "Select"]
    assert list(odd.with_column("C", "1").columns) == ['a "b"', "Select", "C"]


def test_a_file_is_a_table_by_its_extension(tmp_path):
    (tmp_path / "rows.csv").write_text("n,zone\n1,harbour\n2,centre\n")
    (tmp_path / "rows.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    assert values(forebay.table(tmp_path / "rows.csv").load(format="arrow")) == [1, 2]
    assert values(forebay.table(str(tmp_path / "rows.jsonl")).load(format="arrow")) == [1, 2]
    (tmp_path / "rows.txt").write_text("n\n1\n")
    with pytest.raises(forebay.InvalidError, match="does not indicate the format"):
        forebay.table(tmp_path / "rows.txt")
    assert values(forebay.table(tmp_path / "rows.txt", format="csv").load(format="arrow")) == [1]


def test_a_folder_is_a_table_by_its_files_extensions(tmp_path):
    for name in ("bell/1.flac", "bell/2.WAV", "horn/1.mp3"):
        (tmp_path / "sounds" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sounds" / name).write_bytes(name.encode())
    sounds = forebay.table(tmp_path / "sounds").select("label", "path")
    assert values(sounds.load(format="arrow"), "label") == ["bell", "bell", "horn"]
    (tmp_path / "rows" / "part").mkdir(parents=True)
    (tmp_path / "rows" / "_SUCCESS.parquet").write_text("")
    (tmp_path / "rows" / "part" / "1.csv").write_text("n\n1\n")
    assert values(forebay.table(f"{tmp_path}/rows").load(format="arrow")) == [1]
    assert values(forebay.table(f"{tmp_path}/rows/*/*").load(format="arrow")) == [1]


def photographs():
    return forebay.sql(
        "SELECT resize(decode_image(bytes), height => 8, width => 8) AS image, label, path FROM photographs",
        photographs=REPOSITORY / "examples" / "photos",
    )


def test_a_preview_is_a_table_and_in_a_notebook_pictures():
    preview = photographs().preview(3)
    assert preview.rows == 3 and preview.bad_rows == 0
    lines = str(preview).splitlines()
    assert lines[0].startswith("image: tensor<uint8>[8, 8, 3]") and len(lines) == 5
    assert preview.text == repr(preview)
    page = preview._repr_html_()
    assert page.count("<img") == 3 and "data:image/" in page
    assert "<script" not in page


def test_a_preview_escapes_what_rows_say():
    preview = pipeline({"text": ["<script>alert(1)</script>"]}).preview()
    assert "<script" not in preview._repr_html_() and "&lt;script" in preview._repr_html_()


def test_a_preview_leaves_bad_rows_out_and_counts_them():
    broken = pipeline({"text": ["1", "x", "3"]}, "SELECT CAST(text AS BIGINT) AS n FROM {table}")
    preview = broken.preview()
    assert (preview.rows, preview.bad_rows) == (2, 1)
    assert "left out 1 row" in repr(preview)
    with pytest.raises(forebay.DataError):
        broken.preview(on_error="raise")


def test_explain_shows_files_order_and_plan(folder):
    text = forebay.table(folder).filter("n > 3").explain(shuffle=True, seed=9)
    assert "3 files" in text and "shuffled, seed 9" in text and "FilterExec" in text
    assert repr(text) == text
    assert forebay.table(folder).load(format="arrow").feed_id in forebay.table(folder).explain()


def test_a_schema_is_pyarrows():
    assert pipeline({"n": range_of(1)}).schema == pa.schema([pa.field("n", pa.int64())])
    image = photographs().schema.field("image")
    assert image.type.shape == [8, 8, 3]


@pytest.mark.parametrize("options", [{}, {"rank": 1, "world_size": 3}, {"batch_size": 7, "seed": 4}], ids=repr)
def test_a_trace_names_the_file_and_row_of_each_sample(folder, options):
    loader = forebay.table(folder).load(**({"format": "arrow", "shuffle": True, "batch_size": 8} | options))
    for epoch in range(2):
        for step, batch in enumerate(loader):
            traced = loader.trace(step, epoch=epoch)
            # Each file holds 40 consecutive numbers.
            assert [int(file[-len("0.parquet")]) * 40 + row for file, row in traced] == batch["n"].to_pylist()


def test_a_trace_of_photographs_names_their_paths():
    loader = photographs().load(format="numpy", batch_size=6, shuffle=True)
    batch = next(iter(loader))
    assert [os.path.join(*file.split("/")[-2:]) for file, _ in loader.trace(0)] == batch["path"]


def test_a_trace_of_a_filtered_feed_names_what_is_left(folder):
    loader = forebay.table(folder).filter("n % 10 = 7").load(format="arrow", batch_size=4)
    rows = [int(file[-len("0.parquet")]) * 40 + row for step in range(3) for file, row in loader.trace(step)]
    assert rows == values(loader)


def test_stats_count_what_was_handed_out_and_where_time_went():
    loader = numbers(100, batch_size=8, prefetch_factor=3)
    empty = loader.stats()
    assert empty["batches"] == empty["samples"] == 0 and empty["elapsed_seconds"] == 0
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    stats = loader.stats()
    assert set(stats) == {
        "batches", "samples", "bytes", "bad_rows", "wait_seconds", "first_batch_seconds", "queue", "queue_max",
        "elapsed_seconds", "compute_seconds",
    }  # fmt: skip
    assert (stats["batches"], stats["samples"], stats["bad_rows"]) == (5, 40, 0)
    assert stats["bytes"] >= 40 * 8 and 0 <= stats["queue"] <= stats["queue_max"] == 3
    assert 0 < stats["first_batch_seconds"] <= stats["wait_seconds"] <= stats["elapsed_seconds"]
    assert stats["compute_seconds"] > 0
    list(batches)
    list(loader)
    # The statistics cover all loops.
    assert loader.stats()["samples"] == 200


def test_a_loader_reads_on_while_another_thread_works():
    loader = pipeline({"n": range_of(20)}, "SELECT sleep(n, milliseconds => 10) AS n FROM {table}").load(format="numpy")
    counted = [0]
    done = threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    list(loader)
    done.set()
    thread.join()
    # 200 ms without the GIL: far more than a thread gets that may run once every 5 ms.
    assert counted[0] > 1000


def test_several_loaders_of_a_session_read_at_the_same_time():
    shared = pipeline({"n": range_of(500)})
    got = {}

    def read(number):
        got[number] = values(shared.load(format="arrow", batch_size=16, shuffle=True, seed=number))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(sorted(got[number]) == list(range(500)) for number in range(8))
    assert got[0] != got[1]


def test_numpy_and_arrow_agree():
    shared = pipeline({"n": range_of(50), "x": pa.array(np.linspace(0, 1, 50))})
    for batch, records in zip(shared.load(format="numpy"), shared.load(format="arrow"), strict=True):
        assert batch["x"].tolist() == records["x"].to_pylist()
    assert isinstance(forebay.table(pd.DataFrame({"n": [1]})).load(format="numpy"), forebay.Loader)


def test_a_query_keeps_its_tables_when_an_equal_one_is_made_over_others():
    session = forebay.Session()
    first, second = (session.sql("SELECT n FROM t", t=pa.table({"n": [start, start + 1]})) for start in (0, 10))
    assert values(first.load(format="arrow")) == [0, 1]
    assert values(second.load(format="arrow")) == [10, 11]


def test_a_table_is_a_copy_of_what_it_was_made_of():
    numbers = np.arange(6)
    table = forebay.Session().table(pa.table({"n": numbers}), name="rows")
    numbers += 100
    assert values(table.load(format="arrow")) == list(range(6))


def test_queries_that_nobody_holds_are_forgotten():
    session = forebay.Session()
    table = session.table(pa.table({"n": [1]}), name="rows")
    for n in range(5):
        list(table.filter(f"n > {-1 - n}").load(format="arrow"))
    gc.collect()
    assert [name for name in session._native.pipelines() if name.startswith("_query_")] == []


@pytest.mark.parametrize("files", ["photos/", "data/*.parquet", "rows.parquet"])
def test_files_that_are_given_as_a_pipeline_are_a_table(files):
    with pytest.raises(forebay.NotFoundError, match="there is no pipeline") as error:
        forebay.Session().load(files)
    assert error.value.hint == f"if these are files: forebay.table('{files}').load(…)"
    with pytest.raises(forebay.NotFoundError) as error:
        forebay.Session().load("trian")
    assert "forebay.table" not in error.value.hint
