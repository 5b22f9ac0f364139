"""What `forebay.table` takes besides locations and Arrow data: dicts of arrays, data sets of Hugging Face, and lists of
paths."""

import os
import shutil
from datetime import date, datetime
from pathlib import Path

import datasets
import jax.numpy
import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import forebay
from support import REPOSITORY

PHOTOS = REPOSITORY / "examples" / "photos"


@pytest.fixture
def session(tmp_path):
    return forebay.Session(base=tmp_path)


def rows(table, **options):
    """Columns of the whole table, in order, as lists."""
    batches = list(table.load(format="arrow", batch_size=3, **options))
    return pa.Table.from_batches(batches).to_pydict()


# Dicts of arrays


def test_a_dict_of_arrays_is_a_table(session):
    table = session.table({
        "numpy": np.array([1.5, 2.5, 3.5, 4.5]),
        "torch": torch.tensor([1, 2, 3, 4], dtype=torch.int16),
        "jax": jax.numpy.array([0, 1, 0, 1], dtype="int32"),
        "list": ["a", None, "c", "d"],
        "range": range(4),
        "arrow": pa.chunked_array([[1, 2], [3, 4]]),
        "day": np.array(["2026-01-01"] * 4, dtype="datetime64[D]"),
    })
    types = {"numpy": "Float64", "torch": "Int16", "jax": "Int32", "list": "Utf8", "range": "Int64", "arrow": "Int64"}
    assert table.columns == types | {"day": "Date32"}
    read = rows(table)
    assert read["numpy"] == [1.5, 2.5, 3.5, 4.5] and read["list"] == ["a", None, "c", "d"]
    assert read["torch"] == read["arrow"] == [1, 2, 3, 4] and read["jax"] == [0, 1, 0, 1]


@pytest.mark.parametrize("of", [np.asarray, torch.from_numpy, jax.numpy.asarray], ids=["numpy", "torch", "jax"])
def test_arrays_of_several_dimensions_are_tensors(session, of):
    images = np.arange(5 * 4 * 6 * 3, dtype=np.uint8).reshape(5, 4, 6, 3)
    table = session.table({"image": of(images), "label": of(np.arange(5, dtype=np.int32))})
    assert table.columns == {"image": "tensor<uint8>[4, 6, 3]", "label": "Int32"}
    [batch] = table.load(format="numpy", batch_size=5)
    assert np.array_equal(batch["image"], images)
    # Operators on images take them.
    [cropped] = table.select("center_crop(image, height => 2, width => 2) AS image").load(format="numpy", batch_size=5)
    assert np.array_equal(cropped["image"], images[:, 1:3, 2:4])


@pytest.mark.parametrize(
    "column, type, values",
    [
        (np.ma.array([1, 2], mask=[False, True]), "Int64", [1, None]),
        (np.ma.array([1, 2]), "Int64", [1, 2]),
        (np.ma.array([b"a", b"b"], mask=[True, False]), "Binary", [None, b"b"]),
        (polars.Series([2**53 + 1, None]), "Int64", [2**53 + 1, None]),
        (pandas.Series([2**53 + 1, None], dtype="Int64"), "Int64", [2**53 + 1, None]),
        (pandas.Series(["a", None], dtype=object), "Utf8", ["a", None]),
        (pandas.Series(["a", "b", "a"], dtype="category"), None, ["a", "b", "a"]),
        (np.array([b"ab\0c", b"d"]), "Binary", [b"ab\0c", b"d"]),
        (np.array([1, 2], dtype=">i4"), "Int32", [1, 2]),
        (np.array(["2026-01-01T05"], dtype="datetime64[h]"), None, [datetime(2026, 1, 1, 5)]),
        (np.array(["2026-02"], dtype="datetime64[M]"), "Date32", [date(2026, 2, 1)]),
        ([torch.tensor([1, 2]), torch.tensor([3])], None, [[1, 2], [3]]),
        ([torch.tensor(1), torch.tensor(2)], "Int64", [1, 2]),
        ([np.int64(1), np.int64(2)], "Int64", [1, 2]),
    ],
)
def test_values_and_nulls_of_a_column_are_kept(session, column, type, values):
    table = session.table({"x": column})
    assert type is None or table.columns == {"x": type}
    assert rows(table)["x"] == values


def test_times_of_pandas_keep_their_zone(session):
    times = pandas.Series(pandas.to_datetime(["2026-07-01 12:00"]).tz_localize("Europe/Berlin"))
    table = session.table({"x": times})
    assert "Europe/Berlin" in table.columns["x"]
    assert rows(table)["x"][0].isoformat() == "2026-07-01T12:00:00+02:00"


@pytest.mark.parametrize("of", [np.asarray, torch.from_numpy, jax.numpy.asarray], ids=["numpy", "torch", "jax"])
def test_a_list_of_arrays_of_one_shape_is_a_column_of_tensors(session, of):
    images = np.arange(2 * 4 * 6 * 3, dtype=np.uint8).reshape(2, 4, 6, 3)
    table = session.table({"image": [of(image) for image in images]})
    assert table.columns == {"image": "tensor<uint8>[4, 6, 3]"}
    [batch] = table.load(format="numpy", batch_size=2)
    assert np.array_equal(batch["image"], images)


def test_the_layout_of_an_array_in_memory_does_not_matter(session):
    array = np.arange(24).reshape(4, 6)
    plain = session.table({"x": array}).load(format="numpy")
    strided = session.table({"x": np.asfortranarray(array)}).load(format="numpy")
    sliced = session.table({"x": np.repeat(array, 2, axis=1)[:, ::2]}).load(format="numpy")
    assert plain.feed_id == strided.feed_id == sliced.feed_id
    assert plain.feed_id != session.table({"x": array + 1}).load(format="numpy").feed_id


def test_a_list_of_dicts_is_a_table(session):
    rows = session.table([{"n": 1, "text": "a"}, {"text": "b", "tags": ["c"]}, {"n": 3}])
    assert list(rows.columns) == ["n", "text", "tags"]
    assert rows.drop("tags").to_arrow().to_pylist() == [
        {"n": 1, "text": "a"}, {"n": None, "text": "b"}, {"n": 3, "text": None}
    ]
    images = session.table([{"image": np.full((2, 2), n, np.uint8)} for n in range(3)])
    assert images.columns == {"image": "tensor<uint8>[2, 2]"}
    assert len(session.load([{"n": 1}] * 40, batch_size=16)) == 3


def test_the_content_of_a_dict_identifies_its_feed(session):
    def feed(values, session=session):
        return session.table({"x": np.array(values)}).load(format="numpy", shuffle=True, seed=1)

    state = feed([1, 2, 3]).state_dict()
    feed([1, 2, 3], forebay.Session()).load_state_dict(state)
    with pytest.raises(forebay.ConflictError):
        feed([1, 2, 4]).load_state_dict(state)


@pytest.mark.parametrize(
    "columns, phrase",
    [
        ({}, "at least one column"),
        ({"a": [1], "b": [1, 2]}, '"a" has 1, "b" has 2'),
        ({"a": np.float32(1)}, 'column "a" cannot be made of float32: it has no rows'),
        ({"a": "text"}, 'column "a" cannot be made of str'),
        ({"a": 5}, 'column "a" cannot be made of int'),
        ({1: [1]}, "names of columns must be strings, got 1"),
        ({"a": np.zeros((2, 0))}, "holds no elements"),
        ({"a": torch.zeros(2, dtype=torch.bfloat16)}, "bfloat16"),
        ({"a": jax.numpy.zeros(2, dtype="bfloat16")}, r"bfloat16: give column.astype"),
        ({"a": [2**70]}, 'column "a" cannot be made of list'),
        ({"a": {"x": 1}}, "it is not an array or a list"),
        ({"a": {1, 2}}, "it is not an array or a list"),
        ({"a": np.ma.array([[1, 2]], mask=[[True, False]])}, "tensors have no masks"),
        ({"a": [np.zeros((2, 3)), np.zeros((3, 3))]}, "one type and shape, and it has float64 .2, 3. and float64"),
        ({"a": [1, "b"]}, 'column "a" cannot be made of list'),
        ({"a": np.array([[1, 2], [3, 4]], dtype=object)}, None),
        ({"a": np.zeros(2, dtype=complex)}, 'column "a"'),
    ],
)
def test_a_dict_that_is_no_table_is_refused(session, columns, phrase):
    if phrase is None:
        # pyarrow reads objects as what they are.
        assert rows(session.table(columns))["a"] == [[1, 2], [3, 4]]
        return
    with pytest.raises(forebay.InvalidError, match=phrase.replace("[", r"\[")):
        session.table(columns)


def test_dicts_are_loaded_queried_and_joined(session):
    numbers = {"n": np.arange(6), "parity": ["even", "odd"] * 3}
    [batch] = session.load(numbers, format="numpy", batch_size=6)
    assert batch["n"].tolist() == [0, 1, 2, 3, 4, 5]
    query = session.sql("SELECT n * w AS x FROM numbers JOIN weights USING (parity)", numbers=numbers, weights={
        "parity": ["odd"], "w": [10],
    })
    assert rows(query)["x"] == [10, 30, 50]


# Data sets of Hugging Face


@pytest.fixture
def reviews():
    columns = {"text": [f"review {n}" for n in range(10)], "label": [n % 2 for n in range(10)]}
    features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["bad", "good"]))
    return datasets.Dataset.from_dict(columns, features=features)


def test_a_data_set_is_a_table(session, reviews):
    table = session.table(reviews, name="reviews")
    assert table.columns == {"text": "Utf8", "label": "Int64"}
    assert rows(table) == {"text": [f"review {n}" for n in range(10)], "label": [0, 1] * 5}
    # It is the table of its Arrow data.
    arrow = forebay.Session().table(pa.table(reviews.data.table), name="reviews")
    assert table.load(format="arrow").feed_id == arrow.load(format="arrow").feed_id


def test_rows_come_in_the_order_of_the_data_set(session, reviews):
    shuffled = reviews.shuffle(seed=3).select(range(1, 6))
    assert rows(session.table(shuffled))["text"] == shuffled["text"][:]
    chosen = reviews.filter(lambda row: row["label"] == 1).select_columns(["text"]).with_format("torch")
    assert rows(session.table(chosen)) == {"text": [f"review {n}" for n in range(1, 10, 2)]}


def test_a_data_set_on_disk_is_a_table(session, reviews, tmp_path):
    reviews.save_to_disk(tmp_path / "saved")
    [batch] = session.load(datasets.load_from_disk(tmp_path / "saved"), format="numpy", batch_size=10)
    assert batch["label"].tolist() == [0, 1] * 5


def images(bytes, paths):
    parts = [{"bytes": content, "path": path} for content, path in zip(bytes, paths)]
    struct = pa.array(parts, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    return datasets.Dataset(pa.table({"image": struct})).cast(datasets.Features(image=datasets.Image()))


def test_images_are_decoded_by_operators(session):
    files = sorted(PHOTOS.glob("*/00[01].jpg"))
    table = session.table(images([file.read_bytes() for file in files], [file.name for file in files]))
    [batch] = table.select("decode_image(image) AS image").load(format="numpy", batch_size=len(files))
    expected = session.table(PHOTOS).select("decode_image(bytes) AS image", "path")
    expected = expected.filter("path LIKE '%00_.jpg'").filter("path NOT LIKE '%00[2-9].jpg'")
    decoded = {path: image for b in expected.load(format="numpy") for path, image in zip(b["path"], b["image"])}
    for file, image in zip(files, batch["image"]):
        assert np.array_equal(image, decoded[file.relative_to(PHOTOS).as_posix()])


def test_images_outside_of_the_data_set_are_refused_with_a_way_out(session, tmp_path):
    with pytest.raises(forebay.InvalidError, match='"image" names files .* such as "/data/b.jpg"') as error:
        session.table(images([b"x", None], [None, "/data/b.jpg"]))
    assert 'forebay.table("/data/")' in error.value.hint
    assert rows(session.table(images([b"x", None], [None, None])))["image"][0]["bytes"] == b"x"


def test_arrays_of_a_data_set_are_tensors(session):
    pair = datasets.Sequence(datasets.Value("int32"), length=2)
    features = datasets.Features(grid=datasets.Array2D((2, 3), "float32"), pair=pair)
    grids = [[[n, 1, 2], [3, 4, 5]] for n in range(4)]
    dataset = datasets.Dataset.from_dict({"grid": grids, "pair": [[1, 2]] * 4}, features=features)
    table = session.table(dataset.select([3, 0]))
    assert table.columns["grid"] == "tensor<float32>[2, 3]"
    [batch] = table.load(format="numpy")
    assert batch["grid"].tolist() == [grids[3], grids[0]] and batch["pair"].shape == (2, 2)


def test_nulls_among_arrays_of_a_data_set_are_kept(session):
    features = datasets.Features(grid=datasets.Array2D((1, 2), "float32"))
    full, some, empty = (
        datasets.Dataset.from_dict({"grid": grids}, features=features)
        for grids in ([[[1, 2]]], [None, [[3, 4]], None, [[5, 6]]], [])
    )
    table = session.table(datasets.concatenate_datasets([full, some]))
    assert table.columns["grid"] == "tensor<float32>[1, 2]"
    grids = table.to_pandas()["grid"]
    assert [None if grid is None else grid.tolist() for grid in grids] == [[[1, 2]], None, [[3, 4]], None, [[5, 6]]]
    assert session.table(some.select([1, 2])).to_arrow().column("grid").null_count == 1
    assert session.table(some.select([0, 2])).to_arrow().column("grid").null_count == 2
    with pytest.raises(forebay.InvalidError, match="without rows"):
        session.table(empty).count()


def test_other_classes_of_datasets_are_refused(session, reviews):
    with pytest.raises(forebay.InvalidError, match="several data sets: 'train', 'test'") as error:
        session.table(datasets.DatasetDict(train=reviews, test=reviews))
    assert error.value.hint == 'name one: data["train"]'
    with pytest.raises(forebay.InvalidError, match="IterableDataset has no rows"):
        session.table(reviews.to_iterable_dataset())


# Lists of paths


@pytest.fixture
def pictures(tmp_path) -> list[str]:
    """Paths below the session's base, not in their order, one of them twice."""
    shutil.copytree(PHOTOS, tmp_path / "photos")
    return ["photos/rocket/002.jpg", "photos/cat/001.jpg", "photos/cat/007.jpg", "photos/cat/001.jpg"]


def test_a_list_of_paths_is_a_table_of_their_files(session, pictures, tmp_path):
    table = session.table(pictures)
    assert table.columns == {"bytes": "Binary", "path": "Utf8", "size": "Int64", "label": "Utf8"}
    read = rows(table)
    # In the order of the files, and a path that is listed twice comes twice.
    assert read["path"] == sorted(pictures)
    assert read["label"] == ["cat", "cat", "cat", "rocket"]
    assert read["bytes"] == [(tmp_path / path).read_bytes() for path in sorted(pictures)]
    [batch] = table.select("resize(decode_image(bytes), 8, 8) AS image").load(format="numpy", shuffle=True)
    assert batch["image"].shape == (4, 8, 8, 3)


@pytest.mark.parametrize("form", [Path, lambda path: f"./{path}", os.path.abspath, lambda path: f"photos/../{path}"])
def test_paths_have_several_forms(pictures, tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    given = [form(path) for path in pictures]
    assert sorted(rows(forebay.Session().table(given))["path"]) == sorted(map(os.fspath, given))


def test_files_of_one_folder_have_its_name_as_label(session, pictures):
    assert rows(session.table(pictures[1:]))["label"] == ["cat"] * 3
    assert rows(session.table(pictures[:1]))["label"] == ["rocket"]


def test_folders_may_have_the_characters_of_globs(session, pictures, tmp_path):
    for folder in ("photos/c[1]", "photos/d*/{x}"):
        shutil.copytree(tmp_path / "photos" / "cat", tmp_path / folder)
        assert rows(session.table([f"{folder}/001.jpg"]))["path"] == [f"{folder}/001.jpg"]


def test_files_may_have_the_characters_of_globs(session, pictures, tmp_path):
    names = ["a[1].jpg", "what?.jpg", "{x}*.jpg"]
    for name in names:
        shutil.copy(tmp_path / pictures[0], tmp_path / "photos" / name)
    given = [*pictures, *(f"photos/{name}" for name in names)]
    assert rows(session.table(given))["path"] == sorted(given)
    assert rows(session.table(given[-2:]))["path"] == sorted(given[-2:])
    # Elsewhere they are globs.
    globs = rows(session.table([pictures[0], "photos/cat/00[17].jpg"]))["path"]
    assert globs == ["cat/001.jpg", "cat/007.jpg", "rocket/002.jpg"]


def test_a_list_of_paths_in_a_query(session, pictures):
    query = session.sql("SELECT path FROM chosen WHERE label = 'rocket'", chosen=pictures)
    assert rows(query)["path"] == ["photos/rocket/002.jpg"]
    [batch] = session.table(pictures).load(columns=["label"], format="numpy")
    assert len(batch["label"]) == 4


def test_missing_files_and_other_formats_are_refused(session, pictures, tmp_path):
    with pytest.raises(forebay.NotFoundError, match='"photos/cat/x.jpg", "photos/y.jpg"; searched "photos"'):
        session.table([*pictures, "photos/cat/x.jpg", "photos/y.jpg"])
    (tmp_path / "photos" / "_hidden.jpg").write_bytes(b"")
    with pytest.raises(forebay.NotFoundError, match='"photos/_hidden.jpg"'):
        session.table([*pictures, "photos/_hidden.jpg"])
    for paths in (["/a/x.jpg", "/b/y.jpg"], ["s3://a/x.jpg", "s3://b/y.jpg"]):
        with pytest.raises(forebay.InvalidError, match="must have a common (folder below|bucket)"):
            session.table(paths)
    with pytest.raises(forebay.InvalidError, match="the same number") as error:
        session.table(["x.jpg", "../b/y.jpg"])
    assert "os.path.abspath" in error.value.hint
    with pytest.raises(forebay.InvalidError, match="one store"):
        session.table(["s3://bucket/a.jpg", "photos/b.jpg"])
    with pytest.raises(forebay.NotFoundError, match="a.parquet"):
        session.table(["a.parquet"], format="parquet")
    with pytest.raises(forebay.InvalidError, match='"name" does not apply'):
        session.table(pictures, name="pictures")
    for neither in ([], [1, 2], 5, None):
        with pytest.raises(forebay.InvalidError, match="a table cannot be made of"):
            session.table(neither)


def test_the_options_of_files(session, tmp_path):
    for name, folder, column in [("a", "x=1", "x"), ("b", "x=2", "X")]:
        path = tmp_path / "clash" / folder
        path.mkdir(parents=True)
        pq.write_table(pa.table({"id": [1], column: [7]}), path / f"{name}.parquet")
    with pytest.raises(forebay.InvalidError, match="differ only by case") as refused:
        session.table("clash/")
    assert 'missing="null" in Python' in str(refused.value)
    with pytest.raises(forebay.InvalidError, match='has a column "x" in the file and another') as refused:
        session.table("clash/", missing="null")
    assert "hive_partitioning=False in Python" in str(refused.value)
    table = session.table("clash/", missing="null", hive_partitioning=False)
    assert list(table.columns) == ["id", "x", "X"]
    with pytest.raises(forebay.InvalidError, match="lacks column"):
        session.table("clash/", missing="error", hive_partitioning=False)
    pq.write_table(pa.table({"id": pa.array([1], pa.int8())}), tmp_path / "clash/x=1/c.parquet")
    with pytest.raises(forebay.InvalidError, match='has column "id" as'):
        session.table("clash/", missing="null", hive_partitioning=False, widen=False)
    files = [tmp_path / "clash/x=1/a.parquet", tmp_path / "clash/x=1/c.parquet"]
    assert list(session.table(files, hive_partitioning=False).columns) == ["id", "x"]
    with pytest.raises(forebay.InvalidError, match='"missing" must be'):
        session.table("clash/", missing="nothing")
    with pytest.raises(forebay.InvalidError, match='"widen" applies to files only'):
        session.table({"a": [1]}, widen=False)
    with pytest.raises(forebay.InvalidError, match='has no option "widen"'):
        session.table("clash/", format="csv", widen=False)


def test_a_column_of_paths(session, tmp_path):
    for folder, number in [("day=1", 1), ("day=2", 2)]:
        (tmp_path / "t" / folder).mkdir(parents=True)
        pq.write_table(pa.table({"n": [number]}), tmp_path / "t" / folder / "a.parquet")
    table = session.table("t/", path_column="File")
    assert table.columns == {"n": "Int64", "day": "Int64", "File": "Utf8"}
    assert rows(table.filter("\"File\" LIKE 'day=2/%'")) == {"n": [2], "day": [2], "File": ["day=2/a.parquet"]}
    listed = session.table([tmp_path / "t/day=1/a.parquet"], path_column="file", hive_partitioning=False)
    assert rows(listed) == {"n": [1], "file": ["a.parquet"]}
    with pytest.raises(forebay.InvalidError, match='called "day", and .* has a folder "day=…"'):
        session.table("t/", path_column="day")
    with pytest.raises(forebay.InvalidError, match='"path_column" must be a string'):
        session.table("t/", path_column=True)
    with pytest.raises(forebay.InvalidError, match='"path_column" applies to files only'):
        session.table({"a": [1]}, path_column="file")


def test_pictures_below_folders_that_name_values(session, tmp_path):
    for name in ["label=cat/a.jpg", "label=dog/b.jpg"]:
        (tmp_path / "med" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "med" / name).write_bytes(b"x")
    assert sorted(rows(session.table("med/").select("label"))["label"]) == ["cat", "dog"]
    (tmp_path / "med" / "c.jpg").write_bytes(b"x")
    assert list(session.table("med/").columns) == ["bytes", "path", "size", "label"]
    paths = [str(tmp_path / "med" / name) for name in ["label=cat/a.jpg", "c.jpg"]]
    assert sorted(rows(session.table(paths).select("path"))["path"]) == sorted(paths)


IMAGE_CALLS = [
    "random_hflip(image)", "random_vflip(image)", "random_rotate(image, 15)", "random_grayscale(image)",
    "random_erasing(image)", "color_jitter(image, brightness => 0.4)", "gaussian_blur(image, 3)", "auto_contrast(image)",
    "equalize(image)", "posterize(image, 4)", "solarize(image, 128)", "trivial_augment(image)", "rand_augment(image)",
    "check_size(image, 8, 9)", "random_pick(image, random_hflip(image))", "normalize(image)", "resize(image, 4, 4)",
]


@pytest.mark.parametrize("call", IMAGE_CALLS)
def test_operators_take_images_in_memory(call):
    images = np.arange(6 * 8 * 9 * 3, dtype=np.uint8).reshape(6, 8, 9, 3)
    [batch] = forebay.table({"image": images}).select(image=call).load(batch_size=6, format="numpy")
    assert batch["image"].shape == ((6, 4, 4, 3) if "resize" in call else images.shape)
