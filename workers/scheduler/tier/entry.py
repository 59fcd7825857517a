"""What the host tier holds or is about to hold: blocks and states, by name.

Owns the facts of one entry. Must not know other entries, nor which page is free.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, final

from protocol.ids import BlockDigest
from workers.scheduler.tier.tier_state import BlockEvent, TierState, follow


class EntryKind(IntEnum):
    """Keys and values of a block, or the recurrent state behind it."""

    BLOCK = 1
    STATE = 2


class Name(NamedTuple):
    """The key of an entry. `digest` is the digest of the block, or of the block before a state."""

    kind: EntryKind
    digest: BlockDigest


@final
class TierEntry:
    """A block or a state that pages of the host hold, or are about to.

    - `parent`: the name of the entry that it needs: of the block before it, or of its own block for
      a state. None for the first block of a prefix.
    - `proof`, `depth`: see `PageRecord`. `before` is the digest of the block before it.
    - `num_children`: the entries whose parent it is.
    - `used_at`: the number of uses, of all entries, when it was used last; `used_s`: the time then,
      in seconds.
    - `is_doomed`: what it needs is gone; so is it when its copy is over.
    - `serial` marks its place among those that may go.
    """

    __slots__ = (
        "before",
        "checksums",
        "depth",
        "is_doomed",
        "name",
        "num_children",
        "pages",
        "parent",
        "proof",
        "serial",
        "tier_state",
        "used_at",
        "used_s",
    )

    def __init__(
        self, name: Name, parent: Name | None, before: BlockDigest, proof: bytes, depth: int
    ) -> None:
        self.name = name
        self.parent = parent
        self.before = before
        self.proof = proof
        self.depth = depth
        self.pages: tuple[int, ...] = ()
        self.checksums: tuple[int, ...] = ()
        self.tier_state = TierState.CARD
        self.num_children = 0
        self.is_doomed = False
        self.used_at = 0
        self.used_s = 0.0
        self.serial = 0

    def __repr__(self) -> str:
        kind, digest = self.name
        return f"<Entry {kind.name} {digest.hex()[:8]} {self.tier_state.value} {self.pages}>"

    @property
    def may_go(self) -> bool:
        """Whether it can be evicted: no copy is under way, and no entry needs it."""
        return not self.num_children and self.tier_state.may_leave_host

    def follow(self, event: BlockEvent) -> None:
        """Take an event. Raises `IntegrityError` if it cannot happen."""
        self.tier_state = follow(self.tier_state, event)
