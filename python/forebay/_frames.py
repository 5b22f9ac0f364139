"""Rows in memory: what `forebay.table` takes besides paths, as Arrow data."""

from __future__ import annotations

import os
from typing import Any, Iterable, Mapping, Sequence, cast

from ._errors import InvalidError
from ._packages import required

ACCEPTED = (
    "give a path or URL, a list of paths, a dict of arrays, a list of dicts, a datasets.Dataset, or Arrow data: "
    "anything with __arrow_c_stream__, such as a pyarrow table, a Polars or a pandas frame"
)


def arrow_of(source: Any) -> Any:
    """Returns an object in Arrow's PyCapsule interface with the rows of `source`."""
    if _is_arrow(source):
        return source
    if _is_of_datasets(source):
        return _of_dataset(source)
    if isinstance(source, Mapping):
        return _of_columns(cast("Mapping[Any, Any]", source))
    if _are_dicts(source):
        return _of_columns(_columns_of(cast("Sequence[Mapping[Any, Any]]", source)))
    raise InvalidError(f"a table cannot be made of {type(source).__name__}", ACCEPTED)


def are_rows(source: Any) -> bool:
    """Whether `source` holds rows itself, and does not name them."""
    return _is_arrow(source) or isinstance(source, Mapping) or _is_of_datasets(source) or _are_dicts(source)


def are_paths(source: Any) -> bool:
    """Whether `source` is a list or tuple of paths."""
    if not isinstance(source, (list, tuple)):
        return False
    items = cast("Sequence[Any]", source)
    return bool(items) and all(isinstance(item, (str, os.PathLike)) for item in items)


def _are_dicts(source: Any) -> bool:
    """Whether `source` is a list or tuple of rows, each a dict."""
    if not isinstance(source, (list, tuple)):
        return False
    items = cast("Sequence[Any]", source)
    return bool(items) and all(isinstance(item, Mapping) for item in items)


def _columns_of(rows: Sequence[Mapping[Any, Any]]) -> dict[Any, list[Any]]:
    """The columns of rows that are dicts, in the order of their first occurrence. A missing value is null."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _is_arrow(source: Any) -> bool:
    return hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__")


# Dicts of arrays


def _of_columns(columns: Mapping[Any, Any]) -> Any:
    """A dict of columns: NumPy, torch and JAX arrays, pyarrow arrays, pandas and Polars series, and lists. An array of
    several dimensions, and a list of such arrays of one shape, is a column of tensors."""
    pyarrow = required("pyarrow", "a table of a dict")
    if not columns:
        raise InvalidError("a table needs at least one column", ACCEPTED)
    made: dict[str, Any] = {}
    for name, column in columns.items():
        if not isinstance(name, str):
            raise InvalidError(f"names of columns must be strings, got {name!r}")
        try:
            made[name] = _column(column, pyarrow)
        except (TypeError, ValueError, OverflowError, pyarrow.ArrowException) as error:
            raise InvalidError(f'the column "{name}" cannot be made of {type(column).__name__}: {error}') from None
    lengths = {name: len(column) for name, column in made.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f'"{name}" has {length}' for name, length in lengths.items())
        raise InvalidError(f"all columns must have the same number of rows, and {shown}")
    return pyarrow.table(made)


def _column(column: Any, pyarrow: Any) -> Any:
    if isinstance(column, (pyarrow.Array, pyarrow.ChunkedArray)):
        return column
    if not hasattr(column, "shape"):
        # Sets have no order, and the rows of a dict would be its keys.
        if isinstance(column, (str, bytes, Mapping, set, frozenset)) or not isinstance(column, Iterable):
            raise TypeError("it is not an array or a list")
        items = list(cast("Iterable[Any]", column))
        are_arrays = bool(items) and all(hasattr(item, "shape") and not _is_scalar(item) for item in items)
        return _of_arrays(items, pyarrow) if are_arrays else pyarrow.array(items)
    if len(column.shape) == 1 and type(column).__module__.partition(".")[0] == "pandas":
        # NumPy has no nulls among integers, and no zones of times.
        made = pyarrow.array(column, from_pandas=True)
        return made.dictionary_decode() if pyarrow.types.is_dictionary(made.type) else made
    if len(column.shape) == 1 and hasattr(column, "__arrow_c_stream__"):
        return pyarrow.chunked_array(column)
    return _of_array(_numpy(column), pyarrow)


def _is_scalar(item: Any) -> bool:
    return isinstance(item, required("numpy", "a table of arrays").generic)


def _numpy(column: Any) -> Any:
    """An array of any package as an array of NumPy, masked if `column` is."""
    numpy = required("numpy", "a table of arrays")
    if str(column.dtype if hasattr(column, "dtype") else "").removeprefix("torch.") == "bfloat16":
        floats = "float()" if hasattr(column, "detach") else 'astype("float32")'
        raise TypeError(f"NumPy has no bfloat16: give column.{floats}, and cast_tensor(x, type => 'bfloat16') in SQL")
    if hasattr(column, "detach"):
        # A torch tensor, perhaps on a GPU.
        column = column.detach().cpu()
    elif hasattr(column, "to_numpy"):
        column = column.to_numpy()
    return numpy.asanyarray(column) if numpy.ma.isMaskedArray(column) else numpy.asarray(column)


def _of_arrays(items: list[Any], pyarrow: Any) -> Any:
    """A list of arrays: tensors if they have several dimensions, and otherwise lists of any lengths."""
    numpy = required("numpy", "a table of arrays")
    arrays = [_numpy(item) for item in items]
    if any(numpy.ma.is_masked(array) for array in arrays):
        raise ValueError("tensors and lists have no masks")
    if all(array.ndim == 1 for array in arrays):
        return pyarrow.array([_native(array) for array in arrays])
    kinds = list(dict.fromkeys(f"{array.dtype} {array.shape}" for array in arrays))
    if len(kinds) > 1:
        raise ValueError(f"its arrays must have one type and shape, and it has {kinds[0]} and {kinds[1]}")
    return _of_array(numpy.stack(arrays), pyarrow)


def _of_array(array: Any, pyarrow: Any) -> Any:
    if array.ndim == 0:
        raise ValueError("it has no rows")
    numpy = required("numpy", "a table of arrays")
    mask = numpy.ma.getmaskarray(array) if numpy.ma.is_masked(array) else None
    array = _native(numpy.ma.getdata(array))
    if array.ndim == 1:
        if array.dtype.kind == "S":
            # pyarrow ends the bytes of such an array at the first zero.
            rows = array.tolist()
            return pyarrow.array(rows, pyarrow.binary(), mask=mask)
        return pyarrow.array(array, mask=mask)
    if mask is not None:
        raise ValueError("tensors have no masks: give array.filled(…)")
    if 0 in array.shape[1:]:
        raise ValueError(f"its rows have the shape {array.shape[1:]}, which holds no elements")
    values = pyarrow.array(array.reshape(-1))
    return _tensors(values, values.type, array.shape[1:], pyarrow)


# Units of NumPy's times that Arrow lacks.
_UNITS = {"M": {"Y": "D", "M": "D", "W": "D", "h": "s", "m": "s"}, "m": {"W": "s", "D": "s", "h": "s", "m": "s"}}


def _native(array: Any) -> Any:
    """The array in this machine's byte order, and times in a unit that Arrow has."""
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    units = _UNITS.get(array.dtype.kind, {})
    unit = required("numpy", "a table of arrays").datetime_data(array.dtype) if units else ("", 1)
    if unit[0] in units:
        return array.astype(f"{array.dtype.kind}8[{units[unit[0]]}]")
    return array


def _tensors(values: Any, type: Any, shape: Sequence[int], pyarrow: Any) -> Any:
    size = 1
    for side in shape:
        size *= side
    storage = pyarrow.FixedSizeListArray.from_arrays(values, size)
    return pyarrow.ExtensionArray.from_storage(pyarrow.fixed_shape_tensor(type, list(shape)), storage)


# Data sets of Hugging Face


def _is_of_datasets(source: Any) -> bool:
    return any(kind.__module__.partition(".")[0] == "datasets" for kind in type(source).__mro__)


def _of_dataset(dataset: Any) -> Any:
    """The rows of a `datasets.Dataset` in its order, after `select`, `shuffle` and `sort`. The session then holds a
    copy of them in memory."""
    if isinstance(dataset, Mapping):
        parts = cast("Mapping[str, Any]", dataset)
        names = ", ".join(map(repr, parts))
        raise InvalidError(f"a {type(parts).__name__} has several data sets: {names}", 'name one: data["train"]')
    if not hasattr(dataset, "with_format") or not hasattr(dataset, "num_rows"):
        raise InvalidError(
            f"a {type(dataset).__name__} has no rows in memory or on disk",
            "give the files: forebay.table(\"folder/*.parquet\"), or a datasets.Dataset",
        )
    pyarrow = required("pyarrow", "a table of a datasets.Dataset")
    rows = dataset.with_format("arrow")[:]
    columns = [_of_feature(name, column, pyarrow) for name, column in zip(rows.column_names, rows.columns)]
    return pyarrow.table(columns, names=rows.column_names)


def _of_feature(name: str, column: Any, pyarrow: Any) -> Any:
    type = column.type
    names: list[str] = [field.name for field in type] if pyarrow.types.is_struct(type) else []
    if "bytes" in names and "path" in names:
        # Media: the bytes, or the path of a file.
        compute = required("pyarrow.compute", "a table of a datasets.Dataset")
        for chunk in column.chunks:
            outside = compute.and_(chunk.field("bytes").is_null(), chunk.field("path").is_valid())
            outside = compute.and_(outside, chunk.is_valid())
            if outside.true_count:
                first = chunk.filter(outside)[0]["path"].as_py()
                folder = os.path.dirname(first) or "."
                raise InvalidError(
                    f'the column "{name}" names files whose bytes are not in the data set, such as "{first}"',
                    f'read the files themselves: forebay.table("{folder}/"), or store them in the data set: '
                    "datasets.table.embed_table_storage(dataset.data.table)",
                )
    shape = getattr(type, "shape", None)
    if isinstance(type, pyarrow.ExtensionType) and isinstance(shape, (tuple, list)) and None not in shape:
        sides = cast("Sequence[int]", shape)
        storage = type.storage_type
        for _ in sides:
            storage = storage.value_type
        chunks = [_of_lists(name, chunk, sides, pyarrow) for chunk in column.chunks]
        return pyarrow.chunked_array(chunks, type=pyarrow.fixed_shape_tensor(storage, list(sides)))
    return column


def _of_lists(name: str, chunk: Any, shape: Sequence[int], pyarrow: Any) -> Any:
    """Nested lists as tensors of one shape, and nulls."""
    compute = required("pyarrow.compute", "a table of a datasets.Dataset")
    values = chunk.storage.drop_null()
    for side in shape:
        if values.null_count or compute.any(compute.not_equal(compute.list_value_length(values), side)).as_py():
            raise InvalidError(f'the column "{name}" has an array of another shape than its feature, {tuple(shape)}')
        values = values.flatten()
    tensors = _tensors(values, values.type, shape, pyarrow)
    if not chunk.null_count:
        return tensors
    # Each row's place among those that are not null.
    places = compute.subtract(compute.cumulative_sum(chunk.is_valid().cast("int64")), 1)
    rows = tensors.storage.take(compute.if_else(chunk.is_valid(), places, None))
    return pyarrow.ExtensionArray.from_storage(tensors.type, rows)
