"""Shared by the tests of the package: small tables, functions that read them, and child processes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import forebay
from support import environment

PACKAGE = Path(forebay.__file__).resolve().parents[1]
# A child imports NumPy and reads a small table. Longer than this it hangs.
CHILD_WITHIN_SECONDS = 30
# Ranks import torch at the same time, and wait for each other.
RANKS_WITHIN_SECONDS = 90

_made = 0


def pipeline(columns, query="SELECT * FROM {table}", session=None):
    """Returns a pipeline over rows in memory: a pyarrow table, or an argument for `pyarrow.table`."""
    global _made
    _made += 1
    name = f"rows_{_made}"
    data = columns if isinstance(columns, (pa.Table, pa.RecordBatch)) else pa.table(columns)
    return (session or forebay).sql(query.format(table=name), **{name: data})


def numbers(count, **options):
    """Returns a loader of the numbers below `count`, with Arrow batches unless `options` choose another format."""
    return pipeline({"n": range_of(count)}).load(**{"format": "arrow", **options})


def range_of(count):
    return pa.array(range(count), pa.int64())


def files(folder, count=100, rows_per_file=40):
    """Writes a folder of Parquet files with the numbers below `count`. The feed over it is the same in each process."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, first in enumerate(range(0, count, rows_per_file)):
        rows = pa.table({"n": pa.array(range(first, min(first + rows_per_file, count)), pa.int64())})
        pq.write_table(rows, folder / f"part-{number}.parquet", row_group_size=10)
    return folder


def values(batches, column="n"):
    """Returns one column of all batches, in order."""
    return [value for batch in batches for value in batch[column].to_pylist()]


def same(batches, others):
    """Whether two lists of Arrow batches are equal, with their metadata."""
    return len(batches) == len(others) and all(
        batch.equals(other, check_metadata=True) for batch, other in zip(batches, others)
    )


def child(code, *, variables=None, **popen):
    """Starts `code` in its own Python process."""
    path = os.pathsep.join([str(PACKAGE), str(Path(__file__).parent), str(Path(__file__).parents[1])])
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment() | {"PYTHONPATH": path} | (variables or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **popen,
    )


def printed(code, timeout=CHILD_WITHIN_SECONDS):
    """Runs `code` in its own process, which must end by itself, and returns the JSON that it prints."""
    [result] = _results([child(code)], timeout)
    return result


def printed_by_ranks(code, world_size=2, timeout=RANKS_WITHIN_SECONDS, **variables):
    """Runs `code` in a process for each rank, in the environment that torchrun makes, and returns what each prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1"}
    job |= {"LOCAL_WORLD_SIZE": str(world_size), **variables}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)]
    return _results([child(code, variables=job | rank) for rank in ranks], timeout)


def _results(processes, timeout):
    try:
        said = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, err) in zip(processes, said):
        assert process.returncode == 0, err
    return [json.loads(out) for out, _ in said]
