"""The API of any other server of the OpenAI API: Lucebox, LM Studio, `transformers serve`, TGI and
others.

Owns the questions to a server besides its clients' requests: the context length, the load, and the
proof that it generates. Must not know sockets; clients' requests and answers do not pass here.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import Any, Final, final

import msgspec

from workers.external.engine_api import (
    EngineError,
    EngineEventSplitter,
    EngineLimits,
    EngineTrouble,
    HttpRequest,
    any_json,
    error_in,
    json_object,
    load_of,
    positive,
)

_MODELS: Final = "/v1/models"
_WINDOWS: Final = ("max_model_len", "context_length", "loaded_context_length", "context_window")
"""Names that servers use for the context length in `/v1/models`."""

_FREE_HEALTH: Final = frozenset({"vllm", "llamacpp", "herma"})
"""The value of `owned_by` at servers whose `/health` computes nothing."""

_CHAT: Final = "/v1/chat/completions"
_MAX_SHOWN: Final = 300


@final
class OpenAiApi:
    """One server, which knows the model by the name `model`."""

    health_targets = ("/health/liveliness", "/health/readiness", _MODELS, "/health")
    """The targets, `/health` last: a proxy such as LiteLLM generates a completion by each of its
    models for it. If an earlier target answers, `/health` is not asked.
    """
    fact_targets = (_MODELS,)

    def __init__(self, model: str) -> None:
        self._model = model

    def limits(self, answers: Mapping[str, bytes]) -> EngineLimits:
        """The context length, if the list of models contains it."""
        listed = json_object(answers, _MODELS).get("data")
        models: list[dict[str, Any]] = []
        if isinstance(listed, list):
            models = [one for one in listed if isinstance(one, dict)]
        named = [one for one in models if one.get("id") == self._model]
        (model,) = named[:1] or models[:1] or [{}]
        meta = model.get("meta")
        own = positive(meta.get("n_ctx")) if isinstance(meta, dict) else None
        windows = [window for name in _WINDOWS if (window := positive(model.get(name)))]
        window, names = next(iter(windows), own), [str(one.get("id")) for one in models]
        # Ollama adds a tag to names that have none.
        is_other = len(names) == 1 and self._model not in (names[0], names[0].partition(":")[0])
        return EngineLimits(context_length=window, other_model=names[0] if is_other else None)

    def better_health(self, target: str, body: bytes) -> str | None:
        """`/health` of servers whose list of models says who they are, and which do not generate
        for it. It also tells whether the model is loaded and its process lives.
        """
        if target != _MODELS:
            return None
        listed = json_object({_MODELS: body}, _MODELS).get("data")
        owners = {
            one.get("owned_by")
            for one in (listed if isinstance(listed, list) else [])
            if isinstance(one, dict)
        }
        return "/health" if owners and owners <= _FREE_HEALTH else None

    def load(self, metrics: str) -> tuple[int, int]:
        """The load from TGI's gauges; no gauges of other servers are known."""
        return load_of(metrics, "tgi_batch_current_size", "tgi_queue_size")

    def probe(self, num_words: int, seed: bytes, max_tokens: int) -> HttpRequest:
        """A chat of `num_words` words drawn from `seed`, so that the prefix cache does not contain
        it.
        """
        words = " ".join(chr(ord("a") + byte % 26) for byte in seed[:num_words])
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": words}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
        }
        return HttpRequest(_CHAT, msgspec.json.encode(body))


@final
class Proof:
    """Reads an answer, streamed or in one piece, that must contain tokens."""

    def __init__(self) -> None:
        self._splitter = EngineEventSplitter()
        self._start = b""
        self.has_tokens = False

    def take(self, data: bytes) -> None:
        """Read a part of the body. Raises `EngineError` for an error in a stream."""
        self._start = (self._start + data)[:_MAX_SHOWN]
        for payload in self._splitter.feed(data):
            self._read(payload)

    def end(self, status: int, body: bytes) -> None:
        """Read the whole `body` after its end. Raises `EngineError` if the answer has no tokens."""
        shown = " ".join(self._start.decode(errors="replace").split())
        if status != 200:
            is_refused = 400 <= status < 500 and status not in {408, 409, 429}
            raise (EngineError if is_refused else EngineTrouble)(f"status {status}: {shown}")
        is_whole = body.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{")
        for payload in [body] if is_whole else self._splitter.flush():
            self._read(payload)
        if not self.has_tokens:
            raise EngineTrouble(f"the answer has no tokens: {shown or 'it is empty'}")

    def _read(self, payload: bytes) -> None:
        if words := error_in(payload):
            raise EngineTrouble(f"the engine reports: {words}")
        value = any_json(payload)
        choices = value.get("choices") if isinstance(value, dict) else None
        told = any(map(_says_tokens, choices)) if isinstance(choices, list) else False
        self.has_tokens = self.has_tokens or told


def _says_tokens(choice: object) -> bool:
    """Whether a choice has a part of an answer, in whatever field: gateways read as tolerantly."""
    if not isinstance(choice, dict):
        return False
    said = choice.get("delta") or choice.get("message")
    fields = said.items() if isinstance(said, dict) else ()
    return bool(choice.get("text")) or any(value for name, value in fields if name != "role")
