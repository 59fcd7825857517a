"""The preempted sequences that are kept in the host's memory, and their pages.

Owns the pages of swapped sequences, and the copies to make before the next step. Must not know when
a sequence is preempted or begins again, nor tensors.

Copies take effect in the order of the plans: the card's blocks are read before a step writes to
them for their next owner, and the host's pages are free as soon as a plan copies them back. The
pages come from the pool of the host tier, whose entries make room for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from workers.scheduler.integrity import require
from workers.scheduler.plan import NO_MOVES, SequenceMove, SequenceMoves
from workers.scheduler.sequence import Sequence, Swapped
from workers.scheduler.tier import HostTier


@final
class NoSwapSpace:
    """`SwapSpace` of an engine that keeps nothing of preempted sequences."""

    def put_out(self, sequence: Sequence, now: float) -> None:
        """Keep nothing."""

    def num_kept(self, sequence: Sequence, num_cached: int) -> int:  # noqa: ARG002 - the space's
        """What is in the prefix cache."""
        return num_cached

    def bring_back(self, sequence: Sequence, num_found: int) -> None:
        """Nothing was kept."""

    def forget(self, sequence: Sequence) -> None:
        """Nothing was kept."""

    def take_moves(self) -> SequenceMoves:
        """None."""
        return NO_MOVES

    def check_integrity(self, waiting: Iterable[Sequence]) -> None:
        """Nothing can be wrong."""


@final
class SwapSpace:
    """The pages of `tier` that preempted sequences have, for blocks of `block_size` tokens."""

    def __init__(self, tier: HostTier, block_size: int) -> None:
        self._tier = tier
        self._size = block_size
        self._out: list[SequenceMove] = []
        self._back: list[SequenceMove] = []

    def __repr__(self) -> str:
        return f"<SwapSpace in {self._tier!r}>"

    def put_out(self, sequence: Sequence, now: float) -> None:
        """Swap out a sequence that is about to lose its blocks, with what the step in flight
        computes. Without room nothing is kept, and the sequence is computed again later; so is one
        whose blocks are private and stay on the card.
        """
        num_tokens, num_state = sequence.num_planned, self._tier.room.state_pages
        count = -(-num_tokens // self._size)
        if count == 0 or sequence.is_private:
            return
        pages = self._tier.take_pages(count + num_state, sequence.seq, now)
        if pages is None:
            return
        sequence.swapped = Swapped(pages[:count], num_tokens, pages[count:])
        block_ids = sequence.table.leading(count)
        self._out.append(SequenceMove(sequence.seq, block_ids, pages[:count], pages[count:]))

    def num_kept(self, sequence: Sequence, num_cached: int) -> int:
        """How many leading tokens of a sequence need not be computed again, `num_cached` of which
        are in the prefix cache. Forgets what is swapped out if it is no more than is cached, or if
        it is the whole sequence: one token must be computed.
        """
        swapped = sequence.swapped
        if swapped is None:
            return num_cached
        if not num_cached < swapped.num_tokens < len(sequence.token_ids):
            self.forget(sequence)
            return num_cached
        return swapped.num_tokens

    def bring_back(self, sequence: Sequence, num_found: int) -> None:
        """Swap a sequence back in that begins again with `num_found` cached blocks and its own
        behind them.
        """
        swapped = sequence.swapped
        if swapped is None:
            return
        pages = swapped.pages[num_found:]
        block_ids = sequence.table.leading(len(swapped.pages))[num_found:]
        self._back.append(SequenceMove(sequence.seq, block_ids, pages, swapped.state_pages))
        self.forget(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Free what the host keeps of a sequence."""
        swapped, sequence.swapped = sequence.swapped, None
        if swapped is not None:
            self._tier.pool.give_back([*swapped.pages, *swapped.state_pages])

    def take_moves(self) -> SequenceMoves:
        """The copies to make before the next step; each is returned once."""
        if not self._out and not self._back:
            return NO_MOVES
        moves = SequenceMoves(tuple(self._out), tuple(self._back))
        self._out.clear()
        self._back.clear()
        return moves

    def check_integrity(self, waiting: Iterable[Sequence]) -> None:
        """Raise `IntegrityError` unless each page has one owner."""
        kept = [one.swapped for one in waiting if one.swapped is not None]
        pages = [page for one in kept for page in (*one.pages, *one.state_pages)]
        require(len(set(pages)) == len(pages), f"pages of {self!r}")
        self._tier.check_integrity(pages)
