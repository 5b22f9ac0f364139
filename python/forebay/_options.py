"""The checks of the options that Python shares with SQL, the command line and Flight, by name.

protocol/src/options/table.rs declares the options. `UPDATE=1 cargo test -p forebay-protocol --test generated` writes
these checks, the signatures and types between `begin` and `end` in this package, and the lists of options in
docstrings.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, TypeAlias

from . import _arguments as arguments

Checks: TypeAlias = Mapping[str, Callable[[str, Any], Any]]


def checked(checks: Checks, given: dict[str, Any]) -> dict[str, Any]:
    """Takes the options of `checks` out of `given`, checks them, and returns those that are not `None`."""
    values = {name: check(name, given.pop(name, None)) for name, check in checks.items()}
    return {name: value for name, value in values.items() if value is not None}


# begin: checks
FEED: Checks = {
    "seed": arguments.integer,
    "shuffle": arguments.boolean,
    "window_bytes": arguments.size,
    "window_rows": arguments.positive,
    "on_error": arguments.one_of("raise", "skip", "quarantine"),
    "bucket_by_length": arguments.text,
    "bucket_boundaries": arguments.ascending,
    "global_batch_size": arguments.positive,
    "cache": arguments.one_of("none", "source", "prefix", "full", "auto"),
    "order": arguments.one_of("exact", "relaxed"),
}
READ: Checks = {
    "batch_size": arguments.positive,
    "drop_last": arguments.boolean,
    "delivery": arguments.one_of("ordered", "dynamic"),
    "job": arguments.text,
}
JOB: Checks = {
    "format": arguments.text,
    "file_size": arguments.size,
    "compression": arguments.text,
    "partition_by": arguments.columns,
    "global_shuffle": arguments.boolean,
    "sort_by": arguments.columns,
}
SESSION: Checks = {
    "threads": arguments.positive,
    "cpu_limit": arguments.positive,
    "memory_limit": arguments.size,
    "base": arguments.path,
    "root": arguments.path,
    "window_memory_limit": arguments.size,
    "lookup_memory_limit": arguments.size,
    "batch_memory_limit": arguments.size,
    "spill_folder": arguments.path,
    "no_precompute": arguments.boolean,
    "cache_folder": arguments.path,
    "cache_limit": arguments.size,
    "sql_queries": arguments.boolean,
    "sql_rows_limit": arguments.positive,
}
# end: checks
