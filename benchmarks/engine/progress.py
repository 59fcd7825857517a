"""The progress of the benchmark on the terminal.

Owns one line on stderr, redrawn in place; nothing without a terminal.
"""

import sys
from typing import final

_WIDTH = 30


@final
class Progress:
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
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        print(line, flush=True)

    def _draw(self, done: float, name: str) -> None:
        if sys.stderr.isatty():
            bar = "#" * int(_WIDTH * done / self._total)
            text = f"\r\033[K[{bar:{_WIDTH}}] {self._done}/{self._total} {name}"
            print(text, end="", file=sys.stderr, flush=True)
