"""vLLM's API: `/v1/completions` with token ids in both directions.

Owns the fields of requests, answers and metrics of vLLM 0.10.2 and later (`return_token_ids`;
docs.vllm.ai, OpenAI-compatible server, extra parameters). Must not know sockets.
"""

from __future__ import annotations

import re
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
    is_greedy,
    json_object,
    load_of,
    positive,
    samples,
    sampling_fields,
)
from workers.external.grammar_fields import VLLM_FORMS, vllm_fields
from workers.external.sleep_calls import VllmSleep

_MODELS: Final = "/v1/models"
_VERSION: Final = "/version"
_METRICS: Final = "/metrics"
_ENDS: Final = {"repetition": "length"}
"""How vLLM's reasons for an end count. vLLM can end an answer that repeats itself; then the
model did not end it.
"""
_ID_MARK: Final = "token_id:"
_FIRST_GRAMMARS: Final = (0, 11)
"""The first version with `structured_outputs`."""


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: _Logprobs | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_chunks: Final = msgspec.json.Decoder(_Chunk, strict=False)


@final
class VllmApi(OneHealthTarget):
    """One vLLM server. `limits` also learns the name by which it knows the model."""

    fact_targets = (_MODELS, _VERSION, _METRICS)
    sleep_calls: SleepCalls | None = VllmSleep()

    def __init__(self) -> None:
        self._model: str | None = None
        self.grammar_forms = VLLM_FORMS

    def limits(self, answers: Mapping[str, bytes]) -> EngineLimits:
        """The limits from `/v1/models`, `/version` and the metric `vllm:cache_config_info`."""
        models = json_object(answers, _MODELS).get("data", [])
        model = next((one for one in models if isinstance(one, dict) and not one.get("parent")), {})
        if isinstance(name := model.get("id"), str):
            self._model = name
        kv_tokens = None
        metrics = answers.get(_METRICS, b"").decode(errors="replace")
        for labels, _ in samples(metrics, "vllm:cache_config_info"):
            values = dict(
                part.split("=", 1) for part in labels.strip("{}").split(",") if "=" in part
            )
            block, count = (
                values.get(key, "").strip('"') for key in ("block_size", "num_gpu_blocks")
            )
            if block.isdecimal() and count.isdecimal():
                kv_tokens = int(block) * int(count) or None
        version = str(json_object(answers, _VERSION).get("version", ""))
        number = re.match(r"(\d+)\.(\d+)", version)
        if number is not None and (int(number[1]), int(number[2])) < _FIRST_GRAMMARS:
            self.grammar_forms = frozenset()
        return EngineLimits(
            context_length=positive(model.get("max_model_len")),
            kv_tokens=kv_tokens,
            version=version,
        )

    def refusal(self, submit: Submit) -> str | None:
        """Refuse adapters only: vLLM serves them under separate names."""
        return f"adapter {submit.adapter!r}" if submit.adapter else None

    def request(self, job: EngineJob) -> HttpRequest:
        """The request. Every sampling field is written out: vLLM takes others from
        generation_config.json.
        """
        sampling = job.sampling
        body: dict[str, Any] = {
            "prompt": job.ids.tolist(),
            "max_tokens": job.limit,
            **sampling_fields(sampling),
            "top_k": sampling.top_k,
            "repetition_penalty": sampling.repetition_penalty,
            "stop_token_ids": list(sampling.stop_token_ids),
            "return_token_ids": True,
            "add_special_tokens": False,
            "skip_special_tokens": False,
            "stream": job.streamed,
        }
        if job.streamed:
            body["stream_options"] = {"include_usage": True}
        if self._model is not None:
            body["model"] = self._model
        if not is_greedy(sampling):
            body["seed"] = job.seed
        if sampling.logprobs is not None:
            body["logprobs"] = sampling.logprobs
            body["return_tokens_as_token_ids"] = True
        if job.salt:
            body["cache_salt"] = job.salt.hex()
        if job.grammar is not None:
            body |= vllm_fields(job.grammar)
        return HttpRequest("/v1/completions", msgspec.json.encode(body))

    def reader(self, job: EngineJob) -> VllmReader:
        """The parser of the answer's chunks."""
        return VllmReader(job)

    def load(self, metrics: str) -> tuple[int, int]:
        """The load, summed over vLLM's engines."""
        return load_of(metrics, "vllm:num_requests_running", "vllm:num_requests_waiting")


@final
class VllmReader:
    """Reports the finish with `[DONE]`, because the usage follows the last tokens."""

    def __init__(self, job: EngineJob) -> None:
        self._num_tops = job.sampling.logprobs
        self._end = EngineEvent([])

    def read(self, data: bytes) -> EngineEvent | None:
        """The event of one chunk. Raises `EngineError`, also for tokens without ids."""
        if data == DONE:
            return self._end if self._end.finish is not None else None
        chunk: _Chunk = decoded(_chunks, data)
        if (chunk.error or (chunk.choices is None and chunk.usage is None)) and (
            words := error_in(data)
        ):
            raise EngineTrouble(f"vLLM reports: {words}")
        if (usage := chunk.usage) is not None:
            self._end.prompt_tokens = usage.prompt_tokens or None
            if usage.prompt_tokens_details is not None:
                self._end.cached_tokens = usage.prompt_tokens_details.cached_tokens
        if not chunk.choices:
            return None
        return self._of_choice(chunk.choices[0])

    def _of_choice(self, choice: _Choice) -> EngineEvent | None:
        ids = choice.token_ids
        if ids is None:
            if choice.text:
                raise EngineError(
                    "the answer has text but no token_ids: this vLLM ignores return_token_ids; "
                    "0.10.2 or later is needed"
                )
            ids = []
        event = EngineEvent(ids)
        if choice.logprobs is not None and self._num_tops is not None:
            event.logprobs = _logprobs(choice.logprobs, self._num_tops)
        if choice.finish_reason:
            self._end.finish = _ENDS.get(choice.finish_reason, choice.finish_reason)
            is_stop = choice.finish_reason == "stop"
            if is_stop and isinstance(choice.stop_reason, int):
                self._end.matched = choice.stop_reason
            elif is_stop and choice.stop_reason is None and ids:
                self._end.matched = ids[-1]  # only for the end of sequence there is no stop_reason
            event.matched = self._end.matched
        return event if ids else None


def _logprobs(logprobs: _Logprobs, num_tops: int) -> tuple[TokenLogprobs, ...]:
    chosen = logprobs.token_logprobs or []
    tops = logprobs.top_logprobs or [None] * len(chosen)
    if len(tops) != len(chosen):
        raise EngineError(f"{len(tops)} top_logprobs for {len(chosen)} tokens")
    return tuple(
        TokenLogprobs(value if value is not None else -9999.0, _best(top, num_tops))
        for value, top in zip(chosen, tops, strict=True)
    )


def _best(top: dict[str, float] | None, num: int) -> tuple[tuple[int, float], ...]:
    """The `num` most likely tokens. vLLM adds the chosen token even if it is not one of them."""
    pairs = [
        (int(name.removeprefix(_ID_MARK)), value)
        for name, value in (top or {}).items()
        if name.removeprefix(_ID_MARK).isdecimal()
    ]
    return tuple(sorted(pairs, key=lambda pair: -pair[1])[:num])
