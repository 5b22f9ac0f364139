"""Splits whose parts have the same shares of each label."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any

from . import _arguments as arguments
from ._errors import ExhaustedError, InvalidError
from ._looking import shares
from ._packages import required
from ._reading import Pass
from ._sql import by_value, quoted

if TYPE_CHECKING:
    from ._table import Table

# So many that hashes of different values hardly ever meet. SQL has no larger integers.
BUCKETS = 2**62
HASHED = f", buckets => {BUCKETS}, seed => {{seed}})"
# Multiples of it, modulo 1, are spread evenly.
GOLDEN = 0.6180339887498949
# A query names each label.
LABELS_MAX = 10_000


def stratified_conditions(
    table: Table, by: str, label: str, fractions: tuple[float, ...], seed: int
) -> list[str]:
    """Conditions of SQL that divide the rows of each label: by its own bounds on the hash of the column `by`."""
    if arguments.choice("stratify", label, list(table.columns)) is None:
        raise arguments.refuse("stratify", "the name of a column", label)
    cumulative = [sum(shares(fractions)[:part]) for part in range(1, len(shares(fractions)))]
    # Rows whose value is null have one part too.
    hashed = f"coalesce(hash_bucket({quoted(by)}{HASHED.format(seed=seed)}, 0)"
    hashes = _hashes(table.select(label=quoted(label), hash=hashed), label)
    _check_labels(hashes, by, label)
    # Labels round in different ways, or parts of many labels with few rows would not have their shares.
    roundings = {value: (0.5 + place * GOLDEN) % 1 for place, value in enumerate(sorted(hashes, key=repr))}
    bounds = [
        by_value(
            label,
            {value: str(_bound(sorted_, share, roundings[value])) for value, sorted_ in hashes.items()},
            otherwise=str(int(share * BUCKETS)),
        )
        for share in cumulative
    ]
    above = ["", *(f"{hashed} >= {bound}" for bound in bounds)]
    below = [*(f"{hashed} < {bound}" for bound in bounds), ""]
    return [" AND ".join(filter(None, pair)) for pair in zip(above, below)]


def _bound(hashes: array[int], share: float, rounding: float) -> int:
    """The hash below which this share of the rows is. Rows of one hash are not divided: all of them are below it if at
    least 1 - `rounding` of them should be. With 0.5 the bound is the nearest possible one."""
    # A sum of shares may be a little off.
    rows = share * len(hashes) + 1e-9
    if rows >= len(hashes):
        return BUCKETS
    hash = hashes[int(rows)]
    first, end = bisect_left(hashes, hash), bisect_right(hashes, hash)
    return hash + (rows - first >= (1 - rounding) * (end - first))


def _check_labels(hashes: dict[Any, array[int]], by: str, label: str) -> None:
    """Refuses rows that belong together and have different labels: the labels' bounds would part them."""
    seen: set[int] = set()
    for of_label in hashes.values():
        # 0 is null.
        distinct = set(of_label) - {0}
        if not seen.isdisjoint(distinct):
            raise InvalidError(
                f'a value of the column "{by}" has rows of several values of "{label}", and a split that is stratified '
                "would tear them apart",
                "leave out stratify, or split by a column that differs in each row",
            )
        seen |= distinct


def _hashes(table: Table, label: str) -> dict[Any, array[int]]:
    """The hashes of the rows of each label, in ascending order."""
    pyarrow = required("pyarrow", "stratify")
    hashes: dict[Any, array[int]] = {}
    for batch in Pass(table.pipeline(), None).batches("stratify"):
        labels, values = batch.column(0), batch.column(1).to_numpy()
        if pyarrow.types.is_nested(labels.type) or isinstance(labels.type, pyarrow.BaseExtensionType):
            raise InvalidError(
                f'"stratify" divides by texts, numbers and times, and the column "{label}" is a {labels.type}',
                "name a column with one value in each row",
            )
        encoded = labels.dictionary_encode("encode")
        codes = encoded.indices.to_numpy()
        for code, value in enumerate(encoded.dictionary.to_pylist()):
            value = _NAN if value != value else value
            hashes.setdefault(value, array("q")).frombytes(values[codes == code].tobytes())
        if len(hashes) > LABELS_MAX:
            raise ExhaustedError(
                f'the column "{label}" has more than {LABELS_MAX} labels',
                "stratify by a column of classes, or by classes of its values: bucketize(x, [1, 2, 5])",
            )
    return {value: array("q", sorted(found)) for value, found in hashes.items()}


# All NaNs are one value, and NaN is not equal to itself.
_NAN = float("nan")
