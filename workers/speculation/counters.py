"""The counts of drafts that operators see.

Owns the counts since the start of the engine. Must not decide anything.
"""

from __future__ import annotations

from typing import Final, final

MOST_PLACES: Final = 16
"""How many places of drafts are counted separately; later ones count with the last."""

_WEIGHT: Final = 0.01
"""The weight of a pass in `depth`: the last hundred or so decide, a second or two of a busy engine.
"""


@final
class DraftCounters:
    """Counts since the start of the engine. A pass is one sequence's part of a step of decodes:
    `num_passes` passes made `num_tokens` tokens. `verified` and `accepted` count drafts by place.
    `drafting_s`: seconds of steps with drafts; `bare_s`: the time of as many tokens without drafts.
    `depth`: the recent mean number of drafts that a pass verifies.
    """

    def __init__(self) -> None:
        self.num_passes = 0
        self.num_tokens = 0
        self.verified = [0] * MOST_PLACES
        self.accepted = [0] * MOST_PLACES
        self.depth = 0.0
        self.drafting_s = 0.0
        self.bare_s = 0.0

    def add(self, num_drafts: int, num_tokens: int) -> None:
        """A pass of one sequence."""
        self.num_passes += 1
        self.num_tokens += num_tokens
        self.depth += _WEIGHT * (num_drafts - self.depth)
        for place in range(num_drafts):
            at = min(place, MOST_PLACES - 1)
            self.verified[at] += 1
            self.accepted[at] += place < num_tokens - 1

    def took(self, drafting_s: float, bare_s: float) -> None:
        """A step with drafts took so long, and its tokens would have taken `bare_s`."""
        self.drafting_s += drafting_s
        self.bare_s += bare_s

    @property
    def gain(self) -> float:
        """How many times as fast the steps with drafts were; 1 before there were any."""
        return self.bare_s / self.drafting_s if self.drafting_s and self.bare_s else 1.0
