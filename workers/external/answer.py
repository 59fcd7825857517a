"""One submission's answer on an engine that is not ours.

Owns what is asked next, what of an event is new, and when and how the answer ends: at the limit, at
a stop token (also one that the engine does not know), or when the engine says so. Must not know
HTTP, links or clocks.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final, Literal, cast, final

from protocol.messages import FinishReason, TokenLogprobs
from protocol.sampling import SamplingParams
from workers.external.engine_api import EngineError, Event, Job

_FINISHES: Final = frozenset({"stop", "length"})
_SEEDS: Final = 2**63


@dataclass(frozen=True, slots=True)
class Piece:
    """New tokens; `offset` is the index of the first among all outputs."""

    offset: int
    ids: list[int]
    logprobs: tuple[TokenLogprobs, ...]


@final
class Answer:
    """Asks with `next_job` until it `is_over`, then `reason`, `matched` and the counts are final.

    After the last token the engine may still say how much of the prompt it had cached, so an answer
    whose `reason` is known is over only with the engine's own end, or with more tokens.
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
        self._gap: int | None = None
        self._num_sent = 0
        self._is_streamed = True
        if self.num_outputs >= max_outputs:
            self.reason, self.is_over = "length", True

    @property
    def finish_reason(self) -> FinishReason:
        """Call when it is over."""
        assert self.reason is not None
        return self.reason

    @property
    def output_tokens(self) -> int:
        """Those of all attempts, with the stop token."""
        return self.num_outputs + (self.matched is not None)

    def next_job(self) -> Job:
        """The prompt and the outputs so far; in one piece if the engine left tokens out."""
        left = self._max_outputs - self.num_outputs
        limit = left if self._gap is None else min(left, self._gap)
        # Noise that was drawn once must not be drawn again.
        seed = (self._seed + self.num_outputs) % _SEEDS
        self._num_sent = len(self._ids)
        self._is_streamed = self._gap is None
        self._gap = None
        return Job(
            ids=self._ids,
            limit=limit,
            sampling=self._sampling,
            seed=seed,
            salt=self._salt,
            eos_ids=self._eos_ids,
            streamed=self._is_streamed,
        )

    def take(self, event: Event) -> Piece | None:
        """The new tokens of an event. Raises `EngineError` for one that cannot be true."""
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
        if event.finish is not None:
            self._end_of_job(event.finish)
        return piece

    @property
    def has_gap(self) -> bool:
        """Whether the rest of the stream is of no use: `next_job` asks for what is missing."""
        return self._gap is not None

    def stream_ended(self) -> bool:
        """The engine has closed the stream; whether that was its end."""
        if self.reason is not None:
            self.is_over = True
        return self.is_over or self.has_gap

    def _end_of_job(self, finish: str) -> None:
        if finish not in _FINISHES:
            raise EngineError(f"the engine ended it: {finish}")
        if self.reason is None and finish == "length" and not self._is_streamed:
            if len(self._ids) == self._num_sent:
                raise EngineError("the engine left tokens out, and gave none when asked again")
            return  # the missing tokens are here; the stream goes on
        if self.reason is None:
            self.reason = cast("Literal['stop', 'length']", finish)
        self.is_over = True

    def _new_tokens(self, event: Event) -> Piece | None:
        ids = event.ids[: self._max_outputs - self.num_outputs]
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
        piece = Piece(self.num_outputs, ids, event.logprobs[: len(ids)]) if ids else None
        self._ids.extend(ids)
        self.num_outputs += len(ids)
        if self.reason is None and self.num_outputs >= self._max_outputs:
            self.reason = "length"
        return piece

    def _check_counts(self, event: Event) -> None:
        """An engine that does not take ids counts something else."""
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
