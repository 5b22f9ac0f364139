"""One pass over a query's rows, in the order of the files, in this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Iterator

from . import _arguments as arguments
from . import _options
from ._packages import required

if TYPE_CHECKING:
    from . import _native
    from ._session import Pipeline

# Rows that are read at a time: fewer of texts, which may be long, and few of what is often large, such as images.
ROWS, TEXT_ROWS, LARGE_ROWS = 4096, 1024, 32
_SMALL = ("Int", "UInt", "Float", "Boolean", "Date", "Time", "Timestamp", "Duration", "Decimal")
_TEXTS = ("Utf8", "LargeUtf8")


class Pass:
    """The rows of a pipeline, once. It reads as one rank, whatever the environment says, and only `columns`."""

    def __init__(self, pipeline: Pipeline, columns: list[str] | None, on_error: str | None = None):
        self.pipeline = pipeline
        native = pipeline.session._native
        options: dict[str, Any] = {"shuffle": False, "on_error": on_error or "raise"}
        options = _options.checked(_options.FEED, options)
        types = {name: type for name, type, _ in native.columns(pipeline.name)}
        if columns is not None:
            for name in columns:
                arguments.choice("column", name, types)
        self.columns = list(types) if columns is None else columns
        self._feed = native.open(pipeline.name, json.dumps(options), columns)
        self._batch_size = min((_rows_of(types[name]) for name in self.columns), default=ROWS)

    @property
    def samples(self) -> int | None:
        """The number of rows, if it is known without reading."""
        return self._feed.samples_per_epoch

    @property
    def uncacheable_calls(self) -> list[str]:
        """Calls whose results must not be kept: random ones, and Python functions without a version."""
        return self._feed.uncacheable_calls

    def native_batches(self, batch_size: int | None = None) -> Iterator[_native.Batch]:
        read: dict[str, Any] = {"from": "0:0", "epochs": 1, "rank": 0, "world_size": 1, "drop_last": False}
        # With length buckets, the pipeline says how many rows a batch has.
        read |= {} if self._feed.has_length_buckets else {"batch_size": batch_size or self._batch_size}
        stream = self._feed.read(json.dumps(read), 2)
        try:
            while (batch := stream.next()) is not None:
                yield batch
        finally:
            stream.close()

    def batches(self, by: str, batch_size: int | None = None) -> Iterator[Any]:
        """Record batches of pyarrow, which the method `by` needs."""
        pyarrow = required("pyarrow", by)
        for batch in self.native_batches(batch_size):
            yield pyarrow.record_batch(batch).select(self.columns)

    def table(self, by: str, rows: int | None = None) -> Any:
        """The rows as a pyarrow table: all of them, or the first ones."""
        pyarrow = required("pyarrow", by)
        found: list[Any] = []
        left = rows
        # The rows after the first ones may be expensive, or wrong.
        for batch in self.batches(by, None if rows is None else min(rows, self._batch_size)):
            found.append(batch if left is None else batch.slice(0, left))
            left = None if left is None else left - found[-1].num_rows
            if left == 0:
                break
        schema = found[0].schema if found else self._schema(pyarrow)
        return pyarrow.Table.from_batches(found, schema=schema)

    def _schema(self, pyarrow: Any) -> Any:
        schema = self.pipeline.schema
        return pyarrow.schema([schema.field(name) for name in self.columns])


def _rows_of(type: str) -> int:
    if type.startswith(_SMALL):
        return ROWS
    return min(ROWS, TEXT_ROWS if type.startswith(_TEXTS) else LARGE_ROWS)
