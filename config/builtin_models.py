"""Defaults: profiles, built-in models, and the configuration without a file.

Owns the forms in which a worker's `model` may be written: a built-in name, a hub id or a directory.
Must not look at the machine, search for directories or ask a hub.
"""

import functools
import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec

from config.tables import (
    INDEX_DRAFTERS,
    NAME_IN_WORDS,
    Config,
    ModelConfig,
    Name,
    WorkerConfig,
)
from protocol.errors import ConfigError

BUILTIN_MODEL: Final = "herma-tiny"
BUILTIN_PREFIX: Final = "builtin:"
_DRAFTERS: Final = "drafters"
"""Folders in the directory of a built-in model, each a drafter for it."""

DEFAULT_PROFILE: Final = "balanced"

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_SCHEME: Final = re.compile(r"[\w-]+:")


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Engine limits that belong together."""

    token_budget: int
    max_gap_ms: float
    max_context: int


@functools.cache
def profiles() -> dict[str, Profile]:
    """The named profiles of `profiles.toml`."""
    text = files("config").joinpath("profiles.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Profile])


def builtin_config(model: str | None = None, serves: str = BUILTIN_MODEL) -> Config:
    """The configuration without a file: one gateway and one worker on loopback, with the built-in
    model or `model`, under the public name `serves`. Raises `ConfigError` for an invalid name.
    """
    try:
        msgspec.convert(serves, Name)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{serves!r} cannot be a model's name; use {NAME_IN_WORDS} (--name NAME)"
        ) from error
    limits = profiles()[DEFAULT_PROFILE]
    worker = WorkerConfig(
        name="local",
        model=model or f"{BUILTIN_PREFIX}{BUILTIN_MODEL}",
        serves=serves,
        gateways=(Config().gateway.worker_bind,),
        token_budget=limits.token_budget,
        max_gap_ms=limits.max_gap_ms,
        max_context=limits.max_context,
    )
    return Config(models=(ModelConfig(name=serves),), workers=(worker,))


@functools.cache
def builtin_models() -> dict[str, Path]:
    """The directories of the models that come with Herma, by name: builtin:herma-tiny."""
    home = Path(str(files("config") / "builtin"))
    return {
        f"{BUILTIN_PREFIX}{path.name}": path for path in sorted(home.iterdir()) if path.is_dir()
    }


@functools.cache
def builtin_drafters() -> dict[str, Path]:
    """The directories of the drafters that come with Herma, by name: builtin:herma-tiny/mtp."""
    return {
        f"{model}/{path.name}": path
        for model, home in builtin_models().items()
        for path in sorted((home / _DRAFTERS).glob("*/"))
    }


def is_hub_id(model: str) -> bool:
    """Whether `model` has the form Qwen/Qwen3-0.6B, which a directory may have as well."""
    return _HUB_ID.fullmatch(model) is not None


def no_builtin(model: str) -> str:
    """The error for a `builtin:NAME` that does not exist."""
    return f"model {model!r} does not exist: the built-in ones are {', '.join(builtin_models())}"


def no_model(model: str) -> str:
    """The error for a `model` that no worker can load."""
    known = ", ".join(builtin_models())
    return (
        f"model {model!r} is neither a directory, nor a hub id such as Qwen/Qwen3-0.6B, nor built "
        f"in: {known}"
    )


def no_drafter(drafter: str) -> str:
    """The error for a `drafter` that no worker can load."""
    known = ", ".join((*INDEX_DRAFTERS, *builtin_drafters()))
    return (
        f"drafter {drafter!r} is neither a directory, nor a hub id, nor one of {known}; "
        'speculation = "auto" takes the head in the model\'s own checkpoint'
    )


def names_no_drafter(drafter: str) -> str | None:
    """The error if `drafter` cannot exist on any machine, else None."""
    if drafter in builtin_drafters() or not _SCHEME.match(drafter):
        return None
    return no_drafter(drafter)


def names_nothing(model: str) -> str | None:
    """The error if `model` cannot exist on any machine, else None."""
    if model in builtin_models():
        return None
    if model.startswith(BUILTIN_PREFIX):
        return no_builtin(model)
    return no_model(model) if not model or _SCHEME.match(model) else None
