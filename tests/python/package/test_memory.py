"""A batch's memory: exporting it copies nothing, and writing to a batch changes only that batch."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from feeds import pipeline, range_of


def native_batch(loader):
    """Returns a batch before its conversion to a framework."""
    return loader._feed.read(loader._options("0:0", 0), 1).next()


def rows():
    """Returns 40 rows of several fixed shapes."""
    return pa.table({
        "n": range_of(40),
        "pair": pa.FixedSizeListArray.from_arrays(pa.array(range(80), pa.float32()), 2),
        "pixels": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(240, dtype="uint8").reshape(40, 2, 3)),
        "tokens": pa.array([[n] * (n % 3) for n in range(40)], pa.list_(pa.int64())),
    })


def test_frameworks_get_the_same_memory():
    native = native_batch(pipeline(rows()).load(batch_size=8)).columns()
    for name in ("n", "pair", "pixels"):
        address = torch.from_dlpack(native[name]).data_ptr()
        assert torch.from_dlpack(native[name]).data_ptr() == address
        assert np.from_dlpack(native[name]).ctypes.data == address
    tokens = native["tokens"].values
    assert torch.from_dlpack(tokens).data_ptr() == np.from_dlpack(tokens).ctypes.data


def test_arrow_gets_the_same_memory():
    native = native_batch(pipeline(rows()).load(batch_size=8))
    address = np.from_dlpack(native.columns()["n"]).ctypes.data
    column = pa.record_batch(native)["n"]
    assert column.buffers()[1].address + column.offset * 8 == address


def test_a_copy_is_made_only_where_it_is_asked_for():
    native = native_batch(pipeline(rows()).load(batch_size=8)).columns()["n"]
    ours = np.from_dlpack(native)
    copied = np.from_dlpack(native, copy=True)
    assert copied.ctypes.data != ours.ctypes.data
    assert copied.tolist() == ours.tolist()
    with pytest.raises(BufferError, match="device"):
        native.__dlpack__(dl_device=(2, 0))


def test_a_capsule_that_nobody_takes_is_freed():
    native = native_batch(pipeline(rows()).load(batch_size=8)).columns()["n"]
    for version in (None, (1, 0)):
        for _ in range(1000):
            native.__dlpack__(max_version=version)
    assert np.from_dlpack(native).tolist() == list(range(8))


def test_a_native_tensor_says_what_it_is():
    native = native_batch(pipeline(rows()).load(batch_size=8)).columns()["pixels"]
    assert (native.shape, native.dtype, native.nbytes, native.unit) == ((8, 2, 3), "uint8", 48, None)
    assert native.__dlpack_device__() == (1, 0)


def spoil(batch):
    for column in batch.values():
        tensor = getattr(column, "values", column)
        tensor[...] = 99


def copy(batch):
    return {name: np.array(getattr(column, "values", column)) for name, column in batch.items()}


def is_equal(batch, other):
    return all(np.array_equal(getattr(batch[name], "values", batch[name]), other[name]) for name in other)


@pytest.mark.parametrize("shuffle", [False, True])
def test_writing_to_a_batch_changes_no_other_batch_reader_or_epoch(shuffle):
    table = rows()
    shared = pipeline(table)
    options = {"format": "numpy", "batch_size": 8, "shuffle": shuffle}
    expected = [copy(batch) for batch in shared.load(**options, epochs=2)]
    other = iter(shared.load(**options, epochs=2))
    beside = [next(other)]
    for step, batch in enumerate(shared.load(**options, epochs=2)):
        assert is_equal(batch, expected[step])
        spoil(batch)
    beside.extend(other)
    assert all(is_equal(batch, known) for batch, known in zip(beside, expected, strict=True))
    assert table.equals(rows())


@pytest.mark.parametrize(
    "query",
    [
        "SELECT n AS a, n AS b FROM {table}",
        "SELECT struct(n AS inner_n) AS a, n AS b FROM {table}",
        "SELECT pair AS a, pair AS b FROM {table}",
        "SELECT tokens AS a, tokens AS b FROM {table}",
        "SELECT pixels AS a, pixels AS b FROM {table}",
    ],
)
def test_writing_to_a_column_changes_no_other_of_the_same_expression(query):
    batch = next(iter(pipeline(rows(), query).load(format="numpy", batch_size=8)))
    before = copy({"b": batch["b"]})
    spoil(batch["a"] if isinstance(batch["a"], dict) else {"a": batch["a"]})
    assert is_equal(batch, before)


def test_arrow_batches_of_a_writing_loop_stay():
    shared = pipeline(rows())
    arrow = iter(shared.load(format="arrow", batch_size=8))
    before = next(arrow)
    for batch in shared.load(format="numpy", batch_size=8):
        spoil(batch)
    assert before["n"].to_pylist() == list(range(8))
