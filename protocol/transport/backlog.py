"""The backlog: frames that wait because a link is busy.

Owns the bound on the frames of one link. Must not know sockets.
"""

from collections import deque
from typing import Final, final

from protocol.errors import LinkFull

MAX_BACKLOG_BYTES: Final = 8 * 2**20
"""Per link: about 130 prompts of 15k tokens, or minutes of token frames."""


@final
class Backlog:
    """A first-in first-out queue of frames, bounded by their bytes."""

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._frames)

    def push(self, frame: bytes) -> None:
        """Append `frame`. Raises `LinkFull`, and keeps the earlier frames, if more than 8 MiB would
        wait. A single frame may be larger, because a model's files take 32 MiB.
        """
        if self._frames and self.num_bytes + len(frame) > MAX_BACKLOG_BYTES:
            raise LinkFull(
                f"{len(self._frames)} frames with {self.num_bytes} bytes wait for this link, "
                f"which does not read; {MAX_BACKLOG_BYTES} bytes are the limit"
            )
        self._frames.append(frame)
        self.num_bytes += len(frame)

    def first(self) -> bytes:
        """The oldest frame, which stays until `pop`."""
        return self._frames[0]

    def pop(self) -> None:
        """Remove the oldest frame, once the link has accepted it."""
        self.num_bytes -= len(self._frames.popleft())

    def clear(self) -> int:
        """Remove all frames and return their number."""
        num_dropped = len(self._frames)
        self._frames.clear()
        self.num_bytes = 0
        return num_dropped
