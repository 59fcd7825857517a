"""What changed in the prefix cache, in order and numbered without gaps.

Owns the numbers of block events. Must not know blocks, only their digests.
"""

from typing import final

from protocol.ids import BlockDigest
from protocol.messages import BlocksDropped, BlocksSnapshot, BlocksStored

BlockEvent = BlocksStored | BlocksDropped


@final
class BlockEvents:
    """Changes of one kind in a row become one event; `seq` counts from 1."""

    __slots__ = ("_digests", "_kind", "_pending", "_seq")

    def __init__(self) -> None:
        self._seq = 0
        self._pending: list[BlockEvent] = []
        self._kind: type[BlocksStored] | type[BlocksDropped] = BlocksStored
        self._digests: list[BlockDigest] = []

    def stored(self, digest: BlockDigest) -> None:
        """A digest came into the cache."""
        if self._kind is not BlocksStored:
            self._close()
            self._kind = BlocksStored
        self._digests.append(digest)

    def dropped(self, digest: BlockDigest) -> None:
        """A digest left the cache."""
        if self._kind is not BlocksDropped:
            self._close()
            self._kind = BlocksDropped
        self._digests.append(digest)

    def take(self) -> tuple[BlockEvent, ...]:
        """The events since the last call, oldest first."""
        self._close()
        taken = tuple(self._pending)
        self._pending.clear()
        return taken

    def snapshot(self, digests: list[BlockDigest]) -> BlocksSnapshot:
        """All `digests` of the cache; events not taken yet are counted in, and not repeated."""
        self._close()
        return BlocksSnapshot(self._seq, b"".join(digests))

    def _close(self) -> None:
        if self._digests:
            self._seq += 1
            self._pending.append(self._kind(self._seq, b"".join(self._digests)))
            self._digests.clear()
