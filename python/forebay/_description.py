"""What one pass over a table shows of each column."""

from __future__ import annotations

import math
import random
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, cast

from . import _html as html
from ._packages import required
from ._tensors import Tensors
from ._times import are_times, as_integers, as_python

if TYPE_CHECKING:
    from ._reading import Pass

# Values that are kept, drawn from all rows alike: for histograms and medians.
SAMPLE_MAX = 10_000
# Distinct values that are counted. A longer text is known by its hash.
DISTINCT_MAX, TEXT_MAX = 1_000, 64
BARS = 24


class Description(dict[str, dict[str, Any]]):
    """What a pass found, as a dict of columns: `description["price"]["mean"]`. Every column has `type` and `nulls`."""

    def __init__(self, columns: dict[str, dict[str, Any]], rows: int, histograms: dict[str, list[int]]):
        super().__init__(columns)
        self.rows = rows
        # For columns of numbers: the rows in each of some equal intervals from the minimum to the maximum. In a large
        # table these are rows of a sample.
        self.histograms = histograms

    def __reduce__(self) -> Any:
        return Description, (dict(self), self.rows, self.histograms)

    def _facts(self, column: str) -> str:
        facts = {name: value for name, value in self[column].items() if name not in ("type", "nulls")}
        return ", ".join(f"{name} {_shown(value)}" for name, value in facts.items())

    def __repr__(self) -> str:
        lines = [(html.shortened(name, 40), str(self[name]["type"]), str(self[name]["nulls"])) for name in self]
        facts = [self._facts(name) for name in self]
        table = html.aligned([("column", "type", "nulls", ""), *((*line, fact) for line, fact in zip(lines, facts))])
        return f"{self.rows} rows\n{table}"

    def _repr_html_(self) -> str:
        lines = [
            (
                html.text(name),
                html.text(self[name]["type"]),
                str(self[name]["nulls"]),
                html.text(self._facts(name), 300),
                html.histogram(self.histograms.get(name, [])),
            )
            for name in self
        ]
        table = html.table(("column", "type", "nulls", "", ""), lines, numbers=(2,))
        return html.page(f"<p>{self.rows} rows</p>", table)


def describe(read: Pass, types: dict[str, str]) -> Description:
    """Reads the columns once. Holds some thousand values of each, and no long texts."""
    columns = {name: _Column() for name in read.columns}
    rows = 0
    for batch in read.batches("describe"):
        rows += batch.num_rows
        for name, column in columns.items():
            column.add(batch.column(name), batch.schema.field(name))
    found = {name: {"type": types[name], "nulls": column.nulls, **column.facts()} for name, column in columns.items()}
    histograms = {name: column.numbers.histogram() for name, column in columns.items() if column.is_number}
    return Description(found, rows, {name: bars for name, bars in histograms.items() if bars})


class _Numbers:
    """Minimum, maximum, mean and deviation of numbers that come in parts, and a sample of them."""

    def __init__(self) -> None:
        self.count = 0
        self.nans = 0
        self.min: Any = None
        self.max: Any = None
        self._mean = self._squares = 0.0
        self._sample: list[float] = []
        # The same pass shows the same sample.
        self._random = random.Random(0)

    def add(self, values: Any, compute: Any, samples: bool = True) -> None:
        """Adds numbers without nulls."""
        if str(values.type) == "halffloat":
            # pyarrow has few functions for float16.
            values = values.cast("float32")
        if _is_float(values.type):
            valid = compute.invert(compute.is_nan(values))
            self.nans += len(values) - compute.sum(valid).as_py() if len(values) else 0
            values = values.filter(valid)
        count = len(values)
        if not count:
            return
        ends = compute.min_max(values)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        self.min = low if self.min is None else min(self.min, low)
        self.max = high if self.max is None else max(self.max, high)
        as_float = values.cast("float64", safe=False)
        mean = compute.mean(as_float).as_py()
        squares = compute.variance(as_float).as_py() * count
        # Chan's formula for the deviation of two parts.
        delta, total = mean - self._mean, self.count + count
        self._squares += squares + delta * delta * self.count * count / total
        self._mean += delta * count / total
        if samples:
            self._draw(as_float)
        self.count = total

    def _draw(self, values: Any) -> None:
        """Keeps each value with the same probability."""
        seen = self.count
        room = max(0, SAMPLE_MAX - len(self._sample))
        self._sample += values.slice(0, room).to_pylist()
        for index in range(room, len(values)):
            place = self._random.randrange(seen + index + 1)
            if place < SAMPLE_MAX:
                self._sample[place] = values[index].as_py()

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {} if self.min is None else {"min": self.min, "max": self.max, "mean": self._mean}
        if self.count > 1:
            facts["std"] = math.sqrt(self._squares / self.count)
        if self._sample:
            facts["median"] = sorted(self._sample)[(len(self._sample) - 1) // 2]
        return facts | ({"nan": self.nans} if self.nans else {})

    def histogram(self) -> list[int]:
        finite = [value for value in self._sample if math.isfinite(value)]
        if not finite:
            return []
        low, high = min(finite), max(finite)
        counts = [0] * BARS
        if not math.isfinite(high - low):
            return []
        for value in finite:
            counts[min(int((value - low) / (high - low) * BARS), BARS - 1) if high > low else 0] += 1
        return counts


class _Column:
    """What is known of a column so far."""

    def __init__(self) -> None:
        self.nulls = 0
        self.is_number = False
        self.numbers = _Numbers()
        self._lengths = _Numbers()
        self._unit: str | None = None
        # Of times, as integers.
        self._ends: tuple[int, int] | None = None
        self._type: Any = None
        self._trues: int | None = None
        self._distinct: set[Any] | None = None
        # Of tensors: the only shape, or the least and the greatest sides.
        self._shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def add(self, column: Any, field: Any) -> None:
        pyarrow = required("pyarrow", "describe")
        compute = required("pyarrow.compute", "describe")
        types = pyarrow.types
        self.nulls += column.null_count
        tensors = Tensors.of(column, field)
        if tensors is not None:
            for shape in {shape for shape in tensors.shapes if shape is not None}:
                self._add_shape(shape)
            elements = tensors.elements
            if _is_number(elements.type, types) and not elements.null_count:
                self.numbers.add(elements, compute, samples=False)
            return
        values = column.drop_null()
        type = values.type
        if types.is_boolean(type):
            self._trues = (self._trues or 0) + (compute.sum(values).as_py() or 0)
        elif _is_number(type, types):
            self.is_number = True
            self.numbers.add(values, compute)
            if not _is_float(type):
                self._count_distinct(values)
        elif types.is_string(type) or types.is_large_string(type):
            self._unit = "characters"
            self._lengths.add(compute.utf8_length(values), compute, samples=False)
            self._count_distinct(values)
        elif types.is_binary(type) or types.is_large_binary(type):
            self._unit = "bytes"
            self._lengths.add(compute.binary_length(values), compute, samples=False)
        elif types.is_fixed_size_list(type):
            self._add_shape((type.list_size,))
        elif types.is_list(type) or types.is_large_list(type):
            self._unit = "items"
            self._lengths.add(compute.list_value_length(values), compute, samples=False)
        elif are_times(type) and len(values):
            self._type = type
            self._widen(compute.min_max(as_integers(values)))

    def _widen(self, ends: Any) -> None:
        low, high = ends["min"].as_py(), ends["max"].as_py()
        before = self._ends or (low, high)
        self._ends = min(before[0], low), max(before[1], high)

    def _add_shape(self, shape: tuple[int, ...]) -> None:
        low, high = self._shapes or (shape, shape)
        self._shapes = tuple(map(min, low, shape)), tuple(map(max, high, shape))

    def _count_distinct(self, values: Any) -> None:
        known: set[Any] = set() if self._distinct is None else self._distinct
        if len(known) <= DISTINCT_MAX:
            known.update(_known(value) for value in values.unique().slice(0, DISTINCT_MAX + 1).to_pylist())
        self._distinct = known

    def facts(self) -> dict[str, Any]:
        facts = self.numbers.facts()
        if self._trues is not None:
            facts["true"] = self._trues
        if self._ends is not None:
            facts |= zip(("min", "max"), as_python(list(self._ends), self._type))
        if self._unit is not None:
            lengths = self._lengths.facts()
            facts |= {f"{name} {self._unit}": lengths[name] for name in ("min", "max", "mean") if name in lengths}
        if self._distinct is not None:
            over = len(self._distinct) > DISTINCT_MAX
            facts["distinct"] = f"over {DISTINCT_MAX}" if over else len(self._distinct)
        if self._shapes is not None:
            low, high = self._shapes
            facts |= {"shape": low} if low == high else {"min shape": low, "max shape": high}
        return facts


def _known(value: Any) -> Any:
    """Stands for a value: for a long text its hash."""
    if isinstance(value, str) and len(value) > TEXT_MAX:
        return blake2b(value.encode(), digest_size=16).digest()
    return value


def _is_number(type: Any, types: Any) -> bool:
    return bool(types.is_integer(type) or types.is_floating(type) or types.is_decimal(type))


def _is_float(type: Any) -> bool:
    return bool(required("pyarrow", "describe").types.is_floating(type))


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple):
        return " x ".join(map(str, cast("tuple[int, ...]", value)))
    return html.shortened(str(value), 40)
