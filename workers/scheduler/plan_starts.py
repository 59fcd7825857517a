"""Which waiting sequence starts next, and what it finds in the prefix cache.

Owns the way of a sequence from the queue to its blocks. Must not know how many tokens of a step it
gets.

If several sequences have the same prefix and it is not computed yet, the first computes it and the
others wait until its blocks can be read. A sequence that waits for a block is overtaken by those
behind it in the queue. It waits only for a running sequence, which either goes on or gives up its
blocks and its announcements. So sequences never wait in a circle, nor for ever.

A block can be read by plans that are made after the step that computes it was committed. A plan
that is made while that step is computed could read it too, because steps take effect in order; but
if the step failed, all that was computed from the block would have to be taken back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, final

from workers.scheduler.block_manager import BlockManager, PrefixHit
from workers.scheduler.loading import HostLoads, NoHostLoads
from workers.scheduler.plan import SequenceStart
from workers.scheduler.queues import Queues
from workers.scheduler.saving import PrefixStates
from workers.scheduler.sequence import Sequence

_WORTH_WAITING: Final = 4
"""A sequence waits for another that computes at least a quarter of what it needs: to wait for the
few common words of a template would take longer than to compute them."""


_NO_HIT: Final = PrefixHit((), 0, 0)


class StartCandidate(NamedTuple):
    """A sequence that may start: there are blocks for all its tokens, of which `num_cached` need
    not be computed and `num_left` must.
    """

    sequence: Sequence
    hit: PrefixHit
    num_cached: int
    num_left: int


@final
class PlanStarts:
    """The starts of one plan, in order of arrival; sequences that wait for a block, or for `loads`
    from the host, are passed over. `started` are those that the runner has not seen before.
    """

    def __init__(
        self,
        queues: Queues,
        blocks: BlockManager,
        max_running: int,
        loads: HostLoads | NoHostLoads,
    ) -> None:
        self._loads = loads
        self.started: list[SequenceStart] = []
        self._queues = queues
        self._blocks = blocks
        self._max_running = max_running
        self._waiting: Iterator[Sequence] | None = None
        self._candidate: StartCandidate | None = None
        self._pinned: int | None = None
        self._is_over = False

    @property
    def num_waiting(self) -> int:
        """Sequences that may start or wait, in this plan or later."""
        return len(self._queues.waiting)

    def candidate(self) -> StartCandidate | None:
        """The next sequence to start, if one can. If one does not fit, none behind it starts
        either, so that none overtakes it (decision 0018). No blocks are freed while a plan is made.
        """
        if self._candidate is None and not self._is_over:
            self._candidate = self._find()
            self._is_over = self._candidate is None
        return self._candidate

    def close(self) -> None:
        """End the starts of this plan: unpin the state of a candidate that did not start."""
        if self._pinned is not None:
            self._blocks.states.pool.unpin(self._pinned)
            self._pinned = None
        self._blocks.windows.promised = 0

    def start(self, candidate: StartCandidate) -> Sequence:
        """Let the candidate run and hold its blocks."""
        sequence, hit, num_cached, *_ = candidate
        self._candidate = None
        if self._pinned is not None:
            sequence.state.restores, self._pinned = self._pinned, None
        self._queues.start(sequence)
        self._blocks.admit(sequence.table, hit, len(sequence.token_ids))
        self._begin_window(sequence, hit)
        self._blocks.swap.bring_back(sequence, len(hit.block_ids))
        sequence.num_planned = num_cached
        sequence.num_loads = 0
        if not sequence.is_started:
            sequence.is_started = True
            sequence.num_cached = min(num_cached, sequence.num_prompt)
            self.started.append(sequence.start())
        return sequence

    def _begin_window(self, sequence: Sequence, hit: PrefixHit) -> None:
        """Let layers with a window go on from the snapshot, with the blocks that were promised."""
        windows = self._blocks.windows
        windows.promised = 0
        table, num_hit = sequence.table.window, len(hit.block_ids)
        if num_hit:
            windows.begin(table, sequence.state.restores, num_hit)
        start = num_hit * self._blocks.block_size
        has_room = windows.extend(table, min(len(sequence.token_ids), start + windows.least))
        assert has_room

    def _find(self) -> StartCandidate | None:
        """The first of the waiting sequences that can start. One block stays free for each running
        sequence: otherwise a prompt would be computed only to be preempted when an older sequence
        needs its next block.
        """
        queues, blocks = self._queues, self._blocks
        reserve = len(queues.running)
        # Every start needs at least one new block, whatever is cached.
        if reserve >= self._max_running or blocks.num_free <= reserve:
            return None
        if self._waiting is None:
            self._waiting = iter(list(queues.waiting.values()))
        for sequence in self._waiting:
            if self._is_awaiting(sequence):
                continue
            num_tokens = len(sequence.token_ids)
            hit = self._hit(sequence, reserve)
            if hit is None:
                continue
            num_cached = len(hit.block_ids) * blocks.block_size
            if self._waits(sequence, hit, num_tokens - num_cached):
                continue
            if not blocks.can_admit(hit, num_tokens, reserve, sequence.table):
                return None
            num_cached = blocks.swap.num_kept(sequence, num_cached)
            if sequence.swapped is None:
                self._prepare_states(sequence, hit)
            return StartCandidate(sequence, hit, num_cached, num_tokens - num_cached)
        return None

    def _hit(self, sequence: Sequence, reserve: int) -> PrefixHit | None:
        """What a sequence finds on the card; None if it waits for a load from the host."""
        hit = self._blocks.match(sequence.table, sequence.token_ids)
        if sequence.num_top is not None:
            return _NO_HIT  # log-probabilities need the logits, which the cache lacks
        if self._loads.waits(sequence, hit, reserve):
            return None
        return hit

    def _is_awaiting(self, sequence: Sequence) -> bool:
        """Whether what a sequence waits for is under way: a block of another, or a load."""
        if sequence.awaits is not None and sequence.awaits in self._blocks.planned:
            return True
        return self._loads.is_coming(sequence)

    def _prepare_states(self, sequence: Sequence, hit: PrefixHit) -> None:
        """Pin the recurrent state that the sequence begins with, so that no other start of this
        plan evicts it, and set the positions at which the sequence saves states.
        """
        states, size, table = self._blocks.states, self._blocks.block_size, sequence.table
        if not isinstance(states, PrefixStates):
            return
        digests = table.digests[: len(hit.block_ids)]
        found = states.pool.hit(digests, is_next=not sequence.is_started)
        self._pinned = None if found is None else found.slot
        num_hit, num_tokens = len(hit.block_ids) * size, len(sequence.token_ids)
        self._blocks.name(table, sequence.token_ids, num_tokens)
        sequence.state.saves = states.positions(table, num_tokens, num_hit, hit.num_matched * size)
        sequence.state.saves_at = states.first_in_answer(num_tokens, num_hit)

    def _waits(self, sequence: Sequence, hit: PrefixHit, num_left: int) -> bool:
        """Whether the sequence should wait, because running ones compute enough of what follows its
        cached blocks. One that was preempted never waits: it is older than all that would pass it.

        In a model with recurrent states, the other sequence saves the state behind what both have
        in common.
        """
        sequence.awaits = None
        if sequence.is_started or sequence.num_top is not None:
            return False
        planned, states, size = self._blocks.planned, self._blocks.states, self._blocks.block_size
        # Without the last token's block, as in `match`: that token is computed in any case.
        digests = sequence.table.digests[: (len(sequence.token_ids) - 1) // size]
        num_found = len(hit.block_ids)
        end = planned.end_of_coming(digests, num_found, hit.num_matched)
        end = states.num_usable(end)
        num_coming = end - num_found
        if num_coming <= 0 or _WORTH_WAITING * num_coming * size < num_left:
            return False
        if digests[end - 1] not in planned:
            return False  # the other sequence is past that block and saves no state there
        planned.await_until(digests, end, needs_state=states.has_any)
        sequence.awaits = digests[end - 1]
        return True
