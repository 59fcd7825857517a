"""What the next step computes.

Owns the choice: one token budget, no prefill or decode phases. Running sequences that only decode
take one token each, prompts in progress and waiting sequences share what is left. When blocks run
out, the latest arrived sequence gives its blocks back and is computed again later (vLLM's
`num_computed_tokens` scheduler). Must not know links, messages or time.

A step may be planned while the one before is computed. Blocks that change hands in between are
written by their old owner first, because steps take effect in order.
"""

from typing import NamedTuple

from workers.scheduler.admission import SchedulerLimits
from workers.scheduler.block_manager import BlockManager
from workers.scheduler.plan import Chunk, SequenceStart
from workers.scheduler.queues import Queues
from workers.scheduler.sequence import Sequence


class StepChoice(NamedTuple):
    """What to compute, which sequences are new to the runner, and how many lost their blocks."""

    chunks: list[Chunk]
    started: list[SequenceStart]
    num_preempted: int


def choose(queues: Queues, blocks: BlockManager, limits: SchedulerLimits) -> StepChoice:
    """The chunks of the next step; blocks are allocated and queues moved accordingly."""
    chunks: list[Chunk] = []
    prefills, num_preempted = _decode(queues, blocks, chunks)
    # Every running sequence takes a token of the budget, so each of the prefills could have one.
    budget = limits.token_budget - len(chunks)
    starts = _Starts(queues, blocks)
    # A preempted sequence is the head now, and the step in flight may still compute it: it starts
    # again in a plan that is made when that step is committed and all its tokens are known.
    if num_preempted == 0:
        budget -= starts.fill(limits.max_running, budget, sum(map(_num_left, prefills)), chunks)
    for sequence in prefills:
        if budget == 0:
            break
        chunks.append(_chunk(sequence, budget, blocks.block_size))
        budget -= chunks[-1].length
    return StepChoice(chunks, starts.started, num_preempted)


def _decode(
    queues: Queues, blocks: BlockManager, chunks: list[Chunk]
) -> tuple[list[Sequence], int]:
    """Give every running sequence its blocks, oldest first, and one token if that is all it needs.

    Appends to `chunks`; returns those that need more, and how many sequences were preempted.
    """
    block_size = blocks.block_size
    prefills: list[Sequence] = []
    num_preempted = 0
    for sequence in list(queues.running.values()):
        if num_preempted and sequence.seq not in queues.running:
            break  # the latest are preempted first, so none that follows runs
        start, end = sequence.num_planned, sequence.num_due
        if start == end:
            continue  # the last token that it may have is being sampled
        table = sequence.table
        if len(table.block_ids) * block_size < end:
            num_preempted += _make_room(queues, blocks, sequence)
            if not table.block_ids:
                break
        if end - start > 1:
            prefills.append(sequence)
            continue
        # Most chunks of most steps are made here, so there is no call that they do not need.
        chunks.append(Chunk(sequence.seq, start, 1, table.ids or table.freeze(), True))
        sequence.num_planned = end
        if end < sequence.max_due:
            sequence.num_due = end + 1
    return prefills, num_preempted


def _make_room(queues: Queues, blocks: BlockManager, sequence: Sequence) -> int:
    """Blocks for all tokens of `sequence`, from later ones if need be, or it is preempted.

    A step in flight may still write to what a preempted sequence gives back; the next owner's step
    comes after it.
    """
    num_preempted = 0
    while not blocks.grow(sequence.table, sequence.num_due):
        latest = queues.put_back_latest()
        blocks.release(latest.table)
        latest.num_planned = 0
        num_preempted += 1
        if latest is sequence:
            break
    return num_preempted


class _Starts:
    """Waiting sequences that start in a step, in order of arrival. `started` are those that the
    runner has not seen before.
    """

    def __init__(self, queues: Queues, blocks: BlockManager) -> None:
        self.started: list[SequenceStart] = []
        self._queues = queues
        self._blocks = blocks

    def fill(self, max_running: int, budget: int, num_prefill: int, chunks: list[Chunk]) -> int:
        """Start as many as there is room for; returns the tokens that they take of `budget`.

        Prompts in progress need `num_prefill` tokens and come first, but half of the budget is for
        sequences whose tokens all fit into it: a short one never waits for more than one chunk of a
        long one in progress. Two long ones run one after the other; side by side, the first would
        be done later and the second no earlier. No sequence overtakes a waiting one: decision 0018.
        """
        spare = max(0, budget - num_prefill)
        room = max(spare, budget // 2)
        num_taken = 0
        while num_taken < room and len(self._queues.running) < max_running:
            sequence = self._queues.head()
            if sequence is None:
                break
            length = self._start(sequence, room - num_taken, spare - num_taken)
            if length == 0:
                break
            chunks.append(_chunk(sequence, length, self._blocks.block_size))
            num_taken += length
        return num_taken

    def _start(self, sequence: Sequence, room: int, spare: int) -> int:
        """Let the head run if there are blocks for the whole of it; returns its tokens of this
        step: all if they fit into `room`, else at most `spare`, 0 if it must wait.

        One block stays free for each running sequence: to prefill a prompt only to preempt it at
        the next block boundary of an older sequence is worse than to wait.
        """
        queues, blocks = self._queues, self._blocks
        reserve = len(queues.running)
        if blocks.num_free <= reserve:
            return 0  # a block is needed at least, whatever is cached
        num_tokens = len(sequence.token_ids)
        hit = blocks.match(sequence.table, sequence.token_ids)
        num_cached = len(hit.block_ids) * blocks.block_size
        num_left = num_tokens - num_cached
        length = num_left if num_left <= room else max(0, spare)
        if length == 0 or not blocks.can_admit(hit, num_tokens, reserve):
            return 0
        queues.start_head()
        blocks.admit(sequence.table, hit, num_tokens)
        sequence.num_planned = num_cached
        if not sequence.is_started:
            sequence.is_started = True
            sequence.num_cached = min(num_cached, sequence.num_prompt)
            self.started.append(sequence.start())
        return length


def _num_left(sequence: Sequence) -> int:
    return sequence.num_due - sequence.num_planned


def _chunk(sequence: Sequence, most: int, block_size: int) -> Chunk:
    """Up to `most` tokens of `sequence`, which count as computed from now on."""
    start, due = sequence.num_planned, sequence.num_due
    end = min(due, start + most)
    sequence.num_planned = end
    if end == due < sequence.max_due:
        sequence.num_due = end + 1
    block_ids = sequence.table.leading(-(-end // block_size))
    return Chunk(sequence.seq, start, end - start, block_ids, end == due)
