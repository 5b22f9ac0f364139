"""One loop over a rank's batches: its stream, and the batch that was taken from it ahead of the loop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Callable

from . import _native
from ._errors import Error, InvalidError
from ._place import Place

if TYPE_CHECKING:
    from ._devices import DeviceCopy
    from ._loader import Loader


class Loop:
    """Reads batches from `begin` on. `take` makes a batch, and the place after it, of what the stream gives.

    A loop is asked whether it has handed out its last batch. Where the number of batches is known, the loader computes
    the answer. Elsewhere the loop takes the next batch ahead, and keeps it.
    """

    def __init__(
        self,
        begin: Place,
        open: Callable[[Place], _native.Stream],
        take: Callable[[_native.Batch], tuple[Any, Place]],
        copy: DeviceCopy | None,
        closed: list[dict[str, Any]],
        empty_of: int | None = None,
    ):
        self.begin = begin
        # After the last batch that the loop received.
        self.place = begin
        # The epoch before `begin`, if the loop is the rest of that epoch, of which nothing is left.
        self.empty_of = empty_of
        self.has_received = False
        # The loop got an error instead of the last batch.
        self.has_failed = False
        # The loop met its end, and was not ended by another loop or a loaded state.
        self.has_finished = False
        # A newer loop took the loader before this one had all its batches.
        self.is_replaced = False
        self._open, self._take_from, self._copy, self._closed = open, take, copy, closed
        # The last batch may have been lost between the stream and the loop.
        self._interrupted = False
        self._ahead: tuple[Any, Place] | None = None
        self._ahead_failed: Exception | None = None
        self._has_ended = False
        self._thread: int | None = None
        self._stream: _native.Stream | None = open(begin) if empty_of is None else None

    @property
    def epoch(self) -> int:
        """The epoch of the last batch, at first that of the next one."""
        return self.place.epoch if self.empty_of is None else self.empty_of

    def next(self) -> Any:
        """Returns the next batch, or `None` at the end or after an error."""
        self._thread = threading.get_ident()
        try:
            if self._interrupted:
                self.reopen(self.place)
            taken = self._next()
        except Error:
            self.has_failed = True
            raise
        except BaseException:
            # A signal's exception, such as KeyboardInterrupt, may arrive after a batch has left the stream. If the loop
            # continues, it reads that batch again.
            self._interrupted = True
            raise
        if taken is None:
            return None
        batch, self.place = taken
        self.has_received, self.has_failed = True, False
        return batch

    def _next(self) -> tuple[Any, Place] | None:
        failed, self._ahead_failed = self._ahead_failed, None
        if failed is not None:
            raise failed
        taken, self._ahead = self._ahead or self._take(), None
        if taken is not None and self._copy is not None and self._copy.is_async:
            self._look_ahead()
            self._copy.wait(taken[0])
        return taken

    def _take(self) -> tuple[Any, Place] | None:
        batch = self._stream.next() if self._stream is not None else None
        self._has_ended = batch is None
        return None if batch is None else self._take_from(batch)

    def _look_ahead(self) -> None:
        if self._ahead is None and self._ahead_failed is None and not self._has_ended:
            try:
                self._ahead = self._take()
            except Exception as error:
                # The loop first gets the previous batch; the next call raises the error.
                self._ahead_failed = error

    def next_epoch(self) -> int | None:
        """Returns the epoch of the next batch, or `None` if no batch is left. Waits for that batch, and keeps it. An
        error that comes instead is raised by the next call of `next`."""
        try:
            if self._interrupted:
                self.reopen(self.place)
            self._look_ahead()
        except BaseException:
            self._interrupted = True
            raise
        if self._ahead is not None:
            return self._ahead[1].epoch
        return None if self._ahead_failed is None and not self.has_failed else self.place.epoch

    def is_read_by_this_thread(self) -> bool:
        return self._thread == threading.get_ident()

    def reopen(self, place: Place) -> None:
        """Continues at `place`. If this fails, the loop may try again."""
        self._interrupted = True
        self.close()
        self._ahead = self._ahead_failed = None
        self._stream = self._open(place)
        self.place, self._has_ended = place, False
        self._interrupted = self.has_failed = False

    def stats(self) -> dict[str, Any] | None:
        return self._stream.stats() if self._stream is not None else None

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            self._closed.append(stream.stats())
            stream.close()


class Batches:
    """The iterator of one loop over a loader. When it is gone, the loop was left."""

    __slots__ = ("_loader", "_loop", "__weakref__")

    def __init__(self, loader: Loader, loop: Loop):
        self._loader, self._loop = loader, loop

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        loop = self._loop
        if loop.is_replaced:
            raise InvalidError(
                "a newer loop over this loader began before this one had all its batches",
                "a loader has one loop at a time: for two at once, make two loaders with forebay.load; to go on with a "
                "loop, keep its iterator: batches = iter(loader)",
            )
        if not self._loader._is_current(loop):
            raise StopIteration
        batch = loop.next()
        if batch is None and self._loader._moved_on(loop):
            batch = loop.next()
        if batch is None:
            # After an error the stream is at its end, but the epoch is not.
            if not loop.has_failed:
                self._loader._refuse_empty(loop)
                self._loader._finish(loop)
            raise StopIteration
        return batch
