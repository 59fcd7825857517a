"""Lines for a terminal: cut and padded ones, bars, graphs, tables and lists.

Owns how much room each part gets. A control character becomes `?`, so that a foreign name cannot
move the cursor. Must not know what is shown.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from rich.text import Text

from herma.terminal import printable

STYLES: Final = {
    "soft": "dim",
    "good": "green",
    "info": "cyan",
    "warning": "yellow",
    "critical": "bold red",
    "held": "blue",
    "cached": "cyan",
    "cloud": "magenta",
}
"""The sixteen colours of a terminal's own theme."""
DOT: Final = "●"
HELD: Final = "█"
CACHED: Final = "▒"
FREE: Final = "░"
STEPS: Final = "▁▂▃▄▅▆▇█"
_ASCII: Final = str.maketrans("●▒░…▁▂▃▄▅▆▇█", "*+.~_.-=+*%#")


class Column(NamedTuple):
    """A column of `least` to `most` characters. Without enough room the column with the highest
    `drop` is left out first; a column with 0 stays.
    """

    title: str
    least: int
    most: int
    align: Literal["left", "right"] = "left"
    drop: int = 0


def plain(text: str, style: str = "") -> Text:
    """A line of one style, safe to print."""
    return Text(printable(text), style)


def as_ascii(line: Text) -> Text:
    """The line in ASCII, for a terminal that shows no other characters."""
    shown = line.copy()
    shown.plain = line.plain.translate(_ASCII).encode("ascii", "replace").decode()
    return shown


def cut(line: Text, width: int) -> Text:
    """At most `width` columns of `line`; a longer line ends with "…"."""
    if line.cell_len <= width:
        return line
    kept = line.copy()
    kept.truncate(width, overflow="ellipsis" if width > 0 else "crop")
    return kept


def fit(line: Text, width: int, align: Literal["left", "right"] = "left") -> Text:
    """The line, cut or padded to exactly `width` columns."""
    fitting = cut(line, width).copy()
    fitting.align(align, width)
    return fitting


def bar(width: int, held: float, cached: float) -> Text:
    """A bar of `width` columns; `held` and `cached` are fractions of it, both from its start."""
    first = min(width, max(held > 0, round(width * held)))
    second = min(width, max(first, round(width * cached)))
    style = "critical" if held >= 0.98 else "warning" if held >= 0.85 else "held"
    return Text.assemble(
        (HELD * first, style),
        (CACHED * (second - first), "cached"),
        (FREE * (width - second), "soft"),
    )


def graph(values: Sequence[float | None], width: int) -> str:
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
    last = len(STEPS) - 1
    return "".join(
        " " if one is None else STEPS[min(last, int(one / top * last + 0.5))] for one in parts
    )


def table(columns: Sequence[Column], rows: Iterable[Sequence[Text]], width: int) -> list[Text]:
    """A line of titles, then one for each row, each at most `width` columns. In a row with fewer
    cells than columns the last cell takes the rest of the line.
    """
    shown = _shown(columns, width)
    lines = [_joined(fit(Text(one.title, "bold"), size, one.align) for one, size in shown.items())]
    for row in rows:
        cells: list[Text] = []
        for cell, column in zip(row, columns, strict=False):
            if cell is row[-1] and len(row) < len(columns):
                used = sum([one.cell_len + 1 for one in cells])
                cells.append(cut(cell, width - used))
            elif column in shown:
                cells.append(fit(cell, shown[column], column.align))
        lines.append(_joined(cells))
    return lines


def _shown(columns: Sequence[Column], width: int) -> dict[Column, int]:
    """The columns that fit, and their widths: each gets its share of the rest."""
    shown = {one: one.least for one in columns}
    while sum(shown.values()) + len(shown) - 1 > width:
        worst = max(shown, key=lambda one: one.drop)
        if not worst.drop:
            break
        del shown[worst]
    room = width - sum(shown.values()) - len(shown) + 1
    while grow := [one for one in shown if shown[one] < one.most][: max(0, room)]:
        shown.update({one: shown[one] + 1 for one in grow})
        room -= len(grow)
    return shown


def _joined(cells: Iterable[Text]) -> Text:
    return Text(" ").join(cells)


def flow(title: str, items: Sequence[Text], width: int, most: int) -> list[Text]:
    """The items one after the other behind `title`, in at most `most` lines; items that do not fit
    are counted.
    """
    lines = [Text(title, "bold")]
    for at, item in enumerate(items):
        left = f" +{len(items) - at}"
        piece = Text.assemble("  ", item)
        room = width - len(left) * (len(lines) == most and at < len(items) - 1)
        if lines[-1].cell_len + piece.cell_len > room and lines[-1].cell_len > len(title):
            if len(lines) == most:
                lines[-1] = Text.assemble(lines[-1], (left, "soft"))
                break
            lines.append(Text(" " * len(title)))
        lines[-1] = cut(Text.assemble(lines[-1], piece), width)
    return lines
