"""Lines for a log that may stand still: a pipe whose reader is stuck, a terminal that was stopped
with Ctrl-S or whose connection is gone, a full disk.

Owns how one line is written without waiting for a reader: what there is no room for is lost and
counted, and the next line that finds room says how many were. Must not know what the lines say.
"""

import os
import select
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TextIO, final

PATIENCE_MS: Final = 20
"""How long the first line without room waits for a reader that is only slow. Later lines do not
wait, so this is the whole delay.
"""
_PIECE_BYTES: Final = 4096
"""What a pipe takes at once where it says that it has room (PIPE_BUF)."""


def lost_line(num_lost: int) -> str:
    """The line that reports lost lines."""
    return f"({num_lost} lines of the log were lost: it took none)"


@final
class LineWriter:
    """Writes lines to `stream`, past its buffer. `lost` makes the line about those that were lost.

    A terminal and a pipe are opened anew, so that writing there never waits: a terminal with a
    little room left would take the beginning of a line and wait for the rest, and another process
    may fill a pipe behind our look at it. What other processes share with us stays as it is.
    """

    def __init__(self, stream: TextIO, lost: Callable[[int], str] = lost_line) -> None:
        self._stream = stream
        self._lost = lost
        self._num_lost = 0
        self._is_cut = False
        self._own_fd: int | None = None
        with suppress(OSError, ValueError):
            if os.isatty(stream.fileno()) or stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                self._own_fd = os.open(f"/proc/self/fd/{stream.fileno()}", flags)

    def write(self, line: str) -> None:
        """Write `line`, or count it as lost. Waits for `PATIENCE_MS` at most, and never raises."""
        text = f"{self._lost(self._num_lost)}\n{line}" if self._num_lost else line
        data = f"{text}\n".encode(errors="backslashreplace")
        try:
            is_written = self._put(b"\n" + data if self._is_cut else data)
        except (OSError, ValueError):  # a full disk, no reader, a stream that is closed
            is_written = False
        self._num_lost = 0 if is_written else self._num_lost + 1

    def _put(self, data: bytes) -> bool:
        """Write all of `data`; False if the log has no room for all of it."""
        fd = self._stream.fileno() if self._own_fd is None else self._own_fd
        room = select.poll()
        room.register(fd, select.POLLOUT)
        at = 0
        while at < len(data):
            if not room.poll(0 if self._num_lost else PATIENCE_MS):
                return False
            at += os.write(fd, data[at : at + _PIECE_BYTES])
            self._is_cut = at < len(data)
        return True
