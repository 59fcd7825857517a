"""What runs when no file says otherwise.

Owns the profiles and the built-in configuration. Must not look at the machine.
"""

import functools
import tomllib
from importlib.resources import files
from typing import Final

import msgspec

from config.model import Config, ModelConfig, WorkerConfig

BUILTIN_MODEL: Final = "herma-tiny"
DEFAULT_PROFILE: Final = "balanced"


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Engine limits that belong together."""

    max_seqs: int
    token_budget: int
    max_context: int


@functools.cache
def profiles() -> dict[str, Profile]:
    """The named profiles of `profiles.toml`."""
    text = files("config").joinpath("profiles.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Profile])


def builtin_config() -> Config:
    """One gateway and one worker with the built-in model, all on loopback."""
    limits = profiles()[DEFAULT_PROFILE]
    worker = WorkerConfig(
        name="local",
        model=f"builtin:{BUILTIN_MODEL}",
        serves=BUILTIN_MODEL,
        gateways=(Config().gateway.worker_bind,),
        max_seqs=limits.max_seqs,
        token_budget=limits.token_budget,
        max_context=limits.max_context,
    )
    return Config(models=(ModelConfig(name=BUILTIN_MODEL),), workers=(worker,))
