"""The loader: a rank's batches, with exact resume."""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Generic, Iterator

from . import _arguments as arguments
from . import _formats as formats
from . import _native
from ._batch import Batch
from ._devices import DeviceCopy
from ._errors import Error, InvalidError
from ._loop import Batches, Loop
from ._padding import checked
from ._place import Place
from ._ranks import Ranks
from ._readers import refuse_readers
from ._share import Feed, Share
from ._taking import take
from ._types import B
from ._wrappers import refuse_wrappers

# Stands for an endless loop: far more epochs than any training run has.
EPOCHS_MAX = 1 << 32


@dataclass(frozen=True)
class _Resume:
    """Where the next loop begins, if not with an epoch."""

    place: Place
    is_loaded: bool = False
    # Whether the loop is the rest of an epoch even if nothing is left of it. Otherwise the end of an epoch is the
    # beginning of the next one.
    is_rest: bool = False
    # The epoch before `place`, if the loop is the rest of that epoch, of which nothing is left.
    empty_of: int | None = None


class Loader(Generic[B]):
    """Iterates over one rank's batches of a feed; made by `forebay.load`.

    Without `epochs`, each `for` loop is one epoch, and the next loop is the next epoch. With `epochs=N` one loop is all
    N epochs, and with `epochs=float("inf")` it has no end. A loop is over when it has handed out its last batch. A new
    loop starts the epoch of a loop that was left earlier over, unless a state was loaded or steps were skipped.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        ranks: Ranks,
        read: Callable[[int, int], dict[str, Any]],
        epochs: int | None,
        columns: list[str] | None,
        padding: Any,
        format: str,
        prefetch_factor: int,
        device: Any,
        pin_memory: bool,
    ):
        self._feed = feed
        # Which rank this is may be known only when the loader is used.
        self._ranks, self._read_of = ranks, read
        self._share: Share | None = None
        self._epochs = epochs
        self._columns = columns
        self._format = format
        self._tensor: Any = None if format == "arrow" else formats.converter(format)
        self._ahead = prefetch_factor
        self._copy = DeviceCopy.of(device, pin_memory, format)
        # Checks the options. What a rank changes of them is not used.
        self._assumed = self._share_of(*(ranks.used or (0, 1)))
        if columns is not None:
            check_columns(columns, [name for name, _, _ in feed.columns])
        self._padding = checked(padding, self.columns)
        if self._padding and format == "arrow":
            raise InvalidError('"padding" makes tensors, and format="arrow" has none', "leave it out")
        # Where the next loop begins: at `_resume`, else with `_epoch`.
        self._epoch = 0
        self._resume: _Resume | None = None
        # The last loop, until it is known where the next one begins, and what it began with. Then the place of its end.
        self._loop: Loop | None = None
        self._began_with: _Resume | None = None
        self._place = Place(0, 0)
        # A weak reference to the iterator of the last loop.
        self._batches: Callable[[], Batches | None] = lambda: None
        # Where a loop was closed of which only reading shows whether a batch was left.
        self._closed_at: Place | None = None
        # Epochs that a loop began in the middle, with the loop's first offset: its steps are counted from there.
        self._begins: dict[int, int] = {}
        self._done = _Summed()
        self._began: float | None = None

    # Ranks

    def _share_of(self, rank: int, world_size: int) -> Share:
        read = self._read_of(rank, world_size)
        batch_size, _, drop_last, samples = self._feed.resolve(read | {"from": "0:0", "epochs": 1})
        share = Share(rank, world_size, read, batch_size, drop_last, self._feed.samples_per_epoch)
        return replace(share, total=None) if samples is None or share.is_dynamic else share

    def _ranked(self) -> Share:
        """Returns what this rank reads. At its first call, it finds out which rank this is. Later ones check that."""
        ranks = self._ranks.resolve()
        if self._share is None:
            same = ranks == (self._assumed.rank, self._assumed.world_size)
            self._share = self._assumed if same else self._share_of(*ranks)
        return self._share

    @property
    def _own(self) -> Share:
        """What this rank reads, as it was found out."""
        return self._share or self._ranked()

    # Iterating

    def __iter__(self) -> Iterator[B]:
        refuse_readers()
        self._ranked()
        refuse_wrappers(self)
        self._leave(is_replaced=True)
        self._find_closed_end()
        resume = self._resume or _Resume(Place(self._epoch, 0))
        begin = resume.place if resume.is_rest else self._after_end(resume.place)
        self._count_from(begin)
        loop = self._loop_at(begin, resume.empty_of)
        self._loop, self._began_with, self._resume = loop, self._resume, None
        self._epoch = loop.epoch
        if self._began is None:
            self._began = time.monotonic()
        batches = Batches(self, loop)
        self._batches = weakref.ref(batches)
        return batches

    def _loop_at(self, begin: Place, empty_of: int | None = None) -> Loop:
        # A loop does not refer to its loader, which would keep both alive when nothing else does.
        open = partial(_open, self._feed, self._own.read, self._epochs, self._ahead)
        taking = partial(take, self._own, self._columns, self._padding, self._tensor, self._copy)
        return Loop(begin, open, taking, self._copy, self._done, empty_of)

    def _count_from(self, place: Place) -> None:
        """Counts the steps of an epoch from where a loop begins."""
        if place.offset:
            self._begins[place.epoch] = place.offset
        else:
            self._begins.pop(place.epoch, None)

    def _options(self, start: str, epoch: int, share: Share | None = None) -> dict[str, Any]:
        return _options((share or self._own).read, self._epochs, start, epoch)

    def _is_current(self, loop: Loop) -> bool:
        return self._loop is loop

    def _finish(self, loop: Loop) -> None:
        """Ends a loop that has met its end."""
        loop.close()
        loop.has_finished = True
        self._loop = None
        self._advance(loop)

    def _refuse_empty(self, loop: Loop) -> None:
        """Refuses the end of a loop that began with an epoch, if no rank has a batch in it. An endless training
        loop would run over nothing, epoch after epoch."""
        share, begin = self._own, loop.begin
        is_over = self._epochs is not None and begin.epoch >= self._epochs
        # With dynamic delivery, other ranks may have taken all samples.
        if loop.has_received or begin.offset or loop.empty_of is not None or is_over or share.is_dynamic:
            return
        if not (self._others_have_a_batch(begin) if share.total is None else share.steps()):
            loop.has_failed = True
            raise no_batch(self._feed.samples_per_epoch, share.global_batch_size)

    def _advance(self, loop: Loop) -> None:
        """Lets the next loop begin after `loop`, which had all its batches."""
        if self._epochs is None:
            self._epoch = loop.epoch + 1
            self._place = Place(self._epoch, 0)
        else:
            self._epoch = 0
            self._place = Place(max(self._epochs, loop.begin.epoch), 0)

    def _leave(self, is_replaced: bool = False, waits: bool = True) -> None:
        """Ends the last loop, wherever it is, and settles where the next one begins. If it `waits`, it reads on where
        only that shows whether the loop had all its batches."""
        loop = self._loop
        if loop is None:
            return
        is_done = self._is_done(loop, waits)
        loop.is_replaced = is_replaced and not is_done and not loop.has_failed
        self._loop, self._place = None, loop.place
        loop.close()
        if is_done:
            self._advance(loop)
        elif not loop.has_received:
            # A loop that was left before its first batch has changed nothing.
            self._resume = self._began_with
        elif is_done is None:
            self._closed_at = loop.place

    def _is_done(self, loop: Loop, waits: bool) -> bool | None:
        """Whether a loop has handed out its last batch; `None` if only reading shows it, and it must not wait."""
        if loop.has_failed:
            return False
        if loop.empty_of is not None or self._epochs is not None and loop.begin.epoch >= self._epochs:
            return True
        share = self._own
        if share.total is not None:
            is_last_epoch = self._epochs is None or loop.place.epoch == self._epochs - 1
            return is_last_epoch and not share.has_batch(loop.place.offset)
        if not loop.has_received:
            return False
        return loop.next_epoch() is None if waits else None

    def _find_closed_end(self) -> None:
        """Reads on where a loop was closed, if only that shows whether it had all its batches."""
        place = self._closed_at
        # With dynamic delivery, reading on could take batches from other ranks.
        if place is not None and self._resume is None and self._assumed.read.get("delivery") != "dynamic":
            loop = self._loop_at(place)
            try:
                if loop.next_epoch() is None:
                    self._advance(loop)
            finally:
                loop.close()
        self._closed_at = None

    def _after_end(self, place: Place) -> Place:
        """Returns the beginning of the next epoch if this place is known to be the end of one on all ranks, else the
        place itself."""
        share = self._share or self._assumed
        is_known = self._share is not None or not share.drop_last
        if place.offset and share.total is not None and is_known and not share.has_batch(place.offset, rank=0):
            return Place(place.epoch + 1, 0)
        return place

    def _found_end(self, place: Place) -> Place:
        """Like `_after_end`, but reads on from the place if only that shows what is left."""
        after = self._after_end(place)
        if after is place and place.offset and self._own.total is None:
            loop = self._loop_at(place)
            try:
                if loop.next_epoch() != place.epoch and not self._others_have_a_batch(place):
                    return Place(place.epoch + 1, 0)
            finally:
                loop.close()
        return after

    def _moved_on(self, loop: Loop) -> bool:
        """Begins the next epoch if a loop resumed at the end of one, which only its stream could show."""
        share = self._own
        if (
            self._epochs is not None
            or loop.has_received
            or loop.has_failed
            or loop.begin.offset == 0
            or self._began_with is not None and self._began_with.is_rest
            or share.total is not None
            or share.is_dynamic
            or self._others_have_a_batch(loop.begin)
        ):
            return False
        loop.begin = Place(loop.begin.epoch + 1, 0)
        self._epoch = loop.begin.epoch
        self._count_from(loop.begin)
        loop.reopen(loop.begin)
        return True

    def _others_have_a_batch(self, place: Place) -> bool:
        """Whether another rank has a batch in the global step at `place`, which begins after the last batch of this
        rank. Only reading as rank 0 shows it, which has a batch in every step."""
        share = self._own
        if share.rank == 0 or share.drop_last:
            return False
        options = self._options(place.text, place.epoch) | {"rank": 0}
        # Without the job's name, this reader does not replace the job's own rank 0.
        options.pop("job", None)
        stream = self._feed.read(options, 1)
        try:
            batch = stream.next()
            return batch is not None and batch.epoch == place.epoch
        except Error:
            return True
        finally:
            stream.close()

    def close(self) -> None:
        """Stops computing and reading. A new loop may begin afterwards."""
        self._leave(waits=False)

    def __enter__(self) -> "Loader[B]":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # Size and shape

    @property
    def batch_size(self) -> int:
        """Samples per batch of this rank."""
        if self._share is None and not self._ranks.used:
            try:
                # Without a global batch, each rank has the same batch size, whichever rank this is.
                if self._share_of(0, 2).batch_size == self._assumed.batch_size:
                    return self._assumed.batch_size
            except Error:
                pass
        return self._ranked().batch_size

    @property
    def rank(self) -> int:
        """This rank."""
        return self._ranked().rank

    @property
    def world_size(self) -> int:
        """The number of ranks that share the samples."""
        return self._ranked().world_size

    @property
    def epoch(self) -> int:
        """The epoch of the current loop's last batch, as long as its iterator is there, else that of the next loop."""
        loop, resume = self._loop, self._resume
        if loop is not None and self._batches() is not None:
            return loop.epoch
        if loop is not None and self._is_done(loop, waits=True):
            return loop.epoch + 1 if self._epochs is None else 0
        if loop is None and resume is not None and not resume.is_rest:
            return self._after_end(resume.place).epoch
        return self._epoch

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
        share = self._ranked()
        first = self.epoch if self._batches() is None else self._epoch
        if share.total is None:
            end = first + 1 if self._epochs is None else self._epochs
            return sum(self._batches_of(epoch) for epoch in range(first, end))
        return share.batches() * (1 if self._epochs is None else max(self._epochs - first, 0))

    def _batches_of(self, epoch: int) -> int:
        """The number of this rank's batches in an epoch."""
        share = self._ranked()
        total = share.total
        if total is None and not share.is_dynamic:
            total = self._feed.count(epoch)
        if total is None:
            why = "ranks take batches as they need them" if share.is_dynamic else "the query leaves out or groups rows"
            cure = "" if share.is_dynamic or self._feed.counts is None else "load with count=True, "
            raise TypeError(
                f"the number of batches is not known before reading: {why}; {cure}loop without len(), or count steps "
                "yourself"
            )
        return replace(share, total=total).batches()

    # The loop's position

    @property
    def is_last_batch(self) -> bool:
        """Whether the batch that the current loop received last is the last one of the loop. Where only reading shows
        it, this waits for the next batch, and keeps it for the loop."""
        loop = self._loop
        return loop is not None and loop.has_received and bool(self._is_done(loop, waits=True))

    def state_dict(self) -> dict[str, Any]:
        """Returns the loop's place: after the last batch that it received. After the last batch of an epoch, that is
        the beginning of the next epoch. The state is small JSON. With ordered delivery it is the same on every rank."""
        return self._now().state(self._feed.identity)

    def _now(self) -> Place:
        loop = self._loop
        if loop is None:
            place = self._place if self._resume is None else self._resume.place
        else:
            place = loop.place
        after = self._after_end(place)
        if (
            after is place
            and place.offset
            and loop is not None
            and loop.has_received
            # Another thread may wait for the next batch, and must get it.
            and loop.is_read_by_this_thread()
            and self._own.total is None
            and not self._own.is_dynamic
            and loop.next_epoch() != place.epoch
            and not self._others_have_a_batch(place)
        ):
            return Place(place.epoch + 1, 0)
        return after

    def load_state_dict(self, state: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Makes the next loop resume from `state`, on any number of ranks.

        With dynamic delivery each rank has its own state: give the list of all states.
        """
        place = Place.of_state(state, self._feed.identity)
        is_dynamic = self._assumed.read.get("delivery") == "dynamic"
        share = self._ranked() if is_dynamic else self._share or self._assumed
        self._feed.resolve(self._options(place.text, place.epoch, share))
        self._leave(waits=False)
        self._resume, self._epoch, self._closed_at = _Resume(place, is_loaded=True), place.epoch, None
        self._count_from(place)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next loop, counted from 0. A loaded state keeps its place if it is in that epoch, or at
        its end."""
        epoch = arguments.count("epoch", epoch)
        refuse_readers()
        refuse_wrappers(self)
        if self._epochs is not None and epoch >= self._epochs:
            raise InvalidError(f"the loop covers the epochs below {self._epochs}, so none is left at epoch {epoch}")
        self._leave(waits=False)
        resume = self._resume
        if resume is not None:
            place = self._after_end(resume.place)
            if resume.place.epoch == epoch:
                self._resume = replace(resume, is_rest=True, empty_of=None)
            elif place.epoch == epoch:
                self._resume = replace(resume, place=place)
            elif resume.is_loaded and (place.epoch, place.offset) == (epoch + 1, 0):
                # A loop of several epochs goes on with the next one.
                empty_of = epoch if self._epochs is None else None
                self._resume = replace(resume, place=place, is_rest=True, empty_of=empty_of)
            elif resume.is_loaded and epoch < place.epoch:
                raise InvalidError(
                    f"a state of epoch {place.epoch} was loaded, and set_epoch({epoch}) would give it up",
                    "count epochs from that of the state: for epoch in range(loader.epoch, …); to read epoch "
                    f"{epoch} again, make a new loader",
                )
            else:
                self._resume = None
        self._epoch, self._closed_at = epoch, None
        if self._resume is None:
            self._place = Place(epoch, 0)

    def skip(self, steps: int) -> None:
        """Skips `steps` global steps without computing them: the next steps of the current loop, else the first of the
        next loop. Without `epochs`, and where only reading shows the number of steps, at most the rest of the epoch."""
        steps = arguments.count("steps", steps)
        if self._assumed.read.get("delivery") == "dynamic":
            raise InvalidError("steps cannot be skipped with dynamic delivery", "ranks have no common steps there")
        self._ranked()
        # After `break` the loop is gone, although its stream may still be open. The next loop restarts its epoch.
        running = self._loop if self._batches() is not None else None
        if running is None:
            self._leave()
            self._find_closed_end()
        resume = self._resume or _Resume(Place(self._epoch, 0))
        if resume.empty_of is not None or running is not None and running.empty_of is not None:
            return
        if running is not None:
            now = running.place
        else:
            now = resume.place if resume.is_rest else self._found_end(resume.place)
        place = self._skipped(now, steps)
        if running is not None:
            running.reopen(place)
            if not running.has_received:
                self._began_with = _Resume(place, is_rest=True)
        else:
            self._resume = replace(resume, place=place, is_rest=True)

    def _skipped(self, place: Place, steps: int) -> Place:
        """Returns the place `steps` global steps after `place`."""
        share = self._own
        size = share.global_batch_size
        if share.total is None:
            return Place(place.epoch, place.offset + steps * size)
        left = share.steps(place.offset)
        if steps < left or self._epochs is None:
            return Place(place.epoch, min(place.offset + steps * size, share.total))
        epochs, steps = divmod(steps - left, share.steps() or 1)
        epoch = place.epoch + 1 + epochs
        if epoch < self._epochs:
            return Place(epoch, steps * size)
        # The end of the last epoch.
        return Place(max(self._epochs - 1, place.epoch), share.total)

    def trace(self, step: int | Batch[Any], epoch: int | None = None) -> list[tuple[str, int]]:
        """Returns source file and row (from 0) of each sample of a batch from this loader, or of this rank's batch of a
        global step. It reads sources and transforms nothing.

        Step numbers are those of `batch.step` in the loop that last read the epoch. If no loop of this loader has read
        the epoch, they count from its beginning.
        """
        if isinstance(step, Batch):
            if step.offset is None or step.epoch is None:
                raise InvalidError("this batch does not know its place: it did not come from the loader unchanged")
            return self._feed.trace_offsets(step.epoch, step.offset, self._own.batch_size)
        step = arguments.count("step", step)
        epoch = self.epoch if epoch is None else arguments.count("epoch", epoch)
        if self._assumed.read.get("delivery") == "dynamic":
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
        running = self._loop.stats() if self._loop is not None else None
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
        # A loader that is shown is not yet used: which rank this is may still be open.
        share = self._share or (self._assumed if self._ranks.used else None)
        if share is None:
            return f"<forebay.Loader {{{columns}}}>"
        return f"<forebay.Loader rank {share.rank}/{share.world_size} batch_size={share.batch_size} {{{columns}}}>"

    def __reduce__(self) -> Any:
        raise InvalidError(
            "a loader cannot be sent to another process",
            "Forebay computes on threads of its own: use DataLoader(num_workers=0), or call forebay.load there",
        )


class _Summed(list[dict[str, Any]]):
    """The statistics of finished loops, as those of one: a run may have a loop for each step."""

    def append(self, part: dict[str, Any]) -> None:
        before = self[0] if self else dict.fromkeys(_SUMMED, 0)
        self[:] = [part | {name: before[name] + part[name] for name in _SUMMED}]


_SUMMED = ("batches", "samples", "bytes", "bad_rows", "wait_seconds")


def no_batch(samples: int | None, global_batch_size: int) -> InvalidError:
    """The error of an epoch without a batch for any rank."""
    found = "the query leaves too few samples" if samples is None else f"{samples} samples"
    return InvalidError(
        f"an epoch has no batch: {found}, and {global_batch_size} in a global step",
        "use a smaller batch size, or drop_last=False, or check the query and its files",
    )


def check_columns(columns: list[str], known: list[str]) -> None:
    for name in columns:
        arguments.choice("columns", name, known)


def _options(read: dict[str, Any], epochs: int | None, start: str, epoch: int) -> dict[str, Any]:
    return read | {"from": start, "epochs": epochs or min(epoch + 1, EPOCHS_MAX)}


def _open(feed: Feed, read: dict[str, Any], epochs: int | None, ahead: int, place: Place) -> _native.Stream:
    return feed.read(_options(read, epochs, place.text, place.epoch), ahead)
