"""Where drafts come from: text on the host, or a network on the card.

Owns the seam to the speculation and what each source keeps of its sequences. Must not know what a
step costs, nor how many drafts are verified.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import Protocol, final

import msgspec

from workers.scheduler import ON_CARD, DraftCandidate, StepPlan
from workers.speculation.fit import Fit
from workers.speculation.offers import MatchOdds, Offer
from workers.speculation.place_odds import PlaceOdds
from workers.speculation.text_drafter import TextDrafter


class DraftSource(Protocol):
    """Offers drafts for sequences. `name` is for people."""

    name: str
    drafts_behind: bool
    """Whether drafts are made behind a step, for the next one."""

    def start(self, seq: int, tokens: array[int], shared_from: int | None) -> None:
        """A sequence runs, whose `tokens` grow; others may learn those from `shared_from` on."""

    def end(self, seq: int) -> None:
        """The sequence is over."""

    def offers(self, candidates: Sequence[DraftCandidate]) -> list[Offer]:
        """Drafts for the next step; for some of the sequences, perhaps none."""

    def offers_behind(self, plan: StepPlan, candidates: Sequence[DraftCandidate]) -> list[Offer]:
        """Drafts behind a step whose tokens are not known yet; for a source that drafts behind
        steps.
        """

    def verified(self, offer: Offer, num_right: int) -> None:
        """Learn that `num_right` of the drafts of an offer were accepted."""

    def planned(self, plan: StepPlan) -> None:
        """Learn what a step that was computed was asked to draft."""

    def expected_length(self) -> float | None:
        """Tokens of a pass that verifies as many drafts as can be made; None where that depends on
        the text.
        """

    def fitted(self, fit: Fit) -> Fit:
        """`fit` with how often its drafts are right."""


@final
class TextSource:
    """Drafts from earlier text."""

    drafts_behind = False

    def __init__(self, odds: MatchOdds, *, uses_fleet: bool) -> None:
        self.name = "suffix" if uses_fleet else "ngram"
        self.odds = odds
        self._drafter = TextDrafter(odds, uses_fleet=uses_fleet)

    def start(self, seq: int, tokens: array[int], shared_from: int | None) -> None:
        """See `DraftSource`."""
        self._drafter.start(seq, tokens, shared_from)

    def end(self, seq: int) -> None:
        """See `DraftSource`."""
        self._drafter.end(seq)
        self.odds.end(seq)

    def offers(self, candidates: Sequence[DraftCandidate]) -> list[Offer]:
        """See `DraftSource`."""
        return self._drafter.offers(candidates)

    def offers_behind(self, plan: StepPlan, candidates: Sequence[DraftCandidate]) -> list[Offer]:
        """See `DraftSource`. Nothing matches tokens that are not known."""
        del plan, candidates
        return []

    def verified(self, offer: Offer, num_right: int) -> None:
        """See `DraftSource`."""
        self.odds.learn(offer, num_right)

    def planned(self, plan: StepPlan) -> None:
        """Do nothing: the host drafts when it is asked."""

    def expected_length(self) -> float | None:
        """See `DraftSource`."""
        return None

    def fitted(self, fit: Fit) -> Fit:
        """See `DraftSource`."""
        rates = tuple([tuple(row) for row in self.odds.export()])
        return msgspec.structs.replace(fit, matches=rates)


@final
class CardSource:
    """A network on the card, which drafts behind a step."""

    drafts_behind = True

    def __init__(self, name: str, odds: PlaceOdds) -> None:
        self.name = name
        self.odds = odds
        self._held: dict[int, int] = {}

    def start(self, seq: int, tokens: array[int], shared_from: int | None) -> None:
        """Start nothing: the state of this source is on the card."""

    def end(self, seq: int) -> None:
        """See `DraftSource`."""
        self._held.pop(seq, None)
        self.odds.end(seq)

    def offers(self, candidates: Sequence[DraftCandidate]) -> list[Offer]:
        """See `DraftSource`."""
        return self._offers(self._held, candidates)

    def offers_behind(self, plan: StepPlan, candidates: Sequence[DraftCandidate]) -> list[Offer]:
        """See `DraftSource`."""
        return self._offers({one.seq: one.num_to_draft for one in plan.chunks}, candidates)

    def _offers(self, held: Mapping[int, int], candidates: Sequence[DraftCandidate]) -> list[Offer]:
        found = []
        for seq, most in candidates:
            if depth := min(held.get(seq, 0), most):
                chances = tuple(self.odds.chances(seq, depth))
                found.append(Offer(seq, (ON_CARD,) * depth, chances))
        return found

    def verified(self, offer: Offer, num_right: int) -> None:
        """See `DraftSource`."""
        self.odds.learn(offer.seq, len(offer.ids), num_right)

    def planned(self, plan: StepPlan) -> None:
        """See `DraftSource`. A sequence that samples has other drafts from then on, or none."""
        for chunk in plan.chunks:
            if chunk.num_to_draft:
                self._held[chunk.seq] = chunk.num_to_draft
            elif chunk.samples:
                self._held.pop(chunk.seq, None)

    def expected_length(self) -> float | None:
        """See `DraftSource`. Places that were hardly verified count as good."""
        reached: list[float] = list(accumulate(self.odds.chances(None, self.odds.depth), mul))
        return 1.0 + sum(reached)

    def fitted(self, fit: Fit) -> Fit:
        """See `DraftSource`."""
        return msgspec.structs.replace(fit, places=tuple(self.odds.export()))
