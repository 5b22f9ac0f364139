"""Arguments of other loaders, which `load` does not have: the error says what to do instead."""

from __future__ import annotations

import difflib
import functools
import inspect
from typing import Any, Callable, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_THREADS = "leave it out: Forebay computes on threads of this process; forebay.Session(threads=n) limits them"
_RANKS = "leave it out: Forebay shares the samples between the ranks; shuffle=True shuffles them"
_SEED = "give seed: order and augmentation depend on it"
_INSTEAD = {
    "num_workers": _THREADS,
    "workers": _THREADS,
    "persistent_workers": _THREADS,
    "multiprocessing_context": _THREADS,
    "in_order": "leave it out: batches come in the feed's order",
    "timeout": "leave it out: a loop waits as long as files or servers answer",
    "sampler": _RANKS,
    "batch_sampler": _RANKS,
    "generator": _SEED,
    "worker_init_fn": _SEED,
    "collate_fn": 'batches are finished: padding={"input_ids": 0} pads lists; write other transforms in the query',
    "drop_remainder": 'give "drop_last"',
    "num_epochs": 'give "epochs"',
    "repeat": 'give epochs=float("inf")',
    "buffer_size": 'give "window_bytes", the source bytes that are shuffled together',
}


def explained(load: F) -> F:
    """Lets a function explain keyword arguments that it does not have. They remain a `TypeError`."""
    known = inspect.signature(load).parameters

    @functools.wraps(load)
    def checked(*given: Any, **options: Any) -> Any:
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                instead = _INSTEAD.get(name) or (f'did you mean "{near[0]}"?' if near else "see help(forebay.load)")
                raise TypeError(f'load has no argument "{name}"; {instead}')
        return load(*given, **options)

    return cast(F, checked)
