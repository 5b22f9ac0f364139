"""Columns of tensors in Arrow: their elements and shapes."""

from __future__ import annotations

from typing import Any, Iterator, Sequence

from ._packages import required


class Tensors:
    """A column of tensors. With one shape for all rows, `shape` is it. Otherwise each row has its own."""

    def __init__(self, data: Any, shape: Sequence[int] | None, shapes: Any, validity: list[bool], dtype: str):
        # A list of numbers in each row.
        self.data = data
        self.shape = None if shape is None else tuple(shape)
        self._shapes, self._validity = shapes, validity
        # The type of the elements. Arrow has no bfloat16, whose bits are uint16 in `data`.
        self.dtype = dtype

    @staticmethod
    def of(column: Any, field: Any) -> Tensors | None:
        """Returns the tensors of an Arrow array with its `field`, or `None` if it holds other values. Some versions of
        pyarrow give tensors of variable shape as a struct."""
        pyarrow = required("pyarrow", "a column of tensors")
        is_extension = isinstance(column, pyarrow.ExtensionArray)
        storage = column.storage if is_extension else column
        types, validity = pyarrow.types, column.is_valid().to_pylist()
        if is_extension and types.is_fixed_size_list(storage.type):
            shape = getattr(column.type, "shape", None)
            return None if shape is None else Tensors(storage, shape, None, validity, _dtype(storage, field))
        if types.is_struct(storage.type) and [field.name for field in storage.type] == ["data", "shape"]:
            data, shapes = storage.field("data"), storage.field("shape")
            if types.is_list(data.type) and types.is_fixed_size_list(shapes.type):
                return Tensors(data, None, shapes, validity, _dtype(data, field))
        return None

    @property
    def elements(self) -> Any:
        """The elements of all rows that are not null; those of bfloat16 as float32."""
        elements = self.data.filter(_mask(self._validity)).flatten()
        if self.dtype != "bfloat16":
            return elements
        # A bfloat16 is the upper half of a float32.
        pyarrow = required("pyarrow", "a column of tensors")
        compute = required("pyarrow.compute", "a column of tensors")
        return compute.shift_left(elements.cast("uint32"), pyarrow.scalar(16, "uint32")).view("float32")

    @property
    def shapes(self) -> list[tuple[int, ...] | None]:
        """The shape of each row, `None` for a null."""
        rows: list[Any] = [self.shape] * len(self._validity) if self._shapes is None else self._shapes.to_pylist()
        return [tuple(row) if valid else None for row, valid in zip(rows, self._validity)]

    def arrays(self) -> Iterator[Any]:
        """The rows as NumPy arrays, with `None` for nulls."""
        required("numpy", "a column of tensors as arrays")
        bfloat16 = required("ml_dtypes", "bfloat16 in NumPy").bfloat16 if self.dtype == "bfloat16" else None
        for row, shape in zip(self.data, self.shapes):
            array = None if shape is None else row.values.to_numpy(zero_copy_only=False).reshape(shape)
            yield array if array is None or bfloat16 is None else array.view(bfloat16)


def _dtype(data: Any, field: Any) -> str:
    metadata: dict[bytes, bytes] = field.metadata or {}
    named = metadata.get(b"forebay:dtype")
    return str(data.type.value_type) if named is None else named.decode()


def _mask(validity: list[bool]) -> Any:
    return required("pyarrow", "a column of tensors").array(validity, "bool")
