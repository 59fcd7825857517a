"""Which engine answers, by its answers to GET requests that cost nothing.

Owns the signs of each engine. Must not open sockets.

Signs, read off vLLM 0.26, SGLang 0.5.23, llama-server b7200, Ollama 0.14 and LiteLLM 1.108: the
`owned_by` of their models, and one path that only they have.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Kind = Literal["vllm", "sglang", "llama-cpp", "openai"]

MODELS: Final = "/v1/models"
FREE_PATHS: Final = (MODELS, "/version", "/get_model_info", "/props", "/api/version")
"""Paths that generate no token on any of these servers."""
_MAX_MODELS: Final = 16
_MAX_WORDS: Final = 200
_MAX_WINDOW: Final = 2**31 - 1
"""Tokenizers of transformers say 1e30 where they have no limit, and servers pass that on."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to one GET: its status, and its body if that is a JSON object, else None."""

    status: int
    body: Mapping[str, Any] | None

    @property
    def words(self) -> str:
        """What the server says of an error, in one line; "" if nothing."""
        error = (self.body or {}).get("error", self.body or {})
        text = error if isinstance(error, str) else ""
        if isinstance(error, Mapping):
            text = _text(error, "message") or _text(error, "detail") or ""
        return " ".join(text.split())[:_MAX_WORDS]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """`name` as requests write it. `source`: where the server has loaded it from, a path or a hub
    id, if it says so. `context_length` in tokens, if it says so.
    """

    name: str
    source: str | None = None
    context_length: int | None = None


@dataclass(frozen=True, slots=True)
class RecognisedServer:
    """`product` in words; `engine` as a worker's key. Without models it serves none yet."""

    product: str
    engine: Kind
    models: tuple[ServedModel, ...]


def recognise(answers: Mapping[str, Answered]) -> RecognisedServer | None:
    """The server with these answers, by path; None if it has no list of models."""
    listed = _body(answers, MODELS)
    if listed is None or not isinstance(listed.get("data"), list):
        return None
    rows = [row for row in listed["data"] if isinstance(row, dict) and _text(row, "id")]
    rows = rows[:_MAX_MODELS]
    owners = {_text(row, "owned_by") for row in rows}
    info = _body(answers, "/get_model_info")
    props = _body(answers, "/props")
    if "vllm" in owners:
        return RecognisedServer("vLLM", "vllm", tuple([_of_vllm(row) for row in rows]))
    if "sglang" in owners or (info is not None and "model_path" in info):
        return RecognisedServer(
            "SGLang", "sglang", tuple([_of_sglang(row, info or {}) for row in rows])
        )
    if "llamacpp" in owners or (props is not None and "default_generation_settings" in props):
        return RecognisedServer(
            "llama.cpp", "llama-cpp", tuple([_of_llama_cpp(row, props or {}) for row in rows])
        )
    others = tuple([ServedModel(row["id"], None, _number(row, "max_model_len")) for row in rows])
    if _body(answers, "/api/version") is not None:
        return RecognisedServer("Ollama", "openai", others)
    return RecognisedServer("an OpenAI-compatible server", "openai", others)


def _of_vllm(row: Mapping[str, Any]) -> ServedModel:
    return ServedModel(row["id"], _text(row, "root"), _number(row, "max_model_len"))


def _of_sglang(row: Mapping[str, Any], info: Mapping[str, Any]) -> ServedModel:
    source = _text(info, "tokenizer_path") or _text(info, "model_path") or _text(row, "root")
    return ServedModel(row["id"], source, _number(row, "max_model_len"))


def _of_llama_cpp(row: Mapping[str, Any], props: Mapping[str, Any]) -> ServedModel:
    settings = props.get("default_generation_settings")
    window = _number(settings, "n_ctx") if isinstance(settings, Mapping) else None
    # A GGUF file names no tokenizer.json; `--tokenizer` does.
    return ServedModel(row["id"], None, window)


def _body(answers: Mapping[str, Answered], path: str) -> Mapping[str, Any] | None:
    answer = answers.get(path)
    return answer.body if answer is not None and answer.status == 200 else None


def _text(table: Mapping[str, Any], key: str) -> str | None:
    value = table.get(key)
    return value if isinstance(value, str) and value else None


def _number(table: Mapping[str, Any], key: str) -> int | None:
    value = table.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 < value <= _MAX_WINDOW else None
