"""What a restart of the engine may change of a worker: all that is the engine's own.

Owns which keys are the supervisor's. Must not know files.
"""

from typing import Final

from config import WorkerConfig
from protocol.errors import ConfigError

_OF_THE_PROCESS: Final = (
    *("name", "serves", "gateways", "curve_secret_file", "curve_server_key"),
    "drain_s",
)
"""Gateways know the worker by them, and its parent waits so long for its end."""


def changed_keys(old: WorkerConfig, new: WorkerConfig) -> tuple[str, ...]:
    """The keys in which they differ. Raises `ConfigError` if one is not the engine's."""
    fields = old.__struct_fields__
    changed = tuple(key for key in fields if getattr(old, key) != getattr(new, key))
    if fixed := [key for key in changed if key in _OF_THE_PROCESS]:
        one = len(fixed) == 1
        raise ConfigError(
            f"{', '.join(fixed)} of worker `{old.name}` {'is' if one else 'are'} another now, and "
            "only a new process takes that: end `herma up` or `herma worker` and start it again"
        )
    return changed
