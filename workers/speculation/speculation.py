"""What the scheduler asks for drafts: offers of a source, as many of them as pay.

Owns which offers were made for the next step, and what is learned from each step. Must not know
tables of times, nor where drafts come from.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Final, final

from protocol.messages import Drafting
from workers.scheduler import Candidate, StepPlan, StepResult
from workers.speculation.counters import Counters
from workers.speculation.offers import Offer
from workers.speculation.policy import Policy
from workers.speculation.sources import Source

_ANY_ROOM: Final = 4096
"""Drafts that a step might have, before its other chunks are known."""


@final
class Speculation:
    """`workers.scheduler.Proposer` over one `source` of drafts. `depth` None: as many as pay; else
    so many of each sequence.
    """

    def __init__(self, source: Source, policy: Policy, depth: int | None = None) -> None:
        self.counters = Counters()
        self.source = source
        self.policy = policy
        self._depth = depth
        self._offers: dict[int, Offer] = {}
        self._had_offers = False

    def summary(self) -> Drafting:
        """See `Proposer`."""
        seen = self.counters
        return Drafting(
            self.source.name,
            seen.num_passes,
            seen.num_tokens,
            tuple(seen.verified),
            tuple(seen.accepted),
            round(seen.depth, 2),
            round(seen.gain, 3),
        )

    @property
    def num_to_draft(self) -> int:
        """See `Proposer`."""
        return self.source.num_to_draft

    def start(self, seq: int, token_ids: array[int], shared_from: int | None) -> None:
        """See `Proposer`."""
        self.source.start(seq, token_ids, shared_from)

    def end(self, seq: int) -> None:
        """See `Proposer`."""
        self.source.end(seq)
        self._offers.pop(seq, None)

    def waits(self, candidates: Sequence[Candidate]) -> bool:
        """See `Proposer`. Offers behind the token in flight should be as good as those before."""
        self._had_offers = False
        if not candidates or not (self.policy.looks() or self._depth):
            return False
        offers = self.source.offers(candidates)
        self._had_offers = bool(offers)
        if self._depth is not None:
            return self._had_offers
        chances = [offer.chances for offer in offers]
        return self.policy.wants(chances, len(candidates), _ANY_ROOM)

    def propose(self, candidates: Sequence[Candidate], room: int) -> Mapping[int, tuple[int, ...]]:
        """See `Proposer`."""
        offers = self.source.offers(candidates)
        self._had_offers = bool(offers)
        depths = self._depths(offers, len(candidates), room)
        self._offers = {
            offer.seq: offer.cut(depth)
            for offer, depth in zip(offers, depths, strict=True)
            if depth
        }
        return {seq: offer.ids for seq, offer in self._offers.items()}

    def learn(self, plan: StepPlan, result: StepResult) -> None:
        """See `Proposer`."""
        answers = {item.seq: len(item.ids) for item in result.sampled}
        num_drafts = 0
        for chunk in plan.chunks:
            if not chunk.samples or chunk.length != 1:
                continue
            num_drafts += len(chunk.drafts)
            num_ids = answers.get(chunk.seq, 0)
            if num_ids:
                self.counters.add(len(chunk.drafts), num_ids)
            offer = self._offers.pop(chunk.seq, None)
            if offer is not None and chunk.drafts and num_ids:
                self.source.verified(offer.cut(len(chunk.drafts)), num_ids - 1)
        self.source.planned(plan)
        self.policy.planned(num_drafts, had_offers=self._had_offers)

    def took(self, plan: StepPlan, num_tokens: int, seconds: float, *, is_ahead: bool) -> None:
        """See `Proposer`."""
        if any(chunk.length != 1 for chunk in plan.chunks):
            return
        num_sequences, num_rows = len(plan.chunks), sum([chunk.num_rows for chunk in plan.chunks])
        self.policy.took(num_rows, seconds, is_ahead=is_ahead)
        bare_s = self.policy.ahead.seconds(num_sequences)
        if num_rows > num_sequences and bare_s is not None:
            self.counters.took(seconds, bare_s * num_tokens / num_sequences)

    def _depths(self, offers: Sequence[Offer], num_sequences: int, room: int) -> list[int]:
        if self._depth is None:
            chances = [offer.chances for offer in offers]
            choice = self.policy.choose(chances, num_sequences, room)
            self.policy.found(choice)
            return choice.depths
        depths = []
        for offer in offers:
            depths.append(min(len(offer.ids), self._depth, room))
            room -= depths[-1]
        return depths
