"""The paths of OpenAI's API that are passed on to text-level engines and providers.

Owns the list, what a request to each is charged by, and the errors for all other paths. A key of
the gateway thereby reaches inference on the servers behind it, and nothing else there, such as the
administration of a provider's account. Must not know servers, nor what the bodies mean.
"""

from collections.abc import Collection
from typing import Any, Final, Literal

from gateway.api.errors import ApiError, invalid
from protocol.paths import is_plain_path

ChargedBy = Literal["answer", "prompt", "request"]
"""`answer`: by the tokens of prompt and answer. `prompt`: the answer is no generated text, so only
the prompt has tokens. `request`: by the number of requests, because tokens do not price it.
"""

PASSED_ON: Final[dict[str, ChargedBy]] = {
    **dict.fromkeys(("/completions", "/fim/completions"), "answer"),
    **dict.fromkeys(("/embeddings", "/moderations", "/rerank"), "prompt"),
    **dict.fromkeys(("/classify", "/pooling", "/score"), "prompt"),
    **dict.fromkeys(("/images/generations", "/images/edits", "/images/variations"), "request"),
    **dict.fromkeys(("/audio/speech", "/audio/transcriptions", "/audio/translations"), "request"),
}
"""Paths below the API's root."""

_MAX_COUNT: Final = 1_000


def charged_by(path: str) -> ChargedBy:
    """The unit by which a request to `path` is charged. For a path that the operator has added it
    is the request, because nothing else about such a path is known.
    """
    return PASSED_ON.get(path, "request")


def check_target(raw_path: bytes) -> None:
    """Raise `ApiError` 400 for a path as sent that another server could read in another way. A
    slash at the end is harmless: no path of the list has one.
    """
    path = raw_path.decode("latin-1").removesuffix("/")
    if path and not is_plain_path(path):
        text = (
            "The path is not plain: it may have no escapes (%), no segments that begin with a "
            "dot, no empty segments, and no backslash, semicolon or fragment."
        )
        raise ApiError(400, text, code="invalid_path")


def passed_on(path: str, added: Collection[str]) -> str:
    """`path` (of the request) below the API's root, if it is passed on: one of the list or of
    `added`. Raises `ApiError` 404.
    """
    below = path.removeprefix("/v1")
    if below in PASSED_ON or below in added:
        return below
    raise nothing_at(path, code="path_not_served")


def nothing_at(path: str, code: str | None = None) -> ApiError:
    """A 404 for a path that leads nowhere, with what was probably meant."""
    if path.startswith("/v1/v1/"):
        hint = ": the client's base URL has one /v1 too many"
    elif path == "/":
        hint = " for programs: the API is below /v1"
    elif path.startswith("/api/"):
        hint = ": the API is OpenAI's, below /v1, not Ollama's"
    else:
        hint = ": GET /openapi.json lists the paths"
    return ApiError(404, f"There is nothing at {path}{hint}.", code=code)


def count_of(raw: dict[str, Any], path: str) -> int:
    """How many times the request `raw` is charged: for each choice (`n`, or `best_of` if more are
    generated) of each prompt, or for each picture. Raises `ApiError` 400 for absurd numbers.
    """
    wanted = [raw.get("n"), raw.get("best_of")]
    count = max([one for one in wanted if type(one) is int and one > 0], default=1)
    if count > _MAX_COUNT:
        raise invalid("n", f"'n' may be at most {_MAX_COUNT}.")
    prompts = raw.get("prompt")
    if charged_by(path) == "answer" and isinstance(prompts, list):
        is_many = bool(prompts) and not isinstance(prompts[0], int)
        count *= len(prompts) if is_many else 1
    return count
