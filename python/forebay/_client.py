"""The connection from a trainer's process to a cluster, or to any server."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Callable

from . import _arguments as arguments
from . import _local_worker, _native
from ._errors import InvalidError
from ._jobs import JobProgress, JobResult, shown
from ._loader import Loader
from ._loads import LoadsNamed
from ._session import job_options, make_loader

if TYPE_CHECKING:
    from ._types import MaterializeOptions, Unpack


class Cluster(LoadsNamed):
    """A connection to a dispatcher; made by `forebay.connect`.

    `load` is like `forebay.load`, but reads from the workers of the cluster. The batches are the same.

    `delivery="dynamic"` gives each rank the next batch that no rank has taken. All ranks of a job give the same name,
    `job`. With `delivery="ordered"`, a name makes the dispatcher compare the ranks: of two processes that read as one
    rank, the one that started later reads on, and ranks that do not fit together get an error. Ranks that `torchrun`
    started have a name by default.
    """

    def __init__(
        self,
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
    ):
        if not isinstance(uri, str):
            raise arguments.refuse("uri", 'an address such as "grpc://feeds:7070"', uri)
        known = ("ca", "cert", "key", "server_name")
        tls = {} if tls is None else tls
        if not isinstance(tls, dict) or not all(isinstance(value, (str, os.PathLike)) for value in tls.values()):
            raise arguments.refuse("tls", f"a dict of {', '.join(known)}", tls)
        for name in tls:
            arguments.choice("tls", name, known)
        if retry_for is not None and (not isinstance(retry_for, (int, float)) or not 0 <= retry_for < 1e9):
            raise arguments.refuse("retry_for", "seconds", retry_for)
        self.uri = uri
        if token is None and token_file is None:
            token = os.environ.get("FOREBAY_TOKEN") or None
            token_file = os.environ.get("FOREBAY_TOKEN_FILE") or None
        self._native = _native.Client(
            uri,
            token=arguments.text("token", token) or None,
            token_file=_path(token_file),
            ca=_path(tls.get("ca")),
            certificate=_path(tls.get("cert")),
            key=_path(tls.get("key")),
            server_name=tls.get("server_name"),
            insecure=bool(arguments.boolean("insecure", insecure)),
            retry_for=None if retry_for is None else float(retry_for),
            buffer_bytes=arguments.size("buffer_limit", buffer_limit),
        )
        self._local_worker = _local_worker.begin(
            self._native, uri, local_worker, local_worker_memory, local_worker_address
        )

    @property
    def local_threads(self) -> int:
        """Threads that compute in this process now, for all trainers; 0 without `local_worker`."""
        return 0 if self._local_worker is None else self._local_worker.native.threads

    def close(self) -> None:
        """Drains the local worker, if there is one: other trainers read on for up to ten seconds, while other workers
        take over. It also drains when the connection and its loaders are gone, and at the end of the process."""
        if self._local_worker is not None:
            self._local_worker.native.stop()
            self._local_worker = None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pipelines(self) -> list[str]:
        """Names of the pipelines that the server offers."""
        return self._native.pipelines()

    def status(self) -> dict[str, Any]:
        """The state of the dispatcher: feeds, windows, workers, readers."""
        status: dict[str, Any] = json.loads(self._native.status())
        return status

    def materialize(
        self,
        pipeline: str,
        to: str,
        *,
        progress: Callable[[JobProgress], None] | None = None,
        **options: Unpack[MaterializeOptions],
    ) -> JobResult:
        """Has the workers write the samples of one epoch to files in the folder or URL `to`, as the server sees it.
        Takes the options of `Pipeline.materialize`, and writes the same files.

        The server permits folders with `forebay serve --allow-write`, to callers with an operator's right. The job
        stops ten seconds after this call has ended, such as by Ctrl-C; calling it again resumes the job.
        """
        feed, job = job_options(options)
        request = json.dumps({"pipeline": self._name(pipeline), **json.loads(feed)})
        return JobResult(json.loads(self._native.materialize(request, os.fspath(to), job, shown(progress))))

    def _name(self, pipeline: Any) -> str:
        if not isinstance(pipeline, str) or any(c.isspace() for c in pipeline):
            offered = ", ".join(self.pipelines())
            accepted = "the name of a pipeline that the server offers"
            raise arguments.refuse("pipeline", accepted, pipeline, f"it offers: {offered}")
        return pipeline

    def _load(self, pipeline: Any, options: dict[str, Any]) -> Loader[Any]:
        pipeline = self._name(pipeline)

        def opened(
            feed: dict[str, Any], read: dict[str, Any], columns: list[str] | None, counts: bool
        ) -> RemoteFeed:
            if counts:
                raise InvalidError(
                    '"count" reads the files in this process, and a cluster computes this feed elsewhere',
                    "leave it out, and give the trainer a number of steps; or count where the files are: "
                    "len(forebay.load(…, count=True))",
                )
            return RemoteFeed(self._native, pipeline, feed, read, self._local_worker)

        return make_loader(opened, options, names_job=True)

    def __reduce__(self) -> Any:
        raise InvalidError("a cluster cannot be sent to another process", "call forebay.connect in that process")

    def __repr__(self) -> str:
        return f"<forebay.Cluster {self.uri}>"


class RemoteFeed:
    """A feed that workers compute."""

    def __init__(
        self,
        client: _native.Client,
        pipeline: str,
        feed: dict[str, Any],
        read: dict[str, Any],
        local_worker: _local_worker.LocalWorker | None = None,
    ):
        self._client = client
        # It computes as long as anybody reads.
        self._local_worker = local_worker
        self._request = {"pipeline": pipeline, **feed}
        opened = self._open(read | {"epochs": 1})
        self.id = opened.id
        self.columns = opened.columns
        self.samples_per_epoch = opened.samples_per_epoch
        # Servers of earlier versions do not send an identity.
        self.identity = json.loads(opened.identity) or {"feed": self.id}
        self.counts: bool | None = None

    def _open(self, options: dict[str, Any]) -> _native.RemoteFeed:
        return self._client.open(json.dumps(self._request | options))

    def resolve(self, options: dict[str, Any]) -> tuple[int, int, bool, int | None]:
        return self._open(options).settings

    def count(self, epoch: int) -> int | None:
        """Returns `None`: nothing counts on a cluster."""
        return None

    def read(self, options: dict[str, Any], ahead: int) -> _native.Stream:
        beside = None if self._local_worker is None else self._local_worker.native
        return self._open(options).read(ahead, beside)

    def compute_seconds(self) -> None:
        """Returns `None`: the workers compute, not this process."""
        return None

    def trace(self, options: dict[str, Any], epoch: int, step: int) -> list[tuple[str, int]]:
        return self._open(options).trace(epoch, step)

    def trace_offsets(self, epoch: int, first: int, count: int) -> list[tuple[str, int]]:
        return self._open({}).trace_offsets(epoch, first, count)


def _path(value: str | os.PathLike[str] | None) -> str | None:
    return None if value is None else os.fspath(value)
