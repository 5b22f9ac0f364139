"""Sessions, pipelines and tables in this process, and the arguments of `load`."""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
import weakref
from pathlib import Path
from typing import Any

from . import _arguments as arguments
from . import _formats as formats
from . import _native, _ranks
from ._errors import Error, InvalidError, NotFoundError
from ._loader import EPOCHS_MAX, Loader, check_columns
from ._sources import format_of, is_name, is_query, name_of, read_script
from ._table import Table, quoted, with_tables
from ._udf import Udf, functions

_READ = ("batch_size", "drop_last", "delivery", "job")
_FEED = (
    "seed",
    "shuffle",
    "on_error",
    "window_bytes",
    "window_rows",
    "bucket_by_length",
    "bucket_boundaries",
    "global_batch_size",
)


class Session:
    """Tables, pipelines, and the threads that compute them. The module's functions use one that all share.

    `window_memory_limit` is for windows held ahead of readers (128 MiB), `lookup_memory_limit` for the tables that a feed
    joins (1 GiB): bytes, or text such as "64MiB".
    """

    def __init__(
        self,
        *,
        threads: int | None = None,
        base: str | os.PathLike[str] | None = None,
        root: str | os.PathLike[str] | None = None,
        window_memory_limit: int | str | None = None,
        lookup_memory_limit: int | str | None = None,
    ):
        self._functions: dict[str, Udf] = {}
        self._native = _native.Session(
            arguments.positive("threads", threads),
            arguments.path("base", base),
            arguments.path("root", root),
            arguments.size("window_memory_limit", window_memory_limit),
            arguments.size("lookup_memory_limit", lookup_memory_limit),
        )

    def sql(self, text: str | os.PathLike[str], **tables: Any) -> "Pipeline | None":
        """Runs a script, or takes a query as a pipeline. `tables` are names in it: Arrow data, paths, or `Table`s.

        Gives the pipeline of a query, or the last that a script creates; `None` for a script without one. `text` may also be
        the path of a script; relative locations begin at the session's base, by default the working folder.
        """
        name = "query"
        if isinstance(text, os.PathLike) or isinstance(text, str) and re.fullmatch(r"\S+\.sql", text):
            name, text = os.fspath(text), read_script(text)
        elif not isinstance(text, str):
            raise arguments.refuse("text", "SQL or the path of a script", text)
        made = {table: source for table, source in tables.items() if isinstance(source, Table)}
        for table, source in tables.items():
            if table not in made:
                self._register(table, source)
        if is_query(text):
            return self._define(with_tables(text, made))
        for table in made:
            raise InvalidError(
                f'"{table}" is a forebay.Table, which only a query can name, and the text is a script',
                "give a script paths or Arrow data, or write the table's query (its .sql) in it",
            )
        before = self._statements(name, text)
        created = [made for made in before if made is not None]
        return Pipeline(self, created[-1]) if created else None

    def _statements(self, name: str, text: str) -> list[str | None]:
        """Runs a script; for each statement the name of the pipeline that it created, if it did."""
        outputs = self._execute(name, text)
        created = [re.fullmatch(r'created pipeline "(.*)"', out) if isinstance(out, str) else None for out in outputs]
        return [match[1] if match else None for match in created]

    def _execute(self, name: str, text: str) -> list[Any]:
        self._add_functions()
        return self._native.execute(name, text)

    def _add_functions(self) -> None:
        """Makes functions known that were declared since."""
        for function in functions():
            if self._functions.get(function.name) is not function:
                self._native.add_function(function)
                self._functions[function.name] = function

    def _define(self, query: str) -> "Pipeline":
        # Not listed, being nothing that a user named; never another's, as tables of the same name may come and go.
        name = f"_query_{next(_queries)}"
        self._add_functions()
        self._native.define(name, query.rstrip().rstrip(";"))
        return Pipeline(self, name)

    def table(self, source: Any, *, name: str | None = None, format: str | None = None) -> Table:
        """A table to build a pipeline from: the name of one, a path, glob or URL of files, or Arrow data such as a pyarrow
        table, a Polars or a pandas frame."""
        if isinstance(source, Table):
            return source
        name = arguments.text("name", name)
        format = arguments.choice("format", format, ("parquet", "csv", "jsonl", "media"))
        if isinstance(source, str) and not source:
            raise arguments.refuse("source", "a table's name, a path or URL of files, or Arrow data", source)
        if isinstance(source, str) and name is None and format is None and is_name(source):
            try:
                self._native.execute("table", f"DESCRIBE TABLE {quoted(source)}")
                return Table(self, quoted(source))
            except NotFoundError as error:
                if not os.path.exists(source):
                    raise NotFoundError(f'"{source}" is neither a table nor a path', error.hint) from None
        made = self._register(name, source, format)
        is_unnamed_frame = name is None and not isinstance(source, (str, os.PathLike))
        return Table(self, quoted(made), held=(_Frame(self, made),) if is_unnamed_frame else ())

    def _register(self, name: str | None, source: Any, format: str | None = None) -> str:
        """Creates or replaces a table, and gives its name."""
        if isinstance(source, (str, os.PathLike)):
            location = os.fspath(source)
            name = name or name_of(location)
            stored = format or format_of(location)
            self._native.add_files(name, location, stored)
            return name
        if hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__"):
            try:
                return self._native.register(name, source)
            except TypeError as error:
                raise InvalidError(f"a table cannot be made of {type(source).__name__}: {error}") from None
        raise InvalidError(
            f"a table cannot be made of {type(source).__name__}",
            "give a path or URL, or Arrow data: anything with __arrow_c_stream__, such as a pyarrow table, a Polars or "
            "a pandas frame",
        )

    def pipeline(self, name: str) -> "Pipeline":
        """The pipeline `name`, which a script created."""
        return Pipeline(self, self._native.pipeline(name))

    def pipelines(self) -> list[str]:
        """Names of the pipelines that were created."""
        return [name for name in self._native.pipelines() if not name.startswith("_")]

    def load(self, pipeline: Any, **options: Any) -> Loader:
        """As `forebay.load`."""
        return self._resolve(pipeline).load(**options)

    def _resolve(self, pipeline: Any) -> "Pipeline":
        if isinstance(pipeline, Pipeline):
            return pipeline
        if isinstance(pipeline, Table):
            return pipeline.pipeline()
        if isinstance(pipeline, os.PathLike) or isinstance(pipeline, str) and pipeline.endswith(".sql"):
            return _of_script(Path(pipeline))
        if hasattr(pipeline, "__arrow_c_stream__"):
            return self.table(pipeline).pipeline()
        if not isinstance(pipeline, str):
            accepted = "a pipeline's name, SQL, the path of a .sql script, a forebay.Pipeline, a forebay.Table or Arrow data"
            raise arguments.refuse("pipeline", accepted, pipeline)
        if re.search(r"\s", pipeline.strip()):
            made = self.sql(pipeline)
            if made is None:
                raise InvalidError("the SQL creates no pipeline", "end it with a SELECT, or CREATE PIPELINE name AS SELECT …")
            return made
        return self.pipeline(pipeline)

    def serve(self, *, host: str = "127.0.0.1", port: int = 0, insecure: bool = False) -> "Server":
        """Serves this session's pipelines over Arrow Flight from this process; port 0 takes a free one.

        Without TLS and tokens, so only to this machine unless `insecure`; `forebay serve` has both.
        """
        if not isinstance(host, str):
            raise arguments.refuse("host", "an IP address", host)
        host = "127.0.0.1" if host == "localhost" else host
        is_here = host == "::1" or host.startswith("127.")
        if not is_here and not arguments.boolean("insecure", insecure):
            raise InvalidError(
                f'"host" {host} lets others in, without TLS or a token',
                "serve with `forebay serve` and its --tls-cert and --token-file, or say insecure=True where the network is trusted",
            )
        if not isinstance(port, int) or not 0 <= port < 65536:
            raise arguments.refuse("port", "from 0 to 65535", port)
        return Server(_native.Server(self._native, host, port))

    def __reduce__(self):
        raise InvalidError(
            "a session cannot be sent to another process", "nor can its pipelines and tables: call forebay.load in that process"
        )


class Pipeline:
    """A query that was checked and compiled."""

    def __init__(self, session: Session, name: str):
        self.session = session
        self.name = name
        if name.startswith("_query_"):
            weakref.finalize(self, session._native.undefine, name)

    @property
    def columns(self) -> dict[str, str]:
        """Names and types of the samples' columns."""
        return {name: type for name, type, _ in self.session._native.columns(self.name)}

    @property
    def schema(self) -> Any:
        """The samples' schema: pyarrow's where pyarrow is installed, else an object with `__arrow_c_schema__`."""
        schema = Schema(self.session._native.schema(self.name))
        try:
            import pyarrow
        except ImportError:
            return schema
        return pyarrow.schema(schema)

    def explain(self, **options: Any) -> "Text":
        """How it will run, with the feed options of `load`."""
        feed, rest = _split(options)
        _refuse_rest(rest)
        return Text(self.session._native.explain(self.name, json.dumps(feed)))

    def preview(self, rows: int = 8, **options: Any) -> "Preview":
        """The first processed rows: a table in a terminal, with pictures in a notebook. Bad rows are left out and counted."""
        feed, rest = _split(options)
        _refuse_rest(rest)
        return Preview(self.session._native.preview(self.name, json.dumps(feed), arguments.count("rows", rows, 1)))

    def materialize(self, to: str | os.PathLike[str], **options: Any) -> "Materialized":
        """Writes the samples of one epoch to Parquet files in the folder or URL `to`, with the feed options of `load`.

        What the same feed wrote there before is found, and nothing is computed.
        """
        feed, rest = _split(options)
        _refuse_rest(rest)
        to = os.fspath(to)
        opened = self.session._native.open(self.name, json.dumps(feed))
        manifest, found = opened.materialize(to)
        return Materialized(self.session, to, json.loads(manifest), found)

    def cache(self) -> Table:
        """A table of what the query gives, computed once and kept as Parquet under the session's root; found again by query,
        files and versions. Refused for random operators, whose results would be the same in every epoch."""
        opened = self.session._native.open(self.name, json.dumps({"shuffle": False}))
        if opened.uncacheable_calls:
            raise InvalidError(
                f"what {', '.join(opened.uncacheable_calls)} gives must not be kept",
                "random operators come after cache(); Python functions need a version",
            )
        return self.materialize(f"{self.session._native.root}/cache/{opened.id}", shuffle=False).table()

    def load(
        self,
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
        """As `forebay.load`."""
        options = dict(locals())
        del options["self"]
        return make_loader(lambda feed, _, columns: LocalFeed(self.session, self.name, feed, columns), options)

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {type}" for name, type in self.columns.items())
        return f"<forebay.Pipeline {self.name} {{{columns}}}>"


class _Frame:
    """Rows that were given no name. The session forgets them when no table is made over them any more."""

    def __init__(self, session: Session, name: str):
        weakref.finalize(self, session._native.release, name).atexit = False


class LocalFeed:
    """A feed that this process computes."""

    def __init__(self, session: Session, name: str, feed: dict[str, Any], columns: list[str] | None):
        if columns is not None:
            check_columns(columns, [known for known, _, _ in session._native.columns(name)])
        self._session = session
        self._native = session._native.open(name, json.dumps(feed), columns)
        self.id = self._native.id
        self.columns = self._native.columns
        self.samples_per_epoch = self._native.samples_per_epoch
        self.identity = json.loads(self._native.identity)
        self.has_length_buckets = self._native.has_length_buckets

    def resolve(self, options: dict[str, Any]) -> tuple[int, int, bool, int | None]:
        return self._native.resolve(json.dumps(options))

    def read(self, options: dict[str, Any], ahead: int) -> _native.Stream:
        return self._native.read(json.dumps(options), ahead)

    def compute_seconds(self) -> float:
        return self._session._native.compute_seconds()

    def trace(self, options: dict[str, Any], epoch: int, step: int) -> list[tuple[str, int]]:
        return self._native.trace(json.dumps(options), epoch, step)

    def trace_offsets(self, epoch: int, first: int, count: int) -> list[tuple[str, int]]:
        return self._native.trace_offsets(epoch, first, count)


def make_loader(open_feed: Any, options: dict[str, Any]) -> Loader:
    """Checks the arguments of `load` and makes the loader of the feed that `open_feed` opens."""
    feed, rest = _split(options)
    rank, world_size = _ranks.resolve(
        rest.pop("rank"), rest.pop("world_size"), rest.pop("dp_rank", None), rest.pop("dp_size", None)
    )
    read: dict[str, Any] = {
        "batch_size": arguments.positive("batch_size", rest.pop("batch_size")),
        "drop_last": arguments.boolean("drop_last", rest.pop("drop_last")),
        "rank": rank,
        "world_size": world_size,
        "delivery": arguments.choice("delivery", rest.pop("delivery", None), ["ordered", "dynamic"]),
        "job": arguments.text("job", rest.pop("job", None)),
    }
    read = {name: value for name, value in read.items() if value is not None}
    epochs = rest.pop("epochs")
    epochs = EPOCHS_MAX if epochs == float("inf") else arguments.positive("epochs", epochs)
    columns = arguments.names("columns", rest.pop("columns"))
    format = arguments.choice("format", rest.pop("format"), formats.FORMATS) or formats.default()
    global_batch_size = feed.get("global_batch_size")
    if global_batch_size is not None and "bucket_by_length" not in feed:
        if "batch_size" in read:
            raise InvalidError(
                '"batch_size" and "global_batch_size" were both given',
                "a rank's batch is the global batch divided by the world size: give one of them",
            )
        read["batch_size"] = arguments.share(feed.pop("global_batch_size"), world_size)
    elif global_batch_size is not None:
        arguments.share(global_batch_size, world_size)
    loader_class = torch_loader() if format == "torch" else Loader
    return loader_class(
        open_feed(feed, read, columns),
        read=read,
        epochs=epochs,
        rank=rank,
        world_size=world_size,
        columns=columns,
        format=format,
        prefetch_factor=arguments.positive("prefetch_factor", rest.pop("prefetch_factor"), 65536) or 2,
        device=rest.pop("device"),
        pin_memory=bool(arguments.boolean("pin_memory", rest.pop("pin_memory"))),
    )


_torch_loader: type[Loader] | None = None


def torch_loader() -> type[Loader]:
    """The loader as a `torch.utils.data.IterableDataset`, so that torch's own loaders take it."""
    global _torch_loader
    if _torch_loader is None:
        from torch.utils.data import IterableDataset

        class TorchLoader(Loader, IterableDataset):
            __doc__ = Loader.__doc__

        TorchLoader.__name__ = TorchLoader.__qualname__ = "Loader"
        _torch_loader = TorchLoader
    return _torch_loader


def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Feed options, checked, and the rest."""
    rest = dict(options)
    checks = {
        "seed": arguments.integer,
        "shuffle": arguments.boolean,
        "on_error": lambda name, value: arguments.choice(name, value, ["raise", "skip", "quarantine"]),
        "window_bytes": arguments.size,
        "window_rows": arguments.positive,
        "bucket_by_length": arguments.text,
        "bucket_boundaries": _boundaries,
        "global_batch_size": arguments.positive,
    }
    feed = {name: check(name, rest.pop(name, None)) for name, check in checks.items()}
    return {name: value for name, value in feed.items() if value is not None}, rest


def _refuse_rest(rest: dict[str, Any]) -> None:
    for name in rest:
        raise TypeError(f"unexpected keyword argument {name!r}; feed options are {', '.join(_FEED)}")


def _boundaries(name: str, value: Any) -> str | None:
    if value is None:
        return None
    try:
        return ",".join(str(arguments.positive(name, bound)) for bound in value)
    except (TypeError, Error):
        raise arguments.refuse(name, "a list of ascending positive integers", value) from None


class Materialized:
    """Samples that were written to Parquet files."""

    def __init__(self, session: Session, url: str, manifest: dict[str, Any], found: bool):
        self._session = session
        self.url = url
        # Below `url`, where the files are: other runs may have left theirs beside it.
        self.folder: str = manifest["folder"]
        self.files: list[str] = manifest["files"]
        self.rows: int = manifest["rows"]
        self.bad_rows: int = manifest["bad_rows"]
        # Whether all was there already.
        self.found = found

    def table(self) -> Table:
        """The samples as a table."""
        return self._session.table(f"{self.url.rstrip('/')}/{self.folder}", format="parquet")

    def __repr__(self) -> str:
        return f"<forebay.Materialized {self.rows} rows in {len(self.files)} files at {self.url}>"


class Schema:
    """A schema in Arrow's PyCapsule interface."""

    def __init__(self, capsule: Any):
        self._capsule = capsule

    def __arrow_c_schema__(self) -> Any:
        return self._capsule


class Text(str):
    """A text of several lines that a notebook shows as lines."""

    def __repr__(self) -> str:
        return str(self)


class Preview:
    """Processed rows to look at."""

    def __init__(self, native: tuple[str, str, int, int]):
        self.text, self.html, self.rows, self.bad_rows = native

    def __repr__(self) -> str:
        if not self.bad_rows:
            return self.text
        return f'{self.text}\nleft out {self.bad_rows} rows that cannot be processed; on_error="raise" names the first'

    def _repr_html_(self) -> str:
        return self.html


class Server:
    """A server in this process. Stops with `stop()`, at the end of a `with`, or with the process."""

    def __init__(self, native: _native.Server):
        self._native = native

    @property
    def uri(self) -> str:
        """Where clients connect."""
        return self._native.uri

    def stop(self) -> None:
        """Lets streams end for some seconds, then closes the port."""
        self._native.stop()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<forebay.Server {self.uri}>"


def _of_script(path: Path) -> Pipeline:
    """The pipeline of a script, whose relative locations begin at its folder."""
    text = read_script(path)
    session = Session(base=path.parent)
    session._execute(str(path), text)
    names = session.pipelines()
    if len(names) == 1:
        return session.pipeline(names[0])
    if not names:
        raise InvalidError(f'"{path}" creates no pipeline', "add CREATE PIPELINE name AS SELECT …")
    raise InvalidError(
        f'"{path}" creates {len(names)} pipelines: {", ".join(names)}',
        'choose one: session = forebay.Session(base="…"); session.sql(path); session.load(name)',
    )


_queries = itertools.count(1)
_default: Session | None = None
_default_process = 0
_lock = threading.Lock()


def default_session() -> Session:
    """The session that the module's functions share. A forked child gets its own."""
    global _default, _default_process
    with _lock:
        if _default is None or _default_process != os.getpid():
            _default, _default_process = Session(), os.getpid()
        return _default
