"""What the prompts of one step may take: tokens, and seconds if decodes wait for the step.

Owns the remainder of both. Must not know sequences or their shares.
"""

from __future__ import annotations

import math
from typing import Final, final

from workers.scheduler.step_cost import StepCost

LEAST_TOKENS: Final = 64
"""The oldest prompt of a step gets so many whatever they cost, or as many as the token budget
leaves it: it must go on. Up to some 180 more rows an 8B on an H200 reads its weights anyway."""

LEAST_SHARE: Final = 0.25
"""Prompts may lengthen a step of decodes by this share of its time, even past the gap: many long
decodes must not make the next conversation wait for minutes."""

USUAL_SHARE: Final = 2.0
"""Prompts take so many times as long as the decodes of their step, where the gap leaves that. More
steps with prompts in them are fewer of decodes alone, which read the weights for one token each;
below some 500 prompt tokens an 8B on an H200 reads them for its prompts' sake anyway."""

_PRESSURE: Final = 4.0
"""A prompt for every decode makes the usual share so many times longer: a burst of 256 prompts had
its median first token after 2.3 s without this, and after 0.9 s with steps that filled the gap."""

_LEAST_OF_GAP: Final = 0.5
"""Few decodes are soon done: beside them a step lasts for this share of the gap at least, or a
prompt would wait longer than they gain."""


_TILES: Final = ((1024, 256), (128, 128))
"""From so many rows on a step has a multiple of so many: products compute whole tiles of rows, and
1,064 rows of an 8B's gates and ups take four waves of programs where 1,024 take three."""


@final
class PromptBudget:
    """`tokens` and `seconds` that are left of a step."""

    __slots__ = ("_cost", "seconds", "tokens")

    def __init__(self, tokens: int, seconds: float, cost: StepCost) -> None:
        self.tokens = tokens
        self.seconds = seconds
        self._cost = cost

    @classmethod
    def beside(
        cls,
        num_decodes: int,
        num_prompts: int,
        token_budget: int,
        max_gap_s: float,
        cost: StepCost,
    ) -> PromptBudget:
        """What `num_prompts` that are computed or wait may take beside `num_decodes`, which wait at
        most `max_gap_s` for their next token, and usually less. Without decodes nothing waits.
        """
        tokens = token_budget - num_decodes
        if num_decodes == 0 or max_gap_s == math.inf:
            return cls(tokens, math.inf, cost)
        decode_s = cost.decode_s(num_decodes)
        share = USUAL_SHARE * (1 + _PRESSURE * num_prompts / num_decodes)
        usual_s = max(share * decode_s, _LEAST_OF_GAP * max_gap_s - decode_s)
        seconds = max(min(usual_s, max_gap_s - decode_s), LEAST_SHARE * decode_s)
        most = min(tokens, cost.most_tokens)
        within = int(min(most, cost.tokens_within(seconds, 0)))
        whole = _whole_tiles(num_decodes + within) - num_decodes
        # The oldest prompt has half, and `LEAST_TOKENS` of it.
        return cls(min(most, max(whole, 2 * LEAST_TOKENS)), seconds, cost)

    @property
    def is_spent(self) -> bool:
        """Whether nothing fits any more."""
        return self.tokens <= 0 or self.seconds <= 0

    def fit(self, start: int, most: int, least: int = 0) -> int:
        """How many of the next `most` tokens of a prompt fit behind its first `start`; those up to
        `least` need not fit into the seconds.
        """
        most = min(most, self.tokens)
        if self.seconds == math.inf or most <= 0:
            return max(0, most)
        within = self._cost.tokens_within(self.seconds, start)
        return most if within >= most else max(int(within), min(least, most))

    def take(self, start: int, length: int) -> None:
        """A chunk takes its part."""
        self.tokens -= length
        if self.seconds != math.inf:
            self.seconds -= self._cost.prompt_s(start, length)

    def half(self) -> PromptBudget:
        """A budget of half of this one, rounded up."""
        return PromptBudget(self.tokens - self.tokens // 2, self.seconds / 2, self._cost)


def _whole_tiles(num_rows: int) -> int:
    """The most rows up to `num_rows` that leave no tile in part empty."""
    for least, tile in _TILES:
        if num_rows >= least:
            return num_rows // tile * tile
    return num_rows
