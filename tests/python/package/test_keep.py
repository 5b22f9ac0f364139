"""Stored results: `materialize` and `cache`."""

import datetime
import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import forebay


@pytest.fixture
def session(tmp_path):
    session = forebay.Session(root=tmp_path / "root")
    session.table(pa.table({"n": range(1000)}), name="t")
    return session


def values(loader, name="x"):
    return [value for batch in loader for value in batch[name].tolist()]


def read_parquet(done):
    return pq.read_table([f"{done.url}/{name}" for name in done.files])


def test_samples_are_written_as_parquet_that_others_read(session, tmp_path):
    query = session.sql("SELECT n * 2 AS x FROM t WHERE n < 700")
    done = query.materialize(tmp_path / "out")
    assert (done.rows, done.bad_rows, done.found) == (700, 0, False)
    assert done.bytes == sum((tmp_path / "out" / name).stat().st_size for name in done.files)
    assert read_parquet(done).column("x").to_pylist() == [2 * n for n in range(700)]
    assert values(done.table().load(format="numpy")) == [2 * n for n in range(700)]


def test_progress_is_shown_at_the_end_and_its_errors_end_the_job(session, tmp_path):
    seen = []
    done = session.sql("SELECT n FROM t").materialize(tmp_path / "kept", progress=seen.append)
    assert seen[-1] == (len(done.files), len(done.files), done.rows, done.bytes)
    with pytest.raises(ZeroDivisionError):
        session.sql("SELECT n FROM t").materialize(tmp_path / "other", progress=lambda progress: 1 / 0)


def test_samples_are_written_in_other_formats(session, tmp_path):
    query = session.sql("SELECT n, 'row ' || n AS text FROM t WHERE n < 9")
    done = query.materialize(tmp_path / "out", format="jsonl", compression="none")
    lines = [json.loads(line) for line in (tmp_path / "out" / done.files[0]).read_text().splitlines()]
    assert lines == [{"n": n, "text": f"row {n}"} for n in range(9)]
    assert values(done.table().load(format="numpy"), "n") == list(range(9))
    with pytest.raises(forebay.InvalidError, match="no format .*petroleum"):
        query.materialize(tmp_path / "other", format="petroleum")
    assert not (tmp_path / "other").exists()


LABELS = ["a/b", "x=1%*[", "", None, "é ü", "01", "2026-01-01"]
PARTITIONED = {
    "n": pa.array(range(700), pa.int64()),
    "label": pa.array([LABELS[n % 7] for n in range(700)]),
    "day": pa.array([datetime.date(2026, 1, 1 + n % 3) for n in range(700)]),
    "k": pa.array([n % 2 for n in range(700)], pa.int16()),
    "flag": [n % 5 == 0 for n in range(700)],
}


@pytest.mark.parametrize("format", ["parquet", "csv", "jsonl"])
def test_values_of_columns_are_names_of_folders(session, tmp_path, format):
    rows = pa.table(PARTITIONED)
    query = session.table(rows, name="rows").pipeline()
    options = {"format": format, "partition_by": ["label", "day", "k", "flag"], "file_size": 1, "window_rows": 300}
    done = query.materialize(tmp_path / "out", **options)
    assert done.rows == 700 and len({os.path.dirname(file) for file in done.files}) == 7 * 3 * 2 * 2 == 84
    assert any(file.startswith("label=x%3D1%25%2A%5B/day=2026-01-02/k=1/flag=false/part-0000") for file in done.files)
    back = done.table().to_arrow()
    assert back.column_names == list(rows.column_names) and back.select(["n"]).schema == rows.select(["n"]).schema
    assert [str(back.schema.field(name).type) for name in rows.column_names] == [str(t) for t in rows.schema.types]
    by_number = sorted(back.to_pylist(), key=lambda row: row["n"])
    assert by_number == rows.to_pylist()
    # Rows of a folder keep their order.
    numbers = [row["n"] for row in back.to_pylist() if row["label"] == "01" and row["day"].day == 1 and row["flag"]]
    assert len(numbers) > 5 and [n for n in numbers if n % 2] == sorted(n for n in numbers if n % 2)
    assert query.materialize(tmp_path / "out", **options).found
    again = query.materialize(tmp_path / "again", **options)
    assert again.files == done.files and again.job == done.job
    shutil.move(tmp_path / "out", tmp_path / "moved")
    tables = [forebay.Session().table(tmp_path / folder, name="kept", format=format) for folder in ("moved", "again")]
    moved, copied = (table.load(format="numpy").state_dict() for table in tables)
    assert moved == copied


def test_other_readers_know_the_folders(session, tmp_path):
    query = session.table(pa.table(PARTITIONED), name="rows").pipeline()
    done = query.materialize(tmp_path / "out", partition_by="day,k")
    found = pyarrow.dataset.dataset([f"{done.url}/{file}" for file in done.files], partitioning=pyarrow.dataset.partitioning(
        pa.schema([("day", pa.date32()), ("k", pa.int16())]), flavor="hive"
    ), partition_base_dir=done.url)
    rows = found.to_table().select(list(PARTITIONED)).to_pylist()
    assert sorted(rows, key=lambda row: row["n"]) == pa.table(PARTITIONED).to_pylist()


@pytest.mark.parametrize(
    "columns, format, phrase",
    [
        ("x", "parquet", '"x" is Float64'),
        ("nope", "parquet", '"nope", which is not there'),
        ("n,n", "parquet", '"n" twice'),
        ("_h", "csv", "would be hidden"),
        ("n", "mds", "mds files know no folders"),
        ("label", "parquet", "means null in a path"),
        ("n", "parquet", "more than 1000 values of"),
    ],
)
def test_what_cannot_be_a_folder_is_refused(session, tmp_path, columns, format, phrase):
    rows = {"n": range(5000), "x": [0.5] * 5000, "_h": [1] * 5000, "label": ["__HIVE_DEFAULT_PARTITION__"] * 5000}
    query = session.table(pa.table(rows), name="rows").pipeline()
    with pytest.raises(forebay.Error, match=phrase):
        query.materialize(tmp_path / "out", format=format, partition_by=columns)
    assert not list(tmp_path.glob("out/**/part-*"))


def test_an_epoch_that_is_shuffled_is_written_in_its_order(session, tmp_path):
    pq.write_table(pa.table({"n": range(1000)}), tmp_path / "numbers.parquet", row_group_size=50)
    query = session.sql("SELECT n AS x FROM numbers", numbers=tmp_path / "numbers.parquet")
    done = query.materialize(tmp_path / "out", shuffle=True, seed=3, window_rows=64, file_size=1)
    assert len(done.files) > 3
    expected = values(query.load(format="numpy", shuffle=True, seed=3, window_rows=64))
    assert read_parquet(done).column("x").to_pylist() == expected
    assert values(done.table().load(format="numpy")) == expected


def test_bad_rows_are_counted_and_recorded(session, tmp_path):
    session.table(pa.table({"text": ["1", "x", "3", "y", None]}), name="texts")
    query = session.sql("SELECT CAST(text AS BIGINT) AS x FROM texts")
    with pytest.raises(forebay.DataError, match="row 1: "):
        query.materialize(tmp_path / "raised")
    done = query.materialize(tmp_path / "out", on_error="quarantine")
    assert (done.rows, done.bad_rows) == (3, 2)
    assert done.quarantine is not None
    recorded = pq.read_table(done.quarantine).to_pylist()
    assert sorted(row["row"] for row in recorded) == [1, 3]


def test_tensors_keep_their_shape(session):

    photos = session.table("examples/photos").select(x="resize(decode_image(bytes), height => 4, width => 5)")
    kept = photos.cache()
    assert kept.columns == {"x": "tensor<uint8>[4, 5, 3]"}
    direct, again = (
        [batch["x"].tolist() for batch in table.load(format="numpy", batch_size=100)] for table in (photos, kept)
    )
    assert direct == again


def test_what_is_there_already_is_found(session, tmp_path):
    query = session.sql("SELECT n AS x FROM t")
    first = query.materialize(tmp_path / "out")
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    again = query.materialize(tmp_path / "out")
    assert again.found and again.files == first.files
    assert written == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}


def test_an_interrupted_job_writes_what_is_missing(session, tmp_path):
    (tmp_path / "lines").mkdir()
    for part in range(8):
        lines = [json.dumps({"text": str(part * 100 + n)}) for n in range(100)]
        (tmp_path / "lines" / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    bad = tmp_path / "lines" / "7.jsonl"
    good = bad.read_text()
    stat = bad.stat()
    bad.write_text(good.replace('"799"', '"7x9"'))
    os.utime(bad, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    options = dict(window_rows=100, file_size=1)
    query = forebay.Session(root=tmp_path / "root", threads=1).table(tmp_path / "lines").select(x="CAST(text AS BIGINT)")
    with pytest.raises(forebay.DataError, match="7.jsonl"):
        query.materialize(tmp_path / "out", **options)
    # The files have the same sizes and times, so it is the same job.
    bad.write_text(good)
    os.utime(bad, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.parquet")}
    again = forebay.Session(root=tmp_path / "root", threads=1).table(tmp_path / "lines").select(x="CAST(text AS BIGINT)")
    done = again.materialize(tmp_path / "out", **options)
    assert not done.found and done.rows == 800
    assert read_parquet(done).column("x").to_pylist() == list(range(800))
    assert written and all(path.stat().st_mtime_ns == time for path, time in written.items())


def test_other_files_in_the_folder_are_not_touched(session, tmp_path):
    query = session.sql("SELECT n AS x FROM t")
    first = query.materialize(tmp_path / "out")
    with pytest.raises(forebay.ConflictError, match=f"holds the artifact of the job {first.job}"):
        session.sql("SELECT n + 1 AS x FROM t").materialize(tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("hello")
    with pytest.raises(forebay.ConflictError, match="notes.txt"):
        query.materialize(tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_moved_folder_is_the_same_dataset(session, tmp_path):
    done = session.sql("SELECT n AS x FROM t").materialize(tmp_path / "out")
    loader = session.table(done.url, name="kept").load(format="numpy", batch_size=100)
    next(iter(loader))
    state = loader.state_dict()
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    moved = forebay.Session().table(tmp_path / "copy", name="kept").load(format="numpy", batch_size=100)
    moved.load_state_dict(state)
    assert values(moved) == list(range(100, 1000))


def test_a_changed_byte_is_found(session, tmp_path):
    done = session.sql("SELECT n AS x FROM t").materialize(tmp_path / "out")
    path = tmp_path / "out" / done.files[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    with pytest.raises(forebay.DataError, match=path.name):
        values(forebay.Session(root=tmp_path / "root").table(tmp_path / "out").load(format="numpy"))


def test_a_cache_is_found_by_what_it_means(session):
    first = session.sql("SELECT n AS x FROM t").cache()
    assert session.sql("SELECT  n  AS x\nFROM t").cache().sql == first.sql
    assert session.sql("SELECT n + 1 AS x FROM t").cache().sql != first.sql
    assert values(first.filter("x >= 990").load(format="numpy")) == list(range(990, 1000))


def test_random_results_are_not_kept(session):
    query = session.sql("SELECT random_hflip(decode_image(bytes)) AS image FROM photos", photos="examples/photos")
    with pytest.raises(forebay.InvalidError, match="the results of random_hflip must not be stored"):
        query.cache()


def test_functions_without_a_version_are_not_kept(session):
    forebay.udf(lambda x: x, input="int64", output="int64", name="unversioned")
    query = session.sql("SELECT unversioned(n) AS x FROM t")
    with pytest.raises(forebay.InvalidError, match="the results of unversioned must not be stored"):
        query.cache()
    with pytest.raises(forebay.InvalidError, match="the results of unversioned must not be stored"):
        query.materialize("anywhere")


def test_a_folder_that_cannot_be_written_is_named(session, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(forebay.Error, match="file"):
        session.sql("SELECT n AS x FROM t").materialize(tmp_path / "file" / "out")


def test_samples_are_sorted_by_columns(session, tmp_path):
    numbers = np.random.default_rng(7).permutation(900)
    rows = pa.table({"n": numbers, "Label": [None if n % 9 == 0 else f"l{n % 4}" for n in numbers], "x": numbers * 0.5})
    session.table(rows, name="rows")
    text = """SELECT n, "Label", random_int(1000) AS r -- the rest is computed after it was sorted
        FROM rows WHERE n % 10 <> 3 -- and this comment ends it"""
    query = session.sql(text)
    done = query.materialize(tmp_path / "out", sort_by=["Label", "n  desc"], file_size=1, window_rows=100)
    written = read_parquet(done)
    kept = [(label, n) for n, label in zip(rows["n"].to_pylist(), rows["Label"].to_pylist()) if n % 10 != 3]
    expected = sorted(kept, key=lambda row: (row[0] is None, row[0] or "", -row[1]))
    assert list(zip(written["Label"].to_pylist(), written["n"].to_pylist())) == expected
    assert len(set(written["r"].to_pylist())) > 300
    assert query.materialize(tmp_path / "out", sort_by="Label,n DESC", file_size=1, window_rows=100).found
    ascending = read_parquet(query.materialize(tmp_path / "up", sort_by="n ASC"))["n"].to_pylist()
    assert ascending == sorted(n for _, n in kept)


def test_all_samples_are_shuffled(session, tmp_path):
    query = session.sql("SELECT n, random_int(1000) AS r FROM t WHERE n % 10 <> 3")
    orders = []
    for seed in (0, 5, 18_446_744_073_709_551_615):
        done = query.materialize(tmp_path / str(seed), global_shuffle=True, seed=seed, file_size=1, window_rows=100)
        orders.append(read_parquet(done)["n"].to_pylist())
        assert sorted(orders[-1]) == [n for n in range(1000) if n % 10 != 3]
        assert {n // 100 for n in orders[-1][:100]} == {*range(10)}
        ascents = sum(a < b for a, b in zip(orders[-1], orders[-1][1:]))
        assert 400 < ascents < 500
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize(
    "options, phrase",
    [
        ({"sort_by": "m"}, 'the column "m", which is not there'),
        ({"sort_by": "n,"}, '"sort_by" cannot be "n,": expected'),
        ({"sort_by": "n + 1"}, '"sort_by" cannot be "n . 1": n . 1 is no column'),
        ({"sort_by": "n WITH FILL"}, '"sort_by" cannot be'),
        ({"sort_by": "n s"}, '"sort_by" cannot be "n s"'),
        ({"sort_by": "n", "shuffle": True}, '"sort_by" and "shuffle" exclude each other'),
        ({"sort_by": "n", "bucket_by_length": "s"}, '"sort_by" and "bucket_by_length" exclude each other'),
        ({"sort_by": "n", "global_shuffle": True}, '"sort_by" and "global_shuffle" exclude each other'),
        ({"global_shuffle": True, "shuffle": True}, '"global_shuffle" and "shuffle" exclude each other'),
        ({"sort_by": "r"}, 'cannot be sorted by "r": "random_int"'),
    ],
)
def test_what_cannot_be_sorted_is_refused(session, tmp_path, options, phrase):
    session.table(pa.table({"n": range(10), "s": ["a"] * 10}), name="rows")
    query = session.sql("SELECT n, s, random_int(9) AS r FROM rows")
    with pytest.raises(forebay.Error, match=phrase):
        query.materialize(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_jobs_on_error_holds_for_the_stage_that_sorts(session, tmp_path):
    (tmp_path / "a.csv").write_text("n,m\n3,3\n1,x\n2,2\n")
    session.sql(f"CREATE EXTERNAL TABLE a (n BIGINT, m BIGINT) STORED AS CSV LOCATION '{tmp_path}/a.csv'")
    query = session.sql("SELECT n, m FROM a")
    with pytest.raises(forebay.Error, match="row 1: "):
        query.materialize(tmp_path / "raised", sort_by="n")
    done = query.materialize(tmp_path / "skipped", sort_by="n", on_error="skip")
    assert read_parquet(done).to_pydict() == {"n": [2, 3], "m": [2, 3]}


def test_a_file_that_changed_since_a_pipeline_was_made_is_not_read_anew(session, tmp_path):
    (tmp_path / "words.txt").write_text("a\nb\n")
    query = session.sql(f"SELECT n, vocab_apply('b', '{tmp_path}/words.txt') AS place FROM t")
    (tmp_path / "words.txt").write_text("b\na\n")
    with pytest.raises(forebay.Error, match="has changed since it was created"):
        query.materialize(tmp_path / "out", sort_by="n")


def test_columns_of_any_name_are_sorted_by(session, tmp_path):
    session.table(pa.table({"row": [2, 1, 3], "price desc": [1, 3, 2], 'a "b"': ["x", "z", "y"]}), name="odd")
    query = session.sql("SELECT * FROM odd")
    orders = {"price desc": [1, 2, 3], '"price desc" DESC': [3, 2, 1], 'ROW desc,"price desc" DESC': [2, 1, 3], "row DESC NULLS FIRST": [2, 1, 3]}
    for number, (key, expected) in enumerate(orders.items()):
        done = query.materialize(tmp_path / str(number), sort_by=key)
        assert read_parquet(done)["price desc"].to_pylist() == expected
    done = query.materialize(tmp_path / "quoted", sort_by='"a ""b"""')
    assert read_parquet(done)['a "b"'].to_pylist() == ["x", "y", "z"]
    done = query.materialize(tmp_path / "shuffled", global_shuffle=True)
    assert sorted(read_parquet(done)["row"].to_pylist()) == [1, 2, 3]


def test_samples_whose_file_is_lost_are_written_again(session, tmp_path):
    query = session.sql("SELECT n FROM t")
    done = query.materialize(tmp_path / "out", file_size=1, window_rows=100)
    (tmp_path / "out" / done.files[0]).unlink()
    again = query.materialize(tmp_path / "out", file_size=1, window_rows=100)
    assert not again.found and again.job == done.job
    assert read_parquet(again)["n"].to_pylist() == [*range(1000)]
    assert values(again.table().load(format="numpy"), "n") == [*range(1000)]
