"""How the prompts of a step share its budget.

Owns the shares. Must not know where the budget comes from, nor blocks.

The oldest prompt in progress gets half of the budget, so it always goes on. The other half goes to
prompts with fewer tokens left, running or waiting, the shortest first. So a long prompt does not
hold up many short ones, and every prompt becomes the oldest in the end. The rest goes to the oldest
again. A prompt that others wait for counts as short as the part they wait for. Two prompts of equal
length run one after the other: side by side the first would be done later, and the second no
earlier.
"""

from __future__ import annotations

from collections import deque
from typing import final

from workers.scheduler.block_manager import BlockManager
from workers.scheduler.plan import Chunk
from workers.scheduler.plan_starts import PlanStarts
from workers.scheduler.prompt_budget import LEAST_TOKENS, PromptBudget
from workers.scheduler.sequence import Sequence


def share(
    prefills: list[Sequence], starts: PlanStarts, budget: PromptBudget, blocks: BlockManager
) -> list[Chunk]:
    """Chunks for `prefills`, which are in progress, oldest first, and for sequences that start."""
    shares = _Shares(starts, budget, blocks)
    if prefills:
        shares.share_with_oldest(prefills)
    shares.start_in_order()
    starts.close()
    return shares.chunks


@final
class _Shares:
    """The chunks of one step, while its budget is shared."""

    def __init__(self, starts: PlanStarts, budget: PromptBudget, blocks: BlockManager) -> None:
        self.chunks: list[Chunk] = []
        self._starts = starts
        self._budget = budget
        self._block_size = blocks.block_size
        self._states = blocks.states
        self._windows = blocks.windows

    def share_with_oldest(self, prefills: list[Sequence]) -> None:
        """Share the budget among `prefills`, oldest first, and shorter prompts that wait."""
        oldest, budget = prefills[0], self._budget
        start, num_left = oldest.num_planned, _num_left(oldest)
        reserved = budget.half().fit(start, num_left, LEAST_TOKENS)
        budget.take(start, reserved)
        shorter = [one for one in prefills[1:] if self._num_urgent(one) < num_left]
        self._share_among_shorter(sorted(shorter, key=self._num_urgent), num_left)
        more = budget.fit(start + reserved, num_left - reserved)
        budget.take(start + reserved, more)
        self._add(oldest, reserved + more)
        for sequence in prefills:
            if sequence is not oldest and sequence not in shorter:
                self._go_on(sequence)

    def start_in_order(self) -> None:
        """Give what no prompt in progress can use to those that wait, in order."""
        starts, budget = self._starts, self._budget
        while not budget.is_spent and (candidate := starts.candidate()) is not None:
            # At least one sequence of a step must go on, whatever it costs.
            least = 0 if self.chunks else LEAST_TOKENS
            length = budget.fit(candidate.num_cached, candidate.num_left, least)
            if length == 0:
                break
            budget.take(candidate.num_cached, length)
            self._add(starts.start(candidate), length)

    def _share_among_shorter(self, shorter: list[Sequence], num_oldest: int) -> None:
        """Share among those in progress and those that wait, the shortest first. A waiting prompt
        with at least as many tokens left as the oldest, `num_oldest`, starts only if all of it
        fits.
        """
        starts, budget = self._starts, self._budget
        in_progress = deque(shorter)
        while not budget.is_spent and (candidate := starts.candidate()) is not None:
            start, num_left = candidate.num_cached, candidate.num_left
            while in_progress and self._num_urgent(in_progress[0]) <= num_left:
                self._go_on(in_progress.popleft())
            length = budget.fit(start, num_left)
            if length == 0 or length < num_left >= num_oldest:
                break
            budget.take(start, length)
            self._add(starts.start(candidate), length)
        for sequence in in_progress:
            self._go_on(sequence)

    def _num_urgent(self, sequence: Sequence) -> int:
        """The tokens that a prompt has left. If other sequences wait for a part of the prompt, only
        the tokens up to the end of that part.
        """
        num_left = _num_left(sequence)
        awaited = sequence.table.num_awaited * self._block_size - sequence.num_planned
        return min(num_left, awaited) if awaited > 0 else num_left

    def _go_on(self, sequence: Sequence) -> None:
        """Add a chunk of as many tokens of a prompt in progress as fit."""
        start = sequence.num_planned
        length = self._budget.fit(start, _num_left(sequence))
        if length > 0:
            self._budget.take(start, length)
            self._add(sequence, length)

    def _add(self, sequence: Sequence, length: int) -> None:
        """Add a chunk; its tokens count as planned from now on. It is shorter where layers with a
        window lack blocks.
        """
        start, due = sequence.num_planned, sequence.num_due
        window = sequence.table.window
        length = self._windows.fill(window, start + length) - start
        if length == 0:
            return
        # Its last token is computed again if the step samples none.
        self._windows.pass_later(window, start + length - 1)
        end = sequence.num_planned = start + length
        if end == due < sequence.max_due:
            sequence.num_due = end + 1
        block_ids = sequence.table.leading(-(-end // self._block_size))
        chunk = Chunk(sequence.seq, start, length, block_ids, end == due)
        self.chunks.append(self._states.with_slots(chunk, sequence))


def _num_left(sequence: Sequence) -> int:
    return sequence.num_due - sequence.num_planned
