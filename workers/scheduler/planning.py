"""Chooses the content of the next step.

Owns the order of the choice. There are no phases of prefill or decode: each running sequence that
decodes takes one token, and prompts share the rest of the token budget and of the time that decodes
may wait. When blocks run out, the sequence that started last gives its blocks back and is computed
again later (as in vLLM's scheduler over `num_computed_tokens`). Must not know links, messages or a
clock.

A step may be planned while the one before is computed. If a block changes hands in between, its old
owner writes to it first, because steps take effect in order.
"""

from typing import NamedTuple

from msgspec import structs

from workers.scheduler.admission import SchedulerLimits
from workers.scheduler.block_manager import BlockManager
from workers.scheduler.drafting import StepDrafts, to_draft, with_drafts
from workers.scheduler.loading import HostLoads, NoHostLoads
from workers.scheduler.plan import Chunk, SequenceStart
from workers.scheduler.plan_starts import PlanStarts
from workers.scheduler.prompt_pace import PromptPace
from workers.scheduler.prompt_shares import share
from workers.scheduler.queues import Queues
from workers.scheduler.saving import PrefixStates
from workers.scheduler.sequence import Sequence


class StepChoice(NamedTuple):
    """The chunks to compute, the sequences that are new to the runner, and the number of
    preemptions.
    """

    chunks: list[Chunk]
    started: list[SequenceStart]
    num_preempted: int


def choose(
    queues: Queues,
    blocks: BlockManager,
    limits: SchedulerLimits,
    pace: PromptPace,
    drafting: StepDrafts,
    loads: HostLoads | NoHostLoads,
) -> StepChoice:
    """The chunks of the next step. Allocates their blocks and moves sequences between the queues.

    Decodes carry the drafts of `drafting` to verify.
    """
    chunks: list[Chunk] = []
    blocks.windows.pass_all()
    prefills, num_preempted = _decode(queues, blocks, chunks)
    if moves := drafting.moves:
        chunks = [structs.replace(chunk, may_move=moves[chunk.seq]) for chunk in chunks]
    if drafting.drafts:
        chunks = with_drafts(chunks, drafting.drafts, queues, blocks)
    # A preempted sequence is at the head of the queue now. The step in flight may still compute it,
    # so it starts again only when that step is committed and all its tokens are known.
    may_start = num_preempted == 0 and len(queues.waiting) > 0
    started: list[SequenceStart] = []
    if prefills or may_start:
        starts = PlanStarts(queues, blocks, limits.max_running if may_start else 0, loads)
        chunks += _prompts(prefills, starts, chunks, limits, pace, blocks)
        started = starts.started
    if drafting.depth:
        chunks = to_draft(chunks, drafting.depth, queues, blocks, limits.context_length)
    if blocks.windows.has_any:
        chunks = [_with_window(chunk, queues) for chunk in chunks]
    return StepChoice(chunks, started, num_preempted)


def _with_window(chunk: Chunk, queues: Queues) -> Chunk:
    """The chunk with the blocks of layers that keep only their window."""
    window = queues.running[chunk.seq].table.window
    return structs.replace(chunk, window_ids=window.freeze())


def _prompts(
    prefills: list[Sequence],
    starts: PlanStarts,
    decodes: list[Chunk],
    limits: SchedulerLimits,
    pace: PromptPace,
    blocks: BlockManager,
) -> list[Chunk]:
    """The chunks of prompts beside `decodes`."""
    num_drafts = sum([len(chunk.drafts) for chunk in decodes])
    token_budget = limits.token_budget - num_drafts
    num_prompts = len(prefills) + starts.num_waiting
    budget = pace.budget(len(decodes), num_prompts, token_budget)
    if budget is None:
        starts.close()
        return []
    before_s = budget.seconds
    chunks = share(prefills, starts, budget, blocks)
    if decodes:
        are_whole = len(chunks) == len(prefills) + len(starts.started)
        leaves_some = starts.num_waiting > 0 or not (are_whole and all(c.samples for c in chunks))
        pace.take(len(decodes), before_s - budget.seconds, leaves_some=leaves_some)
    return chunks


def _decode(
    queues: Queues, blocks: BlockManager, chunks: list[Chunk]
) -> tuple[list[Sequence], int]:
    """Give every running sequence its blocks, oldest first, and append a chunk of one token for
    each that decodes. Returns the sequences that need more than one token, and the number of
    sequences that were preempted.
    """
    block_size, has_windows = blocks.block_size, blocks.windows.has_any
    prefills: list[Sequence] = []
    grown: list[Sequence] = []
    num_preempted = 0
    for sequence in list(queues.running.values()):
        if num_preempted and sequence.seq not in queues.running:
            break  # the latest are preempted first, so the rest of the list was preempted too
        start, end = sequence.num_planned, sequence.num_due
        if start == end:
            continue  # the step in flight samples its last possible token
        table = sequence.table
        lacks = len(table.block_ids) * block_size < end
        if lacks or (has_windows and len(table.window.ids) * block_size < end):
            num_preempted += _grow(queues, blocks, sequence, start, end)
            if not table.block_ids:
                break
            grown.append(sequence)
        if end - start > 1:
            prefills.append(sequence)
            continue
        # Most chunks of most steps are made here, so calls are kept to the necessary.
        chunks.append(Chunk(sequence.seq, start, 1, table.ids or table.freeze(), True))
        sequence.num_planned = end
        if end < sequence.max_due:
            sequence.num_due = end + 1
    if isinstance(blocks.states, PrefixStates):
        if blocks.states.grows_ahead:
            grown = [queues.running[chunk.seq] for chunk in chunks]
        _save_along(chunks, grown, blocks, blocks.states)
    return prefills, num_preempted


def _save_along(
    chunks: list[Chunk], grown: list[Sequence], blocks: BlockManager, states: PrefixStates
) -> None:
    """Let decodes that have reached a position to save (`RecurrentState.saves_at`) save their state
    before they compute. Such positions are ends of blocks, so only sequences that have `grown` by a
    block can have reached one.
    """
    due = {one.seq: one for one in grown if one.num_planned > one.state.saves_at}
    for index, chunk in enumerate(chunks) if due else ():
        sequence = due.get(chunk.seq)
        if sequence is not None:
            blocks.name(sequence.table, sequence.token_ids, chunk.start)
            chunks[index] = states.with_answers(chunk, sequence)


def _grow(queues: Queues, blocks: BlockManager, sequence: Sequence, start: int, end: int) -> int:
    """Give a sequence the blocks of its next positions [start, end), and release the blocks that
    these positions no longer see. A prompt has all its blocks; in layers with a window it has the
    blocks that it needs to go on. Returns how many sequences were preempted, perhaps this one too.
    """
    windows = blocks.windows
    windows.pass_by(sequence.table.window, start)
    return _make_room(queues, blocks, sequence, min(end, start + windows.least))


def _make_room(queues: Queues, blocks: BlockManager, sequence: Sequence, num_tokens: int) -> int:
    """Give `sequence` blocks for `num_tokens` tokens. Preempts the sequences that started last
    until there are enough, `sequence` itself in the end. Returns how many were preempted.

    The step in flight may still write to blocks that a preempted sequence gives back. That is
    harmless: steps of their next owner come after it.
    """
    num_preempted = 0
    while not blocks.grow(sequence.table, num_tokens):
        latest = queues.put_back_latest()
        blocks.swap.put_out(latest, blocks.now)
        blocks.release(latest.table)
        latest.num_planned = 0
        num_preempted += 1
        if latest is sequence:
            break
    return num_preempted
