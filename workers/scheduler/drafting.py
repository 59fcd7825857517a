"""Drafts in plans: which sequences may have some, and the blocks for them.

Owns the seam to the proposer of drafts, what a scheduler asks it for, and the chunks that carry
drafts. While a step with drafts is in flight, only a step of decodes with drafts is planned ahead
of its result. Must not know where drafts come from, nor how many pay: the proposer decides that,
within the room of a step.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol, cast, final

import msgspec

from protocol.messages import DraftResults
from workers.scheduler.block_manager import BlockManager
from workers.scheduler.block_table import BlockTable
from workers.scheduler.plan import (
    ON_CARD,
    Chunk,
    DraftTiming,
    SequenceStart,
    StepPlan,
    StepResult,
)
from workers.scheduler.prompt_budget import LEAST_TOKENS
from workers.scheduler.queues import Queues


class DraftCandidate(NamedTuple):
    """A sequence whose next step computes one token, and may verify up to `most` drafts."""

    seq: int
    most: int


class GrammarState(Protocol):
    """The grammar of one sequence, at the position of its answer."""

    def num_allowed(self, outputs: array[int], drafts: Sequence[int]) -> int:
        """How many of the leading `drafts` may come behind the outputs so far."""


class Proposer(Protocol):
    """Proposes drafts for the sequences of one scheduler."""

    def summary(self) -> DraftResults:
        """The gain of drafts, in words for operators."""

    def num_to_draft(self, num_sequences: int, room: int) -> int:
        """How many drafts the drafting network makes in the next step, behind the token that it
        samples for each of `num_sequences`. The step after that verifies at most `room` in all.
        """

    def start(self, seq: int, token_ids: array[int], shared_from: int | None) -> None:
        """A sequence runs. Its `token_ids` grow while it runs; do not change them. When it is over,
        other sequences may draft from its tokens from index `shared_from` on; None: from none.
        """

    def end(self, seq: int) -> None:
        """The sequence is over; its tokens do not change any more."""

    def take_in(self, chunks: list[Chunk]) -> tuple[list[Chunk], bool]:
        """The chunks of the next step, where the proposer may have cleared `num_to_draft`, and
        whether a drafter on the host takes that step in. Their sequences have started.
        """

    def waits(self, candidates: Sequence[DraftCandidate]) -> bool:
        """Whether the next plan should wait for the tokens of the step in flight, because drafts
        behind them should pay.
        """

    def propose(
        self, candidates: Sequence[DraftCandidate], room: int
    ) -> Mapping[int, tuple[int, ...]]:
        """Drafts by sequence (ids, or `ON_CARD` for each), at most `room` in all."""

    def propose_ahead(
        self, in_flight: StepPlan, candidates: Sequence[DraftCandidate], room: int
    ) -> Mapping[int, tuple[int, ...]]:
        """Drafts for a step that is planned before the result of `in_flight`, which has or makes
        drafts, is known. None at all: wait for that result.
        """

    def learn(self, plan: StepPlan, result: StepResult) -> None:
        """Take the result of a step. Results come in the order of the plans."""

    def took(
        self,
        plan: StepPlan,
        num_tokens: int,
        seconds: float,
        *,
        is_ahead: bool,
        drafting: DraftTiming,
    ) -> None:
        """A step gave `num_tokens` tokens, `seconds` after the result of the step before it; these
        include the time of the `drafting` pass. `is_ahead`: it was launched before that earlier
        result was there.
        """


def candidates_of(queues: Queues) -> list[DraftCandidate]:
    """The running sequences that decode. No draft stands at a sequence's last possible token,
    because nothing is computed from that.
    """
    return [
        DraftCandidate(sequence.seq, sequence.max_due - 1 - sequence.num_planned)
        for sequence in queues.running.values()
        if sequence.num_due - sequence.num_planned == 1
    ]


class StepDrafts(NamedTuple):
    """What a step drafts: the `drafts` (by sequence) that it verifies; by how many accepted drafts
    of the step in flight each sequence may move; and how many drafts the drafting network makes
    behind the tokens that the step samples. If there are any `moves`, all running sequences decode
    and hold the blocks for them.
    """

    drafts: Mapping[int, tuple[int, ...]]
    moves: Mapping[int, int]
    depth: int


@final
class NoDraftPlans:
    """`DraftPlans` of a scheduler without a proposer."""

    def of_step(self, in_flight: StepPlan | None) -> StepDrafts:  # noqa: ARG002 - the drafts'
        """None, and no step waits for any."""
        return _NONE

    def take_in(
        self,
        started: Sequence[SequenceStart],  # noqa: ARG002 - the drafts'
        chunks: list[Chunk],
    ) -> tuple[list[Chunk], bool]:
        """The chunks as they are."""
        return chunks, True

    def learn(self, plan: StepPlan, result: StepResult) -> None:
        """Learn nothing."""

    def took(self, plan: StepPlan, result: StepResult, seconds: float, *, is_ahead: bool) -> None:
        """Learn nothing."""

    def end(self, seq: int) -> None:
        """Forget nothing."""

    def summary(self) -> None:
        """Nothing is seen."""


_NONE: Final = StepDrafts({}, {}, 0)


@final
class DraftPlans:
    """What `proposer` drafts for the sequences of one scheduler, which are in `queues`, in steps of
    at most `token_budget` tokens.
    """

    def __init__(
        self, proposer: Proposer, queues: Queues, blocks: BlockManager, token_budget: int
    ) -> None:
        self._proposer = proposer
        self._queues = queues
        self._blocks = blocks
        self._token_budget = token_budget
        self.learn = proposer.learn
        self.end = proposer.end
        self.summary = proposer.summary
        blocks.states.grows_ahead = True

    def of_step(self, in_flight: StepPlan | None) -> StepDrafts | None:
        """What the next step drafts; None: it waits for the result of the step `in_flight`."""
        drafts: Mapping[int, tuple[int, ...]] = {}
        moves: Mapping[int, int] = {}
        if in_flight is None:
            drafts = self._proposed()
        elif self._waits(in_flight):
            drafts, moves = self._ahead(in_flight)
            if not drafts:
                return None
        num_sequences = max(1, len(self._queues.running))
        depth = self._proposer.num_to_draft(num_sequences, self._room(0))
        return StepDrafts(drafts, moves, depth)

    def take_in(
        self, started: Sequence[SequenceStart], chunks: list[Chunk]
    ) -> tuple[list[Chunk], bool]:
        """Show the proposer the sequences that start; embeddings have no tokens to draft. Returns
        what `Proposer.take_in` does.
        """
        for start in started:
            sequence = self._queues.running[start.seq]
            if not sequence.embeds:
                shared_from = None if sequence.is_private else sequence.num_cached
                self._proposer.start(start.seq, sequence.token_ids, shared_from)
        return self._proposer.take_in(chunks)

    def took(self, plan: StepPlan, result: StepResult, seconds: float, *, is_ahead: bool) -> None:
        """A step is committed; see `Proposer.took`."""
        num_tokens = sum([len(item.ids) for item in result.sampled])
        drafting = result.drafting
        self._proposer.took(plan, num_tokens, seconds, is_ahead=is_ahead, drafting=drafting)

    def _room(self, num_prompts: int) -> int:
        """How many drafts a step of all running sequences may verify."""
        room = self._token_budget - len(self._queues.running)
        return max(0, room - (LEAST_TOKENS if num_prompts else 0))

    def _waits(self, in_flight: StepPlan) -> bool:
        """Whether the next plan depends on the tokens of the step in flight: on how many drafts it
        accepts, or on the tokens behind which to draft.
        """
        if any(chunk.drafts or chunk.num_to_draft for chunk in in_flight.chunks):
            return True
        return self._proposer.waits(candidates_of(self._queues))

    def _proposed(self) -> Mapping[int, tuple[int, ...]]:
        """The drafts, by sequence, of a step behind which all results are known."""
        candidates, queues = candidates_of(self._queues), self._queues
        if not candidates:
            return {}
        num_prompts = len(queues.running) - len(candidates) + len(queues.waiting)
        return self._proposer.propose(candidates, self._room(num_prompts))

    def _ahead(
        self, in_flight: StepPlan
    ) -> tuple[Mapping[int, tuple[int, ...]], Mapping[int, int]]:
        """The drafts and the moves of a step that is planned while a step with drafts is in flight.
        None unless all sequences decode, none of their draws reads earlier tokens, the model keeps
        no recurrent states, and there are blocks for all drafts that may be accepted.
        """
        queues, running = self._queues, self._queues.running.values()
        if queues.waiting or self._blocks.states.has_any:
            return {}, {}
        if any(one.reads_tokens or one.num_due - one.num_planned > 1 for one in running):
            return {}, {}
        most = {chunk.seq: len(chunk.drafts) for chunk in in_flight.chunks}
        found = candidates_of(queues)
        moves = {seq: most.get(seq, 0) for seq, _ in found}
        candidates = [DraftCandidate(seq, max(0, left - moves[seq])) for seq, left in found]
        if not candidates:
            return {}, {}
        drafts = self._proposer.propose_ahead(in_flight, candidates, self._room(0))
        for seq, move in moves.items() if drafts else ():
            sequence = queues.running[seq]
            if not _grow(sequence.table, sequence.num_due + move, queues, self._blocks):
                return {}, {}
        return drafts, moves


def with_drafts(
    chunks: Sequence[Chunk],
    drafts: Mapping[int, tuple[int, ...]],
    queues: Queues,
    blocks: BlockManager,
) -> list[Chunk]:
    """The `chunks` of decodes with their drafts, cut at the first draft that a grammar refuses and
    to what free blocks hold. No sequence is preempted for another one's drafts.
    """
    return [
        _carrying(chunk, drafts[chunk.seq], queues, blocks) if chunk.seq in drafts else chunk
        for chunk in chunks
    ]


def _carrying(chunk: Chunk, own: tuple[int, ...], queues: Queues, blocks: BlockManager) -> Chunk:
    sequence, end = queues.running[chunk.seq], chunk.start + chunk.length + chunk.may_move
    table = sequence.table
    # Drafts on the card are not known here: the runner asks the grammar about them.
    if sequence.grammar is not None and own[0] != ON_CARD:
        grammar = cast("GrammarState", sequence.grammar)
        own = own[: grammar.num_allowed(sequence.token_ids[sequence.num_prompt :], own)]
    own = own[: blocks.states.most_drafts(sequence, end)]
    if not _grow(table, end + len(own), queues, blocks):
        own = own[: len(table.block_ids) * blocks.block_size - end]
    block_ids = table.ids or table.freeze()
    return msgspec.structs.replace(chunk, block_ids=block_ids, drafts=own)


def to_draft(
    chunks: Sequence[Chunk], depth: int, queues: Queues, blocks: BlockManager, window: int
) -> list[Chunk]:
    """The `chunks`, where those that sample ask for `depth` drafts, if at least one of these may be
    verified later and blocks within the `window` (tokens) hold them.
    """
    return [
        _drafting(chunk, depth, queues, blocks, window)
        if chunk.samples and not queues.running[chunk.seq].embeds
        else chunk
        for chunk in chunks
    ]


def _drafting(chunk: Chunk, depth: int, queues: Queues, blocks: BlockManager, window: int) -> Chunk:
    sequence = queues.running[chunk.seq]
    if sequence.max_due - 1 - (chunk.start + chunk.length) < 1:
        return chunk
    anchor = chunk.start + chunk.may_move + chunk.num_rows  # if all drafts are accepted
    end = anchor + depth + 1
    # The drafter writes its keys and values behind the sequence's last possible token, too.
    if end > window or not _grow(sequence.table, end, queues, blocks):
        return chunk
    block_ids = sequence.table.ids or sequence.table.freeze()
    return msgspec.structs.replace(chunk, block_ids=block_ids, num_to_draft=depth)


def _grow(table: BlockTable, num_tokens: int, queues: Queues, blocks: BlockManager) -> bool:
    """Try to make `table` hold `num_tokens` tokens; returns whether it does. One block stays free
    for each running sequence, so that drafts preempt none of them.
    """
    num_new = blocks.num_needed(num_tokens) - len(table.block_ids)
    if num_new > 0 and blocks.num_free - num_new < len(queues.running):
        return False
    return blocks.grow(table, num_tokens)
