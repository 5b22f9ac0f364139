"""Batches as TensorFlow's tensors. Runs only if TensorFlow is installed, which is too large for the tests'
requirements."""

import datetime

import numpy as np
import pyarrow as pa
import pytest

import forebay
from feeds import pipeline, range_of

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

NUMBERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64", "bool"]


def read(columns, **options):
    return list(pipeline(columns).load(format="tf", **{"batch_size": 3} | options))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_numbers_keep_type_shape_and_values(dtype):
    values = np.array([0, 1, 1, 0, 1]).astype(dtype)
    first, second = (batch["x"] for batch in read({"x": pa.array(values)}))
    assert isinstance(first, tf.Tensor) and first.dtype == dtype and first.shape == (3,)
    assert [*first.numpy().tolist(), *second.numpy().tolist()] == values.tolist()


def test_marked_bits_are_bfloat16():
    field = pa.field("x", pa.uint16(), metadata={"forebay:dtype": "bfloat16"})
    [batch] = read(pa.table([pa.array([0x3F80, 0x4000], pa.uint16())], schema=pa.schema([field])))
    assert batch["x"].dtype == tf.bfloat16 and tf.cast(batch["x"], tf.float32).numpy().tolist() == [1, 2]


@pytest.mark.parametrize("order", [None, [2, 0, 1]], ids=str)
def test_tensors_have_their_full_shape(order):
    pixels = np.arange(5 * 2 * 3 * 4, dtype="float32").reshape(5, 2, 3, 4)
    type = pa.fixed_shape_tensor(pa.float32(), [2, 3, 4], permutation=order)
    storage = pa.FixedSizeListArray.from_arrays(pa.array(pixels.ravel()), 24)
    expected = pixels.transpose([0, *(at + 1 for at in order or range(3))])
    got = tf.concat([batch["x"] for batch in read({"x": pa.ExtensionArray.from_storage(type, storage)})], 0)
    assert np.array_equal(got, expected)


def test_lists_texts_and_structs():
    lists = [[1, 2], [], [3], [4, 5, 6], []]
    rows = pa.table({"r": pa.array(lists, pa.list_(pa.int32())), "t": list("abcde"), "s": [{"n": n} for n in range(5)]})
    first, second = read(rows)
    assert isinstance(first["r"], forebay.Ragged)
    made = tf.RaggedTensor.from_row_splits(second["r"].values, second["r"].offsets)
    assert [row.numpy().tolist() for row in first["r"]] + made.to_list() == lists
    assert first["t"] == ["a", "b", "c"] and second["s"]["n"].numpy().tolist() == [3, 4]


def test_times_are_integers():
    days = pa.array([datetime.date(1970, 1, 2)] * 2, pa.date32())
    [batch] = read({"x": days, "l": pa.array([[datetime.date(1970, 1, 3)]] * 2, pa.list_(pa.date32()))})
    assert batch["x"].dtype == tf.int64 and batch["x"].numpy().tolist() == [1, 1]
    assert batch["l"].values.numpy().tolist() == [2, 2]


def test_a_model_trains_on_batches():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(256, 4)).astype("float32")
    rows = pa.table({
        "x": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 4),
        "y": pa.array((x @ [1, -2, 3, 0.5]).astype("float32")),
    })
    loader = pipeline(rows).load(format="tf", batch_size=32, shuffle=True, epochs=20)
    weights, losses = tf.Variable(tf.zeros([4, 1])), []
    for batch in loader:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.squeeze(batch["x"] @ weights) - batch["y"]) ** 2)
        losses.append(float(loss))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
    assert losses[-1] < losses[0] / 100


def test_tensors_outlive_the_loader_and_batches_may_go_first():
    loader = pipeline({"n": range_of(1000)}).load(format="tf", batch_size=100)
    kept = [batch["n"] for batch in loader]
    loader.close()
    del loader
    assert tf.concat(kept, 0).numpy().tolist() == list(range(1000))


def test_a_dataset_of_batches():
    loader = pipeline({"n": range_of(50)}).load(format="tf", batch_size=8)
    made = tf.data.Dataset.from_generator(lambda: loader, output_signature={"n": tf.TensorSpec([None], tf.int64)})
    assert [n for batch in made for n in batch["n"].numpy().tolist()] == list(range(50))
