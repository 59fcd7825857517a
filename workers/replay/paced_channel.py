"""The channel of an engine whose next step has a time.

Owns the waiting between steps. Must not know what frames say.
"""

from collections.abc import Callable
from typing import final

from workers.loop import Channel


@final
class PacedChannel:
    """A channel on which a glance (`take(0.0)`) lasts until the next step is due, or a frame comes.

    `rest_s` says how long that is.
    """

    def __init__(self, channel: Channel, rest_s: Callable[[], float]) -> None:
        self._channel = channel
        self._rest_s = rest_s

    def take(self, timeout_s: float | None) -> list[tuple[int, bytes]]:
        """All frames that are there; waits for the first up to `timeout_s` (None: for ever)."""
        return self._channel.take(self._rest_s() if timeout_s == 0.0 else timeout_s)

    def send(self, frames: list[tuple[int, bytes]]) -> None:
        """Send frames in order."""
        self._channel.send(frames)
