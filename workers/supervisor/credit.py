"""How much a gateway may leave unread.

Owns the account of one link: what was said to the gateway before which pong, and which pong it has
taken. A gateway that falls behind is not waited for until much is unread; then the engine is, and
its tokens wait where they are made. Must not know sockets, clocks or what is said.
"""

from collections import deque
from typing import Final, final

MAX_UNREAD_BYTES: Final = 2 * 2**20
"""Some 70,000 tokens. What a fast engine says between two pings is a fifth of that."""


@final
class Credit:
    """The account of a gateway that has just welcomed this worker."""

    def __init__(self) -> None:
        self._num_sent = 0
        self._num_taken = 0
        self._pongs: deque[tuple[int, int]] = deque()

    @property
    def is_spent(self) -> bool:
        """Whether no more should be said for now."""
        return self._num_sent - self._num_taken > MAX_UNREAD_BYTES

    def sent(self, num_bytes: int) -> None:
        """So much was said."""
        self._num_sent += num_bytes

    def ponged(self, nonce: int) -> None:
        """What was said until now lies before the pong of that number."""
        self._pongs.append((nonce, self._num_sent))

    def taken(self, nonce: int) -> bool:
        """The gateway has taken that pong, and all before it; whether it read something."""
        num_before = self._num_taken
        while self._pongs and self._pongs[0][0] <= nonce:
            self._num_taken = self._pongs.popleft()[1]
        return self._num_taken > num_before
