"""The answer of an external engine to one submission.

Owns the next request to the engine, the tokens of an event that are new, and the end of the answer:
at the limit, at a stop token (also one that the engine does not know), or when the engine ends it.
Must not know HTTP, links or clocks.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from typing import Final, Literal, cast, final

from protocol.messages import FinishReason, Grammar, TokenLogprobs
from protocol.sampling import SamplingParams
from workers.external.engine_api import EngineError, EngineEvent, EngineJob

_FINISHES: Final = frozenset({"stop", "length"})
_SEEDS: Final = 2**63
_OTHERWISE: Final = "the engine begins its answer otherwise than before, inside its grammar"


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """New tokens; `offset` is the index of the first among all outputs."""

    offset: int
    ids: list[int]
    logprobs: tuple[TokenLogprobs, ...]


@final
class ExternalAnswer:
    """The state of one answer. While `is_over` is false, `next_job` gives the next job for the
    engine; afterwards `reason`, `matched` and the counts are final.

    An engine may report the cached prompt tokens after the last token. So an answer with a `reason`
    is over only when the engine ends its stream, or when it sends more tokens.
    """

    def __init__(
        self,
        prompt: array[int],
        outputs: array[int],
        sampling: SamplingParams,
        *,
        seed: int,
        salt: bytes,
        max_outputs: int,
        eos_ids: frozenset[int],
        vocab_size: int | None,
        grammar: Grammar | None = None,
    ) -> None:
        self.num_prompt = len(prompt)
        self.num_outputs = len(outputs)
        self.cached_tokens: int | None = None
        self.reason: Literal["stop", "length"] | None = None
        self.matched: int | None = None
        self.is_over = False
        self._ids = prompt + outputs
        self._sampling = sampling
        self._seed = seed
        self._salt = salt
        self._max_outputs = max_outputs
        self._eos_ids = frozenset() if sampling.ignore_eos else eos_ids
        self._stop_ids = self._eos_ids.union(sampling.stop_token_ids)
        self._vocab_size = vocab_size
        self._grammar = grammar
        self._grammar_at = None if grammar is None else grammar_start(grammar, outputs)
        self._is_enforced = False
        self._switches = False
        self._to_repeat: list[int] = []
        self._gap: int | None = None
        self._num_sent = 0
        self._is_streamed = True
        if self.num_outputs >= max_outputs:
            self.reason, self.is_over = "length", True

    @property
    def finish_reason(self) -> FinishReason:
        """Why the answer ended. Only valid once `is_over` is true."""
        assert self.reason is not None
        return self.reason

    @property
    def output_tokens(self) -> int:
        """The output tokens of all attempts, with the stop token."""
        return self.num_outputs + (self.matched is not None)

    @property
    def grammar(self) -> Grammar | None:
        """The grammar that the engine enforces."""
        return self._grammar

    def drop_grammar(self) -> None:
        """Continue without the grammar, which the engine has refused."""
        self._grammar = self._grammar_at = None

    def next_job(self) -> EngineJob:
        """The next job: the prompt and the outputs so far. It is not streamed if the engine left
        tokens out.

        An engine applies a grammar from the first token of a job. So a job with a grammar begins
        where the grammar begins, and the engine repeats the tokens that it has sent after that
        point.
        """
        is_whole = self._gap is None
        begin = self.num_outputs if self._grammar_at is None else self._grammar_at
        self._is_enforced = self._grammar_at is not None
        self._to_repeat = self._ids[self.num_prompt + begin :].tolist()
        left = self._max_outputs - begin
        limit = left if self._gap is None or self._is_enforced else min(left, self._gap)
        # A seed per position: the engine must not draw the same noise again.
        seed = (self._seed + begin) % _SEEDS
        self._num_sent = self.num_prompt + begin
        self._is_streamed = is_whole
        self._gap = None
        self._switches = False
        return EngineJob(
            ids=self._ids[: self._num_sent],
            limit=limit,
            sampling=self._sampling,
            seed=seed,
            salt=self._salt,
            eos_ids=self._eos_ids,
            streamed=self._is_streamed,
            grammar=self._grammar if self._is_enforced else None,
        )

    def take(self, event: EngineEvent) -> AnswerPiece | None:
        """Process one event; return its new tokens. Raises `EngineError` for an event that
        contradicts the job.
        """
        self._check_counts(event)
        if event.cached_tokens is not None and self.cached_tokens is None:
            self.cached_tokens = min(max(0, event.cached_tokens), self.num_prompt)
        if event.gap is not None:
            self._gap = event.gap
            return None
        if self.reason is not None:
            self.is_over = event.finish is not None or bool(event.ids)
            return None
        piece = self._new_tokens(event)
        if event.finish is not None and not self._switches:
            self._end_of_job(event.finish)
        return piece

    @property
    def has_gap(self) -> bool:
        """Whether the caller must leave the rest of the stream and ask again with `next_job`:
        tokens are missing, or a grammar begins here.
        """
        return self._gap is not None or self._switches

    def stream_ended(self) -> bool:
        """Note that the engine has closed the stream; return whether the stream was complete."""
        if self.reason is not None:
            self.is_over = True
        return self.is_over or self.has_gap

    def _end_of_job(self, finish: str) -> None:
        if finish not in _FINISHES:
            raise EngineError(f"the engine ended it: {finish}")
        if self._to_repeat:
            raise EngineError(_OTHERWISE)
        is_part = not self._is_streamed and not self._is_enforced
        if self.reason is None and finish == "length" and is_part:
            if len(self._ids) == self._num_sent:
                raise EngineError("the engine left tokens out, and gave none when asked again")
            return  # the missing tokens have come; the next job streams again
        if self.reason is None:
            self.reason = cast("Literal['stop', 'length']", finish)
        self.is_over = True

    def _new_tokens(self, event: EngineEvent) -> AnswerPiece | None:
        if self._to_repeat:
            event = self._skip_repeated(event)
        ids = event.ids[: self._max_outputs - self.num_outputs]
        if self._grammar is not None and self._grammar_at is None:
            ids = self._before_grammar(self._grammar, ids)
        self._check_ids(ids)
        end = next((at for at, token_id in enumerate(ids) if token_id in self._stop_ids), None)
        if end is None and event.matched is not None and ids and ids[-1] == event.matched:
            end = len(ids) - 1
        if end is not None:
            self.matched, self.reason = ids[end], "stop"
            ids = ids[:end]
        if event.logprobs and len(event.logprobs) != len(event.ids):
            raise EngineError(f"{len(event.logprobs)} log-probabilities for {len(event.ids)} ids")
        if self._sampling.logprobs is not None and ids and not event.logprobs:
            raise EngineError("the engine returned no log-probabilities")
        piece = AnswerPiece(self.num_outputs, ids, event.logprobs[: len(ids)]) if ids else None
        self._ids.extend(ids)
        self.num_outputs += len(ids)
        if self.reason is None and self.num_outputs >= self._max_outputs:
            self.reason = "length"
        return piece

    def _skip_repeated(self, event: EngineEvent) -> EngineEvent:
        """The event without the tokens that the engine repeats. Raises `EngineError` if they
        differ.
        """
        num = min(len(self._to_repeat), len(event.ids))
        if event.ids[:num] != self._to_repeat[:num]:
            raise EngineError(_OTHERWISE)
        del self._to_repeat[:num]
        return replace(event, ids=event.ids[num:], logprobs=event.logprobs[num:])

    def _before_grammar(self, grammar: Grammar, ids: list[int]) -> list[int]:
        """The ids in front of the grammar, which are reasoning. Notes where the grammar begins."""
        is_first = self.num_outputs == 0 and bool(ids)
        if is_first and grammar.opening_id is not None and ids[0] != grammar.opening_id:
            self._grammar_at, self._switches = 0, True
            return []
        if grammar.closing_id in ids:
            ids = ids[: ids.index(grammar.closing_id) + 1]
            self._grammar_at, self._switches = self.num_outputs + len(ids), True
        return ids

    def _check_counts(self, event: EngineEvent) -> None:
        """Raise `EngineError` if the engine counts other prompt tokens: it does not take ids as
        they are.
        """
        if event.prompt_tokens is not None and event.prompt_tokens != self._num_sent:
            raise EngineError(
                f"the engine counts {event.prompt_tokens} prompt tokens where "
                f"{self._num_sent} were sent: it does not take token ids as they are"
            )

    def _check_ids(self, ids: list[int]) -> None:
        size = 2**32 if self._vocab_size is None else self._vocab_size
        if ids and not (min(ids) >= 0 and max(ids) < size):
            raise EngineError(
                f"token id {max(ids)} is outside the vocabulary of {size}: the worker's `model` "
                "names the tokenizer of another model"
            )


def grammar_start(grammar: Grammar, outputs: array[int]) -> int | None:
    """The index of the first output that follows the grammar; None if the reasoning before it is
    not over.
    """
    if grammar.closing_id is None:
        return 0
    if grammar.opening_id is not None and outputs and outputs[0] != grammar.opening_id:
        return 0
    return outputs.index(grammar.closing_id) + 1 if grammar.closing_id in outputs else None
