"""Lists of paths: one table of the files that they name."""

from __future__ import annotations

import os
import posixpath
import re
from typing import TYPE_CHECKING, Sequence

from . import _native
from ._errors import InvalidError, NotFoundError
from ._packages import required
from ._sources import name_of
from ._sql import quoted
from ._table import Table

if TYPE_CHECKING:
    from ._session import Session

_GLOB = re.compile(r"[*?\[{]")
# Missing files that an error names.
NAMED_MAX = 3


def table_of(
    session: Session,
    paths: Sequence[str | os.PathLike[str]],
    name: str | None,
    format: str | None,
    options: Sequence[tuple[str, str]] = (),
) -> Table:
    """Returns a table of all files at these paths. If they all name media files, it has a row for each path, as it was
    given, with the file's bytes."""
    given = [os.fspath(path) for path in paths]
    if not all(_is_media_file(session, path, format) for path in given):
        name = name or name_of("\n".join(given), options)
        session._native.add_all_files(name, given, format, list(options))
        return Table(session, quoted(name))
    if name is not None:
        raise InvalidError(
            '"name" does not apply to a list of paths',
            'name it in a query: forebay.sql("SELECT … FROM pictures", pictures=[…])',
        )
    for option, _ in options:
        raise InvalidError(f'"{option}" does not apply to a list of paths of media files', "leave it out")
    pyarrow = required("pyarrow", "a table of a list of paths")
    folder = _folder(given)
    below = [_below(path, folder) for path in given]
    labels = [posixpath.basename(posixpath.dirname(path)) or None for path in given]
    # The folder may hold other files, whose folders have other columns.
    files = session._register(f"{name_of(folder)}_files", folder, "media", [("hive_partitioning", "false")])
    columns = {"file": below, "path": given, "label": labels}
    listed = session.table({column: pyarrow.array(texts, pyarrow.string()) for column, texts in columns.items()})
    found = Table(
        session,
        f"(SELECT bytes, listed.path AS path, size, listed.label AS label FROM {quoted(files)} AS files "
        f"JOIN ({listed.sql}) AS listed ON files.path = listed.file) AS listed_files",
        held=listed._held,
    )
    _check(found, given, folder)
    return found


def _is_media_file(session: Session, path: str, format: str | None) -> bool:
    name = posixpath.basename(path)
    is_file = "." in name and (not _GLOB.search(name) or os.path.isfile(os.path.join(session._base, path)))
    of_extension = _native.format_of(path)
    return is_file and (of_extension or format or "media") == "media" and format in (None, "media")


def _check(found: Table, given: list[str], folder: str) -> None:
    """Raises an error if files are missing. It reads no bytes of files."""
    loader = found.load(columns=["path"], format="arrow", batch_size=4096, dp_rank=0, dp_size=1)
    present: set[str] = set()
    for batch in loader:
        present.update(batch["path"].to_pylist())
    missing = [path for path in dict.fromkeys(given) if path not in present]
    if missing:
        shown = ", ".join(f'"{path}"' for path in missing[:NAMED_MAX])
        more = f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
        raise NotFoundError(
            f'no media files: {shown}{more}; searched "{folder}"',
            "names that begin with . or _ are skipped; name files of other formats by a folder or a glob",
        )


def _folder(paths: list[str]) -> str:
    """The folder that holds all of the paths."""
    stores = {path.partition("://")[0] if "://" in path else "" for path in paths}
    if len(stores) > 1 or len({path.startswith("/") for path in paths}) > 1:
        raise InvalidError("the paths of a list must be of one store, and all relative or all absolute")
    store = next(iter(stores))
    folders = [posixpath.dirname(_plain(path)) for path in paths]
    if len({_up(folder) for folder in folders}) > 1:
        raise InvalidError(
            'relative paths of a list must all begin with the same number of ".."',
            "give absolute paths: [os.path.abspath(path) for path in paths]",
        )
    common = posixpath.commonpath(folders)
    # A folder with such a name would be a glob.
    while _GLOB.search(common):
        common = posixpath.dirname(common)
    if common == "/" or (store and not common):
        what = "bucket" if store else "folder below '/'"
        raise InvalidError(
            f"the paths of a list must have a common {what}, whose files are listed",
            "make a table of the paths of each, or put the files into one",
        )
    prefix = f"{store}://" if store else ""
    return f"{prefix}{common}" if common else "."


def _up(folder: str) -> int:
    """How many folders a path goes up before it goes down."""
    names = folder.split("/")
    return next((number for number, name in enumerate(names) if name != ".."), len(names))


def _below(path: str, folder: str) -> str:
    return posixpath.relpath(_plain(path), _plain(folder))


def _plain(path: str) -> str:
    """The path in its store. Names in stores may hold "..", and paths of files may not."""
    return path.partition("://")[2] if "://" in path else posixpath.normpath(path)
