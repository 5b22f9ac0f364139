"""HTML for notebooks: tables, bars and thumbnails of bounded size. Texts are escaped."""

from __future__ import annotations

import base64
import html
from typing import Iterable, Sequence

TEXT_MAX = 80
_STYLE = (
    "<style>.forebay-look table{border-collapse:collapse}.forebay-look td,.forebay-look th{text-align:left;"
    "padding:.15rem .6rem;vertical-align:top}.forebay-look td.number{text-align:right}.forebay-look th{color:#777;"
    "font-weight:normal}.forebay-look figure{display:inline-block;margin:.3rem;max-width:12rem;vertical-align:top;"
    "overflow-wrap:anywhere;font-size:smaller}.forebay-look img{display:block}</style>"
)


def page(*parts: str) -> str:
    return f'{_STYLE}<div class="forebay-look">{"".join(parts)}</div>'


def text(value: object, width: int = TEXT_MAX) -> str:
    """A value as escaped text of at most `width` characters."""
    return html.escape(shortened(value, width))


def shortened(value: object, width: int = TEXT_MAX) -> str:
    shown = value if isinstance(value, str) else repr(value)
    # Texts of a terminal have one line, and no control characters.
    shown = "".join(character if character.isprintable() else " " for character in shown[: width + 1])
    return shown if len(shown) <= width else f"{shown[: width - 1]}…"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table of cells that are HTML. `numbers` are the columns to align to the right."""
    head = "".join(f"<th>{text(name)}</th>" for name in header)

    def line(cells: Sequence[str]) -> str:
        of = ((' class="number"' if index in numbers else "", cell) for index, cell in enumerate(cells))
        return "<tr>" + "".join(f"<td{mark}>{cell}</td>" for mark, cell in of) + "</tr>"

    return f"<table><tr>{head}</tr>{''.join(line(cells) for cells in rows)}</table>"


def bar(share: float, width: int = 200) -> str:
    """A horizontal bar for a share of 1."""
    length = max(1, round(share * width))
    return f'<svg width="{width}" height="12"><rect width="{length}" height="12" fill="#4a7ebb"/></svg>'


def histogram(counts: Sequence[int], width: int = 160, height: int = 36) -> str:
    """Vertical bars."""
    most = max(counts, default=0)
    if not most:
        return ""
    step = width / len(counts)
    bars = "".join(
        f'<rect x="{index * step:.1f}" y="{height - count / most * height:.1f}" width="{max(step - 1, 1):.1f}" '
        f'height="{count / most * height:.1f}" fill="#4a7ebb"/>'
        for index, count in enumerate(counts)
    )
    return f'<svg width="{width}" height="{height}">{bars}</svg>'


def picture(jpeg: bytes, alt: str) -> str:
    return f'<img alt="{text(alt)}" src="data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}">'


def aligned(rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Rows as lines of text, the first of which is the header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if index in numbers else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(cells, widths))
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(rows[0]), line(["-" * width for width in widths]), *map(line, rows[1:])])
