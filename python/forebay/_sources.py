"""Sources of tables and scripts: paths, their formats and names."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any, Sequence

from . import _arguments as arguments
from ._errors import InvalidError


def read_script(path: str | os.PathLike[str]) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InvalidError(
            f'the script "{os.fspath(path)}" does not exist', f'relative paths begin at "{os.getcwd()}"'
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidError(f'the script "{os.fspath(path)}" cannot be read: {why}') from None


def is_query(text: str) -> bool:
    """Whether the text, after comments, begins like a query."""
    text = re.sub(r"^(\s*(--[^\n]*\n|/\*.*?\*/))*\s*\(*\s*", "", text, flags=re.DOTALL)
    return re.match(r"(select|with)\b", text, re.IGNORECASE) is not None


def is_name(source: str) -> bool:
    return re.fullmatch(r"\w+", source) is not None


def table_options(
    *, hive_partitioning: Any, missing: Any, widen: Any, path_column: Any
) -> list[tuple[str, str]]:
    """Checks the options of a table of files, and returns those that are given, as in SQL."""
    given = {
        "hive_partitioning": arguments.boolean("hive_partitioning", hive_partitioning),
        "missing": arguments.choice("missing", missing, ["null", "error"]),
        "widen": arguments.boolean("widen", widen),
    }
    options = [(option, str(value).lower()) for option, value in given.items() if value is not None]
    path_column = arguments.text("path_column", path_column)
    return options if path_column is None else [*options, ("path_column", path_column)]


def name_of(location: str, options: Sequence[tuple[str, str]] = ()) -> str:
    """Returns a name for a table without one. A location always gets the same name with the same options, because names
    are part of a feed's identity."""
    key = "\n".join([location, *(f"{option}={value}" for option, value in options)])
    stem = re.sub(r"\W+", "_", Path(location.rstrip("/")).stem).strip("_").lower() or "table"
    return f"{stem}_{hashlib.blake2s(key.encode(), digest_size=3).hexdigest()}"
