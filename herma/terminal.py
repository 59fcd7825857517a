"""What a command shows: tables and bars, drawn by rich.

Owns the styles and widths of lines. A terminal gets styles, unless `NO_COLOR` is set, and lines
that break between columns. A file or a program gets plain lines of any width. Serving processes
need none of it, so rich is imported where something is drawn.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, TextIO

from protocol.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

_UNBOUND: Final = 100_000
"""Columns of output that is no terminal: rich wraps no line there."""

_BETWEEN: Final = 2
"""Spaces between two columns of a table."""

_BAR: Final = 20
_SIZES: Final = frozenset({"COLUMNS", "LINES"})

ShowStep = Callable[[str, float, str], None]
"""Show what is done now, how much of it (0 to 1), and more words."""


def console(stream: TextIO, styles: Mapping[str, str] | None = None) -> "Console":
    """The console over `stream`; `styles` are names for styles of rich."""
    from rich.console import Console
    from rich.theme import Theme

    is_terminal = stream.isatty()
    has_styles = is_terminal and not os.environ.get("NO_COLOR")
    # A terminal's own size counts: an exported COLUMNS stays as it was when that changes.
    environ = {name: value for name, value in os.environ.items() if name not in _SIZES}
    return Console(
        _environ=environ if is_terminal else None,
        file=stream,
        force_terminal=is_terminal,
        color_system="auto" if has_styles else None,
        width=None if is_terminal else _UNBOUND,
        theme=Theme(styles or {}),
        markup=False,
        emoji=False,
        highlight=False,
    )


def answer_to(question: str) -> str:
    """The answer of a person. Raises `ConfigError` at the end of the input (Ctrl-D)."""
    try:
        return input(question).strip()
    except EOFError:
        print()
        raise ConfigError("no answer was given, so nothing is done") from None


def printable(text: str) -> str:
    """`text`, which may be a client's, without what would steer a terminal or break a line."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def table_lines(
    rows: Sequence[Sequence[str]], right: range = range(0), spare: Sequence[str] = ()
) -> list[str]:
    """The lines of a table for stdout. The first row is the head; others may end early, and an
    empty one is a rule. The columns in `right` are aligned there. A terminal that is too narrow
    shows no columns of `spare`, the first ones first, until the others fit.
    """
    from rich.rule import Rule
    from rich.table import Table
    from rich.text import Text

    stdout = console(sys.stdout)
    head, *others = _fitting(rows, spare, stdout.width)
    table = Table(box=None, pad_edge=False, padding=(0, _BETWEEN, 0, 0))
    for at, title in enumerate(head):
        table.add_column(Text(title), justify="right" if at in right else "left", overflow="fold")
    for row in others:
        cells: list[Any] = [Text(printable(cell)) for cell in row]
        table.add_row(*cells or [Rule(characters="-", style="") for _ in head])
    with stdout.capture() as drawn:
        stdout.print(table)
    return [line.rstrip() for line in drawn.get().splitlines()]


def _fitting(
    rows: Sequence[Sequence[str]], spare: Sequence[str], columns: int
) -> Sequence[Sequence[str]]:
    """The rows without as many columns of `spare` as keep them from fitting."""
    from rich.cells import cell_len

    for name in spare:
        widths = [max(map(cell_len, cells)) for cells in zip_longest(*rows, fillvalue="")]
        if sum(widths) + _BETWEEN * (len(widths) - 1) <= columns:
            break
        left_out = rows[0].index(name)
        rows = [[cell for at, cell in enumerate(row) if at != left_out] for row in rows]
    return rows


@contextmanager
def step_bar(stream: TextIO) -> Iterator[ShowStep]:
    """A bar at the end of what a terminal shows, for as long as the block lasts; elsewhere none."""
    if not stream.isatty():
        yield lambda *_: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(_BAR),
        TaskProgressColumn(),
        TextColumn("{task.fields[more]}", markup=False),
    )
    with Progress(*columns, console=console(stream), transient=True) as progress:
        task = progress.add_task("", total=1.0, more="")

        def show(what: str, done: float, more: str) -> None:
            progress.update(task, description=what, completed=done, more=more)

        yield show


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Show a terminal on stdout that `what` is done, and since when, for as long as the block
    lasts. The work goes on if the terminal is gone.
    """
    if not sys.stdout.isatty():
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    words = TextColumn("{task.description}", markup=False)
    columns = SpinnerColumn(), words, TimeElapsedColumn()
    progress = Progress(*columns, console=console(sys.stdout), transient=True)
    progress.add_task(what, total=None)
    with suppress(OSError):
        progress.start()
    try:
        yield
    finally:
        with suppress(OSError):
            progress.stop()
