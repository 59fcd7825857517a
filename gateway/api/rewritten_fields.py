"""Whether the fields that a configuration puts into requests are of the API's types.

Owns the comparison with the bodies of both endpoints. Must not know how a request is rewritten.
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
    """One line for each value that would make every request by an alias a 400. What goes to a
    provider is the provider's to judge.
    """
    for model in models:
        for alias, params in model.alias_params.items():
            for verb, fields in (("set", params.set), ("default", params.default)):
                for name, value in fields.items():
                    if (why := _misfit(name, value)) is not None:
                        yield f"model `{model.name}`, alias_params.{alias}.{verb}.{name}: {why}"


def _misfit(name: str, value: object) -> str | None:
    """Why no endpoint takes `value` in that field; None if one does, or none reads it."""
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
    """Of which types the field is, as `logprobs` is of two."""
    for body in _BODIES:
        for field in msgspec.structs.fields(body):
            if field.name == name:
                yield field.type
