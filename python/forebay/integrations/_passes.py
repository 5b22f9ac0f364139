"""Reading a loader for a framework that has epochs and checkpoints of its own.

A framework may take batches before it trains on them, and saves a checkpoint at a moment of its own. So the place to
save is not the place after the last batch that the framework took, but the place after the last batch that it trained
on. A pass remembers the place after each batch, and its framework's module asks for the one that belongs to the number
of batches trained.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Iterator

from .._errors import InvalidError
from .._loader import Loader, no_batch
from .._loop import Loop
from .._place import Place

State = dict[str, Any]

# Batches that a framework may take ahead of those it trained on. The places behind these are forgotten.
AHEAD_MAX = 1024


class Pass:
    """One pass over an epoch, or over its rest; or over all epochs from there on, if it `repeats`."""

    def __init__(self, loader: Loader, start: State, repeats: bool = False):
        self._loader, self._repeats = loader, repeats
        self.start = start
        # The places after the last batches, with the numbers of batches handed out by then.
        first = (0, Place.of_state(start, loader._feed.identity))
        self._after: deque[tuple[int, Place]] = deque([first], maxlen=AHEAD_MAX)
        self._loop: Loop | None = None

    def __iter__(self) -> Iterator[Any]:
        self._loader.load_state_dict(self.start)
        number = 0
        while True:
            begun = number
            batches = iter(self._loader)
            loop = self._loop = self._loader._loop
            assert loop is not None, "the loader has a loop when its iterator was made"
            for batch in batches:
                number += 1
                # Unlike `state_dict`, this never waits for the next batch.
                self._after.append((number, loop.place))
                yield batch
            if not loop.has_finished:
                raise InvalidError(
                    "another loop took this loader before the training epoch had all its batches",
                    "a loader has one loop at a time: call load once for training, and once for evaluation",
                )
            if number > begun:
                self._after[-1] = (number, self._loader._now())
            if not self._repeats or number == begun:
                return

    @property
    def handed_out(self) -> int:
        return self._after[-1][0]

    def place(self, trained: int) -> State:
        """Returns the place after `trained` batches of this pass."""
        loader = self._loader
        if trained and trained == self.handed_out and loader._loop is not None and loader._loop is self._loop:
            # This may have been the epoch's last batch, and then the place is in the next one.
            return loader.state_dict()
        for number, place in self._after:
            if number == trained:
                return (loader._after_end(place) if trained else place).state(loader._feed.identity)
        raise InvalidError(
            f"the trainer trained on {trained} batches, and the loader handed out {self.handed_out}",
            "the training loop must train on each batch once, in the loader's order, and take at most "
            f"{AHEAD_MAX} batches ahead",
        )


def epoch_start(loader: Loader, epoch: int) -> State:
    """Returns the state at the beginning of an epoch."""
    return Place(epoch, 0).state(loader._feed.identity)


def steps_before(loader: Loader, place: State) -> int:
    """Returns the number of steps of the epoch that lie before a place."""
    return int(place["offset"]) // global_batch_size(loader)


def global_batch_size(loader: Loader) -> int:
    return loader.batch_size * loader.world_size


def saved(loader: Loader, place: State) -> State:
    """Returns what a framework's checkpoint keeps of a loader."""
    return {"loader": place, "global_batch_size": global_batch_size(loader)}


def restored(loader: Loader, state: Any, framework: str, counts_all_steps: bool = False) -> State:
    """Returns the place that a framework's checkpoint kept, after checking that `loader` can go on there. A framework
    that `counts_all_steps` computes its epoch of its steps, so these must not change between epochs either."""
    if not isinstance(state, dict) or not {"loader", "global_batch_size"} <= state.keys():
        raise InvalidError(
            "the checkpoint has no place of a Forebay loader",
            f"resume from a checkpoint that {framework} saved with this integration, or start a new run with its model",
        )
    place: State = state["loader"]
    # Checks feed and version. The next pass loads the same state again.
    loader.load_state_dict(place)
    then, now = state["global_batch_size"], global_batch_size(loader)
    if then != now and (counts_all_steps or place["offset"]):
        where = "a run" if counts_all_steps else "the middle of an epoch"
        raise InvalidError(
            f"the checkpoint is from {where} with {then} samples in a global step, and now there are "
            f"{now} (batch_size {loader.batch_size}, world_size {loader.world_size}): {framework} counts steps, so it "
            f"would {'read the wrong epochs' if counts_all_steps else 'end the epoch too early or too late'}",
            f"load with global_batch_size={then}, which gives the same steps on any number of ranks that divides it"
            + ("" if counts_all_steps else ", or resume from a checkpoint at the end of an epoch"),
        )
    return place


def check_epochs(loader: Loader, framework: str) -> None:
    """Refuses a loader whose loop is not one epoch: the framework counts epochs."""
    if loader._epochs is not None:
        raise InvalidError(
            f'the loader was made with "epochs", and {framework} counts epochs itself',
            f"leave out epochs=…, and give {framework} the number of epochs",
        )


def check_equal_steps(loader: Loader, framework: str) -> None:
    """Refuses to train where some ranks would have one step fewer than others, for which these would wait forever."""
    ranks, batch_size = loader.world_size, loader.batch_size
    if loader._ranked().is_dynamic:
        raise InvalidError(
            f"with dynamic delivery each rank has a place of its own, and {framework}'s checkpoint keeps one",
            'leave out delivery="dynamic"',
        )
    drop_last = loader._ranked().drop_last
    if ranks == 1 or drop_last:
        return
    samples = loader.samples_per_epoch
    rest = None if samples is None else samples % (ranks * batch_size)
    if rest is None or 0 < rest <= (ranks - 1) * batch_size:
        raise InvalidError(
            f"{framework} needs the same number of steps on all {ranks} ranks, and the last step of an epoch may have "
            "samples for some of them only",
            "load with drop_last=True",
        )


def check_equal_batches(loader: Loader, framework: str) -> None:
    """Refuses a loader whose ranks may have batches of different sizes, which make one global batch."""
    if loader.world_size == 1 or loader._ranked().drop_last:
        return
    samples = loader.samples_per_epoch
    if samples is None or samples % (loader.world_size * loader.batch_size):
        raise InvalidError(
            f"{framework} makes one batch of those of all {loader.world_size} ranks, which must have the same size",
            "load with drop_last=True",
        )


_EPOCHS_DIFFER = (
    "epochs have different numbers of batches, because a filter draws random values, or the query or its length "
    "buckets group the rows of a window"
)


def unknown(loader: Loader) -> str:
    """Why the number of batches of an epoch is not known, to follow "and"."""
    if loader._ranked().is_dynamic:
        return "ranks take batches as they need them"
    if loader._feed.counts:
        return _EPOCHS_DIFFER
    return "only reading shows it, because the query leaves out or groups rows"


def count_hint(loader: Loader) -> str:
    """The beginning of a hint, where counting may help."""
    may_count = loader._feed.counts is False and not loader._ranked().is_dynamic
    return "load with count=True, or " if may_count else ""


def length(loader: Loader, epoch: int | None = None) -> int:
    """The number of batches of an epoch, as frameworks ask for it.

    Without an epoch it is that of any epoch, because a framework asks once and computes epochs of steps. Then a loader
    whose epochs differ has no length, even if it counts.
    """
    if epoch is not None:
        return loader._batches_of(epoch)
    share = loader._ranked()
    if share.total is None and not share.is_dynamic and loader._feed.counts:
        raise TypeError(f"{_EPOCHS_DIFFER}: give the trainer a number of steps")
    return len(loader)


def check_samples(loader: Loader) -> None:
    """Refuses an epoch without a batch for any rank: a trainer would go on with nothing, epoch after epoch."""
    try:
        steps = length(loader)
    except TypeError:
        return
    if steps == 0 and loader.rank == 0:
        raise no_batch(loader.samples_per_epoch, global_batch_size(loader))
