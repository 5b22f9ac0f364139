"""Forebay's exceptions. `kind` says what to do about an error, and an optional `hint` says how."""

from __future__ import annotations

from typing import Any


class Error(Exception):
    """The base class of Forebay's exceptions."""

    kind = "internal"

    def __init__(self, message: str, hint: str | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"

    def __reduce__(self) -> Any:
        return type(self), (self.message, self.hint)


class InvalidError(Error, ValueError):
    """Fix the request: an argument, a query, or a state of another feed."""

    kind = "invalid"


class NotFoundError(Error, LookupError):
    """Name something that exists."""

    kind = "not_found"


class ConflictError(Error):
    """Something changed meanwhile, such as a source file: reload and retry."""

    kind = "conflict"


class DeniedError(Error, PermissionError):
    """Show a token or certificate: it was missing or wrong."""

    kind = "denied"


class UnavailableError(Error, ConnectionError):
    """Retry later: a server or all workers are gone."""

    kind = "unavailable"


class ExhaustedError(Error, MemoryError):
    """Lower the load."""

    kind = "exhausted"


class DataError(Error):
    """Stored bytes are wrong: the message names file, row and reason."""

    kind = "data"


class InternalError(Error, RuntimeError):
    """A bug in Forebay."""

    kind = "internal"


_CLASSES = {
    error.kind: error
    for error in (
        InvalidError,
        NotFoundError,
        ConflictError,
        DeniedError,
        UnavailableError,
        ExhaustedError,
        DataError,
        InternalError,
    )
}


def error_of(kind: str, message: str, hint: str | None) -> Error:
    """Returns the exception for an error of the native half."""
    if message.startswith("error: "):
        message = message[len("error: ") :]
    if hint is None and "\nhint: " in message:
        message, _, hint = message.rpartition("\nhint: ")
    return _CLASSES.get(kind, InternalError)(message, hint)
