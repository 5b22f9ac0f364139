"""Queries over whole tables: what a feed cannot run, because it needs all rows."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Iterator

from . import _arguments as arguments
from . import _native
from ._looking import frame_of
from ._packages import required
from ._preview import Preview

if TYPE_CHECKING:
    from ._session import Session


class Query:
    """The rows of a query that needs whole tables, such as `SELECT label, count(*) FROM t GROUP BY label`.

    It runs each time that rows are asked for, on all of the session's threads, and keeps no rows. Without an ORDER BY,
    rows come in any order. `forebay.load(query)` runs it once, and loads its rows from memory.
    """

    def __init__(self, session: Session, native: _native.Query):
        self.session, self._native = session, native

    @property
    def text(self) -> str:
        """The text of the query."""
        return self._native.text

    @property
    def schema(self) -> Any:
        """The columns, as a pyarrow schema."""
        return required("pyarrow", "schema").schema(_Schema(self._native))

    def batches(self) -> Iterator[Any]:
        """The rows as record batches of pyarrow, as they are computed. Leaving the loop stops the query as soon as it
        reads on."""
        pyarrow = required("pyarrow", "batches")
        rows = self._native.rows()
        try:
            while (batch := rows.next()) is not None:
                yield pyarrow.record_batch(batch)
        finally:
            rows.close()

    def head(self, rows: int = 5) -> Any:
        """The first rows as a pyarrow table."""
        pyarrow = required("pyarrow", "head")
        left, found = arguments.count("rows", rows, 1), list[Any]()
        for batch in self.batches():
            found.append(batch.slice(0, left))
            left -= found[-1].num_rows
            if left == 0:
                break
        return pyarrow.Table.from_batches(found, schema=self.schema)

    def to_arrow(self) -> Any:
        """All rows as a pyarrow table."""
        return required("pyarrow", "to_arrow").Table.from_batches(list(self.batches()), schema=self.schema)

    def to_pandas(self) -> Any:
        """All rows as a pandas frame. Tensors are NumPy arrays."""
        required("pandas", "to_pandas")
        return frame_of(self.to_arrow())

    def show(self, rows: int = 20) -> None:
        """Shows the first rows: as a text in a terminal, and as a table in a notebook."""
        preview = Preview(self._native.preview(arguments.count("rows", rows, 1)))
        notebook = sys.modules.get("IPython")
        if notebook is not None and notebook.get_ipython() is not None:
            notebook.display.display(preview)
        else:
            print(preview)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        reader = required("pyarrow", "__arrow_c_stream__").RecordBatchReader
        return reader.from_batches(self.schema, self.batches()).__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<forebay.Query {self.text!r}>"


class _Schema:
    def __init__(self, native: _native.Query):
        self._native = native

    def __arrow_c_schema__(self) -> Any:
        return self._native.schema()
