"""The first rows of a table for people to look at, with thumbnails of pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _html as html
from ._errors import Error
from ._packages import installed, required
from ._reading import Pass
from ._tensors import Tensors

if TYPE_CHECKING:
    from ._session import Pipeline, Session
    from ._types import OnError

SIDE = 128


class Gallery:
    """The first rows: a text in a terminal, and pictures in a notebook."""

    def __init__(self, text: str, html: str):
        self.text, self.html = text, html

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


def gallery(pipeline: Pipeline, rows: int, on_error: OnError | None) -> Gallery:
    preview = pipeline.preview(rows, shuffle=False, on_error=on_error or "skip")
    pyarrow = installed("pyarrow")
    if pyarrow is None:
        # The preview shows decoded images, but no thumbnails of files.
        return Gallery(repr(preview), preview.html)
    first = Pass(pipeline, None, on_error or "skip").table("show", rows)
    figures = [_figure(pipeline.session, first.slice(row, 1), pyarrow) for row in range(first.num_rows)]
    return Gallery(repr(preview), html.page(*figures))


def _figure(session: Session, row: Any, pyarrow: Any) -> str:
    pictures: list[str] = []
    cells: list[tuple[str, str]] = []
    for name in row.column_names:
        column, field = row.column(name).combine_chunks(), row.field(name)
        jpeg = thumbnail(session, column, field, pyarrow)
        if jpeg is not None:
            pictures.append(html.picture(jpeg, name))
        else:
            cells.append((html.text(name, 40), _cell(column, field)))
    lines = "".join(f"<tr><th>{name}</th><td>{cell}</td></tr>" for name, cell in cells)
    return f"<figure>{''.join(pictures)}<table>{lines}</table></figure>"


def _cell(column: Any, field: Any) -> str:
    tensors = Tensors.of(column, field)
    if tensors is not None:
        return html.text(f"{tensors.dtype} {tensors.shapes[0]}")
    value = column[0].as_py()
    return html.text(f"{len(value)} bytes" if isinstance(value, bytes) else value)


def thumbnail(session: Session, column: Any, field: Any, pyarrow: Any) -> bytes | None:
    """A small JPEG file of the only value of a column: an encoded or decoded picture. Returns `None` for others."""
    if column.null_count:
        return None
    types = pyarrow.types
    if types.is_binary(column.type) or types.is_large_binary(column.type) or _is_media(column.type, types):
        shape = _sides(session, column, pyarrow)
        image = "decode_image(picture, fast => true)"
    else:
        column = _fixed(column, field, pyarrow)
        shape = None if column is None else tuple(column.type.shape)[:2]
        image = "picture"
    if shape is None or min(shape) == 0:
        return None
    scale = min(SIDE / max(shape), 1)
    height, width = (max(1, round(side * scale)) for side in shape)
    expression = f"encode_jpeg(resize({image}, height => {height}, width => {width}))"
    jpeg: bytes | None = _of_query(session, column, expression, pyarrow)
    return jpeg


def _is_media(type: Any, types: Any) -> bool:
    return bool(types.is_struct(type) and {"bytes", "path"} <= {field.name for field in type})


def _sides(session: Session, column: Any, pyarrow: Any) -> tuple[int, int] | None:
    sides = [_of_query(session, column, f"image_{side}(picture)", pyarrow) for side in ("height", "width")]
    return None if None in sides else (sides[0], sides[1])


def _fixed(column: Any, field: Any, pyarrow: Any) -> Any:
    """An image tensor of one row as uint8 of a fixed shape; `None` if it is no image."""
    tensors = Tensors.of(column, field)
    if tensors is None:
        return None
    elements, [shape] = tensors.elements, tensors.shapes
    if shape is None or len(shape) != 3 or shape[2] != 3 or elements.null_count:
        return None
    if elements.type != pyarrow.uint8():
        elements = _grey_levels(elements, pyarrow)
    if elements is None:
        return None
    values = pyarrow.FixedSizeListArray.from_arrays(elements, len(elements))
    return pyarrow.ExtensionArray.from_storage(pyarrow.fixed_shape_tensor(pyarrow.uint8(), list(shape)), values)


def _grey_levels(elements: Any, pyarrow: Any) -> Any:
    """Scales numbers to 0 to 255, as for a normalized image."""
    if not (pyarrow.types.is_floating(elements.type) or pyarrow.types.is_integer(elements.type)):
        return None
    compute = required("pyarrow.compute", "show")
    floats = elements.cast("float32", safe=False)
    ends = compute.min_max(floats)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if low is None or not high - low < float("inf") or low != low:
        return None
    scaled = compute.multiply(compute.subtract(floats, low), 255 / ((high - low) or 1))
    return compute.min_element_wise(scaled, 255.0).cast("uint8", safe=False)


def _of_query(session: Session, column: Any, expression: str, pyarrow: Any) -> Any:
    """The value of an expression over the column "picture" of one row, or `None` if it has none."""
    try:
        made = session.table(pyarrow.table({"picture": column})).select(value=expression).pipeline()
        return Pass(made, None).table("show")["value"][0].as_py()
    except Error:
        # Bytes of another kind, or a damaged picture.
        return None
