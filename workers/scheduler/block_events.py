"""What changed in the prefix cache, in order and numbered without gaps.

Owns the numbers of block events. Must not know blocks nor states, only their digests.
"""

from collections.abc import Callable, Iterable
from typing import final

from protocol.ids import BlockDigest
from protocol.messages import (
    BlockEvent,
    BlocksDropped,
    BlocksSnapshot,
    BlocksStored,
    StatesForgotten,
    StatesSaved,
)

_Kind = Callable[[int, bytes], BlockEvent]


def _on_host(seq: int, digests: bytes) -> BlocksStored:
    return BlocksStored(seq, digests, "host")


@final
class BlockEvents:
    """Changes of one kind in a row become one event; `seq` counts from 1."""

    __slots__ = ("_digests", "_kind", "_pending", "_seq")

    def __init__(self) -> None:
        self._seq = 0
        self._pending: list[BlockEvent] = []
        self._kind: _Kind = BlocksStored
        self._digests: list[BlockDigest] = []

    def stored(self, digest: BlockDigest) -> None:
        """A digest came into the cache, or from the host to the card."""
        self._add(BlocksStored, digest)

    def left_card(self, digest: BlockDigest) -> None:
        """A digest is on the host alone."""
        self._add(_on_host, digest)

    def dropped(self, digest: BlockDigest) -> None:
        """A digest left the cache."""
        self._add(BlocksDropped, digest)

    def saved(self, digest: BlockDigest) -> None:
        """The state behind a block is kept."""
        self._add(StatesSaved, digest)

    def forgotten(self, digest: BlockDigest) -> None:
        """The state behind a block is not kept any more."""
        self._add(StatesForgotten, digest)

    def take(self) -> tuple[BlockEvent, ...]:
        """The events since the last call, oldest first."""
        self._close()
        taken = tuple(self._pending)
        self._pending.clear()
        return taken

    def snapshot(
        self,
        digests: Iterable[BlockDigest],
        states: Iterable[BlockDigest] = (),
        on_host: Iterable[BlockDigest] = (),
    ) -> BlocksSnapshot:
        """All `digests` of the cache, those with `states`, and those that are `on_host` alone;
        events not taken yet are counted in, and not repeated.
        """
        self._close()
        packed = b"".join(digests), b"".join(states), b"".join(on_host)
        return BlocksSnapshot(self._seq, *packed)

    def _add(self, kind: _Kind, digest: BlockDigest) -> None:
        if self._kind is not kind:
            self._close()
            self._kind = kind
        self._digests.append(digest)

    def _close(self) -> None:
        if self._digests:
            self._seq += 1
            self._pending.append(self._kind(self._seq, b"".join(self._digests)))
            self._digests.clear()
