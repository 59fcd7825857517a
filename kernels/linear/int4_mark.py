"""The mark of a check that did not end: whether the kernel ended it, or others did.

Owns a file's content. Must not know the check, nor what follows from a mark.

A line `begun` stands in the file while a check runs. A check that ends, or that an interrupt ends,
takes it away. A kernel that breaks the card adds a line that says so, and a signal by which a
process dies of its own fault (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL) adds Python's. SIGKILL and
SIGTERM from outside add nothing: then the check is made again, up to `MOST_ENDED` times, because a
process that hangs within the driver is killed from outside too.
"""

import faulthandler
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Final, TextIO

MOST_ENDED: Final = 3
"""After this many checks in a row that were ended from outside, the kernel is not checked any more.
"""

_BEGUN: Final = "begun"


@contextmanager
def held(path: Path) -> Iterator[TextIO]:
    """The file, locked: processes that start together check one after the other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        flock(file, LOCK_EX)
        yield file


def reason(file: TextIO) -> str:
    """Why no check may be made, in one line; "" if one may."""
    file.seek(0)
    lines = [line for line in file.read().splitlines() if line.strip()]
    others = [line for line in lines if line != _BEGUN]
    if others:
        return f"an earlier check did not end: {others[0].strip()}"
    if len(lines) >= MOST_ENDED:
        return f"{len(lines)} earlier checks did not end, but were killed"
    return ""


@contextmanager
def marked(file: TextIO, broken: type[Exception]) -> Iterator[None]:
    """Mark a check while it runs. Its mark stays for `broken`, which is raised on, and where the
    process dies.
    """
    print(_BEGUN, file=file, flush=True)
    was_enabled = faulthandler.is_enabled()
    faulthandler.enable(file, all_threads=False)
    is_broken = False
    try:
        yield
    except broken as error:
        is_broken = True
        print(f"{error}".partition("\n")[0], file=file, flush=True)
        raise
    finally:
        if not is_broken:  # it ended, or an interrupt ended it
            file.truncate(0)
        faulthandler.disable()
        if was_enabled and sys.__stderr__ is not None:
            faulthandler.enable(sys.__stderr__)
