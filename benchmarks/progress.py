"""Progress on the terminal, drawn by rich: a bar on stderr for a list of tests, and one for a count
on stdout.

Owns when a bar is drawn. It is drawn when something begins or ends, never by a thread of its own,
which would run beside what is measured.
"""

import atexit
import sys
from collections.abc import Callable
from typing import Any, TextIO, final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from herma.terminal import console

_WIDTH = 30


def _bar(stream: TextIO, *, is_transient: bool) -> Progress:
    name = TextColumn("{task.description}", markup=False)
    bar = Progress(
        BarColumn(_WIDTH),
        MofNCompleteColumn(),
        name,
        console=console(stream),
        auto_refresh=False,
        transient=is_transient,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    atexit.register(bar.stop)  # a run that is cut off leaves the cursor as it was
    return bar


@final
class ProgressBar:
    """A bar of `total` steps; nothing where stderr is no terminal."""

    def __init__(self, total: int) -> None:
        self._bar = _bar(sys.stderr, is_transient=True) if sys.stderr.isatty() else None
        self._task: Any = self._bar and self._bar.add_task("", total=max(1, total))

    def begin(self, name: str) -> None:
        """Show `name` as the running test."""
        self._draw(name, 0)

    def end(self) -> None:
        """One more step is done."""
        self._draw("", 1)

    def say(self, line: str) -> None:
        """Print a line in the place of the bar, which comes back with the next step."""
        self._wipe()
        print(line, flush=True)

    def note(self, line: str) -> None:
        """Like `say`, for a line that is not part of the result: on stderr."""
        self._wipe()
        print(line, file=sys.stderr, flush=True)

    def _wipe(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _draw(self, name: str, num_done: int) -> None:
        if self._bar is not None:
            self._bar.start()
            self._bar.update(self._task, advance=num_done, description=name, refresh=True)


def progress_bar(name: str, total: int) -> Callable[[int], None]:
    """A function that takes the number of finished items: it draws a bar in a terminal, elsewhere
    one line at the end.
    """
    if not sys.stdout.isatty():
        return lambda done: _say_whole(name, total) if done == total else None
    bar = _bar(sys.stdout, is_transient=False)
    task = bar.add_task(name, total=total)

    def show(done: int) -> None:
        bar.start()
        bar.update(task, completed=done, refresh=True)
        if done == total:
            bar.stop()

    return show


def _say_whole(name: str, total: int) -> None:
    print(f"{name:22} [{'#' * _WIDTH}] {total}/{total}", flush=True)
