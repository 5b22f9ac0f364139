"""Forebay feeds training jobs.

    import forebay

    loader = forebay.load("SELECT …", batch_size=256, shuffle=True, seed=17)
    for batch in loader:
        step(batch["image"], batch["label"])
    checkpoint["data"] = loader.state_dict()

Each sample comes exactly once per epoch, in an order that depends on the query, the files, the seed and the epoch alone;
`state_dict` resumes exactly, on any number of ranks; the same batches come in process and from a cluster.
"""

from __future__ import annotations

import os
from typing import Any

from ._client import Cluster
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
from ._loader import Batch, Loader
from ._native import __version__
from ._session import Materialized, Pipeline, Preview, Server, Session, default_session
from ._table import Table
from ._udf import Udf, tensor, udf

__all__ = [
    "Batch",
    "Cluster",
    "ConflictError",
    "DataError",
    "DeniedError",
    "Error",
    "ExhaustedError",
    "InternalError",
    "InvalidError",
    "Loader",
    "Materialized",
    "NotFoundError",
    "Pipeline",
    "Preview",
    "Ragged",
    "Server",
    "Session",
    "Table",
    "Udf",
    "UnavailableError",
    "__version__",
    "connect",
    "load",
    "serve",
    "sql",
    "table",
    "tensor",
    "udf",
]


def load(
    pipeline: Any,
    *,
    batch_size: int | None = None,
    global_batch_size: int | None = None,
    shuffle: bool | None = None,
    seed: int | None = None,
    epochs: int | float | None = None,
    drop_last: bool | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    dp_rank: int | None = None,
    dp_size: int | None = None,
    prefetch_factor: int = 2,
    columns: list[str] | None = None,
    format: str | None = None,
    device: Any = None,
    pin_memory: bool = False,
    on_error: str | None = None,
    delivery: str | None = None,
    job: str | None = None,
    window_bytes: int | str | None = None,
    window_rows: int | None = None,
    bucket_by_length: str | None = None,
    bucket_boundaries: list[int] | None = None,
) -> Loader:
    """A loader of `pipeline`: SQL, the path of a `.sql` script, the name of a pipeline, a `Pipeline` or a `Table`.

    Computes in this process. What is not given is what the pipeline's `WITH` says, else the default named here.

    - `batch_size`: samples per batch of this rank (32); or `global_batch_size`: of all ranks.
    - `shuffle` (False), `seed` (0): whether samples come in a keyed random order, and which.
    - `epochs`: how many one `for` loop covers, `float("inf")` for no end; without it each loop is one epoch, the next loop
      the next.
    - `drop_last` (False): leave out an incomplete global batch at an epoch's end.
    - `rank`, `world_size` (or `dp_rank`, `dp_size`): by default of `torch.distributed`, else of RANK and WORLD_SIZE.
    - `prefetch_factor`: finished batches that wait for the loop.
    - `columns`: only these; in this process, what the others need is not computed.
    - `format`: "torch" (if installed), "numpy", "jax", "tf" or "arrow".
    - `device`, `pin_memory`: where torch's tensors go.
    - `on_error` ("raise"): or "skip" or "quarantine" rows that cannot be processed.
    - `delivery` ("ordered"): "dynamic" gives a rank the next batch that no rank has taken; several ranks need a cluster.
    - `window_bytes` (32 MiB), `window_rows`: how much is shuffled together.
    - `bucket_by_length`, `bucket_boundaries`: batches of rows of like length; needs `global_batch_size`.
    """
    options = dict(locals())
    del options["pipeline"]
    return default_session().load(pipeline, **options)


def connect(
    uri: str,
    *,
    token: str | None = None,
    tls: dict[str, str] | None = None,
    insecure: bool = False,
    retry_for: float | None = None,
    buffer_limit: int | str | None = None,
) -> Cluster:
    """A connection to a cluster at `uri`, such as "grpc://feeds:7070", "grpc+tls://…", or several separated by commas.

    - `token`: what proves that this client may read; by default FOREBAY_TOKEN.
    - `tls`: PEM files and names: `{"ca": …, "cert": …, "key": …, "server_name": …}`.
    - `insecure`: send the token over plain text to other machines too.
    - `retry_for` (30): seconds that servers may be gone before reading raises `UnavailableError`. If given, a
      server that is not up yet is waited for as long.
    - `buffer_limit` (64 MiB): bytes to receive ahead of the loop.
    """
    return Cluster(
        uri, token=token, tls=tls, insecure=insecure, retry_for=retry_for, buffer_limit=buffer_limit
    )


def sql(text: str | os.PathLike[str], **tables: Any) -> Pipeline | None:
    """Runs a script, or takes a query as a pipeline. `tables` are names in it: Arrow data, paths, or tables.

    Gives the pipeline of a query, or the last that a script creates; `None` for a script without one.
    """
    return default_session().sql(text, **tables)


def table(source: Any, *, name: str | None = None, format: str | None = None) -> Table:
    """A table to build a pipeline from: the name of one, a path, glob or URL of files, or Arrow data such as a pyarrow
    table, a Polars or a pandas frame."""
    return default_session().table(source, name=name, format=format)


def serve(*, host: str = "127.0.0.1", port: int = 0, insecure: bool = False) -> Server:
    """Serves the pipelines that `sql` created over Arrow Flight from this process; port 0 takes a free one.

    Without TLS and tokens, so only to this machine unless `insecure`; `forebay serve` has both.
    """
    return default_session().serve(host=host, port=port, insecure=insecure)
