"""Decides which steps compute prompts, and how many tokens of them.

Owns the turns of prompts and decodes where decodes are many. Must not know sequences, nor how
prompts share what they get.

Few decodes get a part of the gap lengthened in every step that prompts need: such steps are short
beside the prompts, and a first token soon. Where decodes alone take a good part of the gap, prompts
that arrive all the time would lengthen every step; so there they fill a whole gap, and the step
behind has decodes alone, if no prompt is left: at most half of all tokens come late.
"""

from typing import Final, final

from workers.scheduler.prompt_budget import PromptBudget
from workers.scheduler.step_cost import StepCost

CROWD: Final = 0.1
"""Decodes that take this share of the gap alone are many: 120 of an 8B on an H200, for a gap of 80
ms. There, beside 256 streams, every other step as long as the gap brings a first token after 165
ms, and the median gap is that of decodes alone, 13 ms; parts in every step brought it after 500,
with a median of 29 (`python -m benchmarks.crowd`).
"""


@final
class PromptPace:
    """The budgets of prompts of one engine, step after step."""

    def __init__(self, cost: StepCost, max_gap_s: float) -> None:
        self._cost = cost
        self._max_gap_s = max_gap_s
        self._rests = False

    def budget(self, num_decodes: int, num_prompts: int, token_budget: int) -> PromptBudget | None:
        """What `num_prompts` prompts, running or waiting, get of a step with `num_decodes` decodes
        and room for `token_budget` tokens; None if it has decodes alone.
        """
        rests, self._rests = self._rests, False
        if rests and num_decodes:
            return None
        return PromptBudget.beside(
            num_decodes,
            num_prompts,
            token_budget,
            self._max_gap_s,
            self._cost,
            fills=self._is_crowd(num_decodes),
        )

    def take(self, num_decodes: int, prompts_s: float, *, leaves_some: bool) -> None:
        """A step with `num_decodes` decodes, of which there are some, has prompts of `prompts_s`
        seconds. Nothing rests while it `leaves_some` prompts, or parts of them, to the next.
        """
        is_longer = prompts_s > self._cost.decode_s(num_decodes)
        self._rests = self._is_crowd(num_decodes) and is_longer and not leaves_some

    def _is_crowd(self, num_decodes: int) -> bool:
        return self._cost.decode_s(num_decodes) >= CROWD * self._max_gap_s
