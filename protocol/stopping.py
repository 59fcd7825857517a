"""A process that ends when it is told to, in good order.

Owns SIGINT and SIGTERM of the processes that serve, from the first word to the end of the process.
Must not know what there is to finish.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import trio

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping(stop: Callable[[], None], hurry: Callable[[int], None]) -> Iterator[None]:
    """For the length of the block SIGINT or SIGTERM calls `stop`, and the same again `hurry` with
    its number, both in trio's loop. The same, because Ctrl-C brings a process that has a parent
    both: one from the terminal, one from the parent.

    After the block both are ignored for good: whoever uses this is on the way out, its exit status
    is decided, and a signal could only tear what is being closed.
    """
    token = trio.lowlevel.current_trio_token()
    seen: set[int] = set()

    def heard(number: int) -> None:
        if number in seen:
            hurry(number)
        seen.add(number)
        stop()

    def handler(number: int, _frame: FrameType | None) -> None:
        token.run_sync_soon(heard, number)

    for each in _SIGNALS:
        signal.signal(each, handler)
    try:
        yield
    finally:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
