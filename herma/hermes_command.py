"""`herma hermes`: prints Hermes Agent's configuration for a running gateway.

Owns the request to `/v1/models` and the printed provider block. Knows the gateway only over HTTP,
as Hermes does.
"""

import argparse
import json
import os
import re
import sys
from http import HTTPStatus
from http.client import HTTPException
from typing import Final, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import msgspec

from herma.processes import gateway_url
from protocol.errors import HermaError

TIMEOUT_S: Final = 10
MAX_REPLY_BYTES: Final = 2**22
MIN_WINDOW_TOKENS: Final = 64_000
"""Hermes refuses to start with a smaller window."""

_PLAIN: Final = re.compile(r"[A-Za-z_][\w./@-]*(:[\w./@-]+)*")
_WORDS_OF_YAML: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})

_BLOCK: Final = """\
# For ~/.hermes/config.yaml: Hermes Agent 0.19 and later at the Herma gateway {url}
model:
  default: {default}
  provider: herma
providers:
  herma:
    name: herma
    base_url: {url}
    {key}
    transport: chat_completions
    models: {{{models}}}
    # Hermes 0.19 sends no session id, so Herma recognises a conversation by its prompt. Versions
    # that send one can set:
    # session_affinity_header: X-Session-Id
"""
_NO_KEY: Final = "api_key: any    # the gateway needs none; `herma keys new NAME` makes one"


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _NotFound(HermaError):
    """The gateway answers 404."""


_Reply = TypeVar("_Reply", _Model, _Models)


def run(arguments: argparse.Namespace) -> int:
    """Print the block. Raises `HermaError` if no gateway answers or the model is not served."""
    gateway = _Gateway(_base_url(gateway_url(arguments.url)), arguments.key_env)
    models = gateway.models()
    default = models[0] if arguments.model is None else gateway.model(arguments.model)
    print(_block(gateway, models, default), end="")
    if default.max_model_len is not None and default.max_model_len < MIN_WINDOW_TOKENS:
        print(
            f"herma: Hermes refuses {default.id}: its window has {default.max_model_len:,} tokens, "
            f"and Hermes needs {MIN_WINDOW_TOKENS:,}",
            file=sys.stderr,
        )
    return 0


def _base_url(text: str) -> str:
    url = text.rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise HermaError(f"--url takes a URL as http://127.0.0.1:8080/v1, not {text!r}")
    return url if parts.path else f"{url}/v1"


class _Gateway:
    """A running gateway, reached directly and not through an HTTP proxy."""

    def __init__(self, url: str, key_env: str | None) -> None:
        self.url = url
        self.key_env = key_env
        self._headers = {} if key_env is None else {"Authorization": f"Bearer {_key(key_env)}"}
        self._open = build_opener(ProxyHandler({})).open

    def models(self) -> list[_Model]:
        """The models that the gateway lists, at least one. Raises `HermaError` if there is none."""
        models = self._ask("models", _Models).data
        if not models:
            raise HermaError(f"the gateway at {self.url} serves no model yet")
        return models

    def model(self, name: str) -> _Model:
        """The model of that name or alias."""
        try:
            return self._ask(f"models/{quote(name)}", _Model)
        except _NotFound as error:
            served = ", ".join(model.id for model in self.models())
            raise HermaError(
                f"the gateway at {self.url} serves no model {name!r}; it serves {served}"
            ) from error

    def _ask(self, path: str, kind: type[_Reply]) -> _Reply:
        url = f"{self.url}/{path}"
        request = Request(url, headers=self._headers)  # noqa: S310 - http or https, checked
        try:
            with self._open(request, timeout=TIMEOUT_S) as reply:
                return msgspec.json.decode(reply.read(MAX_REPLY_BYTES), type=kind)
        except HTTPError as error:
            raise self._refused(url, error) from error
        except (OSError, HTTPException) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise HermaError(
                f"no gateway answers at {self.url} ({reason}); start one with `herma up`, or name "
                "another with --url"
            ) from error
        except msgspec.MsgspecError as error:
            raise HermaError(f"{url} does not answer like a Herma gateway: {error}") from (error)

    def _refused(self, url: str, error: HTTPError) -> HermaError:
        if error.code in {401, 403}:
            return HermaError(
                f"the gateway at {self.url} asks for an API key; name the environment variable "
                "that holds one with --key-env, for Hermes too"
            )
        kind = _NotFound if error.code == HTTPStatus.NOT_FOUND else HermaError
        return kind(f"{url} answers {error.code} {error.reason}; is a Herma gateway there?")


def _key(key_env: str) -> str:
    if key := os.environ.get(key_env):
        return key
    raise HermaError(f"--key-env names {key_env}, which is not set in the environment")


def _block(gateway: _Gateway, models: list[_Model], default: _Model) -> str:
    ids = dict.fromkeys([*(model.id for model in models), default.id])
    key_env = gateway.key_env
    return _BLOCK.format(
        url=gateway.url,
        default=_scalar(default.id),
        key=_NO_KEY if key_env is None else f"key_env: {_scalar(key_env)}",
        models=", ".join(f"{_scalar(model)}: {{}}" for model in ids),
    )


def _scalar(text: str) -> str:
    """A YAML scalar, quoted unless the plain form is unambiguous."""
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS_OF_YAML
    return text if is_plain else json.dumps(text)
