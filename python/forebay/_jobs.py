"""Samples that were written to files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from . import _arguments as arguments

if TYPE_CHECKING:
    from ._session import Session
    from ._table import Table


class JobProgress(NamedTuple):
    """How far a job is that writes files. `progress` functions get one about every second, and at the end."""

    # Complete files, and all files.
    files: int
    files_total: int
    # Samples and bytes written. On a cluster: in files that were completed since the dispatcher opened the job.
    rows: int
    bytes: int


# Called with the numbers of a `JobProgress`.
Show = Optional[Callable[[int, int, int, int], None]]


def shown(progress: Callable[[JobProgress], None] | None) -> Show:
    """`progress` as the native calls take it."""
    if progress is None:
        return None
    if not callable(progress):
        raise arguments.refuse("progress", "a function of a JobProgress", progress)

    def show(files: int, files_total: int, rows: int, bytes: int) -> None:
        progress(JobProgress(files, files_total, rows, bytes))

    return show


class _Written:
    """What a job has written."""

    def __init__(self, done: dict[str, Any]):
        # The folder, as an absolute path or URL.
        self.url: str = done["url"]
        # The id of the job that wrote it.
        self.job: str = done["job"]
        # Samples in all files.
        self.rows: int = done["rows"]
        # Rows that could not be computed, and are left out.
        self.bad_rows: int = done["bad_rows"]
        # The size of all files.
        self.bytes: int = done["bytes"]
        # Whether the samples existed already.
        self.found: bool = done["found"]
        # The folder of the bad rows, if the feed records them.
        self.quarantine: str | None = done.get("quarantine")


class Materialized(_Written):
    """Samples stored in files by this process."""

    def __init__(self, session: Session, done: dict[str, Any]):
        super().__init__(done)
        self._session = session
        # The data files, relative to `url`, in the samples' order.
        self.files: list[str] = done["files"]

    def table(self) -> Table:
        """The samples as a table."""
        return self._session.table(self.url)

    def __repr__(self) -> str:
        return f"<forebay.Materialized {self.rows} rows in {len(self.files)} files at {self.url}>"


class JobResult(_Written):
    """Samples that the workers of a cluster have written to files. `forebay.table(url)` is a table of them."""

    def __init__(self, done: dict[str, Any]):
        super().__init__(done)
        # The number of data files.
        self.files: int = done["files"]

    def __repr__(self) -> str:
        return f"<forebay.JobResult {self.rows} rows in {self.files} files at {self.url}>"
