"""The budget of the prompts of one step: tokens, and seconds if decodes wait for the step.

Owns the remainder of both. Must not know sequences or their shares.
"""

from __future__ import annotations

import math
from typing import Final, final

from workers.scheduler.step_cost import StepCost

LEAST_TOKENS: Final = 64
"""The oldest prompt of a step gets this number of tokens at any cost, if the token budget has them,
so that it always goes on. For an 8B on an H200 up to some 180 more rows are almost free, because a
step reads all weights anyway."""

LEAST_SHARE: Final = 0.25
"""Prompts may lengthen a step of decodes by this share of its time, even beyond `max_gap_s`: many
long decodes must not make the next conversation wait for minutes."""

USUAL_SHARE: Final = 2.0
"""Prompts take this multiple of the time of their step's decodes, where that is more than
`_LEAST_OF_GAP`, and `max_gap_s` allows it."""

_PRESSURE: Final = 6.0
"""The usual share grows by this times the number of prompts per decode. In a burst of 256 prompts
the median first token came after 2.3 s without this, and after 0.9 s when steps filled the gap.
Eight prompts of 550 tokens that come within a few steps took six short ones with 4.0, and each is a
long gap for those that decode already; with 6.0 they take three (`python -m benchmarks.crowd`)."""

_LEAST_OF_GAP: Final = 0.5
"""A step may last for this share of `max_gap_s` in any case: so prompts spread over more steps than
if they took all of it, and fewer steps read all weights for decodes alone. Below some 500 prompt
tokens the time of an 8B's step on an H200 is that of reading its weights anyway."""


_TILES: Final = ((1024, 256), (128, 128))
"""Pairs (rows, tile): a step of at least that number of rows is cut to a multiple of the tile.
Products compute whole tiles of rows, and 1,064 rows of an 8B's gates and ups take four waves of
programs where 1,024 take three."""


@final
class PromptBudget:
    """The `tokens` and `seconds` that are left of a step for prompts."""

    __slots__ = ("_cost", "_usual_s", "seconds", "tokens")

    def __init__(
        self, tokens: int, seconds: float, cost: StepCost, usual_s: float = math.inf
    ) -> None:
        """A prompt of `usual_s` to twice that goes in two halves."""
        self.tokens = tokens
        self.seconds = seconds
        self._cost = cost
        self._usual_s = usual_s

    @classmethod
    def beside(
        cls,
        num_decodes: int,
        num_prompts: int,
        token_budget: int,
        max_gap_s: float,
        cost: StepCost,
        *,
        fills: bool = False,
    ) -> PromptBudget:
        """The budget of `num_prompts` prompts, running or waiting, beside `num_decodes` decodes,
        which should wait at most `max_gap_s` for their next token. Without decodes the seconds are
        unlimited. A step that `fills` the gap takes all of it, any other the usual share. A lone
        prompt that two usual shares hold goes in two halves: its first token comes a decode later,
        and no gap is as long as the whole of it.
        """
        tokens = token_budget - num_decodes
        if num_decodes == 0 or max_gap_s == math.inf:
            return cls(tokens, math.inf, cost)
        decode_s = cost.decode_s(num_decodes)
        share = USUAL_SHARE * (1 + _PRESSURE * num_prompts / num_decodes)
        usual_s = max(share * decode_s, _LEAST_OF_GAP * max_gap_s - decode_s)
        most_s = max_gap_s - decode_s
        seconds = max(most_s if fills else min(usual_s, most_s), LEAST_SHARE * decode_s)
        most = min(tokens, cost.most_tokens)
        within = int(min(most, cost.tokens_within(seconds, 0)))
        whole = _whole_tiles(num_decodes + within) - num_decodes
        lone_s = USUAL_SHARE * decode_s if num_prompts == 1 and not fills else math.inf
        # The oldest prompt has half, and `LEAST_TOKENS` of it.
        return cls(min(most, max(whole, 2 * LEAST_TOKENS)), seconds, cost, lone_s)

    @property
    def is_spent(self) -> bool:
        """Whether nothing fits any more."""
        return self.tokens <= 0 or self.seconds <= 0

    def fit(self, start: int, most: int, least: int = 0) -> int:
        """How many of a prompt's next `most` tokens, behind its first `start`, fit. The first
        `least` of them need to fit only into the tokens, not into the seconds.
        """
        most = min(most, self.tokens)
        if self.seconds == math.inf or most <= 0:
            return max(0, most)
        whole_s = self._cost.prompt_s(start, most)
        in_halves = self._usual_s < whole_s <= 2 * self._usual_s
        seconds = min(self.seconds, whole_s / 2) if in_halves else self.seconds
        within = self._cost.tokens_within(seconds, start)
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
    """The most rows, up to `num_rows`, that fill their last tile."""
    for least, tile in _TILES:
        if num_rows >= least:
            return num_rows // tile * tile
    return num_rows
