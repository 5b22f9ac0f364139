"""Tensors as arguments and results of Python functions: NumPy arrays in Python, storage of tensors in Arrow."""

from __future__ import annotations

import json
from typing import Any, Sequence

from ._errors import InvalidError
from ._packages import required

Shape = tuple["int | None", ...]


class TensorType:
    """A type of tensors: their elements, and their sides, of which some may be any.

    If all sides are given, it is Arrow's tensor type of one shape, and otherwise that of variable shape.
    """

    def __init__(self, value: Any, shape: Sequence[int | None]):
        sides: list[Any] = list(shape)
        if not sides or not all(side is None or _is_side(side) for side in sides):
            raise InvalidError(
                "the shape of a tensor is a list of positive integers, and of None for sides of any length, got "
                f"{shape!r}"
            )
        self.value = value
        self.shape: Shape = tuple(sides)

    @property
    def is_fixed(self) -> bool:
        return None not in self.shape

    def __repr__(self) -> str:
        sides = ", ".join("?" if side is None else str(side) for side in self.shape)
        return f"tensor<{self.value}>[{sides}]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorType) and (self.value, self.shape) == (other.value, other.shape)

    def __hash__(self) -> int:
        return hash((str(self.value), self.shape))

    @staticmethod
    def of(field: Any) -> TensorType | None:
        """The tensor type of a field, if it is one."""
        pyarrow = required("pyarrow", "a function in queries")
        if isinstance(field.type, pyarrow.FixedShapeTensorType) and field.type.permutation in (None, []):
            return TensorType(field.type.value_type, field.type.shape)
        metadata: dict[bytes, bytes] = field.metadata or {}
        if metadata.get(_NAME) != _VARIABLE or not pyarrow.types.is_struct(field.type):
            return None
        data, sides = field.type.field("data").type, field.type.field("shape").type
        shape = json.loads(metadata.get(_METADATA) or b"{}").get("uniform_shape") or [None] * sides.list_size
        return TensorType(data.value_type, shape)

    def field(self, name: str, nullable: bool) -> Any:
        pyarrow = required("pyarrow", "a function in queries")
        if self.is_fixed:
            return pyarrow.field(name, pyarrow.fixed_shape_tensor(self.value, list(self.shape)), nullable=nullable)
        sides = json.dumps({"uniform_shape": self.shape}, separators=(",", ":"))
        metadata = {_NAME: _VARIABLE, _METADATA: sides.encode()}
        return pyarrow.field(name, self.storage, nullable=nullable, metadata=metadata)

    @property
    def storage(self) -> Any:
        """The Arrow type of the rows."""
        pyarrow = required("pyarrow", "a function in queries")

        def item(type: Any) -> Any:
            return pyarrow.field("item", type, nullable=False)

        if self.is_fixed:
            size = 1
            for side in self.shape:
                size *= side or 1
            return pyarrow.list_(self.value, size)
        data, sides = pyarrow.list_(item(self.value)), pyarrow.list_(item(pyarrow.int32()), len(self.shape))
        return pyarrow.struct([
            pyarrow.field("data", data, nullable=False), pyarrow.field("shape", sides, nullable=False)
        ])

    def arrays(self, column: Any) -> Any:
        """The rows of a column as the function gets them: one array with the rows first, or a list of arrays."""
        if column.null_count:
            raise ValueError(
                "an argument is null, and there is no array for it: leave such rows out, with WHERE … IS NOT NULL"
            )
        if self.is_fixed:
            values = column.flatten()
            # NumPy would get floats then, for all rows of the piece.
            if values.null_count:
                raise ValueError(
                    "an element of an argument is null, and arrays have no nulls: leave such rows out, or fill them in"
                )
            return values.to_numpy(zero_copy_only=False).reshape(len(column), *self.shape)
        data, rank = column.field("data"), len(self.shape)
        values = data.values.to_numpy(zero_copy_only=False)
        ends = data.offsets.to_numpy()
        shapes = column.field("shape").flatten().to_numpy().reshape(len(column), rank).tolist()
        rows: list[Any] = []
        for begin, end, shape in zip(ends[:-1], ends[1:], shapes):
            self._check(shape, "got")
            rows.append(values[begin:end].reshape(shape))
        return rows

    def column(self, made: Any) -> Any:
        """The Arrow storage of tensors that a function returned: an array with the rows first, or a list of arrays."""
        pyarrow = required("pyarrow", "a function in queries")
        numpy = required("numpy", "tensors of a function")
        if self.is_fixed:
            if getattr(made, "ndim", 1) == 1:
                if len(made) == 0 or not all(getattr(row, "ndim", 0) > 1 for row in made):
                    # Some rows may be null.
                    return pyarrow.array([self._flat(row) for row in made], type=self.storage)
                made = numpy.stack(list(made))
            # Elements of rows that are flat are in the order of the shape.
            if tuple(made.shape[1:]) != (self.storage.list_size,):
                self._check(made.shape[1:], "gave")
            values = pyarrow.array(numpy.ascontiguousarray(made).reshape(-1)).cast(self.value)
            return pyarrow.FixedSizeListArray.from_arrays(values, type=self.storage)
        rows: list[Any] = [None if row is None else numpy.asarray(row) for row in made]
        valid = [row is not None for row in rows]
        for row in rows:
            if row is not None:
                self._check(row.shape, "gave")
        sides = [side for row in rows for side in (row.shape if row is not None else (0,) * len(self.shape))]
        ends = numpy.cumsum([0, *(0 if row is None else row.size for row in rows)])
        if ends[-1] >= 1 << 31:
            raise MemoryError("its tensors have more elements than one array of Arrow")
        flat = [row.reshape(-1) for row in rows if row is not None]
        values = pyarrow.array(numpy.concatenate(flat)).cast(self.value) if flat else pyarrow.array([], self.value)
        data_type, shape_type = self.storage.field("data").type, self.storage.field("shape").type
        data = pyarrow.ListArray.from_arrays(pyarrow.array(ends, pyarrow.int32()), values, type=data_type)
        shapes = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(sides, pyarrow.int32()), type=shape_type)
        mask = None if all(valid) else pyarrow.array([not is_valid for is_valid in valid])
        return pyarrow.StructArray.from_arrays([data, shapes], fields=list(self.storage), mask=mask)

    def check_type(self, type: Any) -> None:
        """Raises an error if an Arrow type is of tensors of another shape than this one, or in another order."""
        pyarrow = required("pyarrow", "a function in queries")
        if not isinstance(type, pyarrow.FixedShapeTensorType):
            return
        order = list(type.permutation or [])
        if tuple(type.shape) != self.shape or order != sorted(order):
            raise ValueError(f"gave {type}, and declares {self!r}")

    def _flat(self, row: Any) -> Any:
        if getattr(row, "ndim", 0) < 2:
            return row
        self._check(row.shape, "gave")
        return row.reshape(-1)

    def _check(self, shape: Sequence[int], verb: str) -> None:
        fits = len(shape) == len(self.shape) and all(own in (None, side) for own, side in zip(self.shape, shape))
        if not fits:
            raise ValueError(f"{verb} a tensor of shape {tuple(shape)}, and declares {self!r}")


_NAME, _METADATA = b"ARROW:extension:name", b"ARROW:extension:metadata"
_VARIABLE = b"arrow.variable_shape_tensor"


def _is_side(side: Any) -> bool:
    return isinstance(side, int) and not isinstance(side, bool) and side > 0
