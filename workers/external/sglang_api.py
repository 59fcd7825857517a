"""SGLang's own API: `/generate` with token ids in both directions.

Owns the fields of requests, answers and metrics (docs.sglang.io, native API and sampling
parameters; `GenerateReqInput` and `tokenizer_manager.py` of SGLang's source). Must not know
sockets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, final

import msgspec

from protocol.errors import ConfigError
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
    sampling_fields,
)
from workers.external.grammar_fields import SGLANG_FORMS, sglang_fields
from workers.external.sleep_calls import SglangSleep

_SERVER: Final = "/server_info"
_OLD_SERVER: Final = "/get_server_info"
"""The target's name until April 2026 (sgl-project/sglang #21463)."""
_MODELS: Final = "/v1/models"

FIRST_VERSION: Final = (0, 5, 6)
"""Earlier ones mixed up whole and partial `output_ids` in streams (sgl-project/sglang #13759)."""

_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_MAX_REPETITION: Final = 2.0
_SEEDS: Final = 2**31


class _Finish(msgspec.Struct):
    type: str = ""
    matched: int | str | list[int] | None = None
    message: str = ""


_Pair = tuple[float | None, int, Any]


class _Meta(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: _Finish | str | None = None
    output_token_logprobs: list[_Pair] | None = None
    output_top_logprobs: list[list[_Pair] | None] | None = None


class _Chunk(msgspec.Struct):
    output_ids: list[int] | None = None
    meta_info: _Meta | None = None
    error: Any = None


_chunks: Final = msgspec.json.Decoder(_Chunk, strict=False)

_SPARE: Final = 6
"""Tokens by which the longest prompt is shorter than the window, or than what the memory holds."""


@final
class SglangApi(OneHealthTarget):
    """One SGLang server."""

    grammar_forms = SGLANG_FORMS
    sleep_calls: SleepCalls | None = SglangSleep()
    fact_targets = (_SERVER, _OLD_SERVER, _MODELS)
    health_targets = (_SERVER, _OLD_SERVER, _MODELS, *OneHealthTarget.health_targets)
    """`/health` of an idle server generates a token (sgl-project/sglang #8444, `health_generate` in
    `http_server.py`), unless SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION is off. `/server_info` asks
    the scheduler for its state, so it is free and shows whether the scheduler lives.
    """

    def limits(self, answers: Mapping[str, bytes]) -> EngineLimits:
        """The limits. Raises `ConfigError` for a version that returns wrong ids."""
        info = json_object(answers, _SERVER) or json_object(answers, _OLD_SERVER)
        version = str(info.get("version", ""))
        if (match := _VERSION.match(version)) and tuple(map(int, match.groups())) < FIRST_VERSION:
            needed = ".".join(map(str, FIRST_VERSION))
            raise ConfigError(
                f"SGLang {version} mixes prompt ids into its output ids or repeats them: install "
                f"{needed} or later"
            )
        models = json_object(answers, _MODELS).get("data", [])
        model = next((one for one in models if isinstance(one, dict)), {})
        window = positive(model.get("max_model_len")) or positive(info.get("context_length"))
        kv_tokens = positive(info.get("max_total_num_tokens"))
        longest = positive(info.get("max_req_input_len")) or positive((kv_tokens or 0) - _SPARE)
        is_bound = longest is not None and window is not None and longest + _SPARE < window
        return EngineLimits(
            context_length=window,
            max_seqs=positive(info.get("max_running_requests")),
            kv_tokens=kv_tokens,
            version=version,
            longest=longest if is_bound else None,
        )

    def refusal(self, submit: Submit) -> str | None:
        """The feature that SGLang has no field for, or the value that it does not take."""
        if submit.adapter:
            return f"adapter {submit.adapter!r}"
        if submit.sampling.repetition_penalty > _MAX_REPETITION:
            return f"repetition_penalty over {_MAX_REPETITION:g}"
        return None

    def request(self, job: EngineJob) -> HttpRequest:
        """The request. Every sampling field is written out: SGLang takes others from
        generation_config.json.
        """
        sampling = job.sampling
        params: dict[str, Any] = {
            "max_new_tokens": job.limit,
            **sampling_fields(sampling),
            "top_k": sampling.top_k or -1,
            "repetition_penalty": sampling.repetition_penalty,
            "stop_token_ids": list(sampling.stop_token_ids),
            "skip_special_tokens": False,
        }
        if not is_greedy(sampling):
            params["sampling_seed"] = job.seed % _SEEDS
        if job.grammar is not None:
            params |= sglang_fields(job.grammar)
        body: dict[str, Any] = {
            "input_ids": job.ids.tolist(),
            "sampling_params": params,
            "stream": job.streamed,
        }
        if sampling.logprobs is not None:
            body["return_logprob"] = True
            body["top_logprobs_num"] = sampling.logprobs
            body["logprob_start_len"] = -1
        if job.salt:
            body["extra_key"] = job.salt.hex()
        return HttpRequest("/generate", msgspec.json.encode(body))

    def reader(self, job: EngineJob) -> SglangReader:
        """The parser of the answer's chunks."""
        return SglangReader(job)

    def load(self, metrics: str) -> tuple[int, int]:
        """The load; only a server with `--enable-metrics` reports it."""
        return load_of(metrics, "sglang:num_running_reqs", "sglang:num_queue_reqs")


@final
class SglangReader:
    """Accepts events with all `output_ids` so far (the default) and with the new ones only
    (`--incremental-streaming-output`); `completion_tokens` tells them apart.
    """

    def __init__(self, job: EngineJob) -> None:
        self._wants_logprobs = job.sampling.logprobs is not None
        self._num_tops = job.sampling.logprobs or 0
        self._num_seen = 0

    def read(self, data: bytes) -> EngineEvent | None:
        """The event of one chunk. Raises `EngineError`, also if ids and count do not agree."""
        if data == DONE:
            return None
        chunk: _Chunk = decoded(_chunks, data)
        meta = chunk.meta_info
        if (chunk.error or meta is None) and (words := error_in(data)):
            raise EngineTrouble(f"SGLang reports: {words}")
        if meta is None or chunk.output_ids is None:
            raise EngineError("the answer has no output_ids and meta_info: is this SGLang?")
        event = EngineEvent(self._new_ids(chunk.output_ids, meta))
        event.prompt_tokens, event.cached_tokens = meta.prompt_tokens or None, meta.cached_tokens
        if self._wants_logprobs:
            event.logprobs = self._logprobs(meta, len(event.ids))
        if finish := meta.finish_reason:
            finish = _Finish(finish) if isinstance(finish, str) else finish
            if finish.type not in {"stop", "length"}:
                raise EngineError(f"SGLang ended it: {finish.type} {finish.message}".rstrip())
            event.finish = finish.type
            is_last = bool(event.ids) and finish.matched == event.ids[-1]
            event.matched = event.ids[-1] if is_last else None
        return event

    def _new_ids(self, ids: list[int], meta: _Meta) -> list[int]:
        count = meta.completion_tokens
        if count is None or len(ids) == count:
            new = ids[self._num_seen :]
        elif self._num_seen + len(ids) == count:
            new = ids
        else:
            raise EngineError(
                f"{len(ids)} output_ids after {self._num_seen} where SGLang counts {count}: this "
                "version returns ids of the prompt among them"
            )
        self._num_seen += len(new)
        return new

    def _logprobs(self, meta: _Meta, num_new: int) -> tuple[TokenLogprobs, ...]:
        chosen = (meta.output_token_logprobs or [])[-num_new:] if num_new else []
        tops = (meta.output_top_logprobs or [])[-num_new:] if num_new and self._num_tops else []
        if len(chosen) != num_new:
            raise EngineError(f"{len(chosen)} log-probabilities for {num_new} tokens")
        tops = tops if len(tops) == num_new else [None] * num_new
        return tuple(
            TokenLogprobs(
                value if value is not None else -9999.0,
                tuple(
                    (token_id, lp)
                    for lp, token_id, _ in (top or [])[: self._num_tops]
                    if lp is not None
                ),
            )
            for (value, _, _), top in zip(chosen, tops, strict=True)
        )
