"""Applies the result of a step to its sequences, and makes the messages for the gateways.

Owns the way from a `StepResult` to messages: computed blocks are cached, sampled ids are cut and
sent, sequences end. Must not decide what runs next.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from protocol.messages import (
    MAX_SCORED,
    Accepted,
    Embedding,
    FinishReason,
    FromWorker,
    Scored,
    TokenItem,
    TokenLogprobs,
    Tokens,
)
from protocol.tokens import pack_token, pack_tokens
from workers.scheduler.block_manager import BlockManager
from workers.scheduler.plan import Chunk, Sampled, StepPlan, StepResult
from workers.scheduler.queues import Queues
from workers.scheduler.sequence import Sequence, SequenceEnd


class Outgoing(NamedTuple):
    """`link` is 0 for the supervisor, 1 and up for a gateway, `BROADCAST` for all gateways."""

    link: int
    message: FromWorker


_Part = tuple[int, tuple[TokenLogprobs, ...]]
"""The position of a prompt token, and the log-probabilities from there on."""


class StepOutcome(NamedTuple):
    """Messages to send (each sequence's acceptance, then its tokens), and which sequences ended."""

    messages: list[Outgoing]
    ended: list[tuple[Sequence, SequenceEnd]]


def apply(plan: StepPlan, result: StepResult, queues: Queues, blocks: BlockManager) -> StepOutcome:
    """Bring the live sequences up to date with `result`, the answer to `plan`.

    Sequences that ended after the plan was made are skipped. Raises `ValueError` if the runner did
    not answer what the plan asks.
    """
    running, block_size = queues.running, blocks.block_size
    sampled = {item.seq: item for item in result.sampled}
    failed, embeddings = dict(result.failed), dict(result.embeddings)
    scores = {seq: (offset, found) for seq, offset, found in result.scores}
    accepted: list[Outgoing] = []
    ended: list[tuple[Sequence, SequenceEnd]] = []
    items: defaultdict[int, list[TokenItem]] = defaultdict(list)
    for chunk in plan.chunks:
        seq = chunk.seq
        sequence = running.get(seq) or queues.live(seq)
        if sequence is None:
            blocks.states.settle(chunk, None)
            continue
        if not sequence.is_accepted:
            accepted.append(_accept(sequence))
        if seq in failed:
            blocks.states.settle(chunk, None)
            reason: FinishReason = "grammar" if seq in result.ungrammatical else "error"
            ended.append((sequence, SequenceEnd(reason, detail=failed[seq])))
            continue
        end = _end(sequence, chunk)
        if sequence.embeds:
            accepted += _read(sequence, chunk, scores.get(seq), embeddings.get(seq))
            ended += [(sequence, SequenceEnd("length"))] * chunk.samples
        elif chunk.samples:
            answer = sampled.get(seq)
            item, ending = _sample(sequence, chunk, end, answer)
            end = _num_computed(sequence, chunk, end, answer)
            if item is not None:
                items[sequence.link].append(item)
            if ending is not None:
                ended.append((sequence, ending))
        table = sequence.table
        # A sequence that was preempted after the plan was made holds no blocks. Their next owner
        # overwrites what this step wrote.
        if end // block_size > table.num_stored and table.block_ids:
            blocks.store(table, sequence.token_ids, end)
        blocks.states.settle(chunk, sequence)
    return StepOutcome([*accepted, *_tokens(plan.step, items)], ended)


def _end(sequence: Sequence, chunk: Chunk) -> int:
    """The position behind the chunk's last token that is no draft. A chunk that may move ended with
    the last token that is known now.
    """
    return len(sequence.token_ids) if chunk.may_move else chunk.start + chunk.length


def _num_computed(sequence: Sequence, chunk: Chunk, end: int, answer: Sampled | None) -> int:
    """How many leading positions hold the keys and values of the sequence's tokens now. Counts
    accepted drafts, which lie behind `end`, as planned.
    """
    num_ids = 1 if answer is None else len(answer.ids)
    if num_ids == 0:
        return end - 1  # no token came, so the last position is computed again
    if not chunk.drafts or not sequence.table.block_ids:
        return end
    # The next chunk, if it is planned already, moves on by the accepted drafts.
    num_ahead = sequence.num_planned - end
    # A sequence that stopped within them keeps fewer tokens.
    end = min(end + num_ids - 1, len(sequence.token_ids))
    sequence.num_planned = end + num_ahead
    sequence.num_due = min(len(sequence.token_ids) + num_ahead, sequence.max_due)
    return end


def _accept(sequence: Sequence) -> Outgoing:
    sequence.is_accepted = True
    message = Accepted(sequence.request_id, sequence.attempt, sequence.num_cached)
    return Outgoing(sequence.link, message)


def _read(
    sequence: Sequence, chunk: Chunk, scores: _Part | None, values: bytes | None
) -> Iterator[Outgoing]:
    """The messages about a prompt that is only read: its embedding or its log-probabilities."""
    if sequence.num_top is None:
        if chunk.samples:
            yield _embedding(sequence, values)
    elif scores is not None:
        yield from _scored(sequence, *scores)


def _embedding(sequence: Sequence, values: bytes | None) -> Outgoing:
    if values is None:
        raise ValueError(f"the runner did not embed sequence {sequence.seq}")
    return Outgoing(sequence.link, Embedding(sequence.request_id, sequence.attempt, values))


def _scored(
    sequence: Sequence, offset: int, logprobs: tuple[TokenLogprobs, ...]
) -> Iterator[Outgoing]:
    """The messages with the part of `logprobs` that was not sent yet; they begin with the token
    at `offset`.
    """
    if offset > sequence.num_scored:
        raise ValueError(f"the scores of sequence {sequence.seq} have a gap before {offset}")
    logprobs = logprobs[sequence.num_scored - offset :]
    for begin in range(0, len(logprobs), MAX_SCORED):
        part = logprobs[begin : begin + MAX_SCORED]
        message = Scored(sequence.request_id, sequence.attempt, sequence.num_scored, part)
        sequence.num_scored += len(part)
        yield Outgoing(sequence.link, message)


def _sample(
    sequence: Sequence, chunk: Chunk, end: int, answer: Sampled | None
) -> tuple[TokenItem | None, SequenceEnd | None]:
    """The part of `answer` to send, and the ending of the sequence if this is its last answer.
    `end` is the result of `_end`.
    """
    if answer is None:
        raise ValueError(f"the runner did not answer for sequence {chunk.seq}")
    ids, logprobs = answer.ids, answer.logprobs
    if sequence.num_planned > end and not (len(ids) == 1 or (ids and chunk.drafts)):
        raise ValueError(f"the next token of sequence {chunk.seq} is computed, but there are {ids}")
    if not ids:
        sequence.wait_for_token()
        return None, None
    offset = sequence.num_outputs
    ending = sequence.take(ids)
    if chunk.drafts:
        sequence.num_drafted += len(chunk.drafts)
        sequence.num_accepted += min(sequence.num_outputs - offset, len(ids) - 1)
    num_sent = sequence.num_outputs - offset
    if ending is not None and ending.matched is not None:
        num_sent -= 1
    if num_sent == 0:
        return None, ending
    packed = pack_token(ids[0]) if num_sent == 1 else pack_tokens(ids[:num_sent])
    item = TokenItem(sequence.request_id, sequence.attempt, offset, packed, logprobs[:num_sent])
    return item, ending


def _tokens(step: int, items: dict[int, list[TokenItem]]) -> Iterator[Outgoing]:
    for link, of_link in items.items():
        yield Outgoing(link, Tokens(step, tuple(of_link)))
