"""Faults over real processes, in a short form: see `chaos.py` for rounds as long as one likes."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from chaos import KINDS, Round
from cluster import (
    PATIENCE_SECONDS,
    UNAVAILABLE,
    Cluster,
    Delivered,
    Failure,
    Job,
    check,
    tail,
    undisturbed,
    wait_for_status,
    write_script,
)
from support import Process, Server, binary, environment, limited, with_small_folders


@pytest.fixture
def started(tmp_path):
    """Returns functions that start a cluster and a job of its ranks; both end with the test."""
    with ExitStack() as stack:

        def cluster(script, **options) -> Cluster:
            cluster = Cluster(tmp_path, script, **options)
            stack.callback(cluster.close)
            return cluster

        def job(cluster: Cluster, **options) -> Job:
            job = Job(tmp_path, cluster.uris, **options)
            stack.callback(job.close)
            return job

        yield cluster, job


def read_to_the_end(job: Job, cluster: Cluster):
    job.read_until(float("inf"), "all ranks to end")
    cluster.check_alive()
    cluster.check_logs()


def wait_for_end(process: subprocess.Popen, job: Job, what: str) -> int:
    """Waits for the end of a process, while a job reads on."""
    until = time.monotonic() + PATIENCE_SECONDS
    while process.poll() is None and time.monotonic() < until:
        job.hear(0.2)
    assert process.poll() is not None, f"waited {PATIENCE_SECONDS} s for the end of {what}"
    return process.returncode


# ---------------------------------------------------------------- the check itself


def test_the_check_finds_what_was_lost_doubled_changed_or_given_to_another_rank():
    def batch(offset: int, ids: str, digest: str = "d") -> Delivered:
        return Delivered(0, offset, digest, tuple(ids), "token")

    first, second, third, fourth = whole = [batch(0, "ab"), batch(2, "cd"), batch(4, "ef"), batch(6, "gh")]
    expected = {batch.place: batch for batch in whole}
    check([[first, third], [second, fourth]], expected, "ordered")
    check([[second, first], [fourth, third]], expected, "dynamic")
    for ranks, delivery, reason in [
        ([[first, third], [second]], "ordered", r"2 samples were never trained on"),
        ([[first, third], [second, third, fourth]], "dynamic", r"and 2 once too often.*\(0, 'e'\)"),
        (
            [[first, third], [second, batch(6, "gg")]],
            "dynamic",
            r"1 samples were never trained on, and 1 once too often",
        ),
        ([[first, third], [second, batch(6, "gh", "e")]], "dynamic", r"rank 1 got other bytes .* at \(0, 6\)"),
        (
            [[first, third], [second, batch(7, "gh")]],
            "dynamic",
            r"rank 1 got a batch at \(0, 7\), where no batch begins",
        ),
        ([[third, first], [second, fourth]], "ordered", r"rank 0 got its batches out of order"),
        ([[first, second], [third, fourth]], "ordered", r"rank 0 got the batches of other ranks at \[\(0, 2\)\]"),
    ]:
        with pytest.raises(Failure, match=reason):
            check(ranks, expected, delivery)


# ---------------------------------------------------------------- rounds


@pytest.mark.parametrize(
    "round",
    [
        Round(
            seed=1,
            delivery="ordered",
            dispatchers=2,
            workers=3,
            ranks=3,
            rows=700,
            seconds=4,
            faults=7,
            checkpoint_every=3,
        ),
        Round(seed=2, delivery="dynamic", dispatchers=2, workers=3, ranks=3, rows=700, seconds=4, faults=8, slower=2),
    ],
    ids=lambda round: round.delivery,
)
def test_faults_of_every_kind_lose_double_and_change_nothing(round, tmp_path):
    result = round.run(tmp_path)
    print(result)
    assert set(result.fired) == set(KINDS) - set(() if round.is_fenced else ("rank_replaced",))


# ---------------------------------------------------------------- windows are not given up


def test_random_deaths_of_workers_end_no_rank(tmp_path):
    """FOREBAY_CHAOS_SECONDS=60 is the long form."""
    seconds = float(os.environ.get("FOREBAY_CHAOS_SECONDS", 6))
    round = Round(
        seed=int(os.environ.get("FOREBAY_SEED", 1)),
        workers=3,
        ranks=4,
        epochs=2 * max(int(seconds / 6), 1),
        seconds=seconds,
        faults=int(seconds * 2),
        kinds=("worker_killed",),
    )
    print(round.run(tmp_path))


# ---------------------------------------------------------------- final ends


@pytest.mark.parametrize("delivery", ["ordered", "dynamic"])
@pytest.mark.parametrize("dispatcher", ["the same dispatcher", "a new dispatcher"])
def test_a_rank_that_is_killed_after_the_others_have_ended_reads_to_its_end(started, tmp_path, delivery, dispatcher):
    start_cluster, start_job = started
    script = write_script(tmp_path, rows=400, batch_size=10)
    cluster = start_cluster(script)
    job = start_job(cluster, world_size=2, epochs=2, delivery=delivery, retry_seconds=2)
    job.start_all()
    *others, last = job.ranks
    while not last.trained:
        job.read_until(job.trained + 1, "a first batch of the last rank")
    last.process.send_signal(signal.SIGSTOP)
    until = time.monotonic() + PATIENCE_SECONDS
    while not all(rank.has_ended for rank in others):
        job.hear(1)
        assert time.monotonic() < until, f"the other ranks did not end:\n{job.describe()}\n{cluster.status()}"
    # What the last rank has printed beyond its first batch is lost with it.
    last.kept = 1
    job.kill(last)
    if dispatcher == "a new dispatcher":
        cluster.kill(cluster.dispatchers[0])
        cluster.start_dispatcher(0)
    job.start(last)
    read_to_the_end(job, cluster)
    expected = undisturbed(script, 2)
    check([rank.trained for rank in job.ranks], expected, delivery)
    # Now nothing is left. A rank whose process is started once more has nothing to read, and no error.
    before = job.trained
    job.start(last)
    read_to_the_end(job, cluster)
    assert job.trained == before


# ---------------------------------------------------------------- processors


def test_workers_on_different_processors_give_the_same_bytes(started, tmp_path):
    start_cluster, start_job = started
    script = write_script(tmp_path, rows=800, milliseconds=3)
    # The first worker has an older processor than the second.
    cluster = start_cluster(script, workers=2)
    job = start_job(cluster, world_size=2, epochs=1)
    wait_for_status(cluster.dispatchers[0], "two workers", lambda status: len(status["workers"]) == 2)
    job.start_all()
    wait_for_status(
        cluster.dispatchers[0],
        "windows at both workers",
        lambda status: [worker["windows"] > 0 for worker in status["workers"]] == [True, True],
    )
    read_to_the_end(job, cluster)
    check([rank.trained for rank in job.ranks], undisturbed(script, 1), "ordered")


# ---------------------------------------------------------------- disks

BAD_ROW = "CAST(CASE WHEN id % 3 = 0 THEN 'no number' ELSE '1' END AS INTEGER)"


def batches_of(text: str) -> list[Delivered]:
    lines = [json.loads(line) for line in text.splitlines()]
    return [Delivered.of(line) for line in lines if "digest" in line]


def test_a_full_disk_is_an_error_with_its_cause_and_the_feed_goes_on_from_there(tmp_path):
    """Rows that cannot be quarantined must not be left out silently."""
    script = write_script(tmp_path, rows=600, batch_size=6, column=BAD_ROW, on_error="quarantine")
    root = tmp_path / "root"
    root.mkdir()
    command = [binary(), "run", script, "--epochs", "2", "--ids", "id", "--output", "json", "--root", root]

    def run(command) -> subprocess.CompletedProcess:
        return subprocess.run(
            command,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            stdin=subprocess.DEVNULL,
        )

    full = run([*with_small_folders({root: "100k"}), *command])
    first = batches_of(full.stdout)
    assert full.returncode == 6 and first, full.stderr
    assert re.search(r"error: .*cannot write quarantined rows.*" + re.escape(str(root)), full.stderr), full.stderr
    assert "No space left on device" in full.stderr, full.stderr
    # Now there is room.
    rest = run([*command, "--from", first[-1].token])
    assert rest.returncode == 0, rest.stderr
    expected = run([*command[:-1], tmp_path / "another-root"])
    assert expected.returncode == 0, expected.stderr
    whole = batches_of(expected.stdout)
    assert len(first) < len(whole)
    check([first + batches_of(rest.stdout)], {batch.place: batch for batch in whole}, "ordered")


def test_a_worker_s_full_disk_reaches_the_reader_with_its_cause(tmp_path):
    script = write_script(tmp_path, rows=600, batch_size=6, column=BAD_ROW, on_error="quarantine")
    root = tmp_path / "root"
    root.mkdir()
    with Server(script, "--root", str(root), before=with_small_folders({root: "40k"})) as server:
        ended = subprocess.run(
            [binary(), "run", "--connect", server.uri, "--epochs", "2", "--output", "json", "--retry-for", "5"],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
    assert ended.returncode == 6, ended.stdout[-300:]
    assert re.search(r"error: .*cannot write quarantined rows", ended.stderr), ended.stderr
    assert "No space left on device" in ended.stderr, ended.stderr


MATERIALIZE = """
import os, sys
import pyarrow as pa
import forebay

folder = sys.argv[1]
ballast = os.path.join(folder, "ballast")
with open(ballast, "wb") as file:
    file.write(bytes(1_900_000))
rows = pa.table({"id": range(60_000)})
query = forebay.sql("SELECT id, sin(id) AS x FROM rows", rows=rows)
try:
    query.materialize(os.path.join(folder, "kept"))
    print("materialized on a full disk")
except forebay.Error as error:
    print(type(error).__name__, str(error).replace("\\n", " "))
os.unlink(ballast)
kept = query.materialize(os.path.join(folder, "kept"))
print(kept.rows, kept.found)
"""


def test_a_disk_that_is_full_while_a_feed_is_written_leaves_no_feed(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    before = with_small_folders({folder: "2m"})
    ended = in_python(MATERIALIZE, tmp_path, before, folder)
    error, then = ended.splitlines()
    assert "No space left on device" in error and str(folder) in error, error
    assert then == "60000 False"


def in_python(script: str, folder, before=(), *arguments, **variables) -> str:
    """Runs a Python script, and returns its output."""
    path = folder / "script.py"
    path.write_text(script)
    ended = subprocess.run(
        [*before, sys.executable, path, *arguments],
        env=environment() | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


SHARED_MEMORY = """
import os, time
import numpy as np
import pyarrow as pa
import forebay

@forebay.udf(input="int64", output=forebay.tensor("float32", [512, 512, 3]), version=1, processes=2)
def pictures(id):
    return np.repeat(id.to_numpy(), 512 * 512 * 3).reshape(-1, 512, 512, 3).astype("float32")

def left():
    folders = ["/dev/shm", os.environ["TMPDIR"]]
    walks = [walk for folder in folders for walk in os.walk(folder) if "forebay-udf-" in walk[0]]
    return [name for _, _, files in walks for name in files]

if __name__ == "__main__":
    rows = pa.table({"id": range(10)})
    query = forebay.sql("SELECT id, pictures(id) AS picture FROM rows", rows=rows)
    seen = []
    try:
        for batch in query.load(format="numpy", batch_size=5, on_error="skip"):
            assert (batch["picture"][:, 3, 5, 1] == batch["id"]).all()
            seen += batch["id"].tolist()
        print(seen == list(range(10)), len(seen))
    except forebay.Error as error:
        print(type(error).__name__, str(error).replace("\\n", " "))
    # Calls in other threads may still be at work after an error.
    until = time.monotonic() + 20
    while left() and time.monotonic() < until:
        time.sleep(0.05)
    print(left())
"""


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="this system has no /dev/shm")
def test_results_that_do_not_fit_into_dev_shm_are_all_there(tmp_path):
    """A row is 3 MiB, and /dev/shm has 1 MiB: good rows were dropped as bad ones, and their segments stayed."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    before = with_small_folders({"/dev/shm": "1m"})
    said = in_python(SHARED_MEMORY, tmp_path, before, TMPDIR=str(temporary))
    assert said.splitlines() == ["True 10", "[]"]


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="this system has no /dev/shm")
def test_results_that_fit_nowhere_are_an_error_and_no_bad_rows(tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    before = with_small_folders({"/dev/shm": "1m", temporary: "1m"})
    said = in_python(SHARED_MEMORY, tmp_path, before, TMPDIR=str(temporary))
    error, left = said.splitlines()
    assert error.startswith("ExhaustedError") and "pictures" in error and "No space left on device" in error, error
    assert left == "[]"


# ---------------------------------------------------------------- files and memory


def silent_connections(port: int, count: int) -> list[socket.socket]:
    """Connects so often from another address of this machine, and says nothing."""
    silent = []
    for _ in range(count):
        connection = socket.socket()
        try:
            connection.bind(("127.0.0.2", 0))
            connection.connect(("127.0.0.1", port))
        except OSError as error:
            pytest.skip(f"this machine has no second loopback address: {error}")
        silent.append(connection)
    return silent


def test_with_256_files_and_many_silent_peers_ranks_read_on(started, tmp_path):
    start_cluster, start_job = started
    # More files of data than the process may open.
    script = write_script(tmp_path, rows=900, rows_per_file=3, window_rows=60, milliseconds=1)
    before = limited("ulimit -n 256")
    cluster = start_cluster(script, workers=2, before=before)
    job = start_job(cluster, world_size=2, epochs=1, before=before)
    with ExitStack() as stack:
        for process in [*cluster.dispatchers, *cluster.workers]:
            for connection in silent_connections(process.port, 300):
                stack.enter_context(connection)
        job.start_all()
        read_to_the_end(job, cluster)
    check([rank.trained for rank in job.ranks], undisturbed(script, 1), "ordered")


# A value of 1 MB: a window of 400 takes far more than `SLACK_BYTES`, and than what differs from run to run, such as the
# stacks of threads that open feeds at the same time.
LARGE = "repeat('x', 1000000)"
SLACK_BYTES = 48 << 20

needs_prlimit = pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux limits a running process")


def memory(process: subprocess.Popen, name: str) -> int:
    """Returns a figure of Linux about the memory of a process, in bytes."""
    [kilobytes] = re.findall(rf"{name}:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    return int(kilobytes) << 10


@pytest.fixture
def small(started, tmp_path, monkeypatch):
    """Returns a script whose windows are large, and a function that returns the beginning of a command line: that of a
    process with memory to open such a feed, but not to compute a window. It takes options of a cluster."""
    start_cluster, start_job = started
    # Each further arena of the allocator reserves 64 MiB of addresses, in one run more of them than in another.
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    (tmp_path / "small").mkdir()
    small = write_script(tmp_path / "small", rows=800, column="'x'", window_rows=400, rows_per_file=40)

    def limit(**options) -> list[str]:
        cluster = start_cluster(small, **options)
        job = start_job(cluster, world_size=1, epochs=1)
        job.start_all()
        read_to_the_end(job, cluster)
        [process] = cluster.workers or cluster.dispatchers
        most = memory(process.process, "VmPeak") + SLACK_BYTES
        cluster.close()
        return limited(f"ulimit -v {most >> 10}")

    return write_script(tmp_path, rows=800, column=LARGE, window_rows=400, rows_per_file=40), limit


@needs_prlimit
def test_a_worker_that_runs_out_of_memory_costs_nothing_but_time(started, small):
    start_cluster, start_job = started
    script, limit = small
    cluster = start_cluster(script, workers=2, of_first_worker=limit())
    sick = cluster.workers[0]
    cluster.expect_end(sick)
    wait_for_status(cluster.dispatchers[0], "two workers", lambda status: len(status["workers"]) == 2)
    job = start_job(cluster, world_size=2, epochs=1)
    job.start_all()
    read_to_the_end(job, cluster)
    check([rank.trained for rank in job.ranks], undisturbed(script, 1), "ordered")
    assert sick.process.poll() == -signal.SIGABRT, "the worker had memory enough: this test needs larger rows"


@needs_prlimit
def test_a_window_that_no_worker_has_memory_for_is_an_error_that_names_it(started, small):
    start_cluster, start_job = started
    script, limit = small
    cluster = start_cluster(script, of_first_worker=limit())
    job = start_job(cluster, world_size=1, epochs=1)
    [rank] = job.ranks
    job.start_all()
    for deaths in range(20):
        sick = cluster.workers[0]
        cluster.expect_end(sick)
        until = time.monotonic() + PATIENCE_SECONDS
        while sick.process.poll() is None and rank.process.poll() is None:
            assert time.monotonic() < until, f"waited {PATIENCE_SECONDS} s for a worker that dies of its window"
            time.sleep(0.05)
        if rank.process.poll() is not None:
            break
        cluster.start_worker(0)
    assert rank.process.wait(PATIENCE_SECONDS) == UNAVAILABLE, tail(rank.log)
    text = rank.log.read_text()
    assert re.search(r'error: window \d of epoch 0 of pipeline "train".* was given up', text), text
    # The hint says either to look at the workers' logs, or where to resume.
    assert "\nhint: " in text and deaths > 0, text


@needs_prlimit
def test_a_server_that_a_window_ends_gives_it_up_after_restarts(started, small):
    start_cluster, start_job = started
    script, limit = small
    cluster = start_cluster(script, workers=0, computes=True, of_first_worker=limit(workers=0, computes=True))
    job = start_job(cluster, world_size=1, epochs=1)
    [rank] = job.ranks
    job.start_all()
    for deaths in range(20):
        server = cluster.dispatchers[0]
        cluster.expect_end(server)
        until = time.monotonic() + PATIENCE_SECONDS
        while server.process.poll() is None and rank.process.poll() is None:
            assert time.monotonic() < until, f"waited {PATIENCE_SECONDS} s for a server that dies of its window"
            time.sleep(0.05)
        if rank.process.poll() is not None:
            break
        cluster.start_dispatcher(0)
    assert rank.process.wait(PATIENCE_SECONDS) == UNAVAILABLE, tail(rank.log)
    text = rank.log.read_text()
    assert re.search(r'error: window \d of epoch 0 of pipeline "train".* was given up', text), text
    assert "\nhint: " in text and deaths > 0, text


# The stack of the thread on which a worker parses a feed's query is larger than this.
LESS_THAN_A_STACK_BYTES = 8 << 20


@needs_prlimit
def test_a_worker_without_memory_to_open_a_feed_does_not_end_its_readers(started, tmp_path):
    start_cluster, start_job = started
    script = write_script(tmp_path, rows=900, milliseconds=10)
    cluster = start_cluster(script, workers=2)
    wait_for_status(cluster.dispatchers[0], "two workers", lambda status: len(status["workers"]) == 2)
    sick = cluster.workers[0]
    cluster.expect_end(sick)
    most = memory(sick.process, "VmSize") + LESS_THAN_A_STACK_BYTES
    resource.prlimit(sick.process.pid, resource.RLIMIT_AS, (most, most))
    job = start_job(cluster, world_size=1, epochs=1)
    job.start_all()
    wait_for_status(
        cluster.dispatchers[0],
        "the first worker to refuse the feed",
        lambda status: any(worker["refused"] for worker in status["workers"]),
    )
    # A dispatcher that is younger than 5 s waits for workers that have not reached it yet. This one is older, and the
    # rank waits for every window.
    job.read_until(150, "batches of the second worker")
    cluster.kill(cluster.workers[1])
    wait_for_status(
        cluster.dispatchers[0],
        "the loss of the second worker",
        lambda status: [bool(worker["refused"]) for worker in status["workers"]] == [True],
    )
    # It is back within the time for which the rank retries.
    cluster.start_worker(1)
    read_to_the_end(job, cluster)
    check([rank.trained for rank in job.ranks], undisturbed(script, 1), "ordered")
