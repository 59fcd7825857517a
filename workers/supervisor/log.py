"""Log lines on stderr, from the supervisor and its engine.

Owns a bounded queue and the thread that writes it: a full pipe without a reader must not stop the
supervisor's loop, nor a full disk the thread. Lines over the bound, and lines that the stream did
not take, are dropped and counted. Also owns `LogDeduper`, which logs each cause of a lasting
trouble once.
"""

import queue
import sys
import threading
import time
from typing import Final, TextIO, final

from housekeeping.log_lines import LEVELS, USUAL, LogStyle, json_line

_MAX_LINES: Final = 1000
_CLOSE_S: Final = 0.5


@final
class WorkerLog:
    """The log of one worker. Writing never blocks. `close` waits at most half a second for queued
    lines.

    `beside_gateway`: the gateway writes to the same terminal, so only the gateway logs events that
    both see. The engine's lines are written here alone, unless `style` asks for warnings only.
    """

    def __init__(
        self,
        name: str,
        stream: TextIO | None = None,
        *,
        beside_gateway: bool = False,
        style: LogStyle = USUAL,
    ) -> None:
        self.beside_gateway = beside_gateway
        self._name = name
        self._style = style
        self._least = LEVELS.index(style.level)
        self._stream = sys.stderr if stream is None else stream
        self._lines: queue.Queue[str | None] = queue.Queue(_MAX_LINES)
        self._num_dropped = 0
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def info(self, text: str) -> None:
        """Log what the supervisor does."""
        self._say("info", text)

    def warning(self, text: str) -> None:
        """Log what somebody may have to look at."""
        self._say("warning", text)

    def error(self, text: str) -> None:
        """Log what stays as it is until somebody does something."""
        self._say("error", text)

    def info_unless_shared(self, text: str) -> None:
        """Log a line about an event that the gateway logs too; left out on its terminal."""
        if not self.beside_gateway:
            self.info(text)

    def engine_line(self, line: str) -> None:
        """Log a line that the engine wrote."""
        self._put_at("info", f"engine {self._name}", line)

    def close(self) -> None:
        """Write the queued lines, for at most half a second."""
        self._put(None)
        self._thread.join(_CLOSE_S)

    def _say(self, level: str, text: str) -> None:
        self._put_at(level, f"worker {self._name}", text)

    def _put_at(self, level: str, source: str, text: str) -> None:
        if LEVELS.index(level) >= self._least:
            self._put(self._line(level, source, text))

    def _line(self, level: str, source: str, text: str) -> str:
        if self._style.form == "json":
            line = json_line(time.time(), level, source, text)
        else:
            line = f"{_now()} {level.upper()} {source}: {text}"
        return self._style.marked(level, line)

    def _put(self, line: str | None) -> None:
        try:
            if self._num_dropped and line is not None:
                self._lines.put_nowait(f"({self._num_dropped} lines dropped)")
                self._num_dropped = 0
            self._lines.put_nowait(line)
        except queue.Full:
            self._num_dropped += 1

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(line + "\n")
                if self._lines.empty():
                    self._stream.flush()
            except OSError:
                self._num_dropped += 1


def _now() -> str:
    """The time in the format of the gateway's log."""
    seconds, millis = divmod(time.time_ns() // 1_000_000, 1000)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))},{millis:03d}"


FORGET_S: Final = 30.0
"""A cause that did not occur for this long is logged again. Alternating causes are both logged
once.
"""

_MAX_CAUSES: Final = 16


class LogDeduper:
    """Remembers logged causes. `now` is seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._met_at: dict[str, float] = {}

    def is_news(self, cause: str, now: float) -> bool:
        """Record the cause; True if it should be logged now."""
        met_at = self._met_at.pop(cause, None)
        if met_at is None and len(self._met_at) >= _MAX_CAUSES:
            del self._met_at[next(iter(self._met_at))]
        self._met_at[cause] = now
        return met_at is None or now - met_at >= FORGET_S

    def clear(self) -> None:
        """Forget all causes: the trouble is over."""
        self._met_at.clear()
