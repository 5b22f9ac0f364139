"""Recognises wrappers that would divide a rank's batches among the ranks once more."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from ._errors import InvalidError

# A wrapper calls `iter` on the loader through at most this many functions.
_FRAMES_MAX = 12


def refuse_wrappers(loader: Any) -> None:
    """Raises if a wrapper that divides batches among the ranks calls the method of `loader` that calls this. A wrapper
    that would do so on several ranks is refused on one, too."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_FRAMES_MAX):
        if frame is None:
            return
        if frame.f_code.co_name in ("__iter__", "set_epoch"):
            wrapper = frame.f_locals.get("self")
            what = _fault(wrapper, loader)
            if what is not None:
                raise InvalidError(
                    f"{type(wrapper).__name__} {what}, and this loader has the batches of rank {loader.rank} of "
                    f"{loader.world_size}",
                    "with accelerate, use forebay.integrations.accelerate.prepare(accelerator, loader)",
                )
        frame = frame.f_back


def _fault(wrapper: Any, loader: Any) -> str | None:
    names = {kind.__name__ for kind in type(wrapper).__mro__}
    if "IterableDatasetShard" in names and getattr(wrapper, "num_processes", 1) > 1 and loader.world_size > 1:
        return "keeps the batches of one process and drops the others"
    if type(wrapper).__module__.partition(".")[0] != "accelerate":
        return None
    is_direct = getattr(wrapper, "dataset", None) is loader
    if "DataLoaderDispatcher" in names and (is_direct or loader.world_size > 1):
        return "of accelerate divides the batches of rank 0 among all ranks"
    if "DataLoaderShard" in names and is_direct:
        return "of accelerate divides batches among the ranks"
    return None
