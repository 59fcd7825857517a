"""Tables of texts for a terminal.

Owns the width of columns. Must not know what stands in them.
"""

from collections.abc import Sequence


def left_aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row. The first row has all columns; others may end early."""
    columns = range(len(rows[0]))
    widths = [max(len(row[at]) for row in rows if at < len(row)) for at in columns]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
