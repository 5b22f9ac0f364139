"""Stored results: `materialize` and `cache`."""

import json

import pyarrow as pa
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


def test_samples_are_written_as_parquet_that_others_read(session, tmp_path):
    query = session.sql("SELECT n * 2 AS x FROM t WHERE n < 700")
    done = query.materialize(tmp_path / "out")
    assert (done.rows, done.found) == (700, False)
    table = pq.read_table([tmp_path / "out" / done.folder / name for name in done.files])
    assert table.column("x").to_pylist() == [2 * n for n in range(700)]
    assert values(done.table().load(format="numpy")) == [2 * n for n in range(700)]
    manifest = json.loads((tmp_path / "out" / "_forebay.json").read_text())
    assert manifest["rows"] == 700 and manifest["identity"]["feed"]


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


def test_what_a_run_that_was_cut_off_left_is_not_read(session, tmp_path):
    first = session.sql("SELECT n AS x FROM t").materialize(tmp_path / "out")
    (tmp_path / "out" / "_forebay.json").unlink()
    again = session.sql("SELECT n + 1 AS x FROM t").materialize(tmp_path / "out")
    assert not again.found and again.folder != first.folder
    assert values(again.table().load(format="numpy")) == list(range(1, 1001))


def test_another_feed_in_the_same_folder_is_refused(session, tmp_path):
    session.sql("SELECT n AS x FROM t").materialize(tmp_path / "out")
    with pytest.raises(forebay.ConflictError, match="and this is feed"):
        session.sql("SELECT n + 1 AS x FROM t").materialize(tmp_path / "out")


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
    with pytest.raises(forebay.InvalidError, match="what unversioned gives must not be kept"):
        query.materialize("anywhere")


def test_a_folder_that_cannot_be_written_is_named(session, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(forebay.Error, match="file"):
        session.sql("SELECT n AS x FROM t").materialize(tmp_path / "file" / "out")
