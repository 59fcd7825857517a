"""The null object for an engine without a host tier: the card is the only tier.

Owns nothing. Must not know the host tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn, final

from protocol.ids import BlockDigest
from workers.scheduler.retention import ReturnExpectation
from workers.scheduler.tier.entry import EntryKind
from workers.scheduler.tier.transfers import Transfer, Transferred


@final
class NoHostTier:
    """`HostTier` of an engine without one: it stores nothing, and has nothing."""

    is_copying: Final = False
    is_clearing: Final = False
    has_to_store: Final = False

    def computed(
        self,
        digest: BlockDigest,  # noqa: ARG002 - the tier's
        place: int,  # noqa: ARG002
        before: BlockDigest,  # noqa: ARG002
        packed: bytes,  # noqa: ARG002
        *,
        is_first: bool,  # noqa: ARG002
    ) -> bool:
        """False: the block is the card's alone."""
        return False

    def saved(self, digest: BlockDigest, slot: int, *, is_final: bool) -> bool:  # noqa: ARG002 - the tier's
        """False: the state is the card's alone."""
        return False

    def settled(self, digest: BlockDigest) -> None:
        """Store nothing."""

    def left(self, kind: EntryKind, digest: BlockDigest) -> bool:  # noqa: ARG002 - the tier's
        """False: no tier has the block or state any more."""
        return False

    def used(self, digests: Sequence[BlockDigest], name: object, now: float) -> None:
        """Rank nothing."""

    def retain(self, name: object, conversation: object, expected: ReturnExpectation) -> bool:  # noqa: ARG002 - the tier's
        """False: no block is here."""
        return False

    def clear(self) -> int:
        """0."""
        return 0

    def use(self, num_hit: int, num_loaded: int, num_prompt: int) -> None:
        """No figures."""

    def transfers(self, now: float) -> list[Transfer]:  # noqa: ARG002 - the tier's
        """None."""
        return []

    def over(self, done: Transferred, now: float) -> NoReturn:
        """Raises `RuntimeError`."""
        raise RuntimeError(f"there is no host tier, but at {now} a transfer ended: {done}")

    def open(self, pages: range) -> NoReturn:
        """Raises `RuntimeError`."""
        raise RuntimeError(f"there is no host tier, but pages of it are open: {pages}")
