"""What a running gateway serves: the models, their windows, and the key that it asks for.

Owns the requests to `/v1/models`. Knows the gateway only over HTTP, as every client does, and no
client.
"""

import os
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Final, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import msgspec

from herma.processes import gateway_url
from protocol.errors import HermaError
from protocol.reading import FAULTS

TIMEOUT_S: Final = 10
MAX_REPLY_BYTES: Final = 2**22


class ListedModel(msgspec.Struct):
    """A listed name; `root` is the model's own name if this one is an alias. `max_model_len` is its
    context length in tokens, if known.
    """

    id: str
    root: str | None = None
    max_model_len: int | None = None

    @property
    def is_alias(self) -> bool:
        return self.root is not None and self.root != self.id


class _Models(msgspec.Struct):
    data: list[ListedModel]


@dataclass(frozen=True, slots=True)
class Served:
    """`url` ends in /v1. `models` has all listed names, `default` one of them or an alias.
    `key_env` is the environment variable with the API key; None if the gateway asks for none.
    """

    url: str
    models: tuple[ListedModel, ...]
    default: ListedModel
    key_env: str | None = None

    @property
    def root_url(self) -> str:
        """The gateway's address without /v1, as clients of Anthropic's API want it."""
        return self.url.removesuffix("/v1")

    @property
    def own_models(self) -> tuple[ListedModel, ...]:
        """The default first, then the models that are no aliases."""
        others = (model for model in self.models if not model.is_alias)
        return (self.default, *(model for model in others if model.id != self.default.id))


class _NotFound(HermaError):
    """The gateway answers 404."""


_Reply = TypeVar("_Reply", ListedModel, _Models)


def ask_gateway(
    url: str | None,
    model: str | None,
    key_env: str | None,
    client: str,
    file: Path | None = None,
) -> Served:
    """What the gateway at `url`, or that of `file`, or the one on this host, serves. Raises
    `HermaError` if none answers, it serves no `model`, or it asks for a key that `client` has to
    send too.
    """
    gateway = _Gateway(_base_url(gateway_url(url, file)), key_env, client)
    models = gateway.models()
    default = models[0] if model is None else gateway.model(model)
    return Served(gateway.url, tuple(models), default, key_env)


def key_of(key_env: str) -> str:
    """The key in that environment variable. Raises `HermaError` if it is not set."""
    if key := os.environ.get(key_env):
        return key
    raise HermaError(f"--key-env names {key_env}, which is not set in the environment")


def _base_url(text: str) -> str:
    url = text.rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise HermaError(f"--url takes a URL as http://127.0.0.1:8080/v1, not {text!r}")
    return url if parts.path else f"{url}/v1"


class _Gateway:
    """A running gateway, reached directly and not through an HTTP proxy."""

    def __init__(self, url: str, key_env: str | None, client: str) -> None:
        self.url = url
        self._client = client
        self._headers = {} if key_env is None else {"Authorization": f"Bearer {key_of(key_env)}"}
        self._open = build_opener(ProxyHandler({})).open

    def models(self) -> list[ListedModel]:
        """The models that the gateway lists, at least one. Raises `HermaError` if there is none."""
        models = self._ask("models", _Models).data
        if not models:
            raise HermaError(f"the gateway at {self.url} serves no model yet")
        return models

    def model(self, name: str) -> ListedModel:
        """The model of that name or alias. Raises `HermaError` if none has it."""
        try:
            return self._ask(f"models/{quote(name)}", ListedModel)
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
        except FAULTS as error:
            raise HermaError(f"{url} does not answer like a Herma gateway: {error}") from error

    def _refused(self, url: str, error: HTTPError) -> HermaError:
        if error.code in {401, 403}:
            return HermaError(
                f"the gateway at {self.url} asks for an API key; name the environment variable "
                f"that holds one with --key-env, for {self._client} too"
            )
        kind = _NotFound if error.code == HTTPStatus.NOT_FOUND else HermaError
        return kind(f"{url} answers {error.code} {error.reason}; is a Herma gateway there?")
