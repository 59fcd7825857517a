"""Asks a running server what it is.

Owns the requests, their bounds and the errors for an address that does not answer.
"""

import json
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from herma.attach.recognition import FREE_PATHS, MODELS, Answered, RecognisedServer, recognise
from protocol.errors import ConfigError

_TIMEOUT_S: Final = 5.0
_MAX_BYTES: Final = 4 * 2**20
_LOCKED: Final = (401, 403)
_NOT_YET: Final = (502, 503, 504)
"""Statuses of a server that is still starting. llama-server says 503 until its model is loaded,
and a proxy says one of these before its server runs.
"""
_ERRORS: Final = 400
_OPENER: Final = build_opener(ProxyHandler({}))
"""Engines are on our own network: no proxy of the environment stands before them."""


def root_of(url: str) -> str:
    """The address of a server without `/v1` and without a slash at its end. Raises `ConfigError`
    for what is no address.
    """
    given = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(given)
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"--attach {url}: {error}; write http://HOST:PORT") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise ConfigError(f"--attach {url} is no address of a server: write http://HOST:PORT")
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}"


def ask_server(root: str, key: str | None) -> RecognisedServer:
    """What answers at `root`, an address without `/v1`; `key` is its API key.

    Raises `ConfigError` if nothing answers there, if it wants another key, or if it has no list of
    models.
    """
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    answers: dict[str, Answered] = {}
    for path in FREE_PATHS:
        try:
            answers[path] = _get(f"{root}{path}", headers)
        except (OSError, HTTPException) as error:
            if path == MODELS:
                why = getattr(error, "reason", None) or error
                raise ConfigError(
                    f"nothing answers at {root} ({why}): start that server first, or correct the "
                    "address"
                ) from error
    if answers[MODELS].status in _LOCKED:
        raise ConfigError(
            f"{root} wants an API key: put it in an environment variable and name that with "
            "--attach-key-env NAME"
        )
    server = recognise(answers)
    if server is None:
        listed = answers[MODELS]
        said = f" ({listed.words})" if listed.status >= _ERRORS and listed.words else ""
        if listed.status in _NOT_YET:
            raise ConfigError(
                f"{root} answers GET {MODELS} with status {listed.status}{said}: it is not ready "
                "yet; wait until it has loaded its model"
            )
        raise ConfigError(
            f"{root} answers GET {MODELS} with status {listed.status}{said} and no list of "
            "models: is it a server with OpenAI's API? One without such a list, as LitServe, needs "
            'a worker in a file, with engine = "openai", url, model and context_length'
        )
    if not server.models:
        raise ConfigError(f"{root} ({server.product}) serves no model: load one there first")
    return server


def _get(url: str, headers: dict[str, str]) -> Answered:
    """Raises `OSError` or `HTTPException` if nothing answers."""
    try:
        request = Request(url, headers=headers)  # noqa: S310 - http or https, checked
        with _OPENER.open(request, timeout=_TIMEOUT_S) as response:
            return Answered(response.status, _json_object(response.read(_MAX_BYTES)))
    except HTTPError as error:
        with error:
            return Answered(error.code, _json_object(_rest(error)))


def _rest(error: HTTPError) -> bytes:
    """The body of an error, as much of it as can be read."""
    try:
        return error.read(_MAX_BYTES)
    except (OSError, HTTPException):
        return b""


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
