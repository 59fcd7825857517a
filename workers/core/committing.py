"""What a computed step means for its sequences and for those who wait for tokens.

Owns the way from a `StepResult` to messages: what was computed is cached, sampled ids are cut and
sent, sequences end. Must not decide what runs next.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from protocol.messages import Accepted, TokenItem, TokenLogprobs, Tokens
from protocol.tokens import pack_tokens
from workers.core.block_manager import BlockManager
from workers.core.outgoing import Outgoing
from workers.core.plan import Chunk, Sampled, StepPlan, StepResult
from workers.core.sequence import Ending, Sequence


@dataclass(frozen=True, slots=True)
class Outcome:
    """Messages to send (each sequence's acceptance, then its tokens), and who ended and why."""

    messages: list[Outgoing]
    ended: list[tuple[Sequence, Ending]]


def apply(
    plan: StepPlan, result: StepResult, running: dict[int, Sequence], blocks: BlockManager
) -> Outcome:
    """Bring the running sequences up to date with `result`, the answer to `plan`.

    Sequences that were aborted meanwhile are skipped. Raises `ValueError` if the runner did not
    answer for a sequence that was to be sampled.
    """
    sampled = {item.seq: item for item in result.sampled}
    failed = dict(result.failed)
    accepted: list[Outgoing] = []
    ended: list[tuple[Sequence, Ending]] = []
    items: dict[int, list[TokenItem]] = {}
    for chunk in plan.chunks:
        sequence = running.get(chunk.seq)
        if sequence is None:
            continue
        if not sequence.is_accepted:
            accepted.append(_accept(sequence))
        if chunk.seq in failed:
            ended.append((sequence, Ending("error", detail=failed[chunk.seq])))
            continue
        sequence.num_computed = chunk.start + chunk.length
        if sequence.num_computed // blocks.block_size > sequence.table.num_stored:
            blocks.store(sequence.table, sequence.token_ids, sequence.num_computed)
        if not chunk.samples:
            continue
        item, ending = _sample(sequence, _answer(chunk, sampled))
        if item is not None:
            items.setdefault(sequence.link, []).append(item)
        if ending is not None:
            ended.append((sequence, ending))
    return Outcome([*accepted, *_tokens(plan.step, items)], ended)


def _accept(sequence: Sequence) -> Outgoing:
    sequence.is_accepted = True
    link, request_id, attempt = sequence.key
    return Outgoing(link, Accepted(request_id, attempt, sequence.num_cached))


def _answer(chunk: Chunk, sampled: dict[int, Sampled]) -> Sampled:
    answer = sampled.get(chunk.seq)
    if answer is None or not answer.ids:
        raise ValueError(f"the runner sampled no token for sequence {chunk.seq}")
    return answer


def _sample(sequence: Sequence, answer: Sampled) -> tuple[TokenItem | None, Ending | None]:
    offset = sequence.num_outputs
    num_sent, ending = sequence.take(answer.ids)
    if num_sent == 0:
        return None, ending
    _, request_id, attempt = sequence.key
    ids = pack_tokens(answer.ids[:num_sent])
    logprobs: tuple[TokenLogprobs, ...] = answer.logprobs[:num_sent]
    return TokenItem(request_id, attempt, offset, ids, logprobs), ending


def _tokens(step: int, items: dict[int, list[TokenItem]]) -> Iterator[Outgoing]:
    for link, of_link in items.items():
        yield Outgoing(link, Tokens(step, tuple(of_link)))
