"""The API of llama.cpp's `llama-server`: `/completion` with token ids in both directions.

Owns the fields of requests, answers and metrics (tools/server/README.md of llama.cpp), and the
recovery of tokens that the streams leave out. Must not know sockets.

The server holds back tokens that end inside a character until the character is complete, and then
sends only the last of these tokens. `tokens_predicted` counts all of them, so the loss is visible;
the missing tokens are requested again in one piece, which contains every token. With drafts the
count runs ahead of the tokens within a step, so tokens are kept until the two agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

import msgspec

from protocol.messages import Submit, TokenLogprobs
from workers.external.engine_api import (
    DONE,
    EngineError,
    EngineEvent,
    EngineJob,
    EngineLimits,
    EngineTrouble,
    HttpRequest,
    OneHealthTarget,
    SleepCalls,
    decoded,
    error_in,
    json_object,
    load_of,
    positive,
    sampling_fields,
)
from workers.external.grammar_fields import LLAMA_CPP_FORMS, llama_cpp_fields

_PROPS: Final = "/props"
_SEEDS: Final = 2**32 - 1
"""To llama-server the largest u32 means a random seed."""

_FINISHES: Final = {"eos": "stop", "word": "stop", "limit": "length"}


class _Prob(msgspec.Struct):
    id: int
    logprob: float | None = None
    top_logprobs: list[_Prob] | None = None


class _Progress(msgspec.Struct):
    cache: int = 0


class _Timings(msgspec.Struct):
    cache_n: int | None = None


class _Chunk(msgspec.Struct):
    content: str | None = None
    tokens: list[int] | None = None
    stop: bool = False
    stop_type: str = "none"
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None
    timings: _Timings | None = None
    prompt_progress: _Progress | None = None
    completion_probabilities: list[_Prob] | None = None
    error: Any = None


_chunks: Final = msgspec.json.Decoder(_Chunk, strict=False)


@final
class LlamaCppApi(OneHealthTarget):
    """One llama-server."""

    grammar_forms = LLAMA_CPP_FORMS
    fact_targets = (_PROPS,)
    sleep_calls: SleepCalls | None = None

    def limits(self, answers: Mapping[str, bytes]) -> EngineLimits:
        """The limits from `/props`; `n_ctx` is the context length of one slot."""
        props = json_object(answers, _PROPS)
        settings = props.get("default_generation_settings")
        window = positive(settings.get("n_ctx")) if isinstance(settings, dict) else None
        slots = positive(props.get("total_slots"))
        kv_tokens = window * slots if window and slots else None
        return EngineLimits(window, slots, kv_tokens, str(props.get("build_info", "")))

    def refusal(self, submit: Submit) -> str | None:
        """The feature that llama-server has no field for."""
        if submit.adapter:
            return f"adapter {submit.adapter!r}"
        if submit.salt:
            return 'prefixes of its own (`cache = "private"` of the key): slots are shared'
        return None

    def request(self, job: EngineJob) -> HttpRequest:
        """The request. Every sampling field is written out, because the server's defaults are not
        neutral.
        """
        sampling = job.sampling
        body: dict[str, Any] = {
            "prompt": job.ids.tolist(),
            "n_predict": job.limit,
            **sampling_fields(sampling),
            "top_k": sampling.top_k,
            "typical_p": 1.0,
            "repeat_penalty": sampling.repetition_penalty,
            # All tokens; only builds before October 2026 take -1 for that.
            "repeat_last_n": len(job.ids) + job.limit,
            "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"],
            "seed": job.seed % _SEEDS,
            "cache_prompt": True,
            "return_tokens": True,
            "return_progress": job.streamed,
            "stream": job.streamed,
        }
        if sampling.logprobs is not None:
            body["n_probs"] = max(1, sampling.logprobs)
        if job.grammar is not None:
            body |= llama_cpp_fields(job.grammar)
        return HttpRequest("/completion", msgspec.json.encode(body))

    def reader(self, job: EngineJob) -> LlamaCppReader:
        """The parser of the answer's chunks."""
        return LlamaCppReader(job)

    def load(self, metrics: str) -> tuple[int, int]:
        """The load; only a server with `--metrics` reports it."""
        return load_of(metrics, "llamacpp:requests_processing", "llamacpp:requests_deferred")


@final
class LlamaCppReader:
    """Keeps the tokens that arrived since the last event without missing tokens."""

    def __init__(self, job: EngineJob) -> None:
        self._is_streamed = job.streamed
        self._num_tops = job.sampling.logprobs
        self._num_given = 0
        self._kept: list[int] = []
        self._kept_logprobs: list[TokenLogprobs] = []
        self._num_predicted = 0

    def read(self, data: bytes) -> EngineEvent | None:
        """The event of one chunk. Raises `EngineError`."""
        if data == DONE:
            return None
        chunk: _Chunk = decoded(_chunks, data)
        if (chunk.error or chunk.tokens_predicted is None) and (words := error_in(data)):
            raise EngineTrouble(f"llama-server reports: {words}")
        # Newer builds put a token 0 into a progress report, which was not sampled.
        if chunk.prompt_progress is not None and not chunk.tokens_predicted and not chunk.stop:
            return EngineEvent([], cached_tokens=chunk.prompt_progress.cache)
        if chunk.tokens_predicted is None or (
            chunk.content and not chunk.tokens and not chunk.stop
        ):
            raise EngineError(
                "the answer has text but no tokens, or does not count them: this llama-server "
                "ignores return_tokens; a newer build is needed"
            )
        return self._final(chunk) if chunk.stop else self._partial(chunk)

    def _partial(self, chunk: _Chunk) -> EngineEvent | None:
        assert chunk.tokens_predicted is not None
        if self._num_missing and chunk.tokens_predicted > self._num_predicted:
            return self._gap()  # the last step is incomplete, and a new one began
        last = self._take_kept() if not self._num_missing else None
        self._keep(chunk)
        # A token without text may end the answer; only the next chunk says so.
        if self._num_missing or not chunk.content:
            return last
        own = self._take_kept()
        return own if last is None else _joined(last, own)

    def _final(self, chunk: _Chunk) -> EngineEvent:
        assert chunk.tokens_predicted is not None
        if self._is_streamed:
            self._num_predicted = chunk.tokens_predicted
        else:
            self._keep(chunk)
        if self._num_missing > 0:
            return self._gap()
        event = self._take_kept()
        event.finish = _FINISHES.get(chunk.stop_type)
        if event.finish is None:
            raise EngineError(f"llama-server ended it with stop_type {chunk.stop_type!r}")
        if chunk.stop_type == "eos" and event.ids:
            event.matched = event.ids[-1]
        event.prompt_tokens = chunk.tokens_evaluated
        if chunk.timings is not None:
            event.cached_tokens = chunk.timings.cache_n
        return event

    @property
    def _num_missing(self) -> int:
        return self._num_predicted - self._num_given - len(self._kept)

    def _keep(self, chunk: _Chunk) -> None:
        assert chunk.tokens_predicted is not None
        self._num_predicted = chunk.tokens_predicted
        tokens = chunk.tokens or []
        self._kept += tokens
        if self._num_tops is None:
            return
        probs = chunk.completion_probabilities or []
        if len(probs) != len(tokens):
            raise EngineError(
                f"{len(probs)} log-probabilities for {len(tokens)} tokens: llama-server has "
                "none for tokens within a character"
            )
        self._kept_logprobs += [_logprobs(one, self._num_tops) for one in probs]

    def _take_kept(self) -> EngineEvent:
        event = EngineEvent(self._kept, tuple(self._kept_logprobs))
        self._num_given += len(self._kept)
        self._kept, self._kept_logprobs = [], []
        return event

    def _gap(self) -> EngineEvent:
        return EngineEvent([], gap=self._num_predicted - self._num_given)


def _joined(first: EngineEvent, second: EngineEvent) -> EngineEvent:
    return EngineEvent(first.ids + second.ids, first.logprobs + second.logprobs)


def _logprobs(prob: _Prob, num_tops: int) -> TokenLogprobs:
    tops = (prob.top_logprobs or [])[:num_tops]
    return TokenLogprobs(
        prob.logprob if prob.logprob is not None else -9999.0,
        tuple((top.id, top.logprob if top.logprob is not None else -9999.0) for top in tops),
    )
