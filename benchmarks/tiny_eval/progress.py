"""The progress line of a long measurement."""

import sys
from collections.abc import Callable


def progress_bar(name: str, total: int) -> Callable[[int], None]:
    """A function that takes the number of finished items: it draws a bar in a terminal, elsewhere
    one line at the end.
    """

    def show(done: int) -> None:
        if not sys.stdout.isatty() and done < total:
            return
        bar = "#" * (30 * done // total)
        print(f"\r{name:22} [{bar:30}] {done}/{total}", end="\n" if done == total else "")
        sys.stdout.flush()

    return show
