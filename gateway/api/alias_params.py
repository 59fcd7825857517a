"""Checks the fields that the configuration sets in requests (`alias_params`).

Owns the comparison with the bodies of chats and completions. Must not know how a request is
rewritten.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from config import ModelConfig
from gateway.api.chat_parser import ChatBody
from gateway.api.completions_parser import CompletionBody
from protocol.errors import ConfigError

_BODIES: Final = (ChatBody, CompletionBody)


def check_aliases(models: Iterable[ModelConfig]) -> None:
    """Raise `ConfigError` for an alias whose requests would all be refused."""
    for problem in wrong_values(models):
        raise ConfigError(problem)


def wrong_values(models: Iterable[ModelConfig]) -> Iterator[str]:
    """One line for each value that would turn every request by an alias into a 400. Fields for
    providers are not checked.
    """
    for model in models:
        for alias, params in model.alias_params.items():
            for verb, fields in (("set", params.set), ("default", params.default)):
                for name, value in fields.items():
                    if (why := _misfit(name, value)) is not None:
                        yield f"model `{model.name}`, alias_params.{alias}.{verb}.{name}: {why}"


def _misfit(name: str, value: object) -> str | None:
    """Why no endpoint accepts `value` in that field; None if one does, or none reads the field."""
    why = None
    for kind in _kinds(name):
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            why = str(error).partition(" - at ")[0].replace(" | null", "")
        else:
            return None
    return None if why is None else why[0].lower() + why[1:]


def _kinds(name: str) -> Iterator[Any]:
    """The types of the field; `logprobs` has two."""
    for body in _BODIES:
        for field in msgspec.structs.fields(body):
            if field.name == name:
                yield field.type
