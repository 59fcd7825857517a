"""The unpublished changes of a cache that may also be cleared as a whole.

Owns the queue of changes, and that a snapshot replaces the changes before it. Must not know where
the digests come from.
"""

from collections.abc import Iterable
from typing import final

from protocol.ids import BlockDigest
from protocol.messages import BlockEvent, BlocksSnapshot
from workers.scheduler import BlockEvents


@final
class BlockChanges:
    """Block events, numbered across all snapshots."""

    __slots__ = ("_events", "_was_cleared")

    def __init__(self) -> None:
        self._events = BlockEvents()
        self._was_cleared = False

    def stored(self, digest: BlockDigest) -> None:
        """A digest came into the cache."""
        self._events.stored(digest)

    def dropped(self, digest: BlockDigest) -> None:
        """A digest left the cache."""
        self._events.dropped(digest)

    def cleared(self) -> None:
        """All held blocks are gone, or unknown."""
        self._was_cleared = True

    def take(self, held: Iterable[BlockDigest]) -> tuple[BlockEvent | BlocksSnapshot, ...]:
        """The changes since the last call, or one snapshot of `held` if `cleared` was called since
        then.
        """
        events = self._events.take()
        if not self._was_cleared:
            return events
        self._was_cleared = False
        return (self.snapshot(held),)

    def snapshot(self, held: Iterable[BlockDigest]) -> BlocksSnapshot:
        """A snapshot of all of `held`."""
        return self._events.snapshot(list(held))
