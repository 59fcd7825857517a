"""What the next step computes.

Owns the order of the choice: no prefill or decode phases. Running sequences that only decode take
one token each; the prompts share what is left of the token budget, and of the time that decodes may
wait. When blocks run out, the latest started sequence gives its blocks back and is computed again
later (vLLM's `num_computed_tokens` scheduler). Must not know links, messages or a clock.

A step may be planned while the one before is computed. Blocks that change hands in between are
written by their old owner first, because steps take effect in order.
"""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import structs

from workers.scheduler.admission import SchedulerLimits
from workers.scheduler.block_manager import BlockManager
from workers.scheduler.drafting import to_draft, with_drafts
from workers.scheduler.plan import Chunk, SequenceStart
from workers.scheduler.prompt_budget import PromptBudget
from workers.scheduler.prompt_shares import share
from workers.scheduler.queues import Queues
from workers.scheduler.saving import PrefixStates
from workers.scheduler.sequence import Sequence
from workers.scheduler.starts import Starts
from workers.scheduler.step_cost import StepCost


class StepChoice(NamedTuple):
    """What to compute, which sequences are new to the runner, and how many lost their blocks."""

    chunks: list[Chunk]
    started: list[SequenceStart]
    num_preempted: int


def choose(
    queues: Queues,
    blocks: BlockManager,
    limits: SchedulerLimits,
    cost: StepCost,
    drafts: Mapping[int, tuple[int, ...]],
    draft_depth: int,
    moves: Mapping[int, int],
) -> StepChoice:
    """The chunks of the next step; blocks are allocated and queues moved accordingly. Decodes carry
    `drafts`, and the card makes `draft_depth` more behind the tokens that the step samples.
    `moves` says by how many accepted drafts of the step in flight each sequence may move: then all
    are decodes, and have the blocks for it.
    """
    chunks: list[Chunk] = []
    prefills, num_preempted = _decode(queues, blocks, chunks)
    if moves:
        chunks = [structs.replace(chunk, may_move=moves[chunk.seq]) for chunk in chunks]
    if drafts:
        chunks = with_drafts(chunks, drafts, queues, blocks)
    # A preempted sequence is at the head of the queue now, and the step in flight may still compute
    # it: it starts again once that step is committed and all its tokens are known.
    may_start = num_preempted == 0 and len(queues.waiting) > 0
    started: list[SequenceStart] = []
    if prefills or may_start:
        starts = Starts(queues, blocks, limits.max_running if may_start else 0)
        chunks += _prompts(prefills, starts, chunks, limits, cost, blocks)
        started = starts.started
    if draft_depth:
        chunks = to_draft(chunks, draft_depth, queues, blocks, limits.context_length)
    return StepChoice(chunks, started, num_preempted)


def _prompts(
    prefills: list[Sequence],
    starts: Starts,
    decodes: list[Chunk],
    limits: SchedulerLimits,
    cost: StepCost,
    blocks: BlockManager,
) -> list[Chunk]:
    """What prompts compute beside `decodes`."""
    num_drafts = sum([len(chunk.drafts) for chunk in decodes])
    token_budget = limits.token_budget - num_drafts
    num_prompts = len(prefills) + starts.num_waiting
    budget = PromptBudget.beside(len(decodes), num_prompts, token_budget, limits.max_gap_s, cost)
    return share(prefills, starts, budget, blocks)


def _decode(
    queues: Queues, blocks: BlockManager, chunks: list[Chunk]
) -> tuple[list[Sequence], int]:
    """Give every running sequence its blocks, oldest first, and one token if that is all it needs.

    Appends to `chunks`; returns those that need more, and how many sequences were preempted.
    """
    block_size = blocks.block_size
    prefills: list[Sequence] = []
    grown: list[Sequence] = []
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
            grown.append(sequence)
        if end - start > 1:
            prefills.append(sequence)
            continue
        # Most chunks of most steps are made here, so there is no call that they do not need.
        chunks.append(Chunk(sequence.seq, start, 1, table.ids or table.freeze(), True))
        sequence.num_planned = end
        if end < sequence.max_due:
            sequence.num_due = end + 1
    if blocks.states is not None:
        if blocks.states.grows_ahead:
            grown = [queues.running[chunk.seq] for chunk in chunks]
        _save_along(chunks, grown, blocks, blocks.states)
    return prefills, num_preempted


def _save_along(
    chunks: list[Chunk], grown: list[Sequence], blocks: BlockManager, states: PrefixStates
) -> None:
    """Save the states ahead of decodes that have come so far. States lie at the ends of blocks, so
    these are among the sequences that have `grown` by a block.
    """
    due = {one.seq: one for one in grown if one.num_planned > one.saves_at}
    for index, chunk in enumerate(chunks) if due else ():
        sequence = due.get(chunk.seq)
        if sequence is not None:
            blocks.name(sequence.table, sequence.token_ids, chunk.start)
            chunks[index] = states.with_answers(chunk, sequence)


def _make_room(queues: Queues, blocks: BlockManager, sequence: Sequence) -> int:
    """Blocks for all tokens of `sequence`, from later ones if need be, or it is preempted.

    A step in flight may still write to what a preempted sequence gives back; the next owner's step
    comes after it.
    """
    num_preempted = 0
    while not blocks.grow(sequence.table, sequence.num_due):
        latest = queues.put_back_latest()
        if blocks.swap is not None:
            blocks.swap.put_out(latest)
        blocks.release(latest.table)
        latest.num_planned = 0
        num_preempted += 1
        if latest is sequence:
            break
    return num_preempted
