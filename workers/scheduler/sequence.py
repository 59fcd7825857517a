"""One sequence from its submission to its end.

Owns its tokens, its limits and where a run of sampled ids is cut. Must not know other sequences,
block ids or the budget of a step.

A stop token (the model's end of sequence, or one that the request names) ends the sequence and
counts as an output token, but is never sent, because it is not text of the answer. It is reported
as `Finished.matched`.
"""

from __future__ import annotations

import sys
from array import array
from typing import Final, NamedTuple, final

from protocol.ids import BlockDigest
from protocol.messages import Embed, Finished, FinishReason, Score, Submit
from protocol.sampling import SamplingParams
from workers.scheduler.block_table import BlockTable
from workers.scheduler.plan import NO_SLOT, SequenceStart
from workers.scheduler.prefix_load import PrefixLoad
from workers.scheduler.retention import ReturnExpectation
from workers.scheduler.tier import Name

NEVER: Final = sys.maxsize
"""A position that is never reached, because no position is as large."""

Key = tuple[int, bytes, int]
"""Link, request id, attempt: the key of a sequence in messages."""


_NO_SAMPLING: Final = SamplingParams(max_tokens=1)
"""The parameters of a sequence that embeds its prompt and samples nothing."""


class SequenceEnd(NamedTuple):
    """Why a sequence is over; `matched` is the stop token, if one ended it."""

    reason: FinishReason
    matched: int | None = None
    detail: str = ""


class Swapped(NamedTuple):
    """Where the host keeps the first `num_tokens` tokens of a preempted sequence: a page for each
    block of keys and values, and those of its recurrent state, if it has one.
    """

    pages: tuple[int, ...]
    num_tokens: int
    state_pages: tuple[int, ...]


@final
class RecurrentState:
    """Where a sequence saves and restores its recurrent state, in models that have one.

    - `saves` are the positions of the prompt at which the state is saved.
    - `saves_at` is the next such position of the answer.
    - `restores` is the slot with whose state the next chunk begins.
    - `verified` (p, n): when n tokens were planned, the state was the one behind p tokens, because
      the tokens between were drafts that the next step folds in.
    """

    __slots__ = ("restores", "saves", "saves_at", "verified")

    def __init__(self) -> None:
        self.saves: list[int] = []
        self.saves_at = NEVER
        self.restores = NO_SLOT
        self.verified = (-1, -1)


@final
class Sequence:
    """`token_ids` are the prompt, the outputs of earlier attempts and the tokens sent since.

    - `num_outputs` counts the outputs of all attempts, the stop token included.
    - `num_planned` counts the leading positions whose keys and values are in the held blocks once
      the steps in flight are done.
    - `num_due` counts the leading positions that can be planned: those of the known tokens, and of
      the one that a step in flight samples, at most `max_due`, because the last possible token is
      not computed.
    - `turn` is its place in the order of first starts; 0 before its start.
    - `awaits`: a block that another sequence computes. While that is under way this one does not
      start, because the other computes a good part of its prompt.
    - `embeds`: it ends where another sequence would sample its first token.
    - `num_top`: it embeds nothing, but the log-probabilities of its prompt are computed, with so
      many likeliest tokens. `num_scored` leading tokens of the prompt have been reported.
    - `is_private`: no other sequence may draft from its text.
    - `grammar` belongs to the runner. It is None while the sequence `is_compiling`.
    - `reads_tokens`: its draws depend on the tokens sampled before (penalties, a grammar).
    - `expected`: its conversation, and what is expected of it after this sequence, once known.
    - `awaits_host`: what is on its way from the host to the card. Until it is there this one does
      not start. `num_loads` counts the loads that it began since its last start. `num_on_card` are
      the tokens with which it could have begun when it waited first; None if it never did.
    - `swapped`: where the host keeps it, if it was preempted and swapped out.
    - `state`: where its recurrent state is saved and restored, in models that have one.
    """

    __slots__ = (
        "attempt",
        "awaits",
        "awaits_host",
        "deadline_at",
        "dimensions",
        "embeds",
        "expected",
        "grammar",
        "is_accepted",
        "is_compiling",
        "is_private",
        "is_started",
        "key",
        "link",
        "max_due",
        "max_outputs",
        "num_accepted",
        "num_cached",
        "num_drafted",
        "num_due",
        "num_loads",
        "num_on_card",
        "num_outputs",
        "num_planned",
        "num_prompt",
        "num_scored",
        "num_top",
        "reads_tokens",
        "request_id",
        "sampling",
        "seed",
        "seq",
        "state",
        "stop_ids",
        "swapped",
        "table",
        "token_ids",
        "turn",
    )

    def __init__(
        self,
        seq: int,
        key: Key,
        submit: Submit | Embed | Score,
        token_ids: array[int],
        num_prompt: int,
        *,
        max_outputs: int,
        stop_ids: frozenset[int],
        deadline_at: float | None,
        table: BlockTable,
    ) -> None:
        self.seq = seq
        self.key = key
        self.link, self.request_id, self.attempt = key
        self.embeds = not isinstance(submit, Submit)
        self.num_top = submit.num_top if isinstance(submit, Score) else None
        self.num_scored = 1
        self.is_private = bool(submit.salt)
        self.dimensions = submit.dimensions if isinstance(submit, Embed) else None
        self.sampling = submit.sampling if isinstance(submit, Submit) else _NO_SAMPLING
        self.seed = submit.seed if isinstance(submit, Submit) else 0
        self.token_ids = token_ids
        self.num_prompt = num_prompt
        self.num_outputs = len(token_ids) - num_prompt
        self.max_outputs = max_outputs
        self.stop_ids = stop_ids
        self.deadline_at = deadline_at
        self.table = table
        self.is_compiling = isinstance(submit, Submit) and submit.grammar is not None
        self.grammar: object | None = None
        self.reads_tokens = self.is_compiling or self.sampling.has_penalties
        self.max_due = num_prompt + max_outputs - 1
        self.num_due = len(token_ids)
        self.num_planned = 0
        self.num_cached = 0
        self.num_drafted = 0
        self.num_accepted = 0
        self.is_started = False
        self.is_accepted = False
        self.turn = 0
        self.state = RecurrentState()
        self.awaits: BlockDigest | None = None
        self.awaits_host: Name | PrefixLoad | None = None
        self.num_loads = 0
        self.num_on_card: int | None = None
        self.swapped: Swapped | None = None
        self.expected: tuple[bytes, ReturnExpectation] | None = None

    def __repr__(self) -> str:
        return (
            f"<Sequence {self.seq}: {self.num_planned}/{self.num_due} planned, "
            f"{self.num_outputs}/{self.max_outputs} out>"
        )

    @property
    def num_cached_on_host(self) -> int:
        """The cached tokens that the host gave while the sequence waited."""
        return 0 if self.num_on_card is None else max(0, self.num_cached - self.num_on_card)

    def start(self) -> SequenceStart:
        """What the runner needs; a copy, because our tokens grow."""
        return SequenceStart(
            seq=self.seq,
            token_ids=self.token_ids[:],
            num_prompt=self.num_prompt,
            sampling=self.sampling,
            seed=self.seed,
            grammar=self.grammar,
            embeds=self.embeds,
            dimensions=self.dimensions,
            num_top=self.num_top,
        )

    def take(self, ids: tuple[int, ...]) -> SequenceEnd | None:
        """Append sampled ids up to the first stop token or the limit. Returns the ending if one was
        reached. `num_outputs` grows by the ids to send, and by one for the stop token.
        """
        for token_id in ids:
            self.num_outputs = num_outputs = self.num_outputs + 1
            if token_id in self.stop_ids:
                return SequenceEnd("stop", token_id)
            self.token_ids.append(token_id)
            if num_outputs >= self.max_outputs:
                return SequenceEnd("length")
        if len(ids) > 1:  # one position was due already
            self.num_due = len(self.token_ids)
        return None

    def wait_for_token(self) -> None:
        """The step sampled no token: make its last position due again."""
        self.num_due = len(self.token_ids)
        self.num_planned = min(self.num_planned, self.num_due - 1)

    def finished(self, ending: SequenceEnd) -> Finished:
        """The last message about this sequence."""
        return Finished(
            self.request_id,
            self.attempt,
            ending.reason,
            prompt_tokens=self.num_prompt,
            cached_tokens=self.num_cached,
            output_tokens=self.num_outputs,
            matched=ending.matched,
            detail=ending.detail,
            drafted_tokens=self.num_drafted,
            accepted_tokens=self.num_accepted,
        )
