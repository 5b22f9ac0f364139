"""Python functions in queries: `@forebay.udf`."""

from __future__ import annotations

import atexit
import contextlib
import errno
import importlib
import os
import re
import shutil
import signal
import tempfile
import threading
import time
import weakref
from typing import Any, Callable, Sequence, cast

from . import _arguments as arguments
from . import _native
from ._generators import Generators
from ._udf_tensors import TensorType

_functions: dict[str, "Udf"] = {}
# Set in worker processes, which only run functions.
_is_worker = False


def functions() -> list["Udf"]:
    """Returns all declared functions, the latest of each name."""
    return list(_functions.values())


def udf(
    function: Callable[..., Any] | None = None,
    *,
    input: Any,
    output: Any,
    name: str | None = None,
    version: int | str | None = None,
    nullable: bool = False,
    processes: int = 0,
    rng: bool = False,
) -> Any:
    """Declares a Python function of Arrow arrays, so that queries can call it.

        @forebay.udf(input="string", output="int32", version=1)
        def words(text):
            return pyarrow.compute.list_value_length(pyarrow.compute.split_pattern(text, " "))

    The function receives one pyarrow array for each type in `input`, all of equal length, and returns a pyarrow or
    NumPy array of the same length. Tensors are NumPy arrays: with the rows first if all have one shape, and otherwise a
    list of arrays. Its result for a row must depend on that row alone: the engine passes pieces of any size, from
    several threads, and some rows more than once. The function must not write to its arguments.

    - `input`: a type, or a list of types: names such as "int64", "string", "binary", "list<float>", pyarrow types, or
      `forebay.tensor("uint8", [224, 224, 3])`.
    - `output`: a type, a pyarrow field, or a tensor.
    - `name`: the name in queries; by default the function's own name.
    - `version`: change it when the function's results change, so that feeds can be told apart. Without a version, no
      result of the function can be stored.
    - `nullable`: whether results may be null.
    - `processes`: run the function in this many worker processes, because it holds the GIL for long. Arrays travel in
      shared memory. The function must be importable there, from a module or from a script that guards its main part
      with `if __name__ == "__main__"`.
    - `rng`: whether the function draws. Its last argument is then a sequence with a `numpy.random.Generator` for each
      row. What a generator draws depends only on the feed's seed, the epoch, the row and the call, so a row is the same
      after a restart and on any rank. NumPy may draw other numbers in another version.

        @forebay.udf(input="string", output="string", version=1, rng=True)
        def drop_words(texts, rngs):
            return [
                " ".join(word for word in text.as_py().split() if rng.random() > 0.1)
                for text, rng in zip(texts, rngs)
            ]
    """

    def declare(function: Callable[..., Any]) -> Udf:
        declared = Udf(function, input, output, name or function.__name__, version, nullable, processes, rng)
        if not _functions:
            # A thread that calls a function during Python's shutdown would crash the process.
            atexit.register(_native.end_functions)
        _functions[declared.name] = declared
        return declared

    return declare if function is None else declare(function)


def tensor(dtype: Any, shape: Sequence[int | None]) -> Any:
    """Returns the type of a tensor, for the arguments and the result of a UDF: `forebay.tensor("uint8", [32, 32, 3])`.

    A side may be `None`: then the tensors have many shapes, and the function receives or returns a list of arrays.
    """
    type = TensorType(_type(dtype), shape)
    return type.field("", nullable=True).type if type.is_fixed else type


class Udf:
    """A function that queries can call. A call from Python calls the function itself."""

    def __init__(
        self,
        function: Callable[..., Any],
        input: Any,
        output: Any,
        name: str,
        version: int | str | None,
        nullable: bool,
        processes: int,
        rng: bool = False,
    ):
        import pyarrow

        if not re.fullmatch(r"[a-z_][a-z0-9_]*", name):
            raise arguments.refuse("name", "a lower case name of letters, digits and _", name)
        if version is not None and (isinstance(version, bool) or not isinstance(version, (int, str))):
            raise arguments.refuse("version", "an integer or a string", version)
        self.function = function
        self.name = name
        self.rng = bool(arguments.boolean("rng", rng))
        self.version = None if version is None else str(version)
        listed = cast("list[Any]", input if isinstance(input, (list, tuple)) else [input])
        self.inputs = [_field("argument", item, nullable=True) for item in listed]
        is_field = isinstance(output, pyarrow.Field)
        self.output = output if is_field else _field(name, output, bool(arguments.boolean("nullable", nullable)))
        self._tensors = [TensorType.of(field) for field in self.inputs]
        self._processes = arguments.integer("processes", processes) or 0
        self._begin()
        _live.add(self)
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__module__ = function.__module__
        self.__qualname__ = function.__qualname__

    def _begin(self) -> None:
        """Begins without worker processes: in a new function, and in a forked child, where a lock that another thread
        held is never released."""
        self._pool: _Pool | None = None
        self._lock = threading.Lock()
        self._alone = threading.Lock()

    def __call__(self, *arrays: Any) -> Any:
        return self.function(*arrays)

    def __reduce__(self) -> Any:
        declared = (self.inputs, self.output, self.name, self.version)
        return _find, (self.__module__, self.__qualname__, declared, self.rng)

    def __repr__(self) -> str:
        *inputs, output = (str(TensorType.of(field) or field.type) for field in (*self.inputs, self.output))
        return f"<forebay.Udf {self.name}({', '.join(inputs)}) -> {output}>"

    def _call(self, arrays: list[Any]) -> Any:
        """Called by the engine with Arrow arrays; returns one."""
        import pyarrow

        arrays = [pyarrow.array(array) for array in arrays]
        if self._processes and not _is_worker:
            return self._call_elsewhere(arrays)
        return self._run(arrays)

    def _call_elsewhere(self, arrays: list[Any]) -> Any:
        with self._lock:
            if self._pool is None:
                self._pool = _Pool(self._processes)
            pool = self._pool
        try:
            return pool.call(self, arrays)
        except _PoolBroke:
            pass
        with self._lock:
            if self._pool is pool:
                self._pool = None
        pool.close()
        # A process died while several calls were running in the pool. Running each again in its own process shows which
        # call kills it.
        with self._alone:
            pool = _Pool(1)
            try:
                return pool.call(self, arrays)
            except _PoolBroke:
                # The kernel kills a process with this signal when memory runs out. That depends on load, not on the
                # rows.
                if -signal.SIGKILL in pool.exit_codes():
                    raise MemoryError("its worker process was killed, as the kernel does when memory runs out") from None
                raise RuntimeError("its worker process died") from None
            finally:
                pool.close()

    def _run(self, arrays: list[Any]) -> Any:
        import pyarrow

        passed: list[Any] = [
            array if type is None else type.arrays(array) for array, type in zip(arrays, self._tensors)
        ]
        if self.rng:
            # The last array has the seeds.
            passed.append(Generators(arrays[-1].to_pylist()))
        made = self.function(*passed)
        if isinstance(made, pyarrow.ChunkedArray):
            made = made.combine_chunks()
        storage = getattr(self.output.type, "storage_type", self.output.type)
        tensors = TensorType.of(self.output)
        if isinstance(made, pyarrow.ExtensionArray):
            if tensors is not None and tensors.is_fixed:
                tensors.check_type(made.type)
            made = made.storage
        if not isinstance(made, pyarrow.Array):
            if tensors is None and pyarrow.types.is_fixed_size_list(storage):
                tensors = TensorType(storage.value_type, [storage.list_size])
            made = pyarrow.array(made, type=storage) if tensors is None else tensors.column(made)
        if made.type != storage:
            made = made.cast(storage)
        return made


def _field(name: str, type: Any, nullable: bool) -> Any:
    import pyarrow

    if isinstance(type, TensorType):
        return type.field(name, nullable)
    return type if isinstance(type, pyarrow.Field) else pyarrow.field(name, _type(type), nullable=nullable)


def _type(value: Any) -> Any:
    import pyarrow

    if isinstance(value, pyarrow.DataType):
        return value
    if isinstance(value, str):
        listed = re.fullmatch(r"list<(.+)>", value.strip())
        if listed:
            return pyarrow.list_(_type(listed[1]))
        try:
            return pyarrow.type_for_alias(value.strip())
        except ValueError:
            pass
    accepted = 'a pyarrow type, the name of one, such as "int64", "string" or "list<float>", or forebay.tensor(…)'
    raise arguments.refuse("type", accepted, value)


def _find(module: str, qualname: str, declared: tuple[list[Any], Any, str, str | None], rng: bool) -> Udf:
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    # If `udf` was called, and not used as a decorator, the name refers to the function itself.
    return found if isinstance(found, Udf) else Udf(found, *declared, nullable=False, processes=0, rng=rng)


class _PoolBroke(Exception):
    """A worker process died during this call or another one."""


class _Pool:
    """Worker processes of one function. Arrays travel as Arrow files in shared memory, and both sides map them."""

    def __init__(self, processes: int):
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        # Shared memory first. Containers often have only 64 MiB of it, so what it cannot hold goes to the disk.
        folders = ["/dev/shm", tempfile.gettempdir()] if os.path.isdir("/dev/shm") else [tempfile.gettempdir()]
        self._folders: list[str] = []
        for parent in folders:
            with contextlib.suppress(OSError):
                self._folders.append(tempfile.mkdtemp(prefix="forebay-udf-", dir=parent))
        if not self._folders:
            raise OSError(errno.ENOSPC, f"no temporary folder can be created in {' or '.join(folders)}")
        self._processes: list[Any] = []
        self._pool = ProcessPoolExecutor(
            processes, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_worker
        )
        # The pool also closes when nothing refers to it, for example after its function was redeclared, and when Python
        # ends.
        self.close = weakref.finalize(self, _end_pool, self._pool, self._folders)
        _pools.add(self)

    def call(self, function: Udf, arrays: list[Any]) -> Any:
        from concurrent.futures import CancelledError
        from concurrent.futures.process import BrokenProcessPool

        try:
            return self._call(function, arrays)
        except (BrokenProcessPool, CancelledError):
            raise _PoolBroke from None
        except (RuntimeError, OSError):
            # Another call may have found the pool broken during this call, and closed it.
            if self.close.alive:
                raise
            raise _PoolBroke from None

    def _call(self, function: Udf, arrays: list[Any]) -> Any:
        sent = _write(arrays, self._folders)
        try:
            answer = self._pool.submit(_work, function, sent, self._folders)
            # Kept because a broken pool forgets its processes.
            self._processes = list((self._pool._processes or {}).values())
            path = answer.result()
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(sent)
        try:
            [made] = _read(path)
        finally:
            # The mapping stays valid until the array is freed.
            os.unlink(path)
        return made

    def exit_codes(self) -> list[int | None]:
        """How the worker processes ended: negative numbers are signals."""
        # The pool's own thread waits for the processes too. The system tells only one of the two how a process ended,
        # so the other has to look again until it is written down.
        deadline = time.monotonic() + 5
        while any(process.exitcode is None for process in self._processes) and time.monotonic() < deadline:
            time.sleep(0.01)
        return [process.exitcode for process in self._processes]


_live: weakref.WeakSet[Udf] = weakref.WeakSet()
_pools: weakref.WeakSet[_Pool] = weakref.WeakSet()


def _begin_in_child() -> None:
    # The processes and folders of the pools are the parent's.
    for pool in list(_pools):
        pool.close.detach()
    for function in list(_live):
        function._begin()


os.register_at_fork(after_in_child=_begin_in_child)


def _end_pool(pool: Any, folders: list[str]) -> None:
    pool.shutdown(wait=False, cancel_futures=True)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _begin_worker() -> None:
    global _is_worker
    _is_worker = True
    # Ctrl-C reaches all processes of a terminal. The parent process ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _work(function: Udf, sent: str, folders: list[str]) -> str:
    """Runs the function, in a worker process."""
    return _write([function._run(_read(sent))], folders)


def _write(arrays: list[Any], folders: list[str]) -> str:
    """Writes to the first folder with room."""
    import pyarrow

    batch = pyarrow.record_batch(arrays, names=[str(index) for index in range(len(arrays))])
    for folder in folders:
        handle, path = tempfile.mkstemp(dir=folder)
        os.close(handle)
        try:
            with pyarrow.OSFile(path, "wb") as file, pyarrow.ipc.new_file(file, batch.schema) as writer:
                writer.write_batch(batch)
            return path
        except BaseException as error:
            os.unlink(path)
            is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            if not is_full or folder == folders[-1]:
                raise
    raise AssertionError("a pool has at least one folder")


def _read(path: str) -> list[Any]:
    import pyarrow

    batch = pyarrow.ipc.open_file(pyarrow.memory_map(path)).get_batch(0)
    return cast("list[Any]", batch.columns)
