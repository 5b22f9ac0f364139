"""Rows to look at."""

from __future__ import annotations


class Preview:
    """Processed rows, for people to look at."""

    def __init__(self, native: tuple[str, str, int, int]):
        self.text, self.html, self.rows, self.bad_rows = native

    def __repr__(self) -> str:
        if not self.bad_rows:
            return self.text
        return f'{self.text}\nleft out {self.bad_rows} rows that cannot be processed; on_error="raise" names the first'

    def _repr_html_(self) -> str:
        return self.html
