"""The fence of ordered ranks, over real processes."""

import re

from cluster import CONFLICT, check, tail, undisturbed, write_script
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
