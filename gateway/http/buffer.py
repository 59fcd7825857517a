"""Bytes on their way to one client.

Owns the bounded buffer between the events of a turn and the writes to its client. Must not know
what the bytes mean. Several chunks that wait together leave together: one write, one wake-up.
"""

import trio


class ChunkBuffer:
    """Chunks go in without waiting and come out joined."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._chunks: list[bytes] = []
        self._num_bytes = 0
        self._changed = trio.Event()
        self.closed = False

    def __len__(self) -> int:
        return self._num_bytes

    def put(self, chunk: bytes) -> bool:
        """Append `chunk`; False, and nothing is changed, if it would go over the bound. A single
        chunk over the bound is taken when nothing else waits.
        """
        if self._num_bytes and self._num_bytes + len(chunk) > self._max_bytes:
            return False
        self._append(chunk)
        return True

    def close(self, last: bytes = b"") -> None:
        """Append `last`, whatever its size; nothing may follow."""
        self._append(last)
        self.closed = True
        self._changed.set()

    def take(self) -> bytes:
        """All that waits."""
        joined = b"".join(self._chunks)
        self._chunks.clear()
        self._num_bytes = 0
        return joined

    async def wait(self) -> None:
        """Return once there is something to take, or the end."""
        while not self._chunks and not self.closed:
            self._changed = trio.Event()
            await self._changed.wait()

    def _append(self, chunk: bytes) -> None:
        if chunk:
            self._chunks.append(chunk)
            self._num_bytes += len(chunk)
            self._changed.set()
