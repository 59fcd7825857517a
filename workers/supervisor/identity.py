"""The identity of a worker towards gateways, and when each key of its configuration can change.

Owns the identity, and the hash that shows whether two workers have the same configuration. Must not
know sockets or files.
"""

from dataclasses import dataclass
from typing import Final

import msgspec
import xxhash

from config import WorkerConfig
from protocol.control_messages import Reloaded
from protocol.errors import ConfigError


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The lasting part of `Register`."""

    worker: str
    models: tuple[str, ...]
    build: str
    config_hash: str


def worker_identity(config: WorkerConfig, build: str) -> WorkerIdentity:
    """The identity of the worker of `config`. Secrets enter as file names, never as values."""
    encoded = msgspec.json.encode(config, order="deterministic")
    return WorkerIdentity(
        worker=config.name,
        models=(config.serves,),
        build=build,
        config_hash=xxhash.xxh3_64_hexdigest(encoded),
    )


_OF_THE_PROCESS: Final = (
    "name", "serves", "gateways", "curve_secret_file", "curve_server_key",
    "insecure_local", "drain_s", "residency",
)  # fmt: skip
"""Gateways know the worker by these keys, and its parent waits `drain_s` for its end."""


def changed_keys(old: WorkerConfig, new: WorkerConfig) -> tuple[str, ...]:
    """The keys that differ. Raises `ConfigError` if one of them needs a new process, not only a new
    engine.
    """
    fields = old.__struct_fields__
    changed = tuple(key for key in fields if getattr(old, key) != getattr(new, key))
    if fixed := [key for key in changed if key in _OF_THE_PROCESS]:
        one = len(fixed) == 1
        raise ConfigError(
            f"{', '.join(fixed)} of worker `{old.name}` {'is' if one else 'are'} another now, and "
            "only a new process takes that: end `herma up` or `herma worker` and start it again"
        )
    return changed


_PROCESS: Final = "a restart of the worker's process (`herma up`, or its unit)"
_WHILE_SERVING: Final = ("gateways", "stall_s", "prepare", "idle_s")


def take_changes(old: WorkerConfig, new: WorkerConfig) -> tuple[WorkerConfig, Reloaded]:
    """Merge `new` into the configuration `old` of a running worker: only the keys that need no
    restart change. Addresses of gateways are only added.
    """
    added = tuple(address for address in new.gateways if address not in old.gateways)
    has_lost = len(new.gateways) < len(old.gateways) + len(added)
    given = {key: getattr(new, key) for key in _WHILE_SERVING}
    given["gateways"] = (*old.gateways, *added)
    config = msgspec.structs.replace(old, **given)
    taken = tuple(key for key in _WHILE_SERVING if getattr(config, key) != getattr(old, key))
    kept: list[str] = []
    for key in old.__struct_fields__:
        if getattr(old, key) == getattr(new, key) or (key in _WHILE_SERVING and key != "gateways"):
            continue
        if key != "gateways":
            is_engines = key not in _OF_THE_PROCESS
            way = f"herma worker restart {old.name}" if is_engines else _PROCESS
            kept.append(f"{key}: {way}")
        elif has_lost:
            kept.append(f"gateways, those that are gone: {_PROCESS}")
    return config, Reloaded(taken, tuple(kept))
