"""A worker beside the trainer: in its process, on cores that it does not need."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Any, Callable

from . import _arguments as arguments
from . import _native
from ._errors import InvalidError

MEMORY_BYTES = 256 << 20
LOOPBACK = "127.0.0.1"
_ACCEPTED = 'a number of threads, or "auto" for what the trainer does not need'


class LocalWorker:
    """This process's share in its worker. When the last one is gone, the worker drains."""

    def __init__(self, native: _native.LocalWorker, settings: tuple[Any, ...]):
        self.native, self.settings, self.process = native, settings, os.getpid()
        weakref.finalize(self, native.drain).atexit = False


# The share that connections and loaders of this process hold.
_current: Callable[[], LocalWorker | None] = lambda: None
# The workers that were not yet waited for.
_all: list[_native.LocalWorker] = []


def begin(client: _native.Client, uri: str, threads: Any, memory: Any, address: Any) -> LocalWorker | None:
    """Starts a worker for the dispatcher of `client`, if one is wanted. A process has one at a time."""
    global _current
    memory = arguments.size("local_worker_memory", memory)
    address = arguments.text("local_worker_address", address)
    if threads is None:
        for name, value in (("local_worker_memory", memory), ("local_worker_address", address)):
            if value is not None:
                raise InvalidError(f'"{name}" was given without "local_worker"', f"give local_worker {_ACCEPTED}")
        return None
    is_auto = isinstance(threads, str) and threads == "auto"
    number = None if is_auto else arguments.integer("local_worker", threads, 1, _ACCEPTED, 4096)
    processes, world = _number("LOCAL_WORLD_SIZE"), _number("WORLD_SIZE")
    if is_auto and os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")) != "0":
        return None
    if address is None and world > max(processes, 1):
        raise InvalidError(
            "trainers on other machines must reach a local worker, and nothing says at which address",
            'give "local_worker_address" the IP address of this machine',
        )
    settings = (uri, number, memory, address)
    current = _current()
    if current is not None and current.process == os.getpid() and not current.native.is_done:
        if current.settings != settings:
            raise InvalidError(
                f"this process has a local worker for {current.settings[0]}, with other settings",
                "a process has one local worker: give every connection the same address and settings, or close the "
                "other one",
            )
        return current
    native = _native.LocalWorker(
        client,
        threads=number,
        memory_bytes=MEMORY_BYTES if memory is None else memory,
        host=address or LOOPBACK,
        processes=max(processes, 1),
    )
    _all[:] = [*(worker for worker in _all if not worker.is_done), native]
    current = LocalWorker(native, settings)
    _current = weakref.ref(current)
    return current


def _number(name: str) -> int:
    """A number that a launcher says in a variable; 0 if it says none."""
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else 0


@atexit.register
def _end() -> None:
    """Drains the workers of this process, and waits while trainers read from them."""
    for worker in _all:
        worker.stop()
