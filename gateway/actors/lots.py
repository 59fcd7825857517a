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
class Lots:
    """Each byte of `source` is given away once. A process that forks has to make its own after."""

    __slots__ = ("_at", "_pool", "_source")

    def __init__(self, source: Callable[[int], bytes] = os.urandom) -> None:
        self._source = source
        self._pool = b""
        self._at = 0

    def __repr__(self) -> str:
        return f"<Lots {len(self._pool) - self._at} bytes left>"

    def draw(self, num_bytes: int) -> bytes:
        """So many bytes."""
        start = self._at
        piece = self._pool[start : start + num_bytes]
        if len(piece) == num_bytes:
            self._at = start + num_bytes
            return piece
        if num_bytes > POOL_BYTES:
            return self._source(num_bytes)
        self._pool, self._at = self._source(POOL_BYTES), num_bytes
        return self._pool[:num_bytes]
