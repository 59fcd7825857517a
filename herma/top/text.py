"""Lines of styled text for a terminal: pieces, bars, tables, and the codes of styles.

Owns widths and cuts. Every character is one column wide; any other character becomes `?`, so that a
foreign name can neither move the cursor nor break a table. Must not know what is shown.
"""

import itertools
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from protocol.errors import HermaError

_STYLES: Final = {
    "": "",
    "bold": "1",
    "soft": "2",
    "good": "32",
    "info": "36",
    "warning": "33",
    "critical": "1;31",
    "held": "34",
    "cached": "36",
    "cloud": "35",
}
"""The sixteen colours of a terminal's own theme."""


class TextPiece(NamedTuple):
    """Text in one style; see `_STYLES`."""

    text: str
    style: str = ""


Line = tuple[TextPiece, ...]


class Marks(NamedTuple):
    """The characters of dots, bars and graphs."""

    dot: str = "●"
    held: str = "█"
    cached: str = "▒"
    free: str = "░"
    more: str = "…"
    steps: str = "▁▂▃▄▅▆▇█"


ASCII_MARKS: Final = Marks("*", "#", "+", ".", "~", "_.-=+*%#")


class Column(NamedTuple):
    """A column of `least` to `most` characters. Without enough room the column with the highest
    `drop` is left out first; a column with 0 stays.
    """

    title: str
    least: int
    most: int
    is_right: bool = False
    drop: int = 0


class TextRow(NamedTuple):
    """Cells. If there are fewer cells than columns, the last cell takes the rest of the line."""

    cells: tuple[Line, ...]


def plain(text: str, style: str = "") -> Line:
    """A line of one piece, safe to print."""
    return (TextPiece(printable(text), style),)


def printable(text: str) -> str:
    """`text` with `?` for each character that is not one column wide."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if _is_single(one) else "?" for one in text)


def _is_single(character: str) -> bool:
    return (
        character.isprintable()
        and not unicodedata.combining(character)
        and unicodedata.east_asian_width(character) not in {"W", "F"}
        and unicodedata.category(character) not in {"Cf", "Mn", "Me"}
    )


def length(line: Line) -> int:
    return sum([len(piece.text) for piece in line])


def cut(line: Line, width: int, more: str = "…") -> Line:
    """At most `width` columns of `line`; a longer line ends with `more`."""
    if length(line) <= width:
        return line
    room, kept = max(0, width - len(more)), []
    for piece in line:
        kept.append(piece._replace(text=piece.text[:room]))
        room -= len(kept[-1].text)
    return (*[piece for piece in kept if piece.text], TextPiece(more[:width], "soft"))


def fit(line: Line, width: int, marks: Marks, *, is_right: bool = False) -> Line:
    """The line, cut or padded to exactly `width` columns."""
    line = cut(line, width, marks.more)
    rest = TextPiece(" " * (width - length(line)))
    return (rest, *line) if is_right else (*line, rest)


def bar(width: int, held: float, cached: float, marks: Marks) -> Line:
    """A bar of `width` columns; `held` and `cached` are fractions of it, both from its start."""
    first = min(width, max(held > 0, round(width * held)))
    second = min(width, max(first, round(width * cached)))
    style = "critical" if held >= 0.98 else "warning" if held >= 0.85 else "held"
    return (
        TextPiece(marks.held * first, style),
        TextPiece(marks.cached * (second - first), "cached"),
        TextPiece(marks.free * (width - second), "soft"),
    )


def graph(values: Sequence[float | None], width: int, marks: Marks) -> str:
    """`width` columns for `values`: each shows the largest value of its part, scaled to the largest
    of all. Parts without a value are blank.
    """
    if not values or width <= 0:
        return " " * max(0, width)
    edges = [at * len(values) // width for at in range(width + 1)]
    parts = [
        max((one for one in values[a : max(b, a + 1)] if one is not None), default=None)
        for a, b in itertools.pairwise(edges)
    ]
    top = max((one for one in parts if one is not None), default=0.0) or 1.0
    last = len(marks.steps) - 1
    return "".join(
        " " if one is None else marks.steps[min(last, int(one / top * last + 0.5))] for one in parts
    )


def table(
    columns: Sequence[Column], rows: Iterable[TextRow], width: int, marks: Marks
) -> list[Line]:
    """A line of titles, then one for each row, each at most `width` columns."""
    shown, widths = _fitting(columns, width)
    lines = [
        _joined(
            [
                fit((TextPiece(one.title, "bold"),), size, marks, is_right=one.is_right)
                for one, size in zip(shown, widths, strict=True)
            ]
        )
    ]
    places = [columns.index(one) for one in shown]
    for row in rows:
        cells, used = [], 0
        for at, column, size in zip(places, shown, widths, strict=True):
            if at >= len(row.cells) - 1 and len(row.cells) < len(columns):
                cells.append(cut(row.cells[-1], width - used, marks.more))
                break
            cells.append(fit(row.cells[at], size, marks, is_right=column.is_right))
            used += size + 1
        lines.append(_joined(cells))
    return lines


def _fitting(columns: Sequence[Column], width: int) -> tuple[list[Column], list[int]]:
    """The columns that fit, and their widths: each gets its share of the rest."""
    shown = list(columns)
    while sum(one.least + 1 for one in shown) - 1 > width:
        worst = max(shown, key=lambda one: one.drop)
        if not worst.drop:
            break
        shown.remove(worst)
    widths = [one.least for one in shown]
    room = width - sum(widths) - len(widths) + 1
    while room > 0:
        grow = [at for at, one in enumerate(shown) if widths[at] < one.most]
        if not grow:
            break
        for at in grow[:room]:
            widths[at] += 1
        room -= len(grow[:room])
    return shown, widths


def _joined(cells: Iterable[Line]) -> Line:
    line: list[TextPiece] = []
    for cell in cells:
        line += [*([TextPiece(" ")] if line else []), *cell]
    return tuple(line)


def flow(title: str, items: Sequence[Line], width: int, most: int, marks: Marks) -> list[Line]:
    """The items one after the other behind `title`, in at most `most` lines; items that do not fit
    are counted.
    """
    indent = TextPiece(" " * len(title))
    lines: list[Line] = [(TextPiece(title, "bold"),)]
    for at, item in enumerate(items):
        left = f" +{len(items) - at}"
        piece: Line = (TextPiece("  "), *item)
        room = width - len(left) * (len(lines) == most and at < len(items) - 1)
        if length(lines[-1]) + length(piece) > room and length(lines[-1]) > len(title):
            if len(lines) == most:
                lines[-1] = (*lines[-1], TextPiece(left, "soft"))
                break
            lines.append((indent,))
        lines[-1] = cut((*lines[-1], *piece), width, marks.more)
    return lines


def as_plain(lines: Iterable[Line]) -> str:
    """The text alone, without trailing blanks."""
    return "".join("".join(piece.text for piece in line).rstrip() + "\n" for line in lines)


def as_ansi(line: Line) -> str:
    """The line with the ECMA-48 sequences of its styles."""
    parts = []
    for text, style in line:
        if style not in _STYLES:
            raise HermaError(f"no such style: {style}")
        code = _STYLES[style]
        parts.append(f"\x1b[{code}m{text}\x1b[0m" if code else text)
    return "".join(parts)
