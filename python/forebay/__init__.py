"""Forebay feeds training jobs.

    import forebay

    loader = forebay.load("SELECT …", batch_size=256, shuffle=True, seed=17)
    for batch in loader:
        step(batch["image"], batch["label"])
    checkpoint["data"] = loader.state_dict()

Each sample comes exactly once per epoch, in an order that depends only on the query, the files, the seed and the epoch.
`state_dict` resumes exactly, on any number of ranks. Batches are the same in process and from a cluster.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, Sequence, cast, overload

from ._batch import Batch
from ._check_udf import check_udf
from ._client import Cluster
from ._counts import Counts
from ._description import Description
from ._duplicates import Duplicates
from ._errors import (
    ConflictError,
    DataError,
    DeniedError,
    Error,
    ExhaustedError,
    InternalError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from ._formats import Ragged
from ._jobs import JobProgress, JobResult, Materialized
from ._keywords import explained
from ._loader import Loader
from ._native import __version__
from ._preview import Preview
from ._query import Query
from ._session import Pipeline, Server, Session, default_session
from ._sql import literal as _literal
from ._stages import GroupBy
from ._table import Table
from ._udf import Udf, tensor, udf
from ._whole import MEMORY_LIMIT

if TYPE_CHECKING:
    from ._types import ArrowBatch, JaxBatch, LoadOptions, NumpyBatch, TensorFlowBatch, TorchLoader, Unpack

__all__ = [
    "Batch",
    "Cluster",
    "ConflictError",
    "Counts",
    "DataError",
    "DeniedError",
    "Description",
    "Duplicates",
    "Error",
    "ExhaustedError",
    "GroupBy",
    "InternalError",
    "InvalidError",
    "JobProgress",
    "JobResult",
    "Loader",
    "Materialized",
    "NotFoundError",
    "Pipeline",
    "Preview",
    "Query",
    "Ragged",
    "Server",
    "Session",
    "Table",
    "Udf",
    "UnavailableError",
    "__version__",
    "check_udf",
    "concat",
    "connect",
    "literal",
    "load",
    "serve",
    "sql",
    "table",
    "tensor",
    "udf",
]


@overload
def load(pipeline: Any, *, format: Literal["torch"] | None = None, **options: Unpack[LoadOptions]) -> TorchLoader: ...
@overload
def load(pipeline: Any, *, format: Literal["numpy"], **options: Unpack[LoadOptions]) -> Loader[NumpyBatch]: ...
@overload
def load(pipeline: Any, *, format: Literal["jax"], **options: Unpack[LoadOptions]) -> Loader[JaxBatch]: ...
@overload
def load(pipeline: Any, *, format: Literal["tf"], **options: Unpack[LoadOptions]) -> Loader[TensorFlowBatch]: ...
@overload
def load(pipeline: Any, *, format: Literal["arrow"], **options: Unpack[LoadOptions]) -> Loader[ArrowBatch]: ...
@overload
def load(pipeline: Any, *, format: str | None = None, **options: Unpack[LoadOptions]) -> Loader[Any]: ...
@explained
def load(
    pipeline: Any,
    *,
    # begin: options of load
    batch_size: int | None = None,
    drop_last: bool | None = None,
    delivery: Literal["ordered", "dynamic"] | None = None,
    job: str | None = None,
    seed: int | None = None,
    shuffle: bool | None = None,
    window_bytes: int | str | None = None,
    window_rows: int | None = None,
    on_error: Literal["raise", "skip", "quarantine"] | None = None,
    bucket_by_length: str | None = None,
    bucket_boundaries: list[int] | None = None,
    global_batch_size: int | None = None,
    cache: Literal["none", "source", "prefix", "full", "auto"] | None = None,
    order: Literal["exact", "relaxed"] | None = None,
    # end: options of load
    epochs: int | float | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    dp_rank: int | None = None,
    dp_size: int | None = None,
    columns: list[str] | None = None,
    padding: dict[str, float] | None = None,
    format: str | None = None,
    device: Any = None,
    pin_memory: bool = False,
    prefetch_factor: int = 2,
    count: bool = False,
) -> Loader[Any]:
    """Returns a loader of `pipeline`: SQL, the path of a `.sql` script, the name of a pipeline, a `Pipeline` or a
    `Table`.

    The loader computes in this process. For an argument that is not given, the pipeline's `WITH` decides, else the
    default named here.

    Options, as in SQL and on the command line:

    - `batch_size` (32): samples per batch of one rank; with length buckets, the rank's share of the global batch.
    - `drop_last` (False): whether to leave out an incomplete global batch at the end of an epoch.
    - `delivery` ("ordered"): which batches a rank gets: its share of each step (ordered), or the next that no rank has
      taken (dynamic).
    - `job`: name of the job; all its ranks give the same name, and no other job does. Dynamic delivery needs it; with
      ordered delivery, it lets the dispatcher refuse a second process of a rank, and ranks that do not fit.
    - `seed` (0): seed of order and augmentation.
    - `shuffle` (False): whether samples come in a keyed random order; otherwise they come in the files' order.
    - `window_bytes` ("32MiB"): source bytes that are shuffled together.
    - `window_rows` (262144): approximate number of source rows that are shuffled together; a window never splits a row
      range.
    - `on_error` ("raise"): what to do with rows that cannot be processed: "raise", "skip", "quarantine".
    - `bucket_by_length`: column whose length selects a row's bucket; each global step has rows of one bucket.
    - `bucket_boundaries`: the longest length of each bucket, ascending.
    - `global_batch_size`: samples per global step over all ranks; rows are grouped by this number.
    - `cache` ("none"): what to keep for later epochs, ranks and jobs: nothing, what is read of remote files, the part
      of each sample that is the same in every epoch, all of it, random results included, or what is measured to pay
      off: "none", "source", "prefix", "full", "auto".
    - `order` ("exact"): whether calls on images keep their written order (exact), or run where images are smallest
      (relaxed), which changes the samples.

    Arguments of Python:

    - `epochs`: the number of epochs of one `for` loop, `float("inf")` for no end. Without it each loop is one epoch,
      and the next loop is the next epoch.
    - `rank`, `world_size`: by default those of `torch.distributed` or `jax.distributed`, else RANK and WORLD_SIZE, at
      the loader's first use. What disagrees with these is an error.
    - `dp_rank`, `dp_size`: the place among the processes that share the samples, where the launcher counts others too.
    - `columns`: only these columns. In this process, functions that only other columns need do not run.
    - `padding`: columns of lists that are padded to the batch's longest list, and the value of the padding:
      `{"input_ids": 0, "labels": -100}`.
    - `format`: "torch" (if installed), "numpy", "jax", "tf" or "arrow".
    - `device`, `pin_memory`: where torch's tensors go.
    - `prefetch_factor` (2): finished batches that wait for the loop.
    - `count` (False): whether to count the samples of an epoch if only reading shows their number, so that `len` works.
      This reads the files once, and transforms nothing.

    `global_batch_size` without `bucket_by_length` is only another way to give `batch_size`. Dynamic delivery to several
    ranks needs a cluster.
    """
    options = dict(locals())
    del options["pipeline"]
    return cast("Loader[Any]", default_session().load(pipeline, **options))


def connect(
    uri: str,
    *,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    tls: dict[str, str] | None = None,
    insecure: bool = False,
    retry_for: float | None = None,
    buffer_limit: int | str | None = None,
    local_worker: int | str | None = None,
    local_worker_memory: int | str | None = None,
    local_worker_address: str | None = None,
) -> Cluster:
    """Connects to a cluster at `uri`, such as "grpc://feeds:7070" or "grpc+tls://…"; separate several by commas.

    - `token`: the token that allows this client to read; by default FOREBAY_TOKEN.
    - `token_file`: a file with the token in its first line; by default FOREBAY_TOKEN_FILE. It is read again when it
      changes, so a token can be replaced while a loop runs.
    - `tls`: PEM files and names: `{"ca": …, "cert": …, "key": …, "server_name": …}`.
    - `insecure`: send the token as plain text to other machines too.
    - `retry_for` (30): seconds for which reading retries while no server answers, before it raises `UnavailableError`.
      If given, connecting also waits that long for a server that is not up yet.
    - `buffer_limit` (64 MiB): bytes to receive ahead of the loop.
    - `local_worker`: also compute in this process, for all trainers, with this number of threads, or with what the
      trainer does not need ("auto"). With "auto", only the first rank of a machine does.
    - `local_worker_memory` (256 MiB): bytes of windows that the local worker holds.
    - `local_worker_address` ("127.0.0.1"): the IP address of this machine at which trainers on other machines reach the
      local worker.
    """
    return Cluster(
        uri,
        token=token,
        token_file=token_file,
        tls=tls,
        insecure=insecure,
        retry_for=retry_for,
        buffer_limit=buffer_limit,
        local_worker=local_worker,
        local_worker_memory=local_worker_memory,
        local_worker_address=local_worker_address,
    )


def sql(text: str | os.PathLike[str], **tables: Any) -> Pipeline | Any:
    """Runs a script, or compiles a query. `tables` are the tables that the text names: Arrow data, paths, or tables.

    Returns the query's pipeline, or a `Query` if it needs all rows of its tables, as with GROUP BY. Of a script,
    returns the last pipeline that it creates or query that it has, or `None`.
    """
    return default_session().sql(text, **tables)


def table(
    source: Any,
    *,
    name: str | None = None,
    format: str | None = None,
    hive_partitioning: bool | None = None,
    missing: Literal["null", "error"] | None = None,
    widen: bool | None = None,
    path_column: str | None = None,
) -> Table:
    """Returns a table to build a pipeline from. `source` is one of:

    - the name of a table, or a path, glob or URL of files;
    - a list of paths of media files: a row for each file;
    - a list of files, globs and folders of one format: the rows of all files;
    - Arrow data: a pyarrow table, a Polars frame, a pandas frame;
    - a dict of arrays of NumPy, torch or JAX, or of lists; arrays of several dimensions are columns of tensors;
    - a list of dicts, each a row;
    - a `datasets.Dataset`.

    Options of files, as in SQL's `OPTIONS`:

    - `hive_partitioning` (True): whether folders such as `dt=2026-01-01` are columns.
    - `missing`: "null" reads a column that some Parquet files lack as null there, "error" refuses such files. By
      default it is null, and files that share no column, and names that differ only by case, are refused.
    - `widen` (True): whether a column of Parquet files has the widest of its types.
    - `path_column`: the name of a further column, of each row's file: its path below the table's folder.
    """
    return default_session().table(
        source,
        name=name,
        format=format,
        hive_partitioning=hive_partitioning,
        missing=missing,
        widen=widen,
        path_column=path_column,
    )


def concat(sources: Sequence[Any], *, memory_limit: int | str = MEMORY_LIMIT) -> Table:
    """Returns a table of the rows of all `sources`, which are tables, or what `forebay.table` takes.

    Of paths it makes one table of their files, like `forebay.table` of a list. Otherwise it reads the rows now, into
    memory: those of the first source, then those of the second, and so on. It is an error if they take more than
    `memory_limit`. The sources have the same columns.
    """
    return default_session().concat(sources, memory_limit=memory_limit)


def literal(value: Any) -> str:
    """Returns a Python value as SQL: a text, a finite number, a time, True, False, or a list of these.

    `f"index_of(label, values => {literal(names)})"` holds any names. The text that Python itself gives a list has other
    quotes and escapes than SQL.
    """
    return _literal("value", value)


def serve(*, host: str = "127.0.0.1", port: int = 0, insecure: bool = False) -> Server:
    """Serves the pipelines that `sql` created over Arrow Flight from this process; port 0 takes a free port.

    The server has neither TLS nor tokens, so only this user can connect, and only from this machine, unless
    `insecure`. `forebay serve` has both.
    """
    return default_session().serve(host=host, port=port, insecure=insecure)
