"""Recognises wrappers that would divide a rank's batches among the ranks once more."""

from __future__ import annotations

import sys

from ._errors import InvalidError

# A wrapper calls `iter` on the loader through at most this many functions.
_FRAMES_MAX = 12


def refuse_wrappers(rank: int, world_size: int) -> None:
    """Raises if the loop of a loader that has several ranks is begun by a wrapper that divides its batches again."""
    if world_size == 1:
        return
    frame = sys._getframe(2)
    for _ in range(_FRAMES_MAX):
        if frame is None:
            return
        if frame.f_code.co_name in ("__iter__", "__init__"):
            _refuse(frame.f_locals.get("self"), rank, world_size)
        frame = frame.f_back


def _refuse(wrapper: object, rank: int, world_size: int) -> None:
    for kind in type(wrapper).__mro__:
        package = kind.__module__.partition(".")[0]
        if kind.__name__ == "IterableDatasetShard" and getattr(wrapper, "num_processes", 1) > 1:
            what = "keeps the batches of one process and drops the others"
        elif kind.__name__ == "DataLoaderDispatcher" and package == "accelerate":
            what = "reads the batches of rank 0 alone, and divides those"
        else:
            continue
        raise InvalidError(
            f"{kind.__name__} of {package} {what}, and this loader has only the batches of rank {rank} of {world_size}",
            "with accelerate, use forebay.integrations.accelerate.prepare(accelerator, loader)",
        )
