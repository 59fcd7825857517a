"""What the next step computes.

Owns the choice: one token budget, no prefill or decode phases. Every running sequence catches up
with its tokens, oldest first; what is left of the budget starts waiting ones. When blocks run out,
the latest arrived sequence gives its blocks back and is computed again later (vLLM's
`num_computed_tokens` scheduler). Must not know links, messages or time.
"""

from typing import NamedTuple

from workers.core.block_manager import BlockManager
from workers.core.intake import SchedulerLimits
from workers.core.plan import Chunk, SequenceStart
from workers.core.queues import Queues
from workers.core.sequence import Sequence


class Choice(NamedTuple):
    """What to compute, who is new to the runner, and how many sequences lost their blocks."""

    chunks: list[Chunk]
    started: list[SequenceStart]
    num_preempted: int


def choose(queues: Queues, blocks: BlockManager, limits: SchedulerLimits) -> Choice:
    """The chunks of the next step; blocks are allocated and queues moved accordingly."""
    chunks: list[Chunk] = []
    budget, num_preempted = _continue_running(queues, blocks, limits.token_budget, chunks)
    # Who was just preempted is the head now and cannot start again at once: an older sequence took
    # more blocks than were free before, so fewer are free now than the head gave back.
    started = _start_waiting(queues, blocks, limits.max_running, budget, chunks)
    return Choice(chunks, started, num_preempted)


def _continue_running(
    queues: Queues, blocks: BlockManager, budget: int, chunks: list[Chunk]
) -> tuple[int, int]:
    """Appends to `chunks`; returns the budget left and how many sequences were preempted."""
    block_size = blocks.block_size
    num_preempted = 0
    for sequence in list(queues.running.values()):
        if budget == 0 or sequence.seq not in queues.running:
            break  # Preempted ones are the latest, so all that follow are preempted too.
        if len(sequence.table.block_ids) * block_size < len(sequence.token_ids):
            num_preempted += _make_room(queues, blocks, sequence)
            if sequence.seq not in queues.running:
                break
        chunk = _chunk(sequence, budget, block_size)
        chunks.append(chunk)
        budget -= chunk.length
    return budget, num_preempted


def _make_room(queues: Queues, blocks: BlockManager, sequence: Sequence) -> int:
    """Blocks for all tokens of `sequence`, from later ones if need be, or it is preempted."""
    num_preempted = 0
    while not blocks.grow(sequence.table, len(sequence.token_ids)):
        latest = queues.put_back_latest()
        blocks.release(latest.table)
        latest.num_computed = 0
        num_preempted += 1
        if latest is sequence:
            break
    return num_preempted


def _start_waiting(
    queues: Queues, blocks: BlockManager, max_running: int, budget: int, chunks: list[Chunk]
) -> list[SequenceStart]:
    """Appends to `chunks`; returns those that the runner has not seen before."""
    started: list[SequenceStart] = []
    while budget > 0 and len(queues.running) < max_running:
        sequence = queues.head()
        if sequence is None or not _admit(sequence, blocks, reserve=len(queues.running)):
            break
        queues.start_head()
        if not sequence.is_started:
            sequence.is_started = True
            started.append(sequence.start())
        chunk = _chunk(sequence, budget, blocks.block_size)
        chunks.append(chunk)
        budget -= chunk.length
    return started


def _admit(sequence: Sequence, blocks: BlockManager, reserve: int) -> bool:
    """Blocks for the whole sequence, if there are enough.

    One block stays free for each running sequence: to prefill a prompt only to preempt it at the
    next block boundary of an older sequence is worse than to wait.
    """
    num_tokens = len(sequence.token_ids)
    hit = blocks.match(sequence.table, sequence.token_ids)
    if not blocks.can_admit(hit, num_tokens, reserve):
        return False
    blocks.admit(sequence.table, hit, num_tokens)
    sequence.num_computed = len(hit.block_ids) * blocks.block_size
    if not sequence.is_started:
        sequence.num_cached = min(sequence.num_computed, sequence.num_prompt)
    return True


def _chunk(sequence: Sequence, budget: int, block_size: int) -> Chunk:
    start = sequence.num_computed
    remaining = len(sequence.token_ids) - start
    length = min(remaining, budget)
    num_blocks = -(-(start + length) // block_size)
    return Chunk(
        sequence.seq, start, length, sequence.table.leading(num_blocks), length == remaining
    )
