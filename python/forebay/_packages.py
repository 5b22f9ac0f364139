"""Packages that the user installs: imported when they are needed, with an error that names what is missing."""

from __future__ import annotations

import importlib
from typing import Any

from ._errors import InvalidError


def required(name: str, by: str) -> Any:
    """Imports the package `name`, which the call `by` needs."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise InvalidError(f"{by} needs the package {package}: {error}", f"pip install {package}") from None


def installed(name: str) -> Any:
    """Imports the package `name`, or returns `None`."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
