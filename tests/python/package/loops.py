"""Shared by the tests of loops: their rows, what a loop gave, and ways to take batches from one."""

import itertools

from feeds import range_of

COUNT = 50
LISTS = {"n": range_of(COUNT), "tokens": [[1] * (n * 7 % 29) for n in range(COUNT)]}


def read(batches):
    return [batch["n"].to_pylist() for batch in batches]


def place(loader):
    state = loader.state_dict()
    return state["epoch"], state["offset"]


def nexts(loader, count):
    batches = iter(loader)
    return [next(batches) for _ in range(count)]


def until_break(loader, count):
    got = []
    for batch in loader:
        got.append(batch)
        if len(got) == count:
            break
    return got


# Ways to take a number of batches without meeting the end of the loop.
WAYS = {
    "islice": lambda loader, count: list(itertools.islice(loader, count)),
    "zip": lambda loader, count: [batch for _, batch in zip(range(count), loader)],
    "next": nexts,
    "break": until_break,
}


def old_state(loader):
    """Returns the state that earlier versions took after the last batch: at the end of the epoch."""
    batches, last = iter(loader), None
    for _ in batches:
        last = loader._loop.place
    return last.state(loader._feed.identity)
