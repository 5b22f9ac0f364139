"""Sources of tables and scripts: paths, their formats and names."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

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


def name_of(location: str) -> str:
    """Returns a name for a table without one. A location always gets the same name, because names are part of a feed's
    identity."""
    stem = re.sub(r"\W+", "_", Path(location.rstrip("/")).stem).strip("_").lower() or "table"
    return f"{stem}_{hashlib.blake2s(location.encode(), digest_size=3).hexdigest()}"
