"""The loader: a rank's batches, with exact resume."""

from __future__ import annotations

import json
import time
import weakref
from typing import Any, Callable, Generic, Iterator, Protocol, cast

from . import _arguments as arguments
from . import _formats as formats
from . import _native
from ._batch import Batch
from ._devices import DeviceCopy
from ._errors import ConflictError, Error, InvalidError
from ._packages import installed
from ._types import B

STATE_VERSION = 1
# Stands for an endless loop: far more epochs than any training run has.
EPOCHS_MAX = 1 << 32


class Feed(Protocol):
    """The feed that a loader reads, in this process or on a cluster."""

    id: str
    columns: list[tuple[str, str, bool]]
    samples_per_epoch: int | None
    identity: dict[str, Any]

    def resolve(self, options: dict[str, Any]) -> tuple[int, int, bool, int | None]:
        """Returns batch size, epochs, drop_last, and the number of this rank's remaining samples if it is known."""
        ...

    def read(self, options: dict[str, Any], ahead: int) -> _native.Stream: ...

    def compute_seconds(self) -> float | None: ...

    def trace(self, options: dict[str, Any], epoch: int, step: int) -> list[tuple[str, int]]: ...

    def trace_offsets(self, epoch: int, first: int, count: int) -> list[tuple[str, int]]: ...


class Loader(Generic[B]):
    """Iterates over one rank's batches of a feed; made by `forebay.load`.

    Without `epochs`, each `for` loop is one epoch, and the next loop is the next epoch. With `epochs=N` one loop is all
    N epochs, and with `epochs=float("inf")` it has no end. A new loop starts its epoch over, unless a state was loaded
    or steps were skipped.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        read: dict[str, Any],
        epochs: int | None,
        rank: int,
        world_size: int,
        columns: list[str] | None,
        format: str,
        prefetch_factor: int,
        device: Any,
        pin_memory: bool,
    ):
        self._feed = feed
        self._read = read
        self._epochs = epochs
        self._rank, self._world_size = rank, world_size
        self._columns = columns
        self._format = format
        self._tensor: Any = None if format == "arrow" else formats.converter(format)
        self._ahead = prefetch_factor
        self._copy = DeviceCopy.of(device, pin_memory, format)
        self._batch_size = feed.resolve(self._options("0:0", 0))[0]
        if columns is not None:
            check_columns(columns, [name for name, _, _ in feed.columns])
        self._epoch = 0
        self._place = _Place(0, 0, "0:0")
        self._resume: _Place | None = None
        self._stream: _native.Stream | None = None
        self._generation = 0
        # A weak reference to the loop that reads the stream.
        self._loop: Callable[[], _Batches[B] | None] = lambda: None
        # `_interrupted`: the last batch may have been lost between the stream and the loop.
        # `_failed`: the loop got an error instead of the last batch.
        self._interrupted = self._failed = False
        # With copies to a device: the batch whose copy is running, or the error of taking it.
        self._copying: tuple[Any, _Place] | None = None
        self._copy_failed: Exception | None = None
        # Epochs that a loop began in the middle, with the loop's first offset: its steps are counted from there.
        self._begins: dict[int, int] = {}
        self._done: list[dict[str, Any]] = []
        self._began: float | None = None

    # Iterating

    def __iter__(self) -> Iterator[B]:
        self._end_stream()
        place = self._resume or _Place(self._epoch, 0, f"{self._epoch}:0")
        self._resume = None
        self._epoch = place.epoch
        self._place = place
        self._begin_at(place)
        self._open(place)
        batches: _Batches[B] = _Batches(self, self._generation)
        self._loop = weakref.ref(batches)
        return batches

    def _begin_at(self, place: "_Place") -> None:
        if place.offset:
            self._begins[place.epoch] = place.offset
        else:
            self._begins.pop(place.epoch, None)

    def _open(self, place: "_Place") -> None:
        self._generation += 1
        self._copying = self._copy_failed = None
        if self._began is None:
            self._began = time.monotonic()
        self._stream = self._feed.read(self._options(place.text, place.epoch), self._ahead)
        self._interrupted = self._failed = False

    def _reopen(self, place: "_Place") -> None:
        """Continues the current loop at `place`. If this fails, the loop may try again."""
        generation = self._generation
        try:
            self._end_stream()
            self._open(place)
        finally:
            self._generation = generation

    def _options(self, start: str, epoch: int) -> dict[str, Any]:
        return self._read | {"from": start, "epochs": self._epochs or min(epoch + 1, EPOCHS_MAX)}

    def _next(self) -> tuple[Any, "_Place"] | None:
        """Returns the next batch for the loop, and the place after it."""
        if self._copy is None or not self._copy.is_async:
            return self._take()
        failed, self._copy_failed = self._copy_failed, None
        if failed is not None:
            raise failed
        taken = self._copying or self._take()
        self._copying = None
        if taken is not None:
            try:
                self._copying = self._take()
            except Exception as error:
                # The loop first gets the previous batch; the next call raises the error.
                self._copy_failed = error
            self._copy.wait(taken[0])
        return taken

    def _take(self) -> tuple[Any, "_Place"] | None:
        taken = self._stream.next() if self._stream is not None else None
        if taken is None:
            return None
        # Compute this from the batch's offset: after a resume, steps need not begin at multiples of the global batch.
        step_begins = taken.offset - self._rank * self._batch_size
        after = _Place(taken.epoch, step_begins + self._global_batch_size, taken.token)
        return self._make(taken), after

    def _make(self, taken: _native.Batch) -> Any:
        if self._format == "arrow":
            return _arrow(taken, self._columns)
        tensor = self._tensor
        batch: Batch[Any] = Batch()
        columns = taken.columns(self._columns)
        for name in self._columns or columns:
            batch[name] = formats.convert(columns[name], tensor)
        batch.epoch, batch.step, batch.offset = taken.epoch, taken.step, taken.offset
        return batch if self._copy is None else self._copy(batch)

    def _finish(self) -> None:
        """Moves to the next epoch after a loop has ended."""
        self._end_stream()
        if self._epochs is None:
            self._epoch = self._place.epoch + 1
            self._place = _Place(self._epoch, 0, f"{self._epoch}:0")
        else:
            self._epoch = 0

    def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        self._generation += 1
        if stream is not None:
            self._done.append(stream.stats())
            stream.close()

    def close(self) -> None:
        """Stops computing and reading. A new loop may begin afterwards."""
        self._end_stream()

    def __enter__(self) -> "Loader[B]":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # Size and shape

    @property
    def batch_size(self) -> int:
        """Samples per batch of this rank."""
        return self._batch_size

    @property
    def _global_batch_size(self) -> int:
        return self._batch_size * self._world_size

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    @property
    def world_size(self) -> int:
        """The number of ranks that share the samples."""
        return self._world_size

    @property
    def epoch(self) -> int:
        """The epoch of the current loop, or of the next one."""
        return self._place.epoch

    @property
    def feed_id(self) -> str:
        """The feed's id: a hash of query, operator versions, files, seed and settings."""
        return self._feed.id

    @property
    def columns(self) -> dict[str, str]:
        """Names and types of the samples' columns."""
        columns = {name: type for name, type, _ in self._feed.columns}
        return columns if self._columns is None else {name: columns[name] for name in self._columns}

    @property
    def samples_per_epoch(self) -> int | None:
        """Samples of one epoch over all ranks; `None` if only reading shows it, because of a filter."""
        return self._feed.samples_per_epoch

    def __len__(self) -> int:
        """The number of batches of a whole loop: of one epoch, or of all with `epochs`."""
        if self._epochs == EPOCHS_MAX:
            raise TypeError("the loop has no end: epochs is infinite")
        samples = self._feed.resolve(self._options(f"{self._epoch}:0", self._epoch))[3]
        if samples is None:
            raise TypeError(
                "the number of batches is not known before reading: the query leaves out or groups rows; "
                "loop without len(), or count steps yourself"
            )
        epochs = 1 if self._epochs is None else max(self._epochs - self._epoch, 1)
        return epochs * -(-(samples // epochs) // self._batch_size)

    # The loop's position

    def state_dict(self) -> dict[str, Any]:
        """Returns the loop's place: after the last batch that it received. The state is small JSON. With ordered
        delivery it is the same on every rank."""
        return {
            "version": STATE_VERSION,
            "position": self._place.text,
            "epoch": self._place.epoch,
            "offset": self._place.offset,
            "feed": self._feed.identity,
        }

    def load_state_dict(self, state: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Makes the next loop resume from `state`, on any number of ranks.

        With dynamic delivery each rank has its own state: give the list of all states.
        """
        if isinstance(state, list) and state and all(isinstance(part, dict) and "position" in part for part in state):
            state = state[0] | {"position": ",".join(str(part["position"]) for part in state)}
        try:
            given = cast("dict[str, Any]", state)
            version, identity, position = given["version"], given["feed"], given["position"]
            feed = identity["feed"]
            epoch, offset = arguments.count("epoch", given["epoch"]), arguments.count("offset", given["offset"])
            place = _Place(epoch, offset, position)
            if not isinstance(position, str):
                raise TypeError
        except (KeyError, TypeError, ValueError):
            raise InvalidError(f"this is not the state of a Forebay loader: {_shown(state)}") from None
        if version != STATE_VERSION:
            raise InvalidError(f"the state is of version {version!r}, and this Forebay reads version {STATE_VERSION}")
        if feed != self._feed.id:
            raise ConflictError(
                "the state is of another feed: " + "; ".join(_differences(identity, self._feed.identity)),
                "load with the settings, files and query of the run that made the state, or start over",
            )
        self._feed.resolve(self._options(place.text, place.epoch))
        self._end_stream()
        self._resume, self._place, self._epoch = place, place, place.epoch
        self._begin_at(place)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next loop, counted from 0. A loaded state keeps its place if it is in that epoch."""
        epoch = arguments.count("epoch", epoch)
        if self._resume is not None and self._resume.epoch == epoch:
            return
        self._end_stream()
        self._epoch, self._resume = epoch, None
        self._place = _Place(epoch, 0, f"{epoch}:0")

    def skip(self, steps: int) -> None:
        """Skips `steps` global steps without computing them: the next steps of the current loop, else the first of the
        next loop."""
        steps = arguments.count("steps", steps)
        if self._read.get("delivery") == "dynamic":
            raise InvalidError("steps cannot be skipped with dynamic delivery", "ranks have no common steps there")
        # After `break` the loop is gone, although its stream may still be open. The next loop restarts its epoch.
        running = self._stream is not None and self._loop() is not None
        now = self._place if running else self._resume or _Place(self._epoch, 0, f"{self._epoch}:0")
        offset = now.offset + steps * self._global_batch_size
        total = self._feed.samples_per_epoch
        if total is not None:
            offset = min(offset, total)
        place = _Place(now.epoch, offset, f"{now.epoch}:{offset}")
        self._place = place
        if running:
            self._reopen(place)
        else:
            self._end_stream()
            self._resume = place

    def trace(self, step: int | Batch[Any], epoch: int | None = None) -> list[tuple[str, int]]:
        """Returns source file and row (from 0) of each sample of a batch from this loader, or of this rank's batch of a
        global step. It reads sources and transforms nothing.

        Step numbers are those of `batch.step` in the loop that last read the epoch. If no loop of this loader has read
        the epoch, they count from its beginning.
        """
        if isinstance(step, Batch):
            if step.offset is None:
                raise InvalidError("this batch does not know its place: it did not come from the loader unchanged")
            return self._feed.trace_offsets(step.epoch, step.offset, self._batch_size)
        step = arguments.count("step", step)
        epoch = self.epoch if epoch is None else arguments.count("epoch", epoch)
        if self._read.get("delivery") == "dynamic":
            raise InvalidError(
                "with dynamic delivery a rank's batches have no steps of their own",
                "give trace the batch: trace(batch)",
            )
        begins, total = self._begins.get(epoch, 0), self._feed.samples_per_epoch
        if total is not None and begins > total:
            # The state was taken after the last step, so that loop had no batch in this epoch.
            begins = 0
        return self._feed.trace(self._options(f"{epoch}:{begins}", epoch), epoch, step)

    def stats(self) -> dict[str, Any]:
        """Returns what loops received and where time went: the seconds that loops waited, the seconds of computation of
        all threads of the session, and the number of batches in the queue."""
        running = self._stream.stats() if self._stream is not None else None
        parts = self._done + ([running] if running else [])
        total: dict[str, Any] = {name: sum(part[name] for part in parts) for name in _SUMMED}
        total["first_batch_seconds"] = parts[-1]["first_batch_seconds"] if parts else 0.0
        total["queue"] = running["queue"] if running else 0
        total["queue_max"] = self._ahead
        total["elapsed_seconds"] = time.monotonic() - self._began if self._began is not None else 0.0
        total["compute_seconds"] = self._feed.compute_seconds()
        return total

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {type}" for name, type in self.columns.items())
        return f"<forebay.Loader rank {self._rank}/{self._world_size} batch_size={self._batch_size} {{{columns}}}>"

    def __reduce__(self) -> Any:
        raise InvalidError(
            "a loader cannot be sent to another process",
            "Forebay computes on threads of its own: use DataLoader(num_workers=0), or call forebay.load there",
        )


_SUMMED = ("batches", "samples", "bytes", "bad_rows", "wait_seconds")


class _Place:
    """A loop's place: epoch, offset of the next global step, and both as text for the native half."""

    __slots__ = ("epoch", "offset", "text")

    def __init__(self, epoch: int, offset: int, text: str):
        self.epoch, self.offset, self.text = epoch, offset, text


class _Batches(Generic[B]):
    """One loop over a loader."""

    __slots__ = ("_loader", "_generation", "__weakref__")

    def __init__(self, loader: Loader[B], generation: int):
        self._loader, self._generation = loader, generation

    def __iter__(self) -> "_Batches[B]":
        return self

    def __next__(self) -> B:
        loader = self._loader
        # Another loop over the same loader has started.
        if loader._generation != self._generation:
            raise StopIteration
        try:
            if loader._interrupted:
                loader._reopen(loader._place)
            taken = loader._next()
        except Error:
            loader._failed = True
            raise
        except BaseException:
            # A signal's exception, such as KeyboardInterrupt, may arrive after a batch has left the stream. If the loop
            # continues, it reads that batch again.
            loader._interrupted = True
            raise
        if taken is None:
            # After an error the stream is at its end, but the epoch is not.
            if not loader._failed:
                loader._finish()
            raise StopIteration
        loader._failed = False
        batch, loader._place = taken
        return cast(B, batch)


def check_columns(columns: list[str], known: list[str]) -> None:
    for name in columns:
        arguments.choice("columns", name, known)


def _arrow(taken: _native.Batch, columns: list[str] | None) -> Any:
    """Returns a pyarrow record batch if pyarrow is installed, else an object with the Arrow PyCapsule interface."""
    pyarrow = installed("pyarrow")
    if pyarrow is None:
        return taken
    batch = pyarrow.record_batch(taken)
    return batch if columns is None else batch.select(columns)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:199] + "…"


def _differences(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Describes the differences between two feeds."""
    said = []
    for name, what in (("query", "the query differs"), ("snapshot", "the source files differ")):
        if name in then and name in now and then[name] != now[name]:
            said.append(what)
    for part in ("settings", "operators"):
        # A part that is missing from one identity does not count as a difference.
        pair: tuple[dict[str, Any], dict[str, Any]] = (now[part], then[part]) if part in now and part in then else ({}, {})
        ours, theirs = pair
        for name in sorted({*ours, *theirs}):
            if ours.get(name) != theirs.get(name):
                label = f"version of {name}" if part == "operators" else name
                said.append(f"{label} was {_json(theirs.get(name))} and is {_json(ours.get(name))}")
    return said or [f"it was {then.get('feed')} and is {now.get('feed')}"]


def _json(value: Any) -> str:
    return json.dumps(value)
