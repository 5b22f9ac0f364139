"""Which frameworks the integrations were tested with, and what happens with others."""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
from typing import Any

# The versions in tests/python/requirements.txt; `test_versions` compares them.
TESTED = {
    "accelerate": "1.15.0",
    "jax": "0.10.2",
    "keras": "3.15.1",
    "lightning": "2.6.6",
    "pytorch-lightning": "2.6.6",
    "transformers": "5.23.0",
}


def require(module: str, package: str) -> Any:
    """Imports a framework. If it is missing, the error says how to install it. If its version is not one of those that
    were tested, a warning says which were."""
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise ModuleNotFoundError(
            f'this part of Forebay needs the package "{package}", which is not installed; '
            f"hint: pip install {package}=={TESTED[package]}",
            name=error.name,
        ) from None
    warn_of_version(package)
    return imported


def warn_of_version(package: str) -> None:
    tested = TESTED[package]
    found = importlib.metadata.version(package)
    if found.split(".")[:2] != tested.split(".")[:2]:
        warnings.warn(
            f"Forebay was tested with {package} {tested}, and this is {package} {found}: check that a resumed run "
            "goes on with the batches that an undisturbed run would have read",
            stacklevel=4,
        )
