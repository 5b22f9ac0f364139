"""The checks of the options that Python shares with SQL, the command line and Flight, by name.

protocol/src/options/table.rs declares the options. `UPDATE=1 cargo test -p forebay-protocol --test generated` writes
these checks, the signatures between `begin` and `end` in this package, and the lists of options in docstrings.
"""

from __future__ import annotations

from typing import Any, Callable

from . import _arguments as arguments


def checked(checks: dict[str, Callable[[str, Any], Any]], given: dict[str, Any]) -> dict[str, Any]:
    """Takes the options of `checks` out of `given`, checks them, and returns those that are not `None`."""
    values = {name: check(name, given.pop(name, None)) for name, check in checks.items()}
    return {name: value for name, value in values.items() if value is not None}


# begin: checks
# end: checks
