"""A loader returns its threads, file descriptors and memory, however it ends."""

import gc
import json
import os
import signal
import time

import pytest

import forebay
from feeds import child, files, pipeline, printed, range_of
from support import Server

# Threads take a moment to end.
WITHIN_SECONDS = 10
# Tokio keeps threads for blocking work, such as opening files, for 10 s: at most this many here. A leak in any test
# would exceed this.
THREADS_KEPT = 25


def held():
    """Returns the numbers of threads and of file descriptors of this process."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def settles_at(before):
    """Whether the process soon holds no more threads and file descriptors than before."""
    gc.collect()
    deadline = time.monotonic() + WITHIN_SECONDS
    allowed = (before[0] + THREADS_KEPT, before[1])
    while any(now > most for now, most in zip(held(), allowed)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = files(tmp_path_factory.mktemp("resources") / "numbers", count=1000)
    made = forebay.table(folder).pipeline()
    # Create everything that is created only once per process.
    list(made.load(format="numpy", batch_size=100))
    return made


@pytest.fixture
def before(rows):
    gc.collect()
    return held()


def test_loaders_that_were_read_leave_nothing(rows, before):
    for _ in range(30):
        list(rows.load(format="numpy", batch_size=100, shuffle=True))
    assert settles_at(before)


def test_loaders_that_were_dropped_in_the_middle_leave_nothing(rows, before):
    for _ in range(30):
        batches = iter(rows.load(format="numpy", batch_size=10, prefetch_factor=4))
        next(batches)
        del batches
    assert settles_at(before)


def test_many_epochs_leave_nothing(rows, before):
    loader = rows.load(format="numpy", batch_size=100, shuffle=True)
    for _ in range(30):
        for _ in loader:
            pass
    assert settles_at(before)


def test_an_exception_in_the_loop_leaves_nothing(rows, before):
    for _ in range(30):
        with pytest.raises(RuntimeError, match="training"):
            with rows.load(format="numpy", batch_size=10) as loader:
                for _ in loader:
                    raise RuntimeError("training failed")
    assert settles_at(before)


def test_bad_rows_that_end_a_loop_leave_nothing(before):
    broken = pipeline({"text": ["1", "2", "x"]}, "SELECT CAST(text AS BIGINT) AS n FROM {table}")
    for _ in range(30):
        with pytest.raises(forebay.DataError):
            list(broken.load(format="numpy"))
    del broken
    assert settles_at(before)


def test_a_closed_loader_computes_no_more():
    slow = pipeline({"n": range_of(1000)}, "SELECT sleep(n, milliseconds => 2) AS n FROM {table}")
    loader = slow.load(format="numpy", batch_size=1, window_rows=1)
    next(iter(loader))
    loader.close()
    # Work that has begun may finish, but no second window may begin.
    deadline = time.monotonic() + WITHIN_SECONDS
    then = -1.0
    while (now := loader.stats()["compute_seconds"]) != then and time.monotonic() < deadline:
        then = now
        time.sleep(0.2)
    assert now == then


def test_sessions_end_their_threads(before):
    for _ in range(10):
        session = forebay.Session(threads=2)
        assert len(list(session.sql("SELECT n FROM t", t=table_of(10)).load(format="numpy", batch_size=5))) == 2
        del session
    assert settles_at(before)


def table_of(count):
    import pyarrow as pa

    return pa.table({"n": range_of(count)})


def test_connections_end_with_their_loaders(tmp_path, before):
    files(tmp_path / "numbers", 100)
    script = tmp_path / "pipelines.sql"
    script.write_text(
        "CREATE EXTERNAL TABLE numbers STORED AS PARQUET LOCATION 'numbers'; CREATE PIPELINE numbers AS SELECT n FROM numbers"
    )
    with Server(script) as server:
        held_with_server = held()
        for _ in range(15):
            cluster = forebay.connect(server.uri, retry_for=5)
            whole = cluster.load("numbers", format="numpy")
            assert len(list(whole)) == 4
            next(iter(cluster.load("numbers", format="numpy")))
            del cluster, whole
        assert settles_at(held_with_server)
    assert settles_at(before)


def test_servers_end_their_threads(before):
    for _ in range(15):
        with forebay.serve() as server:
            forebay.connect(server.uri, retry_for=5).pipelines()
        del server
    assert settles_at(before)


MEMORY = """
import json, re
import forebay, numpy as np, pyarrow as pa

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

pixels = np.arange(200 * 50_000, dtype="uint8").reshape(200, 50_000)
rows = pa.table({"pixels": pa.FixedSizeListArray.from_arrays(pa.array(pixels.ravel()), 50_000)})
pipeline = forebay.sql("SELECT pixels FROM photographs", photographs=rows)
after = []
loader = pipeline.load(format="numpy", batch_size=16, shuffle=True, window_rows=64)
for epoch in range(20):
    for batch in loader:
        pass
    after.append(resident())
for _ in range(30):
    next(iter(pipeline.load(format="numpy", batch_size=16, shuffle=True)))
print(json.dumps({"epochs": after, "dropped": resident()}))
"""


def test_memory_does_not_grow_over_epochs_and_dropped_loaders():
    used = printed(MEMORY)
    # An epoch is 10 MB. Keeping one batch of each would exceed this by far.
    assert used["epochs"][-1] < used["epochs"][4] + 30
    assert used["dropped"] < used["epochs"][4] + 60


WAITING = """
import json, os, time
import forebay, pyarrow as pa

rows = pa.table({"n": range(20), "wait": [1] * 10 + [3000] * 10})
# The first batch comes at once, the second after half a minute.
query = "SELECT CASE WHEN n < 10 THEN n ELSE sleep(n, milliseconds => 3000) END AS n FROM rows"
loader = forebay.sql(query, rows=rows).load(format="numpy", batch_size=10, window_rows=10, prefetch_factor=1)
batches = iter(loader)
next(batches)
try:
    print("waiting", flush=True)
    next(batches)
    print(json.dumps("came"))
except KeyboardInterrupt:
    interrupted = time.monotonic()
    state = loader.state_dict()
    loader.close()
    print(json.dumps({"offset": state["offset"], "closed_in": time.monotonic() - interrupted}), flush=True)
"""


def test_ctrl_c_ends_a_wait_and_the_process_ends_by_itself():
    process = child(WAITING)
    try:
        assert process.stdout.readline() == "waiting\n", process.stderr.read()
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        said = json.loads(process.stdout.readline())
        noticed = time.monotonic() - sent
        assert said["offset"] == 10
        process.wait(timeout=WITHIN_SECONDS)
        ended = time.monotonic() - sent
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    assert noticed < 3 and said["closed_in"] < 1
    assert ended < WITHIN_SECONDS


UNCAUGHT = WAITING.replace("except KeyboardInterrupt:", "except MemoryError:")


def test_a_ctrl_c_that_nobody_catches_ends_the_process():
    process = child(UNCAUGHT)
    try:
        assert process.stdout.readline() == "waiting\n", process.stderr.read()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=WITHIN_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors


AT_EXIT = """
import json, threading
from feeds import numbers
import forebay
loader = numbers(100_000, batch_size=1)
batches = iter(loader)
next(batches)
server = forebay.serve()
cluster = forebay.connect(server.uri)
thread = threading.Thread(target=lambda: [None for _ in batches], daemon=True)
thread.start()
print(json.dumps("done"))
"""


def test_a_process_ends_with_a_loader_a_server_and_a_daemon_thread_at_work():
    assert printed(AT_EXIT) == "done"


AFTER_CTRL_C = """
import json, signal, threading, time, os
from feeds import pipeline, range_of
loader = pipeline({"n": range_of(12)}, "SELECT sleep(n, milliseconds => 50) AS n FROM {table}").load(
    format="numpy", batch_size=3, window_rows=3)
batches = iter(loader)
got, interrupts = [], 0
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
while True:
    try:
        got.append(next(batches)["n"].tolist())
    except KeyboardInterrupt:
        interrupts += 1
    except StopIteration:
        break
print(json.dumps({"got": got, "interrupts": interrupts}))
"""


def test_a_loop_that_caught_ctrl_c_goes_on_where_it_was():
    said = printed(AFTER_CTRL_C)
    assert said["got"] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert said["interrupts"] == 1
