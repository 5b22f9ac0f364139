"""Python functions in queries."""

import errno
import gc
import os
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import forebay
from support import REPOSITORY

PHOTOS = REPOSITORY / "examples" / "photos"


@forebay.udf(input="int64", output="int64", version=1)
def plus_one(x):
    return pc.add(x, 1)


@forebay.udf(input=["int64", "string"], output="string", version=1, nullable=True)
def labelled(x, text):
    return pa.array([None if n == 3 else f"{t}:{n}" for n, t in zip(x.to_pylist(), text.to_pylist())])


@forebay.udf(input="int64", output=forebay.tensor("float32", [2, 3]), version=1)
def grid(x):
    return np.repeat(x.to_numpy(), 6).reshape(-1, 2, 3).astype("float32")


@forebay.udf(input="int64", output="int64")
def no_seven(x):
    if 7 in x.to_pylist():
        raise ValueError("seven")
    return x


@forebay.udf(input="int64", output="int64")
def too_few(x):
    return x[:0]


@forebay.udf(input="int64", output="int64")
def nulls(x):
    return pa.nulls(len(x), pa.int64())


@forebay.udf(input="int64", output="int64", processes=1, version=1)
def process(x):
    return pa.array([os.getpid()] * len(x))


@forebay.udf(input="int64", output="int64", processes=1)
def fails_elsewhere(x):
    raise RuntimeError("in the other process")


@forebay.udf(input="int64", output="int64", processes=2)
def dies_at_six(x):
    if 6 in x.to_pylist():
        os._exit(7)
    return x


@forebay.udf(input="int64", output="int64", processes=1)
def dies_once(x):
    marker = os.environ["FOREBAY_TEST_MARKER"]
    if not os.path.exists(marker):
        open(marker, "w").close()
        os._exit(7)
    return x


@forebay.udf(input="int64", output="int64")
def runs_out_of_memory(x):
    if 6 in x.to_pylist():
        raise MemoryError("no memory")
    return x


@forebay.udf(input="int64", output="int64", processes=1)
def runs_out_of_disk(x):
    if 6 in x.to_pylist():
        raise OSError(errno.ENOSPC, "no space left on device")
    return x


@forebay.udf(input="int64", output="int64")
def runs_out_of_threads(x):
    if 6 in x.to_pylist():
        raise RuntimeError("can't start new thread")
    return x


@forebay.udf(input="int64", output="int64", processes=2)
def is_killed(x):
    if 6 in x.to_pylist():
        os.kill(os.getpid(), signal.SIGKILL)
    return x


@forebay.udf(input="int64", output="int64")
def opens_a_file(x):
    if 6 in x.to_pylist():
        open("/no/such/file")
    return x


@forebay.udf(input="int64", output="int64")
def exits(x):
    raise SystemExit("enough")


@forebay.udf(input="int64", output="int64", processes=1)
def exits_elsewhere(x):
    raise SystemExit("enough")


@forebay.udf(input=forebay.tensor("uint8", [2, 3]), output=forebay.tensor("float32", [3, 2]), version=1)
def turned(x):
    assert x.dtype == np.uint8 and x.shape[1:] == (2, 3) and not x.flags.writeable
    return 2 * x.transpose(0, 2, 1).astype("float32")


@forebay.udf(input=forebay.tensor("uint8", [2, 3]), output="float64", version=1, processes=1)
def mean_elsewhere(x):
    return x.mean(axis=(1, 2))


@forebay.udf(input=[forebay.tensor("uint8", [None, None, 3]), "int64"], output="float64", version=1)
def mean_times(images, n):
    assert [image.shape[2] for image in images] == [3] * len(n)
    return np.array([image.mean() for image in images]) * n.to_numpy()


@forebay.udf(
    input=forebay.tensor("uint8", [None, None, 3]),
    output=forebay.tensor("uint8", [None, None, 3]),
    version=1,
    nullable=True,
    processes=1,
)
def half(images):
    return [None if len(image) == 2 else image[::2, ::2] for image in images]


@forebay.udf(input=forebay.tensor("uint8", [None, None, 3]), output=forebay.tensor("uint8", [None, None, 3]))
def gray(images):
    return [image.mean(axis=2, keepdims=True) for image in images]


@pytest.fixture
def images():
    """A session with tensors in the table `t`."""
    session = forebay.Session()
    numbers = np.arange(60, dtype=np.uint8)
    session.table({
        "x": numbers.reshape(10, 2, 3),
        "y": numbers.reshape(10, 3, 2),
        "wide": numbers.astype("int16").reshape(10, 2, 3),
        "rgb": np.repeat(numbers, 3).reshape(10, 2, 3, 3),
        "n": range(10),
        "small": pa.array(range(10), pa.int8()),
    }, name="t")
    return session


@pytest.fixture
def session():
    session = forebay.Session()
    session.table(pa.table({"n": range(10), "s": [f"row {n}" for n in range(10)]}), name="t")
    return session


def column(session, expression, **options):
    loader = session.sql(f"SELECT {expression} AS x FROM t").load(format="numpy", batch_size=4, **options)
    return [value for batch in loader for value in batch["x"]]


def test_a_query_calls_it(session):
    assert column(session, "plus_one(n)") == list(range(1, 11))
    assert column(session, "plus_one(plus_one(n)) * 2") == [2 * (n + 2) for n in range(10)]
    assert plus_one(pa.array([1])).to_pylist() == [2]


def test_it_takes_several_columns_and_may_give_nulls(session):
    assert column(session, "labelled(n, s)") == [None if n == 3 else f"row {n}:{n}" for n in range(10)]


def test_it_may_give_tensors(session):
    [first, *_] = session.sql("SELECT grid(n) AS x FROM t").load(format="torch", batch_size=4)
    assert tuple(first["x"].shape) == (4, 2, 3)
    assert first["x"][3].tolist() == [[3.0] * 3] * 2


@pytest.mark.parametrize("piece", [1, 3, 10])
def test_it_gets_tensors_as_arrays(images, piece):
    numbers = np.arange(60).reshape(10, 2, 3)
    batches = images.sql("SELECT turned(x) AS x FROM t").load(format="numpy", batch_size=piece)
    assert np.array_equal(np.concatenate([batch["x"] for batch in batches]), 2 * numbers.transpose(0, 2, 1))
    assert column(images, "mean_elsewhere(x)") == numbers.mean(axis=(1, 2)).tolist()
    # A filter takes rows from the middle of a column.
    filtered = images.sql("SELECT mean_elsewhere(x) AS x FROM t WHERE n % 3 = 1").load(format="numpy")
    assert [value for batch in filtered for value in batch["x"]] == numbers.mean(axis=(1, 2))[1::3].tolist()


def test_it_gets_tensors_of_many_shapes_as_a_list(images):
    photos = images.table(PHOTOS).filter("size > 25000").with_column("image", "decode_image(bytes)")
    [batch] = photos.select("image", "size", mean="mean_times(image, size)").load(format="numpy", batch_size=100)
    assert len({image.shape for image in batch["image"]}) > 1
    expected = [image.mean() * size for image, size in zip(batch["image"], batch["size"])]
    assert batch["mean"].tolist() == expected
    # So are tensors of one shape, and other arguments are coerced.
    assert column(images, "mean_times(rgb, small)") == [n * (6 * n + 2.5) for n in range(10)]


def test_it_may_give_tensors_of_many_shapes(images):
    photos = images.table(PHOTOS).filter("size > 25000").with_column("image", "decode_image(bytes)")
    table = photos.select("image", half="half(image)")
    assert table.columns["half"] == "tensor<uint8>[variable]"
    [batch] = table.load(format="numpy", batch_size=100)
    assert all(np.array_equal(image[::2, ::2], half) for image, half in zip(batch["image"], batch["half"]))
    [batch] = images.sql("SELECT half(rgb) AS x FROM t").load(format="arrow")
    assert batch["x"].null_count == 10
    with pytest.raises(forebay.DataError, match=r"ValueError: gave a tensor of shape \(2, 3, 1\), and declares tensor"):
        column(images, "gray(rgb)")


def test_a_null_tensor_is_a_bad_row(images):
    rows = pa.array([None if n == 4 else [n] * 6 for n in range(10)], pa.list_(pa.uint8(), 6))
    rows = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.uint8(), [2, 3]), rows)
    table = images.sql("SELECT mean_elsewhere(x) AS x FROM with_null", with_null=pa.table({"x": rows}))
    with pytest.raises(forebay.DataError, match="row 4: mean_elsewhere: ValueError: an argument is null"):
        list(table.load(format="numpy"))
    [batch] = table.load(format="numpy", on_error="skip")
    assert len(batch["x"]) == 9


@pytest.mark.parametrize("call, phrase", [
    ("turned(y)", r'turned: argument 1 must be tensor<uint8>\[2, 3\], got "y": tensor<uint8>\[3, 2\]'),
    ("turned(wide)", r'must be tensor<uint8>\[2, 3\], got "wide": tensor<int16>\[2, 3\]'),
    ("turned(turned(x))", r"got tensor<float32>\[3, 2\]"),
    ("turned(n)", 'got "n": Int64'),
    ("turned(x, n)", "turned takes 1 argument, got 2"),
    ("mean_times(x, n)", r'must be tensor<uint8>\[\?, \?, 3\], got "x": tensor<uint8>\[2, 3\]'),
    ("mean_times(rgb, rgb)", "mean_times: argument 2 must be Int64, got "),
    ("mean_times(rgb)", "mean_times takes 2 arguments, got 1"),
])
def test_other_tensors_are_refused_with_their_place(images, call, phrase):
    with pytest.raises(forebay.InvalidError, match=rf"(?s){phrase}.*\^") as error:
        images.sql(f"SELECT {call} AS x FROM t")
    assert "coercion" not in str(error.value)


@pytest.mark.parametrize("shape", [[], [0], [2, -1], [2, "3"], [True]])
def test_the_shape_of_a_tensor_is_checked(shape):
    with pytest.raises(forebay.InvalidError, match="the shape of a tensor is a list of positive integers"):
        forebay.tensor("uint8", shape)


def test_what_it_raises_names_row_and_function(session):
    with pytest.raises(forebay.DataError, match=r't \(in memory\)", row 7: no_seven: ValueError: seven'):
        column(session, "no_seven(n)")
    assert column(session, "no_seven(n)", on_error="skip") == [n for n in range(10) if n != 7]


@pytest.mark.parametrize(
    "call, phrase",
    [
        ("too_few(n)", "returned 0 rows for 1"),
        ("nulls(n)", "returned nulls, and declares that it returns none"),
    ],
)
def test_what_it_gives_is_checked(session, call, phrase):
    with pytest.raises(forebay.DataError, match=phrase):
        column(session, call)


def test_other_types_are_refused_with_their_place(session):
    with pytest.raises(forebay.InvalidError, match=r"(?s)plus_one.*\^"):
        session.sql("SELECT plus_one(s) AS x FROM t")


def test_its_version_is_part_of_the_feed(session):
    def feed(version):
        @forebay.udf(input="int64", output="int64", version=version, name="versioned")
        def function(x):
            return x

        return session.sql("SELECT versioned(n) AS x FROM t").load(format="arrow").feed_id

    assert feed(1) == feed(1)
    assert len({feed(1), feed(2), feed(None)}) == 3


def test_it_runs_in_another_process_where_asked(session):
    found = set(column(session, "process(n)"))
    assert len(found) == 1 and os.getpid() not in found
    with pytest.raises(forebay.DataError, match="RuntimeError: in the other process"):
        column(session, "fails_elsewhere(n)")


def test_a_worker_that_dies_is_an_error_of_its_rows_and_no_others(session):
    with pytest.raises(forebay.DataError, match="row 6: dies_at_six: RuntimeError: its worker process died"):
        column(session, "dies_at_six(n)")
    assert column(session, "dies_at_six(n)", on_error="skip") == [n for n in range(10) if n != 6]
    assert column(session, "dies_at_six(n + 10)") == list(range(10, 20))


def test_a_worker_that_dies_for_no_reason_of_its_rows_is_replaced(session, tmp_path, monkeypatch):
    monkeypatch.setenv("FOREBAY_TEST_MARKER", str(tmp_path / "died"))
    assert column(session, "dies_once(n)") == list(range(10))
    assert (tmp_path / "died").exists()


def test_a_forked_child_shares_no_lock_and_no_worker_processes(session):
    column(session, "process(n)")
    pool = process._pool
    # As if another thread called the function during the fork.
    with process._lock:
        child = os.fork()
        if child == 0:
            is_free = process._lock.acquire(blocking=False)
            # Otherwise the child would end the parent's processes, and remove their folders, when it ends.
            is_apart = process._pool is None and not pool.close.alive
            os._exit(0 if is_free and is_apart else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert pool.close.alive and set(column(session, "process(n)")) == set(column(session, "process(n)"))


@pytest.mark.parametrize("function", ["runs_out_of_memory", "runs_out_of_disk", "runs_out_of_threads", "is_killed"])
@pytest.mark.parametrize("on_error", ["raise", "skip", "quarantine"])
def test_what_the_machine_lacks_is_no_bad_row(session, function, on_error):
    """Which rows it hits depends on load, so leaving them out would make two runs differ."""
    with pytest.raises(forebay.ExhaustedError, match=function):
        column(session, f"{function}(n)", on_error=on_error)


def test_a_file_that_a_row_names_is_the_fault_of_the_row(session):
    assert column(session, "opens_a_file(n)", on_error="skip") == [n for n in range(10) if n != 6]


def test_arrays_that_do_not_fit_into_shared_memory_go_to_the_disk(tmp_path, monkeypatch):
    small, large = tmp_path / "small", tmp_path / "large"
    small.mkdir()
    large.mkdir()
    write = pa.OSFile

    def limited(path, mode):
        file = write(path, mode)
        if small in Path(path).parents:
            file.write(b"some of it")
            raise OSError(errno.ENOSPC, "no space left on device")
        return file

    monkeypatch.setattr(pa, "OSFile", limited)
    path = forebay._udf._write([pa.array([1, 2, 3])], [str(small), str(large)])
    assert Path(path).parent == large
    assert forebay._udf._read(path)[0].to_pylist() == [1, 2, 3]
    with pytest.raises(OSError, match="no space left"):
        forebay._udf._write([pa.array([1, 2, 3])], [str(small)])
    assert list(small.iterdir()) == []


@pytest.mark.parametrize("function", ["exits", "exits_elsewhere"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_what_ends_a_program_is_no_bad_row(session, function, on_error):
    with pytest.raises(SystemExit, match="enough"):
        column(session, f"{function}(n)", on_error=on_error)
    with pytest.raises(SystemExit, match="enough"):
        session.sql(f"SELECT n FROM t WHERE {function}(n) > 0").preview()


def test_a_function_that_is_declared_anew_ends_its_processes(session):
    def declare():
        return forebay.udf(here, input="int64", output="int64", processes=1, name="again")

    first = declare()
    assert column(session, "again(n)") == list(range(10))
    pool = weakref.ref(first._pool)
    folders = first._pool._folders
    assert all(map(os.path.exists, folders))
    del first
    declare()
    session.sql("SELECT again(n) AS x FROM t")
    deadline = time.monotonic() + 10
    while pool() is not None and time.monotonic() < deadline:
        gc.collect()
    assert pool() is None and not any(map(os.path.exists, folders))


def here(x):
    return x


def test_ctrl_c_leaves_worker_processes_to_the_one_that_has_them(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        """
import os, signal
import pyarrow as pa
import forebay

@forebay.udf(input="int64", output="int64", processes=1)
def same(x):
    return x

if __name__ == "__main__":
    made = forebay.sql("SELECT same(n) AS x FROM t", t=pa.table({"n": range(10)}))
    print(len(list(made.load(format="numpy"))))
    try:
        os.killpg(0, signal.SIGINT)
    except KeyboardInterrupt:
        print("interrupted")
    print(len(list(made.load(format="numpy"))))
"""
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, start_new_session=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["1", "interrupted", "1"]


def test_worker_processes_leave_nothing_behind(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        """
import os
import pyarrow as pa
import forebay

@forebay.udf(input="int64", output="int64", processes=2)
def twice(x):
    return pa.array([2 * n for n in x.to_pylist()])

if __name__ == "__main__":
    loader = forebay.sql("SELECT twice(n) AS x FROM t", t=pa.table({"n": range(100)})).load(format="numpy", batch_size=10)
    print(sum(int(batch["x"].sum()) for batch in loader))
    for folder in twice._pool._folders:
        print(folder, len(os.listdir(folder)))
"""
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    total, *folders = done.stdout.splitlines()
    assert int(total) == 9900
    for folder, files in map(str.split, folders):
        assert int(files) == 0 and not os.path.exists(folder)


@pytest.mark.parametrize(
    "options, phrase",
    [
        ({"input": "int46", "output": "int64"}, '"type" must be a pyarrow type, the name of one'),
        ({"input": "int64", "output": "int64", "name": "Bad name"}, '"name" must be a lower case name'),
        ({"input": "int64", "output": "int64", "version": 1.5}, '"version" must be an integer or a string, got 1.5'),
        ({"input": "int64", "output": "int64", "processes": -1}, '"processes" must be an integer of at least 0, got -1'),
    ],
)
def test_declarations_are_checked(options, phrase):
    with pytest.raises(forebay.InvalidError, match=phrase):
        forebay.udf(lambda x: x, **({"name": "f"} | options))


def test_the_name_of_an_operator_is_taken(session):
    try:
        forebay.udf(lambda x: x, input="double", output="double", name="log1p")
        with pytest.raises(forebay.ConflictError, match='a function "log1p" already exists'):
            session.sql("SELECT log1p(n) AS x FROM t")
    finally:
        forebay._udf._functions.pop("log1p")


def test_a_program_may_end_while_a_function_runs(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        """
import time
import pyarrow as pa
import forebay

@forebay.udf(input="int64", output="int64")
def slow(x):
    time.sleep(0.05)
    return x

loader = forebay.sql("SELECT slow(n) AS x FROM t", t=pa.table({"n": range(100_000)})).load(format="numpy", batch_size=64)
next(iter(loader))
"""
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@forebay.udf(input="int64", output=forebay.tensor("int64", [3, 2]))
def sides_swapped(x):
    return np.arange(6 * len(x)).reshape(len(x), 2, 3)


@forebay.udf(input="int64", output=forebay.tensor("int64", [3, 2]))
def sides_swapped_in_a_list(x):
    return list(np.arange(6 * len(x)).reshape(len(x), 2, 3))


@forebay.udf(input="int64", output=forebay.tensor("int64", [3, 2]), nullable=True)
def sides_swapped_beside_null(x):
    rows = np.arange(6 * len(x)).reshape(len(x), 2, 3)
    return [None if n.as_py() == 0 else row for n, row in zip(x, rows)]


@forebay.udf(input="int64", output=forebay.tensor("int64", [3, 2]))
def sides_swapped_in_arrow(x):
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(6 * len(x)).reshape(len(x), 2, 3))


@pytest.mark.parametrize("call", [
    "sides_swapped", "sides_swapped_in_a_list", "sides_swapped_beside_null", "sides_swapped_in_arrow"
])
def test_tensors_of_other_sides_are_refused(session, call):
    with pytest.raises(forebay.DataError, match=rf"{call}: ValueError: gave .*, and declares tensor<int64>\[3, 2\]"):
        column(session, f"{call}(n)")


@forebay.udf(input="int64", output=forebay.tensor("int64", [3, 2]), nullable=True)
def many_forms(x):
    rows = np.arange(6 * len(x)).reshape(len(x), 3, 2)
    forms = [rows, rows.reshape(-1, 6), list(rows), list(rows.reshape(-1, 6)), pa.array(list(rows.reshape(-1, 6)))]
    forms += [[None, *rows[1:]], pa.FixedShapeTensorArray.from_numpy_ndarray(rows), rows[:0] if len(x) == 0 else rows]
    return forms[x[0].as_py() % len(forms)]


@pytest.mark.parametrize("form", range(8))
def test_tensors_have_many_forms(form):
    table = forebay.Session().table({"n": [form] * 3})
    [batch] = table.select(x="many_forms(n)").load(format="arrow")
    expected = np.arange(18).reshape(3, 6).tolist()
    assert batch["x"].storage.to_pylist() == [None if form == 5 else expected[0], *expected[1:]]


@forebay.udf(input=forebay.tensor("int64", [2]), output="int64")
def first_of_two(x):
    return x[:, 0].copy()


@forebay.udf(input=forebay.tensor("int64", [None]), output="int64")
def first_of_many(x):
    return np.array([row[0] for row in x])


@pytest.mark.parametrize("call", ["first_of_two", "first_of_many"])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_null_element_is_a_bad_row_and_changes_no_other(call, batch_size):
    rows = pa.array([[2**53 + 1, 0], [1, None], [2**53 + 3, 0], None], pa.list_(pa.int64(), 2))
    table = forebay.Session().table(pa.table({"x": rows})).select(x=f"{call}(x)")
    batches = list(table.load(format="numpy", batch_size=batch_size, on_error="skip"))
    assert [value for batch in batches for value in batch["x"].tolist()] == [2**53 + 1, 2**53 + 3]
    with pytest.raises(forebay.DataError, match=f"row 1: {call}: ValueError: an "):
        list(table.load(format="numpy", batch_size=batch_size))
