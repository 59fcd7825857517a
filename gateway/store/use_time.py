"""The time by which stored entries expire.

Owns how it goes on between starts. It is not the clock's: that may be wrong at a start by decades
(no battery, no network yet), and is corrected while the gateway runs. Within a process a steady
clock counts. Between two processes the clock's difference counts, as far as it is believable. Must
not know tables.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, final

MAX_PAUSE_S: Final = 86_400.0
"""A pause between two processes counts as at most this long: entries outlive a longer one, or a
clock that is ahead, by their time of expiry less a day.
"""


class Seen(NamedTuple):
    """The time of use when it was last noted, and the clock then, both in Unix seconds."""

    use_time: float
    unix_time: float


def begun(seen: Seen | None, newest: float | None, unix_time: float) -> float:
    """The time of use at a start. `newest` is the latest use in the file, None if it is empty;
    it counts for files in which nothing was `seen` yet.
    """
    if seen is None:
        if newest is None:
            return unix_time
        seen = Seen(newest, newest)
    return seen.use_time + min(max(unix_time - seen.unix_time, 0.0), MAX_PAUSE_S)


@final
class UseTime:
    """Goes on from `start` with a steady clock."""

    def __init__(self, start: float, steady: Callable[[], float]) -> None:
        self._steady = steady
        self._offset = start - steady()

    def now(self) -> float:
        """The time of use, in Unix seconds if the clock was right at the first start."""
        return self._steady() + self._offset
