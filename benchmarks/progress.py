"""Progress on the terminal: a bar on stderr for a list of tests, and one for a count on stdout."""

import sys
from collections.abc import Callable
from typing import final

_WIDTH = 30


@final
class ProgressBar:
    """A bar of `total` steps."""

    def __init__(self, total: int) -> None:
        self._total = max(1, total)
        self._done = 0

    def begin(self, name: str) -> None:
        """Show `name` as the running test."""
        self._draw(self._done, name)

    def end(self) -> None:
        """One more step is done."""
        self._done += 1
        self._draw(self._done, "")

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._wipe()
        print(line, flush=True)

    def note(self, line: str) -> None:
        """Print a line above the bar that is not part of the result: on stderr."""
        self._wipe()
        print(line, file=sys.stderr, flush=True)

    def _wipe(self) -> None:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def _draw(self, done: float, name: str) -> None:
        if sys.stderr.isatty():
            bar = "#" * int(_WIDTH * done / self._total)
            text = f"\r\033[K[{bar:{_WIDTH}}] {self._done}/{self._total} {name}"
            print(text, end="", file=sys.stderr, flush=True)


def progress_bar(name: str, total: int) -> Callable[[int], None]:
    """A function that takes the number of finished items: it draws a bar in a terminal, elsewhere
    one line at the end.
    """

    def show(done: int) -> None:
        if not sys.stdout.isatty() and done < total:
            return
        bar = "#" * (_WIDTH * done // total)
        print(f"\r{name:22} [{bar:{_WIDTH}}] {done}/{total}", end="\n" if done == total else "")
        sys.stdout.flush()

    return show
