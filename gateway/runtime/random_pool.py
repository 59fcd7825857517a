"""Random bytes in small pieces, as ids and seeds take them.

Owns the rest of what was drawn at once: a system call for each piece takes ten times as long as a
slice, and every request asks two or three times. Not for secrets: what was given away stays in
memory for a while. Must not know what the bytes are for.
"""

import os
from collections.abc import Callable
from typing import Final, final

POOL_BYTES: Final = 4096


@final
class RandomPool:
    """Each byte of `source` is given away once. A process that forks has to make its own after."""

    __slots__ = ("_at", "_pool", "_source")

    def __init__(self, source: Callable[[int], bytes] = os.urandom) -> None:
        self._source = source
        self._pool = bytes(POOL_BYTES)
        self._at = POOL_BYTES

    def __repr__(self) -> str:
        return f"<RandomPool {POOL_BYTES - self._at} bytes left>"

    def draw(self, num_bytes: int) -> bytes:
        """So many bytes."""
        start, end = self._at, self._at + num_bytes
        if end > POOL_BYTES:
            if num_bytes > POOL_BYTES:
                return self._source(num_bytes)
            self._pool, start, end = self._source(POOL_BYTES), 0, num_bytes
        self._at = end
        return self._pool[start:end]
