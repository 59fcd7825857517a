"""Which waiting sequence starts next, and what it finds in the prefix cache.

Owns the way from the queue to the blocks of a sequence. Must not know how many tokens of a step it
gets.
"""

from __future__ import annotations

from typing import NamedTuple, final

from workers.scheduler.block_manager import BlockManager, PrefixHit
from workers.scheduler.plan import SequenceStart
from workers.scheduler.queues import Queues
from workers.scheduler.sequence import Sequence


class Candidate(NamedTuple):
    """A sequence that may start; there are blocks for the whole of it."""

    sequence: Sequence
    hit: PrefixHit
    num_cached: int
    num_left: int


@final
class Starts:
    """The starts of one plan, in order of arrival. `started` are those that the runner has not seen
    before.
    """

    def __init__(self, queues: Queues, blocks: BlockManager, max_running: int) -> None:
        self.started: list[SequenceStart] = []
        self._queues = queues
        self._blocks = blocks
        self._max_running = max_running
        self._candidate: Candidate | None = None
        self._is_over = False

    def candidate(self) -> Candidate | None:
        """Who starts next, if anyone can. No blocks are freed while a plan is made, so after one
        that does not fit nobody starts: none overtakes it (decision 0018).
        """
        if self._candidate is None and not self._is_over:
            self._candidate = self._find()
            self._is_over = self._candidate is None
        return self._candidate

    def start(self, candidate: Candidate) -> Sequence:
        """It runs, and holds its blocks."""
        sequence, hit, num_cached, _ = candidate
        self._candidate = None
        self._queues.start(sequence)
        self._blocks.admit(sequence.table, hit, len(sequence.token_ids))
        sequence.num_planned = num_cached
        if not sequence.is_started:
            sequence.is_started = True
            sequence.num_cached = min(num_cached, sequence.num_prompt)
            self.started.append(sequence.start())
        return sequence

    def _find(self) -> Candidate | None:
        """One block stays free for each running sequence: to prefill a prompt only to preempt it at
        the next block boundary of an older sequence is worse than to wait.
        """
        queues, blocks = self._queues, self._blocks
        reserve = len(queues.running)
        # A block is needed at least, whatever is cached.
        if reserve >= self._max_running or blocks.num_free <= reserve:
            return None
        sequence = next(iter(queues.waiting.values()), None)
        if sequence is None:
            return None
        num_tokens = len(sequence.token_ids)
        hit = blocks.match(sequence.table, sequence.token_ids)
        if not blocks.can_admit(hit, num_tokens, reserve):
            return None
        num_cached = len(hit.block_ids) * blocks.block_size
        return Candidate(sequence, hit, num_cached, num_tokens - num_cached)
