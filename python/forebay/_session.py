"""Sessions, pipelines and tables of this process, and the arguments of `load`."""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Literal, Mapping, Sequence, cast

from . import _arguments as arguments
from . import _formats as formats
from . import _native, _options, _ranks
from ._errors import InvalidError, NotFoundError
from ._frames import are_paths, are_rows, arrow_of
from ._jobs import JobProgress, Materialized, shown
from ._loader import EPOCHS_MAX, Loader, check_columns
from ._loads import Loads, LoadsNamed
from ._looking import Looks
from ._paths import table_of
from ._preview import Preview
from ._query import Query
from ._sources import is_name, is_query, name_of, read_script, table_options
from ._sql import quoted
from ._table import Table, with_tables
from ._udf import Udf, functions
from ._whole import MEMORY_LIMIT, joined

if TYPE_CHECKING:
    from ._share import Feed
    from ._types import FeedOptions, MaterializeOptions, Unpack


class Session(LoadsNamed):
    """Tables, pipelines, and the threads that compute them. The functions of the module share one session.

    Options, as on the command line:

    - `threads`: number of threads that compute, and of pieces of work under way; by default as many as keep all cores
      busy.
    - `cpu_limit`: most cores to compute on; by default all that the process may use. Unlike threads, it does not limit
      how much work waits.
    - `memory_limit`: memory for the rows of one feed: half for windows held ahead, a quarter for joined tables, an
      eighth for results under way; by default half of the container's or unit's limit.
    - `base`: folder that relative locations are relative to; the current folder by default.
    - `root` (".forebay"): folder or URL for what Forebay writes, such as quarantined rows.
    - `window_memory_limit` ("128MiB"): memory for windows held ahead of the reader; the window being read is always
      held.
    - `lookup_memory_limit` ("1GiB"): memory for all tables that one feed joins; a feed that needs more is refused.
    - `batch_memory_limit`: memory for a query or a stage over whole tables; by default half of what the process may
      use.
    - `spill_folder`: folder of the local disk for rows of such a query or stage that do not fit in memory; that of
      temporary files by default.
    - `no_precompute` (False): refuses to run stages over whole tables: a pipeline that needs one is opened only if its
      rows are kept.
    - `cache_folder`: folder of the local disk for what cache = 'source' keeps; "source" below the root by default.
    - `cache_limit` ("10GiB"): most bytes that cache = 'source' keeps on the local disk, or cache = 'auto' under the
      root.
    - `sql_queries` (False): lets clients of Flight SQL run any query over the tables, two at a time; otherwise they see
      rows of tables and pipelines.
    - `sql_rows_limit` (1000000): most rows that one statement of Flight SQL returns; a longer result ends with an
      error.

    Sizes are bytes, or text such as "64MiB".
    """

    def __init__(
        self,
        *,
        # begin: options of a session
        threads: int | None = None,
        cpu_limit: int | None = None,
        memory_limit: int | str | None = None,
        base: str | os.PathLike[str] | None = None,
        root: str | os.PathLike[str] | None = None,
        window_memory_limit: int | str | None = None,
        lookup_memory_limit: int | str | None = None,
        batch_memory_limit: int | str | None = None,
        spill_folder: str | os.PathLike[str] | None = None,
        no_precompute: bool | None = None,
        cache_folder: str | os.PathLike[str] | None = None,
        cache_limit: int | str | None = None,
        sql_queries: bool | None = None,
        sql_rows_limit: int | None = None,
        # end: options of a session
    ):
        given = dict(locals())
        self._functions: dict[str, Udf] = {}
        # The offsets of feeds' epochs that were counted, by feed id and epoch, unless the feed calls a function without
        # a version.
        self._counts: dict[tuple[str, int], int] = {}
        self._native = _native.Session(json.dumps(_options.checked(_options.SESSION, given)))
        # The folder that relative paths are relative to.
        self._base = "" if base is None else os.fspath(base)

    def sql(self, text: str | os.PathLike[str], **tables: Any) -> "Pipeline | Query | Any":
        """Runs a script, or compiles a query. `tables` are the tables that the text names: Arrow data, paths, or
        `Table`s.

        Returns the query's pipeline, or a `Query` if it needs all rows of its tables, as with GROUP BY. Of a script,
        returns the last pipeline that it creates or query that it has, or `None`. `text` may also be the path of a
        script. Relative locations begin at the session's base, by default the working folder.
        """
        name = "query"
        if isinstance(text, os.PathLike) or isinstance(text, str) and re.fullmatch(r"\S+\.sql", text):
            name, text = os.fspath(text), read_script(text)
        elif not isinstance(text, str):
            raise arguments.refuse("text", "SQL or the path of a script", text)
        made = {
            table: self.table(source)
            for table, source in tables.items()
            if isinstance(source, Table) or are_paths(source)
        }
        for table, source in tables.items():
            if table not in made:
                self._register(table, source)
        if is_query(text):
            query = with_tables(text, made)
            self._add_functions()
            return Query(self, self._native.query(query)) if self._native.needs_all_rows(query) else self._define(query)
        for table in made:
            raise InvalidError(
                f'"{table}" is a forebay.Table, which only a query can name, and the text is a script',
                "give a script paths or Arrow data, or write the table's query (its .sql) in it",
            )
        return self._run_script(name, text)

    def _run_script(self, name: str, text: str) -> "Pipeline | Query | None":
        """Runs a script, and returns the last of its pipelines and queries."""
        self._add_functions()
        created, query = self._native.run_script(name, text)
        if query is not None:
            return Query(self, query)
        return Pipeline(self, created) if created is not None else None

    def _add_functions(self) -> None:
        """Adds functions that were declared since the last call."""
        for function in functions():
            if self._functions.get(function.name) is not function:
                self._native.add_function(function)
                self._functions[function.name] = function

    def _define(self, query: str) -> "Pipeline":
        # The name is internal and not listed. It is unique, because the tables that a query names may be replaced.
        name = f"_query_{next(_queries)}"
        self._add_functions()
        self._native.define(name, query.rstrip().rstrip(";"))
        return Pipeline(self, name)

    def table(
        self,
        source: Any,
        *,
        name: str | None = None,
        format: str | None = None,
        hive_partitioning: bool | None = None,
        missing: Literal["null", "error"] | None = None,
        widen: bool | None = None,
        path_column: str | None = None,
    ) -> Table:
        """See `forebay.table`."""
        options = table_options(
            hive_partitioning=hive_partitioning, missing=missing, widen=widen, path_column=path_column
        )
        name = arguments.text("name", name)
        format = arguments.choice("format", format, _native.formats())
        if options and not (are_paths(source) or isinstance(source, (str, os.PathLike))):
            raise InvalidError(f'"{options[0][0]}" applies to files only', "leave it out")
        if isinstance(source, Table):
            return source
        if are_paths(source):
            return table_of(self, cast("Sequence[str | os.PathLike[str]]", source), name, format, options)
        if isinstance(source, str) and not source:
            raise arguments.refuse("source", "a table's name, a path or URL of files, or Arrow data", source)
        if isinstance(source, str) and name is None and format is None and not options and is_name(source):
            try:
                self._describe(source)
                return Table(self, quoted(source))
            except NotFoundError as error:
                if not os.path.exists(source):
                    raise NotFoundError(f'"{source}" is neither a table nor a path', error.hint) from None
        made = self._register(name, source, format, options)
        is_unnamed_frame = name is None and not isinstance(source, (str, os.PathLike))
        return Table(self, quoted(made), held=(_Frame(self, made),) if is_unnamed_frame else ())

    def concat(self, sources: Sequence[Any], *, memory_limit: int | str = MEMORY_LIMIT) -> Table:
        """See `forebay.concat`."""
        if not isinstance(sources, (list, tuple)) or not sources:
            raise arguments.refuse("sources", "a list of tables or of sources of forebay.table", sources)
        if are_paths(sources) and not any(self._has_table(source) for source in sources):
            return self.table(list(sources))
        return self.table(joined(self, [self.table(source) for source in sources], memory_limit))

    def _describe(self, name: str) -> None:
        """Raises an error if there is no such table."""
        self._native.execute("table", f"DESCRIBE TABLE {quoted(name)}")

    def _has_table(self, name: Any) -> bool:
        if not isinstance(name, str) or not is_name(name):
            return False
        try:
            self._describe(name)
        except NotFoundError:
            return False
        return True

    def _register(
        self, name: str | None, source: Any, format: str | None = None, options: Sequence[tuple[str, str]] = ()
    ) -> str:
        """Creates or replaces a table, and returns its name."""
        if isinstance(source, (str, os.PathLike)):
            location = os.fspath(cast("str | os.PathLike[str]", source))
            name = name or name_of(location, options)
            self._native.add_files(name, location, format, list(options))
            return name
        rows = arrow_of(source)
        try:
            return self._native.register(name, rows)
        except TypeError as error:
            raise InvalidError(f"a table cannot be made of {type(source).__name__}: {error}") from None

    def pipeline(self, name: str) -> "Pipeline":
        """Returns the pipeline `name`, created by a script."""
        return Pipeline(self, self._native.pipeline(name))

    def pipelines(self) -> list[str]:
        """Returns the names of the pipelines created by scripts."""
        return [name for name in self._native.pipelines() if not name.startswith("_")]

    def _load(self, pipeline: Any, options: dict[str, Any]) -> Loader[Any]:
        return self._resolve(pipeline)._load(options)

    def _resolve(self, pipeline: Any) -> "Pipeline":
        if isinstance(pipeline, Pipeline):
            return pipeline
        if isinstance(pipeline, Table):
            return pipeline.pipeline()
        if isinstance(pipeline, os.PathLike) or isinstance(pipeline, str) and pipeline.endswith(".sql"):
            return _of_script(Path(cast("str | os.PathLike[str]", pipeline)))
        if are_rows(pipeline):
            return self.table(pipeline).pipeline()
        if not isinstance(pipeline, str):
            accepted = "a pipeline's name, SQL, the path of a .sql script, a forebay.Pipeline, a forebay.Table or rows"
            raise arguments.refuse("pipeline", accepted, pipeline)
        if re.search(r"\s", pipeline.strip()):
            made = self._define(pipeline) if is_query(pipeline) else self._run_script("query", pipeline)
            if not isinstance(made, Pipeline):
                raise InvalidError(
                    "the SQL creates no pipeline", "end it with a SELECT, or CREATE PIPELINE name AS SELECT …"
                )
            return made
        try:
            return self.pipeline(pipeline)
        except NotFoundError:
            if re.search(r"[/*]|\.\w+$", pipeline) is None and not os.path.exists(pipeline):
                raise
            raise NotFoundError(
                f'there is no pipeline "{pipeline}"', f"if these are files: forebay.table({pipeline!r}).load(…)"
            ) from None

    def serve(self, *, host: str = "127.0.0.1", port: int = 0, insecure: bool = False) -> "Server":
        """Serves this session's pipelines over Arrow Flight from this process; port 0 takes a free port.

        The server has neither TLS nor tokens, so only this user can connect, and only from this machine, unless
        `insecure`. `forebay serve` has both.
        """
        if not isinstance(host, str):
            raise arguments.refuse("host", "an IP address", host)
        host = "127.0.0.1" if host == "localhost" else host
        is_here = host == "::1" or host.startswith("127.")
        insecure = bool(arguments.boolean("insecure", insecure))
        if not is_here and not insecure:
            raise InvalidError(
                f'"host" {host} is reachable from other machines, and this server has neither TLS nor tokens',
                "use `forebay serve` with --tls-cert and --token-file, or give insecure=True on a network you trust",
            )
        if not isinstance(port, int) or not 0 <= port < 65536:
            raise arguments.refuse("port", "from 0 to 65535", port)
        return Server(_native.Server(self._native, host, port, insecure))

    def __reduce__(self) -> Any:
        raise InvalidError(
            "a session cannot be sent to another process",
            "neither can its pipelines and tables: call forebay.load in that process",
        )


class Pipeline(Loads, Looks):
    """A checked and compiled query."""

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
        """The samples' schema: a pyarrow schema if pyarrow is installed, else an object with `__arrow_c_schema__`."""
        schema = Schema(self.session._native.schema(self.name))
        try:
            import pyarrow
        except ImportError:
            return schema
        return pyarrow.schema(schema)

    def explain(self, **options: Unpack[FeedOptions]) -> "Text":
        """Describes how the pipeline will run. Takes the feed options of `load`."""
        feed, rest = _split(options)
        _refuse_rest(rest)
        return Text(self.session._native.explain(self.name, json.dumps(feed)))

    def preview(self, rows: int = 8, **options: Unpack[FeedOptions]) -> "Preview":
        """Returns the first processed rows: a table in a terminal, with pictures in a notebook. It leaves out bad rows
        and counts them."""
        feed, rest = _split(options)
        _refuse_rest(rest)
        return Preview(self.session._native.preview(self.name, json.dumps(feed), arguments.count("rows", rows, 1)))

    def materialize(
        self,
        to: str | os.PathLike[str],
        *,
        progress: Callable[[JobProgress], None] | None = None,
        **options: Unpack[MaterializeOptions],
    ) -> Materialized:
        """Writes the samples of one epoch to files in the folder or URL `to`. Takes the feed options of `load`, and:

        - `format` ("parquet"): format of the files: "parquet", "arrow", "csv", "jsonl", "mds", "webdataset".
        - `file_size` ("64MiB"): size of a file's samples in memory; a file holds at least one window.
        - `compression`: compression of the files; the format's own by default.
        - `partition_by`: column or columns whose values become names of folders, such as `dt=2026-01-01`.
        - `global_shuffle` (False): whether to write the samples in a random order of all rows, by `seed`; `shuffle`
          mixes the rows of a window.
        - `sort_by`: column or columns to sort the samples by, as in ORDER BY: "price DESC".

        `progress` is called about every second with a `JobProgress`: files, samples and bytes.

        If the same job has already written its samples there, this method reuses them and computes nothing. If it was
        interrupted, it resumes.
        """
        feed, job = job_options(options)
        done = self.session._native.materialize(self.name, feed, os.fspath(to), job, shown(progress))
        return Materialized(self.session, json.loads(done))

    def cache(self) -> Table:
        """Returns a table of the query's result, computed once and stored as Parquet under the session's root. Query,
        files and versions identify the stored result. Random operators are refused, because their results would repeat
        in every epoch."""
        return Materialized(self.session, json.loads(self.session._native.cache(self.name))).table()

    def _looked_at(self) -> "Pipeline":
        return self

    def _load(self, options: dict[str, Any]) -> Loader[Any]:
        def opened(
            feed: dict[str, Any], read: dict[str, Any], columns: list[str] | None, counts: bool
        ) -> LocalFeed:
            return LocalFeed(self.session, self.name, feed, columns, counts)

        return make_loader(opened, options)

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {type}" for name, type in self.columns.items())
        return f"<forebay.Pipeline {self.name} {{{columns}}}>"


class _Frame:
    """Keeps unnamed rows alive. The session frees them when no table uses them any more."""

    def __init__(self, session: Session, name: str):
        weakref.finalize(self, session._native.release, name).atexit = False


class LocalFeed:
    """A feed that this process computes."""

    def __init__(
        self, session: Session, name: str, feed: dict[str, Any], columns: list[str] | None, counts: bool = False
    ):
        if columns is not None:
            check_columns(columns, [known for known, _, _ in session._native.columns(name)])
        self._session = session
        self._native = session._native.open(name, json.dumps(feed), columns)
        self.id = self._native.id
        self.columns = self._native.columns
        self.samples_per_epoch = self._native.samples_per_epoch
        self.identity = json.loads(self._native.identity)
        self.has_length_buckets = self._native.has_length_buckets
        # Counting computes no column. The pipeline may be gone when epochs are counted.
        is_known = self.samples_per_epoch is not None and not self.has_length_buckets
        self._counted = session._native.open(name, json.dumps(feed), []) if counts and not is_known else None
        self.counts: bool | None = self._counted is not None
        self._has_equal_epochs = self._counted is not None and self._counted.has_equal_epochs
        # A function without a version may be replaced, and the new one's feed has the same id.
        calls: list[str] = [] if self._counted is None else self._counted.uncacheable_calls
        is_lasting = all(function.version is not None for function in functions() if function.name in calls)
        self._counts = session._counts if is_lasting else dict[tuple[str, int], int]()
        if self._has_equal_epochs:
            # From here on, it is as if the files said it.
            self.samples_per_epoch = self.count(0)

    def resolve(self, options: dict[str, Any]) -> tuple[int, int, bool, int | None]:
        batch_size, epochs, drop_last, samples = self._native.resolve(json.dumps(options))
        return batch_size, epochs, drop_last, self.samples_per_epoch if self._has_equal_epochs else samples

    def count(self, epoch: int) -> int | None:
        if self._counted is None:
            return None
        known, key = self._counts, (self.id, 0 if self._has_equal_epochs else epoch)
        if key not in known:
            known[key] = self._counted.count(epoch)
        return known[key]

    def read(self, options: dict[str, Any], ahead: int) -> _native.Stream:
        return self._native.read(json.dumps(options), ahead)

    def compute_seconds(self) -> float:
        return self._session._native.compute_seconds()

    def trace(self, options: dict[str, Any], epoch: int, step: int) -> list[tuple[str, int]]:
        return self._native.trace(json.dumps(options), epoch, step)

    def trace_offsets(self, epoch: int, first: int, count: int) -> list[tuple[str, int]]:
        return self._native.trace_offsets(epoch, first, count)


def make_loader(
    open_feed: Callable[[dict[str, Any], dict[str, Any], list[str] | None, bool], Feed],
    options: dict[str, Any],
    names_job: bool = False,
) -> Loader[Any]:
    """Checks the arguments of `load`, and returns the loader of the feed that `open_feed` opens.

    Names the job of ranks that a launcher started if `names_job`.
    """
    feed, rest = _split(options)
    # Several processes may share the samples of a rank that is given.
    is_launched = all(rest.get(name) is None for name in ("rank", "world_size", "dp_rank", "dp_size"))
    ranks = _ranks.Ranks(
        rest.pop("rank"), rest.pop("world_size"), rest.pop("dp_rank", None), rest.pop("dp_size", None)
    )
    given = _options.checked(_options.READ, rest)
    epochs = rest.pop("epochs")
    epochs = EPOCHS_MAX if epochs == float("inf") else arguments.positive("epochs", epochs)
    columns = arguments.names("columns", rest.pop("columns"))
    counts = bool(arguments.boolean("count", rest.pop("count")))
    format = arguments.choice("format", rest.pop("format"), formats.FORMATS) or formats.default()
    global_batch_size = feed.get("global_batch_size")
    is_split = global_batch_size is not None and "bucket_by_length" not in feed
    if is_split:
        if "batch_size" in given:
            raise InvalidError(
                '"batch_size" and "global_batch_size" were both given',
                "a rank's batch is the global batch divided by the world size: give one of them",
            )
        del feed["global_batch_size"]
    is_named = names_job and is_launched and "job" not in given and given.get("delivery") != "dynamic"
    name = _ranks.JobName({**feed, **given, "global_batch_size": global_batch_size}) if is_named else None

    def read(rank: int, world_size: int) -> dict[str, Any]:
        """Returns the options for reading as a rank."""
        read = given | {"rank": rank, "world_size": world_size}
        if global_batch_size is not None:
            share = arguments.share(global_batch_size, world_size)
            read |= {"batch_size": share} if is_split else {}
        job = name.of(world_size) if name is not None and world_size > 1 else None
        return read if job is None else read | {"job": job}

    loader_class: type[Loader[Any]] = torch_loader() if format == "torch" else Loader
    return loader_class(
        open_feed(feed, read(*(ranks.used or (0, 1))), columns, counts),
        ranks=ranks,
        read=read,
        epochs=epochs,
        columns=columns,
        padding=rest.pop("padding"),
        format=format,
        prefetch_factor=arguments.positive("prefetch_factor", rest.pop("prefetch_factor"), 65536) or 2,
        device=rest.pop("device"),
        pin_memory=bool(arguments.boolean("pin_memory", rest.pop("pin_memory"))),
    )


_torch_loader: type[Loader[Any]] | None = None


def torch_loader() -> type[Loader[Any]]:
    """Returns a subclass of `Loader` that is a `torch.utils.data.IterableDataset`, so that torch's own loaders accept
    it."""
    global _torch_loader
    if _torch_loader is None:
        from torch.utils.data import IterableDataset

        class TorchLoader(Loader[Any], IterableDataset[Any]):
            __doc__ = Loader.__doc__

        TorchLoader.__name__ = TorchLoader.__qualname__ = "Loader"
        _torch_loader = TorchLoader
    return _torch_loader


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the checked feed options, and the other options."""
    rest = dict(options)
    return _options.checked(_options.FEED, rest), rest


def job_options(options: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the checked options of `materialize` as JSON: those of the feed, and those of the job."""
    given = dict(options)
    job = _options.checked(_options.JOB, given)
    feed, rest = _split(given)
    _refuse_rest(rest, _options.JOB)
    return json.dumps(feed), json.dumps(job)


def _refuse_rest(rest: dict[str, Any], others: _options.Checks = {}) -> None:
    for name in rest:
        options = ", ".join([*others, *_options.FEED])
        raise TypeError(f"unexpected keyword argument {name!r}; the options are {options}")


class Schema:
    """A schema in Arrow's PyCapsule interface."""

    def __init__(self, capsule: Any):
        self._capsule = capsule

    def __arrow_c_schema__(self) -> Any:
        return self._capsule


class Text(str):
    """A text that a notebook shows with its line breaks."""

    def __repr__(self) -> str:
        return str(self)


class Server:
    """A server in this process. Stops with `stop()`, at the end of a `with`, or with the process."""

    def __init__(self, native: _native.Server):
        self._native = native

    @property
    def uri(self) -> str:
        """The address that clients connect to."""
        return self._native.uri

    def stop(self) -> None:
        """Waits some seconds for streams to end, then closes the port."""
        self._native.stop()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<forebay.Server {self.uri}>"


def _of_script(path: Path) -> Pipeline:
    """Returns the pipeline of a script. Relative locations begin at the script's folder."""
    text = read_script(path)
    session = Session(base=path.parent)
    session._run_script(str(path), text)
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
    """Returns the session that the module's functions share. A forked child gets its own."""
    global _default, _default_process
    with _lock:
        if _default is None or _default_process != os.getpid():
            _default, _default_process = Session(), os.getpid()
        return _default
