"""The fence of ordered ranks, over real processes."""

import re
import subprocess
import sys

from cluster import CONFLICT, check, tail, undisturbed, write_script
from support import Server, environment
from test_chaos import read_to_the_end, started, wait_for_end

__all__ = ["started"]

REPLACED = r"error: a newer process reads as rank 0"
OTHER_WORLD_SIZE = r"error: .*world size"


def test_of_two_processes_of_an_ordered_rank_the_later_wins(started, tmp_path):
    start_cluster, start_job = started
    script = write_script(tmp_path, rows=800, milliseconds=2)
    cluster = start_cluster(script)
    job = start_job(cluster, world_size=2, epochs=2, pace=0.02, options=["--job", "fenced"])
    job.start_all()
    job.read_until(10, "first batches of both ranks")
    old, log = job.replace(job.ranks[0])
    code = wait_for_end(old, job, "the earlier process, which was replaced")
    assert code == CONFLICT, f"it ended with {code}:\n{tail(log)}"
    assert re.search(REPLACED, log.read_text()), tail(log)
    read_to_the_end(job, cluster)
    check([rank.trained for rank in job.ranks], undisturbed(script, 2), "ordered")


def test_ranks_of_one_job_with_other_world_sizes_are_refused(started, tmp_path):
    start_cluster, start_job = started
    script = write_script(tmp_path, rows=800, milliseconds=2)
    cluster = start_cluster(script)
    job = start_job(cluster, world_size=2, epochs=2, pace=0.02, options=["--job", "fenced"])
    job.start_all()
    job.read_until(10, "first batches of both ranks")
    other = start_job(cluster, world_size=3, epochs=2, retry_seconds=2, options=["--job", "fenced"])
    rank = other.ranks[2]
    other.start(rank)
    code = wait_for_end(rank.process, job, "the third rank, which is to be refused")
    assert code == CONFLICT, f"it ended with {code}:\n{tail(rank.log)}"
    assert re.search(OTHER_WORLD_SIZE, rank.log.read_text()), tail(rank.log)
    assert re.search(r"\b2\b", rank.log.read_text()) and re.search(r"\b3\b", rank.log.read_text()), tail(rank.log)
    # The job that was there first does not notice.
    read_to_the_end(job, cluster)
    check([rank.trained for rank in job.ranks], undisturbed(script, 2), "ordered")


LOOP = """
import sys, time
import forebay

uri, loaders, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
loaders = [forebay.connect(uri).load("train", batch_size=4, epochs=epochs) for _ in range(loaders)]
for batches in zip(*loaders):
    print(batches[0].step, flush=True)
    time.sleep(0.02)
"""


def launched(uri, *, loaders, epochs):
    """A Python process that reads as rank 0 of 2 that torchrun started."""
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    return subprocess.Popen(
        [sys.executable, "-c", LOOP, uri, str(loaders), str(epochs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment(), **variables},
    )


def test_of_two_python_processes_of_a_launched_rank_the_later_wins(tmp_path):
    with Server(write_script(tmp_path, rows=400)) as server:
        older = launched(server.uri, loaders=1, epochs=100)
        assert older.stdout.readline() == "0\n"
        newer = launched(server.uri, loaders=1, epochs=1)
        read, error = newer.communicate(timeout=60)
        assert newer.returncode == 0, error
        assert len(read.splitlines()) > 40
        _, error = older.communicate(timeout=60)
        assert older.returncode == 1
        assert "ConflictError: a newer process reads as rank 0" in error, error


def test_two_loaders_of_a_launched_process_do_not_end_each_other(tmp_path):
    with Server(write_script(tmp_path, rows=400)) as server:
        both = launched(server.uri, loaders=2, epochs=2)
        read, error = both.communicate(timeout=60)
        assert both.returncode == 0, error
        assert len(read.splitlines()) > 80
