"""Columns of every Arrow type, as NumPy, torch, JAX and Arrow represent them."""

import datetime
import decimal
import gc
import math
import pickle
import re

import jax
import numpy as np
import pyarrow as pa
import pytest
import torch

import forebay
from feeds import pipeline, range_of
from support import REPOSITORY

NUMBERS = {
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.uint8(): "uint8",
    pa.uint16(): "uint16",
    pa.uint32(): "uint32",
    pa.uint64(): "uint64",
    pa.float16(): "float16",
    pa.float32(): "float32",
    pa.float64(): "float64",
    pa.bool_(): "bool",
}


def read(column, format="numpy", query="SELECT * FROM {table}", batch_size=3):
    """Returns the column `x` of each batch."""
    loader = pipeline({"x": column}, query).load(format=format, batch_size=batch_size)
    return [batch["x"] for batch in loader]


def array_of(type):
    return pa.array(np.array([0, 1, 1, 0, 1]).astype(NUMBERS[type]), type)


@pytest.mark.parametrize("type", NUMBERS, ids=str)
def test_numbers_keep_type_shape_and_values_in_numpy(type):
    first, second = read(array_of(type))
    assert first.dtype == second.dtype == NUMBERS[type]
    assert first.shape == (3,) and second.shape == (2,)
    assert first.tolist() == [0, 1, 1] and second.tolist() == [0, 1]


@pytest.mark.parametrize("type", NUMBERS, ids=str)
def test_numbers_keep_type_shape_and_values_in_torch(type):
    first, second = read(array_of(type), "torch")
    assert first.dtype == getattr(torch, NUMBERS[type])
    assert first.shape == (3,) and first.is_contiguous()
    assert first.tolist() == [0, 1, 1] and second.tolist() == [0, 1]


@pytest.mark.parametrize("type", [t for t in NUMBERS if t.bit_width < 64], ids=str)
def test_numbers_keep_type_shape_and_values_in_jax(type):
    # JAX narrows 64 bits to 32 unless `jax_enable_x64` is set.
    first, second = read(array_of(type), "jax")
    assert isinstance(first, jax.Array)
    assert first.dtype == NUMBERS[type] and first.shape == (3,)
    assert first.tolist() == [0, 1, 1] and second.tolist() == [0, 1]


@pytest.mark.parametrize("type", NUMBERS, ids=str)
def test_arrow_stays_as_it_is(type):
    first, second = read(array_of(type), "arrow")
    assert pa.concat_arrays([first, second]).equals(array_of(type))


@pytest.mark.parametrize("format, bfloat16", [("numpy", "bfloat16"), ("torch", torch.bfloat16), ("jax", "bfloat16")])
def test_marked_bits_are_bfloat16(format, bfloat16):
    marked = {"forebay:dtype": "bfloat16"}
    bits = pa.array([0x3F80, 0x4000], pa.uint16())
    pairs = pa.FixedSizeListArray.from_arrays(pa.array([0x3F80, 0x4000, 0xC000, 0], pa.uint16()), 2)
    schema = pa.schema([pa.field("x", pa.uint16(), metadata=marked), pa.field("y", pairs.type, metadata=marked)])
    [batch] = pipeline(pa.table([bits, pairs], schema=schema)).load(format=format)
    assert batch["x"].dtype == bfloat16
    assert [float(value) for value in batch["x"]] == [1, 2]
    assert [[float(value) for value in row] for row in batch["y"]] == [[1, 2], [-2, 0]]


@pytest.mark.parametrize("format, bfloat16", [("numpy", "bfloat16"), ("torch", torch.bfloat16), ("jax", "bfloat16")])
def test_what_is_cast_to_bfloat16_arrives_as_such(format, bfloat16):
    rows = pa.array([[1.0, 2.0, -0.5, 1.00390625]], pa.list_(pa.float32()))
    [x] = read(rows, format, "SELECT cast_tensor(reshape(x, shape => [2, 2]), type => 'bfloat16') AS x FROM {table}")
    assert x.dtype == bfloat16 and tuple(x.shape) == (1, 2, 2)
    assert [[float(value) for value in row] for row in x[0]] == [[1, 2], [-0.5, 1]]


def test_unmarked_16_bit_integers_are_integers():
    [x] = read(pa.array([0x3F80], pa.uint16()), "torch")
    assert x.dtype == torch.uint16 and x.tolist() == [0x3F80]


@pytest.mark.parametrize("format", ["numpy", "torch", "jax"])
def test_fixed_size_lists_and_tensors_have_their_full_shape(format):
    pixels = np.arange(5 * 2 * 3, dtype="float32").reshape(5, 2, 3)
    rows = pa.table({
        "pair": pa.FixedSizeListArray.from_arrays(pa.array(range(10), pa.int32()), 2),
        "pixels": pa.FixedShapeTensorArray.from_numpy_ndarray(pixels),
    })
    first, second = pipeline(rows).load(format=format, batch_size=3)
    assert tuple(first["pair"].shape) == (3, 2) and second["pair"].tolist() == [[6, 7], [8, 9]]
    assert tuple(first["pixels"].shape) == (3, 2, 3)
    assert np.array_equal(np.concatenate([first["pixels"], second["pixels"]]), pixels)


def test_images_of_one_size_are_one_tensor_and_of_several_sizes_a_list():
    shared = forebay.sql(
        """SELECT decode_image(bytes) AS original, resize(decode_image(bytes), height => 5, width => 4) AS small, path
        FROM photographs WHERE path LIKE '%/00%'""",
        photographs=REPOSITORY / "examples" / "photos",
    )
    batch = next(iter(shared.load(format="torch", batch_size=6)))
    assert batch["small"].shape == (6, 5, 4, 3) and batch["small"].dtype == torch.uint8
    assert [image.dim() for image in batch["original"]] == [3] * 6
    records = next(iter(shared.load(format="arrow", batch_size=6)))
    for image, record in zip(batch["original"], records["original"]):
        storage = record.as_py()
        assert list(image.shape) == list(storage["shape"])
        assert image.flatten().tolist() == storage["data"]


@pytest.mark.parametrize("type", [pa.list_(pa.int32()), pa.large_list(pa.int32())], ids=str)
def test_lists_of_numbers_are_ragged(type):
    lists = [[1, 2], [], [3], [], [4, 5, 6]]
    first, second = read(pa.array(lists, type))
    assert isinstance(first, forebay.Ragged) and len(first) == 3
    assert first.values.dtype == "int32" and first.values.tolist() == [1, 2, 3]
    # The second batch is the end of a larger array. Its offsets must still begin at 0.
    assert second.offsets.tolist() == [0, 0, 3] and second.values.tolist() == [4, 5, 6]
    assert [row.tolist() for batch in (first, second) for row in batch] == lists
    assert first[-1].tolist() == [3]
    with pytest.raises(IndexError, match="row 3 of 3"):
        first[3]


@pytest.mark.parametrize("format", ["numpy", "torch", "jax"])
def test_padding_makes_one_tensor_of_lists(format):
    ids, boxes = [[1, 2, 3], [], [4], [5, 6]], [[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]], [], [[7.0, 8.0]]]
    lists = pipeline({
        "ids": pa.array(ids, pa.list_(pa.int32())),
        "boxes": pa.array(boxes, pa.list_(pa.list_(pa.float32(), 2))),
        "kept": pa.array(ids, pa.list_(pa.int32())),
        "pair": pa.array([[1, 2]] * 4, pa.list_(pa.int32(), 2)),
    })
    loader = lists.load(format=format, batch_size=2, padding={"ids": -100, "boxes": 0.5, "pair": 9})
    first, second = loader
    assert [batch["ids"].tolist() for batch in (first, second)] == [[[1, 2, 3], [-100] * 3], [[4, -100], [5, 6]]]
    assert str(first["ids"].dtype).endswith("int32") and type(first["ids"]) is type(first["pair"])
    assert first["boxes"].tolist() == [[[1, 2], [0.5, 0.5]], [[3, 4], [5, 6]]]
    assert second["boxes"].tolist() == [[[0.5, 0.5]], [[7, 8]]]
    assert isinstance(first["kept"], forebay.Ragged) and first["pair"].tolist() == [[1, 2]] * 2
    assert second["kept"].to_padded_tensor(7.0).tolist() == [[4, 7], [5, 6]]


@pytest.mark.parametrize("format", ["numpy", "torch", "jax", "tensorflow"])
@pytest.mark.parametrize("type, values, bad, good", [
    (pa.uint8(), [1, 2], [-100, 256], [0, 255]),
    (pa.int32(), [1, 2], [1 << 31, -(1 << 31) - 1], [-(1 << 31)]),
    (pa.bool_(), [True, False], [-100, 2], [True, 0]),
    (pa.float32(), [1.0, 2.0], [1e39], [-math.inf, -1e38, 0]),
])
def test_padding_must_fit_into_the_values(format, type, values, bad, good):
    if format == "tensorflow":
        pytest.importorskip("tensorflow")
    lists = pipeline({"x": pa.array([values, values[:1]], pa.list_(type))})
    for padding in bad:
        with pytest.raises(forebay.InvalidError, match=re.escape(f"padding {padding} does not fit into the values")):
            next(iter(lists.load(format=format, padding={"x": padding})))
    for padding in good:
        [batch] = lists.load(format=format, padding={"x": padding})
        assert np.asarray(batch["x"]).tolist() == [values, [values[0], np.float32(padding)]]


@pytest.mark.parametrize("format", ["numpy", "torch", "jax"])
def test_padding_copies_nothing_of_lists_of_one_length(format):
    [same] = pipeline({"x": pa.array([[1, 2], [3, 4]])}).load(format=format)
    assert same["x"].to_padded_tensor().tolist() == [[1, 2], [3, 4]]
    if format == "torch":
        assert same["x"].to_padded_tensor().data_ptr() == same["x"].values.data_ptr()
    with pytest.raises(forebay.InvalidError, match="0.5 is no integer"):
        same["x"].to_padded_tensor(0.5)
    with pytest.raises(AttributeError, match="'shape', because its rows may have different lengths; .* padding="):
        same["x"].shape
    again = pickle.loads(pickle.dumps(same["x"]))
    assert [row.tolist() for row in again] == [[1, 2], [3, 4]]


def test_padding_of_a_column_without_lists_is_refused():
    rows = pipeline({"text": pa.array(["a", "b"]), "n": pa.array([1, 2])})
    for name in ("text", "n"):
        with pytest.raises(forebay.InvalidError, match=f'"{name}", which holds no lists of numbers'):
            next(iter(rows.load(format="numpy", padding={name: 0})))


def test_only_empty_lists_are_ragged_too():
    [ragged] = read(pa.array([[], [], []], pa.list_(pa.float32())), "torch")
    assert ragged.values.shape == (0,) and ragged.values.dtype == torch.float32
    assert ragged.offsets.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("of", [pa.list_, pa.large_list])
@pytest.mark.parametrize("format", ["numpy", "torch", "jax"])
def test_lists_of_boxes_are_ragged_with_their_full_shape(format, of):
    lists = [[[1, 2, 3, 4], [5, 6, 7, 8]], [], [[9, 9, 9, 9]], [], [[0, 0, 1, 1]]]
    first, second = read(pa.array(lists, of(pa.list_(pa.float32(), 4))), format)
    assert isinstance(first, forebay.Ragged) and tuple(first.values.shape) == (3, 4)
    # The second batch is the end of a larger array.
    assert tuple(second.values.shape) == (1, 4) and second.offsets.tolist() == [0, 0, 1]
    assert [row.tolist() for batch in (first, second) for row in batch] == lists
    assert tuple(first[1].shape) == (0, 4)


def test_a_null_box_is_an_error():
    boxes = pa.array([[[1, 2], None]], pa.list_(pa.list_(pa.float32(), 2)))
    with pytest.raises(forebay.DataError, match='"x" has nulls'):
        read(boxes)


def permuted(values, order):
    """Returns tensors whose rows lie in memory like those of `values`, with the dimensions permuted by `order`."""
    type = pa.fixed_shape_tensor(pa.from_numpy_dtype(values.dtype), values.shape[1:], permutation=order)
    storage = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values[0].size)
    return pa.ExtensionArray.from_storage(type, storage)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0], [2, 1, 0]], ids=str)
@pytest.mark.parametrize("format", ["numpy", "torch", "jax"])
def test_tensors_are_shown_in_the_order_of_their_type(format, order):
    pixels = np.arange(5 * 2 * 3 * 4, dtype="int32").reshape(5, 2, 3, 4)
    expected = pixels.transpose([0, *(at + 1 for at in order)])
    loader = pipeline({"x": permuted(pixels, order)}).load(format=format, batch_size=3)
    assert loader.columns["x"] == f"tensor<int32>{list(expected.shape[1:])}"
    first, second = (batch["x"] for batch in loader)
    assert np.array_equal(np.concatenate([first, second]), expected)
    if format != "jax":
        # This is a view, as cheap as one in memory order.
        strides = first.strides if format == "numpy" else [side * 4 for side in first.stride()]
        assert list(strides) == list(expected.strides)


def test_a_permutation_that_is_none_is_refused():
    field = pa.field("x", pa.list_(pa.int32(), 6), metadata={
        "ARROW:extension:name": "arrow.fixed_shape_tensor",
        "ARROW:extension:metadata": '{"shape": [2, 3], "permutation": [1, 1]}',
    })
    schema = pa.schema([field])
    rows = pa.table([pa.array([[1, 2, 3, 4, 5, 6]], field.type)], schema=schema)
    with pytest.raises(forebay.DataError, match="its permutation is not one of its dimensions"):
        next(iter(pipeline(rows).load(format="numpy")))


DAY = datetime.date(2026, 2, 3)
TIMES = {
    pa.date32(): "datetime64[D]",
    pa.date64(): "datetime64[ms]",
    pa.timestamp("s"): "datetime64[s]",
    pa.timestamp("ms"): "datetime64[ms]",
    pa.timestamp("us", "UTC"): "datetime64[us]",
    pa.timestamp("ns"): "datetime64[ns]",
}


@pytest.mark.parametrize("type", TIMES, ids=str)
def test_dates_and_times_keep_their_unit_in_numpy(type):
    moment = DAY if pa.types.is_date(type) else datetime.datetime(2026, 2, 3)
    [x] = read(pa.array([moment], type))
    assert x.dtype == TIMES[type]
    assert x[0] == np.datetime64("2026-02-03")


def test_dates_and_times_are_integers_in_torch():
    [x] = read(pa.array([DAY], pa.date32()), "torch")
    assert x.dtype == torch.int64 and x.tolist() == [(DAY - datetime.date(1970, 1, 1)).days]


@pytest.mark.parametrize("type", TIMES, ids=str)
@pytest.mark.parametrize("list_of", [pa.list_, pa.large_list, lambda type: pa.list_(type, 2)], ids=["lists", "large", "pairs"])
def test_lists_of_times_keep_their_unit_in_numpy(list_of, type):
    moment = DAY if pa.types.is_date(type) else datetime.datetime(2026, 2, 3)
    [x] = read(pa.array([[moment, moment], [moment, moment]], list_of(type)))
    row = x[1]
    assert row.dtype == TIMES[type] and row.tolist() == np.array(["2026-02-03"] * 2, TIMES[type]).tolist()


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_durations_keep_their_unit_in_numpy(unit):
    [x] = read(pa.array([90], pa.duration(unit)))
    assert x.dtype == f"timedelta64[{unit}]"


OBJECTS = {
    "text": pa.array(["a", None, "é"]),
    "large text": pa.array(["a", None, "é"], pa.large_string()),
    "text views": pa.array(["a", None, "é" * 20], pa.string_view()),
    "bytes": pa.array([b"a", None, b""]),
    "large bytes": pa.array([b"a", None, b""], pa.large_binary()),
    "byte views": pa.array([b"a", None, b"b" * 20], pa.binary_view()),
    "fixed bytes": pa.array([b"ab", None, b"cd"], pa.binary(2)),
    "decimals": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-2.25")]),
    "wide decimals": pa.array([decimal.Decimal("1.500"), None], pa.decimal256(50, 3)),
    "lists of text": pa.array([["a", None], [], None]),
    "lists of lists": pa.array([[[1], [2, 3]], [], [[]]]),
    "lists of structs": pa.array([[{"a": 1, "b": "x"}, {"a": None, "b": None}], []]),
    "lists of large integers": pa.array([[[2**64 - 1]], [[0]]], pa.list_(pa.list_(pa.uint64()))),
    "categories": pa.array(["a", "b", "a"]).dictionary_encode(),
    "maps": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
    "times of day in seconds": pa.array([datetime.time(1, 2, 3), None], pa.time32("s")),
    "nothing": pa.nulls(3),
    "lists of nothing": pa.array([[None, None], [], None]),
    "structs of nothing": pa.array([[{"a": None}], [{"a": None}]], pa.list_(pa.struct([("a", pa.null())]))),
    "maps to nothing": pa.array([[("k", None)]], pa.map_(pa.string(), pa.null())),
}


@pytest.mark.parametrize("column", OBJECTS.values(), ids=OBJECTS.keys())
@pytest.mark.parametrize("format", ["numpy", "torch"])
def test_what_is_no_tensor_is_a_list_of_objects(column, format):
    [x] = read(column, format)
    assert x == column.to_pylist()


def test_number_types_without_a_tensor_are_numbers():
    [runs] = read(pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([5, 6])))
    assert list(runs) == [5, 5, 6]
    [views] = read(pa.array([[1, 2], [3]], pa.list_view(pa.int32())))
    assert [list(row) for row in views] == [[1, 2], [3]]


def test_numbers_in_categories_are_tensors():
    [x] = read(pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array([5, 6])))
    assert x.dtype == "int64" and x.tolist() == [5, 6, 5]


def test_structs_are_dicts_of_columns():
    [x] = read(pa.array([{"a": 1, "b": "x", "c": {"d": [1.5]}}, {"a": 2, "b": None, "c": {"d": []}}]), "torch")
    assert x["a"].tolist() == [1, 2] and x["a"].dtype == torch.int64
    assert x["b"] == ["x", None]
    assert x["c"]["d"].values.tolist() == [1.5]


@pytest.mark.parametrize("type", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_null_floats_are_nan(type):
    [x] = read(pa.array(np.array([1.5, 0]).astype(NUMBERS[type]), type, mask=np.array([False, True])))
    assert x.dtype == NUMBERS[type]
    assert x[0] == 1.5 and np.isnan(x[1])


NULLS = {
    "integers": pa.array([1, None]),
    "booleans": pa.array([True, None]),
    "dates": pa.array([DAY, None]),
    "lists": pa.array([[1], None]),
    "items": pa.array([[1], [None]]),
    "fixed lists": pa.array([[1, 2], None], pa.list_(pa.int64(), 2)),
    "structs": pa.array([{"a": 1}, None]),
}


@pytest.mark.parametrize("column", NULLS.values(), ids=NULLS.keys())
def test_nulls_that_a_tensor_cannot_hold_are_refused(column):
    with pytest.raises(forebay.DataError, match='column "x" has nulls') as raised:
        read(column)
    assert "coalesce" in raised.value.hint
    [arrow] = read(column, "arrow")
    assert arrow.to_pylist() == column.to_pylist()


def test_a_batch_is_refused_only_if_its_own_rows_have_nulls():
    loader = iter(pipeline({"x": pa.array([1, 2, 3, None])}).load(format="numpy", batch_size=2))
    assert next(loader)["x"].tolist() == [1, 2]
    with pytest.raises(forebay.DataError):
        next(loader)


@pytest.mark.parametrize("type", NUMBERS, ids=str)
def test_small_batches_of_large_pieces_hold_their_own_rows(type):
    expected = np.arange(1000).astype(NUMBERS[type])
    parts = read(pa.array(expected, type), batch_size=7)
    assert [len(part) for part in parts] == [7] * 142 + [6]
    assert np.array_equal(np.concatenate(parts), expected)


def test_lists_in_small_batches_of_large_pieces_hold_their_own_rows():
    lists = [list(range(n % 5)) for n in range(200)]
    got = [row.tolist() for part in read(pa.array(lists, pa.list_(pa.int16())), batch_size=7) for row in part]
    assert got == lists


@pytest.mark.parametrize("format", ["numpy", "torch", "arrow"])
def test_columns_come_in_the_order_they_were_asked_for(format):
    loader = pipeline({"a": range_of(3), "b": range_of(3), "c": range_of(3)}).load(format=format, columns=["c", "a"])
    [batch] = loader
    names = batch.schema.names if format == "arrow" else list(batch)
    assert names == ["c", "a"] == list(loader.columns)


def test_a_batch_knows_its_place():
    batches = list(pipeline({"n": range_of(10)}).load(format="numpy", batch_size=4, rank=1, world_size=2, epochs=2))
    assert [(batch.epoch, batch.step, batch.offset) for batch in batches] == [(0, 0, 4), (1, 0, 4)]


def test_tensors_outlive_the_loader():
    loader = pipeline({"n": range_of(1000)}).load(format="torch", batch_size=100)
    kept = [batch["n"] for batch in loader]
    loader.close()
    del loader
    gc.collect()
    # If the memory had been freed, this would reuse it.
    others = [torch.full((100,), -1) for _ in range(100)]
    assert torch.cat(kept).tolist() == list(range(1000))
    del others


def test_bytes_are_those_of_the_rows_handed_out():
    # Small batches of one large piece share its memory, and lists share the memory of their values.
    rows = pa.table({"n": range_of(1000), "tokens": [[1, 2, 3, 4]] * 1000, "text": ["ab"] * 1000})
    loader = pipeline(rows, "SELECT n, tokens, text, struct(n AS m) AS s FROM {table}").load(format="numpy", batch_size=10)
    for _ in loader:
        pass
    values = 1000 * (8 + 4 * 8 + 2 + 8)
    offsets = 100 * 11 * (4 + 4)
    assert values <= loader.stats()["bytes"] <= values + 2 * offsets
