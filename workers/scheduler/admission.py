"""Whether a submission can be taken, and what it becomes.

Owns the limits of an engine and every reason to refuse. Must not know which sequences run.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isnan
from typing import Final

from protocol.errors import WireError
from protocol.hashing import root_digest
from protocol.messages import Embed, Rejected, RejectReason, Score, Submit
from protocol.tokens import unpack_tokens
from workers.scheduler.block_table import BlockTable
from workers.scheduler.sequence import Sequence

_root_digest: Final = lru_cache(maxsize=1024)(root_digest)
"""The root digest of a model and private cache, cached because most requests use a known one."""


@dataclass(frozen=True)
class SchedulerLimits:
    """What the engine can hold.

    A step has at most `max_seqs` sequences and `token_budget` tokens. A sequence has at most
    `context_length` tokens. `max_waiting` more sequences wait in the intake queue. `vocab_size`
    None accepts any token id. Prompts may make decodes wait for about `max_gap_s` per token.
    `enforces_grammars`: the engine has a compiler for grammars. `embedding_size` is that of the
    model's embeddings, 0 if it gives none.
    """

    max_seqs: int
    token_budget: int
    context_length: int
    max_waiting: int
    vocab_size: int | None = None
    max_gap_s: float = inf
    enforces_grammars: bool = False
    embedding_size: int = 0

    def __post_init__(self) -> None:
        smallest = min(self.max_seqs, self.token_budget, self.context_length)
        if smallest < 1 or self.max_waiting < 0 or not self.max_gap_s > 0:
            raise ValueError(f"an engine with {self} could not run anything")

    @property
    def max_running(self) -> int:
        """Sequences in a step: each needs at least one token of the budget."""
        return min(self.max_seqs, self.token_budget)


class Refusal(Exception):
    """A submission is not taken. Never leaves the scheduler: it becomes a `Rejected`."""

    def __init__(self, reason: RejectReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail

    def answer(self, submit: Submit | Embed | Score) -> Rejected:
        """The answer to the gateway."""
        return Rejected(submit.request_id, submit.attempt, self.reason, self.detail)


def largest_id(ids: array[int]) -> int:
    """0 if there are none."""
    return max(ids, default=0)


@dataclass(frozen=True)
class SubmissionReader:
    """Turns submissions into sequences. `pool_tokens` is what all blocks hold together; `largest`
    finds the largest id, faster than `largest_id` where numpy is available (1 ms for 32k ids).
    """

    limits: SchedulerLimits
    pool_tokens: int
    models: tuple[str, ...]
    eos_ids: frozenset[int]
    largest: Callable[[array[int]], int] = largest_id

    def sequence(self, seq: int, link: int, submit: Submit | Embed | Score, now: float) -> Sequence:
        """The sequence of `submit`, its output limit clamped to what the window leaves.

        Raises `Refusal` if it can never run here.
        """
        self._check_model(submit)
        if submit.deadline_s is not None and isnan(submit.deadline_s):
            raise Refusal("invalid", "deadline_s is not a number")
        prompt, outputs = self._unpack(submit)
        max_outputs, stop_ids, adapter = 1, self.eos_ids, ""
        if isinstance(submit, Submit):
            if submit.grammar is not None and not self.limits.enforces_grammars:
                raise Refusal("grammar", "this engine enforces no grammars")
            max_outputs = min(submit.sampling.max_tokens, self._window - len(prompt))
            eos_ids = frozenset() if submit.sampling.ignore_eos else self.eos_ids
            stop_ids = eos_ids.union(submit.sampling.stop_token_ids)
            adapter = submit.adapter
        elif isinstance(submit, Embed):
            self._check_embed(submit)
        return Sequence(
            seq,
            (link, submit.request_id, submit.attempt),
            submit,
            prompt + outputs,
            len(prompt),
            max_outputs=max_outputs,
            stop_ids=stop_ids,
            deadline_at=None if submit.deadline_s is None else now + submit.deadline_s,
            table=BlockTable(
                _root_digest(submit.model, adapter, submit.salt), is_private=bool(submit.salt)
            ),
        )

    @property
    def _window(self) -> int:
        # A sequence that cannot be held alone would preempt itself for ever.
        return min(self.limits.context_length, self.pool_tokens)

    def _check_embed(self, embed: Embed) -> None:
        size = self.limits.embedding_size
        if not size:
            raise Refusal("invalid", "this model gives no embeddings")
        if embed.dimensions is not None and embed.dimensions > size:
            raise Refusal("invalid", f"embeddings of this model have {size} dimensions at most")

    def _check_model(self, submit: Submit | Embed | Score) -> None:
        if submit.model not in self.models:
            served = ", ".join(self.models)
            raise Refusal("unknown_model", f"model {submit.model!r} is not served; here: {served}")
        if isinstance(submit, Submit) and submit.adapter:
            raise Refusal("unknown_model", f"adapter {submit.adapter!r} is not loaded")

    def _unpack(self, submit: Submit | Embed | Score) -> tuple[array[int], array[int]]:
        try:
            prompt = unpack_tokens(submit.prompt_ids)
            outputs = unpack_tokens(submit.output_ids if isinstance(submit, Submit) else b"")
        except WireError as error:
            raise Refusal("invalid", str(error)) from error
        if not prompt:
            raise Refusal("invalid", "the prompt has no tokens; send at least one")
        self._check_length(len(prompt))
        self._check_vocabulary(prompt)
        self._check_vocabulary(outputs)
        return prompt, outputs

    def _check_length(self, num_prompt: int) -> None:
        if num_prompt < self._window:
            return
        if num_prompt >= self.limits.context_length:
            limit = f"the context length is {self.limits.context_length}"
        else:
            limit = f"the key-value cache holds {self.pool_tokens}"
        detail = f"the prompt has {num_prompt} tokens and {limit}, with room for the answer"
        raise Refusal("too_long", detail)

    def _check_vocabulary(self, ids: array[int]) -> None:
        # Ids end up as indices on the device, where a wrong one takes the whole engine down.
        size = self.limits.vocab_size
        if size is not None and (largest := self.largest(ids)) >= size:
            raise Refusal("invalid", f"token id {largest} is outside the vocabulary of {size}")
